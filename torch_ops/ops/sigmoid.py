"""Sigmoid: 1 / (1 + exp(-x)), elementwise."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import check_tensors

_sigmoid = torch.ops.torch_ops.sigmoid.default
_sigmoid_ = torch.ops.torch_ops.sigmoid_.default
_sigmoid_backward = torch.ops.torch_ops.sigmoid_backward.default
_ext: Any = importlib.import_module("torch_ops._ext.sigmoid")


def sigmoid(input: Tensor) -> Tensor:
    """Returns ``1 / (1 + exp(-input))``, elementwise.

    16-bit inputs are computed in float32 and rounded once. The lower tail keeps its digits down to
    the dtype's least denormal number.

    Args:
        input: A tensor of any shape and strides, also a jagged nested one, on the CPU or a CUDA
            device; float16, bfloat16, float32 or float64. Integers and complex numbers are computed
            by torch.

    Returns:
        A tensor of the input's shape, dtype, device and memory format; of torch's default dtype
        for integers.

    Gradient:
        ``grad_output * y * (1 - y)`` for the output ``y``, which is what is saved. Differentiable
        any number of times; forward mode too.

    Deterministic, on every device.

    Raises:
        TypeError: ``input`` is no tensor.
        NotImplementedError: ``input`` has another dtype (an 8-bit float, say), as in torch.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.sigmoid(torch.tensor([0.0, 100.0]))
        tensor([0.5000, 1.0000])
    """
    if not is_dynamo_compiling():
        output = _ext.call(input)
        if output is not NotImplemented:
            return output
    check_tensors("sigmoid", input=input)
    return _sigmoid(input)


def sigmoid_(input: Tensor) -> Tensor:
    """Overwrites ``input`` with ``1 / (1 + exp(-input))`` and returns it; see :func:`sigmoid`.

    Args:
        input: A tensor of any shape and strides, of a dtype that :func:`sigmoid` takes, but of no
            integers.

    Returns:
        ``input``.

    Gradient:
        As for :func:`sigmoid`. The output is kept, so it must not be overwritten before the
        backward pass.

    Deterministic, on every device.

    Raises:
        RuntimeError: ``input`` is a leaf that requires grad, its elements share memory (an expanded
            tensor), or it is of integers.

    Example:
        >>> import torch, torch_ops
        >>> x = torch.tensor([0.0, 100.0])
        >>> torch_ops.sigmoid_(x) is x
        True
    """
    if not is_dynamo_compiling():
        output = _ext.call_inplace(input)
        if output is not NotImplemented:
            return output
    check_tensors("sigmoid_", input=input)
    return _sigmoid_(input)


class SigmoidFunction(torch.autograd.Function):
    """sigmoid as an autograd Function: ``SigmoidFunction.apply(input)``.

    :func:`sigmoid` does the same with less overhead; this class is for code that composes
    Functions.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor) -> Tensor:
        return _sigmoid(input)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return _sigmoid_backward(grad_output, output)

    @staticmethod
    def jvp(ctx: Any, input_tangent: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return _sigmoid_backward(input_tangent, output)


class Sigmoid(nn.Sigmoid):
    """The layer of :func:`sigmoid`; takes the place of ``torch.nn.Sigmoid``, its base class.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.Sigmoid()(torch.tensor([0.0]))
        tensor([0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        # torch.jit.script reads the first branch alone.
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.ops.torch_ops.sigmoid(input)
        else:
            return sigmoid(input)


def self_check(device: torch.device) -> str:
    """Runs sigmoid forward and backward on ``device``; for ``python -m torch_ops``."""
    x = torch.zeros(3, device=device, requires_grad=True)
    y = sigmoid(x)
    y.sum().backward()
    if y.tolist() != [0.5] * 3 or x.grad is None or x.grad.tolist() != [0.25] * 3:
        raise AssertionError(f"sigmoid(0) gave {y}, its gradient {x.grad}")
    return "sigmoid(0) = 0.5, gradient 0.25"
