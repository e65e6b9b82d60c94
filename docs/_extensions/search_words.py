"""Lets the search find a page by words that it lacks: those of `docs/search.toml`, and its name in lists.

Sphinx's search knows no synonyms. It looks for entries of an index, which are phrases and count most, and
for words: a page must have all that were typed. So each phrase becomes an entry of an index, and its
words become words of the page. Which pages come first is up to `_extensions/scorer.js`.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import contents
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)

FILE = Path(__file__).parents[1] / "search.toml"


@cache
def words() -> dict[str, dict[str, list[str]]]:
    """Return the phrases by page, and there by place; "" is the page itself."""
    found: dict[str, dict[str, list[str]]] = {}
    for where, phrases in tomllib.loads(FILE.read_text("utf-8"))["words"].items():
        page, _, place = where.partition("#")
        found.setdefault(page, {})[place] = list(phrases)
    for index in FILE.parent.glob("*/index.md"):
        for each in contents.LISTED.finditer(index.read_text("utf-8")):
            places = found.setdefault(f"{index.parent.name}/{each['page']}", {})
            places.setdefault("", []).append(each["name"])
    return found


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of pages that do not exist."""
    for page in words():
        if page not in env.found_docs:
            logger.warning("%s names a page that does not exist: %s", FILE.name, page)


def add(app: Sphinx, document: nodes.document, page: str) -> None:
    """Add the phrases to a page that is about to be written."""
    phrases_by_place = words().get(page, {})
    for place, phrases in phrases_by_place.items():
        if place and place not in document.ids:
            logger.warning("%s names a place that does not exist: %s#%s", FILE.name, page, place)
        entries = [("single", phrase, place, "main", None) for phrase in phrases]
        document.insert(0, addnodes.index(entries=entries))
    text = " ".join(phrase for phrases in phrases_by_place.values() for phrase in phrases)
    if keywords := set(re.findall(r"\w+", text)):
        document.insert(0, nodes.meta(name="keywords", content=", ".join(sorted(keywords))))


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("doctree-resolved", add)
    app.connect("env-updated", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
