"""Kernels get subclasses of Tensor, and return what torch's own functions would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_ops.jit import ElementwiseKernel, IndexedKernel, ReductionKernel

ADD = ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")
TWO = ElementwiseKernel("T x", "T y, T z", "y = x + 1; z = 2 * x", "two")
SUM = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, "total")
PICK = IndexedKernel("T x[src]", "T out", "out = 2 * x", "pick")


class Tagged(Tensor):
    """With the default __torch_function__, by which results are Tagged."""


class Logged(Tensor):
    seen: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "elementwise": lambda x: ADD(x, x.sin()),
    "a number": lambda x: ADD(x, 2.5),
    "in second place": lambda x: ADD(torch.ones_like(x.detach().as_subclass(Tensor)), x),
    "two outputs": TWO,
    "reduction": lambda x: SUM(x, dim=1),
    "indexed": lambda x: PICK(x, src=torch.tensor([2, 0, 1, 2], device=x.device)),
}


def results_of(call: Callable[[Tensor], Any], x: Tensor) -> tuple[Tensor, ...]:
    results = call(x)
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", CALLS)
def test_results_are_of_the_subclass(name: str, device: torch.device) -> None:
    call = CALLS[name]
    plain = torch.rand(3, 4, dtype=torch.float64, device=device)
    tagged = plain.as_subclass(Tagged)
    for result, wanted in zip(results_of(call, tagged), results_of(call, plain), strict=True):
        assert type(result) is Tagged
        assert type(wanted) is Tensor
        assert torch.equal(result.as_subclass(Tensor), wanted)
    if name != "reduction":
        leaf = plain.clone().as_subclass(Tagged).requires_grad_()
        (grad,) = torch.autograd.grad(results_of(call, leaf)[0].square().sum(), leaf)
        other = plain.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(results_of(call, other)[0].square().sum(), other)
        assert torch.equal(grad.as_subclass(Tensor), wanted)


def test_a_subclass_in_an_index(device: torch.device) -> None:
    x, index = torch.rand(3, 4, device=device), torch.tensor([2, 0], device=device)
    result = PICK(x, src=index.as_subclass(Tagged))
    assert type(result) is type(torch.index_select(x, 0, index.as_subclass(Tagged))) is Tagged
    assert torch.equal(result.as_subclass(Tensor), 2 * x[index])


@pytest.mark.parametrize("name", CALLS)
def test_parameters_give_tensors(name: str, device: torch.device) -> None:
    parameter = torch.nn.Parameter(torch.rand(3, 4, device=device), requires_grad=False)
    for result in results_of(CALLS[name], parameter):
        assert type(result) is Tensor


@pytest.mark.parametrize("name", CALLS)
def test_what_is_seen(name: str, device: torch.device) -> None:
    """The registered op, by the subclass as by a mode, once."""

    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    x = torch.rand(3, 4, device=device)
    with Mode():
        CALLS[name](x)
    Logged.seen = []
    CALLS[name](x.as_subclass(Logged))
    for names in (seen, Logged.seen):
        assert len([each for each in names if each.startswith("torch_ops_jit.")]) == 1


def test_outputs_that_are_given(device: torch.device) -> None:
    """Are what is returned, of whatever class they are."""
    tagged = torch.rand(3, device=device).as_subclass(Tagged)
    plain = torch.empty(3, device=device)
    assert ADD(tagged, 1.0, out=plain) is plain
    assert torch.equal(plain, tagged.as_subclass(Tensor) + 1)
    other = torch.empty(3, device=device).as_subclass(Tagged)
    assert ADD(plain, -1.0, other) is other


def test_errors_are_the_same(device: torch.device) -> None:
    x = torch.rand(3, device=device).as_subclass(Tagged)
    calls: list[Callable[[], Any]] = [
        lambda: ADD(x),
        lambda: ADD(x, None),
        lambda: ADD(x, torch.rand(4, device=device)),
        lambda: SUM(x, dim=3),
        lambda: PICK(x),
        lambda: PICK(x, src=torch.rand(3, device=device)),
    ]
    for call in calls:
        with pytest.raises(Exception) as of_subclass:
            call()
        tagged, x = x, x.as_subclass(Tensor)
        with pytest.raises(Exception) as of_plain:
            call()
        x = tagged
        assert of_subclass.type is of_plain.type
        assert str(of_subclass.value) == str(of_plain.value)


def test_calls_without_a_tensor() -> None:
    """Which no backend's key leads to: in compiled code, and where torch.device is a mode."""
    square = ElementwiseKernel("T x", "T y", "y = x * x", "square_of_a_number")
    count = ElementwiseKernel("", "float32 y", "y = i", "count")
    with torch.device("cpu"):
        assert square(3.0).item() == 9
        assert count(size=3).tolist() == [0, 1, 2]

    def call(x: Tensor) -> Tensor:
        return x + count(size=x.shape[0]) + square(3.0)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert compiled(torch.zeros(3)).tolist() == [9, 10, 11]
