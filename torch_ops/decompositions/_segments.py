"""Segments, softmax and bags, in torch's own ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_ops.decompositions._rows import (
    gather,
    gather_elements,
    numbers_type,
    scatter_arg,
    scatter_best,
    scatter_prod,
    scatter_sum,
    widened,
)

_ops = torch.ops.torch_ops


# ---- Segments -----------------------------------------------------------------------------------


def _begun(starts: Tensor, count: int) -> Tensor:
    """For each number below `count`, how many starts are at or before it."""
    shape = [*starts.shape[:-1], count + 1]
    zeros = torch.zeros(shape, dtype=torch.int64, device=starts.device)
    at = starts.to(torch.int64).clamp(0, count)
    begins = zeros.scatter_add(-1, at, torch.ones_like(at))
    return begins.cumsum(-1)[..., :count]


def _segment_ids(offsets: Tensor, count: int, name: str | None = None) -> Tensor:
    segments = offsets.shape[-1] - 1
    begun = _begun(offsets, count)
    ids = torch.where(begun == 0, segments, begun - 1)
    return ids.to(numbers_type(segments))


def _sorted_offsets(
    index: Tensor, dim_size: int, batch_dims: int, name: str | None = None
) -> Tensor:
    shape = [*index.shape[:batch_dims], math.prod(index.shape[batch_dims:])]
    offsets = _begun(index.reshape(shape).to(torch.int64) + 1, dim_size + 1)
    return offsets.to(numbers_type(shape[-1]))


def _by_segments(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """The same of segments, by their offsets; entries of no segment are dropped."""

    def by_offsets(values: Tensor, offsets: Tensor, dim: int, batch_dims: int, *rest: bool) -> Any:
        ids = _segment_ids(offsets, values.shape[dim])
        return reduce(values, ids, offsets.shape[-1] - 1, dim, batch_dims, *rest, "fill")

    return by_offsets


def _scatter_mean(
    values: Tensor, index: Tensor, dim_size: int, dim: int, batch_dims: int, mean: bool, mode: str
) -> Any:
    """Or the sum."""
    options = {"batch_dims": batch_dims, "reduce": "mean" if mean else "sum", "mode": mode}
    return _ops.scatter(values, index, dim_size, dim, **options)


@dataclass(frozen=True)
class _Groups:
    """Which values belong together: those with the same entry, or of the same segment.

    By offsets the index has each entry's segment, or the row after all for one of none.
    """

    index: Tensor
    dim_size: int
    dim: int
    batch_dims: int
    rows: Tensor | None
    order: Tensor | None
    offsets: Tensor | None

    @property
    def mode(self) -> str:
        return "raise" if self.offsets is None else "fill"

    def largest(self, values: Tensor) -> Tensor:
        axes = (self.dim_size, self.dim, self.batch_dims)
        return scatter_best(values, self.index, *axes, True, self.mode)

    def sum(self, values: Tensor) -> Tensor:
        options: dict[str, Any] = {"batch_dims": self.batch_dims, "mode": self.mode}
        return scatter_sum(values, self.index, self.dim_size, self.dim, **options)

    def back(self, of_rows: Tensor, fill_value: float = 0) -> Tensor:
        options: dict[str, Any] = {"batch_dims": self.batch_dims, "mode": self.mode}
        return gather(of_rows, self.index, self.dim, fill_value=fill_value, **options)

    def only(self, values: Tensor, of_rows: Tensor) -> Tensor:
        """With zeros for entries of no segment."""
        if self.offsets is None:
            return values
        return values.masked_fill(self.back(torch.ones_like(of_rows)) == 0, 0)


SOFTMAX, LOG_SOFTMAX, LOGSUMEXP = range(3)


def _softmax(values: Tensor, what: int, *parts: Any) -> Tensor:
    groups = _Groups(*parts)
    wide = values if values.dtype == torch.float64 else values.float()
    largest = groups.largest(wide)
    if what != LOGSUMEXP:
        largest = largest.masked_fill(largest == math.inf, math.nan)
    largest = largest.masked_fill(largest.abs() == math.inf, 0)
    shifted = wide - groups.back(largest)
    sums = groups.sum(shifted.exp())
    if what == LOGSUMEXP:
        return (sums.log() + largest).to(values.dtype)
    if what == SOFTMAX:
        result = shifted.exp() / groups.back(sums, 1)
    else:
        result = shifted - groups.back(sums.log())
    return groups.only(result, sums).to(values.dtype)


def _softmax_back(grad: Tensor, output: Tensor, values: Tensor, what: int, *parts: Any) -> Tensor:
    groups = _Groups(*parts)
    wide = torch.float64 if values.dtype == torch.float64 else torch.float32
    grad = grad.to(wide)
    if what == LOGSUMEXP:
        of_rows = _softmax(values.to(wide), what, *parts)
        result = groups.back(grad) * (values.to(wide) - groups.back(of_rows)).exp()
    elif what == SOFTMAX:
        of_rows = groups.sum(grad * output.to(wide))
        result = output.to(wide) * (grad - groups.back(of_rows))
    else:
        of_rows = groups.sum(grad)
        result = grad - output.to(wide).exp() * groups.back(of_rows)
    return groups.only(result, of_rows).to(values.dtype)


def _gather_csr(
    values: Tensor,
    offsets: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    output_size: int,
) -> Tensor:
    ids = _segment_ids(offsets, output_size)
    return gather(values, ids, dim, batch_dims=batch_dims, mode="fill", fill_value=0)


# ---- Bags ---------------------------------------------------------------------------------------


def _bags_of(
    input: Tensor, offsets: Tensor | None, include_last_offset: bool, padding_idx: int | None
) -> tuple[Tensor, int, int]:
    """The bag of each entry, their number, and the batch axes of both."""
    if offsets is None:
        bags = torch.zeros_like(input, dtype=torch.int64)
        count, batch_dims = 1, 1
    else:
        count, batch_dims = offsets.shape[0] - int(include_last_offset), 0
        bags = (_begun(offsets, input.shape[0]) - 1).clamp_min(0)
    if padding_idx is not None:
        bags = bags.masked_fill(input == padding_idx, count)
    return bags, count, batch_dims


def _embedding_bag(
    weight: Tensor,
    factors: Tensor | None,
    input: Tensor,
    offsets: Tensor | None,
    mode: str,
    include_last_offset: bool,
    padding_idx: int | None,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Tensor:
    bags, count, batch_dims = _bags_of(input, offsets, include_last_offset, padding_idx)
    rows = gather(weight, input, 0)
    if factors is not None:
        rows = widened(rows) * factors.unsqueeze(-1)
    result = _ops.scatter(
        rows, bags, count, batch_dims, batch_dims=batch_dims, reduce=mode, mode="fill"
    )
    return (result if offsets is not None else result.squeeze(1)).to(weight.dtype)


def _embedding_bag_largest(
    weight: Tensor,
    input: Tensor,
    offsets: Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> tuple[Tensor, Tensor]:
    bags, count, batch_dims = _bags_of(input, offsets, include_last_offset, padding_idx)
    rows = gather(weight, input, 0)
    entries = scatter_arg(rows, bags, count, batch_dims, batch_dims, True, "fill")
    rows_named = gather(
        input.to(torch.int64),
        entries,
        batch_dims,
        batch_dims=batch_dims,
        mode="fill",
        fill_value=weight.shape[0],
    ).reshape(-1, weight.shape[1])
    return gather_elements(weight, rows_named, 0, mode="fill", fill_value=0), rows_named


DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    _ops.gather_csr.default: _gather_csr,
    _ops._segment_arg.default: _by_segments(scatter_arg),
    _ops._segment_best.default: _by_segments(scatter_best),
    _ops._segment_ids.default: _segment_ids,
    _ops._segment_prod.default: _by_segments(scatter_prod),
    _ops._segment_sum.default: _by_segments(_scatter_mean),
    _ops._sorted_offsets.default: _sorted_offsets,
    _ops._softmax.default: _softmax,
    _ops._softmax_back.default: _softmax_back,
    _ops._embedding_bag.default: _embedding_bag,
    _ops._embedding_bag_largest.default: _embedding_bag_largest,
}
