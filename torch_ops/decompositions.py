"""The activations written in torch's own ops, for compilers that fuse those.

``activations`` is a table in the form that PyTorch takes wherever it takes decompositions:
``ExportedProgram.run_decompositions``, ``make_fx``, ``aot_module``. A compiler that calls an op of
this package as it is then writes an activation into the loop of its neighbours. ``torch.compile``
does so by itself.

What a decomposed activation keeps for its gradient the compiler decides, not ``save="mask"``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import torch

import torch_ops.ops

__all__ = ["activations"]


#: Maps each registered op of an activation, and of its gradient, to a function of torch's ops, as
#: the modules of the ops say in DECOMPOSITIONS. In-place ops are missing: a traced graph has none.
activations: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    op: decomposition
    for module in pkgutil.walk_packages(torch_ops.ops.__path__, "torch_ops.ops.")
    for op, decomposition in vars(importlib.import_module(module.name))
    .get("DECOMPOSITIONS", {})
    .items()
}
