"""ShardedTable by the hierarchical route, on ranks that pose as those of several hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import ranks
import test_sharded_table as of_table
import torch
import torch.distributed as dist
from torch import Tensor

from torch_ops.distributed import ShardedTable, _exchange, _hosts, sharded_table

pytestmark = pytest.mark.usefixtures("ranks_device")
HOSTS = {"blocks": [0, 0, 1, 1], "in turn": [0, 1, 0, 1], "nested": [0, 1, 1, 0], "one": [0] * 4}
MIXED = ("in turn", "nested", "one")
every_layout = pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)


def pose(hosts: Sequence[int], function: Callable[..., Any], *args: Any) -> Any:
    """Calls it with a group of which rank r is on the host ``hosts[r]``."""
    host = f"host {hosts[dist.get_rank()]}"
    with mock.patch.object(sharded_table, "host", return_value=host):
        return function(dist.new_group(), *args)


def make(group: Any, *args: Any, **options: Any) -> ShardedTable:
    table = ShardedTable(*args, group=group, route="hierarchical", **options)
    assert table.route == "hierarchical"
    return table


# ---- Rows and gradients -------------------------------------------------------------------------


def check(group: Any, rows: int, dtype: torch.dtype) -> None:
    """Indices of any lengths; first and second gradients, by the table and by its weight."""
    table = make(group, rows, 3, dtype=dtype)
    of_table.check_table(table, of_table.indices(rows), dist.get_rank())


@pytest.mark.parametrize(
    ("rows", "hosts"),
    [
        *(pytest.param(rows, HOSTS["blocks"], id=f"{rows}-blocks") for rows in (1, 5, 11, 40)),
        *(pytest.param(n, HOSTS[name], id=f"{n}-{name}") for n in (1, 11) for name in MIXED),
    ],
)
def test_rows_and_gradients(rows: int, hosts: list[int]) -> None:
    ranks.run(4, pose, hosts, check, rows, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    ranks.run(4, pose, HOSTS["blocks"], check, 11, dtype)


def check_modes(group: Any) -> None:
    of_table.check_modes(make(group, 7, 3))


def test_modes() -> None:
    ranks.run(4, pose, HOSTS["blocks"], check_modes)


def sums_in_16_bits(group: Any) -> list[float]:
    return of_table.round_once(make(group, 4, 1, dtype=torch.bfloat16))


def test_sums_are_rounded_once() -> None:
    exact = torch.tensor(4012.0).to(torch.bfloat16).item()
    assert ranks.run(4, pose, HOSTS["blocks"], sums_in_16_bits) == [[exact, exact]] * 4


def gradient_bits(group: Any) -> Tensor:
    return of_table.gradient_bits(make(group, 50, 5))


def test_deterministic() -> None:
    first, second = (ranks.run(4, pose, HOSTS["blocks"], gradient_bits) for _ in range(2))
    assert all(torch.equal(each, first[0]) for each in first + second)


def train(group: Any, sparse: bool, prefetched: bool) -> tuple[Tensor, Tensor]:
    """Beside a table that exchanges rows in one step."""
    trained = []
    for route in ("hierarchical", "exchange"):
        torch.manual_seed(3)
        table = ShardedTable(30, 4, dtype=torch.float64, group=group, route=route, sparse=sparse)
        parameter = table.local_weight if sparse else table.weight
        assert parameter is not None
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        batches = torch.randint(30, (5, 4, 12), generator=ranks.generator(7))[:, dist.get_rank()]
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            table(batch).square().sum().backward()
            if prefetched and step + 1 < len(batches):
                table.prefetch(batches[step + 1])
            optimizer.step()
        trained.append(of_table.copy_of(table))
    return trained[0], trained[1]


@pytest.mark.parametrize("prefetched", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_training(sparse: bool, prefetched: bool) -> None:
    for ours, expected in ranks.run(4, pose, HOSTS["blocks"], train, sparse, prefetched):
        torch.testing.assert_close(ours, expected)


def compiled(group: Any) -> None:
    of_table.compiled(make(group, 11, 3, dtype=torch.float64), "aot_eager")


def test_compiled() -> None:
    ranks.run(4, pose, HOSTS["blocks"], compiled)


# ---- What crosses the network --------------------------------------------------------------------


def rows_sent(group: Any, route: str) -> list[int]:
    """Requests, rows and sums that this rank sends to the other host."""
    rank, hosts = dist.get_rank(), HOSTS["blocks"]
    table = ShardedTable(64, 4, group=group, route=route)
    send, sent = _exchange._send, []

    def count(tensor: Tensor, to: list[int], come: list[int], of: Any) -> Tensor:
        members = dist.get_process_group_ranks(of)
        sent.append(
            sum(
                rows for rows, other in zip(to, members, strict=True) if hosts[other] != hosts[rank]
            )
        )
        return send(tensor, to, come, of)

    with mock.patch.object(_exchange, "_send", count):
        table(_wanted()[rank].to(ranks.device_type)).sum().backward()
    if route == "hierarchical":  # in two steps, of which the one within the host sends nothing out
        assert len(sent) == 6 and sent[0] == sent[3] == sent[4] == 0
        return [sent[1], sent[2], sent[5]]
    return sent


def _wanted() -> list[Tensor]:
    """Of each rank: the ranks of a host want much that is the same."""
    generator = torch.Generator("cpu").manual_seed(11)
    options: Any = {"generator": generator, "device": "cpu"}
    return [torch.randint(40, (100,), **options) + 10 for _ in range(4)]


def test_a_row_crosses_once_for_each_host() -> None:
    wanted = [set(each.tolist()) for each in _wanted()]
    remote = [set(range(32, 64)), set(range(32))]  # of host 0 and of host 1
    in_one_step = sum(len(rows & remote[rank // 2]) for rank, rows in enumerate(wanted))
    by_host = sum(
        len((wanted[2 * host] | wanted[2 * host + 1]) & remote[host]) for host in range(2)
    )
    assert by_host < 0.7 * in_one_step
    for route, expected in (("exchange", in_one_step), ("hierarchical", by_host)):
        sent = ranks.run(4, pose, HOSTS["blocks"], rows_sent, route)
        assert [sum(of_all) for of_all in zip(*sent, strict=True)] == [expected] * 3


# ---- Errors -------------------------------------------------------------------------------------


def make_mistakes(group: Any, bad: list[int], kind: str) -> list[str]:
    return of_table.make_mistakes(make(group, 7, 2), bad, kind)


@every_layout
@pytest.mark.parametrize("bad", [[1], [0, 3]], ids=str)
@pytest.mark.parametrize("kind", ["entry", "dtype"])
def test_mistakes_of_a_rank(bad: list[int], kind: str, hosts: list[int]) -> None:
    """The others, of other hosts too, hear of them."""
    of_table.check_mistakes(ranks.run(4, pose, hosts, make_mistakes, bad, kind), bad, kind)


@pytest.mark.parametrize("kind", ["mode", "prefetch", "gather"])
def test_other_mistakes_of_a_rank(kind: str) -> None:
    found = ranks.run(4, pose, HOSTS["blocks"], make_mistakes, [1], kind)
    of_table.check_mistakes(found, [1], kind)


def uneven(group: Any) -> str:
    return ranks.message_of(lambda: make(group, 7, 2))


def test_hosts_of_different_sizes() -> None:
    for message in ranks.run(4, pose, [0, 0, 0, 1], uneven):
        assert message.startswith(
            'ValueError: ShardedTable: route="hierarchical" is for hosts that have the same number '
            "of ranks, but they have 3, 1. Use"
        )


def on_some_ranks() -> str:
    """Rank 2 becomes a member of one more group than rank 0, though all make the same ones."""
    rank = dist.get_rank()
    group = dist.new_group([0, 2])
    if rank != 1:
        of_table.check_table(make(group, 5, 3), of_table.indices(5)[:2], group.rank())
    again, _ = dist.new_group([0, 2]), dist.new_group([1, 2])

    def use() -> None:
        of_table.check_table(make(again, 5, 3), of_table.indices(5)[:2], again.rank())

    return ranks.message_of(use) if rank != 1 else ""


def test_ranks_of_different_numbers_of_groups() -> None:
    none, *found = sorted(ranks.run(3, on_some_ranks))
    assert none == "" and found[0] == found[1]
    if _hosts.named_by_count():
        assert found[0] == ""
    else:
        assert found[0].startswith('ValueError: ShardedTable: route="hierarchical" makes process')
