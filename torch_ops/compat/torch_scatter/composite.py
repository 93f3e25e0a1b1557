"""What is made of the reductions: a deviation, softmax and its kin."""

import torch
from torch import Tensor

from torch_ops.compat.torch_scatter.scatter import added, counted, reduced
from torch_ops.compat.torch_scatter.utils import pick, size_along, size_of_result, target


def check_floating(name: str, src: Tensor) -> None:
    """Raises for integers, as torch_scatter does."""
    if not src.is_floating_point():
        raise ValueError(f"{name}: src must be of a floating dtype, but it is {src.dtype}.")


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """Returns the standard deviation of the values that ``index`` sends to one place.

    ``sqrt(sum((src - mean)**2) / (divisor + 1e-6))``, where the divisor is the number of entries,
    less 1 where ``unbiased``, and at least 1.

    Args:
        src: The values, as for :func:`scatter`.
        index: As for :func:`scatter`.
        dim: As for :func:`scatter`.
        out: A tensor of the dtype of ``src`` and the result's shape, to which the sums of squares
            are added before the division; it is not what is returned.
        dim_size: As for :func:`scatter`.
        unbiased: Whether the divisor is one less than the number of entries.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import scatter_std
        >>> scatter_std(torch.tensor([1.0, 3.0, 4.0]), torch.tensor([0, 0, 2]))
        tensor([1.4142, 0.0000, 0.0000])
    """
    places, batch_dims, axis, rows = target("scatter_std", src, index, dim)
    size = size_of_result("scatter_std", src, index, axis, out, dim_size)
    sums = reduced(src, places, size, axis, batch_dims, rows, "sum")
    count = counted(places, size, axis, batch_dims, rows, src.dim())
    mean = sums.div(count.clamp(min=1))
    squares = (src - pick(mean, places, batch_dims, axis, rows)).square()
    if out is None:
        sums = reduced(squares, places, size, axis, batch_dims, rows, "sum")
    else:
        sums = added("scatter_std", out, squares, places, axis, batch_dims, rows)
    divisor = (count - 1 if unbiased else count).clamp(min=1)
    return sums.div(divisor.to(sums.dtype) + 1e-6).sqrt()


def scatter_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None
) -> Tensor:
    """Returns the softmax of each value among those that ``index`` sends to one place.

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
