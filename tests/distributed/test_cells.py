"""Each line of the tables in docs/distributed.md, on 2 and on 4 ranks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import cells
import pytest
import ranks
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import Placement

from torch_ops._install.bindings import parse

pytestmark = pytest.mark.usefixtures("ranks_device")


def _placement(text: str, axes: dict[str, int]) -> Placement:
    if text in ("R", "P"):
        return Replicate() if text == "R" else Partial()
    return Shard(axes[text[2:-1]])


def _pending(found: DTensor, places: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """The places that are expected.

    After torch 2.11 its arithmetic leaves some sums to be taken later, and some of what all ranks
    have with one of them; the tables have the placements after that.
    """
    if parse(torch.__version__) < (2, 12):
        return places
    return tuple(
        mine if isinstance(each, Replicate) else each
        for mine, each in zip(found.placements, places, strict=True)
    )


def _without_sum(placement: Placement) -> Placement:
    return Replicate() if isinstance(placement, Partial) else placement


def _distribute(tensor: Tensor, mesh: DeviceMesh, placements: list[Placement]) -> DTensor:
    """What all ranks have, as it is to be placed; a sum is of different tensors."""
    whole = [_without_sum(each) for each in placements]
    placed = distribute_tensor(tensor.detach(), mesh, whole)
    part = placed.to_local().clone()
    for d, each in enumerate(placements):
        if isinstance(each, Partial):  # of rank 0 the double, of rank 1 minus the tensor
            rank, ranks_there = mesh.get_local_rank(d), mesh.size(d)
            part *= (ranks_there - rank) / (ranks_there * (ranks_there + 1) / 2)
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _collectives(mode: CommDebugMode) -> set[str]:
    names = (str(op).split(".")[-1] for op, count in mode.get_comm_counts().items() if count)
    # On the CPU torch gathers where it moves a shard to another axis; the tables say what it does.
    also = {"alltoall_base_": "all_to_all", "shard_dim_alltoall": "all_gather"}
    return {re.sub("_into_tensor|_tensor", "", also.get(name, name)) for name in names}


def _named(collectives: Iterable[str]) -> set[str]:
    """Those that devices of this type need."""
    here = f"{ranks.device_type}:"
    words = " ".join(collectives).replace(here, "").split()
    return {word for word in words if ":" not in word}


def _axes_of(cell: cells.Cell) -> set[str]:
    return {text for text in (*cell.arguments, cell.output) if text.startswith("S")}


def run_cells(name: str, chosen: list[tuple[int, ...]], sizes: tuple[int, ...]) -> list[str]:
    """What is wrong with the cells of these numbers, one for each dimension of the mesh."""
    call = cells.CALLS[name]
    mesh = ranks.mesh(sizes)
    wrong = []
    for numbers in chosen:
        lines = [call.cells[number] for number in numbers]
        try:
            wrong += [f"{numbers} {lines}: {each}" for each in _run_cell(call, lines, mesh)]
        except Exception as error:
            raise AssertionError(f"{numbers} {lines}, after {wrong}") from error
    return wrong


def _run_cell(call: cells.Call, lines: list[cells.Cell], mesh: DeviceMesh) -> list[str]:
    wrong = []

    def expect(what: str, found: object, expected: object) -> None:
        if found != expected:
            wrong.append(f"{what} is {found} instead of {expected}")

    def close(what: str, found: DTensor, expected: Tensor) -> None:
        whole = found.full_tensor()
        expect(f"the shape of {what}", whole.shape, expected.shape)
        if whole.shape == expected.shape and not torch.allclose(whole, expected, 1e-12, 1e-12):
            wrong.append(f"{what} differs by {(whole - expected).abs().max()}")

    tensors = call.tensors()
    plain, placed = {}, {}
    for i, (name, tensor) in enumerate(tensors.items()):
        placements = [_placement(line.arguments[i], call.axes[name]) for line in lines]
        plain[name] = tensor.clone().requires_grad_(tensor.is_floating_point())
        placed[name] = _distribute(tensor, mesh, placements).requires_grad_(
            tensor.is_floating_point()
        )
    expected = call.function(**plain)
    with CommDebugMode() as forward:
        output = call.function(**placed)
    axes = call.axes["output"]
    places = tuple(_placement(line.output, axes) for line in lines)
    expect("the output", output.placements, places)
    # An axis that two dimensions of the mesh share cannot be cut by one of them alone.
    apart = not set.intersection(*(_axes_of(line) for line in lines)) or len(lines) == 1
    if apart:
        expect("the forward's", _collectives(forward), _named(line.forward for line in lines))
    close("the output", output, expected)

    inputs = [name for name in tensors if plain[name].requires_grad]
    grad = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view(expected.shape)
    of_grad = [_without_sum(place) for place in places]
    placed_grad = _distribute(grad, mesh, of_grad)
    expected_grads = torch.autograd.grad(
        expected, [plain[name] for name in inputs], grad, create_graph=True
    )
    with CommDebugMode() as backward:
        grads = torch.autograd.grad(
            output, [placed[name] for name in inputs], placed_grad, retain_graph=True
        )
    collectives = _named(line.backward for line in lines)
    for i, (name, found) in enumerate(zip(inputs, grads, strict=True)):
        places = tuple(_placement(line.gradients[i], call.axes[name]) for line in lines)
        pending = _pending(found, places)
        if pending != places:
            collectives.discard("all_reduce")
        expect(f"the gradient of {name}", found.placements, pending)
        close(f"the gradient of {name}", found, expected_grads[i])
    if apart:
        expect("the backward's", _collectives(backward), collectives)

    # The second derivative, of something that is not linear.
    whole = _distribute(grad, mesh, [Replicate()] * mesh.ndim)
    of_inputs = [plain[name] for name in inputs]
    first = torch.autograd.grad((expected * expected * grad).sum(), of_inputs, create_graph=True)
    expected_grads = torch.autograd.grad(first, of_inputs, of_inputs)
    of_inputs = [placed[name] for name in inputs]
    first = torch.autograd.grad((output * output * whole).sum(), of_inputs, create_graph=True)
    weights = [
        _distribute(plain[name], mesh, [_without_sum(each) for each in found.placements])
        for name, found in zip(inputs, first, strict=True)
    ]
    grads = torch.autograd.grad(first, of_inputs, weights)
    for name, found, wanted in zip(inputs, grads, expected_grads, strict=True):
        close(f"the second gradient of {name}", found, wanted)
    return wrong


@pytest.mark.parametrize("name", cells.CALLS)
@pytest.mark.parametrize("world", [2, 4])
def test_cells(name: str, world: int) -> None:
    numbers = [(i,) for i in range(len(cells.CALLS[name].cells))]
    for wrong in ranks.run(world, run_cells, name, numbers, (world,)):
        assert not wrong, "\n".join(wrong)


def _shares_exchanged_rows(one: cells.Cell, other: cells.Cell) -> bool:
    """Rows are exchanged over the only dimension of the mesh that shares them out."""
    exchanges = "all_to_all" in (one.forward, other.forward)
    return exchanges and bool(_axes_of(one) & _axes_of(other) & {"S(row)"})


@pytest.mark.parametrize("name", cells.CALLS)
@pytest.mark.slow
def test_pairs_of_cells(name: str) -> None:
    lines = cells.CALLS[name].cells
    numbers = [
        pair
        for pair in itertools.product(range(len(lines)), repeat=2)
        if not _shares_exchanged_rows(*(lines[number] for number in pair))
    ]
    for wrong in ranks.run(4, run_cells, name, numbers, (2, 2)):
        assert not wrong, "\n".join(wrong)


def test_document() -> None:
    """``PYTHONPATH=. python tests/distributed/cells.py`` writes the tables."""
    document = cells.DOCUMENT.read_text("utf-8")
    assert cells.with_tables(document) == document
