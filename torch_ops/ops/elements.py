"""gather_elements and related ops: an index with an entry for each element."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import Number, check_dense, check_kinds, is_traced, mode_arguments
from torch_ops.ops._self_check import compared

_gather_elements = torch.ops.torch_ops.gather_elements.default
_take_along_dim = torch.ops.torch_ops.take_along_dim.default
_scatter_elements_add = torch.ops.torch_ops.scatter_elements_add.default
_ext_gather: Any = importlib.import_module("torch_ops._ext.gather")
_ext_scatter: Any = importlib.import_module("torch_ops._ext.scatter")


def gather_elements(
    source: Tensor,
    index: Tensor,
    dim: int,
    *,
    mode: str = "raise",
    fill_value: Number | None = None,
) -> Tensor:
    """Returns the elements of ``source`` along ``dim`` that ``index`` names, one for each entry.

    ``output[i, ..., j, ..., k] = source[i, ..., index[i, ..., j, ..., k], ..., k]``, where ``j`` is
    the coordinate on ``dim``. It is ``torch.gather(source, dim, index)`` and ONNX's
    ``GatherElements``: the index may be shorter than the source on other axes, and does not
    broadcast. (:func:`take_along_dim` does; :func:`gather` picks whole slices.)

    Args:
        source: A tensor of any dtype and strides, on the CPU or a CUDA device.
        index: uint8, int8, int16, int32 or int64; on the source's device. It has as many
            axes as the source, and is not longer than it, except on ``dim``. Each entry must be
            between 0 and ``source.shape[dim] - 1``, unless ``mode`` gives others a meaning. A
            0-dimensional index or source counts as a tensor with one axis of length 1. An empty
            index may have any shape, as in torch.
        dim: The axis on which the entries are coordinates; negative counts from the end.
        mode: What an entry out of range means, as for :func:`gather`.
        fill_value: As for :func:`gather`.

    Returns:
        A contiguous tensor of the index's shape.

    Gradient:
        :func:`scatter_elements_add` of ``grad_output`` with the same ``mode``; ``fill_value`` gets
        none. The index is saved, the source is not. Differentiable any number of times; forward
        mode too.

    Memory:
        Only the output. If the index is the same along all axes after ``dim`` (they have
        length 1, or are expanded), whole rows are moved, as by :func:`gather`.

    Deterministic. For the gradient see :func:`scatter_elements_add`.

    Raises:
        IndexError: ``dim`` is out of range; or there are entries and the axis has size 0, unless
            ``mode`` is "fill"; or ``mode`` is "raise" and an entry is out of range. On CUDA that is
            raised by a later call, as for :func:`gather`.
        TypeError: ``index`` has another dtype, an argument is not a tensor, or ``fill_value`` is
            not a number.
        ValueError: The shapes do not fit; the message names both and the axis. Or ``mode`` or
            ``fill_value`` is wrong, as for :func:`gather`.
        RuntimeError: Source and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> source = torch.tensor([[1, 2], [3, 4]])
        >>> torch_ops.gather_elements(source, torch.tensor([[1, 0], [0, 0]]), 1)
        tensor([[2, 1],
                [3, 3]])
    """
    if not is_dynamo_compiling():
        output = _ext_gather.call_elements(source, index, dim, mode, fill_value, None)
        if output is not NotImplemented:
            return output
    check_dense("gather_elements", "(source, index, dim)", source=source, index=index)
    check_kinds("gather_elements", dim=(dim, "an int"))
    return _gather_elements(
        source, index, dim, **mode_arguments("gather_elements", mode, fill_value)
    )


def take_along_dim(
    source: Tensor,
    index: Tensor,
    dim: int | None = None,
    *,
    mode: str = "raise",
    fill_value: Number | None = None,
) -> Tensor:
    """Returns :func:`gather_elements` of tensors that are broadcast against each other.

    On each axis except ``dim``, source and index have the same length, or one of them has length 1
    and is expanded to the other's. It is ``torch.take_along_dim`` and ``numpy.take_along_axis``, so
    ``take_along_dim(x, x.argsort(dim), dim)`` sorts.

    Args:
        source: A tensor of any dtype and strides, on the CPU or a CUDA device.
        index: uint8, int8, int16, int32 or int64; with as many axes as the source, on its
            device. Each entry must be between ``-n`` and ``n - 1``, where ``n`` is the axis's
            length and negative entries count from its end, unless ``mode`` gives others a meaning.
        dim: The axis on which the entries are coordinates; negative counts from the end. Default:
            both tensors are flattened first, which copies those that are not contiguous.
        mode: What an entry out of range means, as for :func:`gather`; but the default, "raise",
            also allows entries that count from the end.
        fill_value: As for :func:`gather`.

    Returns:
        A contiguous tensor of the broadcast shape, which on ``dim`` is as long as the index.

    Gradient, memory, determinism and errors are those of :func:`gather_elements`: an expanded
    tensor is not copied, and its gradient is summed over the axes on which it was expanded. An
    error names an entry by its place in the broadcast index. In addition:

    Raises:
        ValueError: Source and index have different numbers of axes, or do not broadcast.

    Example:
        >>> import torch, torch_ops
        >>> scores = torch.tensor([[3.0, 9.0, 4.0], [8.0, 1.0, 2.0]])
        >>> best = scores.argmax(1, keepdim=True)
        >>> torch_ops.take_along_dim(scores, best, 1)
        tensor([[9.],
                [8.]])
    """
    if not is_dynamo_compiling():
        output = _ext_gather.call_take_along_dim(source, index, dim, mode, fill_value)
        if output is not NotImplemented:
            return output
    check_dense("take_along_dim", "(source, index, dim)", source=source, index=index)
    check_kinds("take_along_dim", dim=(dim, "an int or None"))
    return _take_along_dim(source, index, dim, **mode_arguments("take_along_dim", mode, fill_value))


def scatter_elements_add(
    values: Tensor,
    index: Tensor,
    size: Sequence[int],
    dim: int,
    *,
    deterministic: bool | None = None,
    mode: str = "raise",
) -> Tensor:
    """Returns zeros of the shape ``size`` to which each value is added where ``index`` says.

    ``result[i, ..., index[i, ..., j, ..., k], ..., k] += values[i, ..., j, ..., k]``, where ``j``
    is the coordinate on ``dim``: the transpose of :func:`gather_elements`, and its gradient. It is
    ``torch.zeros(size).scatter_add_(dim, index, values)``. 16-bit floats are summed in float32 and
    rounded once. Integers wrap.

    Args:
        values: A tensor of an integer type, float16, bfloat16, float32, float64 or a complex type;
            any strides; on the CPU or a CUDA device.
        index: uint8, int8, int16, int32 or int64; on the values' device, with as many
            axes, and on no axis longer than values: values beyond the index are left out. Each
            entry must be between 0 and ``size[dim] - 1``, unless ``mode`` gives others a meaning.
        size: The result's shape: as many axes as the index, and not shorter, except on ``dim``.
        dim: The axis on which the entries are coordinates; negative counts from the end.
        deterministic: Whether floats on CUDA are summed so that each run gives the same bits,
            whatever it costs. Default: ``torch.are_deterministic_algorithms_enabled()``.
        mode: What an entry out of range means, as for :func:`gather`; "fill" drops its value.

    Returns:
        A contiguous tensor of the values' dtype.

    Gradient:
        :func:`gather_elements` of ``grad_output`` with the same ``mode``; zeros for values that
        were dropped or left out. Differentiable any number of times; forward mode too.

    Memory:
        The result; for 16-bit floats (on CUDA also for 8- and 16-bit integers) another one of 32
        bits per element. If whole rows are moved, see :func:`scatter_add`. In order on CUDA: 8
        bytes per entry for its place in the result, and as much as :func:`scatter_add` uses for
        equally many elements.

    Determinism:
        The same bits on every run: on the CPU, with any number of threads; for integers; with
        ``deterministic=True``; and under ``torch.use_deterministic_algorithms(True)`` unless
        ``deterministic=False``. Otherwise floats are added on CUDA in no fixed order, unless whole
        rows are moved: then as for :func:`scatter_add`.

    Raises:
        IndexError: ``dim`` is out of range; or there are entries and ``size[dim]`` is 0, unless
            ``mode`` is "fill"; or ``mode`` is "raise" and an entry is out of range. On CUDA that is
            raised by a later call, as for :func:`scatter_add`.
        TypeError: A dtype is not allowed, or an argument is not a tensor.
        ValueError: The shapes do not fit; the message names both and the axis. Or ``mode`` is none
            of those of :func:`gather`.
        RuntimeError: Values and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> torch_ops.scatter_elements_add(values, torch.tensor([[0, 2], [0, 1]]), (3, 2), 0)
        tensor([[4., 0.],
                [0., 4.],
                [0., 2.]])
    """
    if not is_dynamo_compiling():
        output = _ext_scatter.call_elements(values, index, size, dim, deterministic, mode)
        if output is not NotImplemented:
            return output
    check_dense("scatter_elements_add", "(values, index, size, dim)", values=values, index=index)
    check_kinds(
        "scatter_elements_add",
        size=(size, "a sequence of ints"),
        dim=(dim, "an int"),
        deterministic=(deterministic, "a bool or None"),
    )
    if isinstance(size, tuple | list):
        lengths = {f"size[{axis}]": (length, "an int") for axis, length in enumerate(size)}
        check_kinds("scatter_elements_add", **lengths)
        if is_traced():  # tensors become constants
            size = [int(length) for length in size]
    return _scatter_elements_add(
        values,
        index,
        size,
        dim,
        deterministic=deterministic,
        **mode_arguments("scatter_elements_add", mode),
    )


def self_check(device: torch.device) -> str:
    """Runs take_along_dim forward and backward on ``device``; for ``python -m torch_ops``."""
    source = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    index = torch.tensor([[1, 0], [1, 1], [0, 0]], device=device)
    call = "take_along_dim([[1, 2], [3, 4]], [[1, 0], [1, 1], [0, 0]], 0)"
    output = take_along_dim(source, index, 0)
    return compared(call, output, [[3, 2], [3, 4], [1, 2]], source, [[1, 2], [2, 1]])
