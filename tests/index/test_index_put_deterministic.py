"""index_put of several values to one place under torch.use_deterministic_algorithms(True)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gathering import values_for
from indices import as_numpy, put_reference
from torch import Tensor
from torch.utils import _pytree as pytree

import torch_ops


@pytest.fixture
def deterministic() -> Iterator[None]:
    """And with several threads, which would write in any order."""
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def many(length: int, *shape: int) -> Tensor:
    torch.manual_seed(length)
    return torch.randint(-length, length, shape)


@pytest.mark.parametrize(
    ("shape", "indices", "values"),
    [
        ((9,), many(9, 40000), None),
        ((9, 3, 5), many(9, 200, 100), None),
        ((9, 3, 5), (many(9, 300), many(3, 100, 1)), None),
        ((9, 3, 5), (many(9, 20000), slice(None), many(5, 20000)), None),
        ((9, 3, 5), (slice(2, None), many(3, 3000)), None),
        ((9, 3, 5), (many(9, 40000), None, 1), None),
        ((9, 3, 5), (many(9, 40000), 2, slice(None, None, 2)), (40000, 1)),
        ((9, 3, 5), (many(9, 40000), ...), (5,)),
        ((40000, 3), (many(9, 40000) > 0, many(3, 1)), None),
        ((2,) * 17, tuple(many(2, 17, 40000)), None),
    ],
    ids=range(10),
)
@pytest.mark.parametrize(
    "put", [torch_ops.index_put, lambda x, *write: torch_ops.index_put_(x.clone(), *write)]
)
def test_the_last_value_in_the_deterministic_mode(
    put: Callable[..., Tensor],
    shape: tuple[int, ...],
    indices: Any,
    values: tuple[int, ...] | None,
    device: torch.device,
    deterministic: None,
) -> None:
    """Of several for one place, as NumPy's assignment writes."""
    source = values_for(shape, torch.device("cpu"), torch.float32)
    written = values or np.zeros(shape)[as_numpy(indices)].shape
    rows = values_for(written, torch.device("cpu"), torch.float32, seed=1)
    expected = put_reference(source, indices, rows)
    at = pytree.tree_map_only(Tensor, lambda t: t.to(device), (source, indices, rows))
    for _ in range(3):
        assert torch.equal(put(*at).cpu(), expected)


def test_the_last_value_of_each_sample(device: torch.device, deterministic: None) -> None:
    source = values_for((2, 3, 9), device, torch.float32)
    index = many(9, 2, 20000).to(device)
    rows = values_for((2, 3, 20000), device, torch.float32, seed=1)
    expected = torch.stack(
        [
            put_reference(x.cpu(), (slice(None), i), y.cpu())
            for x, i, y in zip(source, index, rows, strict=True)
        ]
    )
    actual = torch.vmap(lambda x, i, y: torch_ops.index_put(x, (slice(None), i), y))(
        source, index, rows
    )
    assert torch.equal(actual.cpu(), expected)
    shared = torch.vmap(lambda x, y: torch_ops.index_put(x, (slice(None), index[0]), y))
    assert torch.equal(shared(source, rows)[0].cpu(), expected[0])
