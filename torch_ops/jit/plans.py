"""index_plan: checks and sorts the indices of indexed kernels once."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree

from torch_ops.ops._arguments import check_device

_gather_plan = torch.ops.torch_ops.gather_plan.default
_ext: Any = importlib.import_module("torch_ops._ext.jit")


@dataclass(frozen=True, eq=False, repr=False)
class IndexPlan:
    """Indices that :func:`index_plan` has checked and sorted. Make it only by that function.

    :class:`IndexedKernel` accepts it as ``plan=``. It is a pytree, with the tensors as leaves, so
    it can be an argument of functions under ``torch.compile``, ``torch.func`` and ``torch.export``;
    and it can be pickled. ``torch.load`` reads a saved plan, or a checkpoint that holds one, within
    ``torch.serialization.safe_globals([IndexPlan])``. Its tensors must not be overwritten, nor come
    from a source that you do not trust: they are not checked again.

    Attributes:
        names: The names of the indices.
        indices: As they were given.
        parts: For each index: the entries sorted by it; where each row's entries begin in that
            order (and where the last one's end); and the rows that each of the indices names in
            that order, counted over all batches. int32 if all of them fit, else int64.
        longest: For each index, the most entries that a row has; -1: not known.
        sizes: How many rows each index counts in a batch.
        batch_dims: Leading axes that indices and inputs share.

    Example:
        >>> import torch
        >>> from torch_ops.jit import index_plan
        >>> plan = index_plan(dst=(torch.tensor([1, 0, 1]), 2))
        >>> [part.tolist() for part in plan.parts]  # order, offsets, rows in that order
        [[1, 0, 2], [0, 1, 3], [0, 1, 1]]
    """

    __module__ = "torch_ops.jit"

    names: tuple[str, ...]
    indices: tuple[Tensor, ...]
    parts: tuple[Tensor, ...]
    longest: tuple[int, ...]
    sizes: tuple[int, ...]
    batch_dims: int
    _held: Any = field(init=False)

    def __post_init__(self) -> None:
        held = None
        compiles = torch.compiler.is_compiling()
        if not compiles and all(type(part) is Tensor for part in (*self.indices, *self.parts)):
            held = _ext.HeldPlan(
                list(self.names), list(self.indices), list(self.parts), list(self.longest),
                list(self.sizes), self.batch_dims,
            )  # fmt: skip
        object.__setattr__(self, "_held", held)

    def parts_for(
        self, names: tuple[str, ...], kernel: str
    ) -> tuple[list[Tensor], list[Tensor], list[int], list[int]]:
        """Indices, parts, longest and sizes for a kernel that has some of the indices."""
        for name in names:
            if name not in self.names:
                raise ValueError(
                    f"{kernel}: the plan has no index {name}; it has {', '.join(self.names)}."
                )
        places = [self.names.index(name) for name in names]
        stride = 2 + len(self.names)
        parts: list[Tensor] = []
        for place in places:
            first = place * stride
            parts += self.parts[first : first + 2]
            parts += [self.parts[first + 2 + other] for other in places]
        indices = [self.indices[place] for place in places]
        longest = [self.longest[place] for place in places]
        return indices, parts, longest, [self.sizes[place] for place in places]

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> IndexPlan:
        """Returns the plan with its tensors on ``device``; tensors already there are not copied."""
        check_device("IndexPlan.to", device)
        indices, parts = (
            tuple(tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
            for tensors in (self.indices, self.parts)
        )
        return IndexPlan(self.names, indices, parts, self.longest, self.sizes, self.batch_dims)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.names, self.indices, self.parts, self.longest, self.sizes, self.batch_dims)
        return IndexPlan, fields

    def __repr__(self) -> str:
        # No values of tensors: printing a plan must not wait for a GPU.
        indices = ", ".join(
            f"{name}={str(index.dtype).removeprefix('torch.')}{list(index.shape)} to {size}"
            for name, index, size in zip(self.names, self.indices, self.sizes, strict=True)
        )
        return (
            f"IndexPlan({indices}, batch_dims={self.batch_dims}, device='{self.indices[0].device}')"
        )


def _flatten(plan: IndexPlan) -> tuple[list[Any], Any]:
    # Not `longest`, which each plan has others of: what is exported with one plan takes another.
    context = plan.names, plan.sizes, plan.batch_dims
    return [*plan.indices, *plan.parts], context


def _flatten_with_keys(plan: IndexPlan) -> tuple[list[Any], Any]:
    leaves, context = _flatten(plan)
    return [(pytree.SequenceKey(number), leaf) for number, leaf in enumerate(leaves)], context


def _unflatten(leaves: Any, context: Any) -> IndexPlan:
    names, sizes, batch_dims = context
    leaves, count = tuple(leaves), len(names)
    return IndexPlan(
        tuple(names), leaves[:count], leaves[count:], (-1,) * count, tuple(sizes), batch_dims
    )


# The numbers are context, not leaves: torch.vmap and others accept only tensors.
pytree.register_pytree_node(
    IndexPlan,
    _flatten,
    _unflatten,
    flatten_with_keys_fn=_flatten_with_keys,
    serialized_type_name="torch_ops.jit.IndexPlan",  # what torch.export.save writes
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)


def index_plan(*, batch_dims: int = 0, **indices: tuple[Tensor, int]) -> IndexPlan:
    """Checks and sorts indices once, for calls of indexed kernels that use them many times.

    ``kernel(x, y, w, plan=plan)`` returns the same as ``kernel(x, y, w, src=src, dst=dst)``, for
    every :class:`IndexedKernel` whose indices have these names, or some of them. Then neither the
    kernel nor any of its derivatives sorts, or reads an index through another.

    Args:
        batch_dims: Leading axes that the indices share with the inputs.
        indices: By their names, each with the number of rows it counts: ``src=(src, N)``. int32 or
            int64 tensors of one shape, ``[E]``, or ``[batch..., E]``. They are kept, not copied,
            and must not be overwritten while the plan is used.

    Returns:
        An :class:`IndexPlan`.

    Gradient:
        None: an index has none. Kernels that use the plan are differentiable.

    Memory:
        For each of n indices 4 (n + 1) bytes per entry and 4 per row; twice that from 2^31 entries
        or rows on.

    Deterministic.

    Raises:
        IndexError: An entry is out of range; the message names its position, its value and the
            bound. Here the call itself raises on CUDA too: it waits for the device.
        TypeError: An index is not a pair of a tensor and an int, or has another dtype.
        ValueError: No index; shapes differ; a negative size.
        RuntimeError: The indices are on several devices; the current stream is capturing a CUDA
            graph.

    Example:
        >>> import torch
        >>> from torch_ops.jit import IndexedKernel, index_plan
        >>> src, dst = torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0])
        >>> plan = index_plan(src=(src, 3), dst=(dst, 2))
        >>> plan
        IndexPlan(src=int64[3] to 3, dst=int64[3] to 2, batch_dims=0, device='cpu')
        >>> total = IndexedKernel("T x[src]", "T out[dst]", "out = x", "total")
        >>> total(torch.tensor([[1.0], [2.0], [4.0]]), plan=plan)
        tensor([[4.],
                [3.]])
    """
    if not indices:
        raise ValueError("index_plan takes an index at least, by its name: src=(src, N).")
    if isinstance(batch_dims, bool) or not isinstance(batch_dims, int) or batch_dims < 0:
        raise ValueError(
            f"index_plan: batch_dims must be an int from 0 on, but it is {batch_dims!r}."
        )
    names = tuple(indices)
    given: list[Tensor] = []
    sizes: list[int] = []
    for name, pair in indices.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], Tensor):
            found = type(pair).__name__
            if isinstance(pair, tuple | list):
                found += f" of {', '.join(type(part).__name__ for part in pair) or 'nothing'}"
            raise TypeError(
                f"index_plan: {name} must be a tensor and how many rows it counts, such as "
                f"{name}=({name}, N), but it is {found}."
            )
        index, size = pair
        if index.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"index_plan: {name} must be int32 or int64, but it is "
                f"{str(index.dtype).removeprefix('torch.')}."
            )
        if isinstance(size, bool) or not isinstance(size, int | torch.SymInt):
            raise TypeError(
                f"index_plan: the number of rows of {name} must be an int, but it is "
                f"{type(size).__name__}."
            )
        if size < 0:
            raise ValueError(
                f"index_plan: the number of rows of {name} must not be negative, but it is {size}."
            )
        if index.dim() != batch_dims + 1:
            raise ValueError(
                f"index_plan: {name} must have {batch_dims + 1} axes (batch_dims={batch_dims}), "
                f"but its shape is {list(index.shape)}."
            )
        if given and index.shape != given[0].shape:
            raise ValueError(
                f"index_plan: {name} must have the shape of {names[0]}, {list(given[0].shape)}, "
                f"but it has {list(index.shape)}."
            )
        if given and index.device != given[0].device:
            raise RuntimeError(
                f"index_plan: all indices must be on one device, but {name} is on {index.device} "
                f"and {names[0]} on {given[0].device}."
            )
        given.append(index)
        sizes.append(size)
    return plan_of(names, given, sizes, batch_dims, wait=True)


def plan_of(
    names: tuple[str, ...], given: list[Tensor], sizes: list[int], batch_dims: int, *, wait: bool
) -> IndexPlan:
    """``index_plan`` of arguments that were checked.

    On CUDA the host need not ``wait`` for the sort. Then the plan does not have what kernels can do
    without, the lengths of rows; and an entry out of range is an error of the next call. Kernels
    that read the plan until then take it for another entry.
    """
    batches = given[0].shape[:batch_dims].numel()
    entries = given[0].numel()
    # One by one: which of them is the largest must not become a condition of what is traced.
    narrow = all(count < 2**31 - 1 for count in (entries, *(batches * size for size in sizes)))
    dtype = torch.int32 if narrow else torch.int64
    rows = [_rows_of(index, size).to(dtype) for index, size in zip(given, sizes, strict=True)]
    parts: list[Tensor] = []
    longest: list[int] = []
    for name, index, size in zip(names, given, sizes, strict=True):
        try:
            sorted_rows, order = _gather_plan(index, size, batch_dims=batch_dims, wait=wait)
        except IndexError as error:
            text = str(error).removeprefix("gather_plan: ").replace("index", name, 1)
            raise IndexError(f"index_plan: {text}") from None
        bounds = torch.arange(batches * size + 1, dtype=sorted_rows.dtype, device=index.device)
        offsets = torch.searchsorted(sorted_rows, bounds)
        parts += [order.to(dtype), offsets.to(dtype), *(each[order.long()] for each in rows)]
        if not wait or torch.compiler.is_compiling() or isinstance(offsets, FakeTensor):
            longest.append(-1)
        else:
            longest.append(int(offsets.diff().max()) if batches * size > 0 else 0)
    return IndexPlan(names, tuple(given), tuple(parts), tuple(longest), tuple(sizes), batch_dims)


index_plan.__module__ = "torch_ops.jit"


def _rows_of(index: Tensor, size: int) -> Tensor:
    """The rows that its entries name, counted over all batches."""
    entries = index.reshape(index.shape[:-1].numel(), index.shape[-1])
    first = torch.arange(entries.shape[0], device=index.device).unsqueeze(1) * size
    return (entries.clamp(0, max(size - 1, 0)) + first).flatten()
