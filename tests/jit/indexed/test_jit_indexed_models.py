"""The layers of examples/messages in float64, beside papers' formulas and PyTorch Geometric."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from indexed_reference import random, random_index, reduced
from programs import ROOT
from torch import Tensor, nn
from torch.nn import functional as F

from torch_ops.jit import index_plan

_spec = importlib.util.spec_from_file_location(
    "messages_layers", ROOT / "examples" / "messages" / "layers.py"
)
assert _spec is not None and _spec.loader is not None
layers = importlib.util.module_from_spec(_spec)
sys.modules["messages_layers"] = layers
_spec.loader.exec_module(layers)

N, E, WIDTH = 8, 30, 6


def schnet(layer: Any, x: Tensor, at: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    distance = (at[src] - at[dst]).norm(dim=1)
    centers = torch.linspace(0, 6, 10, device=x.device, dtype=x.dtype)
    basis = torch.exp(-0.5 * ((distance[:, None] - centers) * 1.5) ** 2)
    smooth = 0.5 * (torch.cos(distance * torch.pi / layer.cutoff) + 1)
    filters = layer.filters(basis) * smooth[:, None]
    return layer.after(reduced(layer.before(x)[src] * filters, dst, N))


def painn(layer: Any, x: Tensor, at: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    v, basis, direction = vectors(x, at, src, dst)
    phi, filters = layer.phi(x)[src], layer.filters(basis)
    of_s, of_v, of_d = (phi * filters).chunk(3, dim=-1)
    messages = v[src] * of_v[:, None] + of_d[:, None] * direction[:, :, None]
    s = x + reduced(of_s, dst, N)
    return torch.cat((s[:, None], v + reduced(messages, dst, N)), 1)


def vectors(x: Tensor, at: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    away = at[src] - at[dst]
    distance = away.norm(dim=1, keepdim=True)
    order = torch.arange(1, 6, device=x.device, dtype=x.dtype)
    return torch.stack((x, x * x, -x), 1), torch.sin(order * distance) / distance, away / distance


def graphsage(layer: Any, x: Tensor, at: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    how = {layers.COPIES[key]: key for key in layers.COPIES}[layer.aggregate]
    return layer.of_neighbours(reduced(x[src], dst, N, how)) + layer.of_self(x)


def gatv2(layer: Any, x: Tensor, at: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    left, right = (m(x).unflatten(1, layer.attention.shape) for m in (layer.left, layer.right))
    logit = (F.leaky_relu(left[src] + right[dst], 0.2) * layer.attention).sum(-1)
    weight = torch.zeros_like(logit)
    for row in range(N):
        weight = torch.where((dst == row)[:, None], _softmax(logit, dst == row), weight)
    return reduced(weight[..., None] * left[src], dst, N)


def _softmax(logit: Tensor, chosen: Tensor) -> Tensor:
    return logit.masked_fill(~chosen[:, None], -1e9).softmax(0)


def egnn(layer: Any, x: Tensor, at: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    distance = (at[dst] - at[src]).square().sum(1, keepdim=True)
    message = layer.of_edge(torch.cat((x[dst], x[src], distance), 1))
    move = reduced((at[dst] - at[src]) * layer.of_move(message), dst, N, "mean")
    h = x + layer.of_node(torch.cat((x, reduced(message, dst, N)), 1))
    return torch.cat((h, at + move), 1)


def edgeconv(layer: Any, x: Tensor, at: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    edges = F.relu(layer.of_difference(x[src] - x[dst]) + layer.own(x[dst]))
    return reduced(edges, dst, N, "amax")


def call(name: str, layer: Any, x: Tensor, at: Tensor, graph: dict[str, Any], src, dst) -> Tensor:
    if name == "schnet":
        distance = (at[src] - at[dst]).norm(dim=1)
        return layer(x, distance, layers.GaussianBasis(10, 6.0).to(x)(distance), **graph)
    if name == "painn":
        v, basis, direction = vectors(x, at, src, dst)
        s, v = layer(x, v, basis, direction, **graph)
        return torch.cat((s[:, None], v), 1)
    if name == "egnn":
        return torch.cat(layer(x, at, src, dst), 1)
    return layer(x, **graph)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "schnet": (lambda: layers.SchNetConvolution(WIDTH, 10, 6.0), schnet),
    "painn": (lambda: layers.PaiNNMessage(WIDTH, 5), painn),
    "graphsage_sum": (lambda: layers.GraphSAGE(WIDTH, 4, "sum"), graphsage),
    "graphsage_mean": (lambda: layers.GraphSAGE(WIDTH, 4, "mean"), graphsage),
    "graphsage_max": (lambda: layers.GraphSAGE(WIDTH, 4, "amax"), graphsage),
    "gatv2": (lambda: layers.GATv2(WIDTH, 4, 2), gatv2),
    "egnn": (lambda: layers.EGNN(WIDTH), egnn),
    "edgeconv": (lambda: layers.EdgeConv(WIDTH, 4), edgeconv),
}


# ---- PyTorch Geometric's layers, with the parameters of ours; it has no PaiNN and no EGNN


def pyg_schnet(layer: Any, x: Tensor, at: Tensor, edges: Tensor) -> Tensor:
    from torch_geometric.nn.models.schnet import CFConv, GaussianSmearing

    conv = CFConv(WIDTH, WIDTH, WIDTH, layer.filters, layer.cutoff)
    conv.lin1, conv.lin2 = layer.before, layer.after
    smear = GaussianSmearing(0.0, layer.cutoff, 10).to(x)
    distance = (at[edges[0]] - at[edges[1]]).norm(dim=1)
    return conv(x, edges, distance, smear(distance))


def pyg_graphsage(layer: Any, x: Tensor, at: Tensor, edges: Tensor) -> Tensor:
    from torch_geometric.nn import SAGEConv

    how = {layers.COPIES[key]: key for key in layers.COPIES}[layer.aggregate]
    conv = SAGEConv(WIDTH, 4, aggr="max" if how == "amax" else how)
    conv.lin_l, conv.lin_r = layer.of_neighbours, layer.of_self
    return conv(x, edges)


def pyg_gatv2(layer: Any, x: Tensor, at: Tensor, edges: Tensor) -> Tensor:
    from torch_geometric.nn import GATv2Conv

    heads, width = layer.attention.shape
    conv = GATv2Conv(WIDTH, width, heads, add_self_loops=False).to(x)
    conv.lin_l, conv.lin_r = layer.left, layer.right
    del conv.att
    conv.att = layer.attention[None]
    return conv(x, edges).unflatten(1, (heads, width))


def pyg_edgeconv(layer: Any, x: Tensor, at: Tensor, edges: Tensor) -> Tensor:
    from torch_geometric.nn import EdgeConv

    def perceptron(rows: Tensor) -> Tensor:
        own, difference = rows.split(WIDTH, dim=1)
        return F.relu(layer.own(own) + layer.of_difference(difference))

    return EdgeConv(perceptron, aggr="max")(x, edges)


OF_PYG: dict[str, Callable[..., Tensor]] = {
    "schnet": pyg_schnet,
    "graphsage_sum": pyg_graphsage,
    "graphsage_mean": pyg_graphsage,
    "graphsage_max": pyg_graphsage,
    "gatv2": pyg_gatv2,
    "edgeconv": pyg_edgeconv,
}


# ---- the comparison


def results_of(way: Callable[[], Tensor], x: Tensor, at: Tensor, layer: nn.Module) -> list[Tensor]:
    """An output, its gradients, and the gradients of a loss of forces: by double backward."""
    out = way()
    wanted = [x, at, *layer.parameters()]
    energy = out.square().sum()
    first = torch.autograd.grad(energy, wanted, create_graph=True, allow_unused=True)
    forces = [force for force in first[:2] if force is not None]
    total = sum(force.sin().sum() for force in forces)
    second = torch.autograd.grad(total, wanted, allow_unused=True)
    return [out, *(g for g in (*first, *second) if g is not None)]


@pytest.mark.slow
@pytest.mark.parametrize("with_plan", [False, True], ids=["indices", "plan"])
@pytest.mark.parametrize("name", MODELS)
def test_layers(name: str, with_plan: bool, device: torch.device) -> None:
    make, formula = MODELS[name]
    torch.manual_seed(2)
    layer = make().double().to(device)
    src = random_index(E, N, device)
    dst = (src + 1 + random_index(E, N - 1, device, seed=4)) % N  # no edge to itself
    graph = {"plan": index_plan(src=(src, N), dst=(dst, N))} if with_plan else {}
    graph = graph or {"src": src, "dst": dst}
    x, at = random((N, WIDTH), device).requires_grad_(), random((N, 3), device).requires_grad_()
    mine = results_of(lambda: call(name, layer, x, at, graph, src, dst), x, at, layer)
    theirs = results_of(lambda: formula(layer, x, at, src, dst), x, at, layer)
    # The output, its gradients, and those of the forces.
    assert len(mine) == len(theirs) > 2 + len(list(layer.parameters()))
    for actual, exact in zip(mine, theirs, strict=True):
        torch.testing.assert_close(actual, exact)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning")  # theirs, on CUDA
@pytest.mark.parametrize("name", OF_PYG)
def test_layers_of_pytorch_geometric(name: str, device: torch.device) -> None:
    pytest.importorskip("torch_geometric")
    torch.manual_seed(3)
    layer = MODELS[name][0]().double().to(device)
    src, dst = (random_index(E, N, device, seed=seed) for seed in (5, 6))
    x, at = random((N, WIDTH), device).requires_grad_(), random((N, 3), device).requires_grad_()
    if name == "schnet":  # the length of an edge to itself has no second derivative
        dst = (src + 1 + random_index(E, N - 1, device, seed=4)) % N
    graph = {"src": src, "dst": dst}
    mine = results_of(lambda: call(name, layer, x, at, graph, src, dst), x, at, layer)
    edges = torch.stack((src, dst))
    theirs = results_of(lambda: OF_PYG[name](layer, x, at, edges), x, at, layer)
    assert len(mine) == len(theirs) > 2 + len(list(layer.parameters()))
    for actual, exact in zip(mine, theirs, strict=True):
        torch.testing.assert_close(actual, exact)


def test_softplus(device: torch.device) -> None:
    """The kernel, which the layer uses on CUDA, beside torch's: to the second derivative."""
    x = (10 * random((40, 5), device)).requires_grad_()
    results = []
    for softplus in (layers.SOFTPLUS, F.softplus, layers.Softplus()):
        (slope,) = torch.autograd.grad(softplus(x).sum(), x, create_graph=True)
        results.append((softplus(x), slope, torch.autograd.grad(slope.sin().sum(), x)[0]))
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


def test_layers_are_short() -> None:
    for name in ("SchNetConvolution", "PaiNNMessage", "GraphSAGE", "GATv2", "EGNN", "EdgeConv"):
        assert len(inspect.getsource(getattr(layers, name)).splitlines()) < 30


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    layers.main()
    assert capsys.readouterr().out.splitlines()[-1] == "EdgeConv 10 4"
