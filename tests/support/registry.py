"""Which ops there are, and their descriptions."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from op_checks import Op

import torch_ops

TESTS = Path(__file__).parent.parent


def declared(name: str) -> list[Any]:
    """What the modules of tests declare by this name, all of it."""
    modules = []
    for path in sorted(TESTS.rglob("test_*.py"), key=lambda path: path.name):
        if f"\n{name} = [" in path.read_text("utf-8"):
            if str(path.parent) not in sys.path:  # pytest adds the folders that it has come to
                sys.path.append(str(path.parent))
            modules.append(importlib.import_module(path.stem))
    return [each for module in modules for each in getattr(module, name)]


def described() -> list[Op]:
    """Each op as the module about it describes it; others say no `sized`. By name."""
    found: dict[str, Op] = {}
    for op in declared("OPS") + declared("OTHER_OPS"):
        if op.name not in found or op.sized is not None:
            found[op.name] = op
    return [found[name] for name in sorted(found)]


def described_layers() -> list[Any]:
    return sorted(declared("LAYERS"), key=str)


def is_no_op(name: str) -> bool:
    """Whether a public function is about all ops, plans or models, and is none itself."""
    others = {"plan_cache", "register_plan", "replace_modules"}
    return hasattr(torch_ops.errors, name) or name in others


def registered() -> set[str]:
    """Without those that begin with an underscore: they are between our modules."""
    prefix = "torch_ops::"
    names = torch._C._dispatch_get_all_op_names()
    ours = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    return {name for name in ours if name[0] != "_"}


def activations() -> list[Op]:
    """Of the ops described those that autograd and torch.compile see as functions of an element."""
    return [op for op in described() if torch.Tag.pointwise in op.overload.tags]


def functional_activations() -> list[Op]:
    """Of those the public ones that return a new tensor."""
    return [op for op in activations() if f"{op.name}_" in registered()]
