"""scatter: sums, means, extremes and products where an index says; scatter_add_ in place."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_ops.ops._arguments import (
    check_dim_size,
    check_kinds,
    check_sorted,
    check_tensors,
    mode_arguments,
    only_raise,
)
from torch_ops.ops.plan import GatherPlan, plan_arguments

_scatter = torch.ops.torch_ops.scatter.default
_scatter_by_plan = torch.ops.torch_ops.scatter.plan
_scatter_sorted = torch.ops.torch_ops._scatter_sorted.default
_scatter_add_ = torch.ops.torch_ops.scatter_add_.default
_ext: Any = importlib.import_module("torch_ops._ext.scatter")


def _reduce_by_plan(
    values: Tensor,
    plan: GatherPlan,
    dim_size: int | None,
    dim: int | None,
    batch_dims: int,
    reduce: str,
) -> Tensor:
    arguments = plan_arguments(plan, "scatter", dim, batch_dims, dim_size)
    if not is_dynamo_compiling():
        output = _ext.call_reduce_by_plan(values, *arguments, reduce)
        if output is not NotImplemented:
            return output
    check_tensors("scatter", values=values)
    return _scatter_by_plan(values, *arguments, reduce)


def scatter(
    values: Tensor,
    index: Tensor | GatherPlan,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    reduce: str = "sum",
    mode: str = "raise",
    deterministic: bool | None = None,
    sorted: bool = False,
) -> Tensor:
    """Reduces the slices of ``values`` that ``index`` sends to one place.

    ``result[b..., o..., m, d...]`` is the sum, mean, largest, smallest or product of
    ``values[b..., o..., i..., d...]`` over the entries ``i...`` with ``index[b..., i...] == m``.
    Shapes are those of :func:`scatter_add`, which is the sum. The names of the reductions are those
    of ``torch.scatter_reduce``; results and gradients are those of torch_scatter's ``scatter``.

    ==========  ============================================  ================  ===================
    ``reduce``  result                                        with no entries   of 16-bit floats
    ==========  ============================================  ================  ===================
    ``sum``     the sum                                       0                 summed in float32
    ``mean``    the sum over the number of entries; rounded   0                 summed in float32
                down for integers
    ``amax``    the largest value; NaN if one is              0                 exact
    ``amin``    the smallest value; NaN if one is             0                 exact
    ``prod``    the product                                   1                 taken in float32
    ==========  ============================================  ================  ===================

    Args:
        values: A tensor of any strides, on the CPU or a CUDA device. ``sum`` and ``mean``: the
            dtypes of :func:`scatter_add`. Others: uint8, int8, int16, int32, int64, float16,
            bfloat16, float32 or float64.
        index: uint8, int16, int32 or int64, used as it is; on the values' device. Each entry must
            be between 0 and ``dim_size - 1``, or ``mode`` says what else it is. Or a
            :class:`GatherPlan` of such a tensor, by :func:`gather_plan`, which also has
            ``dim_size``, ``dim`` and ``batch_dims``.
        dim_size: How long the result is at ``dim``. May be left out with a plan.
        dim: The result's axis to reduce to; negative counts the result's axes from the end.
            Default: ``batch_dims``.
        batch_dims: How many leading axes values and index share.
        reduce: "sum", "mean", "amax", "amin" or "prod".
        mode: What an entry out of range is: as for :func:`gather`, where "fill" means that its
            values are dropped. A plan takes only "raise".
        deterministic: For ``sum`` and ``mean``, as for :func:`scatter_add`. The others are
            deterministic in any case.
        sorted: The caller's word that the entries of each batch are in order, none below the one
            before it. Then nothing is sorted and nothing added by atomics: one pass over the
            values, and the same bits on every run. Where they are not in order all the same, the
            result is undefined; nothing is written elsewhere, and entries out of range are errors.
            Takes only ``mode="raise"``. A plan needs no such word.

    Returns:
        A contiguous tensor of the values' dtype and of the shape that :func:`scatter_add` returns.

    Gradient:
        ``sum``: as for :func:`scatter_add`. ``mean``: the same, over the number of entries.
        ``amax``, ``amin``: to one value, of several that are alike to the first, in the order of
        the index; zero for the others. ``prod``: the product of the other values, also where one of
        them is zero. Differentiable any number of times, in forward mode too; but a second
        derivative of a product takes values that are zero as constants.

    Memory:
        ``mean``: what :func:`scatter_add` takes; the sums, of 16-bit floats in float32, and what
        they are divided to; 8 bytes per entry and per row for the counts. ``amax``, ``amin``: a
        position of 8 bytes for each element of the result; on CUDA, for small calls and short rows,
        4 more, or 8 for 64-bit values. On CUDA for ``prod``, and for the largest or smallest of
        2^24 values or more in rows of 32 or more: 16 bytes per entry (32 from 2^31 entries or rows
        on), a bit per row of the result, and up to 1/8 of the values' size. On the CPU ``prod``:
        32 bits per element of the result, or 64 for 64-bit types.

        With a plan, ``sum`` and ``mean`` save what :func:`scatter_add` saves. On CUDA ``amax`` and
        ``amin`` of any size then take what is said of large calls; and these and ``prod`` save the
        bytes of the entries, or half of them where there are batch axes and axes between those and
        ``dim``.

    Determinism:
        ``sum`` and ``mean``: as for :func:`scatter_add`. The others give the same bits on every
        run.

    Raises:
        IndexError: As for :func:`scatter_add`.
        TypeError: A dtype is not allowed, an argument is no tensor, a number is no int, or
            ``dim_size`` is missing and there is no plan.
        ValueError: The shapes do not fit, or ``reduce``, ``mode``, ``dim_size`` or
            ``batch_dims`` is none that is allowed, or a plan was made for others.
        RuntimeError: Values and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> energy = torch.tensor([1.0, 5.0, 2.0, 3.0])
        >>> atom = torch.tensor([0, 0, 2, 2])
        >>> torch_ops.scatter(energy, atom, 3, reduce="mean")
        tensor([3.0000, 0.0000, 2.5000])
        >>> torch_ops.scatter(energy, atom, 3, reduce="amax")
        tensor([5., 0., 3.])
    """
    if not sorted and not is_dynamo_compiling():
        output = _ext.call_reduce(
            values, index, dim_size, dim, batch_dims, reduce, mode, deterministic
        )
        if output is not NotImplemented:
            return output
    if not isinstance(reduce, str):
        raise TypeError(f"scatter: reduce must be a string, but it is {reduce!r}.")
    if isinstance(index, GatherPlan):
        only_raise("scatter", mode)
        return _reduce_by_plan(values, index, dim_size, dim, batch_dims, reduce)
    check_tensors("scatter", "values, index, dim_size, dim", values=values, index=index)
    check_dim_size("scatter", dim_size)
    check_kinds(
        "scatter",
        dim_size=(dim_size, "an int"),
        dim=(dim, "an int or None"),
        batch_dims=(batch_dims, "an int"),
        deterministic=(deterministic, "a bool or None"),
    )
    if sorted:
        check_sorted("scatter", mode)
        return _scatter_sorted(values, index, dim_size, dim, batch_dims, reduce, "scatter")
    return _scatter(
        values,
        index,
        dim_size,
        dim,
        batch_dims=batch_dims,
        reduce=reduce,
        deterministic=deterministic,
        **mode_arguments("scatter", mode),
    )


def scatter_add_(
    out: Tensor, values: Tensor, index: Tensor, dim: int | None = None, *, batch_dims: int = 0
) -> Tensor:
    """Adds each slice of ``values`` to ``out`` where ``index`` says, and returns ``out``.

    ``out += scatter_add(values, index, out.shape[dim], dim, batch_dims=batch_dims)`` without a
    tensor of the sums where that can be done.

    Args:
        out: The tensor that is changed; of any strides, but no two of its elements may share
            memory.
        values: A tensor of out's dtype, one that :func:`scatter_add` takes, on its device.
        index: uint8, int16, int32 or int64, used as it is; on the same device. Each entry must be
            between 0 and ``out.shape[dim] - 1``.
        dim: The axis of ``out`` to add along; negative counts from the end. Default:
            ``batch_dims``.
        batch_dims: How many leading axes the three tensors share.

    Returns:
        ``out``.

    Gradient:
        Of ``values``: :func:`gather` of the gradient of ``out``; of what ``out`` was before: that
        gradient itself. Only the index is saved.

    Memory:
        A copy of values that are not contiguous; and one of ``out`` where it is not, or, on CUDA,
        does not begin at a multiple of 16 bytes. On the CPU what :func:`scatter_add` takes beside
        its result; 16-bit floats are rounded once. On CUDA, for 16-bit floats and integers below 32
        bits, and where the order of the sums is given: what :func:`scatter_add` takes, and its
        result, which is then added, so that a sum of 16-bit floats is rounded twice.

    Determinism:
        As for :func:`scatter_add` of rows that are added in no given order: on CUDA the same bits
        on every run only under ``torch.use_deterministic_algorithms(True)``, and for integers.

    Raises:
        IndexError: ``dim`` is out of range, or an entry is. On the CPU ``out`` is then as it was;
            on CUDA a later call raises, as for :func:`scatter_add`, and the other entries have been
            added.
        TypeError: The dtypes differ or are not allowed, or an argument is no tensor.
        ValueError: The shapes do not fit.
        RuntimeError: The tensors are on different devices, or ``out`` shares memory with itself or
            with ``values``, or is a leaf that requires grad.

    Example:
        >>> import torch, torch_ops
        >>> total = torch.tensor([10.0, 20.0])
        >>> torch_ops.scatter_add_(total, torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 1, 0]))
        tensor([14., 23.])
    """
    if not is_dynamo_compiling():
        output = _ext.call_inplace(out, values, index, dim, batch_dims, "raise", None)
        if output is not NotImplemented:
            return output
    check_tensors("scatter_add_", "out, values, index, dim", out=out, values=values, index=index)
    check_kinds("scatter_add_", dim=(dim, "an int or None"), batch_dims=(batch_dims, "an int"))
    return _scatter_add_(out, values, index, dim, batch_dims=batch_dims)


def self_check(device: torch.device) -> str:
    """Runs scatter forward and backward on ``device``; for ``python -m torch_ops``."""
    values = torch.tensor([1.0, 5.0, 2.0], device=device, requires_grad=True)
    index = torch.tensor([0, 0, 2], device=device)
    output = scatter(values, index, 3, reduce="amax")
    output.sum().backward()
    grad = None if values.grad is None else values.grad.tolist()
    if output.tolist() != [5, 0, 2] or grad != [0, 1, 1]:
        raise AssertionError(f"scatter gave {output}, its gradient {grad}")
    return 'scatter([1, 5, 2], [0, 0, 2], 3, reduce="amax") = [5, 0, 2]'
