"""How the site of the documentation is built: `make docs`. Why Sphinx: docs/design/0026."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "docs" / "site"))

import wattree  # noqa: E402 - from this checkout

# Pages are trees that stay until the end; to look for garbage among them took a quarter of a build.
gc.disable()

project = "Wattree"
author = "The authors of Wattree"
version = release = wattree.__version__

extensions = [
    "myst_parser",  # pages are Markdown, as hosts of Git show it
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # docstrings have Google sections
    "extensions",  # docs/site/extensions.py
]

# The checkout is the source folder, so that links such as ../CONTRIBUTING.md hold on the site as
# they do on GitHub. A page is one of these; it must stand in a table of contents.
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/*/*.md",
    "*.md",
    "examples/*/README.md",
    "examples/*/tables.md",
    "validation/README.md",
]
exclude_patterns = [".*", "build", "src", "tests", "benchmarks", "shared", "runs", "**/__pycache__"]

myst_heading_anchors = 4  # links name headings as GitHub does
# Tables that scripts write begin at the third level.
suppress_warnings = ["myst.header"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_use_ivar = True  # attributes as one list
autodoc_member_order = "bysource"
default_role = "code"  # one backtick in a docstring is code

toc_object_entries_show_parents = "hide"
smartquotes_action = "D"  # dashes only: "bf16" is code, not speech
highlight_language = "text"
html_theme = "furo"
html_title = "Wattree"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["site/static"]
html_css_files = ["site.css"]
templates_path = ["site/templates"]
html_additional_pages = {"index": "start.html"}
