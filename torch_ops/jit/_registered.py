"""Common code of kernels as registered ops: separating tensors and numbers, fake results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit.language.params import Param


def split_arguments(args: Sequence[Any]) -> tuple[list[Tensor], list[Any], list[int]]:
    """A call's arguments for a registered op: tensors, numbers, and positions of the numbers."""
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
    """Converts a NumPy scalar to a Python number, which a schema can represent."""
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
            "requires grad. Leave out= out, or call it under torch.no_grad()."
        )
    return [given.copy_(made) for given, made in zip(outs, results, strict=True)]


def _kind(dtype: torch.dtype) -> int:
    """A rank: torch.can_cast refuses casts to a lower one; torch.compile cannot trace it."""
    if dtype.is_complex or dtype.is_floating_point:
        return 3 if dtype.is_complex else 2
    return int(dtype != torch.bool)
