"""The groups by which rows are exchanged in two steps, where ranks are on several hosts.

All hosts have the same number of ranks. A rank asks the p-th rank of its host for the rows of all
owners that are the p-th of theirs. The p-th ranks of all hosts ask each other: each for what its
host wants, and once for a row that several ranks of the host want.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, distributed_c10d

from torch_ops.distributed.peers._meetings import timeout_of
from torch_ops.distributed.peers._memory import agree


@dataclass(frozen=True, eq=False)
class Hosts:
    """What this rank knows of the hosts of a group."""

    name: str  # by which compiled code says which it means
    inside: ProcessGroup  # the ranks of its host
    across: ProcessGroup  # the p-th ranks of all hosts, if it is the p-th of its own
    # Of each rank: p * hosts + its rank in ``across``. After them a number for rows that are none.
    numbers: Tensor

    def renumber(self, rows: Tensor, size: int, length: int) -> Tensor:
        """The rows in another order, in which rank r has those from ``numbers[r] * length`` on.

        A row that is ``size`` is none, and becomes ``ranks * length``.
        """
        numbers, ranks = self.numbers.to(rows.device), len(self.numbers) - 1
        shift = (numbers - torch.arange(ranks + 1, device=rows.device)) * length
        moved = rows + shift[rows // length]
        return torch.where(rows == size, ranks * length, moved)


_numbers = itertools.count()
_of_groups: weakref.WeakKeyDictionary[ProcessGroup, Hosts] = weakref.WeakKeyDictionary()
# Not by the group of a DTensor's mesh: it may be another one of the same ranks, for DTensor keeps
# meshes that are equal.
hosts_of: weakref.WeakValueDictionary[str, Hosts] = weakref.WeakValueDictionary()
_next_count = 2**40  # for _counted_apart: no process makes so many groups


def named_by_count() -> bool:
    """Whether torch names a group that only its members make by how many groups they have made.

    torch 2.15 does. torch 2.11 counts the groups that a process is a member of instead.
    """
    return "group_count" in distributed_c10d._hash_ranks_to_str.__code__.co_names


@contextlib.contextmanager
def _counted_apart(group: ProcessGroup) -> Iterator[None]:
    """Keeps two groups that this process makes inside out of its count of groups.

    Processes outside ``group`` do not make them. Otherwise the counts would differ, and so would
    the names of a group that all processes make later. All ranks of ``group`` enter it.
    """
    global _next_count
    if not named_by_count():
        yield
        return
    world = distributed_c10d._world
    count, world.group_count = world.group_count, max(agree(group, _next_count))
    _next_count = world.group_count + 2
    try:
        yield
    finally:
        world.group_count = count


def set_up(group: ProcessGroup, device: torch.device, names: list[str]) -> Hosts:
    """Makes those of a group; ``names`` are those of the ranks' hosts. All ranks call it.

    Raises:
        ValueError: Hosts have different numbers of ranks; or the group does not have all processes,
            its ranks are members of different numbers of groups, and torch names groups by that.
    """
    if group in _of_groups:
        return _of_groups[group]
    members: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        members.setdefault(name, []).append(rank)
    counts = [len(ranks) for ranks in members.values()]
    if len(set(counts)) > 1:
        raise ValueError(
            'ShardedTable: route="hierarchical" is for hosts that have the same number of ranks, '
            f'but they have {", ".join(map(str, counts))}. Use route="exchange".'
        )
    columns = [sorted(ranks) for ranks in zip(*members.values(), strict=True)]
    in_order = [rank for ranks in columns for rank in ranks]
    numbers = [in_order.index(rank) for rank in range(len(names))]
    of_all = dist.get_process_group_ranks(group)
    # Where the group has all processes, each of them makes all groups, in the same order. Else only
    # the members of a group make it.
    by_all = len(of_all) == dist.get_world_size()
    if not by_all and not named_by_count():
        memberships = agree(group, len(distributed_c10d._world.pg_names))
        if len(set(memberships)) > 1:
            raise ValueError(
                'ShardedTable: route="hierarchical" makes process groups, for which the ranks of a '
                "subgroup must all be members of the same number of them, but they are members of "
                f"{', '.join(map(str, memberships))}. Make the table before the other groups, or "
                'use route="exchange".'
            )

    def own_of(choices: Iterable[list[int]]) -> Any:
        own: Any = None
        for ranks in choices:
            if by_all or group.rank() in ranks:
                made = dist.new_group(
                    [of_all[rank] for rank in ranks],
                    timeout=timeout_of(group, device),
                    backend=dist.get_backend_config(group),
                    use_local_synchronization=not by_all,
                )
                own = made if group.rank() in ranks else own
        return own

    with contextlib.nullcontext() if by_all else _counted_apart(group):
        inside, across = own_of(members.values()), own_of(columns)
    name = f"hosts {next(_numbers)}"
    made = Hosts(name, inside, across, torch.tensor([*numbers, 0], device=device))
    _of_groups[group] = hosts_of[name] = made
    return made
