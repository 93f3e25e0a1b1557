"""The documentation site: `make docs` builds it into build/docs.

Its pages are the repository's own markdown files, so the source folder is the whole repository, and
a link from one file to another leads to the same place here and on a code host. What a code host
would show as clutter is added here: which pages there are (CONTENTS), and the plots.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from functools import partial
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
include_patterns = ["*.md", "changelog.d/README.md", "docs/**.md", "docs/**.rst", "examples/**.md"]
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
    (r"py:.*", r"(torch|numpy|collections|contextlib|typing|pathlib|os)\..*"),
    # As annotations name them.
    (r"py:class", r"Tensor|Path|Index|Values|nn\.(Module|Parameter)|.*\bModel"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
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
pygments_dark_style = "github-dark"

# The pages, by what a reader wants of them. A name that ends in /* is every other page of a folder.
CONTENTS: dict[str, dict[str, list[str]]] = {
    "README": {
        "Begin": [
            "Install <docs/install>",
            "Tour <docs/tour>",
            "Coming from another library <docs/coming_from/README>",
            "Troubleshooting <docs/troubleshooting>",
        ],
        "Reference": [
            "API <docs/api/index>",
            "Semantics <docs/semantics>",
            "Run-time compilation <docs/jit>",
            "Messages of graph networks <docs/messages>",
            "Several GPUs <docs/distributed>",
            "C library and NumPy <docs/c_api>",
            "Support <docs/support>",
            "Versions <docs/versions>",
            "What a version may change <docs/policy>",
        ],
        "Measurements": [
            "Performance <docs/performance>",
            "Benchmark runs <docs/internals/runs>",
        ],
        "How it works": [
            "Architecture <docs/internals/architecture>",
            "Kernels <docs/internals/kernels/README>",
            "Run-time compilation, inside <docs/internals/jit>",
            "Several GPUs, inside <docs/internals/distributed>",
        ],
        "Examples": [
            "Energies of molecules <examples/g2_energies/README>",
            "Layers of graph networks <examples/messages/README>",
            "Training graph networks <examples/graph_training/README>",
            "PyTorch Geometric, one line changed <examples/pyg/README>",
            "A table that ranks share <examples/sharded_embedding/README>",
            "Hello, in four ways <examples/hello/README>",
        ],
        "Contribute": [
            "Contributing <CONTRIBUTING>",
            "Developing <docs/internals/developing>",
            "Log <docs/internals/log>",
            "Changes <CHANGELOG>",
            "Changes to come <changelog.d/README>",
        ],
    },
    "docs/coming_from/README": {
        "": [
            "torch <docs/coming_from/torch>",
            "torch_scatter <docs/coming_from/torch_scatter>",
            "PyTorch Geometric <docs/coming_from/pyg>",
            "NumPy <docs/coming_from/numpy>",
            "CuPy <docs/coming_from/cupy>",
            "TensorFlow <docs/coming_from/tensorflow>",
            "JAX <docs/coming_from/jax>",
            "ONNX <docs/coming_from/onnx>",
        ]
    },
    "docs/internals/kernels/README": {"": ["docs/internals/kernels/*"]},
}
NAMES = dict(
    re.fullmatch(r"(.*) <(.*)>", entry).group(2, 1)
    for entries in CONTENTS["README"].values()
    for entry in entries
)


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
                *(re.sub(r"^(.*<)?", r"\1/", entry) for entry in entries),
                "```\n",
            ]
        )
        for caption, entries in CONTENTS.get(page, {}).items()
    )


def name_link(page: str, link: re.Match[str]) -> str:
    """Not by the name of a file: as the page is called in the bar, or by its title."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[1]))
    return f"[{NAMES.get(target, '')}]({link[1]}.md"


def change_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Makes of a markdown file as a code host shows it one of the site's pages."""
    text = source[0]
    # The list of a page's sections stands beside it here.
    text = re.sub(r"^(- \[[^\]]+\]\(#[^)]+\)\n){3,}\n", "", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"\[[\w./]+\.md\]\(([^)#]+)\.md\b", partial(name_link, page), text)
    source[0] = plots.draw_marked(text, page, ROOT / "build/docs_plots") + contents(page)


def add_index(app: Sphinx, error: Exception | None) -> None:
    """Servers and people look for index.html."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", change_page)
    app.connect("build-finished", add_index)
