"""torch_ops.jit.op: kernels as torch ops with a name of the user's."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit._function_text import read_function
from torch_ops.jit._registered import NUMBERS, as_number, hashed
from torch_ops.jit.elementwise import ElementwiseKernel
from torch_ops.jit.reduction import ReductionKernel


def op(name: str, *, mutates_args: str | Sequence[str] = ()) -> Callable[[Any], Any]:
    """Registers a kernel, or a function that launches kernels, as a torch op.

    ``torch.compile(fullgraph=True)``, ``torch.export``, ``torch.library.opcheck`` and profilers
    then see one op. The registered name is ``name`` followed by a hash of the source. So a
    notebook's cell may run again, changed or not, and an exported program finds the op that it was
    made with. A function's source is its text, its defaults, the kernels, numbers and strings that
    it uses from outside, and the functions of its module that it calls. Functions that differ only
    in other objects, such as tensors that they close over, are separate ops, whose names end in
    ``_2``, ``_3`` and so on, in the order in which they are made.

    Args:
        name: ``"namespace::name"``.
        mutates_args: For a function: the names of the arguments that it writes to.

    Returns:
        A function that takes an :class:`ElementwiseKernel`, a :class:`ReductionKernel` or a
        function with annotated arguments, and returns the op, a callable. Its ``.overload`` is
        ``torch.ops.namespace.name_hash.default``.

        The op of an ElementwiseKernel takes its inputs by position and name, tensors or numbers
        (only tensors for a kernel with more than four inputs), and has the kernel's gradients. That
        of a ReductionKernel also takes ``dim`` and ``keepdim``. That of a function is one of
        ``torch.library.custom_op``, with ``.register_fake``, which it needs, and
        ``.register_autograd``.

    Gradient:
        For an ElementwiseKernel its own; for a ReductionKernel none, and an error that says so; for
        a function that of ``.register_autograd``.

    Raises:
        ValueError: ``name`` does not have the form ``namespace::name``, or the kernel has a raw
            output.
        TypeError: The argument is neither a kernel nor a function.

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
        with _lock:
            if isinstance(kernel, ElementwiseKernel):
                return _op_of_elementwise(name, kernel)
            if isinstance(kernel, ReductionKernel):
                return _op_of_reduction(name, kernel)
            if inspect.isfunction(kernel):
                return _op_of_function(name, kernel, mutates_args)
        raise TypeError(
            "an op is made of an ElementwiseKernel, a ReductionKernel or a function, not of "
            f"{type(kernel).__name__}. Call an IndexedKernel or a RawKernel in a function with "
            "annotated arguments, and register that."
        )

    return register


op.__module__ = "torch_ops.jit"


# A name that two threads see missing would be registered twice. Reentrant: torch evaluates the
# annotations of a function, which is code of the user's.
_lock = threading.RLock()
# Registered ops stay: graphs that were compiled or exported refer to them.
_libraries: dict[str, torch.library.Library] = {}
_ops: dict[str, Any] = {}
# By text: the functions that were registered, and the objects that distinguish them.
_functions: dict[str, list[tuple[list[Any], Any]]] = {}

# Combinations of tensors and numbers that have an overload each: for up to four parameters.
_MOST_OVERLOADS = 16


def _define(name: str, arguments: str, result: str, call: Callable[..., Any]) -> None:
    """Registers a composition, which calls the kernel's own op."""
    namespace, _, bare = name.partition("::")
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    library = _libraries[namespace]
    library.define(f"{bare}({arguments}) -> {result}", tags=(torch.Tag.pt2_compliant_tag,))
    # The kernel's own op has derivatives, or refuses them, batching rule and fake kernel;
    # torch.vmap does not use a composition as a rule by itself.
    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        library.impl(bare, call, key)


class KernelOp:
    """A kernel as a registered op; :func:`op` returns it.

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
        numbers = tuple(isinstance(value, NUMBERS) for value in given)
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
                raise TypeError(
                    f"{takes}; {name} {'is given twice' if known else 'is not one of them'}."
                )
        for name in rest:
            if name not in kwargs:
                raise TypeError(f"{takes}; {name} is missing.")
        return (*args, *(kwargs[name] for name in rest))

    def __reduce__(self) -> tuple[object, ...]:
        return _op_of, (self.name.rpartition("_")[0], self.kernel)  # without the hash

    def __repr__(self) -> str:
        return f"<op {self.name} of {self.kernel!r}>"


def _op_of(name: str, kernel: Any) -> Any:
    """A pickled op's."""
    return op(name)(kernel)


def _overload(name: str, overload: str) -> Any:
    namespace, _, bare = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), bare), overload)


def _op_of_elementwise(name: str, kernel: ElementwiseKernel) -> KernelOp:
    if kernel.has_raw_outputs:
        raise ValueError(
            f"{kernel.name} has a raw output, which a call would have to make. Call the kernel in "
            "a function that makes it, and register that."
        )
    name = hashed(name, kernel._kernel.op_name)
    if name in _ops:
        return _ops[name]
    count = len(kernel.outputs)
    result = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"

    def call(*args: Any) -> Any:
        # Numbers that are unknown while a program is traced stay symbolic.
        if any(isinstance(value, torch.SymFloat | torch.SymInt) for value in args):
            return kernel._by_op(args, None, None)
        return kernel(*args)

    # A parameter accepts a tensor or a number, for which a schema has no type: so there is an
    # overload for each combination, "default" for only tensors.
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
        _define(full, arguments, result, call)
        overloads[numbers] = overload
    made = KernelOp(name, kernel, [param.name for param in kernel.inputs])
    made._with_numbers = {
        numbers: _overload(name, overload) for numbers, overload in overloads.items()
    }
    _ops[name] = made
    return made


def _op_of_reduction(name: str, kernel: ReductionKernel) -> KernelOp:
    name = hashed(name, kernel.source)
    if name in _ops:
        return _ops[name]
    count = len(kernel.inputs)
    arguments = ", ".join(f"Tensor {param.name}" for param in kernel.inputs)

    def call(*args: Any) -> Tensor:
        dim = args[count] if len(args) > count else None
        keepdim = args[count + 1] if len(args) > count + 1 else False
        return kernel(*args[:count], dim=dim, keepdim=keepdim)

    _define(name, f"{arguments}, int[1]? dim=None, bool keepdim=False", "Tensor", call)
    _ops[name] = KernelOp(name, kernel, ())
    return _ops[name]


def _op_of_function(
    name: str, function: Callable[..., Any], mutates_args: str | Sequence[str]
) -> Any:
    if mutates_args != "unknown":  # which torch.library.custom_op knows
        mutates_args = (mutates_args,) if isinstance(mutates_args, str) else tuple(mutates_args)
    text, objects = read_function(function)
    registered = hashed(name, repr((text, mutates_args)))
    known = _functions.setdefault(registered, [])
    for held, made in known:
        if len(held) == len(objects) and all(map(operator.is_, held, objects)):
            return made
    if known:
        registered += f"_{len(known) + 1}"
    made = torch.library.custom_op(registered, function, mutates_args=mutates_args)
    functools.update_wrapper(made, function)
    known.append((objects, made))
    return made
