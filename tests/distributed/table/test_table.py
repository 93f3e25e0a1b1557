"""torch_ops.distributed.gather: each rank's own index, and the rows exchanged."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import torch_ops
import torch_ops.distributed

pytestmark = pytest.mark.usefixtures("ranks_device")

ROWS = 11


def _index(rank: int, kind: str, rows: int = ROWS) -> Tensor:
    """Of another length on each rank; nothing on rank 1."""
    generator = ranks.generator(rank)
    shape = (rank + 2, 0 if rank == 1 else 7)
    if kind == "one row":
        return torch.full(shape, rows - 1)
    return torch.randint(rows, shape, generator=generator)


def _indices(kind: str, rows: int = ROWS) -> list[Tensor]:
    return [_index(rank, kind, rows) for rank in range(dist.get_world_size())]


def check(
    rows: int, width: tuple[int, ...], kind: str, backend: str | None
) -> list[tuple[int, ...]]:
    mesh = ranks.mesh()
    rank, indices = dist.get_rank(), _indices(kind, rows)
    plain = torch.randn(rows, *width, dtype=torch.float64, requires_grad=True)
    table = distribute_tensor(plain.detach(), mesh, [Shard(0)]).requires_grad_()
    gather: Any = torch_ops.distributed.gather
    gather = torch.compile(gather, backend=backend) if backend else gather

    expected = [torch_ops.gather(plain, index) for index in indices]
    output = gather(table, indices[rank])
    assert type(output) is Tensor and torch.equal(output, expected[rank])

    loss = sum((each**3).sum() for each in expected)
    (wanted,) = torch.autograd.grad(loss, plain, create_graph=True)
    (grad,) = torch.autograd.grad((output**3).sum(), table, create_graph=backend is None)
    assert grad.placements == table.placements
    torch.testing.assert_close(grad.full_tensor(), wanted)
    if backend is None:
        (wanted_second,) = torch.autograd.grad(wanted, plain, plain.detach())
        (second,) = torch.autograd.grad(grad, table, table.detach())
        torch.testing.assert_close(second.full_tensor(), wanted_second)
    return [tuple(grad.to_local().shape)]


@pytest.mark.parametrize("kind", ["random", "one row"])
@pytest.mark.parametrize("width", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("world", [2, 4])
def test_values_and_gradients(world: int, width: tuple[int, ...], kind: str) -> None:
    found = ranks.run(world, check, ROWS, width, kind, None)
    assert sum(shape[0] for (shape,) in found) == ROWS


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_ranks_without_rows(rows: int) -> None:
    ranks.run(4, check, rows, (3,), "random", None)


def gradient_of_no_columns() -> list[int]:
    table = distribute_tensor(torch.ones(5, 0, 3), ranks.mesh(), [Shard(0)]).requires_grad_()
    torch_ops.distributed.gather(table, torch.tensor([1, 2])).sum().backward()
    assert table.grad is not None and table.grad.stride() == table.stride()
    return list(table.grad.to_local().shape)


def test_gradient_of_a_table_of_no_columns() -> None:
    assert ranks.run(2, gradient_of_no_columns) == [[3, 0, 3], [2, 0, 3]]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile(backend: str) -> None:
    ranks.run(2, check, ROWS, (3,), "random", backend)


def round_once() -> list[float]:
    """A thousand ones for row 0 on each rank, in bfloat16, and what makes the sum not exact."""
    mesh = ranks.mesh()
    table = distribute_tensor(torch.zeros(4, 1, dtype=torch.bfloat16), mesh, [Shard(0)])
    table.requires_grad_()
    bits = []
    for _ in range(2):
        output = torch_ops.distributed.gather(table, torch.zeros(1003, dtype=torch.uint8))
        (grad,) = torch.autograd.grad(output.sum(), table)
        bits.append(grad.full_tensor()[0].item())
    return bits


def test_sums_are_rounded_once() -> None:
    exact = torch.tensor(4012.0).bfloat16().item()
    assert ranks.run(4, round_once) == [[exact, exact]] * 4


# Entries of an index of 7 rows, and what gives a meaning to those out of range.
SOME_BAD = [0, -1, 6, 7, -7, -8, 100]
WITH_BAD: list[dict[str, Any]] = [
    *({"mode": "wrap"}, {"mode": "clip"}),
    *({"mode": "fill"}, {"mode": "fill", "fill_value": 1}),
]


def check_modes(dtype: torch.dtype) -> None:
    mesh = ranks.mesh()
    plain = (torch.randn(7, 3) * 9).to(dtype)
    table = distribute_tensor(plain, mesh, [Shard(0)])
    index = torch.tensor(SOME_BAD).roll(dist.get_rank())
    for options in WITH_BAD:
        found = torch_ops.distributed.gather(table, index, **options)
        expected = torch_ops.gather(plain, index, **options)
        assert torch.equal(found.nan_to_num(5), expected.nan_to_num(5)), options


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.complex64, torch.int32, torch.bool], ids=str
)
def test_modes(dtype: torch.dtype) -> None:
    ranks.run(2, check_modes, dtype)


def fail_on_one() -> tuple[str, bool]:
    mesh = ranks.mesh()
    plain = torch.randn(7, 3)
    table = distribute_tensor(plain, mesh, [Shard(0)])
    index = torch.tensor([[0, 1], [2, 9 if dist.get_rank() == 1 else 3]])
    message = ranks.message_of(lambda: torch_ops.distributed.gather(table, index))
    index = index.clamp(max=6)
    again = torch_ops.distributed.gather(table, index)
    return message, torch.equal(again, plain[index])


def test_one_rank_has_an_entry_out_of_range() -> None:
    """It says which; nobody waits for ever; the next call works."""
    found = ranks.run(4, fail_on_one)
    assert all(good for _, good in found)
    messages = [message for message, _ in found]
    assert messages[1].startswith("IndexError: distributed.gather: index[1, 1] is 9, out of range")
    for other in (0, 2, 3):
        told = "IndexError: distributed.gather: rank 1 of the group has an entry out"
        assert messages[other].startswith(told)


def replicated_too() -> None:
    mesh = ranks.mesh((2, 2))
    plain = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    placements = [Replicate(), Shard(0)]
    table = distribute_tensor(plain.detach(), mesh, placements).requires_grad_()
    indices = _indices("random", 7)
    output = torch_ops.distributed.gather(table, indices[dist.get_rank()])
    (grad,) = torch.autograd.grad((output**2).sum(), table)
    assert grad.placements == (Partial(), Shard(0))
    loss = sum((torch_ops.gather(plain, index) ** 2).sum() for index in indices)
    (wanted,) = torch.autograd.grad(loss, plain)
    torch.testing.assert_close(grad.full_tensor(), wanted)


def test_mesh_of_two_dimensions() -> None:
    ranks.run(4, replicated_too)


def refused() -> list[str]:
    mesh = ranks.mesh((2,))
    whole = torch.randn(7, 4)
    index = torch.tensor([1])
    table = distribute_tensor(whole, mesh, [Shard(0)])
    calls = [
        (whole, index),
        (distribute_tensor(whole, mesh, [Replicate()]), index),
        (distribute_tensor(whole, mesh, [Shard(1)]), index),
        (table, distribute_tensor(index, mesh, [Replicate()])),
        (table, index.float()),
        (table, [1]),
    ]
    gather: Any = torch_ops.distributed.gather
    messages = [ranks.message_of(partial(gather, *call)) for call in calls]
    with pytest.raises(ValueError, match=r"^distributed\.gather: mode must be"):
        torch_ops.distributed.gather(table, index, mode="other")
    return messages


def test_refused() -> None:
    for messages in ranks.run(2, refused):
        for message, words in zip(
            messages,
            [
                "TypeError: distributed.gather: table must be a DTensor",
                "ValueError: distributed.gather: table must be Shard(0) on one dimension",
                "ValueError: distributed.gather: table must be Shard(0) on one dimension",
                "TypeError: distributed.gather: index must be this rank's own tensor",
                "TypeError: distributed.gather: index must be uint8",
                "TypeError: distributed.gather: index must be",
            ],
            strict=True,
        ):
            assert message.startswith(words)
