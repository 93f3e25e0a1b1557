"""ShardedTable by the direct route, where it is not as on the CPU: graphs, streams, late errors."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from ranks import message_of
from torch import Tensor

from torch_ops.distributed import ShardedTable

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="about CUDA alone"),
    pytest.mark.usefixtures("ranks_device"),
]


@pytest.fixture(params=["cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def _batches(rows: int, steps: int) -> Tensor:
    return torch.randint(rows, (steps, dist.get_world_size(), 40), generator=ranks.generator(5))


def replay() -> tuple[Tensor, Tensor]:
    """Steps of training that a graph replays, beside the same steps without one."""
    rank, batches = dist.get_rank(), _batches(17, 12)
    tables = [
        ShardedTable(17, 3, dtype=torch.float64, route="direct", init=torch.nn.init.ones_)
        for _ in range(2)
    ]
    in_graph, eager = tables
    index = batches[0, rank].clone()

    def step(table: ShardedTable, index: Tensor) -> None:
        (table(index) ** 2).sum().backward()
        with torch.no_grad():
            table.weight.sub_(table.weight.grad, alpha=0.01)
            table.weight.grad.zero_()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for batch in batches[:2]:
            index.copy_(batch[rank])
            step(in_graph, index)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(in_graph, index)
    for batch in batches[2:]:
        index.copy_(batch[rank])
        graph.replay()
    for batch in batches:
        step(eager, batch[rank])
    everything = torch.arange(17)
    return in_graph(everything), eager(everything)


@pytest.mark.parametrize("world", [2, 4])
def test_graph(world: int) -> None:
    for replayed, eager in ranks.run(world, replay):
        torch.testing.assert_close(replayed, eager)
        assert (eager < 1).any()


def look_up_without_a_wait() -> None:
    table = ShardedTable(17, 3, route="direct")
    index = torch.arange(17)
    table(index)  # the first one allocates
    with torch.no_grad():
        table.weight.fill_(dist.get_rank())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = table(index)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    weight: Any = table.weight.detach()
    assert torch.equal(output, weight.full_tensor())


def test_the_host_does_not_wait_in_a_lookup() -> None:
    ranks.run(2, look_up_without_a_wait, error_mode="async")


def prefetch_on_a_stream() -> None:
    """While the main stream is busy."""
    table = ShardedTable(4000, 8, route="exchange")
    weight: Any = table.weight.detach()
    busy = torch.randn(2000, 2000)
    for batch in _batches(4000, 4)[:, dist.get_rank()]:
        table.prefetch(batch)
        for _ in range(20):
            busy = busy @ busy * 1e-3
        output = table(batch)
        output.sum().backward()
        assert torch.equal(output, weight.full_tensor()[batch])


def test_prefetch_on_a_stream() -> None:
    ranks.run(2, prefetch_on_a_stream)


def late_errors() -> list[str]:
    """Rank 1 has an entry out of range in each other step."""
    table = ShardedTable(7, 2, route="direct")
    found = []
    for step in range(6):
        index = torch.tensor([3, 9 if step % 2 == 1 and dist.get_rank() == 1 else 2])
        found.append(message_of(lambda index=index: table(index).sum().backward()))
        table.weight.grad = None
    return found


def test_late_errors() -> None:
    """The backward pass raises what the lookup has recorded, before it sends anything."""
    good, bad = ranks.run(2, late_errors, error_mode="async")
    for step in range(6):
        if step % 2 == 0:
            assert (good[step], bad[step]) == ("", "")
        else:
            told = (
                "IndexError: torch_ops.distributed: rank 1 of the group has an entry out of range"
            )
            assert good[step].startswith(told)
            assert bad[step].startswith("IndexError: ShardedTable: index[1] is 9, out of range for")


def no_peers(route: str) -> tuple[str, str, list[str]]:
    """Ranks that share a GPU, which torch allows for tests alone."""
    shared = os.environ.pop("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", None)
    message, taken = "", ""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                taken = ShardedTable(8, 3, route=route, group=dist.new_group()).route
            except RuntimeError as error:
                message = str(error)
    finally:
        if shared is not None:
            os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = shared
    return message, taken, [str(each.message) for each in caught]


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="here ranks have GPUs of their own")
def test_ranks_that_share_a_gpu() -> None:
    for message, taken, said in ranks.run(2, no_peers, "auto"):
        assert (message, taken) == ("", "exchange")
        assert sum("two ranks name their GPU by one number" in each for each in said) == 1
    for message, _, _ in ranks.run(2, no_peers, "direct"):
        assert "two ranks name their GPU by one number" in message
