"""How Sphinx builds the site: `nox -s site`."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

EXTENSIONS = Path(__file__).parent / "_extensions"
sys.path.insert(0, str(EXTENSIONS))

project = "batched"
author = "The developers of batched"
copyright = f"2026, {author}, Apache License 2.0"  # noqa: A001  Sphinx's name for it
version = release = version_of("batched")

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "accessible",
    "contents",
    "described",
    "file_names",
    "llms",
    "narrow",
    "outside",
    "reference",
    "search_words",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_extensions", "_published", "_static", "_templates"]
nitpicky = True
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3
python_maximum_signature_line_length = 80  # a longer one has a line for each parameter
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"
html_title = "batched"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_extra_path = ["_published"]
html_css_files = ["style.css"]
html_js_files = ["versions.js"]
html_search_scorer = str(EXTENSIONS / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options: dict[str, object] = {
    "top_of_page_buttons": [],
    "light_logo": "wordmark-light.svg",
    "dark_logo": "wordmark-dark.svg",
    "sidebar_hide_name": True,
}
