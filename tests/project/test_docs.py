"""What the documents say is so: their Python runs, and what they name exists.

In a document, a block marked ```python runs; one marked ```python cuda runs where there is a GPU.
The blocks of a document share one namespace, in order. What a `print` shows stands as a comment
beside or below it, and is compared. A block marked ```cpp src/... is a piece of that file.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from programs import ROOT
from support.registry import is_no_op

import torch_ops
import torch_ops.ops

DOCUMENTS = [
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "changelog.d/*.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "benchmarks/**/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
]
PUBLIC = {name: getattr(torch_ops, name) for name in torch_ops.__all__ if name[0] != "_"}


@dataclass(frozen=True)
class Block:
    """A fenced block: the words after the fence, the text, and the line it begins on."""

    words: list[str]
    text: str
    line: int


@cache
def read(document: str) -> tuple[str, list[Block]]:
    """The text outside the fenced blocks, and the blocks."""
    prose: list[str] = []
    blocks: list[Block] = []
    indent, fence, words, lines = "", "", [""], [""]
    for number, line in enumerate((ROOT / document).read_text("utf-8").splitlines(), start=1):
        mark = re.match(r"( *)(`{3,})([^`]*)$", line)
        if not fence and mark:
            indent, fence, words, lines = mark[1], mark[2], mark[3].split(), []
        elif fence and line.strip() == fence:
            blocks.append(Block(words, "\n".join(lines), number - len(lines)))
            fence = ""
        elif fence:
            lines.append(line.removeprefix(indent))
        else:
            prose.append(line)
    assert not fence, f"{document}: a block has no end"
    return "\n".join(prose), blocks


def blocks_in(document: str, language: str) -> list[Block]:
    return [block for block in read(document)[1] if block.words[:1] == [language]]


def promised_output(code: str) -> list[str]:
    """What the comments beside and below each call of print say."""
    lines: list[str] = []
    below = False
    for line in code.splitlines():
        if line.lstrip().startswith("print("):
            _, beside, text = line.rpartition("  # ")
            lines += [text] if beside else []
            below = True
        elif below and line.startswith("# "):
            lines.append(line.removeprefix("# "))
        else:
            below = False
    return lines


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks_in(d, "python")])
def test_python_runs(document: str) -> None:
    namespace: dict[str, Any] = {"__name__": document}
    for block in blocks_in(document, "python"):
        assert block.words[1:] in ([], ["cuda"]), f"{document}:{block.line - 1}: {block.words}"
        if "cuda" in block.words and not torch.cuda.is_available():
            continue
        # Lines are those of the document, so that a traceback leads there.
        code = compile("\n" * (block.line - 1) + block.text, str(ROOT / document), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        expected = promised_output(block.text)
        assert printed.getvalue().splitlines() == expected, f"{document}:{block.line}"


def test_cpp_is_in_the_sources() -> None:
    for document in DOCUMENTS:
        for block in blocks_in(document, "cpp"):
            if len(block.words) > 1:
                source = (ROOT / block.words[1]).read_text("utf-8")
                assert block.text in source, f"{document}:{block.line} is not in {block.words[1]}"


def test_tour_shows_every_public_name() -> None:
    shown = "\n".join(block.text for block in blocks_in("docs/tour.md", "python"))
    missing = [
        name
        for name, value in PUBLIC.items()
        if not re.search(rf"\b{name}\b", shown)
        and not (isinstance(value, type) and issubclass(value, Exception))
    ]
    assert not missing


# ---- what documents name ------------------------------------------------------------------------


def commands(document: str) -> str:
    """The shell blocks, and what stands between backquotes."""
    prose, blocks = read(document)
    quoted = re.findall(r"`([^`\n]+)`", prose)
    return "\n".join(quoted + [b.text for b in blocks if b.words[:1] in (["sh"], ["bash"])])


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"install", "demo", "test"} <= targets
    for document in DOCUMENTS:
        named = set(re.findall(r"\bmake ([a-z-]+)\b", commands(document)))
        assert named <= targets, f"{document}: {named - targets}"
    assert {"install", "demo", "test"} <= set(
        re.findall(r"make ([a-z]+)", commands("docs/install.md"))
    )


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_build_variables_are_explained() -> None:
    """Each that setup.py lists at its top."""
    text = (ROOT / "setup.py").read_text("utf-8").split('"""')[1]
    names = re.findall(r"^  ([A-Z][A-Z_]+)", text, re.MULTILINE)
    assert len(names) >= 5
    shown = commands("docs/install.md")
    assert [name for name in names if name not in shown] == []


def anchors(document: str) -> set[str]:
    """The names by which headings are linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", read(document)[0], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", read(document)[0]):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), f"{document}: {link}"
        if anchor:
            name = target.resolve().relative_to(ROOT).as_posix()
            assert anchor in anchors(name), f"{document}: {link}"


# Files of others, and those that a build or the reader makes.
FOREIGN = {"build_config.json", "cuda_bf16.h", "cusparse.h", "extension.h", "Interpreter.h"}
MADE_BY_THE_READER = {"gather.c", "reduce.c", "picks.pyx"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document: str) -> None:
    """Between backquotes and in commands; but for a place to fill in, `<op>`, or a pattern."""
    text = commands(document)
    folders = r"src|tests|tools|docs|examples|benchmarks|torch_ops|torch_ops_host|\.ci|\.github"
    for name in re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*)", text):
        assert (ROOT / name.rstrip(".")).exists(), f"{document}: {name}"
    for name in re.findall(
        r"(?<![\w<>*./-])(\w+\.(?:py|pyx|h|cuh|cpp|cu|c|md|rst|json|sh))\b", text
    ):
        known = name in FOREIGN | MADE_BY_THE_READER or name.startswith(
            ("softplus", "test_softplus")
        )
        assert known or name in all_file_names(), f"{document}: {name}"


@cache
def all_file_names() -> set[str]:
    folders = ("src", "tests", "tools", "docs", "examples", "benchmarks", "torch_ops")
    paths = [path for f in (*folders, "torch_ops_host") for path in (ROOT / f).rglob("*.*")]
    return {path.name for path in [*paths, *ROOT.glob("*.*")]}


def test_sources_name_pages_that_exist() -> None:
    folders = ("src", "torch_ops", "torch_ops_host", "tests", "tools", "benchmarks", "examples")
    endings = {".py", ".pyx", ".pxd", ".pxi", ".h", ".cuh", ".cpp", ".cu", ".c", ".sh"}
    named = {
        (page, path.relative_to(ROOT).as_posix())
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in endings
        for page in re.findall(r"\bdocs/[\w/]+\.md\b", path.read_text("utf-8"))
    }
    assert len(named) > 10
    assert sorted(name for name in named if not (ROOT / name[0]).exists()) == []


def test_messages_are_those_of_the_sources() -> None:
    """Each on the page of error messages stands in one file; `...` is what differs each time."""
    folders = ("src", "torch_ops", "torch_ops_host", "setup.py", "setup_c_library.py")
    sources = [
        # Strings side by side are one string.
        re.sub(r'"\s*\n\s*[fR]*"', "", path.read_text("utf-8")).replace('\\"', '"')
        for folder in folders
        for path in ((ROOT / folder).rglob("*") if (ROOT / folder).is_dir() else [ROOT / folder])
        if path.suffix in {".py", ".pyx", ".pxi", ".h", ".cpp", ".cu", ".cuh"}
    ]
    messages = re.findall(r"\*\*`(.+?)`\*\*", read("docs/troubleshooting.md")[0])
    assert len(messages) > 40
    gone = []
    for message in messages:
        parts = [part.strip(" .") for part in message.split("...") if len(part.strip(" .")) > 3]
        assert parts, message
        if not any(all(part in source for part in parts) for source in sources):
            gone.append(message)
    assert gone == []


def test_tables_that_the_site_plots_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    plots = importlib.import_module("plots")
    drawn = 0
    for document in DOCUMENTS:
        text = "".join((ROOT / document).read_text("utf-8").split("`<!-- plot"))  # but examples
        found = plots.MARK.findall(text)
        assert len(found) == text.count("<!-- plot "), f"{document}: a table must follow"
        for columns, _, lines in found:
            table = plots.read_table(lines, [int(column) for column in columns.split()])
            assert table.rows and all(any(series.values) for series in table.series), document
            assert len({series.label for series in table.series}) == len(table.series), document
            drawn += 1
    assert drawn > 5


def test_every_public_name_is_in_the_reference() -> None:
    folder = ROOT / "docs/api"
    documented: dict[str, set[str]] = {}
    for page in folder.glob("*.rst"):
        if page.name != "index.rst":
            module = ""
            for line in page.read_text("utf-8").splitlines():
                if line.startswith(".. currentmodule:: "):
                    module = line.split()[-1]
                elif found := re.match(r"\.\. auto(?:function|class|exception|data):: (\w+)", line):
                    documented.setdefault(module, set()).add(found[1])
    overview = (folder / "index.rst").read_text("utf-8")
    for module in (
        *(torch_ops, torch_ops.jit, torch_ops.decompositions, torch_ops.host),
        *(torch_ops.compat, torch_ops.compat.torch_scatter, torch_ops.compat.pyg),
    ):
        name = "torch_ops_host" if module is torch_ops.host else module.__name__
        public = set(module.__all__) - {"__version__"}
        assert documented[name] == public, f"docs/api: {name}"
        assert [each for each in public if f"\n   {each}\n" not in overview] == [], name


# ---- docstrings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_examples_run(name: str) -> None:
    runner = doctest.DocTestRunner()
    report: list[str] = []
    for example in doctest.DocTestFinder().find(PUBLIC[name], name, module=False, globs={}):
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def requirements(value: Any) -> dict[str, str]:
    """What the docstring of a public name must hold: patterns, each with what it is for."""
    parameters: list[str] = []
    if inspect.isfunction(value) and is_no_op(value.__name__):
        parameters = list(inspect.signature(value).parameters)
        wanted = {"what comes of it": r"^(Raises|Returns):$", "an example": r"^Example:\n +>>> "}
    elif inspect.isfunction(value):
        parameters = list(inspect.signature(value).parameters)
        wanted = {
            "shapes": r"\bshape\b",
            "dtypes": r"float32|int64|dtype",
            "what it returns": r"^Returns:$",
            "the gradient": r"^Gradient\b",
            "determinism": r"^Determinis|determinism",
            "errors": r"^Raises:$",
            "an example": r"^Example:\n +>>> ",
        }
    elif issubclass(value, torch.nn.Module):
        parameters = list(inspect.signature(value.__init__).parameters)[1:]
        if value.__init__ is torch.nn.Module.__init__:
            parameters = []
        wanted = {"its function": r":func:`\w+`", "an example": r"^Example:\n +>>> "}
    elif issubclass(value, torch.autograd.Function):
        wanted = {"its function": r":func:`\w+`", "how it is called": rf"{value.__name__}\.apply\("}
    else:
        wanted = {"a sentence": r"\w+ .*\."}
    if parameters:
        wanted["arguments"] = r"^Args:$"
    return wanted | {f"the argument {name}": rf"^    {name}: " for name in parameters}


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_is_whole(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    wanted = requirements(PUBLIC[name])
    missing = [what for what, line in wanted.items() if not re.search(line, text, re.MULTILINE)]
    assert not missing, f"torch_ops.{name} does not tell: {', '.join(missing)}"


def test_modules_say_what_they_are_for() -> None:
    for module in pkgutil.walk_packages(torch_ops.__path__, "torch_ops."):
        if module.name == "torch_ops.compat._pyg":
            assert (ROOT / "torch_ops/compat/_pyg.py").read_text("utf-8").startswith('"""')
        elif not module.name.startswith("torch_ops._ext."):
            assert importlib.import_module(module.name).__doc__, module.name
