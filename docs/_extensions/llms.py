"""Writes each page as Markdown too, llms.txt, which lists these, and llms-full.txt, which has them all.

A link in them that leads nowhere is a warning, which fails a strict build.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import contents
import outside
import tables
from sphinx.application import Sphinx
from sphinx.util import logging

import batched

logger = logging.getLogger(__name__)

FOLDERS = {
    "": "Start",
    "how-to": "How-to guides",
    "explanation": "How it works",
    "reference": "Reference",
    "coming-from": "Coming from",
}
FIRST_PARAGRAPH = re.compile(r"^# .+\n+(?P<text>(?:(?!```|[|(#]).+\n)+)", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
TO = re.compile(r"(?<=\]\()(?P<to>[^)\s#]+)")
CODE = re.compile(r"^(?P<fence>`{3,}).*?^(?P=fence)$", re.DOTALL | re.MULTILINE)
FOR_HTML = re.compile(
    r"\A---\n.*?^---\n+|^```\{toctree\}\n.*?^```\n*|^\{\.[\w-]+\}\n|^![^\n]*\{\.only-dark\}\n|\{\.only-light\}$",
    re.DOTALL | re.MULTILINE,
)
"""What is for HTML only: the front matter, the sidebar, classes, a picture for dark pages."""
INCLUDED = re.compile(r"^```\{include\} (?P<path>\S+)\n```$", re.MULTILINE)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write all of it, if the site was built as HTML."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    lines = [f"# {app.config.project}", "", f"> {summary()}"]
    texts = []
    folder = None
    for name in sorted(below(app, app.config.root_doc), key=place):
        page = Path(app.env.doc2path(name))
        text = with_pictures(app, page, outside.replaced(markdown(page), page))
        Path(out, f"{name}.md").write_text(text, "utf-8")
        texts.append(text.strip())
        if (found := folder_of(name)) != folder:
            folder = found
            lines += ["", f"## {FOLDERS[folder]}", ""]
        lines.append(f"- [{app.env.titles[name].astext()}]({name}.md){first_sentence(text)}")
    out.joinpath("llms.txt").write_text("\n".join([*lines, ""]), "utf-8")
    out.joinpath("llms-full.txt").write_text("\n\n\n".join(texts) + "\n", "utf-8")
    for link in dead_links(out):
        logger.warning("a link in Markdown leads nowhere: %s", link)


def below(app: Sphinx, name: str) -> list[str]:
    """Return a page, and those below it in the sidebar, in their order."""
    return [name, *(each for child in app.env.toctree_includes.get(name, []) for each in below(app, child))]


def with_pictures(app: Sphinx, page: Path, text: str) -> str:
    """Return the text of a page with links to the pictures that Sphinx has copied into the site."""

    def copied(link: re.Match[str]) -> str:
        picture = os.path.relpath((page.parent / link["to"]).resolve(), app.srcdir)
        if picture not in app.env.images:
            return link["to"]
        up = "../" * (len(page.relative_to(app.srcdir).parts) - 1)
        return f"{up}{app.builder.imagedir}/{app.env.images[picture][1]}"

    return TO.sub(copied, text)


def dead_links(out: Path) -> Iterator[str]:
    """Yield the links in the Markdown of the site that lead to no file of it."""
    for page in sorted([*out.rglob("*.md"), out / "llms.txt"]):
        for link in TO.findall(CODE.sub("", page.read_text("utf-8"))):
            if "://" not in link and not (page.parent / link).exists():
                yield f"{page.relative_to(out)}: {link}"


def first_sentence(text: str) -> str:
    """Return the first sentence of a page behind a colon; "" if it begins with something else."""
    found = FIRST_PARAGRAPH.search(text)
    paragraph = LINK.sub(r"\1", " ".join(found["text"].split())) if found else ""
    sentence = re.match(r".+?(?<!\.)(?=[.:](\s|$))", paragraph)
    return f": {sentence[0]}." if sentence else ""


def summary() -> str:
    """Return what the package says of itself."""
    return (batched.__doc__ or "").partition("\n")[0]


def folder_of(name: str) -> str:
    """Return the folder of a page."""
    return name.rpartition("/")[0]


def place(name: str) -> int:
    """Return where the folder of a page stands in the list."""
    return [*FOLDERS].index(folder_of(name))


def markdown(page: Path) -> str:
    """Return the text of a page with its lists, its tables and the files that it includes."""
    text = tables.generated(contents.expanded(page.read_text("utf-8"), page))
    text = FOR_HTML.sub("", text).strip() + "\n"
    return INCLUDED.sub(lambda found: (page.parent / found["path"]).read_text("utf-8").rstrip("\n"), text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
