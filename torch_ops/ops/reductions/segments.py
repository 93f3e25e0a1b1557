"""segment_reduce and gather_csr: entries that stand side by side, reduced and made by offsets."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import check_dense, check_kinds, least_size
from torch_ops.ops._self_check import compared

_segment_reduce = torch.ops.torch_ops.segment_reduce.default
_gather_csr = torch.ops.torch_ops.gather_csr.default
_ext: Any = importlib.import_module("torch_ops._ext.segments")


def segment_reduce(
    values: Tensor,
    offsets: Tensor,
    reduce: str = "sum",
    dim: int | None = None,
    *,
    batch_dims: int = 0,
) -> Tensor:
    """Reduces each segment of ``values`` along ``dim``; ``offsets`` say where segments begin.

    ``result[b..., o..., s, d...]`` is the sum, mean, largest, smallest or product of
    ``values[b..., o..., n, d...]`` over ``offsets[b..., s] <= n < offsets[b..., s + 1]``. It is
    :func:`scatter` by the index that :func:`gather_csr` repeats, torch_scatter's ``segment_csr``,
    and ``torch.segment_reduce(offsets=...)``. Offsets are the row pointers of a matrix in CSR
    format.

    Args:
        values: A tensor of any strides, on the CPU or a CUDA device. ``sum``: the dtypes of
            :func:`scatter_add`. ``mean``: these except uint16, uint32 and uint64. Others: uint8,
            int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        offsets: uint8, int8, int16, int32 or int64, of the values' ``batch_dims`` leading axes and
            one of segments + 1; on the values' device. Each between 0 and ``values.shape[dim]``,
            and none below the one before it. Entries before the first or after the last are in no
            segment.
        reduce: "sum", "mean", "amax", "amin" or "prod"; "add", "max", "min" and "mul" are names of
            the same.
        dim: The axis of the entries; negative counts from the end. Default: ``batch_dims``.
        batch_dims: How many leading axes values and offsets share.

    Returns:
        A contiguous tensor of the values' dtype and their shape, with the number of segments at
        ``dim``. A segment without entries is 0, or 1 for ``prod``. 16-bit floats are summed and
        multiplied in float32 and rounded once. Sums of integers wrap in their dtype, also those of
        means, which are rounded down: convert values whose sums may not fit. An extreme is NaN
        where a value is.

    Gradient:
        ``sum``: :func:`gather_csr`. ``mean``: the same, over the number of entries. ``amax``,
        ``amin``: to one value, of several that are alike to the first; zero for the others.
        ``prod``: the product of the other values, also where one of them is zero. Differentiable
        any number of times, in forward mode too; but a second derivative of a product takes values
        that are zero as constants.

    Memory:
        The result. Values that are not contiguous are copied. On CUDA up to 1/16 of the values'
        size for parts of segments, 1/8 for 16-bit floats. For a gradient of ``sum`` and ``mean``
        the offsets are saved; for that of the others the values too.
        The gradient of ``prod`` uses about five times the size of the values, in float32 for
        16-bit floats.

    Deterministic: the same bits on every run, on the CPU with any number of threads.

    Raises:
        IndexError: ``dim`` is out of range, or an offset is; on CUDA the latter as for
            :func:`scatter_add`.
        TypeError: A dtype is not allowed, an argument is no tensor, or a number is no int.
        ValueError: The shapes do not fit, or ``reduce`` or ``batch_dims`` is none that is allowed.
        RuntimeError: Values and offsets are on different devices.

    Offsets that decrease are not looked for: what then stands in the result is undefined.

    Example:
        >>> import torch, torch_ops
        >>> energy = torch.tensor([1.0, 5.0, 2.0, 3.0])
        >>> molecules = torch.tensor([0, 2, 2, 4])
        >>> torch_ops.segment_reduce(energy, molecules)
        tensor([6., 0., 5.])
        >>> torch_ops.segment_reduce(energy, molecules, "amax")
        tensor([5., 0., 3.])
    """
    if not is_dynamo_compiling():
        output = _ext.call_reduce(values, offsets, reduce, dim, batch_dims)
        if output is not NotImplemented:
            return output
    check_dense("segment_reduce", "(values, offsets, reduce)", values=values, offsets=offsets)
    if not isinstance(reduce, str):
        raise TypeError(f"segment_reduce: reduce must be a string, but it is {reduce!r}.")
    check_kinds("segment_reduce", dim=(dim, "an int or None"), batch_dims=(batch_dims, "an int"))
    return _segment_reduce(values, offsets, reduce, dim, batch_dims=batch_dims)


def gather_csr(
    values: Tensor,
    offsets: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    output_size: int | None = None,
) -> Tensor:
    """Repeats each row of ``values`` along ``dim`` for every entry of its segment.

    ``output[b..., o..., n, d...] = values[b..., o..., s, d...]`` where
    ``offsets[b..., s] <= n < offsets[b..., s + 1]``, and zeros where no segment has the entry. It
    is the transpose of :func:`segment_reduce`, torch_scatter's ``gather_csr``, and
    ``torch.repeat_interleave`` by offsets in place of counts.

    Args:
        values: A tensor of any dtype and strides, on the CPU or a CUDA device.
        offsets: As for :func:`segment_reduce`, with one element more than ``values`` has rows at
            ``dim``. Each between 0 and ``output_size``.
        dim: The axis of the rows; negative counts from the end. Default: ``batch_dims``.
        batch_dims: How many leading axes values and offsets share.
        output_size: How long the output is at ``dim``. Default: the last of the offsets, for which
            the call waits for the device; of several batches, the largest.

    Returns:
        A contiguous tensor of the values' dtype and their shape, with ``output_size`` at ``dim``.

    Gradient:
        :func:`segment_reduce` of ``grad_output``, a sum. Only the offsets are saved. Differentiable
        any number of times; forward mode too.

    Memory:
        The output, and 4 bytes for each entry (8 from 2^31 segments on).

    Deterministic.

    Raises:
        IndexError: As for :func:`segment_reduce`.
        TypeError: ``offsets`` is of another dtype, an argument is no tensor, or a number is no int.
        ValueError: The shapes do not fit, or ``output_size`` or ``batch_dims`` is out of range.
        RuntimeError: Values and offsets are on different devices, or ``torch.vmap`` maps over the
            offsets and ``output_size`` is not given.

    Example:
        >>> import torch, torch_ops
        >>> charge = torch.tensor([1.0, 2.0, 3.0])
        >>> torch_ops.gather_csr(charge, torch.tensor([0, 2, 2, 4]))
        tensor([1., 1., 3., 3.])
    """
    if output_size is None:
        check_dense("gather_csr", values=values, offsets=offsets)
        is_refused = isinstance(offsets, Tensor) and (
            offsets.dim() == 0 or offsets.layout != torch.strided
        )
        last = offsets if is_refused else offsets[..., -1:]
        output_size = least_size("gather_csr", "output_size", last, 0)
    if not is_dynamo_compiling():
        output = _ext.call_gather(values, offsets, dim, batch_dims, output_size)
        if output is not NotImplemented:
            return output
    check_dense("gather_csr", values=values, offsets=offsets)
    check_kinds(
        "gather_csr",
        dim=(dim, "an int or None"),
        batch_dims=(batch_dims, "an int"),
        output_size=(output_size, "an int or None"),
    )
    return _gather_csr(values, offsets, dim, batch_dims=batch_dims, output_size=output_size)


def self_check(device: torch.device) -> str:
    """Runs segment_reduce forward and backward on ``device``; for ``python -m torch_ops``."""
    values = torch.tensor([1.0, 5.0, 2.0], device=device, requires_grad=True)
    offsets = torch.tensor([0, 2, 2, 3], device=device)
    output = segment_reduce(values, offsets, "mean")
    call = 'segment_reduce([1, 5, 2], [0, 2, 2, 3], "mean")'
    return compared(call, output, [3, 0, 2], values, [0.5, 0.5, 1])
