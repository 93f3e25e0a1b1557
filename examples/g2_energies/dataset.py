"""The molecules of the G2 set as tensors, and the linear fit that the network corrects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).with_name("g2.npz")

# What a chemist knows of each element: covalent radius in angstrom (Cordero et al., Dalton Trans.
# 2008, 2832), electronegativity (Pauling), number of valence electrons, number of bonds it usually
# makes. Half of the elements occur in 10 molecules or fewer; these numbers let one element learn
# from another.
ELEMENTS = {
    1: (0.31, 2.20, 1, 1),  # H
    3: (1.28, 0.98, 1, 1),  # Li
    4: (0.96, 1.57, 2, 2),  # Be
    5: (0.84, 2.04, 3, 3),  # B
    6: (0.76, 2.55, 4, 4),  # C
    7: (0.71, 3.04, 5, 3),  # N
    8: (0.66, 3.44, 6, 2),  # O
    9: (0.57, 3.98, 7, 1),  # F
    11: (1.66, 0.93, 1, 1),  # Na
    13: (1.21, 1.61, 3, 3),  # Al
    14: (1.11, 1.90, 4, 4),  # Si
    15: (1.07, 2.19, 5, 3),  # P
    16: (1.05, 2.58, 6, 2),  # S
    17: (1.02, 3.16, 7, 1),  # Cl
}

# Distances are in units of the sum of the two atoms' covalent radii. A single bond is then about
# 1.0 between any two elements, a triple bond 0.8. Atoms closer than this are joined by an edge.
CUTOFF = 1.6

HELD_OUT = 28  # molecules to test on, a fifth of them


@dataclass(frozen=True)
class Molecules:
    """B molecules, padded to N atoms with K edges each, so that they stack into tensors.

    An edge leads from an atom to one of its neighbours; each bond has two, one either way. Entry
    n * K + k of a row is the k-th edge of atom n. All padding is zero: a padded edge leads to
    atom 0. That index is in range for every molecule, and edge_mask is what keeps its message out
    of the sum.
    """

    elements: Tensor  # [B, N] row in ELEMENTS, counted from 1; 0 is padding
    atom_mask: Tensor  # [B, N] 1 for atoms, 0 for padding
    neighbours: Tensor  # [B, N*K] atom that an edge leads to, below N
    distances: Tensor  # [B, N*K] how far it is from the edge's own atom, in sums of covalent radii
    edge_mask: Tensor  # [B, N*K] 1 for edges, 0 for padding
    energies: Tensor  # [B] atomisation energies, eV

    def __len__(self) -> int:
        return len(self.energies)

    def __getitem__(self, rows: Tensor) -> Molecules:
        return Molecules(*(getattr(self, field.name)[rows] for field in fields(self)))

    def to(self, device: str) -> Molecules:
        return Molecules(*(getattr(self, field.name).to(device) for field in fields(self)))


def load() -> Molecules:
    with np.load(FILE) as file:
        numbers, positions, energies = file["numbers"], file["positions"], file["energies"]

    known = [0, *ELEMENTS]
    elements = np.searchsorted(known, numbers)
    radii = np.array([np.nan, *(radius for radius, *_ in ELEMENTS.values())])[elements]

    # Distances to padding are nan, which is never below the cutoff.
    distances = np.linalg.norm(positions[:, :, None] - positions[:, None, :], axis=-1)
    distances /= radii[:, :, None] + radii[:, None, :]
    joined = (distances < CUTOFF) & ~np.eye(numbers.shape[1], dtype=bool)

    # K is the greatest number of neighbours that an atom has.
    shape = (*elements.shape, joined.sum(axis=2).max())
    neighbours = np.zeros(shape, dtype=np.int64)
    lengths = np.zeros(shape)
    edge_mask = np.zeros(shape)
    for row, n in np.ndindex(elements.shape):
        (others,) = joined[row, n].nonzero()
        neighbours[row, n, : len(others)] = others
        lengths[row, n, : len(others)] = distances[row, n, others]
        edge_mask[row, n, : len(others)] = 1

    atom_mask = (elements > 0).astype(edge_mask.dtype)
    edges = (array.reshape(len(numbers), -1) for array in (neighbours, lengths, edge_mask))
    return Molecules(*map(torch.from_numpy, (elements, atom_mask, *edges, energies)))


def split(count: int, seed: int, validate: bool = False) -> tuple[Tensor, Tensor]:
    """Rows to train on and, apart from them, HELD_OUT rows to test on.

    With validate, the test rows are laid aside and as many of the training rows take their place:
    for whoever compares hyperparameters.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    if validate:
        order = order[HELD_OUT:]
    return order[HELD_OUT:], order[:HELD_OUT]


class LinearFit:
    """Least-squares fit of the energy by how many atoms of each element a molecule has.

    It has a constant too: rings apart, a molecule of n atoms has n - 1 bonds. How the atoms are
    joined it does not know.
    """

    def __init__(self, molecules: Molecules) -> None:
        counts = count_elements(molecules)
        # Fitted is how far each element is from the mean energy of an atom. The pseudo-inverse
        # gives zero for an element that does not occur: it then counts as such a mean atom.
        self.mean_atom = molecules.energies.sum() / counts.sum()
        deviations = molecules.energies - self.mean_atom * counts.sum(dim=1)
        self.coefficients = torch.linalg.pinv(_with_constant(counts)) @ deviations

    def __call__(self, molecules: Molecules) -> Tensor:
        counts = count_elements(molecules)
        return self.mean_atom * counts.sum(dim=1) + _with_constant(counts) @ self.coefficients


def count_elements(molecules: Molecules) -> Tensor:
    """[B, number of elements]: how many atoms of each a molecule has."""
    one_hot = torch.nn.functional.one_hot(molecules.elements, len(ELEMENTS) + 1)
    return one_hot[:, :, 1:].sum(dim=1).to(molecules.energies.dtype)


def _with_constant(counts: Tensor) -> Tensor:
    return torch.cat([counts, torch.ones_like(counts[:, :1])], dim=1)
