"""Rows of a table that a group of ranks shares, for an index that each rank has of its own.

Rank r has rows ``r * length`` to ``(r + 1) * length - 1``. A rank sorts the rows that it wants,
which makes them distinct and puts those of one owner side by side, asks the owners, and gets each
row once. Sums go the other way: a rank adds up what it has for a row before it sends it, and the
owner adds what comes in the order of the ranks. So both are deterministic.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from torch_ops.distributed import _parts
from torch_ops.ops._arguments import Number

_ops = torch.ops.torch_ops


class _Route(NamedTuple):
    """Which rows go between this rank and the others."""

    place: Tensor  # of each entry, among the distinct rows; behind them where it names no row
    wanted: list[int]  # how many distinct rows this rank wants of each
    asked: list[int]  # how many each wants of this rank
    rows: Tensor  # that these are, counted in this rank's part


def _send(tensor: Tensor, to: list[int], come: list[int], group: ProcessGroup) -> Tensor:
    """Slices of a tensor for each rank, and those from each."""
    received = tensor.new_empty((sum(come), *tensor.shape[1:]))
    # As bytes, for not all backends know all dtypes.
    sent, taken = (each.reshape(-1).view(torch.uint8) for each in (tensor, received))
    width = math.prod(tensor.shape[1:]) * tensor.itemsize
    dist.all_to_all_single(
        taken, sent, [n * width for n in come], [n * width for n in to], group=group
    )
    return received


def _find_route(
    op: str | None, index: Tensor, size: int, mode: str, check: bool, group: ProcessGroup
) -> _Route:
    """Agrees with the other ranks, who must call it too; one that has an error says so to them."""
    world, rank = group.size(), group.rank()
    length = -(-size // world)
    error: IndexError | None = None
    try:
        if check:
            _parts.check_entries(_ops.gather, (size,), index, 0, mode=mode, name=op)
    except IndexError as raised:
        error = raised
    rows = _parts.entries_of_part(index, size, 0, size, mode)  # `size` for those that are none
    distinct, place = torch.unique(rows, return_inverse=True)
    ends = torch.arange(world + 1, device=index.device) * length
    bounds = torch.searchsorted(distinct, ends.clamp(max=size))
    wanted = bounds.diff()
    if error is not None:
        wanted = torch.full_like(wanted, -1)
    asked = torch.empty_like(wanted)
    dist.all_to_all_single(asked, wanted, group=group)
    wanted_counts, asked_counts = torch.stack([wanted, asked]).tolist()
    if error is not None:
        raise error
    for other, count in enumerate(asked_counts):
        if count < 0:
            raise IndexError(
                f"{op or 'gather'}: rank {other} of the group has an entry out of range in its "
                "index, and says in its own error which."
            )
    requests = _send(distinct[: sum(wanted_counts)], wanted_counts, asked_counts, group)
    return _Route(place, wanted_counts, asked_counts, requests - min(size, rank * length))


def _group(name: str) -> ProcessGroup:
    resolve: Any = vars(distributed_c10d)["_resolve_process_group"]  # of functional collectives
    group: ProcessGroup = resolve(name)
    return group


def _gather(
    part: Tensor,
    index: Tensor,
    size: int,
    mode: str,
    fill_value: Number | None,
    name: str | None,
    group_name: str,
) -> Tensor:
    group = _group(group_name)
    route = _find_route(name, index, size, mode, True, group)
    rows = _ops.gather(part, route.rows, 0, mode="unchecked")
    received = _send(rows, route.asked, route.wanted, group)
    fill = fill_value if mode == "fill" else 0
    return _ops.gather(received, route.place, 0, mode="fill", fill_value=fill)


def _sum(
    values: Tensor, index: Tensor, size: int, count: int, mode: str, group_name: str
) -> Tensor:
    group = _group(group_name)
    route = _find_route(None, index, size, mode, False, group)
    total = sum(route.wanted)
    # Those of 16-bit floats are rounded in the end.
    sums = _ops._scatter_sum(values, route.place, total, 0, deterministic=True, mode="fill")
    received = _send(sums, route.wanted, route.asked, group)
    own = _ops._scatter_sum(received, route.rows, count, 0, deterministic=True, mode="unchecked")
    return own.to(values.dtype)


# As registered ops, for graphs: what they send depends on data, what they return does not.
_gather_op = torch.library.custom_op(
    "torch_ops::_exchange_gather",
    _gather,
    mutates_args=(),
    schema="(Tensor part, Tensor index, SymInt size, str mode, Scalar? fill_value, str? name, "
    "str group_name) -> Tensor",
)
_sum_op = torch.library.custom_op(
    "torch_ops::_exchange_sum",
    _sum,
    mutates_args=(),
    schema="(Tensor values, Tensor index, SymInt size, SymInt count, str mode, str group_name) "
    "-> Tensor",
)


@_gather_op.register_fake
def _(
    part: Tensor,
    index: Tensor,
    size: int,
    mode: str,
    fill_value: Number | None,
    name: str | None,
    group_name: str,
) -> Tensor:
    return part.new_empty((*index.shape, *part.shape[1:]))


@_sum_op.register_fake
def _(values: Tensor, index: Tensor, size: int, count: int, mode: str, group_name: str) -> Tensor:
    return values.new_empty((count, *values.shape[index.dim() :]))


def gather_rows(
    part: Tensor,
    index: Tensor,
    size: int,
    mode: str,
    fill_value: Number | None,
    name: str | None,
    group: ProcessGroup,
) -> Tensor:
    """``gather(table, index)`` of a table of ``size`` rows of which this rank has a part."""
    call = _gather if type(index) is Tensor else _gather_op
    return call(part, index, size, mode, fill_value, name, group.group_name)


def sum_rows(
    values: Tensor, index: Tensor, size: int, count: int, mode: str, group: ProcessGroup
) -> Tensor:
    """This rank's ``count`` rows of ``scatter_add(values, index, size)``, summed over all ranks."""
    call = _sum if type(index) is Tensor else _sum_op
    return call(values, index, size, count, mode, group.group_name)
