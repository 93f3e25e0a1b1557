"""The documentation site: `make docs` builds it into build/docs.

Its pages are the repository's own markdown files, so the source folder is the whole repository, and
a link from one file to another leads to the same place here and on a code host. What a code host
would show as clutter is added here: which pages there are (CONTENTS), and the plots.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import plots  # noqa: E402

import torch_ops  # noqa: E402

project = "torch_ops"
author = "torch_ops contributors"
copyright = author
version = release = torch_ops.__version__

root_doc = "README"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
include_patterns = ["*.md", "docs/**.md", "docs/**.rst", "examples/**.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "torch_ops*", "tools", "docs/site"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
myst_heading_anchors = 4  # #the-words-of-a-heading, as on a code host

nitpicky = True
# What is not ours: other projects' sites cannot be asked while a build has no network.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|collections|typing|pathlib|os)\..*"),
    (r"py:class", "Tensor|Path|Index|Values"),  # as annotations name them
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_use_type_comments = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Gradient", "Memory", "Determinism"]
autosummary_generate = False

# Prompts are not part of what a reader wants to run.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"torch_ops {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "monokai"

# The pages, by what a reader wants of them. A name that ends in /* is every other page of a folder.
CONTENTS: dict[str, dict[str, list[str]]] = {
    "README": {
        "Begin": ["docs/install", "docs/tour", "docs/troubleshooting"],
        "Coming from": ["docs/coming_from/README"],
        "Reference": [
            "docs/api/index",
            "docs/semantics",
            "docs/jit",
            "docs/c_api",
            "docs/support",
            "docs/versions",
        ],
        "Performance": ["docs/performance", "docs/figures"],
        "How it works": [
            "docs/architecture",
            "docs/gather",
            "docs/kernels/README",
            "docs/jit_internals",
        ],
        "Examples": ["examples/g2_energies/README", "examples/hello/README"],
        "Contribute": ["CONTRIBUTING", "docs/developing", "docs/log", "CHANGELOG"],
    },
    "docs/coming_from/README": {"": ["docs/coming_from/*"]},
    "docs/kernels/README": {"": ["docs/kernels/*"]},
}


def contents(page: str) -> str:
    """The toctrees of a page, which show in the bar at the side and not in the page itself."""
    return "".join(
        "\n".join(
            [
                "\n```{toctree}",
                ":hidden:",
                ":glob:",
                *([f":caption: {caption}"] if caption else []),
                "",
                *(f"/{page}" for page in pages),
                "```\n",
            ]
        )
        for caption, pages in CONTENTS.get(page, {}).items()
    )


def add_to_page(app: Sphinx, page: str, source: list[str]) -> None:
    if page in CONTENTS:
        source[0] += "\n" + contents(page)
    source[0] = plots.draw_marked(source[0], page, ROOT / "build/docs_plots")


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Servers and people look for index.html."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_to_page)
    app.connect("build-finished", add_index)
