"""One file says what is supported; whatever else does agrees with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import ROOT, load_setup_py, output_of

from torch_ops._install import bindings, supported


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"])


@pytest.fixture(scope="module")
def setup_py() -> ModuleType:
    return load_setup_py()


def row(name: str) -> str:
    """Of the table "What is supported" of the installation page."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    (found,) = re.findall(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("versions", [supported.TORCH, supported.PYTHON])
def test_versions_are_in_order(versions: tuple[str, ...]) -> None:
    assert list(versions) == sorted(set(versions), key=bindings.parse)
    assert all(re.fullmatch(r"\d+\.\d+", version) for version in versions)


def test_there_is_a_torch_for_each_python() -> None:
    assert set(supported.FIRST_TORCH) <= set(supported.PYTHON)
    for python in supported.PYTHON:
        first = supported.FIRST_TORCH.get(python, supported.OLDEST_TORCH)
        assert supported.torches(python)[0] == first
        assert supported.torches(python)[-1] == supported.TORCH[-1]


def test_architectures_are_in_order(setup_py: ModuleType) -> None:
    assert list(supported.ARCHS) == sorted(set(supported.ARCHS), key=setup_py.numbers)
    # Newer GPUs have the PTX of the last; of others it would only take space.
    assert [arch.endswith("+PTX") for arch in supported.ARCHS[:-1]] == [False] * 6
    assert supported.ARCHS[-1].endswith("+PTX")


def test_pip_is_told_the_same_pythons(project: dict[str, Any]) -> None:
    assert project["requires-python"] == f">={supported.OLDEST_PYTHON}"
    language = "Programming Language :: Python :: "
    named = [line.removeprefix(language) for line in project["classifiers"] if language in line]
    assert tuple(named) == supported.PYTHON


def test_tools_judge_by_the_oldest_python() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert tools["mypy"]["python_version"] == supported.OLDEST_PYTHON
    assert tools["ruff"]["target-version"] == "py" + supported.OLDEST_PYTHON.replace(".", "")


def test_setup_py_builds_for_these_gpus(setup_py: ModuleType) -> None:
    assert setup_py.OLDEST_ARCH == (7, 5)
    assert setup_py.NEWEST_ARCH == (12, 0)
    assert setup_py.DEFAULT_ARCHS.removesuffix("+PTX") in supported.ARCHS


def test_make_installs_the_newest_of_them(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    given = ("TORCH", "PYTHON", "MAKEFLAGS", "MAKEOVERRIDES")  # by a make that runs the tests
    environ = {name: value for name, value in os.environ.items() if name not in given}
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")  # one that has no torch
    (tmp_path / "python3").chmod(0o755)
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    command = ["make", "--dry-run", "--always-make", "install"]
    printed = subprocess.run(
        command, cwd=ROOT, env=environ, check=True, capture_output=True, text=True
    ).stdout
    assert f'"torch=={supported.TORCH[-1]}.*"' in printed
    nvcc = re.search(r"^NVCC := .*==(\d+)", makefile, re.MULTILINE)
    assert nvcc is not None
    assert nvcc[1] == supported.CUDA_MAJOR


def test_the_installation_page_says_the_same() -> None:
    first, last = supported.PYTHON[0], supported.PYTHON[-1]
    assert row("Python").startswith(f"{first} to {last}")
    assert set(supported.TORCH) <= set(re.findall(r"\d+\.\d+", row("torch")))
    assert re.findall(r"\d+", row("CUDA"))[0] == supported.CUDA_MAJOR
    gpus = [supported.ARCHS[0], supported.ARCHS[-1].removesuffix("+PTX")]
    assert row("GPU").startswith(f"compute capability {gpus[0]} to {gpus[1]}")


def test_make_prints_it_for_ci() -> None:
    lines = output_of("make", "--silent", "supported", cwd=ROOT).splitlines()
    printed = {
        name: json.loads(value) for name, _, value in (line.partition("=") for line in lines)
    }
    assert printed == {
        "torch": list(supported.TORCH),
        "python": list(supported.PYTHON),
        "cuda_major": supported.CUDA_MAJOR,
        "archs": list(supported.ARCHS),
        "exclude": [
            {"python": "3.15", "torch": torch} for torch in ("2.11", "2.12", "2.13", "2.14")
        ],
    }
