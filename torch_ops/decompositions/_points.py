"""Points, masks and plans, in torch's own ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ops.decompositions._rows import as_rows, beside, gather, numbers_type, resolve

_ops = torch.ops.torch_ops


# ---- Points -------------------------------------------------------------------------------------


def _ravel(
    coordinates: Sequence[Tensor], sizes: Sequence[int], mode: str
) -> tuple[Tensor, Tensor | None]:
    """Numbers of places in an array of these sizes; and for mode="fill" which are none."""
    numbers, none = torch.zeros((), dtype=torch.int64, device=coordinates[0].device), None
    for index, size in zip(coordinates, sizes, strict=True):
        entries, outside = resolve(index, size, mode)
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
    return numbers.to(numbers_type(places))


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
    rows = gather(
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
    table = as_rows(
        permuted.flatten(batch_dims, batch_dims + len(dims) - 1), batch_dims, batch_dims, 1
    )
    rows = as_rows(rows, batch_dims, batch_dims, points)
    written = table.scatter(2, beside(numbers, batch_dims, rows), rows)
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
    return positions[:size].to(numbers_type(count))


def _masked_scatter(rows: Tensor, mask: Tensor) -> Tensor:
    numbers = torch.where(mask, mask.cumsum(0) - 1, rows.shape[0])
    return gather(rows, numbers, 0, mode="fill", fill_value=0)


def _gather_plan(
    index: Tensor, dim_size: int, *, dim: int | None = None, batch_dims: int = 0, wait: bool = True
) -> tuple[Tensor, Tensor]:
    batch = math.prod(index.shape[:batch_dims])
    count = index.numel()
    first = torch.arange(batch, device=index.device) * dim_size
    shape = [batch, math.prod(index.shape[batch_dims:])]
    rows = index.to(torch.int64).reshape(shape) + first.unsqueeze(1)
    # A sort by rows and places is a stable one by rows.
    keys = (rows.reshape(-1) * count + torch.arange(count, device=index.device)).sort().values
    numbers = numbers_type(torch.sym_max(batch * dim_size, count))
    divisor = torch.sym_max(count, 1)
    return keys.floor_divide(divisor).to(numbers), keys.remainder(divisor).to(numbers)


DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    _ops.gather_points.default: _gather_points,
    _ops.put_points.default: _put_points,
    _ops.ravel_multi_index.default: _ravel_multi_index,
    _ops.mask_positions.default: _mask_positions,
    _ops._masked_scatter.default: _masked_scatter,
    _ops.gather_plan.default: _gather_plan,
}
