"""The operators of model.Ops, written with torch alone: what one would use without torch_ops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import ReLU, Sigmoid

__all__ = ["ReLU", "Sigmoid", "batch_gather", "scatter_add"]


def batch_gather(source: Tensor, index: Tensor) -> Tensor:
    # torch.gather picks single entries, so the index of a row is repeated for each of its entries.
    index = index[:, :, None].expand(-1, -1, source.shape[2])
    return torch.gather(source, 1, index)


def scatter_add(values: Tensor, index: Tensor, dim_size: int, *, batch_dims: int) -> Tensor:
    assert batch_dims == 1, "written out for messages [B, N*K, D], index [B, N*K]"
    zeros = values.new_zeros(values.shape[0], dim_size, values.shape[2])
    return zeros.scatter_add(1, index[:, :, None].expand_as(values), values)
