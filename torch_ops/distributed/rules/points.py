"""The rules of gather_points, of which gather_nd and index are made, and of ravel_multi_index.

Index arrays are broadcast to the points. These begin with the batch axes; their other axes stand in
the output where the indexed axes were, if those are side by side, else after the batch axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed import _parts
from torch_ops.distributed.rules._axes import Axes
from torch_ops.distributed.rules._frame import (
    REPLICATE,
    choose,
    is_first,
    is_sum,
    mesh_of,
    meta_of,
    part_of,
    place,
    positions,
    rule,
    shard_axis,
    wrap,
)
from torch_ops.ops._arguments import Number

_ops = torch.ops.torch_ops

Placements = tuple[Placement, ...]


def _own_axis(points: Sequence[int], array: Tensor, axis: int) -> int:
    """The array's axis that is an axis of the points; -1 where it is broadcast."""
    own = axis - len(points) + array.dim()
    return own if own >= 0 and array.shape[own] == points[axis] else -1


def _sharded_axis(points: Sequence[int], arrays: Sequence[Tensor], placements: Placements) -> int:
    """The axis of the points over which an array is sharded, or -1."""
    for array, placement in zip(arrays, placements, strict=True):
        own = shard_axis(placement)
        axis = own + len(points) - array.dim()
        if own >= 0 and _own_axis(points, array, axis) == own:
            return axis
    return -1


def _placed_at(points: Sequence[int], arrays: Sequence[Tensor], axis: int) -> Placements:
    """Placements of arrays that make the points sharded over an axis."""
    own = (_own_axis(points, array, axis) for array in arrays)
    return tuple(Shard(each) if each >= 0 else REPLICATE for each in own)


def _gather_way(
    axes: Axes,
    indexed: Sequence[int],
    points: Sequence[int],
    arrays: Sequence[Tensor],
    summable: bool,
    linear: bool,
    _: int,
    source: Placement,
    *of_arrays: Placement,
) -> Placements:
    """Placements of the source, the index arrays and the output."""
    whole = (REPLICATE,) * len(arrays)
    axis = shard_axis(source)
    if axis in indexed and summable:
        return source, *whole, Partial()
    if 0 <= axis < axes.batch_dims:
        return source, *_placed_at(points, arrays, axis), source
    if axis >= 0 and axis not in indexed:
        joined = sum(dim < axis for dim in indexed)
        behind = axis >= axes.dim
        return source, *whole, Shard(axis - joined + axes.picked if behind else axis)
    if is_sum(source) and linear:
        return source, *whole, source
    axis = _sharded_axis(points, arrays, of_arrays)
    if axis >= 0:
        of_source = Shard(axis) if axis < axes.batch_dims else REPLICATE
        output = Shard(axes.index_in_values(axis))
        return of_source, *_placed_at(points, arrays, axis), output
    return REPLICATE, *whole, REPLICATE


@rule(_ops.gather_points.default)
def gather_points(
    source: DTensor,
    coordinates: Sequence[DTensor],
    dims: Sequence[int],
    *,
    batch_dims: int = 0,
    front: bool = False,
    mode: str = "raise",
    fill_value: Number | None = None,
    axes: Sequence[int] | None = None,
    name: str | None = None,
) -> DTensor:
    """See the table in docs/distributed.md."""
    mesh = mesh_of(name or "gather_nd", source=source, **_named(coordinates))
    how = {"batch_dims": batch_dims, "front": front, "axes": axes, "name": name}
    fill = {"mode": mode, "fill_value": fill_value}
    shape = meta_of(_ops.gather_points, source, coordinates, dims, **how, **fill).shape
    points = torch.broadcast_shapes(*(array.shape for array in coordinates))
    points = (*source.shape[:batch_dims], *points[batch_dims:])
    side_by_side = not front and dims[-1] - dims[0] + 1 == len(dims)
    of_call = Axes(dims[0] if side_by_side else batch_dims, batch_dims, len(points) - batch_dims)
    summable = _parts.can_sum(source.dtype)
    way = partial(_gather_way, of_call, dims, points, coordinates, summable, mode != "fill")
    of_source, *of_arrays, of_output = choose(mesh, [source, *coordinates], way)
    part = place(source, of_source)
    arrays = [place(array, of) for array, of in zip(coordinates, of_arrays, strict=True)]
    shared = [dim for dim in dims if Shard(dim) in of_source]
    of_points = _of_points(mesh.ndim, points, coordinates, of_arrays)
    with positions(points, mesh, of_points):
        if not shared:
            output = _ops.gather_points(part, arrays, dims, **how, **fill)
            return wrap(output, mesh, of_output, shape)
        sizes = [
            source.shape[axis] if axis in dims else size if axis < batch_dims else 1
            for axis, size in enumerate(part.shape)
        ]
        arrays = _parts.check_entries(_ops.gather_points, sizes, arrays, dims, mode=mode, **how)
    own = []
    for array, dim in zip(arrays, dims, strict=True):
        first, count = part_of(source.shape[dim], mesh, of_source, dim)
        own.append(_parts.entries_of_part(array, source.shape[dim], first, count, mode))
    neutral = _parts.neutral(part.dtype)
    output = _ops.gather_points(part, own, dims, **how, mode="fill", fill_value=neutral)
    if mode == "fill" and all(is_first(mesh, of_source, dim) for dim in shared):  # once
        dropped = reduce(
            torch.logical_or,
            (
                _parts.dropped_entries(array, source.shape[dim])
                for array, dim in zip(arrays, dims, strict=True)
            ),
        )
        dropped = of_call.expand(dropped, output.dim())
        output = torch.where(dropped, _parts.fill_of(part, fill_value), output)
    return wrap(output, mesh, of_output, shape)


@rule(_ops.ravel_multi_index.default)
def ravel_multi_index(
    coordinates: Sequence[DTensor],
    sizes: Sequence[int],
    *,
    mode: str = "raise",
    axes: Sequence[int] | None = None,
    name: str | None = None,
) -> DTensor:
    """Each rank numbers its points."""
    mesh = mesh_of(name or "ravel_multi_index", **_named(coordinates))
    options = {"mode": mode, "axes": axes, "name": name}
    points = meta_of(_ops.ravel_multi_index, coordinates, sizes, **options).shape

    def way(_: int, *of_arrays: Placement) -> Placements:
        axis = _sharded_axis(points, coordinates, of_arrays)
        if axis < 0:
            return (REPLICATE,) * (len(coordinates) + 1)
        return *_placed_at(points, coordinates, axis), Shard(axis)

    *of_arrays, of_output = choose(mesh, coordinates, way)
    arrays = [place(array, of) for array, of in zip(coordinates, of_arrays, strict=True)]
    with positions(points, mesh, of_output):
        numbers = _ops.ravel_multi_index(arrays, sizes, **options)
    return wrap(numbers, mesh, of_output, points)


def _named(coordinates: Sequence[DTensor]) -> dict[str, DTensor]:
    return {f"index array {j}": array for j, array in enumerate(coordinates)}


def _of_points(
    dims: int,
    points: Sequence[int],
    arrays: Sequence[Tensor],
    of_arrays: Sequence[Placements],
) -> list[Placement]:
    """How the points are placed, for arrays that are placed so."""
    axes = (_sharded_axis(points, arrays, tuple(of[d] for of in of_arrays)) for d in range(dims))
    return [Shard(axis) if axis >= 0 else REPLICATE for axis in axes]
