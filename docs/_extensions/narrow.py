"""Makes tables that fit on a phone: a row is a block there, and each cell has the name of its column.

`style.css` shows these names on narrow screens only.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

FEW = 2
"""Columns that fit beside each other on any screen."""


def name_cells(app: Sphinx, document: nodes.document, page: str) -> None:
    """Put the name of its column into each cell of a table with many columns."""
    for table in document.findall(nodes.table):
        head = next(table.findall(nodes.thead), None)
        columns = [entry.astext() for entry in head.findall(nodes.entry)] if head else []
        if len(columns) <= FEW:
            continue
        table["classes"].append("stacked")
        for row in next(table.findall(nodes.tbody)).findall(nodes.row):
            for name, entry in list(zip(columns, row.children, strict=True))[1:]:
                if isinstance(entry, nodes.entry) and name:
                    entry.insert(0, nodes.inline("", name, classes=["column", "no-search"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("doctree-resolved", name_cells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
