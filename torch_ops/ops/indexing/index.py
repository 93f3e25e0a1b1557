"""index and its writes: ``source[indices]``, read, written and added to."""

from __future__ import annotations

import importlib
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.fx.node import has_side_effect
from torch.overrides import is_tensor_like

from torch_ops.ops._arguments import (
    NUMBERS,
    check_countable,
    check_dense,
    check_kinds,
    check_values,
    given,
)
from torch_ops.ops._self_check import compared
from torch_ops.ops.indexing._indices import Parsed, cause_of, recorded, to_tensor
from torch_ops.ops.plan import GatherPlan, plan_arguments

if TYPE_CHECKING:
    import numpy as np

_index = torch.ops.torch_ops.index.default
_gather_by_plan = torch.ops.torch_ops.gather.plan
_index_put = torch.ops.torch_ops.index_put.default
_index_put_ = torch.ops.torch_ops.index_put_.default
_ext: Any = importlib.import_module("torch_ops._ext.index")

Index: TypeAlias = (
    "int | slice | EllipsisType | bool | list[Any] | Tensor | np.ndarray[Any, Any] | None"
)
Values: TypeAlias = "Tensor | int | float | complex | bool"


def index(source: Tensor, indices: Index | tuple[Index, ...] | GatherPlan) -> Tensor:
    """Returns ``source[indices]`` as NumPy defines it.

    Integers, slices, None and Ellipsis give a view, as in torch. Index arrays (tensors or NumPy
    arrays of integers, or lists of these or of integers) are broadcast against each other. For
    every point, each array names a place on its axis; negative entries count from the end. A mask,
    a tensor of bools with the shape of its axes, means the arrays of the places where it is true.

    If the arrays are adjacent, their axes take the arrays' place in the result; they come first if
    a slice, None or Ellipsis is between the arrays. An integer counts as an array for this, as in
    NumPy, while torch applies it beforehand: with ``x`` of shape ``[2, 3, 4]`` and ``i`` of
    ``[5]``, ``x[0, :, i]`` has the shape ``[5, 3]`` here and in NumPy, but ``[3, 5]`` in torch.
    A uint8 tensor has integers, as in NumPy; torch reads it as a mask. A list of lists is one
    index array, as in NumPy; torch may read it as a tuple of arrays.

    Args:
        source: A tensor of any shape, dtype and strides, on the CPU or a CUDA device.
        indices: One of the above or a tuple of several, for the leading axes of source. Index
            arrays are uint8, int8, int16, int32 or int64; arrays and masks are on the
            source's device. An entry for an axis of size n must be between -n and n - 1. There may
            be as many arrays as source has axes. Or a :class:`GatherPlan` of one array without
            negative entries, made by ``gather_plan(array, source.shape[0])``.

    Returns:
        A view of source if there are neither arrays nor masks. Otherwise a new tensor, which is
        contiguous, unless an integer that is apart from the only array moves the array's axes to
        the front.

    Gradient:
        :func:`scatter_add` of ``grad_output``: for one array by the array itself, for several by
        numbers that a kernel computes from them. The arrays are saved, the source is not.
        Differentiable any number of times; forward mode too.

    Memory:
        The result. Arrays are read in place, broadcast ones too. The gradient for several arrays
        uses 4 bytes more per point, or 8 if the indexed axes have 2^31 elements or more. More than
        16 arrays, and arrays that leave more than six groups of axes between them, need a copy of
        source. A mask uses 8 bytes per true entry and axis, and on CUDA waits for the GPU, because
        the result's shape depends on the number of true entries. (:func:`masked_gather` with
        ``size`` does not.)

    Deterministic. So is the gradient if :func:`scatter_add` is.

    Raises:
        IndexError: An entry or an integer is out of range, there are too many indices, or the
            shapes of arrays or of a mask do not fit. On CUDA an entry out of range gives zeros, and
            the next call of an op with an index on the device, or :func:`check_errors`, raises.
        TypeError: An array has another dtype, or an index is none of the above.
        ValueError: A slice has a negative step, which torch does not support.
        RuntimeError: Source and an array are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> x = torch.arange(12).view(3, 4)
        >>> torch_ops.index(x, (torch.tensor([0, -1]), torch.tensor([1, 2])))
        tensor([ 1, 10])
        >>> torch_ops.index(x, (slice(None), torch.tensor([[3], [0]]))).shape
        torch.Size([3, 2, 1])
        >>> torch_ops.index(x, x > 9)
        tensor([10, 11])
    """
    if not is_dynamo_compiling():
        output = _ext.call_index(source, indices)
        if output is NotImplemented:
            output = recorded(index, source, indices)
        if output is not NotImplemented:
            return output
    check_dense("index", "(source, indices)", source=source)
    if isinstance(indices, GatherPlan):
        return _gather_by_plan(source, *plan_arguments(indices, "index", source, dim=0, picks=True))
    parsed = Parsed("index", source, indices)
    view = parsed.view(source)
    if not parsed.arrays:
        return view.view_as(view) if view is source else view
    for array in parsed.arrays:
        if array is not None and array.dtype == torch.bool:
            check_countable("index", array)
    return _index(view, parsed.arrays, **parsed.options())


def _as_values(name: str, source: Tensor, values: Any) -> Tensor:
    if is_tensor_like(values):
        return values
    try:
        if isinstance(values, NUMBERS):
            is_float = source.is_floating_point() or source.is_complex()
            if is_float and isinstance(values, int) and not -(2**63) <= values < 2**63:
                values = float(values)  # torch takes no larger int
            return source.new_full((), values)
        return to_tensor(values, source.device, source.dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        is_number = isinstance(values, (int, float, complex))
        kind = ValueError if is_number and not isinstance(values, complex) else TypeError
        raise kind(
            f"{name}: values must be a tensor, a number or a list of numbers that {source.dtype} "
            f"holds, but {repr(values) if is_number else given(values)} was given"
            f"{cause_of(values, error)}"
        ) from error


def index_put(
    source: Tensor,
    indices: Index | tuple[Index, ...],
    values: Values,
    accumulate: bool = False,
) -> Tensor:
    """Returns a copy of ``source`` in which ``source[indices]`` is ``values``.

    This is ``result = source.clone(); result[indices] = values``, with :func:`index`'s meaning of
    indices.

    Args:
        source: As for :func:`index`.
        indices: As for :func:`index`.
        values: A tensor of the source's dtype, on its device, that can be broadcast to the shape of
            ``index(source, indices)``, and may have more axes, of length 1, in front; or a number,
            or a list or NumPy array of numbers, that the dtype holds.
        accumulate: Whether values are added instead, including all values for the same place:
            :func:`index_add`.

    Returns:
        A tensor of the source's shape and dtype.

    Gradient:
        For source: ``grad_output``, with zeros at the places written (unchanged with
        ``accumulate``). For values: ``index(grad_output, indices)``, summed where values were
        broadcast. Differentiable any number of times; forward mode too.

    Determinism:
        If indices name a place several times, it is undefined which of its values is written; some
        elements may be of one and some of another. Under
        ``torch.use_deterministic_algorithms(True)`` it is the last, as in NumPy. (The gradient goes
        to each of them.) With ``accumulate``: as for :func:`index_add`.

    Raises:
        IndexError: As for :func:`index`. On CUDA values for entries out of range are dropped.
        TypeError: As for :func:`index`; or the dtypes of source and values differ.
        ValueError: As for :func:`index`; or values cannot be broadcast, or a number is not of the
            source's dtype: a float for integers, or beyond the finite values. (``torch.compile``
            does not compare with these.)
        RuntimeError: Source and another argument are on different devices.

    Memory:
        The result. Values are read in place. A call with only a mask does not wait if values have
        no axis for its entries; a number has none. Under
        ``torch.use_deterministic_algorithms(True)``: also a copy of the values, up to 24 bytes per
        point, and 8 per place that a point may name.

    Example:
        >>> import torch, torch_ops
        >>> x = torch.tensor([1, -2, 3, -4])
        >>> torch_ops.index_put(x, x < 0, 0)
        tensor([1, 0, 3, 0])
        >>> torch_ops.index_put(x, torch.tensor([0, -1]), torch.tensor([7, 8]))
        tensor([ 7, -2,  3,  8])
    """
    return _put("index_put", source, indices, values, accumulate)


@has_side_effect  # for torch.fx, of which `recorded` makes a node
def index_put_(
    source: Tensor,
    indices: Index | tuple[Index, ...],
    values: Values,
    accumulate: bool = False,
) -> Tensor:
    """Writes ``values`` to ``source[indices]``, in place, and returns ``source``.

    ``source[indices] = values``, with :func:`index`'s meaning of indices: ``index_put_(x, x < 0,
    0)`` is ``x[x < 0] = 0``.

    Args:
        source: As for :func:`index`; no two of its elements may share memory. Its shape and dtype
            do not change.
        indices: As for :func:`index`.
        values: As for :func:`index_put`.
        accumulate: As for :func:`index_put`.

    Returns:
        ``source``.

    Gradient:
        That of :func:`index_put`.

    Determinism:
        That of :func:`index_put`.

    Raises:
        IndexError: As for :func:`index`. On the CPU nothing is then written; on CUDA values for
            entries out of range are dropped.
        TypeError: As for :func:`index_put`.
        ValueError: As for :func:`index_put`.
        RuntimeError: As for :func:`index_put`; or source is a leaf that requires grad, or expanded.

    Memory:
        None, or as :func:`index_put` under ``torch.use_deterministic_algorithms(True)``, without
        its result; with ``accumulate`` as :func:`index_add`, without its result. A mask with
        values that are neither a number nor one value per entry, such as a row for all rows, uses
        8 bytes per true entry and axis on the CPU, and as much as the source on CUDA.

    Example:
        >>> import torch, torch_ops
        >>> x = torch.zeros(2, 3)
        >>> torch_ops.index_put_(x, (..., torch.tensor([0, 2])), 1.0)
        tensor([[1., 0., 1.],
                [1., 0., 1.]])
    """
    if not isinstance(values, Tensor) and isinstance(source, Tensor):
        check_values("index_put_", values, source.dtype)
    if not is_dynamo_compiling():
        output = _ext.call_index_put_(source, indices, values, accumulate, None)
        if output is NotImplemented:
            output = recorded(index_put_, source, indices, values, accumulate)
        if output is not NotImplemented:
            return output
    if not isinstance(accumulate, bool):
        check_kinds("index_put_", accumulate=(accumulate, "a bool"))
    check_dense("index_put_", "(source, indices, values)", source=source)
    if not isinstance(values, Tensor):
        values = _as_values("index_put_", source, values)
    parsed = Parsed("index_put_", source, indices)
    if not parsed.plain:  # else the registered op does
        _check_no_overlap(source)
    view = parsed.view(source)
    if is_compiling():
        parsed.count_masks(view, values)
    _index_put_(view, parsed.arrays, values, accumulate, **parsed.options())
    return source


def _check_no_overlap(source: Tensor) -> None:
    """check_no_overlap of src/common/torch/calls/checks.h; nothing for tensors without strides."""
    if (
        source.layout != torch.strided
        or 0 in source.shape
        or not any(
            stride == 0 and size > 1
            for size, stride in zip(source.shape, source.stride(), strict=True)
        )
    ):
        return
    raise RuntimeError(
        "index_put_: elements of source must not share a single memory location, as those of an "
        f"expanded tensor do, but its shape is {list(source.shape)} and its strides are "
        f"{list(source.stride())}. Use source.clone()."
    )


def index_add(
    source: Tensor,
    indices: Index | tuple[Index, ...],
    values: Values,
    deterministic: bool | None = None,
) -> Tensor:
    """Returns a copy of ``source`` to which ``values`` are added at ``source[indices]``.

    If indices name a place several times, all of its values are added, as by
    ``numpy.add.at(source, indices, values)`` on a copy. 16-bit floats are summed in float32; on
    CUDA, and where "Memory" mentions separate sums, these are rounded before they are added.

    Args:
        source: As for :func:`index`, but of a dtype that :func:`scatter_add` can sum.
        indices: As for :func:`index`. (``torch.index_add`` takes ``(input, dim, index, source)``:
            ``indices=(slice(None),) * dim + (index,)`` is the same.)
        values: As for :func:`index_put`.
        deterministic: As for :func:`scatter_add`.

    Returns:
        A tensor of the source's shape and dtype.

    Gradient:
        For source: ``grad_output``. For values: ``index(grad_output, indices)``, summed where
        values were broadcast. Differentiable any number of times; forward mode too.

    Determinism:
        If arrays are adjacent, values are added to the result as by :func:`scatter_add_`: on CUDA
        in no fixed order, except with ``deterministic=True`` and under
        ``torch.use_deterministic_algorithms(True)``. Otherwise that of :func:`scatter_add`.

    Memory:
        The result, and 4 or 8 bytes per point if there are several arrays. For arrays that are not
        adjacent, for 16-bit floats on CUDA, in a fixed order and under a transform of
        ``torch.func``: also sums as large as source, and as much as :func:`scatter_add`. (Sums of
        16-bit floats are then rounded before they are added to source, and once more.)

    Raises:
        IndexError: As for :func:`index`. On CUDA values for entries out of range are dropped.
        TypeError: As for :func:`index_put`; or the arguments are in the order of
            ``torch.index_add``.
        ValueError: As for :func:`index_put`.
        RuntimeError: Source and another argument are on different devices.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.index_add(torch.zeros(3), torch.tensor([0, 2, 0]), torch.tensor([1.0, 2, 4]))
        tensor([5., 0., 2.])
    """
    if isinstance(deterministic, Tensor):
        raise TypeError(
            "index_add: the arguments are in the order of torch.index_add, (input, dim, index, "
            "source). torch_ops.index_add takes (source, indices, values), with indices as they "
            "stand in source[indices]. Write torch_ops.index_add(input, (slice(None),) * dim + "
            "(index,), source)."
        )
    return _put("index_add", source, indices, values, True, deterministic)


def _put(
    name: str,
    source: Tensor,
    indices: Any,
    values: Any,
    accumulate: bool,
    deterministic: bool | None = None,
) -> Tensor:
    if not isinstance(values, Tensor) and isinstance(source, Tensor):
        check_values(name, values, source.dtype)
    if not is_dynamo_compiling():
        direct = _ext.call_index_add if name == "index_add" else _ext.call_index_put
        output = direct(source, indices, values, accumulate, deterministic)
        if output is NotImplemented:
            function, last = (
                (index_add, deterministic) if name == "index_add" else (index_put, accumulate)
            )
            output = recorded(function, source, indices, values, last)
        if output is not NotImplemented:
            return output
    if not isinstance(accumulate, bool) or deterministic is not None:
        check_kinds(
            name,
            accumulate=(accumulate, "a bool"),
            deterministic=(deterministic, "a bool or None"),
        )
    check_dense(name, "(source, indices, values)", source=source)
    if not isinstance(values, Tensor):
        values = _as_values(name, source, values)
    parsed = Parsed(name, source, indices)
    options = {**parsed.options(), "deterministic": deterministic, "name": name}
    if is_compiling():
        parsed.count_masks(parsed.view(source), values)
    if parsed.plain:
        return _index_put(source, parsed.arrays, values, accumulate, **options)
    result = _copy(source, [values, *parsed.arrays])
    _index_put_(parsed.view(result), parsed.arrays, values, accumulate, **options)
    return result


def _copy(source: Tensor, others: list[Tensor | None]) -> Tensor:
    """A copy to write to: one for each sample, or of the subclass of tensors, if others are so."""
    plain = (Tensor, torch.nn.Parameter)
    is_mixed = type(source) in plain and any(
        other is not None and type(other) not in plain for other in others
    )
    if not is_mixed and torch._C._functorch.peek_interpreter_stack() is None:
        return source.clone()
    never = torch.zeros((), dtype=torch.bool, device=source.device)
    for other in others:
        if other is not None:
            never = never | other.new_zeros((), dtype=torch.bool)  # of each sample or a subclass
    return torch.where(never, source, source)


def self_check(device: torch.device) -> str:
    """Runs index and index_put forward and backward on ``device``; for ``python -m torch_ops``."""
    source = torch.arange(6.0, device=device).view(2, 3).requires_grad_()
    rows, columns = torch.tensor([1, -2], device=device), torch.tensor([-1, 0], device=device)
    output = index(index_put(source, (rows, 1), 9.0), (rows, columns))
    call = "index([[0, 1, 2], [3, 4, 5]], ([1, -2], [-1, 0]))"
    return compared(call, output, [5, 0], source, [[1, 0, 0], [0, 0, 1]])
