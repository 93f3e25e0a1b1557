"""What a node of the autograd graph has saved goes with the last use of it.

A node that saves its own output refers to itself. Whether that keeps it alive depends on how torch
counts the uses of nodes, which has changed between versions.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_ops

INDEX = torch.tensor([0, 3, 3])
WRITES: list[tuple[str, Callable[[Tensor], object]]] = [
    ("sigmoid_", torch_ops.sigmoid_),
    ("relu_", torch_ops.relu_),
    ("relu_ by its output", lambda out: torch_ops.relu_(out, save="output")),
    ("leaky_relu_", torch_ops.leaky_relu_),
    ("scatter_add_", lambda out: torch_ops.scatter_add_(out, torch.ones(3), INDEX)),
    ("scatter_", lambda out: torch_ops.scatter_(out, torch.ones(3), INDEX, reduce="mean")),
    ("index_put_", lambda out: torch_ops.index_put_(out, INDEX, 1.0)),
]


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "view"])
@pytest.mark.parametrize(("name", "write"), WRITES, ids=[name for name, _ in WRITES])
def test_memory_goes_with_the_graph(
    name: str, write: Callable[[Tensor], object], whole: bool
) -> None:
    memory = np.ones(8, np.float32)
    gone = weakref.ref(memory)
    out = torch.from_numpy(memory).add_(torch.ones(8, requires_grad=True))
    write(out if whole else out[2:])
    assert out.requires_grad
    del memory, out
    gc.collect()
    assert gone() is None
