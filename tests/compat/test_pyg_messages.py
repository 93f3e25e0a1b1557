"""torch_ops.compat.pyg: sums of features times factors in one kernel, and when they are not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from torch_ops.compat import pyg

pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")

import torch_geometric
from torch_geometric.nn import (
    ClusterGCNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
    SimpleConv,
)
from torch_geometric.nn.models.schnet import CFConv
from torch_geometric.typing import OptTensor

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

messages: Any = importlib.import_module("torch_ops.compat._pyg_messages")
NODES, EDGES = 10, 40


@pytest.fixture(autouse=True)
def disabled_at_the_end() -> Iterator[None]:
    yield
    pyg.disable()


@pytest.fixture(params=["plan", "indices"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How kernels get the edges, of which they then take all."""
    monkeypatch.setattr(messages, "SIGHTS", 1 if request.param == "plan" else 1000)
    monkeypatch.setattr(messages, "_LEAST_UNPLANNED", {"cpu": (0, 0), "cuda": (0, 0)})
    monkeypatch.setattr(messages, "_LEAST_ROW", 0)
    return str(request.param)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, bool]]:
    """Of each call of a kernel: the reduction, whether it has factors, and whether a plan."""
    called: list[tuple[str, bool, bool]] = []
    reduced = messages._reduced

    def recorded(x: Tensor, w: Tensor | None, reduce: str, graph: dict[str, Any]) -> Tensor:
        called.append((reduce, w is not None, "plan" in graph))
        return reduced(x, w, reduce, graph)

    monkeypatch.setattr(messages, "_reduced", recorded)
    return called


def edges_on(device: torch.device) -> Tensor:
    pairs = torch.randperm(NODES**2, generator=torch.Generator().manual_seed(0))[:EDGES]
    return torch.stack([pairs // NODES, pairs % NODES]).to(device)


# ---- What a message is --------------------------------------------------------------------------


class Forms:
    def rows(self, x_j):
        return x_j

    def weighted(self, x_j, weight):
        return weight.view(-1, 1) * x_j

    def either(self, h_j, weight: OptTensor = None):
        """With a text before it."""
        return h_j if weight is None else h_j * weight

    def steps(self, x_j, alpha):
        alpha = alpha.relu()
        if alpha.dim() == 1:
            return alpha[:, None] * x_j
        return x_j * (alpha * self.scale)

    def sum(self, x_j, weight):
        return x_j + weight

    def squared(self, x_j):
        return x_j * x_j

    def shaped(self, x_j, weight):
        return weight * x_j.view(-1, 1)

    def read(self, x_j, weight):
        assert x_j.dim() == 2
        return weight * x_j

    def both_ends(self, x_i, x_j):
        return x_i * x_j

    def by_index(self, x_j, index):
        return x_j * index.view(-1, 1)

    def receiver(self, x_i, weight):
        return x_i * weight

    def any_number(self, x_j, *weights):
        return x_j * weights[0]

    def by_name(self, x_j, *, weight):
        return x_j * weight

    def private(self, x_j, weight):
        return x_j * self.__scale * weight

    def within(self, x_j, weight):
        def twice(x_j):
            return 2 * x_j

        return weight * twice(x_j)

    @staticmethod
    def static(self, x_j):
        return x_j


def test_forms_of_messages() -> None:
    scale, layer = torch.tensor(3.0), Forms()
    layer.scale = scale
    x, weight = torch.randn(4, 2), torch.randn(4)
    rows = messages.factor_of(Forms.rows)
    assert (rows.rows, rows.others, rows.factor(layer, None)) == ("x", (), 1)
    weighted = messages.factor_of(Forms.weighted)
    assert weighted.others == ("weight",)
    assert torch.equal(weighted.factor(layer, None, weight=weight), weight[:, None])
    either = messages.factor_of(Forms.either)
    assert (either.rows, either.factor(layer, None)) == ("h", 1)
    assert either.factor(layer, None, weight=weight) is weight
    steps = messages.factor_of(Forms.steps)
    for alpha in (weight, torch.randn(4, 2)):
        product = steps.factor(layer, None, alpha=alpha) * x
        torch.testing.assert_close(product, layer.steps(x, alpha))
    taken = {"rows", "weighted", "either", "steps"}
    for name, function in vars(Forms).items():
        if not name.startswith("__"):
            assert (messages.factor_of(function) is not None) == (name in taken), name


def test_errors_of_a_factor_are_where_its_text_is() -> None:
    factor = messages.factor_of(Forms.weighted).factor
    with pytest.raises(AttributeError) as error:
        factor(Forms(), None, weight=3)
    at = error.traceback[-1]
    assert at.path.name == "test_pyg_messages.py"
    assert str(at.statement).strip() == "return weight.view(-1, 1) * x_j"


# ---- Layers -------------------------------------------------------------------------------------


class Features(nn.Module):
    """Weights for each feature, and three axes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edges: Tensor, w: Tensor) -> Tensor:
        return self.layer(x.view(len(x), 2, 4), edges, w).flatten(1)


class Heads(MessagePassing):
    def __init__(self, aggr: str, **how: Any) -> None:
        super().__init__(aggr=aggr, node_dim=0, **how)

    def forward(self, x: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, w=w.view(-1, 2, 4), size=None)

    def message(self, x_j: Tensor, w: Tensor) -> Tensor:
        return w * x_j


class FactorFirst(MessagePassing):
    """The features are not the first argument of its message."""

    def forward(self, x: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, w=w)

    def message(self, w: Tensor, x_j: Tensor) -> Tensor:
        return w.view(-1, 1) * x_j


CASES: dict[str, tuple[Callable[[], nn.Module], str, tuple[int, ...]]] = {
    "mean": (lambda: SAGEConv(8, 4), "mean", ()),
    "sum": (lambda: SAGEConv(8, 4, aggr="sum"), "sum", ()),
    "back": (lambda: SAGEConv(8, 4, flow="target_to_source"), "mean", ()),
    "weighted": (lambda: GraphConv(8, 4), "sum", (EDGES,)),
    "weighted mean": (lambda: GraphConv(8, 4, aggr="mean"), "mean", (EDGES,)),
    "factor first": (lambda: FactorFirst(aggr="sum"), "sum", (EDGES,)),
    "features": (lambda: Features(Heads("mean")), "mean", (EDGES, 8)),
    "attention": (lambda: GATv2Conv(8, 4, heads=2, add_self_loops=False), "sum", ()),
}


def gradients(layer: nn.Module, x: Tensor, edges: Tensor, w: list[Tensor]) -> tuple[Tensor, ...]:
    """The output, and the first and second derivatives of a function of it."""
    output = layer(x, edges, *w)
    inputs = [x, *w, *layer.parameters()]
    first = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), inputs)
    return output, *first, *second


@pytest.mark.parametrize("name", CASES)
def test_layers(
    name: str, way: str, kernels: list[tuple[str, bool, bool]], device: torch.device
) -> None:
    """As PyTorch Geometric computes them, and what an edge sends is never made."""
    torch.manual_seed(0)
    make, reduce, shape = CASES[name]
    layer = make().double().to(device)
    edges = edges_on(device)
    x = torch.randn(NODES, 8, dtype=torch.float64, device=device, requires_grad=True)
    w = (
        [torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)]
        if shape
        else []
    )
    wanted = gradients(layer, x, edges, w)
    assert not kernels
    with pyg.enable():
        actual = gradients(layer, x, edges, w)
        assert kernels == [(reduce, bool(shape) or name == "attention", way == "plan")]
    for ours, theirs in zip(actual, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    kernels.clear()
    gradients(layer, x, edges, w)
    assert not kernels  # and it is over


@pytest.mark.parametrize("sizes", [None, (NODES, 4)])
def test_two_kinds_of_nodes(
    sizes: tuple[int, int] | None, way: str, kernels: list[Any], device: torch.device
) -> None:
    torch.manual_seed(0)
    layer, edges = SAGEConv((8, 3), 4).to(device), edges_on(device)
    edges[1] %= 4
    given = torch.randn(NODES, 8, device=device), torch.randn(4, 3, device=device)
    x = given if sizes is None else (given[0], None)
    wanted = layer(x, edges, size=sizes)
    with pyg.enable():
        torch.testing.assert_close(layer(x, edges, size=sizes), wanted)
    assert len(kernels) == 1


def test_a_plan_comes_with_time(kernels: list[Any], device: torch.device) -> None:
    """Small graphs are summed in one kernel as soon as they are known to stay the same."""
    for name in ("mean", "factor first"):
        make, reduce, shape = CASES[name]
        layer, edges = make().to(device), edges_on(device)
        x, *w = (torch.randn(size, device=device) for size in ((NODES, 8), shape) if size)
        wanted = layer(x, edges, *w)
        kernels.clear()
        with pyg.enable():
            for _ in range(messages.SIGHTS + 2):
                torch.testing.assert_close(layer(x, edges, *w), wanted)
        assert kernels == [(reduce, bool(w), True)] * 3


def test_large_graphs_need_no_plan(
    kernels: list[Any], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setitem(messages._LEAST_UNPLANNED, "cuda", (256, 2**16))
    layer, edges = SAGEConv(64, 4).to(device), torch.randint(100, (2, 1024), device=device)
    x = torch.randn(100, 64, device=device)
    wanted = layer(x, edges)
    with pyg.enable():
        torch.testing.assert_close(layer(x, edges), wanted)
        layer(x, edges[:, :1023])
        assert kernels == [("mean", False, False)]
        # At the second sight, one for which the host does not wait.
        torch.testing.assert_close(layer(x, edges), wanted)
    assert kernels[1:] == [("mean", False, device.type == "cuda")]


@pytest.mark.parametrize(
    ("make", "w"),
    [
        (lambda: SAGEConv(8, 4, aggr="max"), None),
        (lambda: SAGEConv(8, 4, aggr=["sum", "mean"]), None),
        (lambda: SAGEConv(8, 4, decomposed_layers=2), None),
        (lambda: SimpleConv(aggr="mul"), None),
        (lambda: GraphConv(8, 4), torch.rand(EDGES, dtype=torch.float64)),
        (lambda: GraphConv(8, 4), torch.rand(1)),
    ],
)
def test_what_is_not_fused(make: Any, w: Tensor | None, way: str, kernels: list[Any]) -> None:
    torch.manual_seed(0)
    layer, edges, x = make(), edges_on(torch.device("cpu")), torch.randn(NODES, 8)
    given = () if w is None else (w,)
    wanted = outcome(layer, x, edges, *given)
    with pyg.enable():
        actual = outcome(layer, x, edges, *given)
    assert not kernels
    assert type(actual) is type(wanted)
    if isinstance(wanted, Tensor):
        torch.testing.assert_close(actual, wanted)


def outcome(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:
        return error


HOOKS = [
    "propagate_forward_pre", "propagate_forward", "message_forward_pre", "message_forward",
    "aggregate_forward_pre", "aggregate_forward",
]  # fmt: skip


@pytest.mark.parametrize("hook", [*HOOKS, "aggr_module", "explain", "message"])
def test_what_would_see_the_messages(hook: str, way: str, kernels: list[Any]) -> None:
    layer, edges, x = SAGEConv(8, 4), edges_on(torch.device("cpu")), torch.randn(NODES, 8)
    with pyg.enable():
        if hook == "explain":
            layer.explain = True
            layer._edge_mask, layer._apply_sigmoid = torch.zeros(EDGES), False
            without_neighbours = layer(x, edges)
            torch.testing.assert_close(without_neighbours, layer.lin_r(x) + layer.lin_l.bias)
        elif hook == "message":  # of this layer alone
            layer.message = lambda x_j: 0 * x_j
            torch.testing.assert_close(layer(x, edges), layer.lin_r(x) + layer.lin_l.bias)
        else:
            seen: list[Any] = []
            if hook == "aggr_module":
                handle = layer.aggr_module.register_forward_hook(lambda *args: seen.append(args))
            else:
                register = getattr(layer, f"register_{hook}_hook")
                handle = register(lambda *args: seen.append(args))
            layer(x, edges)
            assert len(seen) == 1
            assert not kernels
            handle.remove()
            layer(x, edges)
            assert len(kernels) == 1 and len(seen) == 1
            return
    assert not kernels


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((FactorFirst, name) for name in ("message", "aggregate", "update")),
        *((MessagePassing, name) for name in ("aggregate", "update")),
    ],
)
def test_methods_that_are_replaced_later(
    owner: type, name: str, way: str, kernels: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the class, after its message was read; they are called while they are there."""
    edges, x, w = edges_on(torch.device("cpu")), torch.randn(NODES, 8), torch.rand(EDGES)
    layer = FactorFirst(aggr="sum")
    others = {
        "message": lambda self, w, x_j: 3 * w.view(-1, 1) * x_j,
        "aggregate": lambda self, inputs, index, ptr=None, dim_size=None: self.aggr_module(
            3 * inputs, index, ptr=ptr, dim_size=dim_size, dim=self.node_dim
        ),
        "update": lambda self, inputs: 3 * inputs,
    }
    with pyg.enable():
        once = layer(x, edges, w)
        assert len(kernels) == 1
        with mock.patch.object(owner, name, others[name]):
            torch.testing.assert_close(layer(x, edges, w), 3 * once)
        assert len(kernels) == 1
        assert torch.equal(layer(x, edges, w), once)
        assert len(kernels) == 2
        monkeypatch.setattr(owner, name, others[name])
        torch.testing.assert_close(layer(x, edges, w), 3 * once)
        assert len(kernels) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda x, edges: SAGEConv(8, 2)(x, edges + 3),
        lambda x, edges: SAGEConv(8, 2)(x, edges - 1),
        lambda x, edges: SAGEConv(8, 2)(x, edges.float()),
        lambda x, edges: SAGEConv(8, 2)(x, edges[0]),
        lambda x, edges: SAGEConv(8, 2)(x, edges, size=(3, NODES)),
        lambda x, edges: GraphConv(8, 2)(x, edges, torch.rand(3)),
        lambda x, edges: GraphConv(8, 2)((x, x[:2]), edges),
    ],
)
def test_errors_are_theirs(call: Any, way: str) -> None:
    edges, x = edges_on(torch.device("cpu")), torch.randn(NODES, 8)
    wanted = outcome(call, x, edges)
    assert isinstance(wanted, Exception)
    with pyg.enable():
        actual = outcome(call, x, edges)
    assert (type(actual), str(actual)) == (type(wanted), str(wanted))


def test_classes_of_later(way: str, kernels: list[Any]) -> None:
    edges, x = edges_on(torch.device("cpu")), torch.randn(NODES, 8)
    pyg.enable()

    class Copy(MessagePassing):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x)

    class Doubled(Copy):
        def message(self, x_j: Tensor) -> Tensor:
            return torch.cat([x_j, x_j], -1)

    copy, doubled = Copy(aggr="sum"), Doubled(aggr="sum")
    ours = copy(x, edges)
    assert len(kernels) == 1
    torch.testing.assert_close(doubled(x, edges), torch.cat([ours, ours], -1))
    assert len(kernels) == 1
    pyg.disable()
    torch.testing.assert_close(copy(x, edges), ours)
    assert len(kernels) == 1
    pyg.enable()
    copy(x, edges)
    assert len(kernels) == 2


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, way: str, kernels: list[Any]) -> None:
    monkeypatch.setenv("CXX", "there_is_no_such_compiler")
    layer, edges, x = SAGEConv(8, 4), edges_on(torch.device("cpu")), torch.randn(NODES, 8)
    wanted = layer(x, edges)
    with pyg.enable():
        torch.testing.assert_close(layer(x, edges), wanted)
    assert not kernels


def test_no_edges(way: str, kernels: list[Any], device: torch.device) -> None:
    layer, edges = GraphConv(8, 4).to(device), torch.empty(2, 0, dtype=torch.int64, device=device)
    x = torch.randn(NODES, 8, device=device, requires_grad=True)
    wanted = layer(x, edges, edges[0].float())
    with pyg.enable():
        actual = layer(x, edges, edges[0].float())
    assert len(kernels) == 1
    torch.testing.assert_close(actual, wanted)
    grads = [torch.autograd.grad(output.sum(), x)[0] for output in (actual, wanted)]
    torch.testing.assert_close(*grads)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_of_16_bits(
    dtype: torch.dtype, device: torch.device, way: str, kernels: list[Any]
) -> None:
    """In float32, rounded once; the mean's gradient too, of more entries than float16 counts."""
    edges = torch.zeros(2, 70_000, dtype=torch.int64, device=device)
    x = torch.ones(1, 32, dtype=dtype, device=device, requires_grad=True)
    layer = SimpleConv(aggr="mean")
    with pyg.enable():
        for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
            torch._dynamo.reset()
            output = call(x, edges)
            assert torch.equal(output, x)
            (grad,) = torch.autograd.grad(output.sum(), x)
            torch.testing.assert_close(grad, torch.ones_like(x), rtol=2e-2, atol=0)
    assert len(kernels) == 2


# ---- torch.compile ------------------------------------------------------------------------------


def compiled_as_eager(name: str, device: torch.device) -> None:
    torch.manual_seed(0)
    make, _, shape = CASES[name]
    layer, edges = make().double().to(device), edges_on(device)
    x = torch.randn(NODES, 8, dtype=torch.float64, device=device, requires_grad=True)
    w = (
        [torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)]
        if shape
        else []
    )

    def outputs(call: Any) -> list[Tensor]:
        output = call(x, edges, *w)
        inputs = [x, *w, *layer.parameters()]
        return [output, *torch.autograd.grad(output.square().sum(), inputs)]

    wanted = outputs(layer)
    torch._dynamo.reset()
    with pyg.enable():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            for ours, theirs in zip(outputs(compiled), wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [
        *("weighted", "features"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mean", "weighted mean")),
    ],
)
def test_compiled(
    name: str, way: str, kernels: list[tuple[str, bool, bool]], device: torch.device
) -> None:
    compiled_as_eager(name, device)
    _, reduce, shape = CASES[name]
    # The first backward pass is the second sight of the edges.
    has_plan = [way == "plan", way == "plan" or device.type == "cuda"]
    assert kernels == [(reduce, bool(shape), has) for has in has_plan]


@pytest.mark.parametrize("name", ["mean", "weighted mean", "features"])
def test_compiled_code_gathers_and_sums_small_messages(
    name: str, kernels: list[Any], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(messages, "_LEAST_ROW", 0)
    compiled_as_eager(name, device)
    assert not kernels


def test_short_rows_are_not_fused_in_compiled_code(kernels: list[Any]) -> None:
    torch._dynamo.reset()
    layer, edges, x = SAGEConv(8, 4), edges_on(torch.device("cpu")), torch.randn(NODES, 8)
    with pyg.enable():
        output = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, edges)
    assert not kernels
    torch.testing.assert_close(output, layer(x, edges))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # Inductor, of the matrix products
def test_inductor(way: str, kernels: list[Any], device: torch.device) -> None:
    """Graphs of several sizes by one compiled function, and the filters of SchNet."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = CFConv(16, 16, 16, nn.Linear(4, 16), 3.0).to(device)
    with pyg.enable():
        compiled = torch.compile(layer, fullgraph=True, dynamic=True)
        for count in (EDGES, 30, 20):
            edges, x = edges_on(device)[:, :count], torch.randn(NODES, 16, device=device)
            distances, basis = torch.rand(count, device=device), torch.rand(count, 4, device=device)
            x.requires_grad_()
            both = []
            for call in (compiled, layer):
                output = call(x, edges, distances, basis)
                inputs = [x, *layer.parameters()]
                both.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
            torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)
    assert ("sum", True, way == "plan") in kernels


# ---- Edges with loops ---------------------------------------------------------------------------


LOOPS = {
    "GCN": lambda: GCNConv(8, 4),
    "GAT": lambda: GATConv(8, 4, heads=2),
    "GATv2": lambda: GATv2Conv(8, 4, heads=2),
    "ClusterGCN": lambda: ClusterGCNConv(8, 4),
}


@pytest.mark.parametrize("name", LOOPS)
def test_edges_with_loops_are_kept(
    name: str, monkeypatch: pytest.MonkeyPatch, kernels: list[Any], device: torch.device
) -> None:
    """Layers that add loops make other edges of the same each time; one of them gets a plan."""
    monkeypatch.setattr(messages, "SIGHTS", 2)
    torch.manual_seed(0)
    layer, edges = LOOPS[name]().to(device), edges_on(device)
    x = torch.randn(NODES, 8, device=device)
    wanted = layer(x, edges)
    with pyg.enable():
        for _ in range(8):
            torch.testing.assert_close(layer(x, edges), wanted)
        assert ("sum", True, True) in kernels
        edges[1] = edges[1].flip(0)  # other edges in the same memory
        actual = layer(x, edges)
    torch.testing.assert_close(actual, layer(x, edges))
    assert not torch.allclose(actual, wanted)


@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_edges_with_loops_are_not_kept_in_compiled_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled as often for new edges as without the line, in one graph."""
    monkeypatch.setattr(messages, "SIGHTS", 2)
    x, graphs = torch.randn(NODES, 8), [edges_on(torch.device("cpu")) for _ in range(4)]
    layer, counts = LOOPS[name](), []
    wanted = layer(x, graphs[0])
    for enabled in (False, True):
        torch._dynamo.reset()
        if enabled:
            pyg.enable()
            for _ in range(3):
                layer(x, graphs[0])
        counter = CompileCounter()
        compiled = torch.compile(layer, fullgraph=True, backend=counter)
        for edges in graphs:
            torch.testing.assert_close(compiled(x, edges), wanted)
        counts.append(counter.frame_count)
    assert counts[1] == counts[0]


def test_kept_edges_that_somebody_wrote_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SIGHTS", 1)
    gcn = importlib.import_module("torch_geometric.nn.conv.gcn_conv")
    edges = edges_on(torch.device("cpu"))
    wanted, _ = gcn.add_remaining_self_loops(edges, None, 1.0, NODES)
    with pyg.enable():
        first, none = gcn.add_remaining_self_loops(edges, None, 1.0, NODES)
        again, _ = gcn.add_remaining_self_loops(edges, None, 1.0, NODES)
        assert first is again and none is None
        assert torch.equal(first, wanted)
        assert gcn.add_remaining_self_loops(edges, None, 1.0, NODES + 1)[0] is not first
        first.zero_()
        assert torch.equal(gcn.add_remaining_self_loops(edges, None, 1.0, NODES)[0], wanted)
        weighted = gcn.add_remaining_self_loops(edges, torch.ones(EDGES), 1.0, NODES)
        assert torch.equal(weighted[0], wanted) and weighted[1] is not None
        own = torch_geometric.utils.add_remaining_self_loops  # which may be written to
        assert own(edges)[0] is not own(edges)[0]
    assert gcn.add_remaining_self_loops(edges, None, 1.0, NODES)[0] is not first
