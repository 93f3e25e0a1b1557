"""Reductions by an index that is sorted, and the gather by one."""

import torch
from torch import Tensor

from torch_ops.compat.torch_scatter.scatter import added, best, counted
from torch_ops.compat.torch_scatter.utils import check_out, number_in, pick, target


def size_of_sorted(index: Tensor, dim_size: int | None) -> int:
    """What is given, or one more than the largest of the last entries."""
    if dim_size is not None:
        return dim_size
    return number_in(index.select(-1, -1).max()) + 1 if index.numel() > 0 else 0


def reduced(
    src: Tensor, index: Tensor, size: int, dim: int, batch_dims: int, reduce: str
) -> Tensor:
    """The reduction by a sorted index, by what `target` returns; an entry is for a row always."""
    return torch.ops.torch_ops._scatter_sorted(src, index, size, dim, batch_dims, reduce, "scatter")


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Returns :func:`segment_coo` with ``reduce="sum"``, or adds to ``out``."""
    places, batch_dims, dim, rows = target("segment_sum_coo", src, index, index.dim() - 1)
    if out is not None:
        return added("segment_sum_coo", out, src, places, dim, batch_dims, rows)
    size = size_of_sorted(index, dim_size)
    return reduced(src, places, size, dim, batch_dims, "sum")


segment_add_coo = segment_sum_coo


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Returns :func:`segment_coo` with ``reduce="mean"``.

    Means of integers are rounded towards zero. With ``out`` the sums are added to it, and what that
    gives is divided by the number of entries, in which the value that was there is not counted.
    """
    places, batch_dims, dim, rows = target("segment_mean_coo", src, index, index.dim() - 1)
    if out is None:
        size = size_of_sorted(index, dim_size)
        if src.is_floating_point():
            return reduced(src, places, size, dim, batch_dims, "mean")
        result = reduced(src, places, size, dim, batch_dims, "sum")
    else:
        result = added("segment_mean_coo", out, src, places, dim, batch_dims, rows)
    count = counted(places, result.size(dim), dim, batch_dims, rows, src.dim()).clamp(min=1)
    if result.is_floating_point():
        return result.div_(count)
    return result.div_(count, rounding_mode="trunc")


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns :func:`segment_coo` with ``reduce="min"``, and positions, as ``scatter_min`` does."""
    size = size_of_sorted(index, dim_size) if out is None else dim_size
    return best("segment_min_coo", src, index, index.dim() - 1, out, size, False)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Returns :func:`segment_coo` with ``reduce="max"``, and positions, as ``scatter_max`` does."""
    size = size_of_sorted(index, dim_size) if out is None else dim_size
    return best("segment_max_coo", src, index, index.dim() - 1, out, size, True)


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduces values of ``src`` along the index's last axis, by an index that is sorted there.

    Args:
        src: The values, of a dtype that :func:`torch_ops.scatter` takes.
        index: uint8, int8, int16, int32 or int64. Its axes are as long as the first ones of
            ``src``, or 1. Entries do not decrease along the last axis; where they do, the result is
            undefined.
        out: A tensor of the dtype of ``src`` and the result's shape that the values are reduced
            onto, and which is returned.
        dim_size: How long the result is at the index's last axis. Where neither it nor ``out`` is
            given, one more than the largest entry: the call then waits for the GPU.
        reduce: "sum" or "add", "mean", "min" or "max". Where no entry goes, the result is 0.

    Returns:
        A tensor of the dtype of ``src``, as long as it is along all other axes.

    Gradient:
        That of :func:`torch_ops.scatter`, and of ``out``.

    Raises:
        ValueError: The index does not broadcast to ``src``, ``out`` has another shape, or
            ``reduce`` is none of these.
        TypeError: ``out`` has another dtype.
        IndexError: An entry is out of range; on CUDA as for :func:`torch_ops.scatter`.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import segment_coo
        >>> segment_coo(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), reduce="mean")
        tensor([1.5000, 0.0000, 4.0000])
    """
    if reduce == "sum" or reduce == "add":
        return segment_sum_coo(src, index, out, dim_size)
    if reduce == "mean":
        return segment_mean_coo(src, index, out, dim_size)
    if out is None and (reduce == "min" or reduce == "max"):
        places, batch_dims, dim, _ = target("segment_coo", src, index, index.dim() - 1)
        size = size_of_sorted(index, dim_size)
        return reduced(src, places, size, dim, batch_dims, reduce)
    if reduce == "min":
        return segment_min_coo(src, index, out, dim_size)[0]
    if reduce == "max":
        return segment_max_coo(src, index, out, dim_size)[0]
    raise ValueError(
        f'segment_coo: reduce must be "sum", "add", "mean", "min" or "max", but it is "{reduce}".'
    )


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns what ``src`` has, along the index's last axis, at each entry of a sorted index.

    Args:
        src: A tensor of any dtype.
        index: As for :func:`segment_coo`.
        out: A tensor of the result's dtype and shape that it is written to, and which is returned.

    Returns:
        A tensor of the dtype of ``src``, as long as the index is at its last axis, and as ``src``
        along the others.

    Gradient:
        The sum by the index, as of :func:`torch_ops.gather`.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import gather_coo
        >>> gather_coo(torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 0, 2]))
        tensor([5., 5., 7.])
    """
    dim = index.dim() - 1
    # Values at the entries: of src's shape, but for the axis.
    size = list(src.size())
    size[dim] = index.size(-1)
    places, batch_dims, dim, rows = target("gather_coo", src.new_empty(1).expand(size), index, dim)
    result = pick(src, places, batch_dims, dim, rows)
    if out is None:
        return result
    return check_out("gather_coo", out, src, dim, index.size(-1)).copy_(result)
