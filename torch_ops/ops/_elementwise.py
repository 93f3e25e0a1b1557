"""Common code of the Python files of elementwise ops: what can be made from an op's function."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import check_tensors
from torch_ops.ops._self_check import compared


class Unary(Protocol):
    """The function of an op without options."""

    __name__: str

    def __call__(self, input: Tensor) -> Tensor: ...


_INPLACE = """Overwrites ``input`` with the result of :func:`{name}`, and returns it.

    Args:
        input: A tensor of any shape and strides, of a dtype that :func:`{name}` accepts and
            returns.

    Returns:
        ``input``.

    Gradient:
        As for :func:`{name}`. {kept}

    Deterministic, on every device.

    Raises:
        TypeError, NotImplementedError: As for :func:`{name}`.
        RuntimeError: ``input`` is a leaf that requires grad, its elements share memory (an expanded
            tensor), or :func:`{name}` returns another dtype (such as for integers).

    Example:
        >>> import torch, torch_ops
        >>> x = torch.tensor([0.0, 0.5])
        >>> torch_ops.{name}_(x) is x
        True
    """

_KEPT = {
    "output": "The output is kept, so it must not be overwritten before the backward pass.",
    "input": "A copy of the input is kept for it.",
}

_FUNCTION = """{name} as an autograd Function: ``{cls}Function.apply(input)``.

    :func:`{name}` does the same with less overhead; this class is for code that composes
    Functions.
    """

_LAYER = """The layer of :func:`{name}`{place}.

    Example:
        >>> import torch, torch_ops
        >>> x = torch.tensor([0.0, 0.5])
        >>> torch.equal(torch_ops.{cls}()(x), torch_ops.{name}(x))
        True
    """


def directly(name: str, module: str | None = None) -> Callable[[Unary], Unary]:
    """Decorates a function that calls a registered op, so that the compiled module is tried first.

    The module's ``call_<op>`` costs the host less than ``torch.ops``, and returns NotImplemented
    if the registered op must be called (src/common/torch/calls/python_call.h).

    Args:
        name: The op's name.
        module: The compiled module's name, if it differs.
    """
    call = getattr(importlib.import_module(f"torch_ops._ext.{module or name}"), f"call_{name}")

    def decorate(function: Unary) -> Unary:
        @functools.wraps(function)
        def wrapped(input: Tensor) -> Tensor:
            if not is_dynamo_compiling():
                output = call(input)
                if output is not NotImplemented:
                    return output
            check_tensors(name, input=input)
            return function(input)

        return wrapped

    return decorate


def forms(
    function: Unary, saves: str, base: type[nn.Module] = nn.Module
) -> tuple[Unary, type[torch.autograd.Function], type[nn.Module]]:
    """Makes the in-place form, Function and layer from the function of an op without options.

    Args:
        function: It has the name of the op.
        saves: The other argument of ``<op>_backward``, ``"output"`` or ``"input"``.
        base: The layer's base class: torch's layer, if torch has one.
    """
    name = function.__name__
    cls = "".join(word.capitalize() for word in name.split("_"))
    op = getattr(torch.ops.torch_ops, name)
    inplace_op = getattr(torch.ops.torch_ops, f"{name}_").default

    def inplace(input: Tensor) -> Tensor:
        return inplace_op(input)

    class Layer(base):  # type: ignore[valid-type,misc]
        def forward(self, input: Tensor) -> Tensor:
            # torch.jit.script reads only the first branch.
            if torch.jit.is_scripting():  # type: ignore[attr-defined]
                return op(input)
            else:
                return function(input)

    place = f"; replaces ``torch.nn.{cls}``, its base class" * (base is not nn.Module)
    made: list[tuple[Any, str, str]] = [
        (inplace, f"{name}_", _INPLACE.format(name=name, kept=_KEPT[saves])),
        (function_class(name, saves), f"{cls}Function", _FUNCTION.format(name=name, cls=cls)),
        (Layer, cls, _LAYER.format(name=name, cls=cls, place=place)),
    ]
    for each, its_name, doc in made:
        each.__name__ = each.__qualname__ = its_name
        each.__doc__ = doc
        each.__module__ = function.__module__
    return directly(f"{name}_", name)(inplace), made[1][0], Layer


def function_class(name: str, saves: str) -> Any:
    """The Function of an op, with the op's defaults; see :func:`forms`."""
    ops = torch.ops.torch_ops
    op, backward_op = getattr(ops, name).default, getattr(ops, f"{name}_backward").default

    class Function(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(input: Tensor) -> Tensor:
            return op(input)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            saved = output if saves == "output" else inputs[0]
            ctx.save_for_backward(saved)
            ctx.save_for_forward(saved)

        @staticmethod
        def backward(ctx: Any, grad_output: Tensor) -> Tensor:
            return backward_op(grad_output, *ctx.saved_tensors)

        @staticmethod
        def jvp(ctx: Any, input_tangent: Tensor) -> Tensor:
            return backward_op(input_tangent, *ctx.saved_tensors)

    return Function


def self_check_of(
    function: Unary, inputs: list[float], outputs: list[float], gradients: list[float]
) -> Callable[[torch.device], str]:
    """The ``self_check`` of an op's module, for ``python -m torch_ops``."""

    def self_check(device: torch.device) -> str:
        x = torch.tensor(inputs, dtype=torch.float32, device=device, requires_grad=True)
        call = f"{function.__name__}({inputs})"
        return f"{compared(call, function(x), outputs, x, gradients)}, gradient {gradients}"

    return self_check
