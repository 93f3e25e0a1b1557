"""Indices, and what NumPy reads and writes there, for index and its writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gathering import bad_index, values_for
from op_checks import Sample
from torch import Tensor


def as_numpy(indices: Any) -> Any:
    if isinstance(indices, tuple):
        return tuple(as_numpy(item) for item in indices)
    return indices.cpu().numpy() if isinstance(indices, Tensor) else indices


def reference(source: Tensor, indices: Any) -> Tensor:
    return torch.from_numpy(np.array(source.numpy()[as_numpy(indices)]))


def put_reference(source: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    result = source.numpy().copy()
    values = values.numpy() if isinstance(values, Tensor) else values
    if accumulate:
        while np.ndim(values) > result[as_numpy(indices)].ndim:  # as an assignment does by itself
            values = values[0]
        np.add.at(result, as_numpy(indices), values)
    else:
        result[as_numpy(indices)] = values
    return torch.from_numpy(result)


def add_reference(source: Tensor, indices: Any, values: Any) -> Tensor:
    return put_reference(source, indices, values, True)


def indices_for(shape: tuple[int, ...], device: torch.device) -> Iterator[Any]:
    """Indices for a source of three axes, of 5, 4 and 3."""
    a = torch.tensor([4, 0, -1, 2], device=device)
    b = torch.tensor([[1], [-4]], device=device)
    c = torch.tensor([2, -3, 0, 1], device=device, dtype=torch.int32)
    everything = slice(None)
    yield a
    yield (everything, c)
    yield (..., c.clamp(min=-3))
    yield (a, b)
    yield (everything, b, c.clamp(max=2))
    yield (a, everything, c.clamp(max=2))
    yield (a, c, torch.tensor(1, device=device))
    yield (slice(1, None, 2), None, torch.tensor([1, 1], device=device))
    yield (1, c)
    yield (1, everything, c.clamp(max=2))
    yield (b, 2, ...)
    yield a[:0]


def distinct(indices: Any, shape: tuple[int, ...]) -> bool:
    """Is no place named twice? Else what is written is not defined."""
    places = np.arange(np.prod(shape)).reshape(shape)[as_numpy(indices)]
    return np.unique(places).size == places.size


def sized(device: torch.device, size: int) -> Sample:
    source = values_for((size + 1, 4, size), device, torch.float32)
    a = torch.arange(size + 1, device=device)
    return Sample((source, (a, slice(None), a % size)))


def bad(device: torch.device) -> Iterator[Sample]:
    source = values_for((5, 4, 3), device, torch.float32)
    a = torch.tensor([4, 0, -1], device=device)
    for index in bad_index(a.clone(), -6):
        yield Sample((source, index))
        yield Sample((source, (index, slice(None), a.clamp(max=2))))
    yield Sample((source, (a, a[:2])))


def for_registered(sample: Sample) -> Sample | None:
    """The op itself takes index arrays alone; and opcheck no mask, for what follows from data."""
    indices = sample.args[1]
    items = list(indices) if isinstance(indices, tuple) else [indices]
    fits = all(isinstance(item, Tensor) and item.dtype != torch.bool for item in items)
    if not fits or sample.args[0].dim() > 3:
        return None
    return Sample((sample.args[0], items, *sample.args[2:]), sample.kwargs)


def check_vmap(
    call: Callable[..., Tensor], dims: tuple[int | None, ...], stacked: tuple[Tensor, ...]
) -> None:
    """``stacked`` has three samples of each argument; those that are not mapped over have one."""
    args = [x[0] if d is None else x for x, d in zip(stacked, dims, strict=True)]
    samples_of = [
        [x if d is None else x[n] for x, d in zip(args, dims, strict=True)] for n in range(3)
    ]
    expected = torch.stack([call(*sample) for sample in samples_of])
    assert torch.equal(torch.vmap(call, in_dims=dims)(*args), expected), dims
