"""torch_ops.compat.pyg: messages that PyTorch Geometric computes itself."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from torch_ops.compat import pyg

pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")

from pyg_message_layers import EDGES, NODES, FactorFirst, edges_on
from torch_geometric.nn import GraphConv, MessagePassing, SAGEConv, SimpleConv

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def outcome(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:
        return error


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


HOOKS = [
    "propagate_forward_pre", "propagate_forward", "message_forward_pre", "message_forward",
    "aggregate_forward_pre", "aggregate_forward",
]  # fmt: skip


@pytest.mark.parametrize("hook", [*HOOKS, "aggr_module", "all modules", "explain", "message"])
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
            elif hook == "all modules":
                handle = register_module_forward_hook(
                    lambda module, *args: seen.append(args) if module is layer.aggr_module else None
                )
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
        lambda x, edges: SAGEConv(8, 2, flow="target_to_source")((None, x), edges),
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
