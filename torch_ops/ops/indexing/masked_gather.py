"""masked_gather: the rows of a tensor where a mask is true; masked_scatter: its transpose."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import (
    Number,
    check_countable,
    check_dense,
    check_kinds,
    checked_fill_value,
)
from torch_ops.ops._self_check import compared

_masked_gather = torch.ops.torch_ops.masked_gather.default
_masked_scatter = torch.ops.torch_ops.masked_scatter.default
_ext: Any = importlib.import_module("torch_ops._ext.index")


def masked_gather(
    source: Tensor, mask: Tensor, *, size: int | None = None, fill_value: Number = 0
) -> Tensor:
    """Returns the rows of ``source`` where ``mask`` is true, in order: ``source[mask]``.

    With ``size`` there are exactly that many: further rows are cut off, and missing rows are filled
    with ``fill_value``. Then only values depend on the mask's values: on CUDA the call does not
    wait for the GPU, works in CUDA graphs, and compiles to one graph. It is
    ``source[jnp.nonzero(mask, size=size, fill_value=n)]`` with JAX's mode "fill".

    Args:
        source: A tensor of any dtype and strides, on the CPU or a CUDA device.
        mask: A tensor of bools with the shape of source's leading axes, on its device.
        size: How many rows the result has. Default: the number of the mask's true entries.
        fill_value: The value of missing rows; a number that fits the source's dtype.

    Returns:
        A contiguous tensor of the source's dtype and the shape ``(size,) +
        source.shape[mask.dim():]``.

    Gradient:
        :func:`scatter_add` of ``grad_output``: each row to its place in source; ``fill_value`` gets
        none. A number for each row is saved, neither source nor mask. Differentiable any number of
        times; forward mode too.

    Memory:
        The result, and 4 bytes per row of it with ``size`` (8 if mask has 2^31 entries or more),
        otherwise 8; on CUDA a little for the selection. A source whose masked axes cannot be walked
        with one stride is copied first.

    Deterministic. So is the gradient, because each place gets the gradient of one row.

    Raises:
        TypeError: ``mask`` is not bool, or an argument is not a tensor.
        ValueError: The mask's shape is not that of source's leading axes, ``size`` is negative, or
            ``fill_value`` does not fit the dtype.
        RuntimeError: Source and mask are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> x = torch.tensor([5, -1, 7, -2])
        >>> torch_ops.masked_gather(x, x > 0)
        tensor([5, 7])
        >>> torch_ops.masked_gather(x, x > 0, size=3, fill_value=9)
        tensor([5, 7, 9])
    """
    if not is_dynamo_compiling():
        output = _ext.call_masked_gather(source, mask, size, fill_value)
        if output is not NotImplemented:
            return output
    check_dense("masked_gather", "(source, mask)", source=source, mask=mask)
    fill_value = checked_fill_value("masked_gather", fill_value)
    check_kinds("masked_gather", size=(size, "an int or None"))
    if size is None:
        check_countable("masked_gather", mask)
    return _masked_gather(source, mask, size=size, fill_value=fill_value)


def masked_scatter(rows: Tensor, mask: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns a tensor with ``rows``, in order, where ``mask`` is true.

    The transpose of :func:`masked_gather`: ``masked_scatter(masked_gather(x, mask), mask)`` is
    ``x`` where the mask is true, and zero elsewhere. Rows beyond the number of true entries, such
    as the padding of a ``size``, are dropped; if there are fewer rows, the remaining true entries
    count as false. Only values depend on the mask's values: on CUDA the call does not wait for the
    GPU, works in CUDA graphs, and compiles to one graph.

    Args:
        rows: A tensor of the shape ``[size, ...]``; of any dtype and strides, on the CPU or a CUDA
            device.
        mask: A tensor of bools of any shape, on its device.
        out: The values elsewhere, instead of zeros: a tensor of the result's shape and the dtype
            of rows. It is not changed.

    Returns:
        A contiguous tensor of the dtype of rows and the shape ``mask.shape + rows.shape[1:]``.

    Gradient:
        For rows: :func:`masked_gather` of ``grad_output``, zeros for rows that were dropped. For
        ``out``: ``grad_output`` where no row was written. The mask is saved. Differentiable any
        number of times; forward mode too.

    Memory:
        The result, and 4 bytes per entry of the mask (8 from 2^31 entries on); with ``out`` another
        tensor of the result's size and 8 bytes more per entry.

    Deterministic.

    Raises:
        TypeError: ``mask`` is not bool, ``out`` has another dtype, or an argument is not a tensor.
        ValueError: ``out`` has another shape than the result, or rows has no axis.
        RuntimeError: The tensors are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> mask = torch.tensor([True, False, True])
        >>> rows = torch_ops.masked_gather(torch.tensor([5, -1, 7]), mask, size=4)
        >>> torch_ops.masked_scatter(10 * rows, mask)
        tensor([50,  0, 70])
        >>> torch_ops.masked_scatter(10 * rows, mask, out=torch.tensor([1, 2, 3]))
        tensor([50,  2, 70])
    """
    if not is_dynamo_compiling():
        output = _ext.call_masked_scatter(rows, mask, out)
        if output is not NotImplemented:
            return output
    check_dense("masked_scatter", "(rows, mask)", rows=rows, mask=mask)
    if out is not None:
        check_dense("masked_scatter", out=out)
    return _masked_scatter(rows, mask, out)


def self_check(device: torch.device) -> str:
    """Runs masked_gather forward and backward on ``device``; for ``python -m torch_ops``."""
    source = torch.tensor([5.0, -1.0, 7.0], device=device, requires_grad=True)
    output = masked_gather(source, source > 0, size=3)
    call = "masked_gather([5, -1, 7], [5, -1, 7] > 0, size=3)"
    return compared(call, output, [5, 7, 0], source, [1, 0, 1])
