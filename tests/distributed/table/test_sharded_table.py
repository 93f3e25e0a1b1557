"""torch_ops.distributed.ShardedTable, by both routes: rows, gradients, training, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from ranks import message_of
from test_table import SOME_BAD, WITH_BAD
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

import torch_ops
from torch_ops.distributed import ShardedTable

pytestmark = pytest.mark.usefixtures("ranks_device")

ROUTES = ["direct", "exchange"]
SMALL = 2000  # bytes of an inbox, which a few rows fill


def indices(rows: int, count: int = 7) -> list[Tensor]:
    """One for each rank, of another length each; nothing on rank 1."""
    generator = ranks.generator(rows)
    return [
        torch.randint(rows, (rank + 2, 0 if rank == 1 else count), generator=generator)
        for rank in range(dist.get_world_size())
    ]


def copy_of(table: ShardedTable) -> Tensor:
    weight: Any = table.weight
    return weight.detach().full_tensor()


# ---- Rows and gradients -------------------------------------------------------------------------


def _loss(rows: Tensor) -> Tensor:
    cubes = (rows**3).sum()
    return cubes.real if rows.is_complex() else cubes


def check(rows: int, dtype: torch.dtype, route: str, inbox_bytes: int, count: int) -> None:
    table = ShardedTable(rows, 3, dtype=dtype, route=route, inbox_bytes=inbox_bytes)
    assert table.route == route
    check_table(table, indices(rows, count), dist.get_rank())


def check_table(table: ShardedTable, all_indices: list[Tensor], rank: int) -> None:
    plain = copy_of(table).requires_grad_()
    for look_up in (table, lambda index: torch_ops.distributed.gather(table.weight, index)):
        expected = [torch_ops.gather(plain, index) for index in all_indices]
        output = look_up(all_indices[rank])
        assert type(output) is Tensor and torch.equal(output, expected[rank])
        (wanted,) = torch.autograd.grad(
            sum(_loss(each) for each in expected), plain, create_graph=True
        )
        (grad,) = torch.autograd.grad(_loss(output), table.weight, create_graph=True)
        assert grad.placements == (Shard(0),)
        torch.testing.assert_close(grad.full_tensor(), wanted)
        (wanted_second,) = torch.autograd.grad(wanted, plain, plain.detach())
        (second,) = torch.autograd.grad(grad, table.weight, table.weight.detach())
        torch.testing.assert_close(second.full_tensor(), wanted_second)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 11])
@pytest.mark.parametrize("world", [2, 4])
def test_rows_and_gradients(world: int, rows: int, dtype: torch.dtype, route: str) -> None:
    ranks.run(world, check, rows, dtype, route, 1 << 20, 7)


@pytest.mark.parametrize("world", [2, 4])
def test_gradients_that_do_not_fit_the_inbox(world: int) -> None:
    ranks.run(world, check, 300, torch.float64, "direct", SMALL, 200)


def check_groups(route: str) -> None:
    """Groups of one rank and of two, and two tables of each, in one process."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    alone = [dist.new_group([each]) for each in range(4)]
    for group in (pairs[rank // 2], alone[rank], ranks.mesh((4,)), None):
        tables = [
            ShardedTable(rows, 3, dtype=torch.float64, group=group, route=route) for rows in (11, 6)
        ]
        for table in tables:
            mesh = table.weight.device_mesh
            check_table(table, indices(6)[: mesh.size()], mesh.get_local_rank())


@pytest.mark.parametrize("route", ROUTES)
def test_several_groups_and_tables(route: str) -> None:
    ranks.run(4, check_groups, route)


def round_once(table: ShardedTable) -> list[float]:
    """A thousand ones for a row on each rank, and what makes the sum not exact in 16 bits."""
    sums = []
    for _ in range(2):
        (grad,) = torch.autograd.grad(
            table(torch.zeros(1003, dtype=torch.uint8)).sum(), table.weight
        )
        assert grad.dtype == table.weight.dtype
        sums.append(grad.full_tensor()[0].item())
    return sums


def round_once_by(route: str, dtype: torch.dtype) -> list[float]:
    return round_once(ShardedTable(4, 1, dtype=dtype, route=route))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("route", ROUTES)
def test_sums_are_rounded_once(route: str, dtype: torch.dtype) -> None:
    exact = torch.tensor(4012.0).to(dtype).item()
    assert ranks.run(4, round_once_by, route, dtype) == [[exact, exact]] * 4


def differs_from_exact(dtype: torch.dtype, width: int, inbox_bytes: int) -> float:
    """Of rows that few entries name or one, in values whose sums are exact."""
    table = ShardedTable(300, width, dtype=dtype, route="direct", inbox_bytes=inbox_bytes)
    wanted = torch.zeros(300, width)
    for rank in range(dist.get_world_size()):
        generator = ranks.generator(rank)
        index = torch.randint(300, (250,), generator=generator)
        values = torch.randint(-8, 9, (250, width), generator=generator).to(dtype)
        wanted.index_add_(0, index, values.float())
        if rank == dist.get_rank():
            (grad,) = torch.autograd.grad(table(index), table.weight, values)
    assert grad.dtype == dtype
    return float((grad.full_tensor().float() - wanted).abs().max())


@pytest.mark.parametrize("inbox_bytes", [SMALL, 1 << 20])
@pytest.mark.parametrize("width", [5, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_of_one_entry_and_of_several(dtype: torch.dtype, width: int, inbox_bytes: int) -> None:
    assert ranks.run(2, differs_from_exact, dtype, width, inbox_bytes) == [0.0, 0.0]


def gradient_bits(table: ShardedTable) -> Tensor:
    """Of a table of 50 rows of 5."""
    generator = ranks.generator(dist.get_rank())
    index = torch.randint(50, (4000,), generator=generator)
    values = torch.randn(4000, 5, generator=generator)
    return torch.autograd.grad(table(index), table.weight, values)[0].full_tensor()


def gradient_bits_by(route: str) -> Tensor:
    return gradient_bits(ShardedTable(50, 5, route=route, inbox_bytes=SMALL))


@pytest.mark.parametrize("route", ROUTES)
def test_deterministic(route: str) -> None:
    first, second = (ranks.run(2, gradient_bits_by, route) for _ in range(2))
    assert all(torch.equal(each, first[0]) for each in first + second)


def check_modes(table: ShardedTable) -> None:
    """Of a table of 7 rows."""
    plain = copy_of(table)
    index = torch.tensor(SOME_BAD).roll(dist.get_rank())
    for options in WITH_BAD:
        own = plain.clone().requires_grad_()
        expected = torch_ops.gather(own, index, **options)
        found = table(index, **options)
        assert torch.equal(found.detach().nan_to_num(5), expected.detach().nan_to_num(5)), options
        expected.abs().nan_to_num(0).sum().backward()
        (grad,) = torch.autograd.grad(found.abs().nan_to_num(0).sum(), table.weight)
        world = dist.get_world_size()  # the same rows on all ranks
        torch.testing.assert_close(grad.full_tensor(), own.grad * world)


def check_modes_by(route: str, dtype: torch.dtype) -> None:
    plain = (torch.randn(7, 3) * 9).to(dtype)
    placed = distribute_tensor(plain, ranks.mesh(), [Shard(0)])
    check_modes(ShardedTable.from_dtensor(placed, route=route))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize("route", ROUTES)
def test_modes(route: str, dtype: torch.dtype) -> None:
    ranks.run(2, check_modes_by, route, dtype)


def check_index_dtypes(route: str) -> None:
    table = ShardedTable(9, 2, route=route)
    plain = copy_of(table)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        index = torch.tensor([[8, 0], [3, 8]], dtype=dtype)
        for each in (index, index.T, index[:, :1].expand(2, 3), index[:0]):
            assert torch.equal(table(each), plain[each.long()])
    assert table(index[0, 0]).shape == (2,)
    for narrow in (ShardedTable(9, 0, route=route), ShardedTable(0, 3, route=route)):
        assert narrow(index[:0]).shape == (0, 2, narrow.weight.shape[1])
        narrow(index[:0]).sum().backward()
        assert narrow.weight.grad.full_tensor().shape == narrow.weight.shape


@pytest.mark.parametrize("route", ROUTES)
def test_index_dtypes_and_empty_tables(route: str) -> None:
    ranks.run(2, check_index_dtypes, route)


def compiled(table: ShardedTable, backend: str) -> None:
    """Of a table of 11 rows in float64."""
    plain = copy_of(table).requires_grad_()
    all_indices = indices(11)
    function = torch.compile(table, backend=backend, fullgraph=True)
    for _ in range(2):
        (function(all_indices[dist.get_rank()]) ** 2).sum().backward()
        loss = sum((torch_ops.gather(plain, index) ** 2).sum() for index in all_indices)
        (wanted,) = torch.autograd.grad(loss, plain)
        torch.testing.assert_close(table.weight.grad.full_tensor(), wanted)
        with torch.no_grad():
            table.weight.sub_(table.weight.grad, alpha=0.1)
            plain.sub_(wanted, alpha=0.1)
        table.weight.grad = None


def compiled_by(route: str, backend: str) -> None:
    compiled(ShardedTable(11, 3, dtype=torch.float64, route=route), backend)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("route", ROUTES)
def test_compile(route: str, backend: str) -> None:
    ranks.run(2, compiled_by, route, backend)


# ---- Training -----------------------------------------------------------------------------------


def train(make: str, route: str, sparse: bool) -> None:
    """Many steps without a barrier: each lookup must see what all ranks wrote."""
    makers: dict[str, Any] = {
        "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1),
        "foreach": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.5, foreach=True),
        "fused": lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
        "Adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
        "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
        "SparseAdam": lambda weights: torch.optim.SparseAdam(weights, lr=0.1),
    }
    table = ShardedTable(13, 3, dtype=torch.float64, route=route, sparse=sparse)
    plain = nn.Embedding.from_pretrained(copy_of(table), freeze=False, sparse=sparse)
    weight = table.local_weight if sparse else table.weight
    optimizer, reference = makers[make]([weight]), makers[make]([plain.weight])
    generator = ranks.generator(3)
    world, rank = dist.get_world_size(), dist.get_rank()
    for step in range(25):
        batch = torch.randint(13, (world, 2, 4), generator=generator)
        for half in range(2):  # gradients of two batches are added
            output = table(batch[rank, half])
            assert torch.equal(output, plain(batch[rank, half])), step
            (output**2).sum().backward()
            sum((plain(each) ** 2).sum() for each in batch[:, half]).backward()
        optimizer.step()
        optimizer.zero_grad()
        reference.step()
        reference.zero_grad()
        # Sums over ranks are added in another order.
        torch.testing.assert_close(copy_of(table), plain.weight.detach())
        dist.barrier()  # full_tensor() reads, and what follows writes, for the test alone
        with torch.no_grad():
            plain.weight.copy_(copy_of(table))
        dist.barrier()


@pytest.mark.parametrize(
    ("route", "make"),
    [
        *(("direct", make) for make in ("SGD", "foreach", "fused", "Adam", "Adagrad")),
        *(("exchange", make) for make in ("SGD", "Adam")),
    ],
)
def test_training(route: str, make: str) -> None:
    ranks.run(2, train, make, route, False)


@pytest.mark.parametrize(
    ("route", "make"),
    [("direct", "SGD"), *(("exchange", make) for make in ("SGD", "Adagrad", "SparseAdam"))],
)
def test_sparse_training(route: str, make: str) -> None:
    ranks.run(2, train, make, route, True)


def step_after_a_lookup(make: str, sparse: bool) -> None:
    """A metric is looked up between the backward pass and the step, in which rank 1 is late."""
    makers: dict[str, Any] = {
        "foreach": lambda weights: torch.optim.SGD(weights, lr=0.1, foreach=True),
        "fused": lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
        "SparseAdam": lambda weights: torch.optim.SparseAdam(weights, lr=0.1),
    }
    table = ShardedTable(8, 2, route="direct", sparse=sparse)
    optimizer = makers[make]([table.local_weight if sparse else table.weight])
    index = torch.arange(8)
    for _ in range(3):
        table(index).sum().backward()
        with torch.no_grad():
            before = table(index)
        dist.barrier()  # no backward pass is between that lookup and the step
        if dist.get_rank() == 1:
            time.sleep(0.1)
        optimizer.step()
        found = table(index).detach()
        dist.barrier()
        assert torch.equal(found, copy_of(table)) and not torch.isclose(found, before).any()


@pytest.mark.parametrize("make", ["foreach", "fused", "SparseAdam"])
def test_step_after_a_lookup(make: str) -> None:
    """torch counts no writes of foreach and fused optimizers."""
    ranks.run(2, step_after_a_lookup, make, make == "SparseAdam")


def zero_and_freeze(sparse: bool) -> None:
    table: Any = ShardedTable(4, 2, sparse=sparse)
    weight = table.local_weight if sparse else table.weight
    index = torch.arange(4)
    for set_to_none in (True, False):
        table(index).sum().backward()
        assert weight.grad is not None
        table.zero_grad(set_to_none)
        assert weight.grad is None if set_to_none else not weight.grad.to_dense().any()
    assert table.requires_grad_(False) is table and not table(index).requires_grad
    assert table.requires_grad_()(index).requires_grad and table.weight.requires_grad != sparse


@pytest.mark.parametrize("sparse", [False, True])
def test_zero_grad_and_requires_grad(sparse: bool) -> None:
    ranks.run(1, zero_and_freeze, sparse)


def make_outside() -> str:
    group = dist.new_group([0])
    return message_of(lambda: ShardedTable(4, 2, group=group))


def test_rank_outside_the_group() -> None:
    member, outside = ranks.run(2, make_outside)
    assert not member and "ValueError: ShardedTable: this rank is not a member" in outside


def sparse_gradient(route: str, world: int) -> None:
    group = dist.new_group(list(range(world)))
    if dist.get_rank() >= world:
        return
    table = ShardedTable(
        9, 2, dtype=torch.bfloat16, route=route, sparse=True, group=group, inbox_bytes=SMALL
    )
    index = torch.tensor([8, 0, 8, 5, -1])
    (table(index, mode="wrap") * 3).sum().backward()
    grad = table.local_weight.grad
    assert grad.is_sparse and grad.dtype == torch.bfloat16
    first = -(-9 // world) * dist.get_rank()
    rows = [row - first for row in (0, 5, 8) if first <= row < first + table.local_weight.shape[0]]
    assert grad._indices().tolist() == [rows]  # distinct; autograd forgets that it knew it
    counts = {0: 1, 5: 1, 8: 3}
    wanted = [[3.0 * counts[row + first] * world] * 2 for row in rows]
    assert grad._values().tolist() == wanted
    assert table.weight.grad is None and not table.weight.requires_grad
    assert [name for name, _ in table.named_parameters()] == ["weight"]

    def of_a_table_that_nobody_keeps(dim: int) -> Tensor:
        table = ShardedTable(9, dim, route=route, sparse=True, group=group)
        return table(index, mode="wrap").sum()

    for dim in (2, 0):
        of_a_table_that_nobody_keeps(dim).backward()


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("route", ROUTES)
def test_sparse_gradient(route: str, world: int) -> None:
    ranks.run(4, sparse_gradient, route, world)


# ---- Values -------------------------------------------------------------------------------------


def first_values(rows: int, dim: int, dtype: torch.dtype, seed: int) -> Tensor:
    torch.manual_seed(seed + dist.get_rank())
    table = ShardedTable(rows, dim, dtype=dtype)
    uniform = ShardedTable(rows, dim, init=lambda rows: nn.init.uniform_(rows, 2, 3))
    values = copy_of(uniform)
    assert ((values >= 2) & (values <= 3)).all()
    return copy_of(table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_initial_values_are_the_same_for_all_numbers_of_ranks(dtype: torch.dtype) -> None:
    """Here there are several blocks, of which no rank has whole ones."""
    of_two, of_four = (ranks.run(world, first_values, 1501, 700, dtype, 1)[0] for world in (2, 4))
    assert torch.equal(of_two, of_four)
    assert abs(of_two.float().mean()) < 0.01 and abs(of_two.float().std() - 1) < 0.01
    blocks = of_two.split(2**18 // 700)
    assert not torch.equal(blocks[0], blocks[1])
    other = ranks.run(2, first_values, 1501, 700, dtype, 2)[0]
    assert not torch.equal(of_two, other)


def save(folder: str, route: str, rows: int) -> Tensor:
    table = ShardedTable(rows, 3, route=route)
    checkpoint.save({"table": table.state_dict()}, checkpoint_id=folder)
    return copy_of(table)


def load(folder: str, route: str, rows: int) -> Tensor:
    table = ShardedTable(rows, 3, route=route, init=nn.init.zeros_)
    index = torch.arange(rows)
    table(index)
    state = {"table": table.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    table.load_state_dict(state["table"])
    return table(index).detach()


@pytest.mark.parametrize("rows", [3, 11])
@pytest.mark.parametrize("route", ROUTES)
def test_checkpoint_of_another_number_of_ranks(tmp_path: Path, route: str, rows: int) -> None:
    saved = ranks.run(4, save, str(tmp_path), route, rows)[0]
    for loaded in ranks.run(2, load, str(tmp_path), route, rows):
        assert torch.equal(loaded, saved)


def written(route: str) -> None:
    """Writes of several kinds, each seen by all ranks in the lookup that follows."""
    table = ShardedTable(6, 2, route=route)
    index = torch.arange(6)
    weight: Any = table.weight
    for turn in range(20):
        value = float(turn)
        dist.barrier()  # no backward pass is between the lookup and what follows
        if turn % 3 == 0:
            with torch.no_grad():
                weight.fill_(value)
        elif turn % 3 == 1:
            table.load_state_dict({"weight": torch.full_like(weight, value)})
        else:
            weight.to_local().detach().fill_(value)
            table.mark_written()
        assert torch.equal(table(index), torch.full((6, 2), value))


@pytest.mark.parametrize("route", ROUTES)
def test_writes_are_seen(route: str) -> None:
    ranks.run(4, written, route)


def replaced(route: str) -> None:
    """No other rank reads the memory of the weight that was there."""
    table = ShardedTable(6, 2, route=route)
    index = torch.tensor([5, 0])
    weight: Any = table.weight.detach() * 2
    expected = weight.full_tensor()[index]
    assert torch.equal(torch.func.functional_call(table, {"weight": weight}, (index,)), expected)
    table.load_state_dict({"weight": weight}, assign=True)
    assert torch.equal(table(index), expected)
    (grad,) = torch.autograd.grad(table(index).sum(), table.weight)
    assert grad.full_tensor().sum() == 2 * 2 * dist.get_world_size()
    table.load_state_dict({"weight": weight.full_tensor()}, assign=True)
    with pytest.raises(TypeError, match="ShardedTable: table must be a DTensor"):
        table(index)
    sparse = ShardedTable(6, 2, route=route, sparse=True)
    sparse.load_state_dict({"weight": weight}, assign=True)
    with pytest.raises(RuntimeError, match="was replaced, but local_weight shares the memory"):
        sparse(index)


def test_replaced_weight() -> None:
    ranks.run(2, replaced, "exchange")


def from_dtensor(route: str) -> None:
    mesh = ranks.mesh()
    plain = torch.randn(7, 2, 3)
    placed = distribute_tensor(plain, mesh, [Shard(0)])
    table = ShardedTable.from_dtensor(placed, route=route)
    index = torch.tensor([6, 1])
    assert torch.equal(table(index), plain[index])
    assert repr(table) == f"ShardedTable(7, 2, 3, route='{route}')"
    single = ShardedTable.from_dtensor(placed[:, 0, 0], route=route)
    assert repr(single) == f"ShardedTable(7, route='{route}')"
    with torch.no_grad():
        placed.zero_()  # it was copied
    assert torch.equal(copy_of(table), plain)


@pytest.mark.parametrize("route", ROUTES)
def test_from_dtensor(route: str) -> None:
    ranks.run(4, from_dtensor, route)


def prefetched() -> None:
    table = ShardedTable(11, 3, dtype=torch.float64, route="exchange")
    all_indices, rank = indices(11), dist.get_rank()
    index = all_indices[rank]
    table.prefetch(index)
    with torch.no_grad():
        table.weight.mul_(2)  # rows are those of the lookup
    check_table(table, all_indices, rank)
    table.prefetch(index)
    assert torch.equal(table(index.clone()), copy_of(table)[index])  # another: asked anew
    bad = torch.tensor([1, 11 if rank == 1 else 2])
    table.prefetch(bad)
    words = r"index\[1\] is 11" if rank == 1 else "rank 1 of"
    with pytest.raises(IndexError, match=f"^ShardedTable: {words}"):
        table(bad)
    with pytest.raises(TypeError, match=r"^ShardedTable\.prefetch: index must be uint8"):
        table.prefetch(bad.float())
    check_table(table, all_indices, rank)


def test_prefetch() -> None:
    ranks.run(2, prefetched)


MISTAKES: dict[str, tuple[str, Callable[[ShardedTable, Tensor], Any]]] = {
    "entry": ("IndexError: ShardedTable: index", lambda table, index: table(index + 99)),
    "dtype": ("TypeError: ShardedTable: index must", lambda table, index: table(index.float())),
    "mode": ("ValueError: ShardedTable: mode must", lambda table, index: table(index, mode="no")),
    "vmap": (
        "RuntimeError: ShardedTable: torch.vmap and torch.func cannot",
        lambda table, index: torch.vmap(table)(index),
    ),
    "number": ("TypeError: ShardedTable: index must", lambda table, index: table(3)),
    "prefetch": (
        "TypeError: ShardedTable.prefetch: index must",
        lambda table, index: table.prefetch(index.float()),
    ),
    "gather": (
        "TypeError: distributed.gather: index must",
        lambda table, index: torch_ops.distributed.gather(table.weight, index.float()),
    ),
}


def make_mistakes(table: ShardedTable, bad: list[int], kind: str) -> list[str]:
    """These ranks make it in the second of three steps."""
    index, found = torch.tensor([[0, 1], [2, 6]], device=table.weight.device), []
    for step in range(3):
        wrong = step == 1 and dist.get_rank() in bad
        try:
            if wrong:
                MISTAKES[kind][1](table, index)
            elif kind == "prefetch":
                table.prefetch(index)
            if kind == "gather":
                torch_ops.distributed.gather(table.weight, index).sum().backward()
            else:
                table(index).sum().backward()
            found.append("")
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def check_mistakes(found: list[list[str]], bad: list[int], kind: str) -> None:
    """Their ranks name them; all others name a rank that has made one."""
    for rank, of_rank in enumerate(found):
        assert [bool(message) for message in of_rank] == [False, True, False]
        if rank in bad:
            assert of_rank[1].startswith(MISTAKES[kind][0])
        else:
            assert any(f"rank {other} of the group has an entry" in of_rank[1] for other in bad)


def exchange_mistakes(bad: list[int], kind: str) -> list[str]:
    return make_mistakes(ShardedTable(7, 2, route="exchange"), bad, kind)


@pytest.mark.parametrize("kind", MISTAKES)
@pytest.mark.parametrize("bad", [[1], [0, 2]], ids=str)
def test_mistakes_of_a_rank(bad: list[int], kind: str) -> None:
    check_mistakes(ranks.run(3, exchange_mistakes, bad, kind), bad, kind)
