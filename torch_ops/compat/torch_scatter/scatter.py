"""Reductions by an index: scatter and its forms."""

import torch
from torch import Tensor

from torch_ops.compat.torch_scatter.utils import (
    like_rows,
    size_along,
    size_of_out,
    size_of_result,
    target,
)


def reduced(
    values: Tensor, index: Tensor, size: int, dim: int, batch_dims: int, rows: bool, reduce: str
) -> Tensor:
    """scatter, by what `target` returns."""
    if rows:
        return torch.ops.torch_ops.scatter(
            values, index, size, dim, batch_dims=batch_dims, reduce=reduce
        )
    if reduce == "sum":
        sizes = list(values.size())
        sizes[dim] = size
        return torch.ops.torch_ops.scatter_elements_add(values, index, sizes, dim)
    last = torch.ops.torch_ops.scatter(
        values.movedim(dim, -1),
        index.movedim(dim, -1),
        size,
        batch_dims=values.dim() - 1,
        reduce=reduce,
    )
    return last.movedim(-1, dim).contiguous()


def counted(index: Tensor, size: int, dim: int, batch_dims: int, rows: bool, rank: int) -> Tensor:
    """How many entries go to each place, in a shape that broadcasts to the result."""
    along = batch_dims if rows else dim
    ones = torch.ones(index.size(), dtype=torch.int64, device=index.device)
    counts = reduced(ones, index, size, along, batch_dims, rows, "sum")
    return like_rows(counts, rank, dim, batch_dims) if rows else counts


def added(
    name: str, out: Tensor, values: Tensor, index: Tensor, dim: int, batch_dims: int, rows: bool
) -> Tensor:
    """Sums added to what is there."""
    size_of_out(name, out, values, dim)
    if rows:
        return torch.ops.torch_ops.scatter_add_(out, values, index, dim, batch_dims=batch_dims)
    return out.add_(torch.ops.torch_ops.scatter_elements_add(values, index, list(out.size()), dim))


def best(
    name: str,
    src: Tensor,
    index: Tensor,
    dim: int,
    out: Tensor | None,
    dim_size: int | None,
    largest: bool,
) -> tuple[Tensor, Tensor]:
    """The largest or smallest values, and where on ``dim`` they were: src.size(dim) for none."""
    places, batch_dims, axis, rows = target(name, src, index, dim)
    size = size_of_result(name, src, index, axis, out, dim_size)
    values = src
    if not rows:
        values = src.movedim(axis, -1)
        places = places.movedim(axis, -1)
        batch_dims = src.dim() - 1
    along = axis if rows else batch_dims
    arg = torch.ops.torch_ops._scatter_arg(
        values.detach(), places, size, along, batch_dims, largest, "raise"
    )
    if not rows:
        arg = arg.movedim(-1, axis).contiguous()
    result = torch.ops.torch_ops.gather_elements(src, arg, axis, mode="fill", fill_value=0)
    if out is None:
        return result, arg
    better = result > out if largest else result < out
    better = torch.logical_and(torch.logical_or(better, result != result), arg < src.size(axis))
    arg = torch.where(better, arg, src.size(axis))
    return out.copy_(torch.where(better, result, out)), arg


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Returns :func:`scatter` with ``reduce="sum"``, or adds to ``out``."""
    places, batch_dims, axis, rows = target("scatter_sum", src, index, dim)
    if out is not None:
        return added("scatter_sum", out, src, places, axis, batch_dims, rows)
    reduce = "any" if src.dtype == torch.bool else "sum"
    return reduced(src, places, size_along(index, dim_size), axis, batch_dims, rows, reduce)


scatter_add = scatter_sum


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Returns :func:`scatter` with ``reduce="mul"``, or multiplies ``out``."""
    places, batch_dims, axis, rows = target("scatter_mul", src, index, dim)
    size = size_of_result("scatter_mul", src, index, axis, out, dim_size)
    product = reduced(src, places, size, axis, batch_dims, rows, "prod")
    if out is not None:
        return out.mul_(product)
    return product if src.numel() > 0 else product.zero_()  # as torch_scatter has it


def scatter_mean(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """Returns :func:`scatter` with ``reduce="mean"``.

    Of integers means are rounded down. With ``out`` the sums are added to it, and what that gives
    is divided by the number of entries, in which the value that was there is not counted.
    """
    places, batch_dims, axis, rows = target("scatter_mean", src, index, dim)
    if out is None:
        return reduced(src, places, size_along(index, dim_size), axis, batch_dims, rows, "mean")
    out = added("scatter_mean", out, src, places, axis, batch_dims, rows)
    count = counted(places, out.size(axis), axis, batch_dims, rows, src.dim()).clamp(min=1)
    if out.is_floating_point():
        return out.div_(count)
    return out.div_(count, rounding_mode="floor")


def scatter_min(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns :func:`scatter` with ``reduce="min"``, and where on ``dim`` the values were.

    The position is that of the first of equal values, and ``src.size(dim)`` where no entry goes or
    ``out`` was smaller.
    """
    return best("scatter_min", src, index, dim, out, dim_size, False)


def scatter_max(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns :func:`scatter` with ``reduce="max"``, and where on ``dim`` the values were.

    The position is that of the first of equal values, and ``src.size(dim)`` where no entry goes or
    ``out`` was larger.
    """
    return best("scatter_max", src, index, dim, out, dim_size, True)


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduces the values of ``src`` that ``index`` sends to one place along ``dim``.

    Args:
        src: The values, of a dtype that :func:`torch_ops.scatter` takes.
        index: uint8, int8, int16, int32 or int64. One axis, which lies along ``dim``; or axes that
            are as long as the first ones of ``src``, or 1, and that are repeated along those that
            it lacks.
        dim: The axis of ``src``; negative counts from the end.
        out: A tensor of the dtype of ``src`` and the result's shape that the values are reduced
            onto, and which is returned.
        dim_size: How long the result is at ``dim``. Where neither it nor ``out`` is given, one more
            than the largest entry: the call then waits for the GPU.
        reduce: "sum" or "add", "mean", "mul", "min" or "max". Where no entry goes, the result is 0;
            for "mul" it is 1, unless ``src`` is empty.

    Returns:
        A tensor of the dtype of ``src``, as long as it is along all axes but ``dim``.

    Gradient:
        That of :func:`torch_ops.scatter`, and of ``out``.

    Raises:
        ValueError: The index does not broadcast to ``src``, ``out`` has another shape, or
            ``reduce`` is none of these.
        TypeError: ``out`` has another dtype.
        IndexError: ``dim`` or an entry is out of range; on CUDA as for :func:`torch_ops.scatter`.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import scatter
        >>> scatter(torch.tensor([[1, 2, 4], [8, 5, 7]]), torch.tensor([0, 0, 1]), reduce="max")
        tensor([[2, 4],
                [8, 7]])
    """
    if reduce == "sum" or reduce == "add":
        return scatter_sum(src, index, dim, out, dim_size)
    if reduce == "mul":
        return scatter_mul(src, index, dim, out, dim_size)
    if reduce == "mean":
        return scatter_mean(src, index, dim, out, dim_size)
    if out is None and (reduce == "min" or reduce == "max"):
        places, batch_dims, axis, rows = target("scatter", src, index, dim)
        size = size_along(index, dim_size)
        return reduced(src, places, size, axis, batch_dims, rows, "a" + reduce)
    if reduce == "min":
        return scatter_min(src, index, dim, out, dim_size)[0]
    if reduce == "max":
        return scatter_max(src, index, dim, out, dim_size)[0]
    raise ValueError(
        f'scatter: reduce must be "sum", "add", "mean", "mul", "min" or "max", but it is '
        f'"{reduce}".'
    )
