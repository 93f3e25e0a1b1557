"""Common code of kernels: what C++ gets of them, compilation, and what registered ops share."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit.building.compilation import compile_cuda, compile_host, may_divide
from torch_ops.jit.building.errors import CompileError
from torch_ops.jit.building.source import Source
from torch_ops.jit.building.toolchain import arch_of
from torch_ops.jit.generation.text import CUDA_OPTIONS, HOST_OPTIONS, shared_options, with_macros
from torch_ops.jit.language.derivative_errors import explained
from torch_ops.jit.language.params import Param
from torch_ops.jit.language.program import Program

_ext: Any = importlib.import_module("torch_ops._ext.jit")


def hashed(name: str, source: str) -> str:
    """The name of an op, which differs for each source."""
    return f"{name}_{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def signature(
    name: str,
    op_name: str,
    inputs: Sequence[Param],
    outputs: Sequence[Param],
    texts: Iterable[str],
) -> dict[str, Any]:
    """What C++ gets of every kernel; ``texts`` are the user's."""
    letters = {param.type for param in (*inputs, *outputs) if isinstance(param.type, str)}
    return {
        "name": name,
        "op_name": op_name,
        "inputs": [param.facts() for param in inputs],
        "outputs": [param.facts() for param in outputs],
        "placeholders": sorted(letters),
        "divides": may_divide(texts),
    }


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what C++ calls: torch.compile, after a graph break, would trace the compilation too."""

    def run(*args: Any) -> Any:
        return function(*args)

    def call(*args: Any) -> Any:
        dynamo: Any = sys.modules.get("torch._dynamo")
        return run(*args) if dynamo is None else dynamo.disable(run)(*args)

    return call


def load_functions(
    what: str,
    program: Program | None,
    options: Sequence[str],
    device: int | None,
    source: Source,
    *names: str,
    has_backward: bool = True,
) -> list[int]:
    """Compiles a source for a device, or for the CPU, and returns functions of it, as C++ has them.

    ``program``: what the source was generated from. An error in a derivative says what to do.
    """
    try:
        source, options = with_macros(source, options)
        if device is None:
            given = (*HOST_OPTIONS, *shared_options(options))
            library = _ext.load_host_library(compile_host(what, source, options=given).data)
            return [_ext.host_symbol(library, name) for name in names]
        given = (*CUDA_OPTIONS, *options)
        code = compile_cuda(what, source, arch=arch_of(device), options=given)
        library = _ext.load_library(code.data)
        return [_ext.get_kernel(library, name) for name in names]
    except CompileError as error:
        if program is None or program.depth == 0:
            raise
        raise explained(error, what, program.snippet, has_backward=has_backward) from None


_faked: set[str] = set()  # an op lives as long as the process


def register_fake(op_name: str, fake: Callable[..., Any]) -> None:
    """Registers the fake kernel of an op, unless it has one."""
    if op_name not in _faked:
        _faked.add(op_name)
        torch.library.register_fake(f"torch_ops_jit::{op_name}", fake)


_derive: dict[str, Callable[..., Any]] = {}  # by the name of the op that has the derivatives


def derives(op_name: str, derive: Callable[..., Any]) -> Callable[..., Any]:
    """What C++ calls for a new derivative of an op: ``derive`` also gets the derivative's name.

    The name says all that C++ says, so that _Namespace can make the derivative from it.
    """

    def call(kind: str, *flags: list[bool]) -> Any:
        bits = "_".join("".join("01"[bit] for bit in part) for part in flags)
        return derive(f"{op_name}_{kind}_{bits}", kind, *flags)

    return _derive.setdefault(op_name, call)


class _Namespace(type(torch.ops.torch_ops_jit)):  # type: ignore[misc]
    """torch.ops.torch_ops_jit, which makes the op of a derivative that is missing.

    A program that another process has compiled or exported calls it by its name.
    """

    __module__ = torch.ops.torch_ops_jit.__module__  # torch names its ops after it

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            derivative = re.fullmatch(r"(\w+)_(vjp|jvp)_([01_]+)", name)
            if not derivative or not hasattr(self, derivative[1]) or derivative[1] not in _derive:
                raise
        flags = ([bit == "1" for bit in part] for part in derivative[3].split("_"))
        _derive[derivative[1]](derivative[2], *flags)
        return super().__getattr__(name)


torch.ops.torch_ops_jit.__class__ = _Namespace


_numpy = sys.modules.get("numpy")  # torch has imported it, where it is installed
# For torch.compile a scalar of NumPy is an array without axes.
_OF_NUMPY = () if _numpy is None else (_numpy.generic, _numpy.ndarray)
NUMBERS = (bool, int, float, complex, torch.SymBool, torch.SymInt, torch.SymFloat)


def split_arguments(
    kernel: str, params: Sequence[Param], args: Sequence[Any]
) -> tuple[list[Tensor], list[Any], list[int]]:
    """A call's arguments for a registered op: tensors, numbers, and positions of the numbers."""
    tensors = []
    numbers = []
    positions = []
    for position, given in enumerate(args):
        value = as_number(given)
        if isinstance(value, NUMBERS):
            numbers.append(value)
            positions.append(position)
        elif isinstance(value, Tensor) or is_proxy(value):
            tensors.append(value)
        else:
            raise TypeError(
                f"{kernel}: {params[position].name} must be a tensor or a number, but it is "
                f"{type(given).__name__}."
            )
    return tensors, numbers, positions


def as_number(value: Any) -> Any:
    """Converts a NumPy scalar to a Python number, which a schema can represent."""
    return value.item() if isinstance(value, _OF_NUMPY) else value


def is_proxy(value: Any) -> bool:
    """Does it take a tensor's place without being one, as what torch.fx.symbolic_trace passes?"""
    return hasattr(type(value), "__torch_function__") and not isinstance(value, Tensor)


def join_arguments(
    params: Sequence[Param], tensors: Sequence[Tensor], positions: Sequence[int]
) -> list[Tensor | None]:
    """The tensor of each parameter; None: a number."""
    given = iter(tensors)
    return [None if position in positions else next(given) for position in range(len(params))]


def known_numbers(numbers: Sequence[Any]) -> list[Any]:
    """Replaces symbolic numbers of a traced program by some number of the same type."""
    numbers = [1.0 if isinstance(n, torch.SymFloat) else n for n in numbers]
    return [1 if isinstance(n, torch.SymInt) else n for n in numbers]


def device_of(name: str, tensors: Sequence[Tensor]) -> torch.device:
    """The one device of a call; 0-d tensors on the CPU count as numbers."""
    devices = {t.device for t in tensors if t.dim() > 0 or t.device.type != "cpu"}
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise RuntimeError(f"{name}: all tensors must be on one device, not on {names}.")
    device = next(iter(devices), None)
    if device is not None:
        return device
    return tensors[0].device if tensors else torch.device("cpu")


def copy_to_outputs(
    kernel: str,
    names: Sequence[str],
    outs: Sequence[Any],
    results: Sequence[Tensor],
    tensors: Sequence[Tensor],
) -> list[Tensor]:
    """Copies the results of a traced call to the outputs that were given.

    Refuses outputs that an untraced call refuses, but copy_ would accept. ``tensors`` are the
    call's arguments.
    """
    if len(outs) != len(results):
        raise TypeError(
            f"{kernel}: the number of tensors in out= must be {len(results)}, but it is "
            f"{len(outs)}."
        )
    for name, given, made in zip(names, outs, results, strict=True):
        if not isinstance(given, Tensor):
            raise TypeError(f"{kernel}: {name} must be a tensor, but it is {type(given).__name__}.")
        if given.shape != made.shape:
            raise ValueError(
                f"{kernel}: {name} has shape {list(given.shape)}, but the result has "
                f"{list(made.shape)}. An output is never resized."
            )
        if _kind(made.dtype) > _kind(given.dtype):
            raise TypeError(
                f"{kernel}: {name} is computed in {made.dtype}, which is not cast to "
                f"{given.dtype}, the dtype of what is given for it."
            )
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *outs)):
        raise RuntimeError(
            f"{kernel}: out= and automatic differentiation exclude each other, but an argument "
            "requires grad. Leave out= out, or call it under torch.no_grad(). Raw outputs "
            "have gradients in a function that torch_ops.jit.op registers."
        )
    return [given.copy_(made) for given, made in zip(outs, results, strict=True)]


def _kind(dtype: torch.dtype) -> int:
    """A rank: torch.can_cast refuses casts to a lower one; torch.compile cannot trace it."""
    if dtype.is_complex or dtype.is_floating_point:
        return 3 if dtype.is_complex else 2
    return int(dtype != torch.bool)
