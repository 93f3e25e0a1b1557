"""scatter's variances, truths, positions and results of other dtypes."""

from __future__ import annotations

import pytest
import torch
from gathering import index_for, values_for
from modes import CASES
from op_checks import assert_same
from planning import plan_for
from torch import Tensor

import torch_ops


@pytest.mark.parametrize(
    ("name", "other"), [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")]
)
def test_other_names(device: torch.device, name: str, other: str) -> None:
    values = values_for((9, 3), device, torch.float32)
    index = torch.tensor([0, 3, 1, 1, 0, 3, 3, 0, 0], device=device)
    plan = torch_ops.gather_plan(index, 5)
    expected = torch_ops.scatter(values, index, 5, reduce=other)
    torch.testing.assert_close(torch_ops.scatter(values, index, 5, reduce=name), expected)
    torch.testing.assert_close(torch_ops.scatter(values, plan, reduce=name), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
@pytest.mark.parametrize("correction", [0, 1, 2.5])
def test_spread_is_torchs(device: torch.device, dtype: torch.dtype, correction: float) -> None:
    """NaN and infinity too, and the gradients; with a plan and with batches."""
    # Far from zero, where a difference of squares would have no digits left.
    values = (300 + values_for((2, 40, 3), device, torch.float64)).to(dtype).requires_grad_()
    index = torch.randint(7, (2, 40), device=device).sort().values
    index[:, 0], index[:, 1:3], index[:, -2:] = 7, 8, 9  # rows of 1, 2, 2 and, 10, of none
    plan = torch_ops.gather_plan(index, 11, batch_dims=1)
    for reduce, torchs in (("var", torch.var), ("std", torch.std)):
        wide = values.detach().double().requires_grad_()
        expected = torch.stack(
            [
                torch.stack([torchs(w[i == n], dim=0, correction=correction) for n in range(11)])
                for w, i in zip(wide, index, strict=True)
            ]
        )
        there = expected.detach().isfinite()
        (expected_grad,) = torch.autograd.grad(expected[there].sum(), wide)
        for picks in (index, plan):
            sizes = {"dim_size": 11, "batch_dims": 1} if picks is index else {}
            actual = torch_ops.scatter(values, picks, **sizes, reduce=reduce, correction=correction)
            # A mean of some ten numbers near 300 is off by 3 units of its last place.
            close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {}
            close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else close
            torch.testing.assert_close(actual.double(), expected, equal_nan=True, **close)
            (grad,) = torch.autograd.grad(actual[there].sum(), values)
            few = torch_ops.gather(~there, index, batch_dims=1)
            torch.testing.assert_close(
                grad.double().masked_fill(few, 0), expected_grad.masked_fill(few, 0), **close
            )
            if dtype == torch.float64:
                counted = {"reduce": reduce, "correction": -1.0, **sizes}
                assert torch.autograd.gradcheck(
                    lambda v, picks=picks, counted=counted: torch_ops.scatter(v, picks, **counted),
                    values,
                    check_forward_ad=True,
                )


@pytest.mark.parametrize("mean", [1e5, 1e6])
def test_spread_of_large_values(device: torch.device, mean: float) -> None:
    """Of so many that their mean is off by more than their deviation; the gradient too."""
    generator = torch.Generator().manual_seed(0)
    values = (mean + torch.randn(50_000, 1, generator=generator)).to(device).requires_grad_()
    index = torch.zeros(50_000, dtype=torch.int64, device=device)
    wide = values.detach().double().requires_grad_()
    (expected_grad,) = torch.autograd.grad(wide.std(), wide)
    result = torch_ops.scatter(values, index, 1, reduce="std")
    (grad,) = torch.autograd.grad(result.sum(), values)
    torch.testing.assert_close(result.double().flatten()[0], wide.std(), rtol=1e-3, atol=0)
    assert (grad - expected_grad).norm() < 1e-2 * expected_grad.norm()


def test_std_of_what_overflows(device: torch.device) -> None:
    """The variance of 16-bit floats is none of theirs; of values that are alike it is zero."""
    values = torch.tensor([-3e4, 3e4, 5, 5], dtype=torch.float16, device=device).requires_grad_()
    index = torch.tensor([0, 0, 1, 1], device=device)
    result = torch_ops.scatter(values, index, 2, reduce="std", correction=0)
    assert result.tolist() == [3e4, 0]
    (grad,) = torch.autograd.grad(result.sum(), values)
    assert grad.tolist() == [-0.5, 0.5, 0, 0]


def test_any_and_all(device: torch.device) -> None:
    values = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1]], device=device).bool()
    index = torch.tensor([0, 0, 2, 3], device=device)
    some = [[True, False], [False, False], [True, True], [False, True]]
    every = [[False, False], [True, True], [True, True], [False, True]]
    plan = torch_ops.gather_plan(index, 4)
    calls = [
        lambda v, reduce: torch_ops.scatter(v, plan, reduce=reduce),
        lambda v, reduce: torch_ops.scatter(v, index - 4, 4, reduce=reduce, mode="fill"),
        torch.compile(
            lambda v, reduce: torch_ops.scatter(v, index, 4, reduce=reduce),
            fullgraph=True,
            backend="aot_eager",
        ),
    ]
    for call in calls:
        assert call(values, "any").tolist() == some
        assert call(values, "all").tolist() == every
    both = torch.stack([values, ~values])
    for reduce in ("any", "all"):
        mapped = torch.vmap(lambda v, reduce=reduce: torch_ops.scatter(v, index, 4, reduce=reduce))
        each = [torch_ops.scatter(v, index, 4, reduce=reduce) for v in both]
        assert torch.equal(mapped(both), torch.stack(each))


@pytest.mark.parametrize("reduce", ["amax", "min"])
def test_positions(device: torch.device, reduce: str) -> None:
    """Where the gradient goes: with an index, a plan, batches, a mode, under transforms."""
    for case in CASES:
        index = index_for(case, device)
        size, axis = case.source[case.axis], case.axis
        values = values_for(case.output, device, torch.float32).round().requires_grad_()
        for picks, mode in ((index, "raise"), (plan_for(case, device), "raise"), (index, "fill")):
            sizes = {} if picks is not index else {"dim_size": size, **case.kwargs, "mode": mode}
            result, position = torch_ops.scatter(
                values, picks, **sizes, reduce=reduce, return_arg=True
            )
            assert position.dtype == torch.int64
            plain = torch_ops.scatter(values, picks, **sizes, reduce=reduce)
            assert_same(result, plain, f"{case}")
            picked = index.dim() - case.batch_dims
            entries = values.unsqueeze(axis) if picked == 0 else values
            flat = entries.flatten(axis, axis + max(picked, 1) - 1)
            none = position == flat.shape[axis]
            padded = torch.cat([flat, flat.new_zeros(1).expand_as(flat.narrow(axis, 0, 1))], axis)
            assert_same(padded.gather(axis, position), plain, f"{case}")
            (grad,) = torch.autograd.grad(result.sum(), values)
            marks = torch.zeros_like(padded).scatter_add(axis, position, torch.ones_like(plain))
            assert torch.equal(grad, marks.narrow(axis, 0, flat.shape[axis]).view_as(values))
            assert bool(none.any()) == bool((marks.select(axis, -1) > 0).any())

    def call(v: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        return torch_ops.scatter(v, i, 4, reduce=reduce, return_arg=True)

    values = values_for((3, 6), device, torch.float32)
    index = torch.randint(3, (3, 6), device=device)
    pairs = [call(v, i) for v, i in zip(values, index, strict=True)]
    mapped = torch.vmap(call)(values, index)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(values[0], index[0])
    for at in (0, 1):
        assert torch.equal(mapped[at], torch.stack([pair[at] for pair in pairs]))
        assert torch.equal(compiled[at], pairs[0][at])
    assert pairs[0][1][3] == 6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean", "var", "std"])
def test_results_in_float32(device: torch.device, dtype: torch.dtype, reduce: str) -> None:
    """Not rounded, with an index and with a plan; the gradients are of the values' dtype."""
    torch.compiler.reset()
    values = torch.randint(-99, 99, (500, 3), device=device).to(dtype).requires_grad_()
    index = torch.randint(9, (500,), device=device)
    wide = values.detach().float().requires_grad_()
    expected = torch_ops.scatter(wide, index, 9, reduce=reduce)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), wide)
    calls = [
        lambda v: torch_ops.scatter(v, index, 9, reduce=reduce, dtype=torch.float32),
        lambda v: torch_ops.scatter(
            v, torch_ops.gather_plan(index, 9), reduce=reduce, dtype=torch.float32
        ),
        torch.compile(
            lambda v: torch_ops.scatter(v, index, 9, reduce=reduce, dtype=torch.float32),
            fullgraph=True,
            backend="aot_eager",
        ),
    ]
    if reduce == "sum":
        calls.append(lambda v: torch_ops.scatter_add(v, index, 9, dtype=torch.float32))
    for call in calls:
        actual = call(values)
        torch.testing.assert_close(actual, expected)
        (grad,) = torch.autograd.grad(actual.square().sum(), values)
        assert grad.dtype == dtype
        torch.testing.assert_close(grad, expected_grad.to(dtype))


def test_other_dtypes_of_results(device: torch.device) -> None:
    """Values are converted first, as torch's sum converts them."""
    index = torch.tensor([0, 0, 1], device=device)
    small = torch.tensor([100, 100, 3], dtype=torch.int8, device=device)
    assert torch_ops.scatter_add(small, index, 2, dtype=torch.int64).tolist() == [200, 3]
    mean = torch_ops.scatter(small, index, 2, reduce="mean", dtype=torch.float64)
    assert mean.dtype == torch.float64
    assert mean.tolist() == [100, 3]
    assert torch_ops.scatter_add(small > 9, index, 2, dtype=torch.int32).tolist() == [2, 0]
    best = torch_ops.scatter(small, index, 2, reduce="max", dtype=torch.float16, return_arg=True)
    assert best[0].dtype == torch.float16
    with pytest.raises(TypeError, match=r"dtype must be.*but it is torch\.bool"):
        torch_ops.scatter_add(small, index, 2, dtype=torch.bool)
