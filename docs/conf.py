"""How Sphinx builds the site: `make docs`. The source folder is the repository, as pages link to `results`."""

import sys
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import convert

from viewfuse import __version__

project = "viewfuse"
author = "the viewfuse authors"
copyright = "the viewfuse authors, BSD-3 licence"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "results/**.md",
    "benchmarks/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "build", "dist", "src", "tests", "demo-output", "bench-output"]

# Markdown. Headings have the anchors that they have on code hosts, so one link works in both places.
myst_enable_extensions = ["dollarmath", "attrs_block", "attrs_inline", "colon_fence"]
myst_heading_anchors = 3

# Docstrings. Types are given in words there; hints of private aliases would only make signatures long.
autodoc_typehints = "none"
default_role = "code"
autodoc_member_order = "bysource"
smartquotes = False  # they turn the apostrophe of KDD '24 round
nitpicky = True

html_theme = "pydata_sphinx_theme"
html_title = "viewfuse"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "to_start.html"}  # the pages are in docs/, the site's address ends before it
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "viewfuse"},
    "show_toc_level": 2,
    "navigation_with_keys": True,
    "show_prev_next": True,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def add_title(app, docname, source):
    """Pages of results have no place in the menu but their README; tables of the benchmarks have no title."""
    if docname.startswith("results/") and not docname.endswith("README"):
        title = "" if source[0].startswith("# ") else f"# {PurePosixPath(docname).name}\n\n"
        source[0] = f"---\norphan: true\n---\n\n{title}{source[0]}"


def setup(app):
    """What Sphinx calls."""
    app.connect("source-read", add_title)
    app.connect("autodoc-process-docstring", convert)
