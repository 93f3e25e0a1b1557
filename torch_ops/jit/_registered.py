"""What kernels as registered ops have in common: tensors and numbers apart, fake results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit._params import Param


def split_arguments(args: Sequence[Any]) -> tuple[list[Tensor], list[Any], list[int]]:
    """A call's arguments as a registered op takes them: tensors, numbers, positions of these."""
    tensors = []
    numbers = []
    positions = []
    for position, value in enumerate(args):
        if isinstance(value, Tensor):
            tensors.append(value)
        else:
            numbers.append(as_number(value))
            positions.append(position)
    return tensors, numbers, positions


def as_number(value: Any) -> Any:
    """A scalar of NumPy's as the number of Python that a schema knows."""
    if isinstance(value, Tensor | bool | int | float | complex):
        return value
    return value.item() if hasattr(value, "item") else value


def join_arguments(
    params: Sequence[Param], tensors: Sequence[Tensor], positions: Sequence[int]
) -> list[Tensor | None]:
    """The tensor of each parameter; None: a number."""
    given = iter(tensors)
    return [None if position in positions else next(given) for position in range(len(params))]


def known_numbers(numbers: Sequence[Any]) -> list[Any]:
    """Some number of the same type in place of one that a program is traced with."""
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


@torch.compiler.assume_constant_result
def _is_cast(from_: torch.dtype, to: torch.dtype) -> bool:
    return torch.can_cast(from_, to)


def copy_to_output(kernel: str, name: str, made: Tensor, out: Tensor) -> Tensor:
    """What a traced call made, in the output that was given, where a call's own could be written.

    Raises:
        ValueError: It has another shape.
        TypeError: It has a dtype to which the result is not cast.
    """
    if out.shape != made.shape:
        raise ValueError(
            f"{kernel}: {name} has shape {list(out.shape)}, but the result has "
            f"{list(made.shape)}. An output is never resized."
        )
    if not _is_cast(made.dtype, out.dtype):
        raise TypeError(
            f"{kernel}: {name} is computed in {made.dtype}, which is not cast to {out.dtype}, the "
            "dtype of what is given for it."
        )
    return out.copy_(made)
