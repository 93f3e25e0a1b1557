"""The logarithm of the sum of powers of what an index sends to one place."""

import torch
from torch import Tensor

from torch_ops.compat.torch_scatter.scatter import reduced
from torch_ops.compat.torch_scatter.utils import check_floating, pick, size_of_result, target


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Returns the logarithm of the sum of the powers of what ``index`` sends to one place.

    Args:
        src: The values, of a floating dtype.
        index: As for :func:`scatter`.
        dim: As for :func:`scatter`.
        out: A tensor of the dtype of ``src`` and the result's shape whose values count as values
            too, and that is overwritten and returned.
        dim_size: As for :func:`scatter`.
        eps: What is added to a sum of powers before its logarithm is taken.

    Returns:
        Where no entry goes, or -inf alone, 0 or what ``out`` was.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import scatter_logsumexp
        >>> scatter_logsumexp(torch.zeros(3), torch.tensor([0, 0, 2]))
        tensor([0.6931, 0.0000, 0.0000])
    """
    check_floating("scatter_logsumexp", src)
    places, batch_dims, axis, rows = target("scatter_logsumexp", src, index, dim)
    size = size_of_result("scatter_logsumexp", src, index, axis, out, dim_size)
    highest = reduced(src.detach(), places, size, axis, batch_dims, rows, "amax")
    highest = torch.where(highest.isfinite(), highest, 0.0)
    shifted = src - pick(highest, places, batch_dims, axis, rows)
    sums = reduced(shifted.exp(), places, size, axis, batch_dims, rows, "sum")
    some = sums != 0  # for the largest value adds 1
    result = (sums + eps).log() + highest
    if out is None:
        return torch.where(some, result, 0.0)
    old = out.clone()  # which the gradient needs
    return out.copy_(torch.where(some, torch.logaddexp(result, old), old))
