"""Reductions of segments whose ends are given, and the gather back to their values."""

import torch
from torch import Tensor

from torch_ops.compat.torch_scatter.utils import (
    check_out,
    like_rows,
    number_in,
    repeats,
    size_of_out,
)


def ends(name: str, src: Tensor, indptr: Tensor) -> tuple[Tensor, int, int]:
    """indptr with the leading axes of ``src``, or none where it is the same along them.

    Also batch_dims, and the axis of the segments: indptr's last one.
    """
    dim = indptr.dim() - 1
    fits = dim >= 0 and dim < src.dim()
    shared = True
    if fits:
        for d in range(dim):
            fits = fits and (indptr.size(d) == src.size(d) or indptr.size(d) == 1)
            shared = shared and repeats(indptr, d)
    if not fits:
        raise ValueError(
            f"{name}: the axes of indptr but its last one must be as long as the first axes of "
            f"src, or 1. But indptr has shape {indptr.size()} and src has {src.size()}."
        )
    if shared:
        for _ in range(dim):
            indptr = indptr.select(0, 0)
    else:
        indptr = indptr.expand(src.size()[:dim] + indptr.size()[dim:])
    if indptr.size(-1) == 0:  # no segments, as a single end says too
        indptr = torch.nn.functional.pad(indptr, [0, 1])
    return indptr, 0 if shared else dim, dim


def segments(src: Tensor, indptr: Tensor, batch_dims: int, dim: int, reduce: str) -> Tensor:
    """The reduction, by what `ends` returns."""
    return torch.ops.torch_ops.segment_reduce(src, indptr, reduce, dim, batch_dims=batch_dims)


def written(name: str, result: Tensor, dim: int, out: Tensor | None) -> Tensor:
    """The result, in ``out`` if that is given."""
    if out is None:
        return result
    return check_out(name, out, result, dim, result.size(dim)).copy_(result)


def best(
    name: str, src: Tensor, indptr: Tensor, out: Tensor | None, largest: bool
) -> tuple[Tensor, Tensor]:
    """The largest or smallest values, and where they were: src.size(dim) in an empty segment."""
    indptr, batch_dims, dim = ends(name, src, indptr)
    arg = torch.ops.torch_ops._segment_arg(src.detach(), indptr, dim, batch_dims, largest)
    result = torch.ops.torch_ops.gather_elements(src, arg, dim, mode="fill", fill_value=0)
    return written(name, result, dim, out), arg


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns :func:`segment_csr` with ``reduce="sum"``."""
    indptr, batch_dims, dim = ends("segment_sum_csr", src, indptr)
    result = segments(src, indptr, batch_dims, dim, "sum")
    return written("segment_sum_csr", result, dim, out)


segment_add_csr = segment_sum_csr


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns :func:`segment_csr` with ``reduce="mean"``, of integers rounded towards zero."""
    indptr, batch_dims, dim = ends("segment_mean_csr", src, indptr)
    if src.is_floating_point():
        result = segments(src, indptr, batch_dims, dim, "mean")
    else:
        count = like_rows(indptr.diff().clamp(min=1), src.dim(), dim, batch_dims)
        result = segments(src, indptr, batch_dims, dim, "sum")
        result = result.div_(count, rounding_mode="trunc")
    return written("segment_mean_csr", result, dim, out)


def segment_min_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns :func:`segment_csr` with ``reduce="min"``, and where the values were.

    The position is that of the first of equal values, and ``src.size(dim)`` in an empty segment.
    """
    return best("segment_min_csr", src, indptr, out, False)


def segment_max_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns :func:`segment_csr` with ``reduce="max"``, and where the values were.

    The position is that of the first of equal values, and ``src.size(dim)`` in an empty segment.
    """
    return best("segment_max_csr", src, indptr, out, True)


def segment_csr(
    src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum"
) -> Tensor:
    """Reduces each segment ``src[..., indptr[..., i] : indptr[..., i + 1], ...]``.

    Args:
        src: The values, of a dtype that :func:`torch_ops.scatter` takes.
        indptr: int32 or int64: the ends of the segments, which do not decrease along the last axis.
            Its other axes are as long as the first ones of ``src``, or 1.
        out: A tensor of the result's dtype and shape that is overwritten with it, and returned.
        reduce: "sum" or "add", "mean", "min" or "max". An empty segment gives 0.

    Returns:
        A tensor of the dtype of ``src`` with an entry for each segment along the last axis of
        ``indptr``, as long as ``src`` along all others.

    Gradient:
        That of :func:`torch_ops.scatter`.

    Raises:
        ValueError: The shapes do not fit, or ``reduce`` is none of these.
        TypeError: ``out`` has another dtype.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import segment_csr
        >>> segment_csr(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 2, 3]))
        tensor([3., 0., 4.])
    """
    if reduce == "sum" or reduce == "add":
        return segment_sum_csr(src, indptr, out)
    if reduce == "mean":
        return segment_mean_csr(src, indptr, out)
    if reduce == "min" or reduce == "max":
        indptr, batch_dims, dim = ends("segment_csr", src, indptr)
        result = segments(src, indptr, batch_dims, dim, "a" + reduce)
        return written("segment_csr", result, dim, out)
    raise ValueError(
        f'segment_csr: reduce must be "sum", "add", "mean", "min" or "max", but it is "{reduce}".'
    )


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns for each value of the segments what ``src`` has for its segment.

    Args:
        src: A tensor of any dtype, with an entry for each segment along the last axis of
            ``indptr``.
        indptr: As for :func:`segment_csr`.
        out: A tensor of the dtype of ``src`` that the result is written to, and which is returned.
            It is as long as ``src`` along all other axes. Values that lie in no segment stay as
            they are.

    Returns:
        A tensor of the dtype of ``src``. It is ``indptr[..., -1]`` long along the axis, which must
        be the same for all; where ``out`` is not given, the call waits for the GPU to read it.

    Gradient:
        The sum over each segment.

    Raises:
        ValueError: The shapes do not fit.
        TypeError: ``out`` has another dtype.

    Example:
        >>> import torch
        >>> from torch_ops.compat.torch_scatter import gather_csr
        >>> gather_csr(torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 2, 2, 3]))
        tensor([5., 5., 7.])
    """
    indptr, batch_dims, dim = ends("gather_csr", src, indptr)
    if src.size(dim) != indptr.size(-1) - 1:
        raise ValueError(
            f"gather_csr: src must have an entry for each of the {indptr.size(-1) - 1} segments of "
            f"indptr along axis {dim}, but its shape is {src.size()}."
        )
    if out is not None:
        length = size_of_out("gather_csr", out, src, dim)
    else:
        any_values = src.size(dim) > 0 and indptr.numel() > 0
        length = number_in(indptr.reshape(-1)[-1]) if any_values else 0
    result = torch.ops.torch_ops.gather_csr(
        src, indptr, dim, batch_dims=batch_dims, output_size=length
    )
    if out is None:
        return result
    places = torch.arange(length, device=indptr.device)
    inside = torch.logical_and(places >= indptr[..., :1], places < indptr[..., -1:])
    return out.copy_(torch.where(like_rows(inside, src.dim(), dim, batch_dims), result, out))
