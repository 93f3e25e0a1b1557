"""Gathers from, and sums into, the part of an axis that a rank has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.ops._arguments import Number

_ops = torch.ops.torch_ops


def can_sum(dtype: torch.dtype) -> bool:
    """Whether collectives add numbers of this dtype, so that a rank can have a part of a sum."""
    if dtype.is_floating_point or dtype.is_complex:
        return dtype.itemsize > 1
    return dtype in (torch.uint8, torch.int8, torch.int32, torch.int64)


def neutral(dtype: torch.dtype) -> Number:
    """What changes no sum. Zero would turn -0.0 into 0.0."""
    if dtype.is_complex:
        return complex(-0.0, -0.0)
    return -0.0 if dtype.is_floating_point else 0


def is_eager(index: Tensor) -> bool:
    """Whether no graph is made of this call."""
    return type(index) is Tensor and not torch.compiler.is_compiling()


def check_entries(
    gather: Callable[..., Tensor], sizes: Sequence[int], index: Any, *args: Any, **kwargs: Any
) -> Any:
    """Raises the error of ``gather`` for an entry that names nothing in all parts together.

    ``sizes`` are theirs. The table has one number in memory, and ``gather`` reads what it is told.
    Returns the index to go on with: in a graph it depends on the check, else compilers drop that.
    """
    mode = kwargs["mode"]
    if not (mode in ("raise", "from_end") or (0 in sizes and mode != "fill")):
        return index
    first, *others = [index] if isinstance(index, Tensor) else index
    table = torch.zeros(1, dtype=torch.uint8, device=first.device).expand(*sizes)
    zeros = gather(table, index, *args, **kwargs)
    if is_eager(first):
        return index
    first = first + zeros.sum()
    return first if isinstance(index, Tensor) else [first, *others]


def raise_recorded(device: torch.device) -> None:
    """Raises an entry's error that a CUDA device has recorded, once the host has waited for it."""
    nothing = torch.zeros(1, dtype=torch.int64, device=device)
    _ops.gather(nothing, nothing, 0, mode="unchecked")  # the next op does


def _resolved(index: Tensor, size: int, mode: str) -> Tensor:
    """The rows that the entries name; out of range where they name none."""
    entries = index.long()
    if mode == "wrap" and size > 0:
        return entries.remainder(size)
    if mode == "clip":
        return entries.clamp(0, size - 1)
    if mode in ("fill", "from_end"):
        return torch.where(entries < 0, entries + size, entries)
    return entries


def entries_of_part(index: Tensor, size: int, first: int, count: int, mode: str) -> Tensor:
    """The index for rows ``first`` to ``first + count - 1`` alone: ``count`` for all others."""
    rows = _resolved(index, size, mode)
    inside = (rows >= first) & (rows < first + count)
    return torch.where(inside, rows - first, count)


def dropped_entries(index: Tensor, size: int) -> Tensor:
    """Where an entry names no row in mode "fill"."""
    entries = index.long()  # a narrow dtype may not hold the size
    return (entries < -size) | (entries >= size)


def fill_of(part: Tensor, fill_value: Number | None) -> Tensor:
    """The one value that mode "fill" fills with, in the dtype of ``part``."""
    entry = torch.zeros(1, dtype=torch.long, device=part.device)
    return _ops.gather(part.new_empty(0), entry, 0, mode="fill", fill_value=fill_value)
