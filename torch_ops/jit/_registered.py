"""What kernels as registered ops have in common: tensors and numbers apart, fake results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.jit.language.params import Param


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


def copy_to_outputs(
    kernel: str,
    names: Sequence[str],
    outs: Sequence[Any],
    results: Sequence[Tensor],
    tensors: Sequence[Tensor],
) -> list[Tensor]:
    """What a traced call made, in the outputs that were given.

    Refuses what a call that is not traced refuses, and copy_ would take. ``tensors`` are the call's
    arguments.
    """
    if len(outs) != len(results):
        raise TypeError(
            f"{kernel}: out= must hold {len(results)} tensors, but it holds {len(outs)}."
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
    """One that torch.can_cast does not cast to a lower one; torch.compile cannot follow that."""
    if dtype.is_complex or dtype.is_floating_point:
        return 3 if dtype.is_complex else 2
    return int(dtype != torch.bool)
