"""Writes each page as Markdown too, llms.txt, which lists these, and llms-full.txt, which has them all."""

from __future__ import annotations

import re
from pathlib import Path

import tables
from sphinx.application import Sphinx

import batched

FOLDERS = {
    "": "Start",
    "how-to": "How-to",
    "explanation": "Explanation",
    "reference": "Reference",
    "coming-from": "Coming from",
}
FIRST_PARAGRAPH = re.compile(r"^# .+\n+(?P<text>(?:(?!```|[|(#]).+\n)+)", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
INCLUDED = re.compile(r"^```\{include\} (?P<path>\S+)\n```$", re.MULTILINE)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write all of it, if the site was built as HTML."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    lines = [f"# {app.config.project}", "", f"> {summary()}"]
    texts = []
    listed = app.env.toctree_includes[app.config.root_doc]
    others = app.env.found_docs - {app.config.root_doc, *listed}
    names = sorted([*listed, *sorted(others)], key=place)
    folder = None
    for name in names:
        text = markdown(Path(app.env.doc2path(name)))
        Path(out, f"{name}.md").write_text(text, "utf-8")
        texts.append(text.strip())
        if (found := folder_of(name)) != folder:
            folder = found
            lines += ["", f"## {FOLDERS[folder]}", ""]
        lines.append(f"- [{app.env.titles[name].astext()}]({name}.md){first_sentence(text)}")
    out.joinpath("llms.txt").write_text("\n".join([*lines, ""]), "utf-8")
    out.joinpath("llms-full.txt").write_text("\n\n\n".join(texts) + "\n", "utf-8")


def first_sentence(text: str) -> str:
    """Return the first sentence of a page behind a colon; "" if it begins with something else."""
    found = FIRST_PARAGRAPH.search(text)
    paragraph = LINK.sub(r"\1", " ".join(found["text"].split())) if found else ""
    sentence = re.match(r".+?(?=[.:](\s|$))", paragraph)
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
    """Return the text of a page with its tables, and with the files that it includes."""
    text = tables.generated(page.read_text("utf-8"))
    return INCLUDED.sub(lambda found: (page.parent / found["path"]).read_text("utf-8").rstrip("\n"), text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
