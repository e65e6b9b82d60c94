"""Everything that README and the documentation say was run: each page in a process of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.kit.page import PAGES, Page
from tests.kit.script import ROOT


def pages() -> list[object]:
    """Return the pages with examples; those that need more than the tests do are marked `pages`, or `ray`."""
    found = [page for page in map(Page, PAGES) if page.is_run]
    return [pytest.param(page, id=str(page.path.relative_to(ROOT)), marks=marks(page)) for page in found]


def marks(page: Page) -> list[pytest.MarkDecorator]:
    """Return the mark of the session in which a page runs; pages without one need no further library."""
    if "ray[serve]" in page.needs:
        return [pytest.mark.ray]
    return [pytest.mark.pages] if page.needs else []


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a shell of Unix")
@pytest.mark.timeout(200)
@pytest.mark.parametrize("page", pages())
def test_a_page_runs_as_printed(page: Page, tmp_path: Path) -> None:
    """Its files, its commands and its examples."""
    assert page.lacks == [], 'pip install -e ".[dev,pages]" -c .ci/constraints.txt, or ".[dev,ray]"'
    if missing := page.missing_servers():
        pytest.skip(f"there is no {', '.join(missing)}")
    page.run(tmp_path)


@pytest.mark.parametrize("folder", ["coming-from", "explanation", "how-to", "reference"])
def test_the_index_of_a_folder_lists_each_of_its_pages_once(folder: str) -> None:
    """And says what it is for; the pages that only have a part of that list are named in the sidebar."""
    pages = {page.stem: page.read_text("utf-8") for page in (ROOT / "docs" / folder).glob("*.md")}
    index = pages.pop("index")
    listed = re.findall(r"^(?:- |\| )\[[^\]]+\]\(([\w.-]+)\.md\)(?:: | \| )\S.*$", index, re.MULTILINE)
    parts = {
        name: asked[1]
        for name, text in pages.items()
        if (asked := re.search(r"{contents} index\.md (.+)", text))
    }
    assert sorted([*listed, *parts]) == sorted(pages)
    sections = re.findall(r"^## (.+)$", index, re.MULTILINE) if parts else []
    home = (ROOT / "docs" / "index.md").read_text("utf-8")
    named = re.findall(rf"^(?:.* <)?{folder}/([\w-]+)>?$", home, re.MULTILINE)
    assert named[0] == "index"
    assert [parts[name] for name in named[1:]] == sections
