"""gather_nd: the slices of a tensor at points whose coordinates an index gives."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import Number, check_dense, check_kinds, mode_arguments
from torch_ops.ops._self_check import compared

_gather_nd = torch.ops.torch_ops.gather_nd.default
_ext: Any = importlib.import_module("torch_ops._ext.index")


def gather_nd(
    source: Tensor,
    index: Tensor,
    batch_dims: int = 0,
    *,
    mode: str = "raise",
    fill_value: Number | None = None,
) -> Tensor:
    """Returns the slices of ``source`` at points whose coordinates the last axis of ``index`` has.

    ``output[b..., n..., d...] = source[b..., index[b..., n..., 0], ..., index[b..., n..., k-1],
    d...]`` with ``k`` coordinates and ``batch_dims`` axes ``b``. It is ``tf.gather_nd`` and ONNX's
    GatherND; with ``batch_dims=0`` it is ``source[tuple(index.unbind(-1))]``.

    =================  ==============  ===========  ===============
    source             index           batch_dims   output
    =================  ==============  ===========  ===============
    ``[M, K]``         ``[N, 2]``      0            ``[N]``
    ``[M, K, D]``      ``[N, 2]``      0            ``[N, D]``
    ``[M, K, D]``      ``[N, 1]``      0            ``[N, K, D]``
    ``[B, M, K, D]``   ``[B, N, 2]``   1            ``[B, N, D]``
    ``[M, D]``         ``[N, 0]``      0            ``[N, M, D]``
    =================  ==============  ===========  ===============

    The last row is TensorFlow's: a point without coordinates is the whole source.

    Args:
        source: A tensor of any dtype and strides, on the CPU or a CUDA device.
        index: A tensor of at least one axis; uint8, int8, int16, int32 or int64; on the source's
            device. Its last axis contains a point's coordinates: at most one for each axis of the
            source after the batch axes. Its first ``batch_dims`` axes are as long as the source's.
            A coordinate must be between 0 and the size of its axis minus 1.
        batch_dims: How many leading axes source and index share.
        mode: What a coordinate out of range means, as for :func:`gather`: ``"raise"``,
            ``"wrap"``, ``"clip"``, ``"fill"`` (a point with a coordinate out of range gives
            ``fill_value``; negative ones count from the end) or ``"unchecked"``.
        fill_value: For ``mode="fill"``, as for :func:`gather`.

    Returns:
        A contiguous tensor of the source's dtype and the shape
        ``index.shape[:-1] + source.shape[batch_dims + index.shape[-1]:]``.

    Gradient:
        For one coordinate that of :func:`gather`. For more, a kernel converts each point's
        coordinates to one number, and the gradient is :func:`scatter_add` of ``grad_output`` by
        these numbers. The index is saved, the source is not. Differentiable any number of times;
        forward mode too. Places that have ``fill_value`` pass no gradient on.

    Memory:
        Only the output: coordinates are read in place, as are source rows of any strides. The
        gradient also uses 4 bytes per point, or 8 if the indexed axes have 2^31 elements or more.

    Deterministic. So is the gradient if :func:`scatter_add` is.

    Raises:
        IndexError: A coordinate is out of range; the message names its position, its value, the
            axis and the bound. On CUDA the call does not wait for its kernel: such a point gives
            zeros, and the next call of an op with an index on the device, or :func:`check_errors`,
            raises. Or an axis has size 0, and ``mode`` is not ``"fill"``.
        TypeError: ``index`` has another dtype or is not a tensor.
        ValueError: There are more coordinates than axes, the batch axes differ, or ``batch_dims``,
            ``mode`` or ``fill_value`` is not allowed.
        RuntimeError: Source and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> image = torch.tensor([[1, 2, 3], [4, 5, 6]])
        >>> torch_ops.gather_nd(image, torch.tensor([[0, 2], [1, 0]]))
        tensor([3, 4])
    """
    if not is_dynamo_compiling():
        output = _ext.call_gather_nd(source, index, batch_dims, mode, fill_value)
        if output is not NotImplemented:
            return output
    check_dense("gather_nd", "(source, index, batch_dims)", source=source, index=index)
    check_kinds("gather_nd", batch_dims=(batch_dims, "an int"))
    options = mode_arguments("gather_nd", mode, fill_value)
    return _gather_nd(source, index, batch_dims=batch_dims, **options)


def self_check(device: torch.device) -> str:
    """Runs gather_nd forward and backward on ``device``; for ``python -m torch_ops``."""
    source = torch.arange(6.0, device=device).view(2, 3).requires_grad_()
    index = torch.tensor([[1, 2], [0, 1], [1, 2]], device=device)
    call = "gather_nd([[0, 1, 2], [3, 4, 5]], [[1, 2], [0, 1], [1, 2]])"
    return compared(call, gather_nd(source, index), [5, 1, 5], source, [[0, 1, 0], [0, 0, 2]])
