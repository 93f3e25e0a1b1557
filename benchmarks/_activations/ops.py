"""Which activations there are, and what torch has for each: its function, or several of its ops."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops
from torch_ops.decompositions import activations

OPS = torch.ops.torch_ops


def names() -> list[str]:
    """The public functions among the ops that have decompositions."""
    ops = {op.name().removeprefix("torch_ops::") for op in activations}
    return [name for name in torch_ops.__all__ if name in ops]


def torchs(name: str) -> Callable[..., Tensor]:
    for module in (torch, F):
        if hasattr(module, name):
            return getattr(module, name)
    return activations[getattr(OPS, name.removesuffix("_")).default]


def backward(name: str) -> torch._ops.OpOverload:
    return getattr(OPS, f"{name}_backward").default


def saves_output(name: str) -> bool:
    return backward(name)._schema.arguments[1].name == "output"
