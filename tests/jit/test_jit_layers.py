"""The packages of torch_ops.jit: each knows those below it, and none above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import ROOT

JIT = ROOT / "torch_ops" / "jit"
# From the bottom up. Above them all are the modules of torch_ops/jit/ itself.
PACKAGES = ("building", "language", "generation")


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_layer_knows_no_higher_one(package: str) -> None:
    known = PACKAGES[: PACKAGES.index(package) + 1]
    files = [*(JIT / package).glob("*.py")]
    assert 1 < len(files) <= 12
    for file in files:
        for name in imported(file):
            if name.startswith("torch_ops.jit"):
                assert name.split(".")[2] in known, f"{file.name} imports {name}"


def test_every_package_has_its_layer() -> None:
    assert {file.parent.name for file in JIT.glob("*/__init__.py")} == set(PACKAGES)
