"""Shows the name of a file above it: a fence of a page may begin with "python app.py"."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

NAMED = re.compile(r"^(`{3,})python (\S+)$", re.MULTILINE)


def show_names(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn the file's name into the caption of its block, before the page is read."""
    source[0] = NAMED.sub(r"\1{code-block} python\n:caption: \2", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("source-read", show_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
