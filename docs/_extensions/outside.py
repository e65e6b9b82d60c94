"""Links to files of the repository that are no pages: to its address, or their text while it has none."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADDRESS = PROJECT.get("urls", {}).get("Repository")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<to>\.\./[^)#\s]+)(?P<place>#[^)\s]*)?\)")


def leave_outside(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace them in a page that is about to be read."""
    source[0] = replaced(source[0], Path(app.env.doc2path(name)))


def replaced(text: str, page: Path) -> str:
    """Return the text of a page, with the links that lead out of the folder of the pages replaced."""

    def found(link: re.Match[str]) -> str:
        there = (page.parent / link["to"]).resolve()
        if there.is_relative_to(PAGES) or not there.exists():
            return link[0]
        if ADDRESS is None:
            return link["text"]
        return f"[{link['text']}]({ADDRESS}/blob/main/{there.relative_to(ROOT)}{link['place'] or ''})"

    return LINK.sub(found, text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("source-read", leave_outside)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
