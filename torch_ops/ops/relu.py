"""ReLU: max(x, 0), elementwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_relu = torch.ops.torch_ops.relu.default
_relu_ = torch.ops.torch_ops.relu_.default
_relu_backward = torch.ops.torch_ops.relu_backward.default


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns ``max(input, 0)``, elementwise; NaN stays NaN.

    Args:
        input: A tensor of any shape and strides; float16, bfloat16, float32 or float64; on the CPU
            or a CUDA device.
        inplace: Overwrite ``input`` and return it.

    Returns:
        A tensor of the input's shape, dtype, device and memory format (``input`` itself with
        ``inplace=True``).

    Gradient:
        ``grad_output`` where the output is positive or NaN, else 0. The output is saved, the input
        is not. Twice differentiable (the second derivative is 0); forward mode too.

    Deterministic, on every device.

    Raises:
        TypeError: ``input`` has another dtype.
        RuntimeError: ``inplace=True`` on a leaf that requires grad, or on a tensor whose elements
            share memory (an expanded one).

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.relu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """
    return _relu_(input) if inplace else _relu(input)


class ReLUFunction(torch.autograd.Function):
    """relu as an autograd Function: ``ReLUFunction.apply(input)``.

    :func:`relu` does the same with less overhead; this class is for code that composes Functions.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor) -> Tensor:
        return _relu(input)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return _relu_backward(grad_output, output)

    @staticmethod
    def jvp(ctx: Any, input_tangent: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return _relu_backward(input_tangent, output)


class ReLU(nn.Module):
    """The layer of :func:`relu`; takes the place of ``torch.nn.ReLU``.

    Args:
        inplace: Overwrite the input.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.ReLU()(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return relu(input, self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


def self_check(device: torch.device) -> str:
    """Runs relu forward and backward on ``device``; for ``python -m torch_ops``."""
    x = torch.tensor([-1.0, 0.0, 2.0], device=device, requires_grad=True)
    y = relu(x)
    y.sum().backward()
    if y.tolist() != [0, 0, 2] or x.grad is None or x.grad.tolist() != [0, 0, 1]:
        raise AssertionError(f"relu([-1, 0, 2]) gave {y}, its gradient {x.grad}")
    return "relu([-1, 0, 2]) = [0, 0, 2], gradient [0, 0, 1]"
