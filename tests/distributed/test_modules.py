"""torch's ways to train on several ranks, with modules and functions of ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import ranks
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import torch_ops

pytestmark = pytest.mark.usefixtures("ranks_device")

R = Replicate()
ROWS = 11


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _compiled(module: Any, backend: str | None) -> Any:
    if backend is None:
        return module
    # With dynamic sizes Inductor of torch 2.11 finds no input that has the size of a whole axis in
    # some backward graphs, where parts of it alone were saved.
    dynamic = False if backend == "inductor" else None
    return torch.compile(module, backend=backend, fullgraph=True, dynamic=dynamic)


BACKENDS = [
    None,
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.slow),
]


class Tower(nn.Module):
    """What such models are made of: rows of a table, a norm, activations, sums by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch_ops.Embedding(ROWS, 8, padding_idx=2)
        self.norm = nn.LayerNorm(8)
        self.relu = torch_ops.ReLU()
        self.up = nn.Linear(8, 12)
        self.leaky_relu = torch_ops.LeakyReLU(0.1)
        self.down = nn.Linear(12, 8)
        self.sigmoid = torch_ops.Sigmoid()

    def forward(self, index: Tensor) -> Tensor:
        x = self.relu(self.norm(self.rows(index)))
        return self.sigmoid(self.down(self.leaky_relu(self.up(x))))


def _tower() -> Tower:
    torch.manual_seed(3)
    return Tower()


def _indices() -> Tensor:
    return torch.randint(ROWS, (3, 8, 4), generator=ranks.generator(1))


def _train(model: nn.Module, call: Any, indices: Tensor) -> list[Tensor]:
    """Losses of some steps of Adam, and what is learned."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for index in indices:
        loss = (_whole(call(index)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def _compare(model: nn.Module, losses: list[Tensor], expected: Any) -> None:
    whole, expected_losses = expected
    for found, wanted in zip(losses, expected_losses, strict=True):
        torch.testing.assert_close(_whole(found), wanted)
    for (name, found), wanted in zip(model.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(_whole(found), wanted, atol=1e-5, rtol=1e-4, msg=name)


def _expected(indices: Tensor) -> Any:
    model = _tower()
    return model, _train(model, model, indices)


# ---- Tensor and sequence parallel ---------------------------------------------------------------


def embed(style: Any, backend: str | None, **options: Any) -> Any:
    """The embedding alone, twice with the same call."""
    mesh = ranks.mesh()
    torch.manual_seed(0)
    plain = torch_ops.Embedding(ROWS, 8, padding_idx=2, **options)
    module = parallelize_module(copy.deepcopy(plain), mesh, style)
    for index in _indices()[:2]:
        expected = plain(index)
        output = _compiled(module, backend)(index)
        if not isinstance(output, DTensor):
            output = DTensor.from_local(output, mesh, style.output_layouts)
        torch.testing.assert_close(output.full_tensor(), expected, rtol=0, atol=0)
        (expected**2).sum().backward()
        (output**2).sum().backward()
    grad = module.weight.grad
    torch.testing.assert_close(grad.full_tensor(), plain.weight.grad)
    assert not grad.full_tensor()[2].any()
    return grad.placements, grad.to_local().numel()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("output", [R, Shard(0), Shard(1)], ids=str)
def test_rowwise_parallel(output: Any, backend: str | None) -> None:
    style = RowwiseParallel(input_layouts=R, output_layouts=output)
    found = ranks.run(2, embed, style, backend)
    assert found == [((Shard(0),), 6 * 8), ((Shard(0),), 5 * 8)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("output", [Shard(-1), R], ids=str)
def test_colwise_parallel(output: Any, backend: str | None) -> None:
    style = ColwiseParallel(output_layouts=output)
    found = ranks.run(2, embed, style, backend)
    assert found == [((Shard(1),), ROWS * 4)] * 2


def test_rowwise_parallel_on_four() -> None:
    style = RowwiseParallel(input_layouts=R, output_layouts=Shard(1))
    found = ranks.run(4, embed, style, None, scale_grad_by_freq=True)
    assert [numel for _, numel in found] == [3 * 8, 3 * 8, 3 * 8, 2 * 8]


def _tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Tensor parallel with sequence-parallel activations between."""
    return parallelize_module(
        model,
        mesh,
        {
            "rows": RowwiseParallel(
                input_layouts=R, output_layouts=Shard(1), use_local_output=False
            ),
            "norm": SequenceParallel(),
            "relu": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            "sigmoid": SequenceParallel(),
        },
    )


def train_in_parallel(backend: str | None) -> None:
    mesh = ranks.mesh()
    model = _tensor_parallel(_tower(), mesh)
    losses = _train(model, _compiled(model, backend), _indices())
    _compare(model, losses, _expected(_indices()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_and_sequence_parallel(backend: str | None) -> None:
    ranks.run(2, train_in_parallel, backend)


# ---- FSDP and DDP -------------------------------------------------------------------------------


def _own(indices: Tensor, rank: int, world: int) -> Tensor:
    return indices.chunk(world, 1)[rank]


def _mean_losses(losses: list[Tensor], world: int) -> list[Tensor]:
    for loss in losses:
        torch.distributed.all_reduce(loss)
    return [loss / world for loss in losses]


def train_by_data(way: str, backend: str | None) -> None:
    world = torch.distributed.get_world_size()
    mesh = ranks.mesh((world,))
    model: Any = _tower()
    if way == "fully_shard":
        fully_shard(model.rows, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    call = torch.compile(model, backend=backend) if backend else model
    own = _own(_indices(), torch.distributed.get_rank(), world)
    losses = _mean_losses(_train(model, call, own), world)
    _compare(model, losses, _expected(_indices()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["fully_shard", "DistributedDataParallel"])
def test_data_parallel(way: str, backend: str | None) -> None:
    ranks.run(2, train_by_data, way, backend)


def train_in_two_ways() -> None:
    mesh = ranks.mesh((2, 2), mesh_dim_names=("data", "model"))
    model: Any = _tensor_parallel(_tower(), mesh["model"])
    fully_shard(model, mesh=mesh["data"])
    own = _own(_indices(), mesh.get_local_rank("data"), 2)
    losses = _mean_losses(_train(model, model, own), 4)
    _compare(model, losses, _expected(_indices()))


def test_fully_shard_of_tensor_parallel() -> None:
    ranks.run(4, train_in_two_ways)


# ---- torch.compile and no_grad, of functions ----------------------------------------------------


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gather": lambda x, i: torch_ops.gather(x, i),
    "gather fill": lambda x, i: torch_ops.gather(x, i, mode="fill", fill_value=2.0),
    "batch_gather": lambda x, i: torch_ops.batch_gather(x, i),
    "gather_elements": lambda x, i: torch_ops.gather_elements(x, i, 0),
    "take_along_dim": lambda x, i: torch_ops.take_along_dim(x, i, 0),
    "gather_nd": lambda x, i: torch_ops.gather_nd(x, i),
    "index": lambda x, i: torch_ops.index(x, (i,)),
    "embedding": lambda x, i: torch_ops.embedding(i, x, padding_idx=0),
    "scatter_add": lambda x, i: torch_ops.scatter_add(x, i, 8, batch_dims=1),
    "scatter mean": lambda x, i: torch_ops.scatter(x, i, 8, batch_dims=1, reduce="mean"),
    "relu": lambda x, i: torch_ops.relu(x * 1),
    "relu_": lambda x, i: torch_ops.relu_(x * 1),
    "leaky_relu save": lambda x, i: torch_ops.leaky_relu(x * 1, save="output"),
    "sigmoid_": lambda x, i: torch_ops.sigmoid_(x * 1),
}


def call_function(name: str, backend: str | None, mode: str) -> list[str]:
    mesh = ranks.mesh()
    function = FUNCTIONS[name]
    x = torch.randn(6, 6, requires_grad=True)
    columns = {"scatter_add": 6, "scatter mean": 6, "take_along_dim": 1}.get(name, 2)
    index = torch.randint(6, (6, columns))
    expected = function(x, index)
    contexts = {
        "grad": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }
    wrong = []
    for of_x, of_index in ((Shard(0), R), (R, Shard(0)), (Shard(1), R), (Shard(0), Shard(0))):
        # Of a copy, for the first rank's is written into the others' where it is distributed.
        placed_x = distribute_tensor(x.detach(), mesh, [of_x]).requires_grad_()
        placed_index = distribute_tensor(index.clone(), mesh, [of_index])
        with contexts[mode]():
            output = _compiled(function, backend)(placed_x, placed_index)
            if not torch.allclose(output.full_tensor(), expected, 1e-6, 1e-6):
                wrong.append(f"{of_x}, {of_index}: {output.full_tensor()} is not {expected}")
        if mode != "grad":
            continue
        (grad,) = torch.autograd.grad((output * output).sum(), placed_x)
        (wanted,) = torch.autograd.grad((expected * expected).sum(), x, retain_graph=True)
        if not torch.allclose(grad.full_tensor(), wanted, 1e-5, 1e-6):
            wrong.append(f"{of_x}, {of_index}: gradient {grad.full_tensor()} is not {wanted}")
    return wrong


@pytest.mark.parametrize("backend", [*BACKENDS[1:]])
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("embedding", "relu_") else pytest.param(name, marks=pytest.mark.slow)
        for name in FUNCTIONS
    ],
)
def test_compile(name: str, backend: str) -> None:
    assert ranks.run(2, call_function, name, backend, "grad") == [[], []]


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_gradient(name: str, mode: str) -> None:
    assert ranks.run(2, call_function, name, None, mode) == [[], []]
