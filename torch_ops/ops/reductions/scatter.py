"""scatter_add: values summed by an index; the transpose of gather."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import (
    check_dense,
    check_dim_size,
    check_kinds,
    check_sorted,
    mode_arguments,
    only_raise,
)
from torch_ops.ops._self_check import compared
from torch_ops.ops.plan import GatherPlan, plan_arguments, refuse_plan
from torch_ops.ops.reductions.scatter_reduce import scatter

_scatter_add = torch.ops.torch_ops.scatter_add.default
_scatter_add_by_plan = torch.ops.torch_ops.scatter_add.plan
_scatter_sorted = torch.ops.torch_ops._scatter_sorted.default
_gather = torch.ops.torch_ops.gather.default
_ext: Any = importlib.import_module("torch_ops._ext.scatter")

_TAKES = (
    "(values, index, dim_size, dim) and returns the sums; torch.scatter_add takes (input, dim, "
    "index, src) and adds to input"
)


def scatter_add(
    values: Tensor,
    index: Tensor | GatherPlan,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    deterministic: bool | None = None,
    mode: str = "raise",
    sorted: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns a tensor of zeros to which each slice of ``values`` is added where ``index`` says.

    It is the transpose of :func:`gather`, and its gradient: ``values`` has the shape that
    ``gather(result, index, dim, batch_dims=batch_dims)`` returns, and each entry is added where
    gather would have read it:
    ``result[b..., o..., index[b..., i...], d...] += values[b..., o..., i..., d...]``.

    16-bit floats are summed in float32 and rounded once. Integers wrap.

    Args:
        values: A tensor of an integer type, float16, bfloat16, float32, float64 or a complex type;
            any strides; on the CPU or a CUDA device.
        index: uint8, int8, int16, int32 or int64; on the values' device. Each entry must
            be between 0 and ``dim_size - 1``, unless ``mode`` gives others a meaning. Or a
            :class:`GatherPlan` of such a tensor, made by :func:`gather_plan`, which also has
            ``dim_size``, ``dim`` and ``batch_dims``.
        dim_size: How long the result is at ``dim``. May be left out with a plan.
        dim: The result's axis to add along; negative counts the result's axes from the end.
            Default: ``batch_dims``.
        batch_dims: How many leading axes values and index share.
        deterministic: Whether floats on CUDA are summed so that each run gives the same bits,
            whatever it costs. Default: ``torch.are_deterministic_algorithms_enabled()``. False
            overrides that setting: the method that is expected to be faster is used. With a plan
            sums are always deterministic.
        mode: What an entry out of range means, as for :func:`gather`; "fill" drops its values. A
            plan allows only "raise".
        dtype: Values are converted to it first, as for ``torch.sum``. With float32, sums of 16-bit
            floats are not rounded; they need no copy of the values.
        sorted: The caller promises that the entries of each batch are in order, none below the
            previous one. Then the sum needs neither a sort nor atomics: it is one pass over the
            values, with the same bits on every run. If the entries are not in order, the result is
            undefined, but nothing is written out of bounds, and entries out of range are still
            errors. Allows only ``mode="raise"``. With a plan this is not needed.

    Returns:
        A contiguous tensor of the values' dtype, or of ``dtype``, and the shape
        ``values.shape[:dim] + (dim_size,) + values.shape[dim + index.dim() - batch_dims:]``.

    Gradient:
        :func:`gather` of ``grad_output`` by the index or the plan, which is saved, with the same
        ``mode``; zeros for values that were dropped. Differentiable any number of times; forward
        mode too. (``deterministic`` applies to the call and its tangent. In a second derivative,
        which sums again, the global flag or the plan decides.)

    Memory:
        The result. Values that are not contiguous are copied; so is, if the bits must be the same
        on CUDA, a view of rows of two or four values that begins inside a row of its memory.

        On the CPU, if a slice along ``dim`` has more than 512 KiB: 4 bytes per entry of the index,
        or 2 bytes and the value if a row is one element. If many entries go to few rows: partial
        sums of at most a quarter of the values' size (half for 16-bit floats). For 16-bit floats:
        512 KiB per thread.

        On CUDA, sums of floats use at most 16 bytes per entry of the index (32 from 2^31 entries or
        rows on), 16 bytes per row of the result and a tenth of the values' size, or 64 MB if that
        is more:

        - Summed in order: the bytes of the entries, a bit per row, and up to 1/32 of the values'
          size (1/16 for 16-bit floats).
        - With the same bits, for rows of one, two or four values: 2 bytes per entry, a copy of the
          values, and sums of parts; or only these sums, if those of a slice fit a block's memory.
        - Up to 2048 entries per slice, if one kernel sums them: nothing.
        - Many entries to few rows, of integers too: sums of parts of the values.
        - Added in no fixed order: nothing, except for 16-bit floats sums in float32, of all rows or
          of those that have entries. If these would exceed the bound, values are summed in order.

        Integers below 32 bits use sums of 32 bits per element. For longer rows, a plan saves the
        bytes of the entries, or half of them if there are batch axes and axes between those and
        ``dim``.

    Determinism:
        The same bits on every run: on the CPU, with any number of threads; for integers; with a
        plan; with ``deterministic=True``; under ``torch.use_deterministic_algorithms(True)`` unless
        ``deterministic=False``; and on CUDA by default if rows (the axes after ``dim``) have 64
        values or more (float64: 32) and ``values``, or for 16-bit floats the result, 2^25 or more
        (16-bit floats: unless the result has four rows or more per entry), in rows that are a
        multiple of 16 bytes (or of float64). So are some calls with shorter rows, single elements,
        or few entries, where that is the fastest method (docs/internals/kernels/README.md).
        Otherwise floats are added on CUDA in no fixed order, and the last bits may differ from run
        to run.

    Raises:
        IndexError: ``dim`` is out of range; or there are entries and ``dim_size`` is 0, unless
            ``mode`` is "fill"; or ``mode`` is "raise" and an entry is out of range: the message
            names its position, its value and the bound. On CUDA the call does not wait for its
            kernels: nothing is written out of bounds, such an entry is dropped, and the next call
            of an op with an index on the device, or :func:`check_errors`, raises. If several
            entries are out of range, it is unspecified there which of them is named. With
            ``set_error_mode("sync")`` the call itself raises.
        TypeError: A dtype is not allowed (bool values have no sum), an argument is not a tensor or
            not an int, or ``dim_size`` is missing and there is no plan.
        ValueError: The shapes do not fit, ``dim_size`` or ``batch_dims`` is out of range, ``mode``
            is none of these, or a plan was made for others.
        RuntimeError: Values and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> messages = torch.tensor([[1.0, 2.0, 4.0]])
        >>> receiver = torch.tensor([[0, 2, 0]])
        >>> torch_ops.scatter_add(messages, receiver, 3, batch_dims=1)
        tensor([[5., 0., 2.]])
    """
    if dtype is None and not sorted and not is_dynamo_compiling():
        output = _ext.call(values, index, dim_size, dim, batch_dims, deterministic, mode, None)
        if output is not NotImplemented:
            return output
    if not isinstance(index, GatherPlan):
        check_dense("scatter_add", _TAKES, values=values, index=index)
        check_dim_size("scatter_add", dim_size)
        check_kinds(
            "scatter_add",
            dim_size=(dim_size, "an int"),
            dim=(dim, "an int or None"),
            batch_dims=(batch_dims, "an int"),
            deterministic=(deterministic, "a bool or None"),
            sorted=(sorted, "a bool"),
            dtype=(dtype, "a torch.dtype or None"),
        )
    if dtype == torch.bool:
        raise TypeError("scatter_add: dtype must be one that has sums, but it is torch.bool.")
    if dtype is not None:
        options: Any = {"mode": mode, "deterministic": deterministic, "dtype": dtype}
        return scatter(
            values, index, dim_size, dim, batch_dims=batch_dims, sorted=sorted, **options
        )
    if isinstance(index, GatherPlan):
        only_raise("scatter_add", mode)
        arguments = plan_arguments(index, "scatter_add", values, dim, batch_dims, dim_size)
        if not is_dynamo_compiling():
            output = _ext.call_by_plan(values, *arguments)
            if output is not NotImplemented:
                return output
        check_dense("scatter_add", _TAKES, values=values)
        return _scatter_add_by_plan(values, *arguments)
    if sorted:
        check_sorted("scatter_add", mode)
        return _scatter_sorted(values, index, dim_size, dim, batch_dims, "sum", "scatter_add")
    return _scatter_add(
        values,
        index,
        dim_size,
        dim,
        batch_dims=batch_dims,
        deterministic=deterministic,
        **mode_arguments("scatter_add", mode),
    )


class ScatterAddFunction(torch.autograd.Function):
    """scatter_add as an autograd Function.

    ``ScatterAddFunction.apply(values, index, dim_size, dim, batch_dims, deterministic, mode)``.
    :func:`scatter_add` does the same with less overhead, and accepts plans; this class is for code
    that composes Functions.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        values: Tensor,
        index: Tensor,
        dim_size: int,
        dim: int | None = None,
        batch_dims: int = 0,
        deterministic: bool | None = None,
        mode: str = "raise",
    ) -> Tensor:
        refuse_plan("ScatterAddFunction", index)
        return scatter_add(
            values,
            index,
            dim_size,
            dim,
            batch_dims=batch_dims,
            deterministic=deterministic,
            mode=mode,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, index, dim_size, *options = inputs
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)
        ctx.dim_size = dim_size
        ctx.dim = options[0] if options else None
        ctx.batch_dims = options[1] if len(options) > 1 else 0
        ctx.deterministic = options[2] if len(options) > 2 else None
        ctx.mode = options[3] if len(options) > 3 else "raise"

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        dropped = 0 if ctx.mode == "fill" else None
        grad = _gather(
            grad_output,
            index,
            ctx.dim,
            batch_dims=ctx.batch_dims,
            mode=ctx.mode,
            fill_value=dropped,
        )
        return grad, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, values_tangent: Tensor, *_: None) -> Tensor:
        (index,) = ctx.saved_tensors
        return _scatter_add(
            values_tangent,
            index,
            ctx.dim_size,
            ctx.dim,
            batch_dims=ctx.batch_dims,
            deterministic=ctx.deterministic,
            mode=ctx.mode,
        )


def self_check(device: torch.device) -> str:
    """Runs scatter_add forward and backward on ``device``; for ``python -m torch_ops``."""
    values = torch.tensor([1.0, 2.0, 4.0], device=device, requires_grad=True)
    index = torch.tensor([0, 2, 0], device=device)
    squares = scatter_add(values, index, 3) ** 2  # so that the gradient depends on the sums
    call = "scatter_add([1, 2, 4], [0, 2, 0], 3) ** 2"
    return compared(call, squares, [25, 0, 4], values, [10, 4, 10])
