"""segment_reduce and gather_csr: rows that stand side by side, reduced and repeated by offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_ops.ops._arguments import check_kinds, check_tensors
from torch_ops.ops.gather import gather
from torch_ops.ops.scatter_reduce import scatter

_NAMES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def segment_ids(offsets: Tensor, count: int) -> Tensor:
    """The segment of each of ``count`` entries; the number of segments for one that has none."""
    segments = offsets.shape[-1] - 1
    entries = torch.arange(count, dtype=offsets.dtype, device=offsets.device)
    entries = entries.expand(*offsets.shape[:-1], count).contiguous()
    ids = torch.searchsorted(offsets.contiguous(), entries, right=True) - 1
    return torch.where(ids < 0, segments, ids)


def segment_reduce(
    values: Tensor,
    offsets: Tensor,
    reduce: str = "sum",
    dim: int | None = None,
    *,
    batch_dims: int = 0,
) -> Tensor:
    check_tensors("segment_reduce", values=values, offsets=offsets)
    check_kinds("segment_reduce", dim=(dim, "an int or None"), batch_dims=(batch_dims, "an int"))
    axis = (batch_dims if dim is None else dim) % values.dim()
    ids = segment_ids(offsets, values.shape[axis])
    return scatter(
        values,
        ids,
        offsets.shape[-1] - 1,
        axis,
        batch_dims=batch_dims,
        reduce=_NAMES.get(reduce, reduce),
        mode="fill",
        deterministic=True,
    )


def gather_csr(
    values: Tensor,
    offsets: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    output_size: int | None = None,
) -> Tensor:
    check_tensors("gather_csr", values=values, offsets=offsets)
    if output_size is None:
        output_size = int(offsets[..., -1].max())
    ids = segment_ids(offsets, output_size)
    return gather(values, ids, dim, batch_dims=batch_dims, mode="fill", fill_value=0)
