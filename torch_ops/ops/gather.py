"""gather: the rows of a tensor that an index picks, in batches too."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import (
    Number,
    check_dense,
    check_kinds,
    check_mode,
    mode_arguments,
    only_raise,
)
from torch_ops.ops._scripting import Refused
from torch_ops.ops._self_check import compared
from torch_ops.ops.plan import GatherPlan, plan_arguments, refuse_plan

_gather = torch.ops.torch_ops.gather.default
_gather_by_plan = torch.ops.torch_ops.gather.plan
_batch_gather = torch.ops.torch_ops.batch_gather.default
_scatter_add = torch.ops.torch_ops.scatter_add.default
_ext: Any = importlib.import_module("torch_ops._ext.gather")


def _check_order(name: str, index: Any, dim: Any) -> None:
    """Raises TypeError for arguments in the order of torch.gather."""
    if isinstance(index, int) and isinstance(dim, Tensor):
        raise TypeError(
            f"{name}: the second argument must be the index, a tensor, but it is the int {index}. "
            f"torch_ops.{name} takes (source, index, dim) where torch.gather takes (input, dim, "
            "index), and it picks whole slices: the index needs no expanding to the source's "
            f"shape. Write torch_ops.{name}(source, index, dim={index})."
        )


def _gather_with_plan(
    name: str, source: Tensor, plan: GatherPlan, dim: int | None = None, batch_dims: int = 0
) -> Tensor:
    arguments = plan_arguments(plan, name, source, dim, batch_dims, picks=True)
    if not is_dynamo_compiling():
        output = _ext.call_by_plan(source, *arguments)
        if output is not NotImplemented:
            return output
    check_dense(name, source=source)
    return _gather_by_plan(source, *arguments)


def gather(
    source: Tensor,
    index: Tensor | GatherPlan,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    fill_value: Number | None = None,
) -> Tensor:
    """Returns the slices of ``source`` along ``dim`` that ``index`` picks.

    ``output[b..., o..., i..., d...] = source[b..., o..., index[b..., i...], d...]``, where ``b``
    are the ``batch_dims`` leading axes and ``o`` the axes between those and ``dim``. With
    ``batch_dims=0`` it is ``numpy.take(source, index, axis=dim)`` and ``jax.numpy.take``; with
    batch axes it is ``tf.gather(source, index, axis=dim, batch_dims=batch_dims)``.
    (``torch.gather`` is another operation: its index names one element per element of the output.)

    ================  =============  ===========  ==============
    source            index          batch_dims   output
    ================  =============  ===========  ==============
    ``[M]``           ``[N]``        0            ``[N]``
    ``[M, D]``        ``[N]``        0            ``[N, D]``
    ``[B, M]``        ``[B, N]``     1            ``[B, N]``
    ``[B, M, D]``     ``[B, N]``     1            ``[B, N, D]``
    ``[B, M, D]``     ``[N]``        0, dim=1     ``[B, N, D]``
    ================  =============  ===========  ==============

    Args:
        source: A tensor of at least one axis, any dtype and strides, on the CPU or a CUDA device.
        index: A tensor of any rank; uint8, int8, int16, int32 or int64; on the source's
            device. Its first ``batch_dims`` axes are as long as the source's. Each entry must be
            between 0 and ``source.shape[dim] - 1``, unless ``mode`` gives others a meaning. Or a
            :class:`GatherPlan` of such a tensor, made by :func:`gather_plan`, which also has
            ``dim`` and ``batch_dims``.
        dim: The axis to pick from; negative counts from the end. Default: ``batch_dims``.
        batch_dims: How many leading axes source and index share.
        mode: What an entry out of range means, for an axis of length n:

            - ``"raise"``: an IndexError (below). Negative entries are out of range.
            - ``"wrap"``: the slice ``entry % n``, as in ``numpy.take``; -1 is the last.
            - ``"clip"``: the nearest slice: 0 for negative entries, else n - 1.
            - ``"fill"``: no slice: the output has ``fill_value`` there. Entries from -n to -1
              count from the end, as in ``jax.numpy.take``.
            - ``"unchecked"``: the caller promises that no entry is out of range. Otherwise its
              place in the output is undefined.

            A plan allows only ``"raise"``.
        fill_value: A number that fits the source's dtype, only for ``mode="fill"``. Default:
            JAX's, which is NaN for floating and complex dtypes, the least value of a signed and the
            greatest of an unsigned integer type, True for bool.

    Returns:
        A contiguous tensor of the shape
        ``source.shape[:dim] + index.shape[batch_dims:] + source.shape[dim+1:]``.

    Gradient:
        :func:`scatter_add` of ``grad_output`` (summed in float32 for 16-bit floats) by the index
        or the plan, with the same ``mode``: each slice gets the gradients of the places that it
        was read to, and ``fill_value`` gets none. The index or the plan is saved, the source is
        not. Differentiable any number of times; forward mode too.

    Memory:
        Only the output, unless the batch axes, the axes before ``dim``, or those after it cannot
        be walked with one stride each: then ``source`` (or ``index``) is copied first.

    Deterministic. So is the gradient on the CPU, with a plan, and under
    ``torch.use_deterministic_algorithms(True)``; otherwise see :func:`scatter_add`.

    Raises:
        IndexError: ``dim`` is out of range; or there are entries and the axis has size 0, unless
            ``mode`` is "fill"; or ``mode`` is "raise" and an entry is out of range: the message
            names its position, its value and the bound. On CUDA the call does not wait for its
            kernel: nothing is read out of bounds, such an entry gives zeros, and the next call of
            an op with an index on the device, or :func:`check_errors`, raises. If several entries
            are out of range, it is unspecified there which of them is named. With
            ``set_error_mode("sync")`` the call itself raises.
        TypeError: ``index`` has another dtype or is not a tensor, or a number is not one.
        ValueError: The batch axes differ, ``dim`` is one of them, or ``batch_dims`` is out of
            range; ``mode`` is none of these; ``fill_value`` does not fit the dtype, or is given in
            another mode; or a plan was made for another ``dim``, ``batch_dims`` or size of the
            axis.
        RuntimeError: Source and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> atoms = torch.tensor([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
        >>> neighbours = torch.tensor([[2, 0], [1, 1]])
        >>> torch_ops.gather(atoms, neighbours, batch_dims=1)
        tensor([[12., 10.],
                [21., 21.]])
    """
    if not is_dynamo_compiling():
        output = _ext.call(source, index, dim, batch_dims, mode, fill_value, None)
        if output is not NotImplemented:
            return output
    if isinstance(index, GatherPlan):
        only_raise("gather", mode, fill_value)
        return _gather_with_plan("gather", source, index, dim, batch_dims)
    _check_order("gather", index, dim)
    check_dense("gather", source=source, index=index)
    check_kinds("gather", dim=(dim, "an int or None"), batch_dims=(batch_dims, "an int"))
    options = mode_arguments("gather", mode, fill_value)
    return _gather(source, index, dim, batch_dims=batch_dims, **options)


def batch_gather(
    source: Tensor,
    index: Tensor | GatherPlan,
    *,
    mode: str = "raise",
    fill_value: Number | None = None,
) -> Tensor:
    """Returns ``gather(source, index, batch_dims=index.dim() - 1)``.

    All axes of the index but its last are batch axes: ``[B, M, D]`` by ``[B, N]`` gives
    ``[B, N, D]``; ``[B, H, M, D]`` by ``[B, H, N]`` gives ``[B, H, N, D]``.

    Args:
        source: A tensor with more axes than ``index`` has batch axes.
        index: A tensor of one axis or more; uint8, int8, int16, int32 or int64. Or a
            :class:`GatherPlan` of one, made with ``batch_dims=index.dim() - 1`` and no ``dim``.
        mode: What an entry out of range means, as for :func:`gather`.
        fill_value: As for :func:`gather`.

    Returns:
        A contiguous tensor of the shape ``index.shape + source.shape[index.dim():]``.

    Gradient, determinism, memory and errors are those of :func:`gather`, also for an entry out of
    range on CUDA. In addition:

    Raises:
        ValueError: ``index`` has no axis, or a plan has other batch axes.

    Example:
        >>> import torch, torch_ops
        >>> source = torch.arange(12.0).view(2, 3, 2)
        >>> torch_ops.batch_gather(source, torch.tensor([[2], [0]]))
        tensor([[[4., 5.]],
        <BLANKLINE>
                [[6., 7.]]])
    """
    if not is_dynamo_compiling():
        output = _ext.call_batch(source, index, mode, fill_value)
        if output is not NotImplemented:
            return output
    if isinstance(index, GatherPlan):
        only_raise("batch_gather", mode, fill_value)
        axes = index.index.dim() - 1
        if not index.batch_dims == index.dim == axes:
            raise ValueError(
                f"batch_gather: a plan must be made with batch_dims = index.dim() - 1, here "
                f"{axes}, and no other dim, but this is of {index}."
            )
        return _gather_with_plan("batch_gather", source, index)
    check_dense("batch_gather", source=source, index=index)
    return _batch_gather(source, index, **mode_arguments("batch_gather", mode, fill_value))


class GatherFunction(torch.autograd.Function):
    """gather as an autograd Function.

    ``GatherFunction.apply(source, index, dim, batch_dims, mode, fill_value)``. :func:`gather` does
    the same with less overhead, and accepts plans; this class is for code that composes Functions.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        source: Tensor,
        index: Tensor,
        dim: int | None = None,
        batch_dims: int = 0,
        mode: str = "raise",
        fill_value: Number | None = None,
    ) -> Tensor:
        refuse_plan("GatherFunction", index)
        return gather(source, index, dim, batch_dims=batch_dims, mode=mode, fill_value=fill_value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        source, index, *options = inputs
        dim = options[0] if options else None
        batch_dims = options[1] if len(options) > 1 else 0
        ctx.mode = options[2] if len(options) > 2 else "raise"
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)
        ctx.batch_dims = batch_dims
        ctx.dim = batch_dims if dim is None else dim % source.dim()
        ctx.dim_size = source.shape[ctx.dim]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        grad = _scatter_add(
            grad_output, index, ctx.dim_size, ctx.dim, batch_dims=ctx.batch_dims, mode=ctx.mode
        )
        return grad, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, source_tangent: Tensor, *_: None) -> Tensor:
        (index,) = ctx.saved_tensors
        nothing = 0 if ctx.mode == "fill" else None
        return _gather(
            source_tangent,
            index,
            ctx.dim,
            batch_dims=ctx.batch_dims,
            mode=ctx.mode,
            fill_value=nothing,
        )


def _mode_repr(layer: Any) -> str:
    text = "" if layer.mode == "raise" else f", mode={layer.mode!r}"
    return text if layer.fill_value is None else f"{text}, fill_value={layer.fill_value}"


class Gather(nn.Module):
    """The layer of :func:`gather`: ``Gather(dim, batch_dims=...)(source, index)``.

    Args:
        dim: As for :func:`gather`.
        batch_dims: As for :func:`gather`.
        mode: As for :func:`gather`.
        fill_value: As for :func:`gather`.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.Gather(dim=0)(torch.tensor([5.0, 6.0, 7.0]), torch.tensor([2, 2]))
        tensor([7., 7.])
    """

    def __init__(
        self,
        dim: int | None = None,
        *,
        batch_dims: int = 0,
        mode: str = "raise",
        fill_value: Number | None = None,
    ) -> None:
        super().__init__()
        check_kinds("Gather", dim=(dim, "an int or None"), batch_dims=(batch_dims, "an int"))
        if batch_dims < 0:
            raise ValueError(f"Gather: batch_dims must not be negative, but it is {batch_dims}.")
        check_mode("Gather", mode, fill_value)
        self.dim = dim
        self.batch_dims = batch_dims
        self.mode = mode
        self.fill_value = fill_value

    __prepare_scriptable__ = Refused("Gather", "gather")

    def forward(self, source: Tensor, index: Tensor | GatherPlan) -> Tensor:
        return gather(
            source,
            index,
            self.dim,
            batch_dims=self.batch_dims,
            mode=self.mode,
            fill_value=self.fill_value,
        )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, batch_dims={self.batch_dims}" + _mode_repr(self)


class BatchGather(nn.Module):
    """The layer of :func:`batch_gather`.

    Args:
        mode: As for :func:`gather`.
        fill_value: As for :func:`gather`.

    Example:
        >>> import torch, torch_ops
        >>> layer = torch_ops.BatchGather()
        >>> layer(torch.tensor([[5.0, 6.0], [7.0, 8.0]]), torch.tensor([[1], [0]]))
        tensor([[6.],
                [7.]])
    """

    def __init__(self, *, mode: str = "raise", fill_value: Number | None = None) -> None:
        super().__init__()
        check_mode("BatchGather", mode, fill_value)
        self.mode = mode
        self.fill_value = fill_value

    __prepare_scriptable__ = Refused("BatchGather", "batch_gather")

    def forward(self, source: Tensor, index: Tensor | GatherPlan) -> Tensor:
        return batch_gather(source, index, mode=self.mode, fill_value=self.fill_value)

    def extra_repr(self) -> str:
        return _mode_repr(self).removeprefix(", ")


def self_check(device: torch.device) -> str:
    """Runs gather forward and backward on ``device``; for ``python -m torch_ops``."""
    source = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    index = torch.tensor([[1, 1], [0, 1]], device=device)
    call = "batch_gather([[1, 2], [3, 4]], [[1, 1], [0, 1]])"
    return compared(call, batch_gather(source, index), [[2, 2], [3, 4]], source, [[0, 2], [1, 1]])
