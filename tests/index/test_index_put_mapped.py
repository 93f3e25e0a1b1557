"""index_put and index_add under torch.vmap and its like, also by a mask; of tensor subclasses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gathering import values_for
from indices import check_vmap
from torch import Tensor
from torch.func import hessian, jacfwd, jacrev, vmap
from torch.testing._internal.two_tensor import TwoTensor

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


# ---- by arrays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("put", [torch_ops.index_put, torch_ops.index_add])
def test_vmap(put: Callable[..., Tensor], device: torch.device) -> None:
    values = values_for((3, 2, 5), device, torch.float32)
    i = torch.tensor([[0, -1], [2, 1], [1, 0]], device=device)
    big = values_for((3, 4, 3, 5), device, torch.float32)
    for place in (torch.tensor(1, device=device), 1, [1]):  # an integer makes a view

        def write(s: Tensor, a: Tensor, v: Tensor, place: Any = place) -> Tensor:
            return put(s, (a, place), v)

        for dims in [(0, 0, 0), (None, 0, None), (0, None, 0), (None, None, 0)]:
            check_vmap(write, dims, (big, i, values))


@pytest.mark.parametrize("place", [slice(None), [2, 0]], ids=str)
def test_batched_second_derivatives(place: Any, device: torch.device) -> None:
    """vectorize=True maps the older vmap over itself."""
    x = values_for((3, 4, 2), device, torch.float64)
    pick = (torch.tensor([0, 2], device=device), place, torch.tensor([1, 0], device=device))

    def read(x: Tensor) -> Tensor:
        return (torch_ops.index(x, pick) ** 3).sum()

    def write(x: Tensor) -> Tensor:
        return (torch_ops.index_put(x, pick, x[0, 1, 0] ** 2) ** 3).sum()

    def write_to_copy(x: Tensor) -> Tensor:
        return (torch_ops.index_put_(x * 2, pick, x[0, 1, 0] ** 2) ** 3).sum()

    for function in (read, write, write_to_copy):
        hessian = torch.autograd.functional.hessian(function, x, vectorize=True)
        torch.testing.assert_close(hessian, torch.autograd.functional.hessian(function, x))


def test_vmap_in_a_graph(device: torch.device) -> None:
    source = values_for((4, 3, 5), device, torch.float32)
    values = values_for((3, 5), device, torch.float32)
    i = torch.tensor([0, 2], device=device)

    def write(v: Tensor) -> Tensor:
        return torch_ops.index_put(source, (i, slice(1, None), 1), v)

    expected = torch.stack([write(v) for v in values[:, 0]])
    compiled = torch.compile(torch.vmap(write), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(values[:, 0]), expected)


@pytest.mark.parametrize("where", ["array", "arrays", "slice", "number"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("subclass", ["values", "index"])
def test_a_subclass_among_plain_tensors(
    device: torch.device, where: str, accumulate: bool, subclass: str
) -> None:
    """The result is of the subclass, as that of torch, and each of its two tensors is right."""
    source = torch.zeros(5, 2, device=device)
    rows = TwoTensor(*(torch.tensor(n, device=device) for n in ([2, 1], [0, 4])))
    sums = TwoTensor(*(torch.tensor(n, device=device) for n in ([1.0, 2.0], [10.0, 20.0])))
    if subclass == "values":
        index, values, parts = rows.a, sums, [(rows.a, sums.a), (rows.a, sums.b)]
    else:
        index, values, parts = rows, sums.a, [(rows.a, sums.a), (rows.b, sums.a)]
    at = {
        "array": lambda i: i,
        "arrays": lambda i: (i, i * 0),
        "slice": lambda i: (i, slice(0, 1)),
        "number": lambda i: (i, 1),
    }[where]

    def put(i: Tensor, v: Tensor) -> Tensor:
        v = v[:, None] if where in ("array", "slice") else v
        return torch_ops.index_put(source, at(i), v, accumulate)

    result = put(index, values)
    assert isinstance(result, TwoTensor)
    for part, (i, v) in zip((result.a, result.b), parts, strict=True):
        assert torch.equal(part, put(i, v))
    assert not source.any()
