"""Mends parts of Sphinx's pages that cannot be used by keyboard or with a screen reader; axe finds them."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

SCROLLED = re.compile(r'<pre(?=>)|<div class="table-wrapper[^"]*"')
PARAMETERS = re.compile(r'<dl>\n(<dd><em class="sig-param">.*?)</dl>', re.DOTALL)


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], document: object) -> None:
    """Mend a page and its list of pages, once the theme has made them."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')
    if "body" in context:
        body = SCROLLED.sub(r'\g<0> tabindex="0"', context["body"])  # else no key scrolls a wide one
        context["body"] = PARAMETERS.sub(without_list, body)


def without_list(found: re.Match[str]) -> str:
    """Return the parameters of a signature as lines: in a list each would need a term."""
    lines = found[1].replace("<dd>", "<div>").replace("</dd>", "</div>")
    return f'<div class="sig-lines">\n{lines}</div>'


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("html-page-context", mend, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
