"""The first page of the site is README of the repository, above its own lists of pages."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

README = Path(__file__).parents[2] / "README.md"


def put_first(app: Sphinx, name: str, source: list[str]) -> None:
    """Put README before the text of the first page, with links as they are from the folder of the pages."""
    if name == app.config.root_doc:
        app.env.note_dependency(README)
        source[0] = readme() + source[0]


def readme() -> str:
    """Return README with links as they are from the folder of the pages."""
    text = README.read_text("utf-8").replace("](CHANGELOG.md)", "](docs/reference/changelog.md)")
    text = text.replace("](docs/", "](<here>/")
    return text.replace("](", "](../").replace("](../<here>/", "](").replace("](../#", "](#")


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of it."""
    app.connect("source-read", put_first, priority=400)  # before those that change the text of a page
    return {"parallel_read_safe": True, "parallel_write_safe": True}
