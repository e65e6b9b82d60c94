"""The site: what is published, and what would go unnoticed without a reader's browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kit.page import Page
from tests.kit.script import ROOT

DOCS = ROOT / "docs"

PUBLISH = ROOT / ".ci" / "publish-site"
AS = ("-c", "user.name=a", "-c", "user.email=a@localhost")


def git(folder: Path, *arguments: str) -> str:
    """Return what git says in a folder."""
    command = ["git", *AS, *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, encoding="utf-8", timeout=30
    ).stdout


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("git"), reason="a script of Unix, for git")
def test_each_version_has_a_folder_and_the_list_names_all_newest_first(tmp_path: Path) -> None:
    """A version that is published again replaces its folder; the start leads to the newest release."""
    branch, clone, site = tmp_path / "branch", tmp_path / "clone", tmp_path / "site"
    git(tmp_path, "init", "--quiet", "--bare", str(branch))
    git(tmp_path, "clone", "--quiet", str(branch), str(clone))
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "main")
    site.mkdir()
    for folder, text in (("dev", "old"), ("v0.9.0", "9"), ("v0.10.0", "10"), ("dev", "new")):
        (site / "index.html").write_text(text)
        subprocess.run([PUBLISH, site, folder], cwd=clone, check=True, capture_output=True, timeout=30)

    published = {
        name: git(branch, "show", f"gh-pages:{name}") for name in ("dev/index.html", "v0.9.0/index.html")
    }
    assert published == {"dev/index.html": "new", "v0.9.0/index.html": "9"}
    for place in ("", "dev/", "v0.9.0/"):  # a page asks for the list in the folder of its version
        listed = git(branch, "show", f"gh-pages:{place}versions.json")
        assert json.loads(listed) == ["v0.10.0", "v0.9.0", "dev"]
    assert "url=v0.10.0/" in git(branch, "show", "gh-pages:index.html")
    assert git(clone, "worktree", "list").count("\n") == 1


@pytest.fixture(scope="module")
def contents() -> Iterator[object]:
    """Return the module that makes lists of pages when the site is built."""
    if find_spec("sphinx") is None:
        pytest.skip("what builds the site is not installed")
    folder = str(DOCS / "_extensions")
    sys.path.insert(0, folder)
    yield import_module("contents")
    sys.path.remove(folder)


def test_a_list_on_a_page_is_its_part_of_the_sidebar(contents: object) -> None:
    """With the names of the list, in its order; links in sentences are no part of it."""
    page = "See [z](z.md).\n\n- [A `b`](b.md): one\n\n| [C](c.md) | two |\n\n```{contents}\n```"
    assert contents.expanded(page, DOCS / "how-to" / "x.md").endswith(
        "```{toctree}\n:hidden:\n\nA b <b>\nC <c>\n```"
    )


def test_a_part_of_a_list_is_written_once(contents: object) -> None:
    """A page of one section has its lines, which stand in the page with all."""
    page = DOCS / "how-to" / "production.md"
    text = contents.expanded(page.read_text("utf-8"), page)
    assert "| [Kubernetes](kubernetes.md) | " in text
    assert "\nKubernetes <kubernetes>\n" in text
    assert "fastapi" not in text
    with pytest.raises(ValueError, match="no section 'Nothing'"):
        contents.expanded("```{contents} index.md Nothing\n```", page)


def test_tables_of_readme_have_links_as_from_the_page(contents: object) -> None:
    """They stand in README only."""
    for page, up in ((DOCS / "index.md", ""), (DOCS / "how-to" / "x.md", "../")):
        text = contents.expanded("```{readme} your function takes\n```", page)
        assert f"]({up}how-to/arrays.md)" in text


def test_words_for_the_search_are_those_of_pages_that_there_are() -> None:
    """The session `look` asks the search itself, for forty things and more."""
    table = tomllib.loads((DOCS / "search.toml").read_text("utf-8"))
    named = {where.partition("#")[0] for where in table["words"]}
    named |= {page for pages in table["finds"].values() for page in pages} | set(table["first"].values())
    assert [page for page in sorted(named) if not (DOCS / f"{page}.md").exists()] == []
    assert len(table["finds"]) >= 40
    assert all(table["finds"].values())


def test_what_pages_ask_for_is_there_in_a_site_that_was_not_published() -> None:
    """Else each page would have an error in the console."""
    (asked,) = re.findall(
        r'new URL\("([^"]+)", home\)', (DOCS / "_static" / "versions.js").read_text("utf-8")
    )
    assert json.loads((DOCS / "_published" / asked).read_text("utf-8")) == []


@pytest.mark.pages
def test_the_code_of_the_home_page_answers_a_thread_and_an_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its handler is not called there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict[str, object] = {}
    exec(Page(DOCS / "index.md").examples(), names)
    answer = asyncio.run(names["handler"]("called from a thread"))
    assert answer == pytest.approx(names["vector"], abs=1e-5)
