"""A message-passing network: atoms hear from their neighbours, then add up to an energy.

Two operators of the library carry it. `batch_gather` fetches the features of each atom's
neighbours; `scatter_add` sums, at each atom, the messages that its neighbours send. Each is the
other's gradient. Shapes, as in dataset.Molecules: B molecules of N atoms with K edges each, and D
features.

The message is that of the crystal graph network, Xie and Grossman, Phys. Rev. Lett. 120, 145301
(2018), with a ReLU in place of its softplus.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from dataset import CUTOFF, ELEMENTS, Molecules
from torch import Tensor, nn


class Ops(Protocol):
    """What the network takes from an operator library: torch_ops, or torch_only in this folder.

    Code of your own just calls torch_ops. Here it is an argument so that both train one network.
    """

    def ReLU(self) -> nn.Module: ...

    def Sigmoid(self) -> nn.Module: ...

    def batch_gather(self, source: Tensor, index: Tensor) -> Tensor: ...

    def scatter_add(
        self, values: Tensor, index: Tensor, dim_size: int, *, batch_dims: int
    ) -> Tensor: ...


class MessagePassing(nn.Module):
    """One round of messages: each atom hears from its neighbours and changes its features."""

    def __init__(self, ops: Ops, width: int, edge_width: int) -> None:
        super().__init__()
        self.ops = ops
        inputs = 2 * width + edge_width
        self.message = nn.Sequential(nn.Linear(inputs, width), ops.ReLU())
        self.gate = nn.Sequential(nn.Linear(inputs, width), ops.Sigmoid())

    def forward(
        self, atoms: Tensor, edges: Tensor, weights: Tensor, molecules: Molecules
    ) -> Tensor:
        # At each edge, the features of the atom that it belongs to and of the one it leads to.
        neighbours = self.ops.batch_gather(atoms, molecules.neighbours)  # [B, N, D] -> [B, N*K, D]
        own = atoms.repeat_interleave(neighbours.shape[1] // atoms.shape[1], dim=1)  # K times each
        inputs = torch.cat([own, neighbours, edges], dim=-1)

        # The gate, from 0 to 1, tells how much of each feature passes along this kind of bond.
        messages = weights * self.gate(inputs) * self.message(inputs)

        # An atom sends to its neighbours and is a neighbour of each of them, so it hears from all.
        arrived = self.ops.scatter_add(  # [B, N*K, D] -> [B, N, D]
            messages, molecules.neighbours, dim_size=atoms.shape[1], batch_dims=1
        )
        return atoms + arrived


class EnergyModel(nn.Module):
    """Predicts one number for each molecule, [B]: the sum of a contribution of each atom."""

    properties: Tensor
    centres: Tensor

    def __init__(self, ops: Ops, width: int = 32, edge_width: int = 24, rounds: int = 2) -> None:
        super().__init__()
        table = torch.tensor(list(ELEMENTS.values()))
        table = (table - table.mean(dim=0)) / table.std(dim=0)
        padding = torch.zeros_like(table[:1])
        self.register_buffer("properties", torch.cat([padding, table]))
        self.register_buffer("centres", torch.linspace(0.7, CUTOFF, edge_width))

        self.embedding = nn.Embedding(len(ELEMENTS) + 1, width)
        self.describe = nn.Linear(table.shape[1], width)
        self.rounds = nn.ModuleList(MessagePassing(ops, width, edge_width) for _ in range(rounds))
        self.contribution = nn.Sequential(nn.Linear(width, width), ops.ReLU(), nn.Linear(width, 1))

    def forward(self, molecules: Molecules) -> Tensor:
        # An atom starts as what its element has in common with others, and what it has not. The
        # latter starts small, since most elements are too rare to learn much of their own.
        atoms = self.describe(self.properties[molecules.elements])
        atoms = atoms + 0.3 * self.embedding(molecules.elements)

        # An edge is a row of bells over the distance, so that a layer can tell bond lengths apart.
        distances = molecules.distances[:, :, None]  # [B, N*K, 1]
        spacing = self.centres[1] - self.centres[0]
        edges = torch.exp(-(((distances - self.centres) / spacing) ** 2) / 2)

        # Messages fade with the distance, to zero at the cutoff. Those of padding are zero.
        fading = (1 + torch.cos(math.pi * distances / CUTOFF)) / 2
        weights = fading * molecules.edge_mask[:, :, None]

        for message_passing in self.rounds:
            atoms = message_passing(atoms, edges, weights, molecules)

        contributions = self.contribution(atoms).squeeze(dim=-1)  # [B, N]
        return (contributions * molecules.atom_mask).sum(dim=1)
