"""softmax, log_softmax and logsumexp over the entries that belong to one segment."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_ops.ops._arguments import check_dense, check_kinds, least_size
from torch_ops.ops._self_check import compared
from torch_ops.ops.plan import GatherPlan, plan_arguments

_OPS = {
    "softmax": torch.ops.torch_ops.softmax.default,
    "log_softmax": torch.ops.torch_ops.log_softmax.default,
    "logsumexp": torch.ops.torch_ops.logsumexp.default,
}


def _call(
    name: str,
    values: Tensor,
    index: Tensor | GatherPlan | None,
    dim_size: int | None,
    dim: int | None,
    offsets: Tensor | None,
    batch_dims: int,
) -> Tensor:
    check_dense(name, values=values)
    check_kinds(
        name,
        dim_size=(dim_size, "an int or None"),
        dim=(dim, "an int or None"),
        batch_dims=(batch_dims, "an int"),
    )
    op = _OPS[name]
    if offsets is not None:
        if index is not None:
            raise TypeError(f"{name}: either index or offsets must be given, but both were.")
        check_dense(name, offsets=offsets)
        return op(values, None, dim_size, dim, offsets=offsets, batch_dims=batch_dims)
    if isinstance(index, GatherPlan):
        index, rows, order, dim_size, dim, batch_dims = plan_arguments(
            index, name, values, dim, batch_dims, dim_size
        )
        return op(values, index, dim_size, dim, batch_dims=batch_dims, rows=rows, order=order)
    if index is None:
        raise TypeError(f"{name}: either index or offsets must be given, but neither was.")
    check_dense(name, "(values, index, dim_size, dim)", index=index)
    if dim_size is None:
        dim_size = least_size(name, "dim_size", index, 1)
    return op(values, index, dim_size, dim, batch_dims=batch_dims)


def softmax(
    values: Tensor,
    index: Tensor | GatherPlan | None = None,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    offsets: Tensor | None = None,
    batch_dims: int = 0,
) -> Tensor:
    """Returns the softmax of ``values`` over the entries of each segment.

    ``exp(x) / sum(exp(x))``, where the sum is over the entries of the same segment, for each of the
    other axes by itself: attention over the neighbours of a node. It is
    ``torch_geometric.utils.softmax``, and ``torch.softmax`` of each segment. The largest value is
    subtracted first, so that nothing overflows; 16-bit floats are computed in float32.

    Args:
        values: float16, bfloat16, float32 or float64, of any strides, on the CPU or a CUDA device.
        index: uint8, int8, int16, int32 or int64, as for :func:`scatter`: which segment each slice
            of ``values`` is of. Or a :class:`GatherPlan` of such a tensor.
        dim_size: How many segments there are. Default: that of the plan or the offsets, or one more
            than the largest entry of the index, for which the call waits for the device.
        dim: The axis of the entries; negative counts from the end. Default: ``batch_dims``.
        offsets: In place of an index: where segments begin, as for :func:`segment_reduce`.
            The result of an entry that is in no segment is 0.
        batch_dims: How many leading axes values and index, or offsets, share.

    Returns:
        A contiguous tensor of the values' dtype and shape.

    Gradient:
        ``y * (grad_output - sum(y * grad_output))`` of the output ``y``, which alone is saved of
        the values: do not change it in place before the backward pass. Differentiable any number of
        times; forward mode too.

    Memory:
        Forward the result, the largest values and the sums of the segments, in float32 for 16-bit
        floats, and exponentials of the values' shape in that type. The result is saved, and the
        index or the offsets with 4 bytes an entry.

    Determinism:
        By offsets and by a plan the same bits on every run; by an index as for :func:`scatter_add`.

    Raises:
        IndexError: An entry, an offset or ``dim`` is out of range; as for :func:`scatter`.
        TypeError: A dtype is not allowed, an argument is no tensor, a number is no int, or there
            are both an index and offsets, or neither.
        ValueError: The shapes do not fit, or a number is out of range.
        RuntimeError: The tensors are on different devices, or ``torch.vmap`` maps over the index
            and ``dim_size`` is not given.

    Example:
        >>> import torch, torch_ops
        >>> scores = torch.tensor([1.0, 1.0, 3.0, 5.0])
        >>> torch_ops.softmax(scores, torch.tensor([0, 0, 1, 0]), 2)
        tensor([0.0177, 0.0177, 1.0000, 0.9647])
    """
    return _call("softmax", values, index, dim_size, dim, offsets, batch_dims)


def log_softmax(
    values: Tensor,
    index: Tensor | GatherPlan | None = None,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    offsets: Tensor | None = None,
    batch_dims: int = 0,
) -> Tensor:
    """Returns the logarithm of :func:`softmax`, which stays exact where that is next to 0.

    ``x - log(sum(exp(x)))``, where the sum is over the entries of the same segment.

    Args:
        values: As for :func:`softmax`.
        index: As for :func:`softmax`.
        dim_size: As for :func:`softmax`.
        dim: As for :func:`softmax`.
        offsets: As for :func:`softmax`.
        batch_dims: As for :func:`softmax`.

    Returns:
        A contiguous tensor of the values' dtype and shape.

    Gradient:
        ``grad_output - exp(y) * sum(grad_output)`` of the output ``y``, which alone is saved of
        the values. Differentiable any number of times; forward mode too.

    Memory:
        That of :func:`softmax`.

    Determinism:
        That of :func:`softmax`.

    Raises:
        IndexError, TypeError, ValueError, RuntimeError: As for :func:`softmax`.

    Example:
        >>> import torch, torch_ops
        >>> scores = torch.tensor([1.0, 1.0, 3.0])
        >>> torch_ops.log_softmax(scores, offsets=torch.tensor([0, 2, 3]))
        tensor([-0.6931, -0.6931,  0.0000])
    """
    return _call("log_softmax", values, index, dim_size, dim, offsets, batch_dims)


def logsumexp(
    values: Tensor,
    index: Tensor | GatherPlan | None = None,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    offsets: Tensor | None = None,
    batch_dims: int = 0,
) -> Tensor:
    """Returns the logarithm of the sum of ``exp(values)`` over the entries of each segment.

    ``torch.logsumexp`` of each segment; -inf where there are no entries. The largest value is
    subtracted first, so that nothing overflows; 16-bit floats are computed in float32.

    Args:
        values: As for :func:`softmax`.
        index: As for :func:`softmax`.
        dim_size: As for :func:`softmax`.
        dim: As for :func:`softmax`.
        offsets: As for :func:`softmax`.
        batch_dims: As for :func:`softmax`.

    Returns:
        A contiguous tensor of the values' dtype and of the shape that :func:`scatter` returns.

    Gradient:
        ``grad_output * exp(x - y)`` of the values ``x`` and the output ``y``, which are saved.
        Differentiable any number of times; forward mode too.

    Memory:
        That of :func:`softmax`, where the values are saved beside the result.

    Determinism:
        That of :func:`softmax`.

    Raises:
        IndexError, TypeError, ValueError, RuntimeError: As for :func:`softmax`.

    Example:
        >>> import torch, torch_ops
        >>> scores = torch.tensor([1.0, 1.0, 3.0])
        >>> torch_ops.logsumexp(scores, offsets=torch.tensor([0, 2, 3, 3]))
        tensor([1.6931, 3.0000,   -inf])
    """
    return _call("logsumexp", values, index, dim_size, dim, offsets, batch_dims)


def self_check(device: torch.device) -> str:
    """Runs softmax forward and backward on ``device``; for ``python -m torch_ops``."""
    values = torch.tensor([0.0, 5.0, 0.0], device=device, requires_grad=True)
    output = softmax(values, torch.tensor([0, 1, 0], device=device), 2)
    return compared("softmax([0, 5, 0], [0, 1, 0], 2)", output, [0.5, 1, 0.5], values, [0, 0, 0])
