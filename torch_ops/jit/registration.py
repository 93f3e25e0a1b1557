"""torch_ops.jit.op: kernels as torch ops with a name of the user's."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit._function_text import read_function
from torch_ops.jit._registered import as_number
from torch_ops.jit.elementwise import ElementwiseKernel
from torch_ops.jit.reduction import ReductionKernel


def op(name: str, *, mutates_args: str | Sequence[str] = ()) -> Callable[[Any], Any]:
    """Registers a kernel, or a function that launches kernels, as a torch op.

    ``torch.compile(fullgraph=True)``, ``torch.export``, ``torch.library.opcheck`` and profilers
    then see one op. The registered name is ``name`` and a hash of the source, so that a notebook's
    cell may run again, changed or not, and an exported program finds the op that it was made with.
    A function's source is its text, its defaults, the kernels, numbers and strings around it, and
    the functions of its module that it calls. Functions that differ in other objects alone, such as
    tensors that they close over, are ops apart, whose names end in ``_2``, ``_3`` and so on, in the
    order in which they are made.

    Args:
        name: ``"namespace::name"``.
        mutates_args: Of a function: the names of the arguments that it writes to.

    Returns:
        A function that takes an :class:`ElementwiseKernel`, a :class:`ReductionKernel` or a
        function with annotated arguments, and returns the op, a callable. Its ``.overload`` is
        ``torch.ops.namespace.name_hash.default``.

        The op of an ElementwiseKernel takes its inputs by position and name, tensors or numbers
        (of a kernel with more than four inputs tensors alone), and has its gradients. That of a
        ReductionKernel takes ``dim`` and ``keepdim`` too. That of a function has what
        ``torch.library.custom_op`` gives: ``.register_fake``, which it needs, and
        ``.register_autograd``.

    Gradient:
        Of an ElementwiseKernel its own; of a ReductionKernel none, and an error that says so; of a
        function that of ``.register_autograd``.

    Raises:
        ValueError: ``name`` has not the form ``namespace::name``, or the kernel has a raw output.
        TypeError: What is to be registered is neither kernel nor function.

    Example:
        >>> import torch
        >>> from torch_ops.jit import ElementwiseKernel, op
        >>> square = op("mine::square")(ElementwiseKernel("T x", "T y", "y = x * x"))
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> torch.autograd.grad(square(x), x)
        (tensor([6.]),)
        >>> torch.compile(square, fullgraph=True, backend="eager")(x).item()
        9.0
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f'name must have the form "namespace::name", but it is {name!r}.')

    def register(kernel: Any) -> Any:
        if isinstance(kernel, ElementwiseKernel):
            return _op_of_elementwise(name, kernel)
        if isinstance(kernel, ReductionKernel):
            return _op_of_reduction(name, kernel)
        if inspect.isfunction(kernel):
            return _op_of_function(name, kernel, mutates_args)
        raise TypeError(
            "an op is made of an ElementwiseKernel, a ReductionKernel or a function, not of "
            f"{type(kernel).__name__}. Launch a RawKernel in a function with annotated arguments."
        )

    return register


op.__module__ = "torch_ops.jit"


def _hashed(name: str, source: str) -> str:
    return f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"


# What is registered stays: graphs that were compiled or exported hold it.
_libraries: dict[str, torch.library.Library] = {}
_ops: dict[str, Any] = {}
# Of a text the functions that were registered, and the objects that tell them apart.
_functions: dict[str, list[tuple[list[Any], Any]]] = {}

# Choices of tensors and numbers that have an overload each: those of up to four parameters.
_MOST_OVERLOADS = 16


def _define(name: str, arguments: str, result: str) -> torch.library.Library:
    namespace, _, bare = name.partition("::")
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    library = _libraries[namespace]
    library.define(f"{bare}({arguments}) -> {result}", tags=(torch.Tag.pt2_compliant_tag,))
    return library


class KernelOp:
    """A kernel as a registered op; what :func:`op` returns for one.

    Attributes:
        name: The registered name.
        overload: The op for tensors.
    """

    def __init__(self, name: str, kernel: Any, parameters: Sequence[str]) -> None:
        self.name = name
        self.kernel = kernel
        self.overload = _overload(name, "default")
        self._parameters = tuple(parameters)
        self._with_numbers: dict[tuple[bool, ...], Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._with_numbers:
            return self.overload(*args, **kwargs)
        given = [as_number(value) for value in self._in_order(args, kwargs)]
        numbers = tuple(not isinstance(value, Tensor) for value in given)
        return self._with_numbers.get(numbers, self.overload)(*given)

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of their parameters."""
        takes = f"{self.kernel.name} takes {', '.join(self._parameters)}"
        if len(args) > len(self._parameters):
            raise TypeError(f"{takes}, but got {len(args)} arguments.")
        rest = self._parameters[len(args) :]
        for name in kwargs:
            if name not in rest:
                known = name in self._parameters
                raise TypeError(f"{takes}; {name} {'is given twice' if known else 'is none'}.")
        for name in rest:
            if name not in kwargs:
                raise TypeError(f"{takes}; {name} is missing.")
        return (*args, *(kwargs[name] for name in rest))

    def __repr__(self) -> str:
        return f"<op {self.name} of {self.kernel!r}>"


def _overload(name: str, overload: str) -> Any:
    namespace, _, bare = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), bare), overload)


def _op_of_elementwise(name: str, kernel: ElementwiseKernel) -> KernelOp:
    if kernel.has_raw_outputs:
        raise ValueError(
            f"{kernel.name} has a raw output, which a call would have to make. Call the kernel in "
            "a function that makes it, and register that."
        )
    name = _hashed(name, kernel._kernel.op_name)
    if name in _ops:
        return _ops[name]
    count = len(kernel.outputs)
    result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"

    def call(*args: Any) -> Any:
        # Numbers that are not known while a program is traced stay so.
        if any(isinstance(value, torch.SymFloat | torch.SymInt) for value in args):
            return kernel._traced(args, None, None)
        return kernel(*args)

    # A parameter takes a tensor or a number, for which a schema has no type: an overload for each
    # choice, "default" for tensors alone.
    choices = list(itertools.product((False, True), repeat=len(kernel.inputs)))
    choices = choices[: _MOST_OVERLOADS if len(choices) <= _MOST_OVERLOADS else 1]
    overloads = {}
    for numbers in choices:
        arguments = ", ".join(
            f"{'Scalar' if is_number else 'Tensor'} {param.name}"
            for param, is_number in zip(kernel.inputs, numbers, strict=True)
        )
        overload = "numbers" + "".join("01"[bit] for bit in numbers) if any(numbers) else "default"
        full = name if overload == "default" else f"{name}.{overload}"
        library = _define(full, arguments, result)
        # It is the kernel's own op that has derivatives, batching rule and fake kernel; torch.vmap
        # does not take a composition for a rule by itself.
        for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
            library.impl(full.partition("::")[2], call, key)
        overloads[numbers] = overload
    made = KernelOp(name, kernel, [param.name for param in kernel.inputs])
    made._with_numbers = {
        numbers: _overload(name, overload) for numbers, overload in overloads.items()
    }
    _ops[name] = made
    return made


def _op_of_reduction(name: str, kernel: ReductionKernel) -> KernelOp:
    name = _hashed(name, kernel.source)
    if name in _ops:
        return _ops[name]
    count = len(kernel.inputs)
    arguments = ", ".join(f"Tensor {param.name}" for param in kernel.inputs)
    library = _define(name, f"{arguments}, int[1]? dim=None, bool keepdim=False", "Tensor")

    def call(*args: Any) -> Tensor:
        dim = args[count] if len(args) > count else None
        keepdim = args[count + 1] if len(args) > count + 1 else False
        return kernel(*args[:count], dim=dim, keepdim=keepdim)

    # It is the kernel's own op that refuses derivatives and has batching rule and fake kernel.
    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        library.impl(name.partition("::")[2], call, key)
    _ops[name] = KernelOp(name, kernel, ())
    return _ops[name]


def _op_of_function(
    name: str, function: Callable[..., Any], mutates_args: str | Sequence[str]
) -> Any:
    if mutates_args != "unknown":  # which torch.library.custom_op knows
        mutates_args = (mutates_args,) if isinstance(mutates_args, str) else tuple(mutates_args)
    text, objects = read_function(function)
    hashed = _hashed(name, repr((text, mutates_args)))
    known = _functions.setdefault(hashed, [])
    for held, made in known:
        if len(held) == len(objects) and all(map(operator.is_, held, objects)):
            return made
    if known:
        hashed += f"_{len(known) + 1}"
    made = torch.library.custom_op(hashed, function, mutates_args=mutates_args)
    functools.update_wrapper(made, function)
    known.append((objects, made))
    return made
