"""What the package offers is registered, and says where it is from.

That every registered op has tests is checked in test_support.py.
"""

from __future__ import annotations

from support.registry import registered
from toy_project import ROOT, run

import torch_ops


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


def test_modules_are_offered_before_they_are_loaded() -> None:
    """An interpreter's completion finds them, and import torch_ops does not wait for them."""
    code = """
import sys, torch_ops
for name in ("decompositions", "host", "jit"):
    assert name in dir(torch_ops), name
    assert f"torch_ops.{name}" not in sys.modules, name
    assert getattr(torch_ops, name) is sys.modules[f"torch_ops.{name}"], name
"""
    result = run("-c", code, cwd=ROOT)
    assert result.returncode == 0, result.stdout
