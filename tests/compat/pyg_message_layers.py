"""Layers whose messages are features times factors, and edges for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GraphConv, MessagePassing, SAGEConv

messages: Any = importlib.import_module("torch_ops.compat._pyg_messages")
NODES, EDGES = 10, 40


def edges_on(device: torch.device) -> Tensor:
    pairs = torch.randperm(NODES**2, generator=torch.Generator().manual_seed(0))[:EDGES]
    return torch.stack([pairs // NODES, pairs % NODES]).to(device)


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
