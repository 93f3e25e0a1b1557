"""The axes of a gather of rows, by which its rule goes.

Of the source's axes an index picks along ``dim``. Before it are batch axes, which the index has
too, and outer axes; after it are inner ones. In the output the index's own axes stand in the place
of ``dim``.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Axes(NamedTuple):
    """The axes of a call."""

    dim: int
    batch_dims: int
    picked: int  # how many axes of its own the index has

    @classmethod
    def of_source(cls, rank: int, index: Tensor, dim: int | None, batch_dims: int) -> Axes:
        """Of a call whose source has ``rank`` axes."""
        return cls(batch_dims if dim is None else dim % rank, batch_dims, index.dim() - batch_dims)

    def in_values(self, axis: int) -> int:
        """Where an axis of the source, other than ``dim``, is in the output."""
        return axis if axis < self.dim else axis - 1 + self.picked

    def in_source(self, axis: int) -> int:
        """Where an axis of the output is in the source; ``dim`` for one of the index's own."""
        if axis < self.dim:
            return axis
        return self.dim if axis < self.dim + self.picked else axis + 1 - self.picked

    def index_in_values(self, axis: int) -> int:
        """Where an axis of the index is in the output."""
        return axis if axis < self.batch_dims else axis - self.batch_dims + self.dim

    def values_in_index(self, axis: int) -> int:
        """Where an axis of the output that the index has is there."""
        return axis if axis < self.batch_dims else axis - self.dim + self.batch_dims

    def expand(self, of_index: Tensor, rank: int) -> Tensor:
        """What belongs to the entries as it belongs to an output of ``rank`` axes."""
        shape = [1] * rank
        for axis, size in enumerate(of_index.shape):
            shape[self.index_in_values(axis)] = size
        return of_index.reshape(shape)
