"""Writes where a mask is true, under several transforms at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, vmap

import torch_ops

PLACES = {
    "mask": lambda mask: mask,
    "slice, mask": lambda mask: (slice(1, None), mask[0]),
    "integer, mask": lambda mask: (0, mask[0]),
}


@pytest.fixture
def drawn(device: torch.device) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, device=device, dtype=torch.float64)
    return x, torch.rand(3, 4, 5, device=device) > 0.5


def written(x: Tensor, mask: Tensor, place: Any, value: Any = 2.0) -> Tensor:
    """By torch's ops."""
    index = PLACES[place](mask)
    cut, condition = (x, index) if isinstance(index, Tensor) else (x[index[0]], index[1])
    new = torch.where(condition, torch.as_tensor(value, dtype=x.dtype, device=x.device), cut)
    if isinstance(index, Tensor):
        return new
    return torch.cat([x[:1], new] if place == "slice, mask" else [new[None], x[1:]])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("in_place", [False, True])
def test_nested(drawn: tuple[Tensor, Tensor], place: str, in_place: bool) -> None:
    x, masks = drawn

    def put(x: Tensor, mask: Tensor) -> Tensor:
        index = PLACES[place](mask)
        if in_place:
            return torch_ops.index_put_(x.clone(), index, 2.0)
        return torch_ops.index_put(x, index, 2.0)

    def theirs(x: Tensor, mask: Tensor) -> Tensor:
        return written(x, mask, place)

    def square(function: Any) -> Any:
        return lambda x, mask: (function(x, mask) ** 2).sum()

    for transform in (jacfwd, jacrev):
        result = vmap(transform(put))(x, masks)
        torch.testing.assert_close(result, vmap(transform(theirs))(x, masks))
    result = vmap(hessian(square(put)))(x, masks)
    torch.testing.assert_close(result, vmap(hessian(square(theirs)))(x, masks))
    if in_place:
        return  # one x for all masks
    result = vmap(lambda mask: vmap(lambda x: put(x, mask))(x))(masks)
    torch.testing.assert_close(result, vmap(lambda mask: vmap(lambda x: theirs(x, mask))(x))(masks))


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("place", PLACES)
def test_no_slow_batching_rule(drawn: tuple[Tensor, Tensor], place: str) -> None:
    x, masks = drawn
    value = torch.tensor(3.0, dtype=x.dtype, device=x.device)
    result = vmap(lambda x, m: torch_ops.index_put_(x.clone(), PLACES[place](m), value))(x, masks)
    torch.testing.assert_close(result, vmap(lambda x, m: written(x, m, place, value))(x, masks))
