"""The layers of examples/messages, beside their papers' formulas in float64."""

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
    gap = layer.cutoff / (len(layer.centers) - 1)
    basis = torch.exp(-0.5 * ((distance[:, None] - layer.centers) / gap) ** 2)
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
        return layer(x, (at[src] - at[dst]).norm(dim=1), **graph)
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


@pytest.mark.parametrize("with_plan", [False, True], ids=["indices", "plan"])
@pytest.mark.parametrize("name", MODELS)
def test_layers(name: str, with_plan: bool, device: torch.device) -> None:
    """Values, gradients, and the gradients of forces: by double backward."""
    make, formula = MODELS[name]
    torch.manual_seed(2)
    layer = make().double().to(device)
    src = random_index(E, N, device)
    dst = (src + 1 + random_index(E, N - 1, device, seed=4)) % N  # no edge to itself
    graph = {"plan": index_plan(src=(src, N), dst=(dst, N))} if with_plan else {}
    graph = graph or {"src": src, "dst": dst}
    x, at = random((N, WIDTH), device).requires_grad_(), random((N, 3), device).requires_grad_()
    parameters = [*layer.parameters(), x]
    results = []
    for way in (
        lambda: call(name, layer, x, at, graph, src, dst),
        lambda: formula(layer, x, at, src, dst),
    ):
        out = way()
        energy = out.square().sum()
        first = torch.autograd.grad(energy, (x, at), create_graph=True, allow_unused=True)
        forces = [force for force in first if force is not None]
        total = sum(force.sin().sum() for force in forces)
        second = torch.autograd.grad(total, parameters, allow_unused=True)
        results.append((out, *forces, *(g for g in second if g is not None)))
    assert len(results[0]) == len(results[1])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_layers_are_short() -> None:
    for name in ("SchNetConvolution", "PaiNNMessage", "GraphSAGE", "GATv2", "EGNN", "EdgeConv"):
        assert len(inspect.getsource(getattr(layers, name)).splitlines()) < 30


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    layers.main()
    assert capsys.readouterr().out.splitlines()[-1] == "EdgeConv 10 4"
