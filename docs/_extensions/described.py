"""Tells search engines, and previews of links, what a page is about: its first paragraph."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

MOST = 200
"""Characters of a description; a preview shows no more."""


def describe(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None
) -> None:
    """Give the description to `base.html`, which puts it into the head of the page."""
    paragraph = next(document.findall(nodes.paragraph), None) if document else None
    context["description"] = shorten(paragraph.astext(), MOST, placeholder="…") if paragraph else ""


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
