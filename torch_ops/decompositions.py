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

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor
from torch.fx import GraphModule

__all__ = ["activations", "inductor"]

_ops = torch.ops.torch_ops
_aten = torch.ops.aten


def _relu(input: Tensor, *, save_mask: bool = True) -> Tensor:
    return _aten.relu(input)


def _relu_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return torch.where(output <= 0, 0, grad_output)  # NaN passes the gradient on


def _leaky_relu(input: Tensor, negative_slope: float = 0.01, *, save_mask: bool = True) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


def _leaky_relu_backward(grad_output: Tensor, output: Tensor, negative_slope: float) -> Tensor:
    return torch.where(output > 0, grad_output, grad_output * negative_slope)


# The mask is one byte an element here, for fused code has no bits. It is written as a function of
# the output where that tells: then a compiler that keeps the output anyway computes it again from
# there, and keeps nothing more.
def _relu_mask(input: Tensor, negative_slope: float | None) -> tuple[Tensor, Tensor]:
    if negative_slope is None:
        output = _relu(input)
        return output, ~(output <= 0)
    output = _leaky_relu(input, negative_slope)
    return output, (output if negative_slope >= 0 else input) > 0


def _relu_mask_backward(
    grad_output: Tensor, mask: Tensor, order: Sequence[int], negative_slope: float | None
) -> Tensor:
    other = 0 if negative_slope is None else grad_output * negative_slope
    return torch.where(mask, grad_output, other)


def _sigmoid(input: Tensor) -> Tensor:
    return _aten.sigmoid(input)


def _sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return _aten.sigmoid_backward(grad_output, output)


#: From each registered op of relu, leaky_relu and sigmoid, and of their gradients, to a function of
#: torch's ops. In-place ones are missing: a traced graph has none.
activations: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    _ops.relu.default: _relu,
    _ops.relu_backward.default: _relu_backward,
    _ops.leaky_relu.default: _leaky_relu,
    _ops.leaky_relu_backward.default: _leaky_relu_backward,
    _ops._relu_mask.default: _relu_mask,
    _ops._relu_mask_backward.default: _relu_mask_backward,
    _ops.sigmoid.default: _sigmoid,
    _ops.sigmoid_backward.default: _sigmoid_backward,
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
