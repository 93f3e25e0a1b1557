"""Gathers of rows and of elements, sums and other reductions, in torch's own ops.

Entries are not checked: whoever runs the program promises that they are in range. Rows are seen as
[batch, outer, entries, inner]; an op that is a composition is left to PyTorch, which traces it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_ops = torch.ops.torch_ops


# ---- Entries ------------------------------------------------------------------------------------


def resolve(index: Tensor, size: int, mode: str) -> tuple[Tensor, Tensor | None]:
    """The rows that the entries name; and for a mode that has it, which of them name none."""
    index = index.to(torch.int64)
    if mode == "wrap":
        # By a tensor: torch.onnx.export converts no remainder by a size that is not known yet.
        return index.remainder(index.new_full((), size)), None
    if mode == "clip":
        return index.clamp(0, size - 1), None
    if mode not in ("fill", "from_end"):
        return index, None
    index = torch.where(index < 0, index + size, index)
    if mode == "from_end":
        return index, None
    none = (index < 0) | (index >= size)
    return index.masked_fill(none, 0), none


def _fill(source: Tensor, fill_value: complex | None) -> complex:
    """The value for entries that name no row: without one JAX's, as docs/semantics.md has it."""
    if fill_value is not None:
        return fill_value
    if source.is_floating_point() or source.is_complex():
        return math.nan
    if source.dtype == torch.bool:
        return True
    limits = torch.iinfo(source.dtype)
    return limits.min if limits.min < 0 else limits.max


def _without_none(
    source: Tensor, dim: int, entries: Tensor, none: Tensor | None, fill_value: complex | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """With a row more, which those name that name none, if these cannot be overwritten after.

    An axis may be empty in another run, if its size is not known yet; and ONNX Runtime selects no
    bools.
    """
    size = source.shape[dim] if source.dim() > 0 else 1
    known = isinstance(size, int) and size > 0
    if none is None or source.dim() == 0 or (known and source.dtype != torch.bool):
        return source, entries, none
    shape = [*source.shape[:dim], 1, *source.shape[dim + 1 :]]
    row = source.new_full(shape, _fill(source, fill_value))
    return torch.cat([source, row], dim), torch.where(none, size, entries), None


def widened(values: Tensor) -> Tensor:
    """As they are summed and multiplied: of 16-bit floats in float32."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def numbers_type(count: int) -> torch.dtype:
    return torch.int32 if count < 2**31 else torch.int64


def _axis(dim: int | None, batch_dims: int, rank: int) -> int:
    return batch_dims if dim is None else dim % rank


def as_rows(tensor: Tensor, dim: int, batch_dims: int, axes: int) -> Tensor:
    parts = (
        tensor.shape[:batch_dims],
        tensor.shape[batch_dims:dim],
        tensor.shape[dim : dim + axes],
        tensor.shape[dim + axes :],
    )
    return tensor.reshape([math.prod(part) for part in parts])


def _unflatten(tensor: Tensor, axis: int, sizes: Sequence[int]) -> Tensor:
    if len(sizes) == 0:
        return tensor.squeeze(axis)
    return tensor if len(sizes) == 1 else tensor.unflatten(axis, sizes)


def beside(entries: Tensor, batch_dims: int, rows: Tensor) -> Tensor:
    """Those of an index as a tensor of four axes, one for each element of rows' outer and inner."""
    batch, outer, _, inner = rows.shape
    count = math.prod(entries.shape[batch_dims:])
    return entries.reshape(batch, 1, count, 1).expand(batch, outer, count, inner)


# ---- Gathers ------------------------------------------------------------------------------------


def gather(
    source: Tensor,
    index: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    fill_value: complex | None = None,
    **_: Any,
) -> Tensor:
    dim = _axis(dim, batch_dims, source.dim())
    shape = [*source.shape[:dim], *index.shape[batch_dims:], *source.shape[dim + 1 :]]
    entries, none = resolve(index, source.shape[dim], mode)
    source, entries, none = _without_none(source, dim, entries, none, fill_value)
    if batch_dims == 0:
        result = source.index_select(dim, entries.reshape(-1)).reshape(shape)
    else:
        rows = as_rows(source, dim, batch_dims, 1)
        result = rows.gather(2, beside(entries, batch_dims, rows)).reshape(shape)
    if none is None:
        return result
    none = none.reshape(
        [
            *index.shape[:batch_dims],
            *(1 for _ in range(dim - batch_dims)),
            *index.shape[batch_dims:],
            *(1 for _ in source.shape[dim + 1 :]),
        ]
    )
    return result.masked_fill(none, _fill(source, fill_value))


def _gather_by_plan(
    source: Tensor, index: Tensor, rows: Tensor, order: Tensor, *axes: int
) -> Tensor:
    _, dim, batch_dims = axes
    return gather(source, index, dim, batch_dims=batch_dims)


def _embedding(
    input: Tensor, weight: Tensor, *of_gradient: Any, dim: int = 0, batch_dims: int = 0, **_: Any
) -> Tensor:
    return gather(weight, input, dim, batch_dims=batch_dims)


def gather_elements(
    source: Tensor,
    index: Tensor,
    dim: int,
    *,
    mode: str = "raise",
    fill_value: complex | None = None,
    **_: Any,
) -> Tensor:
    size = source.shape[dim] if source.dim() > 0 else 1
    dim = dim % max(source.dim(), 1)
    entries, none = resolve(index, size, mode)
    source, entries, none = _without_none(source, dim, entries, none, fill_value)
    result = source.gather(dim, entries)
    return result if none is None else result.masked_fill(none, _fill(source, fill_value))


# ---- Sums and other reductions ------------------------------------------------------------------


def _reduce(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None,
    batch_dims: int,
    mode: str,
    start: float,
    into: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """By `into(out, entries, rows)`; `out` begins as `start`, with a row more for those of none."""
    axes = index.dim() - batch_dims
    dim = _axis(dim, batch_dims, values.dim() - axes + 1)
    entries, none = resolve(index, dim_size, mode)
    if none is not None:
        entries = entries.masked_fill(none, dim_size)
    rows = as_rows(values, dim, batch_dims, axes)
    batch, outer, _, inner = rows.shape
    out = rows.new_full((batch, outer, dim_size + int(none is not None), inner), start)
    out = into(out, beside(entries, batch_dims, rows), rows)
    # Axis by axis: a reshape of all would ask which of the sizes are 1.
    out = _unflatten(out[:, :, :dim_size], 3, values.shape[dim + axes :])
    out = _unflatten(out, 1, values.shape[batch_dims:dim])
    return _unflatten(out, 0, values.shape[:batch_dims])


def _add(out: Tensor, entries: Tensor, rows: Tensor) -> Tensor:
    return out.scatter_add(2, entries, rows)


def scatter_sum(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    **_: Any,
) -> Tensor:
    wide = widened(values)
    return _reduce(wide, index, dim_size, dim, batch_dims, mode, 0, _add)


def _scatter_sum_by_plan(
    values: Tensor, index: Tensor, rows: Tensor, order: Tensor, *axes: int
) -> Tensor:
    dim_size, dim, batch_dims = axes
    return scatter_sum(values, index, dim_size, dim, batch_dims=batch_dims)


def _scatter_add(values: Tensor, *args: Any, **options: Any) -> Tensor:
    return scatter_sum(values, *args, **options).to(values.dtype)


def _scatter_add_by_plan(values: Tensor, *args: Any) -> Tensor:
    return _scatter_sum_by_plan(values, *args).to(values.dtype)


def _scatter_elements_add(
    values: Tensor, index: Tensor, size: Sequence[int], dim: int, *, mode: str = "raise", **_: Any
) -> Tensor:
    shape = list(size) or [1]
    dim, rows = dim % len(shape), shape[dim]
    entries, none = resolve(index, rows, mode)
    if none is not None:
        entries = entries.masked_fill(none, rows)
        shape[dim] = rows + 1
    wide = widened(values)
    wide = wide[tuple(slice(length) for length in index.shape)]
    if not size:
        entries, wide = entries.reshape(-1), wide.reshape(-1)
    sums = wide.new_zeros(shape).scatter_add(dim, entries, wide)
    return sums.narrow(dim, 0, rows).reshape(size).to(values.dtype)


def scatter_prod(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None,
    batch_dims: int,
    mode: str,
    *_: Any,
) -> Tensor:
    def multiply(out: Tensor, entries: Tensor, rows: Tensor) -> Tensor:
        return out.scatter_reduce(2, entries, rows, "prod")

    wide = widened(values)
    products = _reduce(wide, index, dim_size, dim, batch_dims, mode, 1, multiply)
    return products.to(values.dtype)


def _worst(dtype: torch.dtype, largest: bool) -> float:
    if dtype.is_floating_point:
        return -math.inf if largest else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if largest else limits.max


def scatter_best(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None,
    batch_dims: int,
    largest: bool,
    mode: str,
    *_: Any,
) -> Tensor:
    def compare(out: Tensor, entries: Tensor, rows: Tensor) -> Tensor:
        best = out.scatter_reduce(2, entries, rows, "amax" if largest else "amin")
        named = torch.zeros_like(out, dtype=torch.bool).scatter(2, entries, True)
        return best.masked_fill(~named, 0)

    worst = _worst(values.dtype, largest)
    return _reduce(values, index, dim_size, dim, batch_dims, mode, worst, compare)


def scatter_arg(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None,
    batch_dims: int,
    largest: bool,
    mode: str,
    *_: Any,
) -> Tensor:
    """Of the entries that have the best value, the first; their number for a row without any."""
    count = math.prod(index.shape[batch_dims:])

    def find(out: Tensor, entries: Tensor, rows: Tensor) -> Tensor:
        best = out.scatter_reduce(2, entries, rows, "amax" if largest else "amin")
        best = best.gather(2, entries)
        has_it = (rows == best) | ((rows != rows) & (best != best))
        places = torch.arange(count, device=rows.device).reshape(1, 1, count, 1)
        places = torch.where(has_it, places, count)
        first = torch.full_like(out, count, dtype=torch.int64)
        return first.scatter_reduce(2, entries, places, "amin")

    worst = _worst(values.dtype, largest)
    return _reduce(values, index, dim_size, dim, batch_dims, mode, worst, find)


def _scatter_var(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None,
    batch_dims: int,
    correction: float | None,
    deterministic: bool | None,
    mode: str,
    *_: Any,
) -> Tensor:
    """The variance or, without a correction, the mean."""
    dim = _axis(dim, batch_dims, values.dim() - index.dim() + batch_dims + 1)
    wide = widened(values)
    options: dict[str, Any] = {"batch_dims": batch_dims, "mode": mode}
    counts = scatter_sum(torch.ones_like(wide), index, dim_size, dim, **options)

    def mean(of: Tensor) -> Tensor:
        return scatter_sum(of, index, dim_size, dim, **options) / counts.clamp_min(1)

    def centred(given: Tensor) -> Tensor:
        return given - gather(mean(given), index, dim, fill_value=0, **options)

    if correction is None:
        return mean(wide)
    # The mean that is made of a sum may be off by more than values are.
    squares = centred(centred(wide)).square()
    sums = scatter_sum(squares, index, dim_size, dim, **options)
    return sums / (counts - correction).clamp_min(0)


DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    _ops.embedding.default: _embedding,
    _ops.gather.default: gather,
    _ops.gather.plan: _gather_by_plan,
    _ops.gather_elements.default: gather_elements,
    _ops.scatter_add.default: _scatter_add,
    _ops.scatter_add.plan: _scatter_add_by_plan,
    _ops.scatter_elements_add.default: _scatter_elements_add,
    _ops._scatter_arg.default: scatter_arg,
    _ops._scatter_best.default: scatter_best,
    _ops._scatter_prod.default: scatter_prod,
    _ops._scatter_sum.default: scatter_sum,
    _ops._scatter_sum.plan: _scatter_sum_by_plan,
    _ops._scatter_var.default: _scatter_var,
}
