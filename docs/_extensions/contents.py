"""Lists of pages: a line in one is a page's place in the sidebar too.

A fence "{contents}" puts the pages that the lists and tables above it name into the sidebar, below this
page, in their order and with their short names. "{contents} index.md Web services" takes the list of that
section of another page, and shows it. "{readme} names in the header" is the table of README that has
these names in its first row.

Nothing here needs Sphinx but `setup`, so tests ask for the same text.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

PAGES = Path(__file__).parents[1]
README = PAGES.parent / "README.md"
FENCE = re.compile(r"^```\{(?P<kind>contents|readme)\}(?P<asked>[^\n]*)\n```$", re.MULTILINE)
LISTED = re.compile(r"^(?:- |\| )\[(?P<name>[^\]]+)\]\((?P<page>[\w./-]+)\.md\)", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def expanded(text: str, page: Path) -> str:
    """Return the text of a page with what its fences ask for."""

    def found(fence: re.Match[str]) -> str:
        asked = fence["asked"].strip()
        if fence["kind"] == "readme":
            up = "../" * (len(page.relative_to(PAGES).parts) - 1)
            return readme_table(asked).replace("](docs/", f"]({up}")
        if not asked:
            return tree(text[: fence.start()])
        file, _, title = asked.partition(" ")
        listed = section((page.parent / file).read_text("utf-8"), title)
        return f"{listed}\n\n{tree(listed)}"

    return FENCE.sub(found, text)


def section(text: str, title: str) -> str:
    """Return what stands below a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |^```\{{|\Z)", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"no section {title!r}")
    return found[1].strip()


def tree(text: str) -> str:
    """Return the hidden list, for the sidebar, of the pages that lists in `text` link to."""
    lines = [f"{each['name'].replace('`', '')} <{each['page']}>" for each in LISTED.finditer(text)]
    return "\n".join(["```{toctree}", ":hidden:", "", *lines, "```"])


def readme_table(names: str) -> str:
    """Return the table of README that has these names in its first row."""
    for table in TABLE.findall(README.read_text("utf-8")):
        if names in table.partition("\n")[0]:
            return str(table).strip()
    raise ValueError(f"README has no table with {names!r} in its first row")


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the lists into a page that is about to be read."""
    page = Path(app.env.doc2path(name))
    for fence in FENCE.finditer(source[0]):
        file = fence["asked"].split()[:1]
        app.env.note_dependency(README if fence["kind"] == "readme" else str(page.parent.joinpath(*file)))
    source[0] = expanded(source[0], page)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("source-read", fill_in, priority=300)  # before the files and figures that lists may name
    return {"parallel_read_safe": True, "parallel_write_safe": True}
