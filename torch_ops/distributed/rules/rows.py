"""The rules of gather and scatter_add, each the other's transpose, and of what is made of them.

The source of a gather and the sums of a scatter_add have the same axes, and so have the output of
the one and the values of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed import _parts
from torch_ops.distributed._exchange import gather_rows, sum_rows
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

Way = tuple[Placement, Placement, Placement]


def _exchange_dim(axes: Axes, of_rows: Sequence[Placement], of_entries: Sequence[Placement]) -> int:
    """The dimension of the mesh over which rows and entries are both sharded, or -1.

    ``of_rows``: of a source or sums; ``of_entries``: of an index. There ranks exchange rows, if a
    table's first axis is indexed, and is sharded there alone.
    """
    if axes.dim > 0:
        return -1
    dims = [d for d, placement in enumerate(of_rows) if shard_axis(placement) == 0]
    if len(dims) != 1 or shard_axis(of_entries[dims[0]]) < 0:
        return -1
    return dims[0]


def _gather_way(
    axes: Axes,
    summable: bool,
    linear: bool,
    exchanges: int,
    d: int,
    source: Placement,
    index: Placement,
) -> Way:
    """Placements of source, index and output."""
    axis = shard_axis(source)
    if d == exchanges:
        return source, index, Shard(axes.index_in_values(shard_axis(index)))
    if axis == axes.dim and summable:
        return source, REPLICATE, Partial()
    if axis >= 0 and axis != axes.dim:
        of_index = source if axis < axes.batch_dims else REPLICATE
        return source, of_index, Shard(axes.in_values(axis))
    if is_sum(source) and linear:
        return source, REPLICATE, source
    axis = shard_axis(index)
    if axis >= 0:
        of_source = index if axis < axes.batch_dims else REPLICATE
        return of_source, index, Shard(axes.index_in_values(axis))
    return REPLICATE, REPLICATE, REPLICATE


@rule(_ops.gather.default)
def gather(
    source: DTensor,
    index: DTensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    fill_value: Number | None = None,
    name: str | None = None,
) -> DTensor:
    """See the table in docs/distributed.md."""
    mesh = mesh_of(name or "gather", source=source, index=index)
    options = {"batch_dims": batch_dims, "mode": mode, "fill_value": fill_value, "name": name}
    shape = meta_of(_ops.gather, source, index, dim, **options).shape
    axes = Axes.of_source(source.dim(), index, dim, batch_dims)
    exchanges = _exchange_dim(axes, source.placements, index.placements)
    way = partial(_gather_way, axes, _parts.can_sum(source.dtype), mode != "fill", exchanges)
    of_source, of_index, of_output = choose(mesh, [source, index], way)
    part, entries = place(source, of_source), place(index, of_index)
    with positions(index.shape, mesh, of_index):
        if Shard(axes.dim) not in of_source:
            output = _ops.gather(part, entries, dim, **options)
            return wrap(output, mesh, of_output, shape)
        size = source.shape[axes.dim]
        if exchanges >= 0 and mesh.get_coordinate() is not None:
            group = mesh.get_group(exchanges)
            output = gather_rows(part, entries, size, mode, fill_value, name, group)
            return wrap(output, mesh, of_output, shape)
        options = {"mode": mode, "name": name}
        entries = _parts.check_entries(_ops.gather, (size,), entries, 0, **options)
    first, count = part_of(size, mesh, of_source, axes.dim)
    own = _parts.entries_of_part(entries, size, first, count, mode)
    fill = {"mode": "fill", "fill_value": _parts.neutral(part.dtype)}
    output = _ops.gather(part, own, axes.dim, batch_dims=batch_dims, **fill)
    if mode == "fill" and is_first(mesh, of_source, axes.dim):  # filled in once
        dropped = axes.expand(_parts.dropped_entries(entries, size), output.dim())
        output = torch.where(dropped, _parts.fill_of(part, fill_value), output)
    return wrap(output, mesh, of_output, shape)


@rule(_ops.embedding.default)
def embedding(
    input: DTensor,
    weight: DTensor,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    dim: int = 0,
    batch_dims: int = 0,
    rows: DTensor | None = None,
    order: DTensor | None = None,
    name: str | None = None,
) -> DTensor:
    """A gather; its gradient has the options. A plan says nothing that a rank could use."""
    mesh_of("embedding", input=input, weight=weight)
    return gather(weight, input, dim, batch_dims=batch_dims, name=name or "embedding")


def _sum_way(
    axes: Axes,
    shards: Sequence[int],
    exchanges: int,
    d: int,
    values: Placement,
    index: Placement,
) -> Way:
    """Placements of values, index and sums. ``shards`` is empty or says what the sums' shall be."""
    wanted = shards[d] if shards else -1
    if d == exchanges:
        return Shard(axes.index_in_values(shard_axis(index))), index, Shard(wanted)
    if wanted == axes.dim:
        return REPLICATE, REPLICATE, Shard(wanted)
    axis = axes.in_values(wanted) if wanted >= 0 else shard_axis(values)
    if axis >= 0:
        if axis < axes.batch_dims:
            return Shard(axis), Shard(axis), Shard(axis)
        if axes.in_source(axis) != axes.dim:
            return Shard(axis), REPLICATE, Shard(axes.in_source(axis))
        return values, Shard(axes.values_in_index(axis)), Partial()
    if is_sum(values):
        return values, REPLICATE, values
    axis = shard_axis(index)
    if axis >= 0:
        with_values = Shard(axes.index_in_values(axis))
        return with_values, index, index if axis < axes.batch_dims else Partial()
    return REPLICATE, REPLICATE, REPLICATE


def _add(
    op: Callable[..., Tensor],
    values: DTensor,
    index: DTensor,
    dim_size: int,
    dim: int | None = None,
    batch_dims: int = 0,
    deterministic: bool | None = None,
    mode: str = "raise",
    shards: Sequence[int] = (),
    name: str | None = None,
) -> DTensor:
    """See the table in docs/distributed.md. A gradient has ``shards``: how its source was."""
    mesh = mesh_of(name or "scatter_add", values=values, index=index)
    options = {
        "batch_dims": batch_dims,
        "deterministic": deterministic,
        "mode": mode,
        "name": name,
    }
    shape = meta_of(op, values, index, dim_size, dim, **options).shape
    axes = Axes.of_source(len(shape), index, dim, batch_dims)
    of_rows = [Shard(axis) if axis >= 0 else REPLICATE for axis in shards]
    exchanges = _exchange_dim(axes, of_rows, index.placements)
    way = partial(_sum_way, axes, shards, exchanges)
    of_values, of_index, of_sums = choose(mesh, [values, index], way)
    rows, entries = place(values, of_values), place(index, of_index)
    if Shard(axes.dim) in of_sums:  # of a gather, whose entries were checked
        first, count = part_of(dim_size, mesh, of_sums, axes.dim)
        if exchanges >= 0 and mesh.get_coordinate() is not None:
            group = mesh.get_group(exchanges)
            sums = sum_rows(rows, entries, dim_size, count, mode, group)
            return wrap(sums, mesh, of_sums, shape)
        entries = _parts.entries_of_part(entries, dim_size, first, count, mode)
        options["mode"] = "fill"
        dim_size = count
    with positions(index.shape, mesh, of_index):
        sums = op(rows, entries, dim_size, dim, **options)
    return wrap(sums, mesh, of_sums, shape)


for _op in (_ops.scatter_add.default, _ops._scatter_sum.default):
    rule(_op)(partial(_add, _op))
rule(_ops._scatter_add_sharded.default)(partial(_add, _ops.scatter_add.default))


# ---- Reductions that are no sums, and calls by a plan: whole along the axis of the index ---------


def _whole_way(axes: Axes, d: int, values: Placement, index: Placement) -> Way:
    """As for sums, but no rank has a part of what goes to one row."""
    way = _sum_way(axes, (), -1, d, values, index)
    return way if shard_axis(way[2]) >= 0 else (REPLICATE, REPLICATE, REPLICATE)


def _reduce(
    op: Callable[..., Tensor],
    values: DTensor,
    index: DTensor,
    dim_size: int,
    dim: int | None,
    batch_dims: int,
    *options: bool | float | str | DTensor | None,
) -> DTensor:
    mesh = mesh_of("scatter", values=values, index=index)
    # Not the rows and the order of a plan: they are of the whole index, which says as much.
    options = tuple(None if isinstance(each, DTensor) else each for each in options)
    shape = meta_of(op, values, index, dim_size, dim, batch_dims, *options).shape
    axes = Axes.of_source(len(shape), index, dim, batch_dims)
    of_values, of_index, of_output = choose(mesh, [values, index], partial(_whole_way, axes))
    with positions(index.shape, mesh, of_index):
        output = op(
            place(values, of_values), place(index, of_index), dim_size, dim, batch_dims, *options
        )
    return wrap(output, mesh, of_output, shape)


for _op in (
    _ops._scatter_best.default,
    _ops._scatter_arg.default,
    _ops._scatter_prod.default,
    _ops._scatter_var.default,
):
    rule(_op)(partial(_reduce, _op))


@rule(_ops.gather_plan.default)
def gather_plan(
    index: DTensor, dim_size: int, *, dim: int | None = None, batch_dims: int = 0
) -> tuple[DTensor, DTensor]:
    """Each rank has all of a plan."""
    mesh = mesh_of("gather_plan", index=index)
    whole = (REPLICATE,) * mesh.ndim
    plan = _ops.gather_plan(place(index, whole), dim_size, dim=dim, batch_dims=batch_dims)
    rows, order = (wrap(part, mesh, whole, (index.numel(),)) for part in plan)
    return rows, order


def _by_plan(
    op: Callable[..., Tensor],
    way: Callable[..., Way],
    name: str,
    data: DTensor,
    index: DTensor,
    rows: DTensor,
    order: DTensor,
    dim_size: int,
    dim: int,
    batch_dims: int,
) -> DTensor:
    plan = {"the plan's index": index, "the plan's rows": rows, "the plan's order": order}
    mesh = mesh_of("gather" if name == "source" else "scatter_add", **{name: data, **plan})
    sizes = (dim_size, dim, batch_dims)
    shape = meta_of(op, data, index, rows, order, *sizes).shape
    source_rank = data.dim() if name == "source" else len(shape)
    axes = Axes.of_source(source_rank, index, dim, batch_dims)

    def whole_index(d: int, of_data: Placement) -> tuple[Placement, Placement]:
        of_data, of_index, of_output = way(axes, d, of_data, REPLICATE)
        if of_index == REPLICATE:
            return of_data, of_output
        return REPLICATE, REPLICATE

    of_data, of_output = choose(mesh, [data], whole_index)
    whole = (REPLICATE,) * mesh.ndim
    parts = (place(part, whole) for part in plan.values())
    return wrap(op(place(data, of_data), *parts, *sizes), mesh, of_output, shape)


def _gather_way_by_plan(axes: Axes, *of: Any) -> Way:
    return _gather_way(axes, False, True, -1, *of)


def _sum_way_by_plan(axes: Axes, *of: Any) -> Way:
    return _sum_way(axes, (), -1, *of)


for _op, _way, _name in (
    (_ops.gather.plan, _gather_way_by_plan, "source"),
    (_ops.scatter_add.plan, _sum_way_by_plan, "values"),
    (_ops._scatter_sum.plan, _sum_way_by_plan, "values"),
):
    rule(_op)(partial(_by_plan, _op, _way, _name))
