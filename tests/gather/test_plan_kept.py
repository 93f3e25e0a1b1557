"""Plans that are kept: as parts of modules, by the index, and sent between processes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from op_checks import assert_same
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import torch_ops
from torch_ops import GatherPlan
from torch_ops.ops import plan as kept

INDEX = [2, 0, 2, 1]


class Layer(nn.Module):
    """Sums by a plan of its own."""

    def __init__(self, device: torch.device, persistent: bool = False) -> None:
        super().__init__()
        plan = torch_ops.gather_plan(torch.tensor(INDEX, device=device), 4)
        torch_ops.register_plan(self, "edges", plan, persistent)

    def forward(self, values: Tensor) -> Tensor:
        return torch_ops.scatter_add(torch_ops.gather(values, self.edges).sin(), self.edges)


def expected(values: Tensor) -> Tensor:
    index = torch.tensor(INDEX, device=values.device)
    return torch.zeros_like(values).index_add(0, index, values[index].sin())


@pytest.mark.parametrize("persistent", [False, True])
def test_module(device: torch.device, persistent: bool) -> None:
    layer = Layer(device, persistent)
    values = torch.rand(4, device=device)
    names = ["edges.index", "edges.rows", "edges.order"] if persistent else []
    assert list(layer.state_dict()) == names
    assert isinstance(layer.edges, GatherPlan)
    assert "(edges): GatherPlan(index=int64[4], dim_size=4, dim=0, batch_dims=0" in repr(layer)
    for other in (
        layer,
        layer.half(),
        layer.double(),
        layer.type(torch.float32),
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
    ):
        assert other.edges.index.dtype == torch.int64
        assert (other.edges is layer.edges) == (other is layer)
        torch.testing.assert_close(other(values), expected(values))
    assert layer.to("meta").edges.order.device.type == "meta"


def test_state_of_a_module(device: torch.device) -> None:
    """Numbers stay, tensors are loaded, into other memory or in place of it."""
    layer = Layer(device, persistent=True)
    reversed_plan = torch_ops.gather_plan(torch.tensor(INDEX[::-1], device=device), 4)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    values = torch.rand(4, device=device)
    for assign in (False, True):
        other = Layer(device, persistent=True)
        torch_ops.register_plan(other, "edges", reversed_plan, persistent=True)
        file.seek(0)
        other.load_state_dict(torch.load(file), assign=assign)
        assert torch.equal(other.edges.order, layer.edges.order)
        torch.testing.assert_close(other(values), expected(values))


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_of_other_sizes(device: torch.device, assign: bool) -> None:
    """Of the same lengths: only the values do not fit."""
    index = torch.tensor([[1, 0], [1, 1]], device=device)

    def module(**numbers: int) -> nn.Module:
        made = nn.Module()
        plan = torch_ops.gather_plan(index % numbers["dim_size"], **numbers)
        torch_ops.register_plan(made, "edges", plan, persistent=True)
        return made

    state = module(dim_size=2, batch_dims=1).state_dict()
    module(dim_size=2, batch_dims=1).load_state_dict(state, assign=assign)
    for numbers in ({"dim_size": 10, "batch_dims": 1}, {"dim_size": 2}, {"dim_size": 1}):
        other = module(**numbers)
        before = other.edges.rows.clone()
        with pytest.raises(RuntimeError, match="the plan edges of the state_dict was made for oth"):
            other.load_state_dict(state, assign=assign)
        assert torch.equal(other.edges.rows, before)
    part = state["edges.index"]
    state["edges.index"] = 1 - part
    with pytest.raises(RuntimeError, match="or its index, rows and order are not of one plan"):
        module(dim_size=2, batch_dims=1).load_state_dict(state, assign=assign)
    state["edges.index"] = part
    state["edges.rows"] = state["edges.rows"][:3]
    with pytest.raises(RuntimeError, match="size mismatch for edges"):
        module(dim_size=2, batch_dims=1).load_state_dict(state, assign=assign)
    fake = {name: part.to("meta") for name, part in module(dim_size=2).state_dict().items()}
    module(dim_size=2).to("meta").load_state_dict(fake, assign=assign)


def test_module_under_compile_and_export(device: torch.device) -> None:
    layer, values = Layer(device), torch.rand(4, device=device)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(values), expected(values))
    exported = torch.export.export(layer, (values,)).module()
    torch.testing.assert_close(exported(values), expected(values))
    called = torch.func.functional_call(layer, {}, (values,))
    torch.testing.assert_close(called, expected(values))


def test_a_registered_plan_moves_as_a_copy(device: torch.device) -> None:
    module = torch.nn.Module()
    plan = torch_ops.gather_plan(torch.tensor([0, 2], device=device), 4)
    torch_ops.register_plan(module, "edges", plan)
    other = module.edges.to("meta")
    assert other.index.device.type == "meta" and not isinstance(other, torch.nn.Module)
    assert module.edges.index.device.type == device.type
    assert module.to("meta").edges.rows.device.type == "meta"


def test_bad_registrations(device: torch.device) -> None:
    layer = Layer(device)
    with pytest.raises(TypeError, match="register_plan: plan must be a GatherPlan, but a Tensor"):
        torch_ops.register_plan(layer, "other", layer.edges.index)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="register_plan: module must be a Module, but a dict was"):
        torch_ops.register_plan({}, "other", layer.edges)  # type: ignore[arg-type]
    for name, error, what in (
        ("training", KeyError, "be new or .* registered plan, but 'training' is a bool of the mod"),
        ("forward", KeyError, "be new or .* registered plan, but 'forward' is a method of the mod"),
        ("a.b", KeyError, "not be empty or have a dot, but it is 'a.b'"),
        ("", KeyError, "not be empty or have a dot, but it is ''"),
        (3, TypeError, "be a string, but an int was given"),
    ):
        with pytest.raises(error, match=f"register_plan: name must {what}"):
            torch_ops.register_plan(layer, name, layer.edges)  # type: ignore[arg-type]
    layer.lin = torch.nn.Linear(2, 2)
    taken = "register_plan: name must be new or .* registered plan, but 'lin' is a Linear of the"
    with pytest.raises(KeyError, match=taken):
        torch_ops.register_plan(layer, "lin", layer.edges)
    assert isinstance(layer.lin, torch.nn.Linear)


def test_a_registered_plan_is_replaced(device: torch.device) -> None:
    layer = Layer(device)
    plan = torch_ops.gather_plan(torch.tensor([1], device=device), 2)
    torch_ops.register_plan(layer, "edges", plan)
    assert layer.edges.index is plan.index
    layer.child = nn.Identity()
    layer.child = None
    torch_ops.register_plan(layer, "child", plan)
    assert layer.child.index is plan.index


def test_a_sequence_with_a_plan(device: torch.device) -> None:
    """It calls its modules; a buffer does not disturb that, nor does a plan."""
    layers = nn.Sequential(nn.ReLU())
    torch_ops.register_plan(layers, "edges", Layer(device).edges)
    layers.append(nn.ReLU())
    assert layers(torch.tensor([-1.0, 2.0], device=device)).tolist() == [0, 2]


# ---- other processes ----------------------------------------------------------------------------


class Plans(Dataset[Any]):
    """Makes a plan for each item, in the process that asks for it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, item: int) -> dict[str, Any]:
        index = (torch.arange(20_000) * (item + 3)) % 7
        return {"index": index, "plan": torch_ops.gather_plan(index, 7)}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_made_by_the_workers_of_a_data_loader(device: torch.device, context: str) -> None:
    """And pinned, where there is a GPU to send them to."""
    torch_ops.gather_plan(torch.arange(100_000) % 9, 9)  # this process has used its threads
    pinned = device.type == "cuda"
    loader = DataLoader(
        Plans(),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=context,
        pin_memory=pinned,
    )
    count = 0
    for item in loader:
        index, plan = item["index"], item["plan"]
        assert type(plan) is GatherPlan
        assert plan.rows.is_pinned() == pinned
        values = torch.rand(20_000, device=device)
        actual = torch_ops.scatter_add(values, plan.to(device, non_blocking=True))
        torch.testing.assert_close(actual, torch_ops.scatter_add(values, index.to(device), 7))
        count += 1
    assert count == 3


# ---- plan_cache ---------------------------------------------------------------------------------


def test_second_sight(device: torch.device) -> None:
    index = torch.tensor(INDEX, device=device)
    values = torch.rand(4, 3, device=device)
    by_index = torch_ops.scatter(values, index, 5, reduce="amax")
    assert torch_ops.plan_cache(index, 5) is index
    plan = torch_ops.plan_cache(index, 5)
    assert isinstance(plan, GatherPlan)
    assert plan.index.data_ptr() == index.data_ptr()
    assert torch_ops.plan_cache(index, 5) is plan  # not sorted again
    assert_same(torch_ops.scatter(values, plan, 5, reduce="amax"), by_index, "by the plan")
    assert torch_ops.plan_cache(index, 6) is index  # another axis
    assert torch_ops.plan_cache(index, 5, dim=1) is index
    assert torch_ops.plan_cache(index, 5, dim=0).order is plan.order
    assert torch_ops.plan_cache(index.clone(), 5) is not plan
    index[0] = 4
    assert torch_ops.plan_cache(index, 5) is index
    changed = torch_ops.plan_cache(index, 5)
    assert changed.rows.tolist() == [0, 1, 2, 4]
    index[0] = 5
    assert torch_ops.plan_cache(index, 5) is index
    with pytest.raises(IndexError, match=r"gather_plan: index\[0\] is 5, out of range"):
        torch_ops.plan_cache(index, 5)


@pytest.mark.parametrize("index", [[0, 1], None])
def test_what_is_no_index(index: Any) -> None:
    with pytest.raises(TypeError, match=r"^plan_cache: index must be a tensor, but (a list|None)"):
        torch_ops.plan_cache(index, 3)


def test_views_of_one_tensor(device: torch.device) -> None:
    """Each access makes a new view: what counts is which part of which tensor it is."""
    edges = torch.tensor([INDEX, INDEX[::-1]], device=device)
    assert isinstance(torch_ops.plan_cache(edges[0], 5), Tensor)
    plan = torch_ops.plan_cache(edges[0], 5)
    assert isinstance(plan, GatherPlan)
    assert torch_ops.plan_cache(edges[0], 5) is plan
    for other in (edges[1], edges[0, 1:], edges[0, ::2], edges[0].view(torch.int32)[:4]):
        assert torch_ops.plan_cache(other, 5) is other
    edges[1, 0] = 0  # written to: all of its views are new
    assert isinstance(torch_ops.plan_cache(edges[0], 5), Tensor)
    del plan
    kept_alive = weakref.ref(edges)
    torch_ops.plan_cache(edges[0], 5)
    del edges, other
    gc.collect()
    assert kept_alive() is None


def test_what_is_not_kept(device: torch.device) -> None:
    index = torch.tensor(INDEX, device=device)
    source = torch.rand(4, device=device)
    with torch.inference_mode():
        inference = torch.tensor(INDEX, device=device)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(index)
        for never in (fake, index):
            assert all(torch_ops.plan_cache(never, 4) is never for _ in range(3))
    assert all(torch_ops.plan_cache(inference, 4) is inference for _ in range(3))

    def function(s: Tensor, i: Tensor) -> Tensor:
        picks = torch_ops.plan_cache(i, 4)
        assert isinstance(picks, Tensor)
        return torch_ops.gather(s, picks)

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        assert torch.equal(compiled(source, index), source[index])
        assert torch.equal(torch.vmap(function, (None, 0))(source, index[None])[0], source[index])
    parameter = nn.Parameter(index, requires_grad=False)
    assert all(torch_ops.plan_cache(parameter, 4) is parameter for _ in range(3))


def test_a_plan_of_inference_mode_trains(device: torch.device) -> None:
    index = torch.tensor(INDEX, device=device)
    with torch.inference_mode():
        for _ in range(2):
            torch_ops.plan_cache(index, 4)
    plan = torch_ops.plan_cache(index, 4)
    assert isinstance(plan, GatherPlan)
    source = torch.ones(4, 2, device=device, requires_grad=True)
    torch_ops.gather(source, plan).sum().backward()


def test_a_checkpoint_computes_the_same_again(device: torch.device) -> None:
    """Which saves other tensors with a plan than without: a plan must not turn up in between."""
    index = torch.tensor(INDEX, device=device)
    source = torch.ones(4, 2, device=device, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        return torch_ops.gather(x.sin(), torch_ops.plan_cache(index, 4)).sin()

    for _ in range(3):
        checkpoint(layer, source, use_reentrant=False).sum().backward()


def test_no_plan_is_made_of_tensors_of_a_transform(device: torch.device) -> None:
    index = torch.tensor(INDEX, device=device)
    values = torch.ones(len(INDEX), device=device)

    def function(x: Tensor) -> Tensor:
        return (torch_ops.scatter_add(x, torch_ops.plan_cache(index, 4), 4) ** 2).sum()

    for _ in range(3):
        torch.func.grad(function)(values)
    assert torch_ops.plan_cache(index, 4) is index


def test_parts_of_a_tensor_are_bounded(device: torch.device) -> None:
    owner = torch.arange(1000, device=device) % 7
    for start in range(2 * kept._MOST_SEEN):
        for _ in range(2):
            torch_ops.plan_cache(owner[start : start + 100], 7)
    assert len(kept._seen[id(owner)].plans) == kept._MOST_SEEN


def test_other_memory_is_another_index(device: torch.device) -> None:
    index = torch.tensor([2, 0, 2], device=device)
    for _ in range(2):
        torch_ops.plan_cache(index, 3)
    index.data = torch.tensor([1, 1, 1], device=device)  # which no version counts
    values = torch.ones(3, device=device)
    assert torch_ops.scatter_add(values, torch_ops.plan_cache(index, 3), 3).tolist() == [0, 3, 0]


def test_a_bound_and_no_owner(device: torch.device) -> None:
    kept._seen.clear()
    indices = [torch.tensor(INDEX, device=device) for _ in range(kept._MOST_SEEN)]
    for index in indices * 2:
        torch_ops.plan_cache(index, 4)
    torch_ops.plan_cache(indices[0], 4)  # used last
    others = [torch.tensor(INDEX, device=device) for _ in range(3)]
    for other in others:
        torch_ops.plan_cache(other, 4)
    assert len(kept._seen) == kept._MOST_SEEN
    assert isinstance(torch_ops.plan_cache(indices[0], 4), GatherPlan)
    assert torch_ops.plan_cache(indices[1], 4) is indices[1]  # forgotten
    del index, other, indices, others
    gc.collect()
    assert len(kept._seen) == 0


def test_threads(device: torch.device) -> None:
    kept._seen.clear()
    indices = [torch.randint(50, (500,), device=device) for _ in range(80)]
    values = torch.rand(500, device=device, dtype=torch.float64)
    wanted = [torch_ops.scatter_add(values, index, 50) for index in indices]
    errors: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for step in range(400):
                at = (first + step * 7) % len(indices)
                actual = torch_ops.scatter_add(values, torch_ops.plan_cache(indices[at], 50), 50)
                torch.testing.assert_close(actual, wanted[at])
                torch_ops.plan_cache(indices[at].clone(), 50)  # dies at once
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
