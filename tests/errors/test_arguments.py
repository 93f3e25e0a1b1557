"""Arguments that are of no kind that is allowed: each error names function, argument and kinds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from op_checks import Op
from support.registry import functional_activations
from torch import Tensor

import torch_ops

# The message, and a call with a source of shape [4, 3] and an index of two entries.
CALLS: list[tuple[str, Callable[[Any, Any], object]]] = [
    ("gather: source must be a tensor, but None was given", lambda s, i: torch_ops.gather(None, i)),
    ("gather: index must be a tensor, but None was given", lambda s, i: torch_ops.gather(s, None)),
    (
        "gather: index must be a tensor, but an ndarray was given",
        lambda s, i: torch_ops.gather(s, np.array([0])),
    ),
    (
        "gather: dim must be an int or None, but a str was given",
        lambda s, i: torch_ops.gather(s, i, "0"),
    ),
    (
        "gather: dim must be an int or None, but a float was given",
        lambda s, i: torch_ops.gather(s, i, 1.0),
    ),
    (
        "gather: batch_dims must be an int, but None was given",
        lambda s, i: torch_ops.gather(s, i, batch_dims=None),
    ),
    (
        "batch_gather: index must be a tensor, but a tuple was given",
        lambda s, i: torch_ops.batch_gather(s, (0, 1)),
    ),
    (
        "gather_elements: dim must be an int, but None was given",
        lambda s, i: torch_ops.gather_elements(s, i[:, None], None),
    ),
    (
        "take_along_dim: dim must be an int or None, but a list was given",
        lambda s, i: torch_ops.take_along_dim(s, i[:, None], [0]),
    ),
    (
        "gather_nd: batch_dims must be an int, but a str was given",
        lambda s, i: torch_ops.gather_nd(s, i[:, None], "1"),
    ),
    (
        "softmax: index must be a tensor, but an int was given. torch_ops.softmax takes "
        "(values, index, dim_size, dim)",
        lambda s, i: torch_ops.softmax(s, 0),
    ),
    (
        "segment_reduce: offsets must be a tensor, but a str was given. torch_ops.segment_reduce "
        "takes (values, offsets, reduce)",
        lambda s, i: torch_ops.segment_reduce(s, "sum", i),
    ),
    (
        "gather_plan: dim_size must be an int, but None was given",
        lambda s, i: torch_ops.gather_plan(i, None),
    ),
    (
        "gather_plan: dim must be an int or None, but a str was given",
        lambda s, i: torch_ops.gather_plan(i, 4, dim="rows"),
    ),
    (
        "plan_cache: dim must be an int or None, but a list was given",
        lambda s, i: torch_ops.plan_cache(i, 9, dim=[1]),
    ),
    (
        "plan_cache: dim_size must be an int, but None was given",
        lambda s, i: torch_ops.plan_cache(i, None),
    ),
    (
        "masked_gather: size must be an int or None, but a float was given",
        lambda s, i: torch_ops.masked_gather(s, s > 0, size=2.0),
    ),
    (
        "scatter_add: dim_size must be an int, but a tuple was given",
        lambda s, i: torch_ops.scatter_add(s[:2], i, (4,)),
    ),
    (
        "scatter_add: deterministic must be a bool or None, but a str was given",
        lambda s, i: torch_ops.scatter_add(s[:2], i, 4, deterministic="yes"),
    ),
    (  # torch_scatter's order
        "scatter: dim_size is missing: how long the result is at dim. Only a plan "
        "(torch_ops.gather_plan) in place of the index has it",
        lambda s, i: torch_ops.scatter(s[:2], i, None),
    ),
    (
        "scatter: dim must be an int or None, but a str was given",
        lambda s, i: torch_ops.scatter(s[:2], i, 4, "mean"),
    ),
    (
        "scatter_add_: values must be a tensor, but an int was given",
        lambda s, i: torch_ops.scatter_add_(s, 0, i),
    ),
    (
        "scatter_add_: batch_dims must be an int, but a float was given",
        lambda s, i: torch_ops.scatter_add_(s, s[:2], i, batch_dims=0.0),
    ),
    (
        "scatter_elements_add: size must be a sequence of ints, but an int was given",
        lambda s, i: torch_ops.scatter_elements_add(s, i[:, None], 4, 0),
    ),
    (
        "index: an index must be an int, a slice, None, ..., a tensor of integers or bools, or a "
        "list of these, but a str was given",
        lambda s, i: torch_ops.index(s, "a"),
    ),
    (
        "index: an index must be an int, a slice, None, ..., a tensor of integers or bools, or a "
        "list of these, but a float was given",
        lambda s, i: torch_ops.index(s, (0.0, i)),
    ),
    (
        "index_put: values must be a tensor, a number or a list of numbers that torch.float32 "
        "holds, but a str was given",
        lambda s, i: torch_ops.index_put(s, i, "a"),
    ),
    (
        "index_add: values must be a tensor, a number or a list of numbers that torch.float32 "
        "holds, but None was given",
        lambda s, i: torch_ops.index_add(s, i, None),
    ),
    (
        "embedding: padding_idx must be an int or None, but a str was given",
        lambda s, i: torch_ops.embedding(i, s, "0"),
    ),
    (
        "embedding: max_norm must be a real number, but a str was given",
        lambda s, i: torch_ops.embedding(i, s, max_norm="1"),
    ),
    ("relu: inplace must be a bool, but a str was given", lambda s, i: torch_ops.relu(s, "output")),
    ("ReLU: inplace must be a bool, but a str was given", lambda s, i: torch_ops.ReLU("output")),
    (
        "leaky_relu: negative_slope must be a real number, but None was given",
        lambda s, i: torch_ops.leaky_relu(s, None),
    ),
    (
        "leaky_relu: inplace must be a bool, but a str was given",
        lambda s, i: torch_ops.leaky_relu(s, 0.1, "output"),
    ),
    (
        "LeakyReLU: negative_slope must be a real number, but a str was given",
        lambda s, i: torch_ops.LeakyReLU("0.1"),
    ),
    (
        "LeakyReLU: negative_slope must be a real number, but None was given",
        lambda s, i: torch_ops.LeakyReLU(None),
    ),
    (
        "LeakyReLU: inplace must be a bool, but a str was given",
        lambda s, i: torch_ops.LeakyReLU(0.1, "output"),
    ),
    *(
        (
            f"embedding: {name} must be a bool, but a str was given",
            lambda s, i, name=name: torch_ops.embedding(i, s, **{name: "yes"}),
        )
        for name in ("sparse", "scale_grad_by_freq")
    ),
    *(
        (
            f"embedding_bag: {name} must be a bool, but a str was given",
            lambda s, i, name=name: torch_ops.embedding_bag(i[None], s, **{name: "yes"}),
        )
        for name in ("sparse", "scale_grad_by_freq", "include_last_offset")
    ),
    (
        "scatter_elements_add: size[1] must be an int, but a float was given",
        lambda s, i: torch_ops.scatter_elements_add(s, i[:, None], (4, 3.0), 0),
    ),
    (
        "scatter_add: dtype must be one that has sums, but it is torch.bool",
        lambda s, i: torch_ops.scatter_add(s[:2], i, 4, dtype=torch.bool),
    ),
]


@pytest.mark.parametrize(("message", "call"), CALLS, ids=[message for message, _ in CALLS])
def test_kinds(
    device: torch.device, message: str, call: Callable[[Tensor, Tensor], object]
) -> None:
    source = torch.ones(4, 3, device=device)
    with pytest.raises(TypeError, match=f"^{re.escape(message)}\\."):
        call(source, torch.tensor([0, 3], device=device))
    assert (source == 1).all()


@pytest.mark.parametrize("activation", functional_activations(), ids=str)
def test_activations(activation: Op) -> None:
    for given, what in ((None, "None"), ([1.0], "a list"), (1.0, "a float"), ("a", "a str")):
        for name in (activation.name, f"{activation.name}_"):
            message = f"^{activation.name}_?: input must be a tensor, but {what} was given\\."
            with pytest.raises(TypeError, match=message):
                getattr(torch_ops, name)(given)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch_ops.Gather("a"), TypeError, "Gather: dim must be an int or None, but a str"),
        (
            lambda: torch_ops.Gather(batch_dims=None),
            TypeError,
            "Gather: batch_dims must be an int, but None",
        ),
        (
            lambda: torch_ops.Gather(batch_dims=-1),
            ValueError,
            "Gather: batch_dims must not be negative, but it is -1",
        ),
        (lambda: torch_ops.Gather(mode="a"), ValueError, 'Gather: mode must be .* it is "a"'),
        (lambda: torch_ops.Gather(mode=1), TypeError, "Gather: mode must be a string, but it is 1"),
        (
            lambda: torch_ops.Gather(mode="clip", fill_value=1),
            ValueError,
            'Gather: fill_value is for mode="fill", but mode is "clip"',
        ),
        (
            lambda: torch_ops.BatchGather(fill_value="a"),
            TypeError,
            "BatchGather: fill_value must be a number, but a str",
        ),
        (
            lambda: torch_ops.EmbeddingBag(2, 2, mode="x"),
            ValueError,
            'EmbeddingBag: mode must be "sum", "mean" or "max", but it is "x"',
        ),
        (
            lambda: torch_ops.EmbeddingBag.from_pretrained(torch.ones(2, 2), mode=0),
            TypeError,
            "EmbeddingBag: mode must be a string, but it is 0",
        ),
    ],
)
def test_layers(make: Callable[[], object], error: type[Exception], message: str) -> None:
    """Where they are made, not at their first call."""
    with pytest.raises(error, match=f"^{message}"):
        make()


def test_other_integers_are_taken(device: torch.device) -> None:
    """NumPy's, and tensors of one."""
    source, index = torch.ones(4, 3, device=device), torch.tensor([0, 2], device=device)
    for one in (np.int64(1), np.int32(1), torch.tensor(1), True):
        assert torch_ops.gather(source, index, one).shape == (4, 2)
    for four in (np.int64(4), torch.tensor(4), index.max() + 2):
        assert torch_ops.scatter_add(source[:2], index, four).shape == (4, 3)
        assert torch_ops.gather_plan(index, four).rows.tolist() == [0, 2]
    for two in (np.float32(2), np.int64(2)):
        filled = torch_ops.gather(source, index + 2, mode="fill", fill_value=two)
        assert filled.tolist() == [[1] * 3, [2] * 3]


def test_a_slope_that_is_learned(device: torch.device) -> None:
    """It would stay without a gradient, and nobody would see."""
    x = torch.ones(3, device=device)
    slope = torch.nn.Parameter(torch.tensor(0.5, device=device))
    with pytest.raises(TypeError, match=r"no gradient.*prelu"):
        torch_ops.leaky_relu(x, slope)
    assert torch_ops.leaky_relu(-x, slope.detach()).tolist() == [-0.5] * 3


def test_modes_that_there_are_not(device: torch.device) -> None:
    """By the name of the function that was called, though others do its work."""
    source, index = torch.ones(4, 3, device=device), torch.tensor([0, 2], device=device)
    one_each = index[:, None]
    calls: list[tuple[str, Callable[[], object]]] = [
        ("gather", lambda: torch_ops.gather(source, index, mode="wrapped")),
        ("batch_gather", lambda: torch_ops.batch_gather(source, index, mode="wrapped")),
        ("gather_nd", lambda: torch_ops.gather_nd(source, one_each, mode="wrapped")),
        ("gather_nd", lambda: torch_ops.gather_nd(source, index[None], mode="wrapped")),
        (
            "gather_elements",
            lambda: torch_ops.gather_elements(source, one_each, 0, mode="wrapped"),
        ),
        (
            "take_along_dim",
            lambda: torch_ops.take_along_dim(source, one_each, 0, mode="wrapped"),
        ),
        ("scatter_add", lambda: torch_ops.scatter_add(source[:2], index, 4, mode="wrapped")),
        *(
            (
                "scatter",
                lambda reduce=reduce: torch_ops.scatter(
                    source[:2], index, 4, reduce=reduce, mode="wrapped"
                ),
            )
            for reduce in ("sum", "mean", "amax", "prod")
        ),
        (
            "scatter_elements_add",
            lambda: torch_ops.scatter_elements_add(source, one_each, (4, 3), 0, mode="wrapped"),
        ),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=f'^{name}: mode must be .* but it is "wrapped"'):
            call()


FRACTIONS = {
    "scatter_add: dim_size": lambda s, i, n: torch_ops.scatter_add(s[:2], i, n),
    "scatter: dim_size": lambda s, i, n: torch_ops.scatter(s[:2], i, n, reduce="amax"),
    "masked_gather: size": lambda s, i, n: torch_ops.masked_gather(s, s[:, 0] > 9, size=n),
    "gather: dim": lambda s, i, n: torch_ops.gather(s, i, n),
    "gather: batch_dims": lambda s, i, n: torch_ops.gather(s, i, batch_dims=n),
    "gather_plan: dim_size": lambda s, i, n: torch_ops.gather_plan(i, n),
    "gather_csr: output_size": lambda s, i, n: torch_ops.gather_csr(s, i, output_size=n),
    "segment_reduce: dim": lambda s, i, n: torch_ops.segment_reduce(s, i, dim=n),
    "softmax: dim_size": lambda s, i, n: torch_ops.softmax(s[:2], i, n),
    "embedding: padding_idx": lambda s, i, n: torch_ops.embedding(i, s, n),
}


@pytest.mark.parametrize("what", FRACTIONS)
def test_numbers_that_are_no_ints(device: torch.device, what: str) -> None:
    source, index = torch.ones(4, 3, device=device), torch.tensor([0, 2], device=device)
    fractions = (2.7, np.float32(2.7), np.float16(1), torch.tensor(2.7), torch.tensor(2.0))
    for number in (*fractions, {2}, int, torch.tensor([1, 2]), np.array([1, 2])):
        given = r"an? \w+( of shape \[2\])? was given"
        with pytest.raises(TypeError, match=rf"^{what} must be an int.*, but {given}"):
            FRACTIONS[what](source, index, number)
    for number in (2**63, -(2**70), 10**400):
        with pytest.raises(ValueError, match=rf"^{what} must fit int64, but the int that was"):
            FRACTIONS[what](source, index, number)


def test_what_is_no_bool_or_dtype(device: torch.device) -> None:
    x, index = torch.ones(2, device=device), torch.tensor([0, 1], device=device)
    for name, given, call in (
        ("scatter_add: sorted", "a str", lambda: torch_ops.scatter_add(x, index, 2, sorted="no")),
        ("scatter: sorted", "a str", lambda: torch_ops.scatter(x, index, 2, sorted="no")),
        ("scatter: return_arg", "a str", lambda: torch_ops.scatter(x, index, 2, return_arg="no")),
        ("scatter: dtype", "a type", lambda: torch_ops.scatter(x, index, 2, dtype=float)),
        ("scatter_add: dtype", "a type", lambda: torch_ops.scatter_add(x, index, 2, dtype=float)),
    ):
        with pytest.raises(TypeError, match=f"^{name} must be .*, but {given} was given"):
            call()


def test_real_numbers_that_are_too_large(device: torch.device) -> None:
    x, index = torch.ones(2, device=device), torch.tensor([0, 0], device=device)
    for what, call in (
        ("leaky_relu: negative_slope", lambda: torch_ops.leaky_relu(x, 10**400)),
        ("LeakyReLU: negative_slope", lambda: torch_ops.LeakyReLU(10**400)),
        (
            "scatter: correction",
            lambda: torch_ops.scatter(x, index, 2, reduce="var", correction=10**400),
        ),
    ):
        with pytest.raises(ValueError, match=f"^{what} must fit float64, but the int that"):
            call()


def test_functions_refuse_plans(device: torch.device) -> None:
    plan = torch_ops.gather_plan(torch.tensor([0, 2], device=device), 4)
    for function, arguments in (
        (torch_ops.GatherFunction, (torch.ones(4, 3, device=device), plan)),
        (torch_ops.ScatterAddFunction, (torch.ones(2, 3, device=device), plan, 4)),
    ):
        with pytest.raises(
            TypeError, match=f"^{function.__name__}: index must be a tensor, but a "
        ):
            function.apply(*arguments)


def test_a_padding_row_of_none(device: torch.device) -> None:
    index = torch.zeros(0, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="padding_idx must be None, as there are no rows, for we"):
        torch_ops.embedding(index, torch.ones(0, 3, device=device), padding_idx=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: torch_ops.scatter_add(x, i, x.shape[0]),
        lambda x, i: torch_ops.scatter(x, i, x.shape[0], reduce="amax"),
        lambda x, i: torch_ops.scatter(x, i, x.shape[0], reduce="amax", return_arg=True)[1],
        lambda x, i: torch_ops.logsumexp(x, i, x.shape[0]),
        lambda x, i: torch_ops.scatter_add(x, torch_ops.gather_plan(i, x.shape[0])),
        lambda x, i: torch_ops.gather_csr(x[:2], i, output_size=x.shape[0]),
        lambda x, i: torch_ops.masked_gather(x, x > 0, size=x.shape[0]),
        lambda x, i: torch_ops.scatter_elements_add(x, i, (x.shape[0],), 0),
        lambda x, i: torch_ops.gather(x, i, torch.zeros((), dtype=torch.int64)),
    ],
)
def test_sizes_that_a_trace_keeps(device: torch.device, call: Callable[..., Tensor]) -> None:
    x, index = torch.rand(3, device=device), torch.tensor([0, 1, 1], device=device)
    with pytest.warns(torch.jit.TracerWarning, match="might cause the trace to be incorrect"):
        traced = torch.jit.trace(call, (x, index), check_trace=False)
    assert torch.equal(traced(x + 1, index), call(x + 1, index))
