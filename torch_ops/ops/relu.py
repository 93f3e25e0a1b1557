"""ReLU and leaky ReLU, elementwise."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import check_kinds, check_tensors
from torch_ops.ops._elementwise import function_class
from torch_ops.ops._self_check import compared

_ops = torch.ops.torch_ops
_relu = _ops.relu.default
_relu_ = _ops.relu_.default
_leaky_relu = _ops.leaky_relu.default
_leaky_relu_ = _ops.leaky_relu_.default
_ext: Any = importlib.import_module("torch_ops._ext.relu")


def _saves_mask(name: str, save: str) -> bool:
    if save == "mask":
        return True
    if save == "output":
        return False
    raise ValueError(f'{name}: save must be "mask" or "output", but it is {save!r}.')


def relu(input: Tensor, inplace: bool = False, *, save: str = "mask") -> Tensor:
    """Returns ``max(input, 0)``, elementwise; NaN stays NaN.

    Args:
        input: A tensor of any shape and strides, also a jagged nested one, on the CPU or a CUDA
            device; float16, bfloat16, float32 or float64. Integers, and sparse, quantized and
            other tensors that are not dense, are computed by torch.
        inplace: Overwrite ``input`` and return it.
        save: What autograd keeps for the backward pass: ``"mask"``, one bit per element, or
            ``"output"``, the result, as ``torch.relu`` does. See Memory.

    Returns:
        A tensor of the input's shape, dtype, device and memory format (``input`` itself with
        ``inplace=True``).

    Gradient:
        ``grad_output`` where the output is positive or NaN, else 0. Twice differentiable (the
        second derivative is 0); forward mode too.

    Memory:
        The mask needs 1/32 of the memory of a float32 output, 1/16 of a 16-bit one. With it the
        output is freed unless other code keeps it, and may be overwritten. If the next op keeps
        its input anyway (a linear layer, a convolution), the mask is additional memory; but the
        backward pass reads the mask instead of the output, and so moves a third fewer bytes. Under
        the transforms of ``torch.func``, and for a nested tensor, the output is always kept.

    Deterministic, on every device.

    Raises:
        TypeError: ``input`` is not a tensor, or ``inplace`` is not a bool.
        ValueError: ``save`` is neither ``"mask"`` nor ``"output"``.
        RuntimeError: ``inplace=True`` on a leaf that requires grad, or on a tensor whose elements
            share memory (an expanded one).
        RuntimeError, NotImplementedError: ``input`` is bool or complex, as in torch.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.relu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """
    if inplace is not False and inplace is not True:  # relu(x, "output") would overwrite x
        check_kinds("relu", inplace=(inplace, "a bool"))
    save_mask = save == "mask" or _saves_mask("relu", save)
    if not is_dynamo_compiling():
        output = _ext.call_relu_(input, save_mask) if inplace else _ext.call_relu(input, save_mask)
        if output is not NotImplemented:
            return output
    check_tensors("relu", input=input)
    op = _relu_ if inplace else _relu
    return op(input, save_mask=save_mask)


def relu_(input: Tensor, *, save: str = "mask") -> Tensor:
    """Overwrites ``input`` with ``max(input, 0)``: :func:`relu` with ``inplace=True``.

    Args:
        input: A tensor of any shape and strides, of a dtype that :func:`relu` accepts.
        save: As for :func:`relu`. With ``"mask"`` the result may be overwritten again before
            the backward pass.

    Returns:
        ``input``.

    Gradient:
        As for :func:`relu`.

    Deterministic, on every device.

    Raises:
        ValueError: ``save`` is neither ``"mask"`` nor ``"output"``.
        RuntimeError: ``input`` is a leaf that requires grad, or its elements share memory.

    Example:
        >>> import torch, torch_ops
        >>> x = torch.tensor([-1.0, 0.0, 2.0])
        >>> torch_ops.relu_(x) is x
        True
    """
    return relu(input, inplace=True, save=save)


def leaky_relu(
    input: Tensor, negative_slope: float = 0.01, inplace: bool = False, *, save: str = "mask"
) -> Tensor:
    """Returns ``input`` where it is positive, else ``input * negative_slope``.

    Args:
        input: A tensor of any shape and strides, also a jagged nested one, on the CPU or a CUDA
            device; float16, bfloat16, float32 or float64. 16-bit values are multiplied in float32
            and rounded once. Quantized tensors are computed by torch.
        negative_slope: Any number, negative ones too.
        inplace: Overwrite ``input`` and return it.
        save: As for :func:`relu`. With a negative slope the output does not show where the input
            was positive, so ``"output"`` then keeps the input (with ``inplace=True`` a copy of it).

    Returns:
        A tensor of the input's shape, dtype, device and memory format (``input`` itself with
        ``inplace=True``).

    Gradient:
        ``grad_output`` where the input is positive, else ``grad_output * negative_slope``; at NaN
        too. Twice differentiable (the second derivative is 0); forward mode too.

    Memory:
        As for :func:`relu`.

    Deterministic, on every device.

    Raises:
        TypeError: ``input`` is not a tensor, ``inplace`` is not a bool, or ``negative_slope`` is
            not a number. (For a slope that is learned, use ``torch.nn.functional.prelu``.)
        ValueError: ``save`` is neither ``"mask"`` nor ``"output"``.
        RuntimeError: ``inplace=True`` on a leaf that requires grad, or on a tensor whose elements
            share memory (an expanded one).
        NotImplementedError: ``input`` is of integers, bool or complex, as in torch.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.leaky_relu(torch.tensor([-1.0, 0.0, 2.0]), 0.5)
        tensor([-0.5000,  0.0000,  2.0000])
    """
    if inplace is not False and inplace is not True:
        check_kinds("leaky_relu", inplace=(inplace, "a bool"))
    save_mask = save == "mask" or _saves_mask("leaky_relu", save)
    if not is_dynamo_compiling():
        call = _ext.call_leaky_relu_ if inplace else _ext.call_leaky_relu
        output = call(input, negative_slope, save_mask)
        if output is not NotImplemented:
            return output
    check_tensors("leaky_relu", input=input)
    check_kinds("leaky_relu", negative_slope=(negative_slope, "a real number"))
    if isinstance(negative_slope, Tensor) and negative_slope.requires_grad:
        raise TypeError(
            "leaky_relu: negative_slope must be a number, but a tensor that requires grad was "
            "given, and would get no gradient. For a slope that is learned there is "
            "torch.nn.functional.prelu."
        )
    op = _leaky_relu_ if inplace else _leaky_relu
    return op(input, negative_slope, save_mask=save_mask)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01, *, save: str = "mask") -> Tensor:
    """Overwrites ``input``: :func:`leaky_relu` with ``inplace=True``.

    Args:
        input: A tensor of any shape and strides, of a dtype that :func:`leaky_relu` accepts.
        negative_slope: As for :func:`leaky_relu`.
        save: As for :func:`leaky_relu`.

    Returns:
        ``input``.

    Gradient:
        As for :func:`leaky_relu`.

    Deterministic, on every device.

    Raises:
        ValueError: ``save`` is neither ``"mask"`` nor ``"output"``.
        RuntimeError: ``input`` is a leaf that requires grad, or its elements share memory.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.leaky_relu_(torch.tensor([-1.0, 2.0]), 0.5)
        tensor([-0.5000,  2.0000])
    """
    return leaky_relu(input, negative_slope, inplace=True, save=save)


_Function: Any = function_class("relu", saves="output")


class ReLUFunction(_Function):
    """relu as an autograd Function: ``ReLUFunction.apply(input)``. It saves the output.

    :func:`relu` does the same with less overhead; this class is for code that composes Functions.
    """


def _with_save(shown: str, save: str) -> str:
    """The text that torch's layer shows, and ``save`` if it is not the default."""
    return shown if save == "mask" else ", ".join(filter(None, [shown, f"save={save!r}"]))


class ReLU(nn.ReLU):
    """The layer of :func:`relu`; replaces ``torch.nn.ReLU``, of which it is a subclass.

    Args:
        inplace: Overwrite the input.
        save: What is kept for the backward pass, ``"mask"`` or ``"output"``; see :func:`relu`.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.ReLU()(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(self, inplace: bool = False, *, save: str = "mask") -> None:
        # Wrong arguments are an error here, not at the first call.
        check_kinds("ReLU", inplace=(inplace, "a bool"))
        _saves_mask("ReLU", save)
        super().__init__(inplace)
        self.save = save

    def forward(self, input: Tensor) -> Tensor:
        # torch.jit.script reads only the first branch.
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            save_mask = self.save == "mask"
            if self.inplace:
                return torch.ops.torch_ops.relu_(input, save_mask=save_mask)
            return torch.ops.torch_ops.relu(input, save_mask=save_mask)
        else:
            return relu(input, self.inplace, save=self.save)

    def extra_repr(self) -> str:
        return _with_save(super().extra_repr(), self.save)


class LeakyReLU(nn.LeakyReLU):
    """The layer of :func:`leaky_relu`; replaces ``torch.nn.LeakyReLU``, its base class.

    Args:
        negative_slope: The factor for inputs that are not positive.
        inplace: Overwrite the input.
        save: What is kept for the backward pass, ``"mask"`` or ``"output"``; see :func:`relu`.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.LeakyReLU(0.5)(torch.tensor([-1.0, 2.0]))
        tensor([-0.5000,  2.0000])
    """

    def __init__(
        self, negative_slope: float = 0.01, inplace: bool = False, *, save: str = "mask"
    ) -> None:
        check_kinds(
            "LeakyReLU",
            negative_slope=(negative_slope, "a real number"),
            inplace=(inplace, "a bool"),
        )
        _saves_mask("LeakyReLU", save)
        super().__init__(negative_slope, inplace)
        self.save = save

    def forward(self, input: Tensor) -> Tensor:
        # torch.jit.script reads only the first branch.
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            slope, save_mask = self.negative_slope, self.save == "mask"
            if self.inplace:
                return torch.ops.torch_ops.leaky_relu_(input, slope, save_mask=save_mask)
            return torch.ops.torch_ops.leaky_relu(input, slope, save_mask=save_mask)
        else:
            return leaky_relu(input, self.negative_slope, self.inplace, save=self.save)

    def extra_repr(self) -> str:
        return _with_save(super().extra_repr(), self.save)


def self_check(device: torch.device) -> str:
    """Runs relu forward and backward on ``device``; for ``python -m torch_ops``."""
    for save in ("mask", "output"):
        x = torch.tensor([-1.0, 0.0, 2.0], device=device, requires_grad=True)
        text = compared("relu([-1, 0, 2])", relu(x, save=save), [0, 0, 2], x, [0, 0, 1])
    return f"{text}, gradient [0, 0, 1]"


# ---- In torch's ops, for torch_ops.decompositions -----------------------------------------------


def _torch_relu(input: Tensor, *, save_mask: bool = True) -> Tensor:
    return torch.ops.aten.relu(input)


def _torch_relu_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return torch.where(output <= 0, 0, grad_output)  # NaN passes the gradient on


def _torch_leaky_relu(
    input: Tensor, negative_slope: float = 0.01, *, save_mask: bool = True
) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


def _torch_leaky_relu_backward(
    grad_output: Tensor, output: Tensor, negative_slope: float
) -> Tensor:
    return torch.where(output > 0, grad_output, grad_output * negative_slope)


# The mask is one byte per element here, since fused code has no bits. It is written as a function
# of the output where possible: then a compiler that keeps the output anyway recomputes the mask
# from it, and keeps nothing more.
def _torch_relu_mask(input: Tensor, negative_slope: float | None) -> tuple[Tensor, Tensor]:
    if negative_slope is None:
        output = _torch_relu(input)
        return output, ~(output <= 0)
    output = _torch_leaky_relu(input, negative_slope)
    return output, (output if negative_slope >= 0 else input) > 0


def _torch_relu_mask_backward(
    grad_output: Tensor, mask: Tensor, order: Sequence[int], negative_slope: float | None
) -> Tensor:
    other = 0 if negative_slope is None else grad_output * negative_slope
    return torch.where(mask, grad_output, other)


DECOMPOSITIONS = {
    _ops.relu.default: _torch_relu,
    _ops.relu_backward.default: _torch_relu_backward,
    _ops.leaky_relu.default: _torch_leaky_relu,
    _ops.leaky_relu_backward.default: _torch_leaky_relu_backward,
    _ops._relu_mask.default: _torch_relu_mask,
    _ops._relu_mask_backward.default: _torch_relu_mask_backward,
}
