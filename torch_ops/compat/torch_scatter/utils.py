"""Where the entries of an index go, as torch_scatter broadcasts it."""

import torch
from torch import Tensor


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """Returns the index ``src`` expanded to the shape of ``other``, for an operation along ``dim``.

    An index of one axis lies along ``dim``; one of several begins at the first axis of ``other``,
    and is repeated along the axes that it lacks.

    Args:
        src: The index.
        other: The tensor whose shape it gets.
        dim: The axis of ``other``; negative counts from the end.
    """
    if dim < 0:
        dim = other.dim() + dim
    if src.dim() == 1:
        for _ in range(dim):
            src = src.unsqueeze(0)
    while src.dim() < other.dim():
        src = src.unsqueeze(-1)
    return src.expand(other.size())


def target(name: str, src: Tensor, index: Tensor, dim: int) -> tuple[Tensor, int, int, bool]:
    """How torch_ops says that the entries of ``index``, broadcast to ``src``, name places on dim.

    Returns the index, batch_dims, dim counted from the front, and whether an entry is for a row:
    for all axes after dim. Where it is for a single element, the index has the shape of ``src``.
    """
    rank = src.dim()
    axis = dim + rank if dim < 0 else dim
    fits = 0 < index.dim() <= rank
    if fits and (axis < 0 or axis >= rank):
        raise IndexError(
            f"{name}: dim must be between {-rank} and {rank - 1} for src with shape "
            f"{src.size()}, but it is {dim}."
        )
    aligned = index
    if fits:
        if index.dim() == 1:
            for _ in range(axis):
                aligned = aligned.unsqueeze(0)
        for d in range(aligned.dim()):
            fits = fits and (aligned.size(d) == src.size(d) or aligned.size(d) == 1)
    if not fits:
        raise ValueError(
            f"{name}: index must broadcast to src: one axis as long as src's at dim, or axes that "
            f"are as long as src's first ones, or 1. But index has shape {index.size()}, src has "
            f"{src.size()} and dim is {dim}."
        )
    while aligned.dim() < rank:
        aligned = aligned.unsqueeze(-1)
    # An axis along which the index repeats has one entry to read, and no axis to keep.
    rows = True
    for d in range(axis + 1, rank):
        rows = rows and repeats(aligned, d)
    if not rows:
        return aligned.expand(src.size()), axis, axis, False
    for _ in range(axis + 1, rank):
        aligned = aligned.select(-1, 0)
    shared = True
    for d in range(axis):
        shared = shared and repeats(aligned, d)
    if shared:
        for _ in range(axis):
            aligned = aligned.select(0, 0)
        return aligned.expand(src.size(axis)), 0, axis, True
    return aligned.expand(src.size()[: axis + 1]), axis, axis, True


def repeats(index: Tensor, dim: int) -> bool:
    """Whether all entries along an axis are one."""
    return index.size(dim) == 1 or (index.size(dim) > 1 and index.stride(dim) == 0)


def size_along(index: Tensor, dim_size: int | None) -> int:
    """What is given, or one more than the largest entry, for which the call waits."""
    if dim_size is not None:
        return dim_size
    return number_in(index.max()) + 1 if index.numel() > 0 else 0


def number_in(entry: Tensor) -> int:
    """A tensor's one number; while torch.export traces the call, a symbol."""
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        return int(entry)
    else:
        number: int = entry.item()  # type: ignore[assignment]
        return number


def check_out(name: str, out: Tensor, src: Tensor, dim: int, size: int) -> Tensor:
    """``out``, if it has the dtype of ``src``, and its shape but for the size at ``dim``."""
    expected = list(src.size())
    expected[dim] = size
    if list(out.size()) != expected:
        raise ValueError(
            f"{name}: out must have shape {expected}, that of src except along axis {dim}, but its "
            f"shape is {list(out.size())}."
        )
    if out.dtype != src.dtype:
        raise TypeError(
            f"{name}: out must have the dtype of src, {src.dtype}, but it has {out.dtype}."
        )
    return out


def size_of_out(name: str, out: Tensor, src: Tensor, dim: int) -> int:
    """How long ``out`` is at ``dim``, if it fits ``src`` otherwise."""
    size = out.size(dim) if out.dim() == src.dim() else src.size(dim)
    return check_out(name, out, src, dim, size).size(dim)


def size_of_result(
    name: str, src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None
) -> int:
    """How long the result is at ``dim``."""
    return size_along(index, dim_size) if out is None else size_of_out(name, out, src, dim)


def pick(source: Tensor, index: Tensor, batch_dims: int, dim: int, rows: bool) -> Tensor:
    """For each value what ``source`` has at its place, by what `target` returns."""
    if rows:
        return torch.ops.torch_ops.gather(source, index, dim, batch_dims=batch_dims)
    return torch.ops.torch_ops.gather_elements(source, index, dim)


def like_rows(counts: Tensor, rank: int, dim: int, batch_dims: int) -> Tensor:
    """Gives what has an entry for each row the axes, of length 1, that broadcast it to rows."""
    for _ in range(batch_dims, dim):
        counts = counts.unsqueeze(batch_dims)
    while counts.dim() < rank:
        counts = counts.unsqueeze(-1)
    return counts


def check_floating(name: str, src: Tensor) -> None:
    """Raises for integers, as torch_scatter does."""
    if not src.is_floating_point():
        raise ValueError(f"{name}: src must be of a floating dtype, but it is {src.dtype}.")
