"""Parses the indices in the brackets of ``source[indices]``, for index and its writes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import EllipsisType, NoneType
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.fx import Proxy
from torch.overrides import handle_torch_function, is_tensor_like

from torch_ops.ops._arguments import given

try:
    import numpy as np
except ImportError:  # torch works without it, and then no argument is NumPy's
    _NUMPYS: tuple[type, ...] = ()
    _ARRAYS: tuple[type, ...] = ()
    _NUMPYS_INT: Any = ()
else:
    _NUMPYS, _ARRAYS, _NUMPYS_INT = (np.ndarray, np.generic), (np.ndarray,), (np.integer,)


def _is_int(item: Any) -> TypeGuard[int]:
    """An int, or one that torch.compile represents by a symbol."""
    return isinstance(item, (int, torch.SymInt))


def _holds(items: list[Any] | tuple[Any, ...], is_wanted: Callable[[Any], bool]) -> bool:
    for item in items:
        if isinstance(item, (int, float, complex)):
            continue
        if _holds(item, is_wanted) if isinstance(item, (list, tuple)) else is_wanted(item):
            return True
    return False


def recorded(function: Callable[..., Any], *arguments: Any) -> Any:
    """A node of torch.fx that calls the function, or NotImplemented if no argument is a proxy.

    How a function that parses indices calls its op depends on axes and dtypes, which proxies lack.
    """
    found: list[Proxy] = []

    def is_proxy(item: Any) -> bool:
        if isinstance(item, Proxy):
            found.append(item)
        return bool(found)

    if not _holds(arguments, is_proxy):
        return NotImplemented
    return handle_torch_function(function, found, *arguments)


def _as_torch_reads(array: Any) -> Any:
    """A NumPy array, or a copy of one that torch refuses or warns about."""
    if array.dtype.char in "gG":  # more than 64 bits
        return array.astype("float64" if array.dtype.char == "g" else "complex128")
    if array.dtype.isnative and array.flags.writeable and all(s >= 0 for s in array.strides):
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C")


def to_tensor(item: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Converts lists as NumPy does: torch.as_tensor reads tensors of one element as numbers."""
    if isinstance(item, (list, tuple)):
        if _holds(item, is_tensor_like):
            return torch.stack([to_tensor(each, device, dtype) for each in item])
        if _holds(item, lambda each: isinstance(each, _ARRAYS)) and not is_compiling():
            item = np.array(item)  # torch reads them number by number
    if isinstance(item, _NUMPYS) and not is_compiling():
        item = _as_torch_reads(item)
    return torch.as_tensor(item, dtype=dtype, device=device)


def cause_of(item: Any, error: BaseException) -> str:
    """The end of a message: for an allowed type, torch's error."""
    if not isinstance(item, (list, tuple, int, float, complex)) or not str(error):
        return "."
    return f": {str(error).splitlines()[0].rstrip('.')}."


def _as_array(name: str, item: Any, source: Tensor) -> Any:
    """A tensor or an int for an index that is neither a slice, None, Ellipsis nor a bool."""
    if isinstance(item, Tensor) or _is_int(item):
        return item
    if not isinstance(item, _NUMPYS):
        if is_tensor_like(item):
            return item
        if hasattr(item, "__index__") and not hasattr(item, "__array__"):
            return operator.index(item)
    elif isinstance(item, _NUMPYS_INT):
        return operator.index(item)
    try:
        if isinstance(item, (float, complex)):
            raise TypeError
        array = to_tensor(item, source.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name}: an index must be an int, a slice, None, ..., a tensor of integers or bools, "
            f"or a list of these, but {given(item)} was given{cause_of(item, error)}"
        ) from error
    return array.long() if array.numel() == 0 and array.dtype.is_floating_point else array


def _check_int(name: str, item: int, source: Tensor, axis: int) -> None:
    """While tracing, the index or the size may be known only later: torch checks it then."""
    if is_compiling() or isinstance(item, torch.SymInt):
        return
    size = source.shape[axis]
    if isinstance(size, int) and not -size <= item < size:
        allowed = f"it must be between {-size} and {size - 1}" if size else "no index is allowed"
        raise IndexError(
            f"{name}: index {item} is out of range for axis {axis} of source, which has size "
            f"{size}: {allowed}."
        )


def _checked_slice(name: str, item: slice) -> slice:
    """With the ints of NumPy and of tensors as Python's, unless these are known only later."""
    numbers: list[Any] = []
    for number in (item.start, item.stop, item.step):
        if number is not None and not _is_int(number) and not is_compiling():
            try:
                number = operator.index(number)
            except TypeError as error:
                raise TypeError(
                    f"{name}: start, stop and step of a slice must be ints or None, but "
                    f"{given(number)} was given."
                ) from error
        numbers.append(number)
    step = numbers[2]
    if isinstance(step, int) and step < 1:
        raise ValueError(f"{name}: the step of a slice must be 1 or more, but it is {step}.")
    return slice(*numbers)


def _is_whole(item: slice, size: int) -> bool:
    """Does a slice select a whole axis of this size? While tracing that may be known only later."""
    if is_compiling():
        return item.start is None and item.stop is None and item.step is None
    if item.step is not None and item.step != 1:
        return False
    if item.start is not None and item.start != 0:
        return False
    return item.stop is None or (_is_int(item.stop) and item.stop >= size)


class Parsed:
    """Parsed indices: basic ones make a view, and arrays are for the axes of that view."""

    __slots__ = ("arrays", "axes", "basic", "front", "plain")

    def __init__(self, name: str, source: Tensor, indices: Any) -> None:
        items = indices if isinstance(indices, tuple) else (indices,)
        known: list[Any] = []
        axes = 0  # of the source that the items are for
        ellipsis = -1
        for item in items:
            # By type, since for `is` Dynamo asks for the value of an integer that depends on data.
            if isinstance(item, EllipsisType):
                if ellipsis >= 0:
                    raise IndexError(f"{name}: indices may have one ellipsis ('...'), not several.")
                ellipsis = len(known)
            elif isinstance(item, (NoneType, bool)):
                pass
            elif isinstance(item, slice):
                item = _checked_slice(name, item)
                axes += 1
            else:
                item = _as_array(name, item, source)
                is_mask = not _is_int(item) and item.dtype == torch.bool
                axes += item.dim() if is_mask else 1
            known.append(item)
        left = source.dim() - axes
        if left < 0:
            raise IndexError(
                f"{name}: indices are for more axes ({axes}) than source with shape "
                f"{list(source.shape)} has ({source.dim()})."
            )
        self.basic: list[Any] = []  # what makes the view; an ellipsis for each axis that stays
        self.arrays: list[Tensor | None] = []  # for the view's leading axes
        # Which axes of source those are, for messages. A new axis has the number of the next one.
        self.axes: list[int] = []
        self.plain = True  # is the view the source itself?
        # Whether the arrays' axes come first in the result: if they are separated, where an
        # integer counts as an array.
        self.front = False
        last_array = -1
        axis = 0  # of source
        for position, item in enumerate(known):
            if isinstance(item, EllipsisType):
                self.basic += [...] * left
                self.arrays += [None] * left
                self.axes += range(axis, axis + left)
                axis += left
                continue
            if isinstance(item, NoneType):
                self.plain = False
                self.basic.append(None)
                self.arrays.append(None)
                self.axes.append(axis)
                continue
            if isinstance(item, slice):
                whole = _is_whole(item, source.shape[axis])
                self.plain = self.plain and whole
                self.basic.append(... if whole else item)
                self.arrays.append(None)
                self.axes.append(axis)
                axis += 1
                continue
            self.front = self.front or -1 < last_array < position - 1
            last_array = position
            if isinstance(item, bool):  # a mask without axes, for a new axis
                self.plain = False
                self.basic.append(None)
                self.axes.append(axis)
                self.arrays.append(torch.zeros(int(item), dtype=torch.int64, device=source.device))
                continue
            if _is_int(item):
                _check_int(name, item, source, axis)
                self.plain = False
                self.basic.append(item)
                axis += 1
                continue
            covered = item.dim() if item.dtype == torch.bool else 1
            if covered > 0:
                self.basic += [...] * covered
                self.axes += range(axis, axis + covered)
                axis += covered
            else:  # a mask without axes is for a new axis
                self.plain = False
                self.basic.append(None)
                self.axes.append(axis)
                item = item.reshape(1)
            self.arrays.append(item)
        while self.arrays and self.arrays[-1] is None:
            self.arrays.pop()

    def view(self, source: Tensor) -> Tensor:
        """One call of torch per step: torch.compile has no tuples of numbers known only later."""
        axis = 0
        for item in () if self.plain else self.basic:
            if isinstance(item, NoneType):
                source = source.unsqueeze(axis)
            elif isinstance(item, slice):
                source = source[(slice(None),) * axis + (item,)]
            elif item is not Ellipsis:
                source = source.select(axis, item)
                continue
            axis += 1
        return source

    def count_masks(self, source: Tensor, values: Tensor) -> None:
        """Replaces masks, which torch.compile does not count in an op, by index arrays.

        Except one that the registered op does not count either: as_condition in
        src/index/index_put.cpp.
        """
        masks = [item for item in self.arrays if item is not None and item.dtype == torch.bool]
        if not masks:
            return
        if len(masks) == 1 and sum(item is not None for item in self.arrays) == 1:
            axis = len(self.arrays) - 1
            behind = source.dim() - axis - masks[0].dim()
            if values.dim() <= behind and not (self.front and axis > 0 and values.dim() > 0):
                return
        arrays: list[Tensor | None] = []
        for item in self.arrays:
            axis = len(arrays)
            if item is None or item.dtype != torch.bool:
                arrays.append(item)
            elif item.shape == source.shape[axis : axis + item.dim()]:
                arrays += item.nonzero().unbind(1)
            else:
                return  # the op raises the error
        self.arrays = arrays

    def options(self) -> dict[str, Any]:
        """The arguments of the registered ops in addition to the arrays."""
        return {"front": self.front, "axes": None if self.plain else self.axes}
