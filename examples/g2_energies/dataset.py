"""The molecules of the G2 set as tensors, their split, and the fit the network corrects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).with_name("g2.npz")
CUTOFF = 4.0  # angstrom: atoms closer than this exchange messages


@dataclass(frozen=True)
class Molecules:
    """B molecules, padded to N atoms and to E directed edges (atom pairs within CUTOFF).

    Padding is zero throughout. A padded edge therefore points from atom 0 to atom 0, an
    index that is in range for every molecule, and edge_mask takes its message out.
    """

    elements: Tensor  # [B, N] int64, 1 to len(symbols); 0 is padding
    atom_mask: Tensor  # [B, N] bool
    senders: Tensor  # [B, E] int64
    receivers: Tensor  # [B, E] int64
    distances: Tensor  # [B, E] angstrom
    edge_mask: Tensor  # [B, E] bool
    energies: Tensor  # [B] eV

    def __len__(self) -> int:
        return len(self.energies)

    def __getitem__(self, rows: Tensor) -> Molecules:
        return Molecules(*(getattr(self, field.name)[rows] for field in fields(self)))

    def to(self, device: torch.device) -> Molecules:
        return Molecules(*(getattr(self, field.name).to(device) for field in fields(self)))


def load() -> Molecules:
    with np.load(FILE) as file:
        numbers, positions, energies = file["numbers"], file["positions"], file["energies"]

    known = np.unique(numbers)  # 0, the padding, then the atomic numbers that occur
    elements = np.searchsorted(known, numbers)

    real = numbers > 0
    separations = np.linalg.norm(positions[:, :, None] - positions[:, None, :], axis=-1)
    bonded = real[:, :, None] & real[:, None, :] & (separations < CUTOFF)
    bonded &= ~np.eye(numbers.shape[1], dtype=bool)

    shape = len(numbers), bonded.sum(axis=(1, 2)).max()
    senders, receivers = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    distances, edge_mask = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=bool)
    for row, pairs in enumerate(bonded):
        to, of = np.nonzero(pairs)
        receivers[row, : len(to)], senders[row, : len(of)] = to, of
        distances[row, : len(to)] = separations[row, to, of]
        edge_mask[row, : len(to)] = True

    arrays = (elements, real, senders, receivers, distances, edge_mask, energies.astype(np.float32))
    return Molecules(*(torch.from_numpy(array) for array in arrays))
