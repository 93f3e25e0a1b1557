"""Distinguishes functions by their text and by the variables that they use from outside."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_ops.jit.elementwise import ElementwiseKernel
from torch_ops.jit.indexed import IndexedKernel
from torch_ops.jit.raw import RawKernel, RawModule
from torch_ops.jit.reduction import ReductionKernel

Kernel = ElementwiseKernel | ReductionKernel | IndexedKernel | RawKernel | RawModule

# Types of which values with equal text are equal.
_PLAIN = (
    bool, bytes, complex, float, int, str, type(None), type(...),
    torch.device, torch.dtype, torch.layout, torch.memory_format,
)  # fmt: skip


def read_function(function: Callable[..., Any]) -> tuple[str, list[Any]]:
    """A text of everything, except its arguments, that a function's results depend on.

    That is its source, its defaults and annotations, the current values of the variables that it
    uses from outside, and the same for the functions of its module that it calls.

    Returns:
        The text, and the objects that have no text: two functions with the same text are the same
        if these are the same objects.
    """
    reader = _Reader(function.__module__)
    return reader.function(function), reader.objects


class _Reader:
    def __init__(self, module: str) -> None:
        self.module = module
        self.objects: list[Any] = []
        self._seen: list[Any] = []  # functions and containers, which may hold themselves

    def value(self, value: Any) -> str:
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is types.ModuleType:
            return f"module {value.__name__}"
        if isinstance(value, Kernel):
            return source_of_kernel(value)
        for number, seen in enumerate(self._seen):
            if seen is value:
                return f"seen {number}"
        if kind is types.FunctionType and value.__module__ == self.module:
            return self.function(value)
        if kind in (tuple, list, dict):
            self._seen.append(value)
            if kind is not tuple:
                self.objects.append(value)  # it may change
            items = value.items() if kind is dict else value
            return f"{kind.__name__}({', '.join(map(self.value, items))})"
        self.objects.append(value)
        return str(getattr(value, "__qualname__", kind.__qualname__))

    def function(self, function: Any) -> str:
        self._seen.append(function)
        try:
            source = inspect.getsource(function.__code__)
        except OSError:  # typed into an interpreter that keeps no text
            source = _text_of_code(function.__code__)
        parts = [source, repr(function.__annotations__)]
        parts += map(self.value, function.__defaults__ or ())
        parts += map(self.value, (function.__kwdefaults__ or {}).items())
        for cell in function.__closure__ or ():
            try:
                parts.append(self.value(cell.cell_contents))
            except ValueError:  # it has no value yet
                self.objects.append(cell)
        # A function of the same module sees the same variables at each call, whatever their values.
        count = len(self.objects)
        for name in sorted({*_names(function.__code__)} & function.__globals__.keys()):
            parts.append(f"{name} = {self.value(function.__globals__[name])}")
        if len(self.objects) > count:
            self.objects[count:] = [function.__globals__]
        return repr(parts)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names in the code that may be global, with those of functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _text_of_code(code: types.CodeType) -> str:
    constants = [
        _text_of_code(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def source_of_kernel(kernel: Kernel) -> str:
    if isinstance(kernel, ElementwiseKernel | IndexedKernel):
        return str(kernel._kernel.op_name)
    if isinstance(kernel, ReductionKernel):
        return kernel.source
    if isinstance(kernel, RawKernel):
        return f"{kernel._name} {source_of_kernel(kernel._module)}"
    return repr((kernel._pieces, kernel._options, kernel._names, kernel._image))
