"""What the networks learn from: two graphs, and molecules whose atoms are out of place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import networkx
import numpy as np
import torch
from torch import Tensor

CLASSES = 8
FEATURES = 64
CUTOFF = 5.0  # angstrom; atoms closer than this are joined by an edge each way


@dataclass(frozen=True)
class Graph:
    """Nodes with a class each, some of which are known in training."""

    x: Tensor  # [N, features]
    edges: Tensor  # [2, E]: from, to
    label: Tensor  # [N]
    is_known: Tensor  # [N]


def power_law(nodes: int, seed: int = 0) -> Graph:
    """Communities of nodes whose numbers of edges follow a power law, as in networks of people.

    A node's weight is its rank to the power of -0.7. Receivers are drawn by weight; their senders
    too, of the same community with probability 0.7.
    """
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (nodes,), generator=generator)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    x = 0.35 * centres[label] + torch.randn(nodes, FEATURES, generator=generator)
    rank = torch.randperm(nodes, generator=generator) + 1
    weight = rank.double() ** -0.7

    def draw(among: Tensor, count: int) -> Tensor:
        ends = weight[among].cumsum(0)
        places = torch.rand(count, generator=generator, dtype=torch.float64) * ends[-1]
        return among[torch.searchsorted(ends, places).clamp(max=len(among) - 1)]

    everyone = torch.arange(nodes)
    receiver = draw(everyone, 16 * nodes)
    sender = draw(everyone, len(receiver))
    is_own = torch.rand(len(receiver), generator=generator) < 0.7
    for community in range(CLASSES):
        chosen = is_own & (label[receiver] == community)
        if chosen.any():
            sender[chosen] = draw(everyone[label == community], int(chosen.sum()))
    is_known = torch.rand(nodes, generator=generator) < 0.5
    return Graph(x, torch.stack([sender, receiver]), label, is_known)


def karate_club() -> Graph:
    """Who met whom in a karate club of 34 (W. Zachary, J. Anthropol. Res. 33, 452, 1977).

    It split in two. Known are the sides of its instructor and its president, the first and the last
    member. networkx, which torch depends on, has the graph.
    """
    club = networkx.karate_club_graph()
    forth = torch.tensor(list(club.edges)).T
    label = torch.tensor([int(side == "Officer") for _, side in club.nodes(data="club")])
    is_known = torch.zeros(len(label), dtype=torch.bool)
    is_known[[0, -1]] = True
    return Graph(torch.eye(len(label)), torch.cat([forth, forth.flip(0)], dim=1), label, is_known)


@dataclass(frozen=True)
class Molecules:
    """A batch of molecules as one graph without edges between them."""

    numbers: Tensor  # [N]: of the elements
    positions: Tensor  # [N, 3], angstrom
    molecule: Tensor  # [N]: which one an atom belongs to
    edges: Tensor  # [2, E]
    energies: Tensor  # [molecules], eV
    forces: Tensor  # [N, 3], eV an angstrom


def molecules(copies: int, batches: int, seed: int = 0) -> list[Molecules]:
    """The 148 molecules of the G2 set, whose atoms were moved by 0.1 angstrom at random.

    The set has no forces. Energies and forces are of a Morse potential between all atoms: what a
    network can learn exactly, were it large enough.
    """
    with np.load(Path(__file__).parents[1] / "g2_energies" / "g2.npz") as file:
        numbers, counts = (torch.from_numpy(file[name]).long() for name in ("numbers", "counts"))
        positions = torch.from_numpy(file["positions"]).double()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(counts) * copies, generator=generator) % len(counts)
    made = []
    for rows in order.chunk(batches):
        is_atom = torch.arange(numbers.shape[1]) < counts[rows, None]
        at = positions[rows][is_atom]
        at = at + 0.1 * torch.randn(at.shape, generator=generator, dtype=at.dtype)
        molecule = torch.arange(len(rows)).repeat_interleave(counts[rows])
        made.append(_with_forces(numbers[rows][is_atom], at, molecule, len(rows)))
    return made


def _with_forces(numbers: Tensor, at: Tensor, molecule: Tensor, count: int) -> Molecules:
    near = (at[:, None] - at).norm(dim=-1) < CUTOFF
    same = molecule[:, None] == molecule
    edges = (near & same).fill_diagonal_(False).nonzero().T.contiguous()
    at = at.clone().requires_grad_()
    distance = (at[edges[0]] - at[edges[1]]).norm(dim=1)
    wanted = radii()[numbers][edges].sum(dim=0)
    each = 2 * (torch.exp(-2 * (distance - wanted)) - 1).square() - 2  # 4 eV a pair, seen twice
    energies = torch.zeros(count, dtype=at.dtype).index_add(0, molecule[edges[1]], each)
    (gradient,) = torch.autograd.grad(energies.sum(), at)
    return Molecules(numbers, at.detach(), molecule, edges, energies.detach(), -gradient)


def radii() -> Tensor:
    """Covalent radii in angstrom by number of element (Cordero et al., Dalton 2008, 2832)."""
    known = {1: 0.31, 3: 1.28, 4: 0.96, 5: 0.84, 6: 0.76, 7: 0.71, 8: 0.66, 9: 0.57, 11: 1.66}
    known |= {13: 1.21, 14: 1.11, 15: 1.07, 16: 1.05, 17: 1.02}
    found = torch.zeros(max(known) + 1, dtype=torch.float64)
    found[list(known)] = torch.tensor(list(known.values()), dtype=torch.float64)
    return found
