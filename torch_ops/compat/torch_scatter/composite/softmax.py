"""Softmax over what an index sends to one place, and its logarithm."""

import torch
from torch import Tensor

from torch_ops.compat.torch_scatter.scatter import reduced
from torch_ops.compat.torch_scatter.utils import check_floating, pick, size_along, target


def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None
) -> Tensor:
    """Returns the softmax of each value among those that ``index`` sends to one place.

    The gradient needs the result: do not change it in place before the backward pass.

    Args:
        src: The values, of a floating dtype.
        index: As for :func:`scatter`.
        dim: As for :func:`scatter`.
        dim_size: As for :func:`scatter`.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import scatter_softmax
        >>> scatter_softmax(torch.zeros(3), torch.tensor([0, 0, 2]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    check_floating("scatter_softmax", src)
    places, batch_dims, axis, rows = target("scatter_softmax", src, index, dim)
    size = size_along(index, dim_size)
    if rows:
        return torch.ops.torch_ops.softmax(src, places, size, axis, batch_dims=batch_dims)
    last = torch.ops.torch_ops.softmax(
        src.movedim(axis, -1), places.movedim(axis, -1), size, batch_dims=src.dim() - 1
    )
    return last.movedim(-1, axis).contiguous()


def scatter_log_softmax(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    eps: float = 1e-12,
    dim_size: int | None = None,
) -> Tensor:
    """Returns the logarithm of :func:`scatter_softmax`, without taking it.

    Args:
        src: The values, of a floating dtype.
        index: As for :func:`scatter`.
        dim: As for :func:`scatter`.
        eps: What is added to a sum of powers before its logarithm is taken.
        dim_size: As for :func:`scatter`.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import scatter_log_softmax
        >>> scatter_log_softmax(torch.zeros(3), torch.tensor([0, 0, 2]))
        tensor([-0.6931, -0.6931,  0.0000])
    """
    check_floating("scatter_log_softmax", src)
    places, batch_dims, axis, rows = target("scatter_log_softmax", src, index, dim)
    size = size_along(index, dim_size)
    highest = reduced(src.detach(), places, size, axis, batch_dims, rows, "amax")
    shifted = src - pick(highest, places, batch_dims, axis, rows)
    sums = reduced(shifted.exp(), places, size, axis, batch_dims, rows, "sum")
    return shifted - pick((sums + eps).log(), places, batch_dims, axis, rows)
