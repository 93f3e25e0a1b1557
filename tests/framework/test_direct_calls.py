"""Calls that go past torch.ops (src/common/torch/calls/python_call.h), and what they leave to it.

They are found in the modules, and the ops that they call in the tests of these. That a result is
right, and what PyTorch offers around a call, is tested with each op.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from op_checks import Op, assert_same
from support.registry import described
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode
from torch.utils import _pytree as pytree

import torch_ops
import torch_ops._ext

MODULES = [
    importlib.import_module(f"torch_ops._ext.{each.name}")
    for each in pkgutil.iter_modules(torch_ops._ext.__path__)
]
DIRECT = {
    f"{module.__name__.rpartition('.')[2]}.{name}": function
    for module in MODULES
    for name, function in vars(module).items()
    if name.startswith("call") and (function.__doc__ or "").startswith("torch_ops::")
}
OPS = {op.name: op for op in described()}
# Their arguments are those of the public functions.
INDEXING = {
    name: DIRECT.pop(f"index.{name}")
    for name in ("call_index", "call_index_put", "call_index_put_", "call_index_add")
}


class Subclass(Tensor):
    pass


def op_of(direct: Any) -> Op:
    return OPS[direct.__doc__.removeprefix("torch_ops::")]


def arguments_of(direct: Any, device: torch.device) -> Iterator[list[Any]]:
    """All arguments of the op in their order, of calls that it describes."""
    op = op_of(direct)
    for sample in op.samples(device, torch.float32):
        registered = op.registered(sample)
        if registered is None:
            continue
        given = [pytree.tree_map_only(Tensor, torch.clone, each) for each in registered.args]
        for argument in op.overload._schema.arguments[len(given) :]:
            given.append(registered.kwargs.get(argument.name, argument.default_value))
        # Of lists it is tuples that Python passes on.
        yield [tuple(each) if isinstance(each, list) else each for each in given]


def call_registered(direct: Any, given: list[Any]) -> Tensor:
    schema = op_of(direct).overload._schema.arguments
    given = [list(each) if isinstance(each, tuple) else each for each in given]
    args = [value for value, argument in zip(given, schema, strict=True) if not argument.kwarg_only]
    options = {
        argument.name: value
        for value, argument in zip(given, schema, strict=True)
        if argument.kwarg_only
    }
    return op_of(direct).overload(*args, **options)


def copied(given: list[Any]) -> list[Any]:
    return pytree.tree_map_only(Tensor, torch.clone, given)


def replaced(given: list[Any], at: int, by: Any) -> list[Any]:
    return [*given[:at], by, *given[at + 1 :]]


@pytest.fixture(params=sorted(DIRECT))
def direct(request: pytest.FixtureRequest) -> Any:
    return DIRECT[request.param]


@pytest.fixture
def given(direct: Any, device: torch.device) -> list[Any]:
    """Arguments that are taken."""
    for given in arguments_of(direct, device):
        if direct(*copied(given)) is not NotImplemented:
            return given
    pytest.fail("none of the op's samples is taken")


@pytest.mark.parametrize("name", sorted({*DIRECT, *(f"index.{name}" for name in INDEXING)}))
def test_a_function_has_its_name(name: str) -> None:
    module, name = name.split(".")
    function = getattr(importlib.import_module(f"torch_ops._ext.{module}"), name)
    assert function.__name__ == name


def test_the_result_is_that_of_torch_ops(direct: Any, device: torch.device) -> None:
    for given in arguments_of(direct, device):
        output = direct(*copied(given))
        if output is not NotImplemented:
            assert type(output) is Tensor
            # Not to the bit: some add on CUDA in no given order.
            expected = call_registered(direct, copied(given))
            torch.testing.assert_close(output, expected, equal_nan=True, msg=str(given))


def test_parameters_are_taken(direct: Any, given: list[Any]) -> None:
    def parameter(tensor: Tensor) -> Tensor:
        return nn.Parameter(tensor.clone(), requires_grad=False)

    output = direct(*pytree.tree_map_only(Tensor, parameter, given))
    torch.testing.assert_close(output, direct(*copied(given)), equal_nan=True)


def test_other_tensors_are_left(direct: Any, given: list[Any]) -> None:
    """Those of a subclass, which may want to see the call, and what is no tensor."""
    schema = op_of(direct).overload._schema.arguments
    for at, argument in enumerate(given):
        if isinstance(argument, Tensor):
            others = (argument.as_subclass(Subclass), argument.tolist(), 1, "rows")
            may_lack = isinstance(schema[at].type, torch.OptionalType)
            for other in others if may_lack else (*others, None):
                assert direct(*replaced(given, at, other)) is NotImplemented


def test_other_numbers_are_left(direct: Any, given: list[Any]) -> None:
    others: dict[type, tuple[Any, ...]] = {
        int: (np.int64(1), True, 2**63, -(2**63) - 1, "0", 1j),
        float: (np.float32(0.5), torch.tensor(0.5), "0", 1j),
        bool: (0, 1, np.bool_(True)),
        str: (0, None, b"raise", "\udc80"),
        tuple: (("4",), (np.int64(4), 3), [4, 3], 1.0),
    }
    for at, argument in enumerate(given):
        for other in others.get(type(argument), ()):
            assert direct(*replaced(given, at, other)) is NotImplemented


def test_a_mode_sees_the_registered_op(direct: Any, given: list[Any]) -> None:
    with BaseTorchFunctionMode():
        assert direct(*given) is NotImplemented


def test_the_number_of_arguments(direct: Any, given: list[Any]) -> None:
    for wrong in (given[:-1], [*given, None], []):
        message = f"number must be {len(given)}, but it is {len(wrong)}"
        with pytest.raises(TypeError, match=message):
            direct(*wrong)


# ---- index and its writes ------------------------------------------------------------------------

INDICES = [
    (1, True),
    (slice(None, -1), True),
    (None, True),
    (..., True),
    ((slice(1, None), slice(None, None, 2)), True),
    ((..., None, 0), True),
    ((), True),
    (True, True),
    ((False, slice(None), 0), True),
    (np.int64(1), True),
    ((np.int32(-1), torch.tensor([1])), True),
    ((np.int32(4), torch.tensor([1])), False),
    (np.array(1), False),
    (np.bool_(True), False),
    ((slice(np.int64(1), None), torch.tensor([1])), False),
    ([0, 1], True),
    ([], True),
    ([True, False, True, True], False),
    ([[0], [1]], False),
    ([0, 4.0], False),
    ((0, [1, -1]), True),
    ((0, torch.tensor([1])), True),
    ((torch.tensor([1]), -3), True),
    ((torch.tensor([1]), 3), False),
    ((torch.tensor([1]), 2**70), False),
    (torch.tensor(True), False),
    ((..., ...), False),
    (4, False),
    ((0, 0, 0), False),
    ((torch.tensor([1]), ..., ...), False),
    ((torch.tensor([1]), 0, 0), False),
    (torch.tensor([1, -1]), True),
    (torch.tensor([True, False, True, True]), True),
    ((torch.tensor([1, -1]), torch.tensor([2])), True),
    ((slice(None), torch.tensor([1, -1])), True),
    ((torch.tensor([1, -1]), slice(None)), True),
    ((slice(None), torch.tensor([[True, False, True]])[0]), True),
    ((slice(1, None), torch.tensor([1, -1])), True),
    ((torch.tensor([1]), slice(None, None, -1)), False),
    ((torch.tensor([1, -1]), None, torch.tensor([0, 1])), True),
    ((..., torch.tensor([1, -1])), True),
    ((None, ..., torch.tensor([1, -1]), None), True),
    ((torch.tensor([1, -1]), torch.tensor([[True, False, True]])), False),
    (torch.tensor([1]).as_subclass(Subclass), False),
    ((0, torch.tensor([1]).as_subclass(Subclass)), False),
]


def call_indexing(name: str, source: Tensor, indices: Any, values: Any = 1) -> Any:
    writes = () if name == "call_index" else (values, False, None)
    return INDEXING[name](source, indices, *writes)


@pytest.mark.parametrize("name", INDEXING)
@pytest.mark.parametrize(("indices", "taken"), INDICES, ids=lambda each: str(each))
def test_indices(name: str, indices: Any, taken: bool, device: torch.device) -> None:
    """What is left to Python: errors, and what is not one of Python's own types or a tensor."""
    source = torch.arange(12, device=device).view(4, 3)
    indices = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), indices)
    output = call_indexing(name, source.clone(), indices, -1)
    assert (output is not NotImplemented) == taken
    if not taken:
        return
    expected = source[indices]
    if name == "call_index":
        assert output._is_view() == expected._is_view()
    else:
        expected = source.clone()
        expected[indices] = -1
    assert_same(output, expected, "values")


@pytest.mark.parametrize("name", INDEXING)
def test_other_arguments_are_left(name: str, device: torch.device) -> None:
    source = torch.zeros(4, 3, device=device)
    index = torch.tensor([1], device=device)
    for other in (source.as_subclass(Subclass), [[1.0]], None):
        assert call_indexing(name, other, index) is NotImplemented
    with BaseTorchFunctionMode():
        assert call_indexing(name, source, index) is NotImplemented
    parameter = nn.Parameter(source, requires_grad=False)
    assert (
        call_indexing(name, parameter, nn.Parameter(index, requires_grad=False))
        is not NotImplemented
    )
    direct = INDEXING[name]
    with pytest.raises(TypeError, match=r"number must be \d, but it is 1"):
        direct(source)
    if name == "call_index":
        return
    for values in (source[0].as_subclass(Subclass), [1.0], np.float32(1), 1j, 2**63, "1", None):
        assert call_indexing(name, source, index, values) is NotImplemented
    for values in (1, 1.5, True, nn.Parameter(source[0], requires_grad=False)):
        assert call_indexing(name, source, index, values) is not NotImplemented
    for rest in ((0, None), (np.bool_(True), None), (True, 1), (None, None)):
        assert direct(source, index, 1.0, *rest) is NotImplemented


def test_a_step_backwards() -> None:
    with pytest.raises(
        ValueError, match=r"^index: the step of a slice must be 1 or more, but it is -1"
    ):
        torch_ops.index(torch.ones(3), slice(None, None, -1))
