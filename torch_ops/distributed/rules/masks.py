"""The rules of masked_scatter, and of the positions of a mask, by which masked_gather gathers.

Where a true entry's row is depends on all entries before it, so each rank has the whole mask.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed.rules._frame import (
    REPLICATE,
    choose,
    is_sum,
    mesh_of,
    meta_of,
    place,
    rule,
    shard_axis,
    wrap,
)

_ops = torch.ops.torch_ops


@rule(_ops._masked_scatter.default)
def masked_scatter(rows: DTensor, mask: DTensor) -> DTensor:
    """The rows keep their placement, unless they are sharded over the axis that the mask fills."""
    mesh = mesh_of("masked_scatter", rows=rows, mask=mask)
    shape = meta_of(_ops._masked_scatter, rows, mask).shape

    def way(_: int, of_rows: Placement, __: Placement) -> tuple[Placement, Placement, Placement]:
        axis = shard_axis(of_rows)
        kept = Shard(axis) if axis > 0 else of_rows if is_sum(of_rows) else REPLICATE
        return kept, REPLICATE, kept

    of_rows, of_mask, of_output = choose(mesh, [rows, mask], way)
    output = _ops._masked_scatter(place(rows, of_rows), place(mask, of_mask))
    return wrap(output, mesh, of_output, shape)


@rule(_ops.mask_positions.default)
def mask_positions(mask: DTensor, size: int) -> DTensor:
    """Each rank has all positions."""
    mesh = mesh_of("masked_gather", mask=mask)
    whole = (REPLICATE,) * mesh.ndim
    output = _ops.mask_positions(place(mask, whole), size)
    return wrap(output, mesh, whole, output.shape)
