"""scatter: reductions of the values that an index sends to one place; two ops in place."""

from __future__ import annotations

import importlib
from typing import Any, Literal, overload

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
from torch_ops.ops.plan import GatherPlan, plan_arguments

_scatter = torch.ops.torch_ops.scatter.default
_scatter_by_plan = torch.ops.torch_ops.scatter.plan
_scatter_with_arg = torch.ops.torch_ops._scatter_with_arg.default
_scatter_ = torch.ops.torch_ops.scatter_.default
_scatter_sorted = torch.ops.torch_ops._scatter_sorted.default
_scatter_add_ = torch.ops.torch_ops.scatter_add_.default
_ext: Any = importlib.import_module("torch_ops._ext.scatter")


@overload
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
    correction: float = 1,
    dtype: torch.dtype | None = None,
    return_arg: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
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
    correction: float = 1,
    dtype: torch.dtype | None = None,
    return_arg: Literal[False] = False,
) -> Tensor: ...


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
    correction: float = 1,
    dtype: torch.dtype | None = None,
    return_arg: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Reduces the slices of ``values`` that ``index`` sends to one place.

    ``result[b..., o..., m, d...]`` is the sum, or another reduction that ``reduce`` names, of
    ``values[b..., o..., i..., d...]`` over the entries ``i...`` with ``index[b..., i...] == m``.
    Shapes are those of :func:`scatter_add`, which is the sum. Results and gradients are those of
    torch_scatter's ``scatter``, except for ``var`` and ``std``, which are ``torch.var`` and
    ``torch.std`` of the values of each row.

    =================  ========================================  ===============  =================
    ``reduce``         result                                    with no entries  of 16-bit floats
    =================  ========================================  ===============  =================
    ``sum``, ``add``   the sum                                   0                summed in float32
    ``mean``           the sum over the number n of entries;     0                summed in float32
                       rounded down for integers
    ``amax``, ``max``  the largest value; NaN if one is          0                exact
    ``amin``, ``min``  the smallest value; NaN if one is         0                exact
    ``prod``, ``mul``  the product                               1                taken in float32
    ``var``            the sum of squared distances to the       NaN              summed in float32
                       mean, over ``max(n - correction, 0)``
    ``std``            its square root                           NaN              summed in float32
    ``any``            of bools: whether one is true             False
    ``all``            of bools: whether none is false           True
    =================  ========================================  ===============  =================

    Args:
        values: A tensor of any strides, on the CPU or a CUDA device. ``sum``: the dtypes of
            :func:`scatter_add`. ``mean``: these except uint16, uint32 and uint64. ``var`` and
            ``std``: float16, bfloat16, float32 or float64. ``any`` and ``all``: bool. Others:
            uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64.
        index: As for :func:`scatter_add`.
        dim_size: How long the result is at ``dim``. May be left out with a plan.
        dim: The result's axis to reduce to; negative counts the result's axes from the end.
            Default: ``batch_dims``.
        batch_dims: How many leading axes values and index share.
        reduce: A name from the table.
        mode: What an entry out of range means, as for :func:`gather`; "fill" drops its values. A
            plan allows only "raise".
        deterministic: As for :func:`scatter_add`, for reductions that are made of sums. The others
            are always deterministic.
        correction: For ``var`` and ``std``, as for ``torch.var``: 1 is the estimate from a sample,
            0 the variance of the entries themselves. Rows of as many entries or fewer are NaN (or
            infinite, which is possible if correction is above 1); so are their gradients.
        dtype: Values are converted to it first, as for ``torch.sum``. Sums, means, ``var`` and
            ``std`` of 16-bit floats give float32 without a copy of the values. Sums of integers,
            also those of ``mean``, wrap in their dtype: give a wider one if they may not fit.
        return_arg: For ``amax`` and ``amin``: whether the positions of the values are returned too.
        sorted: The caller promises that the entries of each batch are in order, as for
            :func:`scatter_add`. ``return_arg`` and the reductions var, std, any and all do not use
            it.

    Returns:
        A contiguous tensor of the values' dtype, or of ``dtype``, and of the shape that
        :func:`scatter_add` returns. With ``return_arg``, a pair of it and an int64 tensor of the
        same shape, which says which entry has each value, counted from 0 along the axes of the
        index: the first of several equal ones, or the number of entries if a row has no entry.

    Gradient:
        ``sum``: as for :func:`scatter_add`. ``mean``: the same, divided by the number of entries.
        ``amax``, ``amin``: to the first of equal values, in the order of the index; zero for the
        others. ``prod``: the product of the other values, even if one of them is zero. ``var``,
        ``std``: those of ``torch.var`` and ``torch.std``, for which values and index are saved;
        zero where a ``std`` is zero. Differentiable any number of times, in forward mode too; but
        a second derivative of a product treats values that are zero as constants.

    Memory:
        ``mean``: the same as :func:`scatter_add`, the sums (of 16-bit floats in float32), their
        quotients, and 8 bytes per entry and per row for the counts. ``var``, ``std``: the
        same twice, and a copy of values, of 16-bit floats in float32. ``any``, ``all``: the same
        as ``amax``, and a byte per value. ``amax``, ``amin``: a
        position of 8 bytes for each element of the result; on CUDA, for small calls and short rows,
        4 more, or 8 for 64-bit values; for many entries to few rows, the best of each part of
        the values, at most a tenth of the values' size or 64 MB. On CUDA for ``prod``, and for the
        largest or smallest of 2^24 values or more in rows of 32 or more: 16 bytes per entry (32
        from 2^31 entries or rows on), a bit per row of the result, and up to 1/8 of the values'
        size. On the CPU ``prod``: 32 bits per element of the result, or 64 for 64-bit types.
        The gradient of ``prod`` uses about five times the size of the values, in float32 for
        16-bit floats.

        With a plan, ``sum`` and ``mean`` save as much as :func:`scatter_add`. On CUDA ``amax`` and
        ``amin`` of any size then use as much as large calls; and these and ``prod`` save the
        bytes of the entries, or half of them if there are batch axes and axes between those and
        ``dim``.

    Determinism:
        ``sum``, ``mean``, ``var`` and ``std``: as for :func:`scatter_add`. The others give the same
        bits on every run.

    Raises:
        IndexError: As for :func:`scatter_add`.
        TypeError: A dtype is not allowed, an argument is not a tensor, a number is not an int, or
            ``dim_size`` is missing and there is no plan.
        ValueError: The shapes do not fit, or ``reduce``, ``mode``, ``dim_size`` or
            ``batch_dims`` is not allowed, or a plan was made for others; or ``return_arg`` is set
            for another reduction.
        RuntimeError: Values and index are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> energy = torch.tensor([1.0, 5.0, 2.0, 3.0])
        >>> atom = torch.tensor([0, 0, 2, 2])
        >>> torch_ops.scatter(energy, atom, 3, reduce="mean")
        tensor([3.0000, 0.0000, 2.5000])
        >>> torch_ops.scatter(energy, atom, 3, reduce="amax", return_arg=True)
        (tensor([5., 0., 3.]), tensor([1, 4, 3]))
    """
    try:
        spread = float(correction) if isinstance(correction, int) else correction
    except OverflowError:
        check_kinds("scatter", correction=(correction, "a real number"))
        raise
    if not sorted and not return_arg and not is_dynamo_compiling():
        output = _ext.call_reduce(
            values, index, dim_size, dim, batch_dims, reduce, mode, deterministic, spread, dtype
        )
        if output is not NotImplemented:
            return output
    if not isinstance(reduce, str):
        raise TypeError(f"scatter: reduce must be a string, but it is {reduce!r}.")
    check_kinds(
        "scatter", correction=(correction, "a real number"), dtype=(dtype, "a torch.dtype or None")
    )
    if isinstance(index, GatherPlan):
        only_raise("scatter", mode)
        arguments = plan_arguments(index, "scatter", values, dim, batch_dims, dim_size)
        check_dense("scatter", values=values)
        if return_arg:
            picks, rows, order, size, axis, batches = arguments
            found = {"batch_dims": batches, "reduce": reduce, "rows": rows, "order": order}
            return _scatter_with_arg(_converted(values, dtype), picks, size, axis, **found)
        if not is_dynamo_compiling():
            output = _ext.call_reduce_by_plan(values, *arguments, reduce, spread, dtype)
            if output is not NotImplemented:
                return output
        return _scatter_by_plan(values, *arguments, reduce, spread, dtype)
    check_dense("scatter", "(values, index, dim_size, dim)", values=values, index=index)
    check_dim_size("scatter", dim_size)
    check_kinds(
        "scatter",
        dim_size=(dim_size, "an int"),
        dim=(dim, "an int or None"),
        batch_dims=(batch_dims, "an int"),
        deterministic=(deterministic, "a bool or None"),
        sorted=(sorted, "a bool"),
        return_arg=(return_arg, "a bool"),
    )
    options = {"batch_dims": batch_dims, "reduce": reduce, **mode_arguments("scatter", mode)}
    if return_arg:
        return _scatter_with_arg(_converted(values, dtype), index, dim_size, dim, **options)
    if sorted and reduce not in ("var", "std", "any", "all"):
        check_sorted("scatter", mode)
        values = _converted(values, dtype)
        return _scatter_sorted(values, index, dim_size, dim, batch_dims, reduce, "scatter")
    return _scatter(
        values,
        index,
        dim_size,
        dim,
        deterministic=deterministic,
        correction=spread,
        dtype=dtype,
        **options,
    )


def _converted(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    return values if dtype is None else values.to(dtype)


def _check_placements(out: Any, values: Any, index: Any, dim: int, batch_dims: int) -> None:
    """Of DTensors: rows of which each rank has a part cannot be written into a sum."""
    for each in (out, values):  # which may be torch.fx's proxies, that have any attribute
        if not isinstance(each, Tensor) or not hasattr(each, "placements"):
            return
    first = dim % max(out.dim(), 1)
    picked = range(first, first + index.dim() - batch_dims)
    for of_out, of_values in zip(out.placements, values.placements, strict=False):
        if of_out.is_partial() and of_values.is_shard() and of_values.dim not in picked:
            raise RuntimeError(
                "scatter_: out is overwritten where it is, so it must not be Partial() where "
                f"values is sharded, but its placements are {out.placements} and those of values "
                f"are {values.placements}. Redistribute out or values first."
            )


def scatter_(
    out: Tensor,
    values: Tensor,
    index: Tensor,
    dim: int | None = None,
    *,
    reduce: str,
    include_self: bool = True,
    batch_dims: int = 0,
) -> Tensor:
    """Reduces each slice of ``values`` into ``out`` where ``index`` says, and returns ``out``.

    ``torch.Tensor.scatter_reduce_`` for whole slices: the value in ``out`` is one more entry of its
    row, or with ``include_self=False`` is overwritten if the row has entries. Rows without entries
    do not change. A mean counts ``out`` as one entry.

    Args:
        out: The tensor that is changed; of any strides, but no two of its elements may share
            memory.
        values: A tensor of out's dtype, on its device. The dtypes are those that :func:`scatter`
            accepts for the same ``reduce``.
        index: uint8, int8, int16, int32 or int64; on the same device. Each entry must be between 0
            and ``out.shape[dim] - 1``.
        dim: The axis of ``out`` to reduce to; negative counts from the end. Default:
            ``batch_dims``.
        reduce: "sum", "mean", "amax", "amin" or "prod", or another name of these, as for
            :func:`scatter`. Sums of integers, also those of means, wrap in their dtype.
        include_self: Whether the values in ``out`` count.
        batch_dims: How many leading axes the three tensors share.

    Returns:
        ``out``.

    Gradient:
        For values and the previous ``out``, as for :func:`scatter`. If a value in ``out`` equals
        others, ``amax`` and ``amin`` give the gradient to the one in ``out``. Differentiable
        any number of times; forward mode too.

    Memory:
        A sum with ``include_self`` is :func:`scatter_add_`. On the CPU without a gradient others
        use 8 bytes per row, and 4 per value of the rows that are named where 16-bit floats are
        added or multiplied. Elsewhere they use the result of :func:`scatter`, up to three tensors
        of the size of ``out``, and 8 bytes per entry and per row for the counts. 16-bit floats:
        means are rounded once, products at most twice.

    Determinism:
        A sum with ``include_self``: as for :func:`scatter_add_`. Others: as for :func:`scatter`.

    Raises:
        IndexError: ``dim`` is out of range, or an entry is, as for :func:`scatter_add_`.
        TypeError: The dtypes differ or are not allowed, or an argument is not a tensor.
        ValueError: The shapes do not fit, or ``reduce`` is none of these.
        RuntimeError: The tensors are on different devices, or ``out`` is expanded, or is a leaf
            that requires grad.

    Example:
        >>> import torch, torch_ops
        >>> best = torch.tensor([3.0, 3.0, 3.0])
        >>> index = torch.tensor([0, 0, 1])
        >>> torch_ops.scatter_(best, torch.tensor([1.0, 5.0, 2.0]), index, reduce="amax")
        tensor([5., 3., 3.])
    """
    if not is_dynamo_compiling():
        output = _ext.call_reduce_inplace(out, values, index, dim, batch_dims, reduce, include_self)
        if output is not NotImplemented:
            return output
    check_dense("scatter_", "(out, values, index, dim)", out=out, values=values, index=index)
    check_kinds(
        "scatter_",
        dim=(dim, "an int or None"),
        batch_dims=(batch_dims, "an int"),
        include_self=(include_self, "a bool"),
    )
    if not isinstance(reduce, str):
        raise TypeError(f"scatter_: reduce must be a string, but it is {reduce!r}.")
    _check_placements(out, values, index, batch_dims if dim is None else dim, batch_dims)
    return _scatter_(
        out, values, index, dim, batch_dims=batch_dims, reduce=reduce, include_self=include_self
    )


def scatter_add_(
    out: Tensor, values: Tensor, index: Tensor, dim: int | None = None, *, batch_dims: int = 0
) -> Tensor:
    """Adds each slice of ``values`` to ``out`` where ``index`` says, and returns ``out``.

    ``out += scatter_add(values, index, out.shape[dim], dim, batch_dims=batch_dims)``, if possible
    without a tensor of the sums.

    Args:
        out: The tensor that is changed; of any strides, but no two of its elements may share
            memory.
        values: A tensor of out's dtype, which :func:`scatter_add` must accept, on its device.
        index: uint8, int8, int16, int32 or int64; on the same device. Each entry must be
            between 0 and ``out.shape[dim] - 1``.
        dim: The axis of ``out`` to add along; negative counts from the end. Default:
            ``batch_dims``.
        batch_dims: How many leading axes the three tensors share.

    Returns:
        ``out``.

    Gradient:
        For ``values``: :func:`gather` of the gradient of ``out``. For the previous ``out``: that
        gradient itself. Only the index is saved.

    Memory:
        A copy of values that are not contiguous or share memory with ``out``; and one of ``out`` if
        it is not contiguous or, on CUDA, does not begin at a multiple of 16 bytes. On the CPU as
        much as :func:`scatter_add`, without its result; 16-bit floats are rounded once. On CUDA,
        for 16-bit floats and integers below 32 bits, and if the order of the sums is fixed: as much
        as :func:`scatter_add`, with its result, which is then added, so a sum of 16-bit floats is
        rounded twice. Otherwise, for many entries to few rows, sums of parts of the values.

    Determinism:
        As for :func:`scatter_add` of rows that are added in no fixed order: on CUDA the same bits
        on every run only under ``torch.use_deterministic_algorithms(True)``, and for integers.

    Raises:
        IndexError: ``dim`` is out of range, or an entry is. On the CPU ``out`` is then unchanged;
            on CUDA a later call raises, as for :func:`scatter_add`, and the other entries have been
            added.
        TypeError: The dtypes differ or are not allowed, or an argument is not a tensor.
        ValueError: The shapes do not fit.
        RuntimeError: The tensors are on different devices, or ``out`` is expanded, or is a leaf
            that requires grad.

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
    check_dense("scatter_add_", "(out, values, index, dim)", out=out, values=values, index=index)
    check_kinds("scatter_add_", dim=(dim, "an int or None"), batch_dims=(batch_dims, "an int"))
    return _scatter_add_(out, values, index, dim, batch_dims=batch_dims)


def self_check(device: torch.device) -> str:
    """Runs scatter forward and backward on ``device``; for ``python -m torch_ops``."""
    values = torch.tensor([1.0, 5.0, 2.0], device=device, requires_grad=True)
    index = torch.tensor([0, 0, 2], device=device)
    output = scatter(values, index, 3, reduce="amax")
    call = 'scatter([1, 5, 2], [0, 0, 2], 3, reduce="amax")'
    return compared(call, output, [5, 0, 2], values, [0, 1, 1])
