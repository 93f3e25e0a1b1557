"""The rules of gather_elements and scatter_elements_add, each the other's transpose.

All tensors of a call have the same axes. Where they are as long as each other, an axis other than
``dim`` may be sharded in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed import _parts
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

Way = tuple[Placement, Placement, Placement]


def _common_axes(dim: int, *shapes: Sequence[int]) -> set[int]:
    """The axes other than ``dim`` that are of one length."""
    return {
        axis
        for axis, sizes in enumerate(zip(*shapes, strict=True))
        if axis != dim and len(set(sizes)) == 1
    }


def _gather_way(
    dim: int,
    common: set[int],
    summable: bool,
    linear: bool,
    _: int,
    source: Placement,
    index: Placement,
) -> Way:
    """Placements of source, index and output."""
    axis = shard_axis(source)
    if axis == dim and summable:
        return source, REPLICATE, Partial()
    if axis in common:
        return source, source, source
    if is_sum(source) and linear:
        return source, REPLICATE, source
    axis = shard_axis(index)
    if axis == dim:
        return REPLICATE, index, index
    if axis in common:
        return index, index, index
    return REPLICATE, REPLICATE, REPLICATE


@rule(_ops.gather_elements.default)
def gather_elements(
    source: DTensor,
    index: DTensor,
    dim: int,
    *,
    mode: str = "raise",
    fill_value: Number | None = None,
    name: str | None = None,
) -> DTensor:
    """See the table in docs/distributed.md."""
    mesh = mesh_of(name or "gather_elements", source=source, index=index)
    options = {"mode": mode, "fill_value": fill_value, "name": name}
    shape = meta_of(_ops.gather_elements, source, index, dim, **options).shape
    dim %= max(source.dim(), 1)
    way = partial(
        _gather_way,
        dim,
        _common_axes(dim, source.shape, index.shape),
        _parts.can_sum(source.dtype),
        mode != "fill",
    )
    of_source, of_index, of_output = choose(mesh, [source, index], way)
    part, entries = place(source, of_source), place(index, of_index)
    with positions(index.shape, mesh, of_index):
        if Shard(dim) not in of_source:
            output = _ops.gather_elements(part, entries, dim, **options)
            return wrap(output, mesh, of_output, shape)
        size = source.shape[dim]
        sizes = [*entries.shape[:dim], size, *entries.shape[dim + 1 :]]
        options = {"mode": mode, "name": name}
        entries = _parts.check_entries(_ops.gather_elements, sizes, entries, dim, **options)
    first, count = part_of(size, mesh, of_source, dim)
    own = _parts.entries_of_part(entries, size, first, count, mode)
    neutral = _parts.neutral(part.dtype)
    output = _ops.gather_elements(part, own, dim, mode="fill", fill_value=neutral)
    if mode == "fill" and is_first(mesh, of_source, dim):  # filled in once
        dropped = _parts.dropped_entries(entries, size)
        output = torch.where(dropped, _parts.fill_of(part, fill_value), output)
    return wrap(output, mesh, of_output, shape)


def _sum_way(
    dim: int,
    common: set[int],
    whole: bool,
    shards: Sequence[int],
    d: int,
    values: Placement,
    index: Placement,
) -> Way:
    """Placements of values, index and sums. ``whole``: at ``dim`` index and values are as long."""
    wanted = shards[d] if shards else -1
    if wanted == dim:
        return REPLICATE, REPLICATE, Shard(dim)
    for axis in (wanted, shard_axis(values), -1 if is_sum(values) else shard_axis(index)):
        if axis in common:
            return Shard(axis), Shard(axis), Shard(axis)
        if axis == dim and whole:
            return Shard(axis), Shard(axis), Partial()
    if is_sum(values):
        return values, REPLICATE, values
    return REPLICATE, REPLICATE, REPLICATE


@rule(_ops.scatter_elements_add.default, _ops._scatter_elements_add_sharded.default)
def scatter_elements_add(
    values: DTensor,
    index: DTensor,
    size: Sequence[int],
    dim: int,
    mode: str = "raise",
    shards: Sequence[int] = (),
    deterministic: bool | None = None,
) -> DTensor:
    """See the table in docs/distributed.md. A gradient has ``shards``: how its source was."""
    mesh = mesh_of("scatter_elements_add", values=values, index=index)
    options = {"deterministic": deterministic, "mode": mode}
    shape = meta_of(_ops.scatter_elements_add, values, index, size, dim, **options).shape
    dim %= max(index.dim(), 1)
    common = _common_axes(dim, values.shape, index.shape, shape)
    whole = index.dim() > 0 and values.shape[dim] == index.shape[dim]
    way = partial(_sum_way, dim, common, whole, shards)
    of_values, of_index, of_sums = choose(mesh, [values, index], way)
    elements, entries = place(values, of_values), place(index, of_index)
    sizes = [part_of(length, mesh, of_sums, axis) for axis, length in enumerate(shape)]
    if Shard(dim) in of_sums:  # of a gather, whose entries were checked
        entries = _parts.entries_of_part(entries, shape[dim], *sizes[dim], mode)
        options["mode"] = "fill"
    with positions(index.shape, mesh, of_index):
        counts = [count for _, count in sizes]
        sums = _ops.scatter_elements_add(elements, entries, counts, dim, **options)
    return wrap(sums, mesh, of_sums, shape)
