"""The networks, made of PyTorch Geometric's layers or of those of examples/messages.

A layer is called with the graph as it wants it: PyTorch Geometric's with `edge_index=`, ours with
`plan=`, the sorted edges, which the training makes once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from data import CUTOFF
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, SAGEConv
from torch_geometric.nn.models.schnet import CFConv

from torch_ops.jit import index_plan

sys.path.append(str(Path(__file__).parents[1] / "messages"))
import layers as ours

HEADS = 4
GAUSSIANS = 32


class NodeNetwork(nn.Module):
    """GraphSAGE, attention, GraphSAGE: the class of each node."""

    def __init__(self, is_ours: bool, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        if is_ours:
            self.first = ours.GraphSAGE(inputs, width, "mean")
            self.second = ours.GATv2(width, width // HEADS, HEADS)
            self.third = ours.GraphSAGE(width, classes, "mean")
        else:
            self.first = SAGEConv(inputs, width, aggr="mean")
            self.second = GATv2Conv(width, width // HEADS, HEADS, add_self_loops=False)
            self.second.register_parameter("bias", None)  # the paper's equation has none
            self.third = SAGEConv(width, classes, aggr="mean")

    def forward(self, x: Tensor, **graph: Any) -> Tensor:
        x = F.elu(self.first(x, **graph))
        x = F.elu(self.second(x, **graph).flatten(1))
        return self.third(x, **graph)


class TheirConvolution(CFConv):
    """PyTorch Geometric's, with the arguments named as ours are."""

    def forward(self, x: Tensor, distance: Tensor, basis: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index, distance, basis)


class EnergyNetwork(nn.Module):
    """SchNet: the energy of each molecule. The forces are its gradient."""

    def __init__(self, is_ours: bool, width: int, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(18, width)
        self.basis = ours.GaussianBasis(GAUSSIANS, CUTOFF)
        self.convolutions = nn.ModuleList(
            ours.SchNetConvolution(width, GAUSSIANS, CUTOFF)
            if is_ours
            else TheirConvolution(width, width, width, _filters(width), CUTOFF)
            for _ in range(blocks)
        )
        self.dense = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.energy = nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, 1))

    def forward(
        self, numbers: Tensor, positions: Tensor, edges: Tensor, molecule: Tensor, count: int,
        **graph: Any,
    ) -> Tensor:  # fmt: skip
        distance = (positions[edges[0]] - positions[edges[1]]).norm(dim=1)
        basis, x = self.basis(distance), self.embedding(numbers)
        for convolution, dense in zip(self.convolutions, self.dense, strict=True):
            x = x + dense(F.softplus(convolution(x, distance, basis, **graph)))
        energies = self.energy(x).squeeze(1)
        return energies.new_zeros(count).index_add(0, molecule, energies)


def _filters(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(GAUSSIANS, width), nn.Softplus(), nn.Linear(width, width))


# What PyTorch Geometric calls the parameters of ours.
THEIR_NAMES = {
    "of_neighbours": "lin_l",
    "of_self": "lin_r",
    "left": "lin_l",
    "right": "lin_r",
    "attention": "att",
    "filters": "nn",
    "before": "lin1",
    "after": "lin2",
}


def copy_weights(mine: nn.Module, theirs: nn.Module) -> None:
    """Gives their network the weights of ours."""
    shapes = {name: value.shape for name, value in theirs.state_dict().items()}
    state = {}
    for name, value in mine.state_dict().items():
        name = ".".join(THEIR_NAMES.get(part, part) for part in name.split("."))
        state[name] = value.reshape(shapes[name])
    theirs.load_state_dict(state)


def graph_of(edges: Tensor, nodes: int, is_ours: bool) -> dict[str, Any]:
    """The edges as the layers take them."""
    if not is_ours:
        return {"edge_index": edges}
    return {"plan": index_plan(src=(edges[0], nodes), dst=(edges[1], nodes))}


def pair(kind: type[nn.Module], *args: Any) -> dict[bool, nn.Module]:
    """The same network of their layers (False) and of ours (True)."""
    torch.manual_seed(0)
    made = {is_ours: kind(is_ours, *args) for is_ours in (False, True)}
    copy_weights(made[True], made[False])
    return made
