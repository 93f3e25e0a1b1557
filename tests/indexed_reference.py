"""Indexed kernels written with torch's own ops, and indices to try them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def random(shape: tuple[int, ...], device: torch.device, dtype=torch.float64, seed=0) -> Tensor:
    generator = torch.Generator().manual_seed(7 + seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)


def random_index(entries: int, rows: int, device: torch.device, kind="uniform", seed=0) -> Tensor:
    """Entries of an index: ``uniform``, ``hot`` (90 % on one row), or ``some`` (few rows)."""
    generator = torch.Generator().manual_seed(11 + seed + entries)
    index = torch.randint(0, max(rows, 1), (entries,), generator=generator)
    if kind == "hot":
        index[torch.rand(entries, generator=generator) < 0.9] = rows // 2
    if kind == "some":
        index = index % max(rows // 4, 1)
    return index.to(device)


def reduced(messages: Tensor, index: Tensor, rows: int, how: str = "sum") -> Tensor:
    """Rows of messages ``[E, ...]`` reduced to ``[rows, ...]``; 0 where there is none."""
    wide = messages.flatten(1) if messages.dim() > 1 else messages.unsqueeze(1)
    where = index.long().unsqueeze(1).expand_as(wide)
    zeros = wide.new_zeros(rows, wide.shape[1])
    if how in ("sum", "mean"):
        result = zeros.index_add(0, index.long(), wide)
        if how == "mean":
            counts = torch.bincount(index.long(), minlength=rows).clamp_min(1)
            counts = counts.unsqueeze(1)
            floating = result.is_floating_point() or result.is_complex()
            result = result / counts if floating else result.div(counts, rounding_mode="floor")
    else:
        result = zeros.scatter_reduce(0, where, wide, how, include_self=False)
    return result.reshape(rows, *messages.shape[1:])


def composed(
    function: Callable[..., Tensor],
    read: Mapping[int, str],
    to: str,
    how: str = "sum",
) -> Callable[..., Tensor]:
    """A kernel of one output, of what it computes for each entry.

    Args:
        function: Of the inputs, gathered ones as rows for each entry.
        read: The names of the indices that inputs are read by, by their position.
        to: The index that the output is reduced to.
        how: The reduction.
    """

    def call(*inputs: Tensor, rows: int, **indices: Tensor) -> Tensor:
        values = [
            value[indices[read[k]].long()] if k in read else value for k, value in enumerate(inputs)
        ]
        messages = function(*values)
        entries = indices[to].shape[0]
        return reduced(messages.expand(entries, *messages.shape[1:]), indices[to], rows, how)

    return call
