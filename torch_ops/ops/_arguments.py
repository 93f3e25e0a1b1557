"""Checks that the public functions make of their arguments in Python, and the errors."""

from __future__ import annotations

import functools
import math
import sys
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import is_tensor_like

Number = int | float | complex | bool

_INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# Types that are certainly not of a kind. Anything else, such as the numbers of torch.fx and
# torch.compile, is left to torch.
_NO_NUMBERS = (str, bytes, list, tuple, dict, set, type)
_numpy = sys.modules.get("numpy")  # torch has imported it, where it is installed
_ARRAYS = (Tensor,) if _numpy is None else (Tensor, _numpy.ndarray)
_REFUSED = {
    "an int": (float, complex, *_NO_NUMBERS, *([] if _numpy is None else [_numpy.inexact])),
    "a bool": (float, complex, *_NO_NUMBERS),
    "a real number": (complex, *_NO_NUMBERS),
    "a torch.dtype": (int, float, complex, *_NO_NUMBERS),
    "a sequence of ints": (int, float, complex, str, bytes, dict),
}
# What an int of a kind is passed to torch as, and how many bits it may have beside its sign.
_SIZES = {"an int": ("int64", 63), "a real number": ("float64", 1023)}
NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat)


def is_traced() -> bool:
    """By torch.jit.trace, to which numbers are constants, and sizes are tensors."""
    return not is_dynamo_compiling() and torch._C._is_tracing()


def given(argument: Any) -> str:
    """The kind of an argument, for a message: "a list", "an int", "None"."""
    if argument is None:
        return "None"
    kind = type(argument).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' or kind == 'ndarray' else 'a'} {kind}"


def check_kinds(name: str, **arguments: tuple[Any, str]) -> None:
    """Raises TypeError for an argument that is not what it must be, ValueError for a large int.

    Args:
        name: The function's, for the message.
        arguments: By their names: each with what it must be, a key of _REFUSED, followed by
            " or None" if None is allowed.
    """
    for role, (argument, allowed) in arguments.items():
        kind = allowed.removesuffix(" or None")
        if argument is None:
            wrong = kind == allowed
        else:
            is_float = isinstance(argument, Tensor) and argument.is_floating_point()
            wrong = isinstance(argument, _REFUSED[kind]) or (is_float and kind == "an int")
            if isinstance(argument, _ARRAYS) and kind != "a sequence of ints":
                wrong = wrong or math.prod(argument.shape) != 1
        if wrong:
            what = given(argument)
            if isinstance(argument, _ARRAYS) and argument.ndim > 0:
                what += f" of shape {list(argument.shape)}"
            raise TypeError(f"{name}: {role} must be {allowed}, but {what} was given.")
        # torch.ops silently makes a constant of a size that torch.jit.trace knows as a tensor.
        if isinstance(argument, Tensor) and is_traced():
            argument.item()  # which warns
        # A number that torch.compile keeps as a symbol would become a constant here.
        if kind in _SIZES and isinstance(argument, int) and not is_dynamo_compiling():
            dtype, bits = _SIZES[kind]
            if argument.bit_length() > bits:
                raise ValueError(
                    f"{name}: {role} must fit {dtype}, but the int that was given has "
                    f"{argument.bit_length()} bits."
                )


def check_device(name: str, device: Any) -> None:
    """Raises TypeError for what ``Tensor.to`` would take for another dtype."""
    if isinstance(device, bool) or not isinstance(device, (torch.device, str, int, NoneType)):
        what = repr(device) if isinstance(device, torch.dtype) else given(device)
        raise TypeError(
            f"{name}: device must be a torch.device, a string or an int, but {what} was given."
        )


def mode_arguments(name: str, mode: str, fill_value: Number | None = None) -> dict[str, Any]:
    """The options of a registered op for those of a public function.

    Raises TypeError for values that the registered op would refuse without naming them.
    """
    if mode == "raise" and fill_value is None:
        return {}
    if not isinstance(mode, str):
        raise TypeError(f"{name}: mode must be a string, but it is {mode!r}.")
    if fill_value is None:
        return {"mode": mode}
    return {"mode": mode, "fill_value": checked_fill_value(name, fill_value)}


def check_mode(name: str, mode: str, fill_value: Number | None) -> None:
    """For a layer, whose wrong arguments are an error before its first call."""
    mode_arguments(name, mode, fill_value)
    if mode not in ("raise", "wrap", "clip", "fill", "unchecked"):
        raise ValueError(
            f'{name}: mode must be "raise", "wrap", "clip", "fill" or "unchecked", but it is '
            f'"{mode}".'
        )
    if fill_value is not None and mode != "fill":
        raise ValueError(f'{name}: fill_value is for mode="fill", but mode is "{mode}".')


def checked_fill_value(name: str, fill_value: Number) -> Number:
    """The number as a registered op takes it; raises TypeError or ValueError if none does."""
    if not isinstance(fill_value, NUMBERS):
        if hasattr(fill_value, "item") and not is_tensor_like(fill_value):
            return checked_fill_value(name, _number_of(fill_value))
        raise TypeError(f"{name}: fill_value must be a number, but {given(fill_value)} was given.")
    is_known = not is_dynamo_compiling()  # as in check_kinds
    if is_known and isinstance(fill_value, int) and not -(2**63) <= fill_value < 2**63:
        raise ValueError(
            f"{name}: fill_value must fit int64 if it is an int, but it is {fill_value}. For a "
            "source of floats give a float."
        )
    return fill_value


def _number_of(scalar: Any) -> Any:
    """One of NumPy's as Python's. item() does not convert floats of more than 64 bits."""
    item = scalar.item()
    if _numpy is None or not isinstance(item, _numpy.inexact):
        return item
    return complex(item) if isinstance(item, _numpy.complexfloating) else float(item)


def check_values(name: str, values: Any, dtype: torch.dtype) -> None:
    """Raises ValueError for a number, or one in a list or array, that no fill_value could be.

    That is check_fill_value in src/common/gather_family/index_mode_args.h.
    """
    is_known = not is_dynamo_compiling()  # as in check_kinds
    if isinstance(values, (int, float, complex)):
        if isinstance(values, complex) and not dtype.is_complex:
            allowed = "real numbers"
        elif isinstance(values, float) and not (dtype.is_complex or dtype.is_floating_point):
            allowed = "integers"
        elif is_known:
            allowed = _range(dtype, values)
        else:
            return
        if allowed:
            what = values if is_known else given(values)
            raise ValueError(f"{name}: values must be {allowed} for {dtype}, but {what} was given.")
    elif isinstance(values, (list, tuple)):
        for value in values:
            check_values(name, value, dtype)
    elif is_known and _numpy is not None and isinstance(values, _numpy.ndarray):
        if values.size > 0 and values.dtype.kind in "biufc":
            for part in [values.real, values.imag] if dtype.is_complex else [values]:
                finite = part[_numpy.isfinite(part)]
                ends = [finite.min(), finite.max()] if finite.size > 0 else []
                check_values(name, [part.flat[0], *ends], dtype)
    elif is_known and hasattr(values, "item") and not is_tensor_like(values):
        check_values(name, _number_of(values), dtype)


def _range(dtype: torch.dtype, number: complex) -> str:
    """The range of the dtype's finite values if the number is beyond it."""
    least, most = _limits(dtype)
    if isinstance(number, complex):
        parts = [part for part in (number.real, number.imag) if math.isfinite(part)]
        if all(least <= part <= most for part in parts):
            return ""
    elif least <= number <= most or (isinstance(number, float) and not math.isfinite(number)):
        return ""
    if isinstance(least, int):
        return f"between {least} and {most}"
    return f"between {least:g} and {most:g}{' in both parts' if dtype.is_complex else ''}"


@functools.cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    """The finite values that a dtype holds, as far as torch knows."""
    if dtype == torch.bool:
        return 0, 1
    try:
        if not (dtype.is_complex or dtype.is_floating_point):
            return torch.iinfo(dtype).min, torch.iinfo(dtype).max
        most = torch.finfo(dtype).max
    except (TypeError, NotImplementedError):
        most = math.inf
    return -most, most


def _is_mapped(tensor: Tensor) -> bool:
    """Does it differ between the samples of a torch.vmap?"""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def least_size(name: str, role: str, entries: Tensor, beyond: int) -> int:
    """The largest entry plus ``beyond``; 0 if there is none, or the op will refuse them.

    Args:
        name: The function's, for the message.
        role: The argument's that was left out, for the message.
        entries: Of an index, or the last offsets.
        beyond: See above.
    """
    is_known = isinstance(entries, Tensor)  # and not one of torch.fx's proxies
    if is_known and (
        entries.layout != torch.strided
        or entries.numel() == 0
        or entries.dtype not in _INDEX_DTYPES
    ):
        return 0
    if is_known and entries.device.type == "meta":
        raise RuntimeError(f"{name}: {role} must be given on meta, where entries have no values.")
    if is_known and not is_dynamo_compiling() and _is_mapped(entries):
        raise RuntimeError(
            f"{name}: {role} must be given under torch.vmap, where each sample has its own largest "
            "entry."
        )
    size: Any = entries.max().item() + beyond  # item(), not int(): torch.export traces it
    return max(size, 0) if isinstance(size, int) else size


def only_raise(name: str, mode: str, fill_value: Number | None = None) -> None:
    """Raises ValueError for a mode that plans do not have."""
    if mode != "raise" or fill_value is not None:
        what = f'mode="{mode}"' if fill_value is None else f"fill_value={fill_value!r}"
        raise ValueError(
            f'{name}: a plan is made for mode="raise", but {what} was given. Its entries were '
            "checked when it was made. Give the index itself for another mode."
        )


def check_sorted(name: str, mode: str) -> None:
    """Raises ValueError for a mode in which a sorted index need not name rows in order."""
    if mode != "raise":
        raise ValueError(
            f'{name}: sorted=True is for mode="raise", but mode is {mode!r}: entries that another '
            "mode sends elsewhere are in no order."
        )


def check_dim_size(name: str, dim_size: int | None) -> None:
    """Raises TypeError if it was left out."""
    if dim_size is None:
        raise TypeError(
            f"{name}: dim_size is missing: how long the result is at dim. Only a plan "
            "(torch_ops.gather_plan) in place of the index has it."
        )


def check_tensors(name: str, takes: str | None = None, **tensors: Any) -> None:
    """Raises TypeError if an argument is not a tensor; jagged nested ones are.

    ``takes``: what the function takes, for one whose counterpart in torch has another order.
    """
    for role, argument in tensors.items():
        if not is_tensor_like(argument):  # torch.fx's proxies are
            text = f"{name}: {role} must be a tensor, but {given(argument)} was given."
            raise TypeError(text if takes is None else f"{text} torch_ops.{name} takes {takes}.")


def check_countable(name: str, mask: Any) -> None:
    """Raises an error for a mask that is a DTensor, whose true entries torch does not find."""
    if isinstance(mask, Tensor) and hasattr(mask, "device_mesh"):
        raise NotImplementedError(
            f"{name}: the true entries of a mask that is a DTensor cannot be counted. Use "
            "masked_gather with size=, or plain tensors: full_tensor() is all of a DTensor, "
            "to_local() this rank's part."
        )


def check_dense(name: str, takes: str | None = None, **tensors: Any) -> None:
    """Raises TypeError if an argument is not a tensor, or a nested one."""
    check_tensors(name, takes, **tensors)
    for role, argument in tensors.items():
        if isinstance(argument, Tensor) and argument.is_nested:
            raise TypeError(
                f"{name}: {role} must be a dense tensor, but it is a nested one. The values() of a "
                "jagged tensor are dense."
            )
