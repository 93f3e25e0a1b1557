"""torch_ops.compat.pyg: sums of features times factors in one kernel."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ops.compat import pyg

pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")

from pyg_message_layers import CASES, NODES, edges_on, messages
from torch_geometric.nn import GATv2Conv, GraphConv, SAGEConv, SimpleConv
from torch_geometric.typing import OptTensor

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

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


def test_a_file_that_was_changed(tmp_path: Path) -> None:
    """The text is no longer that of the function that runs."""
    file = tmp_path / "layers.py"
    text = 'class Layer:\n    def message(self, x_j, w):\n        """Two\n        lines."""\n'
    text += "        return {} * x_j\n"
    module: dict[str, Any] = {}
    exec(compile(text.format("w"), str(file), "exec"), module)
    for factor in ("w", "2 * w", "w.abs()", "w"):
        file.write_text(text.format(factor))
        linecache.clearcache()
        is_taken = messages.factor_of(module["Layer"].message) is not None
        assert is_taken == (factor == "w"), factor


def test_errors_of_a_factor_are_where_its_text_is() -> None:
    factor = messages.factor_of(Forms.weighted).factor
    with pytest.raises(AttributeError) as error:
        factor(Forms(), None, weight=3)
    at = error.traceback[-1]
    assert at.path.name == "test_pyg_messages.py"
    assert str(at.statement).strip() == "return weight.view(-1, 1) * x_j"


# ---- Layers -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "make",
    [
        lambda **how: SAGEConv((8, 3), 4, **how),
        lambda **how: GATv2Conv((8, 3), 4, add_self_loops=False, **how),
    ],
)
def test_pairs_in_the_other_flow(
    make: Any, way: str, kernels: list[Any], device: torch.device
) -> None:
    """An edge carries features of the first of a pair in either flow."""
    torch.manual_seed(0)
    layer, edges = make(flow="target_to_source").to(device), edges_on(device)
    x = torch.randn(NODES, 8, device=device), torch.randn(NODES, 3, device=device)
    wanted = layer(x, edges)
    with pyg.enable():
        torch.testing.assert_close(layer(x, edges), wanted)
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
