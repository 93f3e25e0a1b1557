"""ShardedTable by the direct route: errors, ranks that fail or never come, and its memory."""

from __future__ import annotations

import contextlib
import io
import os
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from ranks import message_of
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import torch_ops
from torch_ops.distributed import ShardedTable, sharded_table
from torch_ops.distributed.peers import _shared, _tables

pytestmark = pytest.mark.usefixtures("ranks_device")


# ---- Errors in an index -------------------------------------------------------------------------


def fail(route: str, with_gradient: bool) -> list[str]:
    """Rank 1 has an entry out of range in the second of four steps."""
    table = ShardedTable(7, 2, route=route)
    other = ShardedTable(5, 2, route=route)  # of the same group
    optimizer = torch.optim.SGD([table.weight, other.weight], lr=0.1)
    found = []
    for step in range(4):
        index = torch.tensor([[0, 1], [2, 7 if step == 1 and dist.get_rank() == 1 else 6]])

        def run(index: torch.Tensor = index) -> None:
            with torch.set_grad_enabled(with_gradient):
                loss = other(index % 5).sum() + table(index).sum()
            if with_gradient:
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()

        found.append(message_of(run))
    weight: Any = table.weight.detach()
    whole = weight.full_tensor()
    assert torch.equal(table(torch.arange(7)), whole)
    return found


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("route", ["direct", "exchange"])
def test_one_rank_has_an_entry_out_of_range(route: str, world: int) -> None:
    """It names the entry, the others name the rank; nobody waits; the next steps work."""
    for rank, found in enumerate(ranks.run(world, fail, route, True)):
        assert [bool(message) for message in found] == [False, True, False, False]
        # In a meeting, to which ranks come for whatever reason, nobody knows whose error it is.
        told = "torch_ops.distributed" if route == "direct" else "ShardedTable"
        words = (
            "ShardedTable: index[1, 1] is 7, out of range for an axis of size 7"
            if rank == 1
            else f"{told}: rank 1 of the group has an entry out of range"
        )
        assert found[1].startswith(f"IndexError: {words}")


def test_out_of_range_without_a_gradient() -> None:
    """The other rank has its rows."""
    good, bad = ranks.run(2, fail, "direct", False)
    assert good == [""] * 4
    assert bad[1].startswith("IndexError: ShardedTable: index[1, 1] is 7") and not bad[2]


def fail_in_validation(sparse: bool) -> tuple[str, list[float]]:
    """Rank 1 has an entry out of range where there is no gradient; two steps follow."""
    table = ShardedTable(4, 1, route="direct", sparse=sparse)
    look_up = table if sparse else torch.compile(table, backend="eager")
    bad = torch.tensor([9 if dist.get_rank() == 1 else 0])
    with torch.no_grad():
        message = message_of(lambda: look_up(bad))
    return message, [sum_of_step(table, look_up, 10.0**step) for step in range(2)]


def sum_of_step(table: ShardedTable, look_up: Any, factor: float) -> float:
    weight: Any = table.weight if table.local_weight is None else table.local_weight
    weight.grad = None
    (look_up(torch.tensor([0, 3])).sum() * factor).backward()
    grad = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad.to_local()
    return float(grad.sum())


@pytest.mark.parametrize("sparse", [False, True])
def test_out_of_range_without_a_gradient_in_graphs_and_sparse(sparse: bool) -> None:
    """The other has its rows, and the gradients of the steps that follow are theirs."""
    for rank, (message, sums) in enumerate(ranks.run(2, fail_in_validation, sparse)):
        assert message.startswith("IndexError: ShardedTable: index[0] is 9" if rank else "")
        assert bool(message) == bool(rank) and sums == [2.0, 20.0]


def fail_before_the_lookup(sparse: bool) -> tuple[list[str], list[float]]:
    """Rank 1 gives in each second step what a lookup does not take."""
    table = ShardedTable(4, 1, route="direct", sparse=sparse)
    mesh = ranks.mesh((2,))
    index = torch.tensor([0, 3])
    placed: Any = distribute_tensor(index, mesh, [Replicate()])
    calls: list[Callable[[], Any]] = [
        lambda: table([0, 3]),  # type: ignore[arg-type]
        lambda: table(placed),
        lambda: table(index.float()),
        lambda: table(index, fill_value=1.0),
        lambda: table(index, mode=3),  # type: ignore[arg-type]
    ]
    if not sparse:
        gather: Any = torch_ops.distributed.gather
        calls.append(lambda: gather(table.weight, [0, 3]))
        calls.append(lambda: gather(table.weight, index, mode=3))
        other = nn.Parameter(table.weight.detach())
        calls.append(lambda: torch.func.functional_call(table, {"weight": other}, (index,)))
    found, sums = [], []
    for step, call in enumerate(calls):
        look_up = call if dist.get_rank() == 1 else lambda: table(index)
        found.append(message_of(lambda look_up=look_up: look_up().sum().backward()))
        sums.append(sum_of_step(table, table, 10.0**step))
    return found, sums


@pytest.mark.parametrize("sparse", [False, True])
def test_one_rank_fails_before_its_lookup(sparse: bool) -> None:
    """The other hears of it; sums of different steps are not added."""
    good, bad = ranks.run(2, fail_before_the_lookup, sparse)
    words = "IndexError: torch_ops.distributed: rank 1 of the"
    assert all(message.startswith(words) for message in good[0])
    for message, kind in zip(bad[0], [*5 * "T", *"TTR"], strict=False):
        assert message.startswith("RuntimeError: " if kind == "R" else ("TypeError", "ValueError"))
    for _, sums in (good, bad):
        assert sums == [2.0 * 10**step for step in range(len(sums))]


def fail_again_and_again() -> list[str]:
    """All ranks but the first have errors, some in succession."""
    table = ShardedTable(7, 2, route="direct")
    rank, found = dist.get_rank(), []
    for step in range(12):
        bad = rank > 0 and step % (rank + 1) == 0
        index = torch.tensor([3, 9 if bad else 2])
        found.append(message_of(lambda index=index: table(index).sum().backward()))
    return found


def test_errors_in_succession() -> None:
    for rank, found in enumerate(ranks.run(4, fail_again_and_again)):
        for step, message in enumerate(found):
            bad = [other for other in range(1, 4) if step % (other + 1) == 0]
            assert bool(message) == bool(bad), (rank, step, message)
            if rank in bad:
                assert "index[1] is 9" in message
            elif bad:
                assert any(f"rank {other} of the group" in message for other in bad)


WITHOUT_MEMORY = {
    "rows": (_tables._ext.Reader, "look_up"),
    "sums": (_tables.PeerTable, "_distinct_sums"),
    "sums of all": (_tables.PeerTable, "_add"),
}


def run_out_of_memory(at: str) -> tuple[list[str], list[float | None]]:
    """Rank 1 has none for something, in the second of three steps; and the sums of the steps."""
    table = ShardedTable(2, 1, route="direct", init=torch.nn.init.zeros_)
    found, sums = [], []
    for step in range(3):
        table.zero_grad()

        def run(step: int = step) -> None:
            (table(torch.tensor([0, 1])).sum() * 10**step).backward()

        with contextlib.ExitStack() as patched:
            if step == 1 and dist.get_rank() == 1:
                error = MemoryError("none is left")
                patched.enter_context(mock.patch.object(*WITHOUT_MEMORY[at], side_effect=error))
            found.append(message_of(run))
        grad: Any = table.weight.grad
        sums.append(None if grad is None else float(grad.to_local()))
    return found, sums


@pytest.mark.parametrize("at", ["rows", "sums"])
def test_one_rank_has_no_memory(at: str) -> None:
    """The other hears of it; sums of different steps are not added."""
    told = "IndexError: torch_ops.distributed: rank 1 of the group has an entry out of range in its"
    for rank, (found, sums) in enumerate(ranks.run(2, run_out_of_memory, at)):
        assert not found[0] and not found[2] and sums == [2.0, None, 200.0]
        assert found[1].startswith("MemoryError: none is left" if rank else told)


def test_one_rank_fails_after_the_last_round() -> None:
    """The other has what it needs by then. The rank has no gradient, and both stay in step."""
    (good, sums), (bad, others) = ranks.run(2, run_out_of_memory, "sums of all")
    assert not any(good) and bad == ["", "MemoryError: none is left", ""]
    assert sums == [2.0, 20.0, 200.0] and others == [2.0, None, 200.0]


# ---- Ranks that fail or do not come -------------------------------------------------------------


def stay_away() -> tuple[str, float]:
    """Rank 1 takes no part in a backward pass."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    table = ShardedTable(7, 2, group=group, route="direct")
    output = table(torch.tensor([6, 0]))
    begin, message = time.monotonic(), ""
    if dist.get_rank() == 0:
        message = message_of(output.sum().backward)
        # The ranks no longer agree on what comes next.
        assert message_of(lambda: table(torch.tensor([0]))) == message
    return message, time.monotonic() - begin


def test_a_rank_that_does_not_come() -> None:
    message, seconds = ranks.run(2, stay_away)[0]
    assert message.startswith("RuntimeError: torch_ops.distributed: rank 1 of the group did not co")
    assert "timeout of 2 s" in message and 2 <= seconds < 20


# ---- Memory -------------------------------------------------------------------------------------


def largest_allocation(rows: int) -> tuple[int, int]:
    """Of the memory that all ranks map nothing counts here."""
    table = ShardedTable(rows, 4, route="direct")
    index = torch.arange(0, rows, 100)
    output = table(index)
    with torch.profiler.profile(profile_memory=True) as profile:
        output.sum().backward()
    of_device = f"self_{'device' if index.is_cuda else 'cpu'}_memory_usage"
    largest = max(getattr(event, of_device) for event in profile.events())
    assert table._peers is not None
    return largest, table._peers._memory.own.numel()


@pytest.mark.parametrize("world", [2, 4])
def test_gradient_takes_the_memory_of_a_part(world: int) -> None:
    part = 10_000 * 4 * 4 // world
    for largest, _ in ranks.run(world, largest_allocation, 10_000):
        assert part <= largest < part + 512  # to which CUDA's allocator rounds


def mapped_bytes(inbox_bytes: int) -> int:
    table = ShardedTable(10_000, 4, route="direct", inbox_bytes=inbox_bytes)
    assert table._peers is not None
    return table._peers._memory.own.numel()


def test_memory_of_inboxes_is_bounded() -> None:
    part = 10_000 * 4 * 4 // 2
    for inbox_bytes in (10_000, 100_000, 1 << 30):
        most = min(inbox_bytes, 2 * 5000 * (16 + 8))
        for nbytes in ranks.run(2, mapped_bytes, inbox_bytes):
            assert most * 0.9 < nbytes - part < most + 4096


def left_files() -> tuple[list[str], list[str]]:
    """The files that a table was made with, and those of them that are there afterwards."""
    made, make = [], _shared._make

    def note(path: str, nbytes: int) -> Any:
        made.append(path)
        return make(path, nbytes)

    with mock.patch.object(_shared, "_make", note):
        table = ShardedTable(10, 4, route="direct")
        table(torch.arange(10)).sum().backward()
        dist.barrier()
    return made, [path for path in made if os.path.exists(path)]


def test_no_files_are_left(device: torch.device) -> None:
    """Others' files, which a run of tests beside this one has, do not count."""
    for made, left in ranks.run(2, left_files):
        assert bool(made) == (device.type == "cpu")
        assert not left


# ---- Where memory cannot be mapped --------------------------------------------------------------


def without_room(route: str) -> tuple[str, str, list[str]]:
    """On rank 1 the files would be larger than any disk; on CUDA nothing is left."""
    make, group = _shared._make, dist.new_group()
    tables: list[ShardedTable] = []
    with contextlib.ExitStack() as patched:
        if dist.get_rank() == 1:
            for change in (
                mock.patch.object(_shared, "_make", lambda path, nbytes: make(path, 1 << 62)),
                mock.patch.object(
                    symmetric_memory, "empty", side_effect=RuntimeError("CUDA: out of memory")
                ),
            ):
                patched.enter_context(change)
        caught = patched.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        message = message_of(lambda: tables.append(ShardedTable(8, 3, route=route, group=group)))
    said = [str(each.message) for each in caught]
    if not tables:
        return message, "", said
    table = tables[0]
    weight: Any = table.weight.detach()
    assert torch.equal(table(torch.tensor([7, 0])), weight.full_tensor()[[7, 0]])
    return message, table.route, said


def test_falls_back_to_the_exchange() -> None:
    for message, route, said in ranks.run(2, without_room, "auto"):
        assert (message, route) == ("", "exchange")
        assert len(said) == 1 and "so that rows are exchanged" in said[0]


def test_direct_route_that_cannot_be() -> None:
    for message, _, _ in ranks.run(2, without_room, "direct"):
        assert message.startswith("RuntimeError: ShardedTable: the ranks cannot map each other's")


def on_two_hosts(route: str) -> tuple[str, str]:
    tables: list[ShardedTable] = []
    with mock.patch.object(sharded_table, "host", return_value=f"host {dist.get_rank()}"):
        message = message_of(lambda: tables.append(ShardedTable(8, 3, route=route)))
    return message, tables[0].route if tables else ""


def test_several_hosts() -> None:
    assert ranks.run(2, on_two_hosts, "auto") == [("", "exchange")] * 2
    for message, _ in ranks.run(2, on_two_hosts, "direct"):
        assert "is for ranks of one host, but they are on 2" in message


# ---- What is refused ----------------------------------------------------------------------------


def refused() -> list[str]:
    mesh = ranks.mesh((2,))
    flat = ranks.mesh((2, 1))
    table = ShardedTable(4, 2)
    index = torch.tensor([1])
    weight = torch.randn(4, 2)
    placed: Any = distribute_tensor(index, mesh, [Replicate()])
    different = 1 + dist.get_rank()
    net = nn.Sequential(ShardedTable(4, 2))
    net[0].load_state_dict(ShardedTable(4, 2).state_dict(), assign=True)
    calls: list[Callable[[], Any]] = [
        lambda: ShardedTable(2.0, 2),  # type: ignore[arg-type]
        lambda: ShardedTable(-1, 2),
        lambda: ShardedTable(2, 2, dtype=torch.int64),
        lambda: ShardedTable(2, 2, dtype="float32"),  # type: ignore[arg-type]
        lambda: ShardedTable(2, 2, init=1.0),  # type: ignore[arg-type]
        lambda: ShardedTable(2, 2, device="meta"),
        lambda: ShardedTable(2, 2, route="other"),
        lambda: ShardedTable(2, 2, inbox_bytes=-1),
        lambda: ShardedTable(2, 2, inbox_bytes="1 MiB"),  # type: ignore[arg-type]
        lambda: ShardedTable(2, 2, inbox_bytes=None),  # type: ignore[arg-type]
        lambda: ShardedTable(2, 2, group=flat),
        lambda: ShardedTable(2, 2, group=3),  # type: ignore[arg-type]
        lambda: ShardedTable(different, 2),
        lambda: ShardedTable.from_dtensor(weight),  # type: ignore[arg-type]
        lambda: ShardedTable.from_dtensor(distribute_tensor(weight, mesh, [Shard(1)])),
        lambda: table([1]),  # type: ignore[arg-type]
        lambda: table(placed),
        lambda: table(index.float()),
        lambda: table(index, mode="other"),
        lambda: table(index, fill_value=1.0),
        lambda: table.double(),
        lambda: torch.save(table, io.BytesIO()),
        lambda: net(index),
    ]
    return [message_of(call) for call in calls]


def test_refused() -> None:
    expected = [
        "TypeError: ShardedTable: rows must be an int",
        "ValueError: ShardedTable: rows must not be negative, but it is -1.",
        "TypeError: ShardedTable: dtype must be a floating or complex dtype",
        "TypeError: ShardedTable: dtype must be a torch.dtype or None, but a str was given.",
        "TypeError: ShardedTable: init must be a function or None, but a float was given.",
        "ValueError: ShardedTable: device must be the CPU or a CUDA device",
        'ValueError: ShardedTable: route must be "auto", "direct", "exchange" or "hier',
        "ValueError: ShardedTable: inbox_bytes must not be negative",
        "TypeError: ShardedTable: inbox_bytes must be an int, but a str was given.",
        "TypeError: ShardedTable: inbox_bytes must be an int, but None was given.",
        "ValueError: ShardedTable: group must be a process group or a mesh of one dimension",
        "TypeError: ShardedTable: group must be a process group",
        "ValueError: ShardedTable: all ranks must be given the same shape",
        "TypeError: ShardedTable.from_dtensor: weight must be a DTensor",
        "ValueError: ShardedTable.from_dtensor: weight must be Shard(0)",
        "TypeError: ShardedTable: index must be a tensor",
        "TypeError: ShardedTable: index must be this rank's own tensor",
        "TypeError: ShardedTable: index must be uint8",
        "ValueError: ShardedTable: mode must be",
        'ValueError: ShardedTable: fill_value is for mode="fill"',
        "RuntimeError: ShardedTable: it was to be moved or converted",
        "TypeError: ShardedTable: a table cannot be copied or pickled",
        "RuntimeError: ShardedTable: its weight was replaced, but other ranks read the memory",
    ]
    for found in ranks.run(2, refused):
        for message, words in zip(found, expected, strict=True):
            assert message.startswith(words)


def look_up_what_is_not_dense() -> list[str]:
    """By ranks that read each other's memory, by one rank, sparse, and by the exchange."""
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    index, x = torch.tensor([0, 1]), torch.ones(2)
    found = []
    for options in ({}, {"group": alone}, {"sparse": True}, {"route": "exchange"}):
        table = ShardedTable(4, 2, **options)  # type: ignore[arg-type]
        calls: list[Callable[[], Any]] = [
            lambda table=table: table(index.to_sparse()),
            lambda table=table: table(torch.nested.nested_tensor([index])),
            lambda table=table: torch.vmap(table)(index),
            lambda table=table: torch.func.grad(lambda x, i: (x * table(i)).sum())(x, index),
        ]
        found += [message_of(call) for call in calls]
        if table.route == "direct" and table.local_weight is None:  # nothing is transformed here
            rows = torch.vmap(lambda x, table=table: x * table(index))(torch.eye(2))
            rows.sum().backward()
            grad: Any = table.weight.grad
            assert grad.full_tensor().sum() == 4 * table.weight.device_mesh.size()
    return found


def test_index_that_is_not_dense() -> None:
    expected = [
        "TypeError: ShardedTable: index must be a dense tensor, but its layout is Sparse. Its",
        "TypeError: ShardedTable: index must be a dense tensor, but it is a nested one.",
        *2 * ["RuntimeError: ShardedTable: torch.vmap and torch.func cannot transform a lookup."],
    ]
    for found in ranks.run(2, look_up_what_is_not_dense):
        for message, words in zip(found, 4 * expected, strict=True):
            assert message.startswith(words)
