"""The activations written in torch's own ops, for compilers that fuse those.

torch.compile calls an op of this package as it is. That is right for gathers and sums; but an
activation it would rather write into the loop of its neighbours, and cannot see into ours. With
these, it does::

    compiled = torch.compile(model, backend=torch_ops.decompositions.inductor)

``activations`` is the table behind it, in the form that PyTorch takes wherever it takes
decompositions: ``ExportedProgram.run_decompositions``, ``make_fx``, ``aot_module``.

What a decomposed activation keeps for its gradient the compiler decides, not ``save="mask"``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor
from torch.fx import GraphModule

import torch_ops.ops

__all__ = ["activations", "inductor"]


#: Maps each registered op of an activation, and of its gradient, to a function of torch's ops, as
#: the modules of the ops say in DECOMPOSITIONS. In-place ops are missing: a traced graph has none.
activations: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    op: decomposition
    for module in pkgutil.iter_modules(torch_ops.ops.__path__, "torch_ops.ops.")
    for op, decomposition in vars(importlib.import_module(module.name))
    .get("DECOMPOSITIONS", {})
    .items()
}


def inductor(
    graph: GraphModule,
    inputs: Sequence[Tensor],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles as torch.compile's own backend "inductor" does, with ``activations`` decomposed.

    Args:
        graph: What torch.compile gives to a backend.
        inputs: The same.
        mode: That of torch.compile: ``torch.compile(model, backend=inductor, mode=...)``.
        options: The same.

    Returns:
        What takes the place of the graph.

    Example:
        >>> import torch, torch_ops
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch_ops.ReLU())
        >>> compiled = torch.compile(model, backend=torch_ops.decompositions.inductor)
    """
    # Loaded here: they take a second, which who does not compile need not wait for.
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    patches = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    # AOTAutograd's cache does not know of decompositions: what it kept for the same graph without
    # these would be taken, and the other way round.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        compiled: Any = compile_fx(
            graph,
            list(inputs),
            config_patches=patches or None,
            decompositions={**select_decomp_table(), **activations},
        )
    return compiled
