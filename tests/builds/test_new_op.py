"""A new elementwise op, as tools/new_op.py writes it: its size and form, its build, its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from programs import ROOT, STEERING, run

OP = "soft_clip"
MODULE = "SoftClip"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of this project with what is built, but for the objects."""
    left_out = ("build", ".git", ".venv", "__pycache__", ".*_cache", ".built*", "*.log")
    return Path(shutil.copytree(ROOT, tmp_path / "tree", ignore=shutil.ignore_patterns(*left_out)))


def files(folder: Path) -> dict[str, list[str]]:
    endings = {".py", ".md", ".h", ".cuh", ".cpp", ".cu"}
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8").splitlines()
        for path in folder.rglob("*")
        if path.suffix in endings
    }


def new_op(tree: Path, name: str) -> subprocess.CompletedProcess[str]:
    return run("tools/new_op.py", name, cwd=tree)


def test_size_and_form(tree: Path) -> None:
    before = files(tree)
    result = new_op(tree, OP)
    assert result.returncode == 0, result.stdout
    after = files(tree)
    changed = {name: lines for name, lines in after.items() if lines != before.get(name)}
    added = [
        line for name, lines in changed.items() for line in set(lines) - set(before.get(name, []))
    ]
    assert sum(len(lines) - len(before.get(name, [])) for name, lines in changed.items()) < 150
    assert not any("@" in line.replace("@directly", "") for line in added)
    for name in changed:
        assert name in result.stdout or name == "torch_ops/__init__.py" or name.startswith("src/")
    python = [name for name in changed if name.endswith(".py")]
    sources = [name for name in changed if name.startswith("src/")]
    if find_spec("ruff") is not None:
        for command in (["check"], ["format", "--check"]):
            result = run("-m", "ruff", *command, *python, cwd=tree)
            assert result.returncode == 0, result.stdout
    if find_spec("clang_format") is not None:
        code = "from clang_format import clang_format; clang_format()"
        result = run("-c", code, "--dry-run", "-Werror", *sources, cwd=tree)
        assert result.returncode == 0, result.stdout


def test_names_that_are_refused(tree: Path) -> None:
    before = files(tree)
    for name, reason in (
        ("relu", "torch_ops has relu, relu_"),
        ("softmax", "torch_ops has softmax"),
        ("leaky_relu", "torch_ops has leaky_relu, leaky_relu_"),
        ("embedding", "torch_ops has Embedding, embedding"),
        ("replacement", "torch_ops has Replacement"),
        ("common", "there is src/common"),
        ("errors", "there is torch_ops/errors.py"),
        ("compat", "there is torch_ops/compat"),
        *((name, "is a word of Python or C++") for name in ("class", "int", "abs", "template")),
        *((name, "is not a name") for name in ("Softplus", "soft-plus", "2x", "soft__plus")),
    ):
        result = new_op(tree, name)
        assert result.returncode != 0
        assert f"{name!r} " in result.stdout and reason in result.stdout
    assert files(tree) == before


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_builds_and_passes_its_tests(tree: Path) -> None:
    assert new_op(tree, OP).returncode == 0
    environ = {name: os.environ[name] for name in STEERING if name in os.environ}
    environ["PYTHONPATH"] = str(tree)
    modules = {path: path.stat().st_mtime_ns for path in tree.glob("torch_ops/_ext/torch*/*.so")}
    assert modules
    result = run("setup.py", "build_ext", "--inplace", f"--op={OP}", cwd=tree, **environ)
    assert result.returncode == 0, result.stdout
    built = {path: path.stat().st_mtime_ns for path in tree.glob("torch_ops/_ext/torch*/*.so")}
    assert modules.items() <= built.items()
    assert [path.name.split(".")[0] for path in built.keys() - modules.keys()] == [OP]

    result = run("-m", "torch_ops", cwd=tree, **environ)
    assert result.returncode == 0, result.stdout
    assert f"{OP}([-1, 3]) = [-0.5, 0.75]" in result.stdout
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        environ[name] = ""  # it is not a worker of the run that has started it
    tests = ("-k", f"{OP} or {MODULE} or registry", "-p", "no:xdist", "-p", "no:cacheprovider")
    result = run("-m", "pytest", "-q", *tests, cwd=tree, **environ)
    assert result.returncode == 0, result.stdout
    passed = int(result.stdout.split(" passed")[0].split()[-1])
    assert passed > 100
