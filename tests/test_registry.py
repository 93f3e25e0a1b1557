"""What the package offers is registered, and says where it is from.

That every registered op has tests is checked in test_support.py.
"""

from __future__ import annotations

from support.registry import registered

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
