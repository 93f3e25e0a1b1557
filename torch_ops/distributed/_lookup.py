"""Rows of a table that a group of ranks shares, for an index of each rank's own: the derivative.

A route says where rows come from. It is the name of a PeerTable, whose memory all ranks read. Or it
is empty, and ranks exchange rows; or the name of Hosts, and they do so on each, then between them.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed import _exchange, _parts
from torch_ops.distributed.peers._tables import PeerTable, has_gradient, sparse_rows
from torch_ops.distributed.rules._frame import part_of, place, shard_axis, wrap, wrap_as
from torch_ops.ops._arguments import Number

Placements = tuple[Placement, ...]
_ops = torch.ops.torch_ops

# By name, so that compiled code can say which it means.
peer_tables: weakref.WeakValueDictionary[str, PeerTable] = weakref.WeakValueDictionary()


def dim_of_rows(placements: Placements) -> int:
    """The dimension of the mesh over which rows alone are shared out; -1 if there is none."""
    dims = [d for d, placement in enumerate(placements) if shard_axis(placement) == 0]
    others = [placement for d, placement in enumerate(placements) if d not in dims]
    alone = len(dims) == 1 and all(placement.is_replicate() for placement in others)
    return dims[0] if alone else -1


def is_direct(route: str) -> bool:
    return route.startswith("table ")


# ---- As registered ops, for graphs ---------------------------------------------------------------


@torch.library.custom_op(
    "torch_ops::_peer_gather",
    mutates_args=(),
    schema="(Tensor part, Tensor index, str mode, Scalar? fill_value, bool with_gradient, "
    "str route, str? name) -> Tensor",
)
def _peer_gather(
    part: Tensor,
    index: Tensor,
    mode: str,
    fill_value: Number | None,
    with_gradient: bool,
    route: str,
    name: str | None,
) -> Tensor:
    return peer_tables[route].gather(index, mode, fill_value, name, with_gradient)


@torch.library.custom_op(
    "torch_ops::_peer_sum",
    mutates_args=(),
    schema="(Tensor values, Tensor index, SymInt count, str mode, str route) -> Tensor",
)
def _peer_sum(values: Tensor, index: Tensor, count: int, mode: str, route: str) -> Tensor:
    return peer_tables[route].sums(values, index, mode)


@_peer_gather.register_fake
def _(part: Tensor, index: Tensor, *_: Any) -> Tensor:
    return part.new_empty((*index.shape, *part.shape[1:]))


@_peer_sum.register_fake
def _(values: Tensor, index: Tensor, count: int, *_: Any) -> Tensor:
    return values.new_empty((count, *values.shape[index.dim() :]))


# ---- The derivative ------------------------------------------------------------------------------


class Rows(torch.autograd.Function):
    """The rows of a table that this rank asks for."""

    @staticmethod
    def forward(
        ctx: Any,
        table: DTensor,
        index: Tensor,
        placements: Placements,
        mode: str,
        fill_value: Number | None,
        route: str,
        asked: _exchange.Asked | None,
        with_gradient: bool,
        name: str | None,
    ) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size, ctx.mesh, ctx.placements = table.shape[0], table.device_mesh, placements
        ctx.mode, ctx.route, ctx.exchanged = mode, route, None
        group = ctx.mesh.get_group(dim_of_rows(placements))
        part = place(table, placements)
        if is_direct(route):
            gathered: Tensor = _peer_gather(
                part, index, mode, fill_value, with_gradient, route, name
            )
            return gathered
        if not _parts.is_eager(index):
            return _exchange.gather_rows(
                part, index, ctx.size, mode, fill_value, name, group, route
            )
        if asked is None:
            asked = _exchange.ask(name, index, ctx.size, mode, True, group, route)
        ctx.exchanged = _exchange.settle(asked)
        return _exchange.gather_by(ctx.exchanged, part, mode, fill_value)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        how = (ctx.size, ctx.mesh, ctx.placements, ctx.mode, ctx.route, ctx.exchanged)
        grad = Sums.apply(grad_output, index, *how)
        return grad, None, None, None, None, None, None, None, None


class Sums(torch.autograd.Function):
    """Its transpose: what all ranks add to the rows of a table."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        index: Tensor,
        size: int,
        mesh: DeviceMesh,
        placements: Placements,
        mode: str,
        route: str,
        exchanged: _exchange.Route | None,
    ) -> DTensor:
        ctx.save_for_backward(index)
        ctx.placements, ctx.mode, ctx.route = placements, mode, route
        dim = dim_of_rows(placements)
        _, count = part_of(size, mesh, placements, 0)
        if is_direct(route):
            if _parts.is_eager(index):
                sums = peer_tables[route].sums(values, index, mode)
            else:
                sums = _peer_sum(values, index, count, mode, route)
        elif exchanged is not None:
            sums = _exchange.sum_by(exchanged, values, count)
        else:
            group = mesh.get_group(dim)
            sums = _exchange.sum_rows(values, index, size, count, mode, group, route)
        # Ranks that have the same rows have other indices.
        whole = tuple(each if d == dim else Partial() for d, each in enumerate(placements))
        return wrap(sums, mesh, whole, (size, *values.shape[index.dim() :]))

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        nothing = 0 if ctx.mode == "fill" else None
        # That is no table whose memory the others read.
        route = "" if is_direct(ctx.route) else ctx.route
        rows = Rows.apply(grad, index, ctx.placements, ctx.mode, nothing, route, None, False, None)
        return rows, None, None, None, None, None, None, None


class SparseRows(torch.autograd.Function):
    """Rows, with a sparse gradient of this rank's part."""

    @staticmethod
    def forward(
        ctx: Any,
        part: Tensor,
        index: Tensor,
        size: int,
        group: ProcessGroup,
        mode: str,
        fill_value: Number | None,
        route: str,
        asked: _exchange.Asked | None,
        with_gradient: bool,
        name: str,
    ) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape, ctx.mode, ctx.route, ctx.exchanged = part.shape, mode, route, None
        if is_direct(route):
            return peer_tables[route].gather(index, mode, fill_value, name, with_gradient)
        if asked is None:
            asked = _exchange.ask(name, index, size, mode, True, group, route)
        ctx.exchanged = _exchange.settle(asked)
        return _exchange.gather_by(ctx.exchanged, part, mode, fill_value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        if is_direct(ctx.route):
            sums = peer_tables[ctx.route].sparse_sums(grad_output, index, ctx.mode)
        else:
            rows, received = _exchange.receive_sums(ctx.exchanged, grad_output)
            sums = sparse_rows(rows, received, ctx.shape, grad_output.dtype)
        return sums, None, None, None, None, None, None, None, None, None


def gradient_of_peer_rows(grad_output: Tensor, index: Tensor, number: int, mode: str) -> Tensor:
    """The gradient of a table whose rows were read directly. A node in C++ calls it."""
    route = f"table {number}"
    table = peer_tables[route]
    weight: Any = table.weight
    if not torch.is_grad_enabled():  # no node, which would cost the host as much as all else
        return wrap_as(table.sums(grad_output, index, mode), weight)
    how = (weight.shape[0], weight.device_mesh, weight.placements, mode, route, None)
    grad: Tensor = Sums.apply(grad_output, index, *how)
    return grad


def tell_of_error(table: DTensor, route: str, name: str, error: Exception) -> None:
    """Takes part in an exchange for a lookup that has failed here, so that the others raise too.

    It raises the error; or returns, where the table is none, and so has no ranks that could be
    told. Where rows are read directly, ``PeerTable.tell_of_error`` does this.
    """
    if not isinstance(table, DTensor) or dim_of_rows(table.placements) < 0:
        return
    group = table.device_mesh.get_group(dim_of_rows(table.placements))
    none = torch.empty(0, dtype=torch.int64, device=table.device)
    asked = _exchange.ask(name, none, table.shape[0], "raise", False, group, route, error)
    _exchange.settle(asked)


def look_up(
    table: DTensor,
    index: Tensor,
    mode: str,
    fill_value: Number | None,
    route: str,
    name: str,
    asked: _exchange.Asked | None = None,
) -> Tensor:
    """The rows of a table that an index of this rank's own names. ``name``: in errors.

    Where they are read directly this is for graphs: ``PeerTable.look_up`` costs the host less.
    """
    with_gradient = has_gradient(table)
    return Rows.apply(
        table, index, table.placements, mode, fill_value, route, asked, with_gradient, name
    )
