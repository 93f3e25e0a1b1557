"""Rows of a table that a group of ranks shares, for an index that each rank has of its own.

Rank r has rows ``r * length`` to ``(r + 1) * length - 1``. A rank sorts the rows that it wants,
which makes them distinct and puts those of one owner side by side, asks the owners, and gets each
row once. Sums go the other way: a rank adds up what it has for a row before it sends it, and the
owner adds what comes in the order of the ranks. So both are deterministic.

Where ``hosts`` names some ``_hosts.Hosts``, this is done twice: what the ranks of a host ask each
other for in the first exchange is what they ask those of other hosts for in the second.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from torch_ops.distributed import _hosts, _parts
from torch_ops.ops._arguments import Number

_ops = torch.ops.torch_ops


class Route(NamedTuple):
    """Which rows go between this rank and the others."""

    place: Tensor  # of each entry, among the distinct rows; after them where it names no row
    wanted: list[int]  # how many distinct rows this rank wants of each
    asked: list[int]  # how many each wants of this rank
    rows: Tensor  # that these are, counted in this rank's part
    group: ProcessGroup
    beyond: Route | None  # the second exchange, if any, which finds these rows


class Asked(NamedTuple):
    """The first step to a route, which the ranks take without waiting for each other."""

    op: str | None
    error: Exception | None  # of this rank: its entries, or what came before
    failed: int  # which rank of the whole group has an error, that this one knows of; or -1
    distinct: Tensor
    place: Tensor
    counts: Tensor  # [2, ranks]: wanted and asked; on the host once they are there
    works: list[Any]  # what to wait for before they are
    first: int  # this rank's first row
    group: ProcessGroup
    # The ranks between which the second exchange goes, if any, and the number of a rank's rows.
    across: tuple[ProcessGroup, int] | None


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


def ask(
    op: str | None,
    index: Tensor,
    size: int,
    mode: str,
    check: bool,
    group: ProcessGroup,
    hosts: str = "",
    error: Exception | None = None,
) -> Asked:
    """Tells the other ranks how many rows this one wants. They must call it too.

    ``error``: that of a rank which wants none, but tells the others of it.
    """
    length = -(-size // group.size())
    try:
        if check:
            _parts.check_entries(_ops.gather, (size,), index, 0, mode=mode, name=op)
    except IndexError as raised:
        error = raised
    rows = _parts.entries_of_part(index, size, 0, size, mode)  # `size` for those that are none
    across, within, of_rank = None, group, length
    if hosts:
        of, length = _hosts.hosts_of[hosts], max(length, 1)
        rows = of.renumber(rows, size, length)
        within, across = of.inside, (of.across, length)
        of_rank, size = of.across.size() * length, group.size() * length
    distinct, place = torch.unique(rows, return_inverse=True)
    if check and index.is_cuda:
        try:
            _parts.raise_recorded(index.device)  # unique() waited for the device
        except IndexError as raised:
            error = raised
    failed = -1 if error is None else group.rank()
    return _tell(op, error, failed, distinct, place, of_rank, size, within, across)


def _tell(
    op: str | None,
    error: Exception | None,
    failed: int,
    distinct: Tensor,
    place: Tensor,
    length: int,
    size: int,
    group: ProcessGroup,
    across: tuple[ProcessGroup, int] | None,
) -> Asked:
    """The same for distinct rows below ``size``, of which each rank of a group has ``length``."""
    ends = torch.arange(group.size() + 1, device=distinct.device) * length
    bounds = torch.searchsorted(distinct, ends.clamp(max=size))
    counts = bounds.diff().expand(2, -1).contiguous()
    if failed >= 0:
        counts[0] = -1 - failed
    work: Any = dist.all_to_all_single(counts[1], counts[0], group=group, async_op=True)
    works: list[Any] = [work]
    if counts.is_cuda:
        work.wait()  # the stream does
        on_host = torch.empty_like(counts, device="cpu", pin_memory=True)
        counts = on_host.copy_(counts, non_blocking=True)
        works = [torch.cuda.current_stream(distinct.device).record_event()]
    first = min(size, group.rank() * length)
    return Asked(op, error, failed, distinct, place, counts, works, first, group, across)


def settle(asked: Asked) -> Route:
    """Sends the other ranks the rows that this one wants.

    Raises:
        IndexError: Another rank has an error, and has told so.
        Exception: This rank's own.
    """
    for work in asked.works:
        work.synchronize() if asked.distinct.is_cuda else work.wait()
    wanted, come = asked.counts.tolist()
    known = [asked.failed, *(-1 - count for count in come)]
    failed = min((rank for rank in known if rank >= 0), default=-1)
    if failed >= 0:
        if asked.across is not None:  # the other hosts must hear of it too
            with contextlib.suppress(IndexError):
                settle(_ask_across(asked, asked.distinct[:0], failed))
        if asked.error is not None:
            raise asked.error
        raise IndexError(
            f"{asked.op or 'gather'}: rank {failed} of the group has an entry out of range in its "
            "index, or another error, and says itself which."
        )
    requests = _send(asked.distinct[: sum(wanted)], wanted, come, asked.group)
    rows, beyond = requests - asked.first, None
    if asked.across is not None:
        beyond = settle(_ask_across(asked, rows, -1))
    return Route(asked.place, wanted, come, rows, asked.group, beyond)


def _ask_across(asked: Asked, rows: Tensor, failed: int) -> Asked:
    """Asks the ranks of the other hosts for the rows for which those of this host asked."""
    assert asked.across is not None
    group, length = asked.across
    distinct, place = torch.unique(rows, return_inverse=True)
    size = group.size() * length
    return _tell(asked.op, None, failed, distinct, place, length, size, group, None)


def _group(name: str) -> ProcessGroup:
    resolve: Any = vars(distributed_c10d)["_resolve_process_group"]  # of functional collectives
    group: ProcessGroup = resolve(name)
    return group


def gather_by(route: Route, part: Tensor, mode: str, fill_value: Number | None) -> Tensor:
    """The rows for which the route was made."""
    if route.beyond is not None:
        rows = gather_by(route.beyond, part, "unchecked", None)
    else:
        rows = _ops.gather(part, route.rows, 0, mode="unchecked")
    received = _send(rows, route.asked, route.wanted, route.group)
    fill = fill_value if mode == "fill" else 0
    output: Tensor = _ops.gather(received, route.place, 0, mode="fill", fill_value=fill)
    return output


def receive_sums(route: Route, values: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of this rank's part, and what each other rank adds to them. 16-bit floats in float32."""
    total = sum(route.wanted)
    sums = _ops._scatter_sum(values, route.place, total, 0, deterministic=True, mode="fill")
    received = _send(sums, route.wanted, route.asked, route.group)
    return (route.rows, received) if route.beyond is None else receive_sums(route.beyond, received)


def sum_by(route: Route, values: Tensor, count: int) -> Tensor:
    """The transpose of ``gather_by``: this rank's ``count`` rows of the sums."""
    rows, received = receive_sums(route, values)
    own = _ops._scatter_sum(received, rows, count, 0, deterministic=True, mode="unchecked")
    return own.to(values.dtype)


def _gather(
    part: Tensor,
    index: Tensor,
    size: int,
    mode: str,
    fill_value: Number | None,
    name: str | None,
    group_name: str,
    hosts: str,
) -> Tensor:
    route = settle(ask(name, index, size, mode, True, _group(group_name), hosts))
    return gather_by(route, part, mode, fill_value)


def _sum(
    values: Tensor,
    index: Tensor,
    size: int,
    count: int,
    mode: str,
    group_name: str,
    hosts: str,
) -> Tensor:
    route = settle(ask(None, index, size, mode, False, _group(group_name), hosts))
    return sum_by(route, values, count)


# As registered ops, for graphs: what they send depends on data, what they return does not.
_gather_op = torch.library.custom_op(
    "torch_ops::_exchange_gather",
    _gather,
    mutates_args=(),
    schema="(Tensor part, Tensor index, SymInt size, str mode, Scalar? fill_value, str? name, "
    "str group_name, str hosts) -> Tensor",
)
_sum_op = torch.library.custom_op(
    "torch_ops::_exchange_sum",
    _sum,
    mutates_args=(),
    schema="(Tensor values, Tensor index, SymInt size, SymInt count, str mode, str group_name, "
    "str hosts) -> Tensor",
)


@_gather_op.register_fake
def _(part: Tensor, index: Tensor, *_: Any) -> Tensor:
    return part.new_empty((*index.shape, *part.shape[1:]))


@_sum_op.register_fake
def _(values: Tensor, index: Tensor, size: int, count: int, *_: Any) -> Tensor:
    return values.new_empty((count, *values.shape[index.dim() :]))


def gather_rows(
    part: Tensor,
    index: Tensor,
    size: int,
    mode: str,
    fill_value: Number | None,
    name: str | None,
    group: ProcessGroup,
    hosts: str = "",
) -> Tensor:
    """``gather(table, index)`` of a table of ``size`` rows of which this rank has a part."""
    call = _gather if _parts.is_eager(index) else _gather_op
    return call(part, index, size, mode, fill_value, name, group.group_name, hosts)


def sum_rows(
    values: Tensor,
    index: Tensor,
    size: int,
    count: int,
    mode: str,
    group: ProcessGroup,
    hosts: str = "",
) -> Tensor:
    """This rank's ``count`` rows of ``scatter_add(values, index, size)``, summed over all ranks."""
    call = _sum if _parts.is_eager(index) else _sum_op
    return call(values, index, size, count, mode, group.group_name, hosts)
