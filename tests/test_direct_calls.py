"""Calls that go past torch.ops (src/common/python_call.h): what they take, what they leave to it.

That results, derivatives and errors are the same is tested with each op; tests/test_support.py has
what PyTorch offers around a call.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

import torch_ops


class Subclass(Tensor):
    pass


def replaced(given: tuple[Any, ...], at: int, by: Any) -> tuple[Any, ...]:
    return (*given[:at], by, *given[at + 1 :])


def direct_calls(device: torch.device) -> Iterator[Any]:
    """Yields (module, function, all of its arguments)."""
    rows = torch.arange(12.0, device=device).view(4, 3)
    pick = torch.tensor([3, 0], device=device)
    plan = torch_ops.gather_plan(pick, 4)
    of_plan = (plan.index, plan.rows, plan.order, plan.dim_size, plan.dim, plan.batch_dims)
    yield "gather", "call", (rows, pick, None, 0, "raise", None)
    yield "gather", "call_batch", (rows, pick, "raise", None)
    yield "gather", "call_by_plan", (rows, *of_plan)
    full = torch.zeros(4, 3, dtype=torch.int64, device=device)
    yield "gather", "call_elements", (rows, full, 0, "fill", 0.5)
    yield "gather", "call_take_along_dim", (rows, full, 0, "raise", None)
    yield "scatter", "call", (rows[:2], pick, 4, None, 0, None, "raise")
    yield "scatter", "call_by_plan", (rows[:2], *of_plan)
    yield "scatter", "call_elements", (rows, full, (4, 3), 0, True, "raise")
    yield "scatter", "call_reduce", (rows[:2], pick, 4, 0, 0, "amax", "raise", None)
    yield "scatter", "call_inplace", (rows.clone(), rows[:2], pick, 0, 0, "raise")
    yield "index", "call_index", (rows, (pick, pick[1:]))
    yield "index", "call_index_put", (rows, (pick,), rows[:2], False, False, None, None)
    yield "index", "call_index_put_", (rows.clone(), (pick,), rows[:2], False, False, None, None)
    yield "index", "call_gather_nd", (rows, pick[:, None], 0, "raise", None)
    yield "index", "call_masked_gather", (rows, rows[:, 0] > 3, 2, 1)
    yield "embedding", "call", (pick, rows, 0, False, False, 0, 0)
    yield "relu", "call_relu", (rows, True)
    yield "relu", "call_relu_", (rows.clone(), False)
    yield "relu", "call_leaky_relu", (rows, 0.5, True)
    yield "relu", "call_leaky_relu_", (rows.clone(), 0.5, False)
    yield "sigmoid", "call", (rows,)
    yield "sigmoid", "call_inplace", (rows.clone(),)


MODULES = ["embedding", "gather", "index", "relu", "scatter", "sigmoid"]
NAMES = [f"{module}.{name}" for module, name, _ in direct_calls(torch.device("cpu"))]


@pytest.fixture(params=NAMES)
def direct(request: pytest.FixtureRequest, device: torch.device) -> tuple[Any, tuple[Any, ...]]:
    module, name, given = list(direct_calls(device))[NAMES.index(request.param)]
    return getattr(importlib.import_module(f"torch_ops._ext.{module}"), name), given


def test_all_of_them_are_here() -> None:
    found = {
        f"{module}.{name}"
        for module in MODULES
        for name in vars(importlib.import_module(f"torch_ops._ext.{module}"))
        if name.startswith("call")
    }
    assert found == set(NAMES)


def test_plain_arguments_are_taken(direct: Any) -> None:
    call, given = direct
    output = call(*given)
    assert type(output) is Tensor
    if call.__name__[-1] != "_" and "inplace" not in call.__name__:
        parameters = [
            nn.Parameter(each, requires_grad=False) if isinstance(each, Tensor) else each
            for each in given
        ]
        assert torch.equal(call(*parameters), output)


def test_other_tensors_are_left(direct: Any) -> None:
    """Those of a subclass, which may want to see the call, and what is no tensor."""
    call, given = direct
    for at, argument in enumerate(given):
        if isinstance(argument, Tensor):
            for other in (argument.as_subclass(Subclass), argument.tolist(), None, 1, "rows"):
                if call.__name__ != "call_index" or at == 0:
                    assert call(*replaced(given, at, other)) is NotImplemented


def test_what_is_no_plain_number_is_left(direct: Any) -> None:
    call, given = direct
    others: dict[type, tuple[Any, ...]] = {
        int: (np.int64(1), True, 2**63, -(2**63) - 1, "0", 1j),
        float: (np.float32(0.5), torch.tensor(0.5), "0", 1j),
        bool: (0, 1, np.bool_(True)),
        str: (0, None, b"raise", "\udc80"),
        tuple: (("4",), (np.int64(4), 3), [4, 3], 1.0),
    }
    for at, argument in enumerate(given):
        for other in others.get(type(argument), ()):
            assert call(*replaced(given, at, other)) is NotImplemented


def test_modes_see_the_registered_op(direct: Any) -> None:
    call, given = direct
    with BaseTorchFunctionMode():
        assert call(*given) is NotImplemented


def test_the_number_of_arguments(direct: Any) -> None:
    call, given = direct
    for wrong in (given[:-1], (*given, None), ()):
        with pytest.raises(TypeError, match=f"all {len(given)} arguments, but {len(wrong)} were"):
            call(*wrong)


def test_out_of_int64(device: torch.device) -> None:
    """As torch.ops says it."""
    source, index = torch.ones(2, 3, device=device), torch.zeros(1, dtype=torch.long, device=device)
    with pytest.raises((RuntimeError, ValueError, TypeError), match=r"(?i)overflow|too large|int"):
        torch_ops.gather(source, index, 2**70)


INDICES = [
    (1, True),
    (slice(None, -1), True),
    (None, True),
    (..., True),
    ((slice(1, None), slice(None, None, 2)), True),
    ((..., None, 0), True),
    ((), True),
    (True, False),
    (np.int64(1), False),
    ([0, 1], False),
    ((0, torch.tensor([1])), False),
    (torch.tensor(True), False),
    ((..., ...), False),
    (4, False),
    ((0, 0, 0), False),
]


@pytest.mark.parametrize(("indices", "taken"), INDICES, ids=lambda each: str(each))
def test_indices(indices: Any, taken: bool) -> None:
    """What makes a view is torch's own; of the rest arrays and masks are taken, with no others."""
    from torch_ops._ext.index import call_index

    source = torch.arange(12).view(4, 3)
    output = call_index(source, indices)
    assert (output is not NotImplemented) == taken
    if taken:
        assert torch.equal(output, source[indices])
        assert output.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


def test_a_step_backwards() -> None:
    with pytest.raises(ValueError, match="step must be greater than zero"):
        torch_ops.index(torch.ones(3), slice(None, None, -1))
