"""Every registered op is described, so that the checks of op_checks.py run for it."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

import torch_ops


def described() -> set[str]:
    """Those in OPS, and those that OpChecks does not fit: their module has checks of its own."""
    names: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.stem == Path(__file__).stem:
            continue
        module = importlib.import_module(path.stem)
        names.update(op.name for op in getattr(module, "OPS", []))
        names.update(getattr(module, "NO_OPS_OF_ONE_TENSOR", []))
    return names


def registered() -> set[str]:
    """Without those that begin with an underscore: they are between our modules, on no tensors."""
    prefix = "torch_ops::"
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return {name for name in ours if name[0] != "_"}


def test_every_op_has_samples() -> None:
    assert registered() == described()


def test_every_public_function_is_an_op() -> None:
    """But for those that are about all ops, of torch_ops/errors.py."""
    functions = {
        name
        for name in torch_ops.__all__
        if name[0].islower() and not name.startswith("_") and not hasattr(torch_ops.errors, name)
    }
    assert {"gather", "relu"} <= functions
    assert functions <= registered()


def test_public_names_know_their_module() -> None:
    for name in torch_ops.__all__:
        if not name.startswith("_"):
            assert getattr(torch_ops, name).__module__ == "torch_ops", name
            assert getattr(torch_ops, name).__doc__, name
