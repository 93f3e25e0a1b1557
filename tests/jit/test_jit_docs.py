"""What torch_ops.jit offers is explained: docstrings, with examples that run."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest
from jit_tools import needs_cuda_core
from programs import ROOT

from torch_ops import jit


@needs_cuda_core
@pytest.mark.parametrize("name", jit.__all__)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An example clears the cache, in which other processes keep their kernels.
    monkeypatch.setenv("TORCH_OPS_CACHE_DIR", str(tmp_path))
    runner = doctest.DocTestRunner()
    report: list[str] = []
    found = doctest.DocTestFinder().find(getattr(jit, name), name, module=False, globs={})
    for example in found:
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
    made_by_users = name not in ("CacheInfo", "CompileError")
    assert not made_by_users or any(example.examples for example in found)


@pytest.mark.parametrize("name", jit.__all__)
def test_public_names_are_explained(name: str) -> None:
    value = getattr(jit, name)
    assert value.__module__ == "torch_ops.jit"
    assert inspect.getdoc(value)
    members = [value]
    if inspect.isclass(value):
        members += [member for key, member in vars(value).items() if key[0] != "_"]
    for member in members:
        if isinstance(member, property | classmethod) or inspect.isroutine(member):
            assert inspect.getdoc(member), f"{name}: {member}"
    assert name in (ROOT / "docs" / "jit.md").read_text("utf-8"), name
