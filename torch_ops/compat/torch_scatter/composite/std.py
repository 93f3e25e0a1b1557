"""The standard deviation of what an index sends to one place."""

from torch import Tensor

from torch_ops.compat.torch_scatter.scatter import added, counted, reduced
from torch_ops.compat.torch_scatter.utils import pick, size_of_result, target


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
