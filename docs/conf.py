"""How Sphinx builds the site: `nox -s site`."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "batched"
author = "The developers of batched"
copyright = f"2026, {author}"  # noqa: A001  Sphinx's name for it
version = release = version_of("batched")

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "accessible",
    "file_names",
    "llms",
    "outside",
    "readme",
    "reference",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_extensions", "_static", "_templates"]
nitpicky = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
python_maximum_signature_line_length = 80  # a longer one has a line for each parameter
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"
html_title = "batched"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_js_files = ["versions.js"]
html_show_sourcelink = False
html_copy_source = False
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/versions.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options: dict[str, object] = {"top_of_page_buttons": []}
