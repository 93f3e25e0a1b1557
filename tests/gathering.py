"""Shapes, samples and a plain NumPy reference for gather and scatter_add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    source: tuple[int, ...]
    index: tuple[int, ...]
    dim: int | None = None
    batch_dims: int = 0

    @property
    def axis(self) -> int:
        dim = self.batch_dims if self.dim is None else self.dim
        return dim % len(self.source)

    @property
    def output(self) -> tuple[int, ...]:
        before, after = self.source[: self.axis], self.source[self.axis + 1 :]
        return before + self.index[self.batch_dims :] + after

    @property
    def kwargs(self) -> dict[str, int | None]:
        return {"dim": self.dim, "batch_dims": self.batch_dims}


def enough(device: torch.device, count: int, on_the_cpu: int) -> int:
    """As much as chooses a path on a GPU of 132 multiprocessors, for those of this one."""
    if device.type == "cpu":
        return on_the_cpu
    return -(-count * torch.cuda.get_device_properties(device).multi_processor_count // 132)


CASES = [
    # The four forms of the documentation.
    Case((7,), (5,)),
    Case((7, 3), (5,)),
    Case((2, 7), (2, 5), batch_dims=1),
    Case((2, 7, 3), (2, 5), batch_dims=1),
    # An index of rank 0 and of rank 2, with and without batches.
    Case((7, 3), ()),
    Case((7, 3), (4, 5)),
    Case((2, 7, 3), (2,), batch_dims=1),
    Case((2, 7, 3), (2, 4, 5), batch_dims=1),
    # Axes before dim, negative dims, two batch axes.
    Case((4, 7, 3), (5,), dim=1),
    Case((4, 7), (5,), dim=-1),
    Case((2, 3, 7, 4), (2, 5), dim=2, batch_dims=1),
    Case((2, 3, 7, 4), (2, 5), dim=-2, batch_dims=1),
    Case((2, 3, 7, 4), (2, 3, 5), batch_dims=2),
    Case((2, 3, 4, 7), (2, 3, 5), dim=-1, batch_dims=2),
    Case((3, 1, 5), (3, 2), batch_dims=1),
    # Rows of every length around a vector's: 1 to 33 elements.
    *[Case((6, row), (9,)) for row in (1, 2, 4, 5, 7, 8, 9, 15, 16, 17, 32, 33)],
    *[Case((2, 6, row), (2, 9), batch_dims=1) for row in (4, 7, 64)],
    # More than one block of threads, and more slabs than entries.
    Case((300, 33), (400,)),
    Case((500, 3), (2,), dim=1),
    Case((70, 5, 3), (70, 2), batch_dims=1),
    # Elements of a small table, picked many times; slabs that end within a vector of 16 bytes.
    Case((3, 10), (3, 1001), batch_dims=1),
    Case((10, 3), (517,), dim=-2),
    Case((5, 40), (201,), dim=1),
    Case((3, 50, 5), (3, 67), batch_dims=1),
    Case((3, 50, 11), (3, 3), batch_dims=1),
    # Empties.
    Case((7, 3), (0,)),
    Case((0, 3), (0,)),
    Case((7, 0), (5,)),
    Case((0, 7), (0, 5), batch_dims=1),
    Case((0, 7), (5,), dim=1),
]


def bad_index(index: Tensor, value: int) -> Iterator[Tensor]:
    """An entry out of range, the last one; and another dtype."""
    out_of_range = index.clone()
    out_of_range.view(-1)[-1] = value
    yield out_of_range
    yield index.float()


def index_for(
    case: Case, device: torch.device, dtype: torch.dtype = torch.int64, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed + len(case.source))
    size = case.source[case.axis]
    index = torch.randint(max(size, 1), case.index, generator=generator)
    if index.numel() > 2:  # both ends, and a duplicate
        index.view(-1)[:3] = torch.tensor([size - 1, 0, size - 1])
    return index.to(device, dtype)


def values_for(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).to(device, dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        whole = torch.randint(-(2**62), 2**62, shape, generator=generator)
        return whole.to(dtype).to(device)
    real = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        imaginary = torch.randn(shape, generator=generator, dtype=torch.float64)
        return torch.complex(real, imaginary).to(device, dtype)
    return real.to(device, dtype)


def _slabs(case_shape: tuple[int, ...], batch_dims: int) -> Iterator[tuple[int, ...]]:
    return iter(np.ndindex(*case_shape[:batch_dims]))


def gather_reference(
    source: Tensor, index: Tensor, dim: int | None = None, *, batch_dims: int = 0
) -> Tensor:
    """numpy.take for each batch."""
    axis = (batch_dims if dim is None else dim) % source.dim()
    table, entries = source.numpy(), index.long().numpy()
    shape = table.shape[:axis] + entries.shape[batch_dims:] + table.shape[axis + 1 :]
    output = np.zeros(shape, table.dtype)
    for batch in _slabs(table.shape, batch_dims):
        if output[batch].size:
            output[batch] = np.take(table[batch], entries[batch], axis=axis - batch_dims)
    return torch.from_numpy(output)


def scatter_add_reference(
    values: Tensor, index: Tensor, dim_size: int, dim: int | None = None, *, batch_dims: int = 0
) -> Tensor:
    """numpy.add.at for each batch."""
    picked = index.dim() - batch_dims
    rank = values.dim() - picked + 1
    axis = (batch_dims if dim is None else dim) % rank
    rows, entries = values.numpy(), index.long().numpy()
    shape = (*rows.shape[:axis], dim_size, *rows.shape[axis + picked :])
    output = np.zeros(shape, rows.dtype)
    for batch in _slabs(shape, batch_dims):
        where = (slice(None),) * (axis - batch_dims) + (entries[batch],)
        np.add.at(output[batch], where, rows[batch])
    return torch.from_numpy(output)


# How entries are spread over rows: all rows short; rows of more than a tile (256) or a long run
# (512); runs that start and end within a tile.
SPREADS = ["uniform", "one", "hot", "sorted", "few"]


def spread_index(spread: str, size: int, count: int, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(size + count)
    index = torch.randint(size, (batch, count), generator=generator)
    if spread == "one":
        index.fill_(size - 1)
    elif spread == "hot":
        index[torch.rand(batch, count, generator=generator) < 0.9] = 2
    elif spread == "sorted":
        index = index.sort().values
    elif spread == "few":
        index %= 3
    return index


def scatter_arguments(case: Case) -> dict[str, Any]:
    return {"dim_size": case.source[case.axis], **case.kwargs}


def sum_tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Gives (rtol, atol).

    16 bits are rounded once from a float32 sum. A sum of n numbers near 1 is off by some n eps at
    most, whatever it is itself; here n is 400 (all values alike, on one row) at the most.
    """
    info = torch.finfo(dtype)
    summed = torch.finfo(torch.float32) if info.bits == 16 else info
    return 0.51 * info.eps if info.bits == 16 else 0.0, 400 * summed.eps
