"""The ops of a forward pass in torch's own, for an exported program that runs without this package.

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
_HALVES = (torch.float16, torch.bfloat16)


# ---- Entries ------------------------------------------------------------------------------------


def _resolve(index: Tensor, size: int, mode: str) -> tuple[Tensor, Tensor | None]:
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


def _numbers(count: int) -> torch.dtype:
    return torch.int32 if count < 2**31 else torch.int64


def _axis(dim: int | None, batch_dims: int, rank: int) -> int:
    return batch_dims if dim is None else dim % rank


def _as_rows(tensor: Tensor, dim: int, batch_dims: int, axes: int) -> Tensor:
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


def _beside(entries: Tensor, batch_dims: int, rows: Tensor) -> Tensor:
    """Those of an index as a tensor of four axes, one for each element of rows' outer and inner."""
    batch, outer, _, inner = rows.shape
    count = math.prod(entries.shape[batch_dims:])
    return entries.reshape(batch, 1, count, 1).expand(batch, outer, count, inner)


# ---- Gathers ------------------------------------------------------------------------------------


def _gather(
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
    entries, none = _resolve(index, source.shape[dim], mode)
    source, entries, none = _without_none(source, dim, entries, none, fill_value)
    if batch_dims == 0:
        result = source.index_select(dim, entries.reshape(-1)).reshape(shape)
    else:
        rows = _as_rows(source, dim, batch_dims, 1)
        result = rows.gather(2, _beside(entries, batch_dims, rows)).reshape(shape)
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
    return _gather(source, index, dim, batch_dims=batch_dims)


def _embedding(
    input: Tensor, weight: Tensor, *of_gradient: Any, dim: int = 0, batch_dims: int = 0, **_: Any
) -> Tensor:
    return _gather(weight, input, dim, batch_dims=batch_dims)


def _gather_elements(
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
    entries, none = _resolve(index, size, mode)
    source, entries, none = _without_none(source, dim, entries, none, fill_value)
    result = source.gather(dim, entries)
    return result if none is None else result.masked_fill(none, _fill(source, fill_value))


def _gather_csr(
    values: Tensor,
    offsets: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    output_size: int,
) -> Tensor:
    ids = _segment_ids(offsets, output_size)
    return _gather(values, ids, dim, batch_dims=batch_dims, mode="fill", fill_value=0)


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
    entries, none = _resolve(index, dim_size, mode)
    if none is not None:
        entries = entries.masked_fill(none, dim_size)
    rows = _as_rows(values, dim, batch_dims, axes)
    batch, outer, _, inner = rows.shape
    out = rows.new_full((batch, outer, dim_size + int(none is not None), inner), start)
    out = into(out, _beside(entries, batch_dims, rows), rows)
    # Axis by axis: a reshape of all would ask which of the sizes are 1.
    out = _unflatten(out[:, :, :dim_size], 3, values.shape[dim + axes :])
    out = _unflatten(out, 1, values.shape[batch_dims:dim])
    return _unflatten(out, 0, values.shape[:batch_dims])


def _add(out: Tensor, entries: Tensor, rows: Tensor) -> Tensor:
    return out.scatter_add(2, entries, rows)


def _scatter_sum(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    **_: Any,
) -> Tensor:
    wide = values.float() if values.dtype in _HALVES else values
    return _reduce(wide, index, dim_size, dim, batch_dims, mode, 0, _add)


def _scatter_sum_by_plan(
    values: Tensor, index: Tensor, rows: Tensor, order: Tensor, *axes: int
) -> Tensor:
    dim_size, dim, batch_dims = axes
    return _scatter_sum(values, index, dim_size, dim, batch_dims=batch_dims)


def _scatter_add(values: Tensor, *args: Any, **options: Any) -> Tensor:
    return _scatter_sum(values, *args, **options).to(values.dtype)


def _scatter_add_by_plan(values: Tensor, *args: Any) -> Tensor:
    return _scatter_sum_by_plan(values, *args).to(values.dtype)


def _scatter_elements_add(
    values: Tensor, index: Tensor, size: Sequence[int], dim: int, *, mode: str = "raise", **_: Any
) -> Tensor:
    shape = list(size) or [1]
    dim, rows = dim % len(shape), shape[dim]
    entries, none = _resolve(index, rows, mode)
    if none is not None:
        entries = entries.masked_fill(none, rows)
        shape[dim] = rows + 1
    wide = values.float() if values.dtype in _HALVES else values
    wide = wide[tuple(slice(length) for length in index.shape)]
    if not size:
        entries, wide = entries.reshape(-1), wide.reshape(-1)
    sums = wide.new_zeros(shape).scatter_add(dim, entries, wide)
    return sums.narrow(dim, 0, rows).reshape(size).to(values.dtype)


def _scatter_prod(
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

    wide = values.float() if values.dtype in _HALVES else values
    products = _reduce(wide, index, dim_size, dim, batch_dims, mode, 1, multiply)
    return products.to(values.dtype)


def _worst(dtype: torch.dtype, largest: bool) -> float:
    if dtype.is_floating_point:
        return -math.inf if largest else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if largest else limits.max


def _scatter_best(
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


def _scatter_arg(
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
    correction: float,
    deterministic: bool | None,
    mode: str,
    *_: Any,
) -> Tensor:
    dim = _axis(dim, batch_dims, values.dim() - index.dim() + batch_dims + 1)
    wide = values.float() if values.dtype in _HALVES else values
    options: dict[str, Any] = {"batch_dims": batch_dims, "mode": mode}
    counts = _scatter_sum(torch.ones_like(wide), index, dim_size, dim, **options)
    means = _scatter_sum(wide, index, dim_size, dim, **options) / counts.clamp_min(1)
    squares = (_gather(means, index, dim, fill_value=0, **options) - wide).square()
    sums = _scatter_sum(squares, index, dim_size, dim, **options)
    return sums / (counts - correction).clamp_min(0)


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
    return ids.to(_numbers(segments))


def _sorted_offsets(
    index: Tensor, dim_size: int, batch_dims: int, name: str | None = None
) -> Tensor:
    shape = [*index.shape[:batch_dims], math.prod(index.shape[batch_dims:])]
    offsets = _begun(index.reshape(shape).to(torch.int64) + 1, dim_size + 1)
    return offsets.to(_numbers(shape[-1]))


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


def _softmax(
    values: Tensor,
    what: int,
    index: Tensor,
    dim_size: int,
    dim: int,
    batch_dims: int,
    rows: Tensor | None,
    order: Tensor | None,
    offsets: Tensor | None,
) -> Tensor:
    """0: softmax, 1: its logarithm, 2: logsumexp. An entry of no segment has the row after all."""
    mode = "raise" if offsets is None else "fill"

    def back(of_rows: Tensor, fill_value: float = 0) -> Tensor:
        return _gather(of_rows, index, dim, batch_dims=batch_dims, mode=mode, fill_value=fill_value)

    wide = values if values.dtype == torch.float64 else values.float()
    largest = _scatter_best(wide, index, dim_size, dim, batch_dims, True, mode)
    if what != 2:
        largest = largest.masked_fill(largest == math.inf, math.nan)
    largest = largest.masked_fill(largest.abs() == math.inf, 0)
    shifted = wide - back(largest)
    sums = _scatter_sum(shifted.exp(), index, dim_size, dim, batch_dims=batch_dims, mode=mode)
    if what == 2:
        result = sums.log() + largest
    elif what == 1:
        result = shifted - back(sums.log())
    else:
        result = shifted.exp() / back(sums, 1)
    if what != 2 and offsets is not None:
        none = back(torch.ones_like(sums)) == 0
        result = result.masked_fill(none, 0)
    return result.to(values.dtype)


def _softmax_back(
    grad: Tensor,
    output: Tensor,
    values: Tensor,
    what: int,
    index: Tensor,
    dim_size: int,
    dim: int,
    batch_dims: int,
    rows: Tensor | None,
    order: Tensor | None,
    offsets: Tensor | None,
) -> Tensor:
    mode = "raise" if offsets is None else "fill"
    options: dict[str, Any] = {"batch_dims": batch_dims, "mode": mode}

    def back(of_rows: Tensor) -> Tensor:
        return _gather(of_rows, index, dim, fill_value=0, **options)

    wide = torch.float64 if values.dtype == torch.float64 else torch.float32
    if what == 2:
        parts = (index, dim_size, dim, batch_dims, rows, order, offsets)
        output = _softmax(values.to(wide), what, *parts)
        result = back(grad.to(wide)) * (values.to(wide) - back(output)).exp()
    else:
        grad, output = grad.to(wide), output.to(wide)
        terms = grad * output if what == 0 else grad
        sums = back(_scatter_sum(terms, index, dim_size, dim, **options))
        result = output * (grad - sums) if what == 0 else grad - output.exp() * sums
    if offsets is not None:
        named = back(_scatter_sum(torch.ones_like(result), index, dim_size, dim, **options))
        result = result.masked_fill(named == 0, 0)
    return result.to(values.dtype)


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
    rows = _gather(weight, input, 0)
    if factors is not None:
        wide = torch.float32 if weight.dtype in _HALVES else weight.dtype
        rows = rows * factors.unsqueeze(-1).to(wide)
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
    rows = _gather(weight, input, 0)
    entries = _scatter_arg(rows, bags, count, batch_dims, batch_dims, True, "fill")
    rows_named = _gather(
        input.to(torch.int64),
        entries,
        batch_dims,
        batch_dims=batch_dims,
        mode="fill",
        fill_value=weight.shape[0],
    ).reshape(-1, weight.shape[1])
    return _gather_elements(weight, rows_named, 0, mode="fill", fill_value=0), rows_named


# ---- Points -------------------------------------------------------------------------------------


def _ravel(
    coordinates: Sequence[Tensor], sizes: Sequence[int], mode: str
) -> tuple[Tensor, Tensor | None]:
    """Numbers of places in an array of these sizes; and for mode="fill" which are none."""
    numbers, none = torch.zeros((), dtype=torch.int64, device=coordinates[0].device), None
    for index, size in zip(coordinates, sizes, strict=True):
        entries, outside = _resolve(index, size, mode)
        numbers = numbers * size + entries
        if outside is not None:
            none = outside if none is None else none | outside
    return numbers, none


def _ravel_multi_index(
    coordinates: Sequence[Tensor], sizes: Sequence[int], *, mode: str = "raise", **_: Any
) -> Tensor:
    numbers, none = _ravel(coordinates, sizes, mode)
    places = math.prod(sizes)
    if none is not None:
        numbers = numbers.masked_fill(none, places)
    return numbers.to(_numbers(places))


def _points_in_front(
    source: Tensor, dims: Sequence[int], batch_dims: int, front: bool
) -> tuple[list[int], int]:
    """The source's axes as batch, indexed, others; and how many others come before the points."""
    others = [axis for axis in range(batch_dims, source.dim()) if axis not in dims]
    side_by_side = not front and dims[-1] - dims[0] + 1 == len(dims)
    outer = dims[0] - batch_dims if side_by_side else 0
    return [*range(batch_dims), *dims, *others], outer


def _gather_points(
    source: Tensor,
    coordinates: Sequence[Tensor],
    dims: Sequence[int],
    *,
    batch_dims: int = 0,
    front: bool = False,
    mode: str = "raise",
    fill_value: complex | None = None,
    **_: Any,
) -> Tensor:
    order, outer = _points_in_front(source, dims, batch_dims, front)
    numbers, none = _ravel(coordinates, [source.shape[axis] for axis in dims], mode)
    places = math.prod(source.shape[axis] for axis in dims)
    if none is not None:
        numbers = numbers.masked_fill(none, places)
    table = source.permute(order).flatten(batch_dims, batch_dims + len(dims) - 1)
    rows = _gather(
        table,
        numbers,
        batch_dims,
        batch_dims=batch_dims,
        mode="unchecked" if none is None else "fill",
        fill_value=fill_value,
    )
    points = numbers.dim() - batch_dims
    after = range(batch_dims + points, batch_dims + points + outer)
    return rows.movedim(list(after), list(range(batch_dims, batch_dims + outer)))


def _put_points(
    source: Tensor,
    coordinates: Sequence[Tensor],
    dims: Sequence[int],
    values: Tensor,
    *,
    batch_dims: int = 0,
    front: bool = False,
    **_: Any,
) -> Tensor:
    """Of places that several points name, the last is written if ``scatter`` writes in order."""
    order, outer = _points_in_front(source, dims, batch_dims, front)
    numbers = _ravel(coordinates, [source.shape[axis] for axis in dims], "from_end")[0]
    points = numbers.dim() - batch_dims
    before = range(batch_dims, batch_dims + outer)
    rows = values.movedim(
        list(before), list(range(batch_dims + points, batch_dims + points + outer))
    )
    permuted = source.permute(order)
    table = _as_rows(
        permuted.flatten(batch_dims, batch_dims + len(dims) - 1), batch_dims, batch_dims, 1
    )
    rows = _as_rows(rows, batch_dims, batch_dims, points)
    written = table.scatter(2, _beside(numbers, batch_dims, rows), rows)
    back = [order.index(axis) for axis in range(source.dim())]
    return written.reshape(permuted.shape).permute(back)


# ---- Masks and plans ----------------------------------------------------------------------------


def _mask_positions(mask: Tensor, size: int) -> Tensor:
    flags = mask.reshape(-1)
    count = flags.shape[0]
    rank = flags.cumsum(0) - 1
    rank = torch.where(flags & (rank < size), rank, size)
    places = torch.arange(count, device=mask.device)
    positions = places.new_full((size + 1,), count).scatter(0, rank, places)
    return positions[:size].to(_numbers(count))


def _masked_scatter(rows: Tensor, mask: Tensor) -> Tensor:
    numbers = torch.where(mask, mask.cumsum(0) - 1, rows.shape[0])
    return _gather(rows, numbers, 0, mode="fill", fill_value=0)


def _gather_plan(
    index: Tensor, dim_size: int, *, dim: int | None = None, batch_dims: int = 0, wait: bool = True
) -> tuple[Tensor, Tensor]:
    batch = math.prod(index.shape[:batch_dims])
    count = index.numel()
    first = torch.arange(batch, device=index.device) * dim_size
    shape = [batch, math.prod(index.shape[batch_dims:])]
    rows = index.to(torch.int64).reshape(shape) + first.unsqueeze(1)
    # A sort by rows and places is a stable one by rows.
    keys = rows.reshape(-1) * count + torch.arange(count, device=index.device)
    keys = keys.sort().values
    numbers = _numbers(torch.sym_max(batch * dim_size, count))
    return keys.floor_divide(torch.sym_max(count, 1)).to(numbers), keys.remainder(
        torch.sym_max(count, 1)
    ).to(numbers)


DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    _ops._embedding_bag.default: _embedding_bag,
    _ops._embedding_bag_largest.default: _embedding_bag_largest,
    _ops._masked_scatter.default: _masked_scatter,
    _ops._scatter_arg.default: _scatter_arg,
    _ops._scatter_best.default: _scatter_best,
    _ops._scatter_prod.default: _scatter_prod,
    _ops._scatter_sum.default: _scatter_sum,
    _ops._scatter_sum.plan: _scatter_sum_by_plan,
    _ops._scatter_var.default: _scatter_var,
    _ops._segment_arg.default: _by_segments(_scatter_arg),
    _ops._segment_best.default: _by_segments(_scatter_best),
    _ops._segment_ids.default: _segment_ids,
    _ops._segment_prod.default: _by_segments(_scatter_prod),
    _ops._segment_sum.default: _by_segments(_scatter_mean),
    _ops._softmax.default: _softmax,
    _ops._softmax_back.default: _softmax_back,
    _ops._sorted_offsets.default: _sorted_offsets,
    _ops.embedding.default: _embedding,
    _ops.gather.default: _gather,
    _ops.gather.plan: _gather_by_plan,
    _ops.gather_csr.default: _gather_csr,
    _ops.gather_elements.default: _gather_elements,
    _ops.gather_plan.default: _gather_plan,
    _ops.gather_points.default: _gather_points,
    _ops.mask_positions.default: _mask_positions,
    _ops.put_points.default: _put_points,
    _ops.ravel_multi_index.default: _ravel_multi_index,
    _ops.scatter_add.default: _scatter_add,
    _ops.scatter_add.plan: _scatter_add_by_plan,
    _ops.scatter_elements_add.default: _scatter_elements_add,
}
