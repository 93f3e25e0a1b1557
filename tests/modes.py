"""What the modes and the reductions mean, in NumPy; and random calls for property tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gathering import Case, gather_reference, scatter_add_reference
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

MODES = ("raise", "wrap", "clip", "fill", "unchecked")
REWRITING = ("wrap", "clip", "fill")
INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# Of each rank and kind of axes, and for CUDA's kernels that small calls reach.
CASES = [
    Case((5,), (7,)),
    Case((5, 3), (2, 4)),
    Case((2, 5, 3), (2, 6), batch_dims=1),
    Case((3, 5, 2), (4,), dim=1),
    Case((2, 3, 4, 2), (2, 5), dim=-2, batch_dims=1),
    Case((6, 16), (9,)),
    Case((6, 25), (40,)),
    Case((300,), (9,)),
    Case((5,), ()),
    Case((5, 0), (3,)),
]


def default_fill(dtype: torch.dtype) -> Any:
    """As jax.numpy.take documents it."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    info = torch.iinfo(dtype)
    return info.min if dtype.is_signed else info.max


def resolve(index: Tensor, size: int, mode: str) -> tuple[Tensor, Tensor]:
    """The rows that entries name, 0 where there is none, and where there is one."""
    entries = index.long()
    rows = entries
    if mode == "wrap":
        rows = torch.from_numpy(np.asarray(np.mod(entries.numpy(), max(size, 1))))
    elif mode == "clip":
        rows = torch.from_numpy(np.asarray(np.clip(entries.numpy(), 0, size - 1)))
    elif mode in ("fill", "from_end"):
        rows = torch.where(entries < 0, entries + size, entries)
    there = (rows >= 0) & (rows < size)
    return torch.where(there, rows, 0), there


def gather_by_mode(
    source: Tensor,
    index: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    fill_value: Any = None,
) -> Tensor:
    axis = (batch_dims if dim is None else dim) % source.dim()
    rows, there = resolve(index, source.shape[axis], mode)
    if source.shape[axis] == 0:  # filled, or there is no entry
        source = source.new_zeros(*source.shape[:axis], 1, *source.shape[axis + 1 :])
    output = gather_reference(source, rows, axis, batch_dims=batch_dims)
    # `there` with axes of length 1 for those that the index has not.
    shape = [*index.shape[:batch_dims], *[1] * (axis - batch_dims), *index.shape[batch_dims:]]
    shape += [1] * (output.dim() - len(shape))
    fill = default_fill(source.dtype) if fill_value is None else fill_value
    return torch.where(there.reshape(shape), output, torch.tensor(fill, dtype=source.dtype))


def scatter_add_by_mode(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    mode: str = "raise",
    deterministic: bool | None = None,
) -> Tensor:
    rank = values.dim() - (index.dim() - batch_dims) + 1
    axis = (batch_dims if dim is None else dim) % rank
    rows, there = resolve(index, dim_size, mode)
    # What is dropped goes to one row more.
    rows = torch.where(there, rows, dim_size)
    sums = scatter_add_reference(values, rows, dim_size + 1, axis, batch_dims=batch_dims)
    return sums.narrow(axis, 0, dim_size)


def scatter_reference(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    reduce: str = "sum",
    mode: str = "raise",
    deterministic: bool | None = None,
    correction: float = 1,
) -> Tensor:
    """Entry by entry, as the documentation says it."""
    if reduce in ("var", "std"):
        options: dict[str, Any] = {"dim": dim, "batch_dims": batch_dims, "mode": mode}
        mean, squares = (
            scatter_reference(each, index, dim_size, **options, reduce="mean")
            for each in (values, values**2)
        )
        counts = scatter_reference(torch.ones_like(values), index, dim_size, **options)
        variance = (squares - mean**2) * counts / (counts - correction).clamp_min(0)
        return variance.clamp_min(0).sqrt() if reduce == "std" else variance
    picked = index.dim() - batch_dims
    rank = values.dim() - picked + 1
    axis = (batch_dims if dim is None else dim) % rank
    rows, there = (part.numpy() for part in resolve(index, dim_size, mode))
    # Entries in front, after the batch axes; then the axes before dim, and those after it.
    given = np.moveaxis(
        values.numpy(),
        range(axis, axis + picked),
        range(batch_dims, batch_dims + picked),
    )
    shape = (*values.shape[:axis], dim_size, *values.shape[axis + picked :])
    start = {"sum": 0, "mean": 0, "prod": 1}.get(reduce, 0)
    result = np.full(shape, start, given.dtype)
    moved = np.moveaxis(result, axis, batch_dims)
    counts = np.zeros(moved.shape, np.int64)
    better = {"amax": np.maximum, "amin": np.minimum}
    for at in np.ndindex(*index.shape):
        if not there[at]:
            continue
        to = (*at[:batch_dims], rows[at])
        if reduce in better:
            first = counts[to] == 0
            moved[to] = np.where(first, given[at], better[reduce](moved[to], given[at]))
        elif reduce == "prod":
            moved[to] = moved[to] * given[at]
        else:
            moved[to] = moved[to] + given[at]
        counts[to] += 1
    if reduce == "mean":
        divide = np.floor_divide if given.dtype.kind in "iu" else np.true_divide
        moved[...] = divide(moved, np.maximum(counts, 1))
    return torch.from_numpy(result)


def gather_elements_by_mode(
    source: Tensor, index: Tensor, dim: int, *, mode: str = "raise", fill_value: Any = None
) -> Tensor:
    if index.numel() > 0 and (source.dim() == 0 or index.dim() == 0):
        flat = gather_elements_by_mode(
            source.reshape(-1), index.reshape(-1), 0, mode=mode, fill_value=fill_value
        )
        return flat.reshape(index.shape)
    if index.numel() == 0:  # of any rank
        return torch.empty(index.shape, dtype=source.dtype)
    axis = dim % source.dim()
    rows, there = resolve(index, source.shape[axis], mode)
    front = tuple(slice(None) if d == axis else slice(size) for d, size in enumerate(index.shape))
    if source.shape[axis] == 0:
        output = torch.zeros(index.shape, dtype=source.dtype)
    else:
        picked = np.take_along_axis(source[front].numpy(), rows.numpy(), axis)
        output = torch.from_numpy(picked)
    fill = default_fill(source.dtype) if fill_value is None else fill_value
    return torch.where(there, output, torch.tensor(fill, dtype=source.dtype))


def scatter_elements_add_by_mode(
    values: Tensor,
    index: Tensor,
    size: tuple[int, ...],
    dim: int,
    *,
    mode: str = "raise",
    deterministic: bool | None = None,
) -> Tensor:
    if index.numel() == 0:  # of any rank
        return torch.zeros(size, dtype=values.dtype)
    if index.dim() == 0 or len(size) == 0:
        flat = scatter_elements_add_by_mode(
            values.reshape(-1), index.reshape(-1), tuple(size) or (1,), 0, mode=mode
        )
        return flat.reshape(size)
    axis = dim % index.dim()
    rows, there = resolve(index, size[axis], mode)
    result = np.zeros(size, values.numpy().dtype)
    where = list(np.nonzero(there.numpy()))
    added = values.numpy()[tuple(where)]
    where[axis] = rows.numpy()[tuple(np.nonzero(there.numpy()))]
    np.add.at(result, tuple(where), added)
    return torch.from_numpy(result)


# ---- Random calls -------------------------------------------------------------------------------

sizes = st.integers(0, 5)
seeds = st.integers(0, 2**31)


def random_index(
    shape: tuple[int, ...], size: int, dtype: torch.dtype, mode: str, seed: int
) -> Tensor:
    """In range for the modes that ask for it, else up to twice beyond both ends.

    "from_end" is what "raise" means for the ops whose negative entries count from the end.
    """
    generator = torch.Generator().manual_seed(seed)
    if mode in ("raise", "unchecked"):
        return torch.randint(max(size, 1), shape, generator=generator).to(dtype)
    if mode == "from_end":
        least = 0 if dtype == torch.uint8 else -size
        return torch.randint(least, max(size, 1), shape, generator=generator).to(dtype)
    low = 0 if dtype == torch.uint8 else -2 * size - 2
    return torch.randint(low, 2 * size + 3, shape, generator=generator).to(dtype)


def entries_for(case: Case, device: torch.device, mode: str) -> Tensor:
    size = case.source[case.axis]
    index = random_index(case.index, size, torch.int64, mode, seed=len(case.source))
    if index.numel() > 3:
        ends = [-size - 1, -1, size] if mode in REWRITING else [0, size - 1, 0]
        index.view(-1)[:3] = torch.tensor(ends)
    return index.to(device)


def fits_mode(size: int, entries: int, mode: str) -> bool:
    """An axis of length 0 has no entries, but in mode fill."""
    return size > 0 or entries == 0 or mode == "fill"


def other_layout(tensor: Tensor, kind: int) -> Tensor:
    """The same values in other memory: as it is, with gaps, transposed, at an odd address."""
    if kind == 0 or tensor.dim() == 0:
        return tensor
    if kind == 1:
        wide = torch.empty(*tensor.shape, 2, dtype=tensor.dtype, device=tensor.device)
        wide[..., 1] = tensor
        return wide[..., 1]
    if kind == 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    flat[1:] = tensor.reshape(-1)
    return flat[1:].view(tensor.shape)


layouts = st.integers(0, 3)


@st.composite
def row_calls(draw: st.DrawFn, all_batched: bool = False) -> dict[str, Any]:
    """What gather, scatter_add and scatter take: shapes, an index, options.

    ``all_batched``: what batch_gather takes, whose index has one axis that is none of a batch.
    """
    index_shape = tuple(draw(st.lists(sizes, min_size=int(all_batched), max_size=3)))
    least = len(index_shape) - 1 if all_batched else 0
    batch_dims = draw(st.integers(least, least if all_batched else len(index_shape)))
    rest = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
    shape = index_shape[:batch_dims] + rest
    axis = draw(st.integers(batch_dims, batch_dims if all_batched else len(shape) - 1))
    given = draw(st.sampled_from([axis, axis - len(shape)]))
    dim = None if axis == batch_dims and draw(st.booleans()) else given
    mode = draw(st.sampled_from(MODES))
    entries = torch.Size(index_shape).numel()
    assume(fits_mode(shape[axis], entries, mode))
    dtype = draw(st.sampled_from(INDEX_DTYPES))
    index = random_index(index_shape, shape[axis], dtype, mode, draw(seeds))
    return {
        "case": Case(shape, index_shape, dim, batch_dims),
        "index": other_layout(index, draw(layouts)),
        "mode": mode,
        "layout": draw(layouts),
    }
