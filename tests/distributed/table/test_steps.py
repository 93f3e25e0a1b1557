"""A step of ShardedTables by the direct route: how often ranks meet, and when the host waits."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import ranks
import torch
import torch.distributed as dist
from ranks import message_of

from torch_ops.distributed import ShardedTable
from torch_ops.distributed.peers import _tables

pytestmark = pytest.mark.usefixtures("ranks_device")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="about CUDA alone")
on_cuda = pytest.mark.parametrize("device", [torch.device("cuda")], ids=str)


# ---- Meetings -----------------------------------------------------------------------------------


def meetings_of_steps(lookups: int, inbox_bytes: int) -> list[int]:
    """Of the forward and of the backward pass of three steps with as many tables."""
    tables = [ShardedTable(40, 2, route="direct", inbox_bytes=inbox_bytes) for _ in range(lookups)]
    optimizer = torch.optim.SGD([table.weight for table in tables], lr=0.1)
    peers: Any = tables[0]._peers
    meet, counts = peers._meetings.meet, [0]

    def count(*inbox: torch.Tensor | None) -> None:
        counts[-1] += 1
        meet(*inbox)

    peers._meetings.meet = count
    for _ in range(3):
        loss = sum(table(torch.arange(40)).sum() for table in tables)
        counts.append(0)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
        counts.append(0)
    with torch.no_grad():
        for table in tables * 2:
            table(torch.arange(3))
    peers._meetings.meet = meet
    return counts


@pytest.mark.parametrize("lookups", [1, 3])
def test_meetings_of_a_step(lookups: int) -> None:
    """One before the first lookup, one for each gradient; none between reads."""
    for counts in ranks.run(2, meetings_of_steps, lookups, 1 << 20):
        assert counts == 3 * [1, lookups] + [1]


def test_meetings_of_rounds() -> None:
    """An inbox has room for 10 rows of each rank, of the 20 that it sends to each."""
    for counts in ranks.run(2, meetings_of_steps, 1, 2 * 10 * (2 * 4 + 8)):
        assert counts == 3 * [1, 2] + [1]


# ---- Errors that are known in the backward pass --------------------------------------------------


def tell_of_an_error(bad: list[int]) -> tuple[list[str], list[list[float]]]:
    """These ranks say in the second of four backward passes that they have one."""
    world, rank = dist.get_world_size(), dist.get_rank()
    table = ShardedTable(2 * world, 1, route="direct", init=torch.nn.init.zeros_)
    other = ShardedTable(3, 1, route="direct")
    peers: Any = table._peers
    kept = _tables._ext.Round

    class Telling(kept):  # type: ignore[misc, valid-type]
        def put(self) -> None:
            super().put()
            inbox = peers._inboxes[peers._turn][0]
            first = inbox.data_ptr() - peers._memory.own.data_ptr()
            for memory in peers._memory.of:
                headers = memory[first : first + 16 * world].view(torch.int64).view(world, 2)
                headers[rank, 1] = _tables._ext.HAS_ERROR

    found, sums = [], []
    for step in range(4):
        table.zero_grad()
        output = table(torch.arange(2 * world))
        other(torch.tensor([0]))
        failing = step == 1 and rank in bad
        with mock.patch.object(_tables._ext, "Round", Telling if failing else kept):
            found.append(message_of((output.sum() * 10**step).backward))
        grad: Any = table.weight.grad
        sums.append([] if grad is None else grad.to_local().flatten().tolist())
    return found, sums


@pytest.mark.parametrize("bad", [[1], [0, 1]])
def test_all_hear_of_an_error_that_a_sender_tells(bad: list[int]) -> None:
    for found, sums in ranks.run(2, tell_of_an_error, bad):
        assert [bool(message) for message in found] == [False, True, False, False]
        told = f"IndexError: torch_ops.distributed: rank {bad[0]} of the group has an entry"
        assert found[1].startswith(told)
        assert sums == [[2.0, 2.0], [], [200.0, 200.0], [2000.0, 2000.0]]


def late_errors_of_two_tables(sparse: bool) -> list[str]:
    """Rank 1 has an entry out of range in each other step, in turn for each of two tables."""
    tables = [ShardedTable(7, 2, route="direct", sparse=sparse) for _ in range(2)]
    found = []
    for step in range(8):
        bad = step % 2 == 1 and dist.get_rank() == 1
        entries = [9 if bad and step // 2 % 2 == which else 2 for which in range(2)]

        def run(entries: list[int] = entries) -> None:
            rows = [
                table(torch.tensor([3, entry]))
                for table, entry in zip(tables, entries, strict=True)
            ]
            (rows[0].sum() + rows[1].sum()).backward()

        found.append(message_of(run))
        for table in tables:
            table.weight.grad = None
            if table.local_weight is not None:
                table.local_weight.grad = None
    return found


@needs_cuda
@on_cuda
@pytest.mark.parametrize("sparse", [False, True])
def test_late_errors_of_two_tables(sparse: bool) -> None:
    """Whichever table's gradient comes first tells of the error of either."""
    good, bad = ranks.run(2, late_errors_of_two_tables, sparse, error_mode="async")
    for step in range(8):
        if step % 2 == 0:
            assert (good[step], bad[step]) == ("", "")
        else:
            assert "rank 1 of the group has an entry out of range" in good[step]
            assert "index[1] is 9, out of range for an axis of size 7" in bad[step]


# ---- Waits of the host ---------------------------------------------------------------------------


def waits_of_a_gradient(inbox_bytes: int) -> int:
    table = ShardedTable(40, 2, route="direct", inbox_bytes=inbox_bytes)
    peers: Any = table._peers
    values, index = torch.ones(40, 2), torch.arange(40)
    peers.sums(values, index, "raise")
    meetings, waits = peers._meetings.on_device, []

    def said() -> list[tuple[int, int]]:
        waits.append(1)
        found: list[tuple[int, int]] = meetings.said()
        return found

    counting = SimpleNamespace(meet=meetings.meet, said=said, outcome=meetings.outcome)
    torch.cuda.synchronize()
    with (
        mock.patch.object(peers._meetings, "on_device", counting),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            peers.sums(values, index, "raise")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not [each for each in caught if "synchronizing CUDA operation" in str(each.message)]
    return len(waits)


@needs_cuda
@on_cuda
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_host_waits_once_per_round(rounds: int) -> None:
    inbox_bytes = 2 * 20 // rounds * (2 * 4 + 8)
    assert ranks.run(2, waits_of_a_gradient, inbox_bytes, error_mode="async") == [rounds] * 2
