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


def test_the_page_of_how_tos_has_them_all() -> None:
    """And the site's list of pages has them in the same order; its strict build finds what that lacks."""
    folder = ROOT / "docs" / "how-to"
    linked = re.findall(r"\]\(([\w-]+)\.md\)", (folder / "index.md").read_text("utf-8"))
    assert sorted([*linked, "index"]) == sorted(page.stem for page in folder.glob("*.md"))
    listed = re.findall(r"^how-to/([\w-]+)$", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE)
    assert listed == ["index", *linked]
