"""scatter with each reduction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gathering import Case, bad_index, index_for, sum_tolerance, values_for
from hypothesis import given
from hypothesis import strategies as st
from memory import peak_memory
from modes import CASES, entries_for, other_layout, row_calls, scatter_reference
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from planning import parts, plan_for
from torch import Tensor

import torch_ops

REDUCES = ("sum", "mean", "amax", "amin", "prod")
# Of which no row is NaN: the sum of squares over n + 1.
SPREADS = ("var", "std")


def options_of(reduce: str) -> dict[str, Any]:
    return {"reduce": reduce, "correction": -1.0} if reduce in SPREADS else {"reduce": reduce}


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.output, device, dtype)
        for reduce in REDUCES + SPREADS:
            for mode in ("raise", "fill"):
                options = {**options_of(reduce), "mode": mode, **case.kwargs}
                index = entries_for(case, device, mode)
                yield Sample((values, index, case.source[case.axis]), options)


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    """Random numbers: none is zero, and none near another."""
    for case in (Case((4,), (6,)), Case((2, 3, 2), (2, 2, 2), batch_dims=1), Case((2, 3), (4,), 1)):
        values = values_for(case.output, device, torch.float64)
        for reduce in REDUCES + SPREADS:
            for mode in ("raise", "fill"):
                options = {**options_of(reduce), "mode": mode, **case.kwargs}
                index = entries_for(case, device, mode)
                yield Sample((values, index, case.source[case.axis]), options)


def product_tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """That of sums, and n roundings of a product of n numbers, here some 40."""
    rtol, atol = sum_tolerance(dtype)
    return max(rtol, 40 * torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps), atol


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, 4, 3), (size, size + 2), batch_dims=1)
    values = values_for(case.output, device, torch.float32)
    return Sample((values, index_for(case, device), 4), {**case.kwargs, "reduce": "mean"})


def bad(device: torch.device) -> Iterator[Sample]:
    values = values_for((5, 3), device, torch.float32)
    for reduce in REDUCES:
        for index in bad_index(torch.tensor([0, 3, 1, 0, 2], device=device), 4):
            yield Sample((values, index, 4), {"reduce": reduce})
    yield Sample((values, torch.tensor([0, 1], device=device), 4), {"reduce": "mean"})


OPS = [
    Op(
        "scatter",
        torch_ops.scatter,
        scatter_reference,
        samples,
        product_tolerance,
        sums=True,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="ScatterAddBackward",
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_integers(device: torch.device, dtype: torch.dtype, reduce: str) -> None:
    """Wrapping, but for the extremes and the mean of what does not."""
    for case in CASES:
        values = values_for(case.output, device, dtype)
        if reduce == "mean":
            values = values % 7
        index = index_for(case, device)
        size = case.source[case.axis]
        actual = torch_ops.scatter(values, index, size, **case.kwargs, reduce=reduce)
        with np.errstate(over="ignore"):
            expected = scatter_reference(
                values.cpu(), index.cpu(), size, **case.kwargs, reduce=reduce
            )
        assert_same(actual, expected, f"{case} {reduce}")


def test_what_stands_where_nothing_goes(device: torch.device) -> None:
    values = torch.tensor([-3.0, -5.0], device=device)
    index = torch.tensor([1, 1], device=device)
    for reduce, expected in [
        ("sum", [0, -8, 0]),
        ("mean", [0, -4, 0]),
        ("amax", [0, -3, 0]),
        ("amin", [0, -5, 0]),
        ("prod", [1, 15, 1]),
    ]:
        assert torch_ops.scatter(values, index, 3, reduce=reduce).tolist() == expected
        empty = torch_ops.scatter(values[:0], index[:0], 3, reduce=reduce)
        assert empty.tolist() == [1 if reduce == "prod" else 0] * 3


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_infinity_and_zeros(device: torch.device, dtype: torch.dtype) -> None:
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([1, nan, -inf, inf, 2, -0.0, 0.0], dtype=dtype, device=device)
    index = torch.tensor([0, 0, 1, 1, 2, 3, 3], device=device)
    largest = torch_ops.scatter(values, index, 5, reduce="amax")
    assert largest[0].isnan()
    assert largest[1:].tolist() == [inf, 2, 0, 0]
    by_position = torch_ops.scatter(values.requires_grad_(), index, 5, reduce="amax")
    assert by_position[3].signbit()  # the first of what is alike
    smallest = torch_ops.scatter(values.detach(), index, 5, reduce="amin")
    assert smallest[0].isnan()
    assert smallest[1:].tolist() == [-inf, 2, 0, 0]


def test_extremes_of_nothing(device: torch.device) -> None:
    """Rows without elements, and many of them."""
    for dtype in (torch.int64, torch.float32):
        values = torch.zeros(3, 0, dtype=dtype, device=device)
        index = torch.zeros(3, dtype=torch.int64, device=device)
        assert torch_ops.scatter(values, index, 2**40, reduce="amax").shape == (2**40, 0)


def test_ties_go_to_the_first(device: torch.device) -> None:
    """Among thousands, on every thread: the smallest position has the gradient."""
    values = torch.zeros(2, 5000, 3, device=device)
    values[:, 17:] = 1
    values.requires_grad_()
    index = torch.zeros(2, 5000, dtype=torch.uint8, device=device)
    for reduce, first in (("amax", 17), ("amin", 0)):
        (grad,) = torch.autograd.grad(
            torch_ops.scatter(values, index, 2, batch_dims=1, reduce=reduce).sum(), values
        )
        assert grad.nonzero().tolist() == [[b, first, d] for b in (0, 1) for d in (0, 1, 2)]


def test_product_with_zeros(device: torch.device) -> None:
    """Its gradient is the product of the others."""
    values = torch.tensor([2.0, 0, 3, 0, 0, 5], dtype=torch.float64, device=device)
    values.requires_grad_()
    index = torch.tensor([0, 0, 0, 1, 1, 1], device=device)
    output = torch_ops.scatter(values, index, 3, reduce="prod")
    assert output.tolist() == [0, 0, 1]
    (grad,) = torch.autograd.grad(output.sum(), values)
    assert grad.tolist() == [0, 6, 0, 0, 0, 0]
    assert torch.autograd.gradcheck(
        lambda v: torch_ops.scatter(v, index, 3, reduce="prod"), values, check_forward_ad=True
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_mean_of_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    """Neither the sum nor the count fits the format; the mean does."""
    values = torch.full((100_000, 2), 3.0, dtype=dtype, device=device)
    index = torch.zeros(100_000, dtype=torch.int32, device=device)
    mean = torch_ops.scatter(values, index, 2, reduce="mean")
    assert mean.tolist() == [[3, 3], [0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("deterministic", [None, True])
def test_mean_of_16_bits_is_rounded_once(
    device: torch.device, dtype: torch.dtype, deterministic: bool | None
) -> None:
    """To the bit: the numbers are whole, so that their sums in float32 are exact in any order."""
    for shape, size in [
        ((5000,), 30),
        ((3, 200, 1), 50),
        ((2, 3000, 5), 40),
        ((70_000, 64), 900),
        ((300, 8), 4000),
        ((2**18, 4), 7),
    ]:
        batch = len(shape) // 3
        values = torch.randint(-128, 129, shape, device=device).to(dtype).requires_grad_()
        index = torch.randint(size, shape[: batch + 1], device=device)
        options = {"batch_dims": batch, "deterministic": deterministic}
        actual = torch_ops.scatter(values, index, size, **options, reduce="mean")
        wide = values.detach().float().requires_grad_()
        sums = torch_ops.scatter_add(wide, index, size, **options)
        counts = torch_ops.scatter_add(torch.ones_like(index), index, size, batch_dims=batch)
        counts = counts.clamp_min(1).view(*counts.shape, *[1] * (sums.dim() - counts.dim()))
        expected = (sums / counts).to(dtype)
        assert_same(actual, expected, f"{shape}")
        grad_output = values_for(tuple(actual.shape), device, dtype)
        (grad,) = torch.autograd.grad(actual, values, grad_output)
        (expected_grad,) = torch.autograd.grad(expected, wide, grad_output)
        assert_same(grad, expected_grad.to(dtype), f"{shape}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("deterministic", [None, True])
def test_mean_of_16_bits_copies_no_values(
    device: torch.device, dtype: torch.dtype, deterministic: bool | None
) -> None:
    values = values_for((100_000, 64), device, dtype).requires_grad_()
    index = torch.randint(500, (100_000,), device=device)

    def mean() -> Tensor:
        return torch_ops.scatter(values, index, 500, reduce="mean", deterministic=deterministic)

    mean().sum().backward()  # what is made once, at the first call
    # On CUDA sorted entries have 16 bytes, and the counted ones 8.
    assert peak_memory(device, mean) < values.nbytes // 2
    output, grad_output = mean(), torch.ones(500, 64, device=device, dtype=dtype)
    extra = peak_memory(device, lambda: torch.autograd.grad(output, values, grad_output))
    assert extra < values.nbytes + values.nbytes // 4  # the gradient, and the result's


@pytest.mark.parametrize("reduce", ["mean", "amax", "amin", "prod"])
def test_agrees_with_torch(device: torch.device, reduce: str) -> None:
    """On work for many threads and blocks, of every shape."""
    name = {"prod": "prod"}.get(reduce, reduce)
    for shape, size in [((20_000,), 50), ((3, 3000, 5), 40), ((1000, 100), 900), ((4, 900, 1), 3)]:
        batch = len(shape) - 2 if len(shape) > 2 else 0
        values = values_for(shape, device, torch.float64)
        if reduce == "prod":
            values = values.sign() * values.abs().clamp(0.9, 1.1)
        index = torch.randint(size, shape[: batch + 1], device=device)
        wide = index.reshape(*index.shape, *[1] * (len(shape) - batch - 1)).expand(shape)
        start = torch.zeros(*shape[:batch], size, *shape[batch + 1 :], dtype=torch.float64)
        expected = start.to(device).scatter_reduce(batch, wide, values, name, include_self=False)
        if reduce == "prod":
            named = torch.zeros_like(expected).scatter_add(batch, wide, torch.ones_like(values)) > 0
            expected = torch.where(named, expected, 1)
        actual = torch_ops.scatter(values, index, size, batch_dims=batch, reduce=reduce)
        torch.testing.assert_close(actual, expected)
        again = torch_ops.scatter(values, index, size, batch_dims=batch, reduce=reduce)
        assert reduce == "mean" or torch.equal(actual, again)


def test_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    values = values_for((60_000, 3), torch.device("cpu"), torch.float32)
    index = torch.randint(700, (60_000,))
    for reduce in REDUCES:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(torch_ops.scatter(values, index, 700, reduce=reduce))
        torch.set_num_threads(threads)
        assert torch.equal(results[0], results[1]), reduce
        assert torch.equal(results[0], results[2]), reduce


def best_one_by_one(values: Tensor, rows: Tensor, size: int, largest: bool) -> Tensor:
    """The first of the best values of each row; NaN is the best, and what has none is 0."""
    best = torch.zeros(size, *values.shape[1:], dtype=values.dtype)
    named = set()
    for row, value in zip(rows.tolist(), values, strict=True):
        better = value > best[row] if largest else value < best[row]
        better = (better | value.isnan()) & ~best[row].isnan()
        best[row] = torch.where(better, value, best[row]) if row in named else value
        named.add(row)
    return best


def extremes(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random numbers, with the ends of the type between them."""
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    special = [info.min, info.max, 0, 1]
    if dtype.is_floating_point:
        special += [float("inf"), -float("inf"), float("nan"), info.tiny, -info.tiny, info.tiny / 2]
    values = values_for(shape, torch.device("cpu"), dtype)
    part = values.view(-1)[:: values.numel() // 100]
    part.copy_(torch.tensor(special).to(dtype)[torch.randint(len(special), part.shape)])
    return values


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_extremes(device: torch.device, dtype: torch.dtype, reduce: str) -> None:
    """With a gradient and without, which are two ways; and both zeros, of which either may win.

    With a gradient it is the first.
    """
    for shape, size in [((3000,), 700), ((60, 2), 90), ((400, 3), 50), ((200, 40), 100)]:
        values, index = extremes(shape, dtype), torch.randint(size, shape[:1])
        for zeros in ((), (0.0, -0.0)):
            for at, zero in enumerate(zeros):
                values.view(-1)[at::5] = zero
            expected = best_one_by_one(values, index, size, reduce == "amax")
            leaf = values.to(device, copy=True)
            for requires_grad in (False, dtype.is_floating_point):
                leaf.requires_grad_(requires_grad)
                actual = torch_ops.scatter(leaf, index.to(device), size, reduce=reduce)
                assert actual.requires_grad == requires_grad
                actual = actual.detach().cpu()
                torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
                number = ~expected.isnan()
                if not requires_grad:
                    number &= expected != 0
                assert torch.equal(actual.signbit() & number, expected.signbit() & number)


@pytest.mark.parametrize("mode", ["wrap", "clip", "fill"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16], ids=str)
def test_extremes_by_a_mode(device: torch.device, dtype: torch.dtype, mode: str) -> None:
    for count, size, row in [(4000, 300, 1), (40, 300, 3), (500, 7, 20)]:
        values = values_for((count, row), device, dtype)
        index = torch.randint(-2 * size, 3 * size, (count,), device=device)
        rows = {
            "wrap": index % size,
            "clip": index.clamp(0, size - 1),
            "fill": torch.where(index < 0, index + size, index),
        }[mode]
        kept = (rows >= 0) & (rows < size)
        for reduce in ("amax", "amin"):
            actual = torch_ops.scatter(values, index, size, reduce=reduce, mode=mode)
            expected = torch_ops.scatter(values[kept], rows[kept], size, reduce=reduce)
            assert torch.equal(actual, expected)


@pytest.mark.parametrize("name", ["_scatter_arg", "_scatter_best", "_scatter_prod", "_scatter_var"])
def test_opcheck_of_the_parts(device: torch.device, name: str) -> None:
    op = getattr(torch.ops.torch_ops, name).default
    for case in CASES[:5]:
        values = values_for(case.output, device, torch.float32)
        arguments = (values, index_for(case, device), case.source[case.axis], case.dim)
        rest = (
            (case.batch_dims, True, "raise")
            if name in ("_scatter_arg", "_scatter_best")
            else (case.batch_dims, *((-1.0, None) if name == "_scatter_var" else ()), "fill")
        )
        torch.library.opcheck(op, (*arguments, *rest))
        plan = plan_for(case, device)
        by_plan = (*arguments, *rest[:-1], "raise", plan.rows, plan.order)
        torch.library.opcheck(op, by_plan)
        with pytest.raises(ValueError, match="a plan's rows and order must be one-di"):
            op(*by_plan[:-1], plan.order.repeat(2))
        if name == "_scatter_best":  # in a graph that was traced without a gradient
            leaf = values.double().requires_grad_()
            assert torch.autograd.gradcheck(
                lambda v, given=arguments, rest=rest: op(v, *given[1:], *rest), leaf
            )


def test_opcheck_of_sums_in_float32(device: torch.device) -> None:
    op = torch.ops.torch_ops._scatter_sum
    for case in CASES[:5]:
        plan = plan_for(case, device)
        for dtype in (torch.bfloat16, torch.float32, torch.int8):
            values = values_for(case.output, device, dtype)
            values.requires_grad_(dtype.is_floating_point)
            arguments = (values, plan.index, plan.dim_size, plan.dim)
            options = {"batch_dims": plan.batch_dims}
            torch.library.opcheck(op.default, arguments, options)
            torch.library.opcheck(op.plan, (values, *parts(plan)))
            wanted = torch.float32 if dtype == torch.bfloat16 else dtype
            assert op(*arguments, **options).dtype == wanted
            assert op.plan(values, *parts(plan)).dtype == wanted


def test_vmap(device: torch.device) -> None:
    values = values_for((3, 2, 5, 2), device, torch.float64)
    index = torch.randint(4, (3, 2, 5), device=device)
    for reduce in REDUCES:
        for dims in ((0, 0), (0, None), (None, 0)):
            given = [t if d == 0 else t[0] for t, d in zip((values, index), dims, strict=True)]

            def call(v: Tensor, i: Tensor, reduce: str = reduce) -> Tensor:
                return torch_ops.scatter(v, i, 4, batch_dims=1, reduce=reduce)

            actual = torch.vmap(call, dims)(*given)
            for n in range(3):
                each = [t[n] if d == 0 else t for t, d in zip(given, dims, strict=True)]
                torch.testing.assert_close(actual[n], call(*each))


def test_bad_arguments(device: torch.device) -> None:
    values, index = torch.zeros(2, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match=r'reduce must be "sum".* or "all" \(or .*it is "most"'):
        torch_ops.scatter(values, index, 4, reduce="most")
    with pytest.raises(ValueError, match=r'return_arg is for.*but reduce is "sum"'):
        torch_ops.scatter(values, index, 4, return_arg=True)
    for reduce, wrong, message in (
        ("any", values, 'values must be bool for reduce="any", but it is torch.float32'),
        ("all", values, 'values must be bool for reduce="all", but it is torch.float32'),
        ("mean", values.to(torch.uint16), "must not be uint16.*for a mean, but it is torch.uint16"),
        ("std", values.int(), "values must be float16.*but it is torch.int32"),
    ):
        with pytest.raises(TypeError, match=message):
            torch_ops.scatter(wrong, index, 4, reduce=reduce)
    with pytest.raises(TypeError, match="reduce must be a string"):
        torch_ops.scatter(values, index, 4, reduce=None)
    for reduce in ("amax", "prod"):
        with pytest.raises(TypeError, match=r"for this reduction, but it is torch\.complex64"):
            torch_ops.scatter(values.to(torch.complex64), index, 4, reduce=reduce)
    with pytest.raises(ValueError, match="dim_size must not be negative"):
        torch_ops.scatter(values, index, -1, reduce="mean")


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_means_of_complex32(device: torch.device) -> None:
    """Which torch cannot divide on the CPU."""
    values = torch.tensor([1 + 2j, 3, 5j], dtype=torch.complex32, device=device)
    many = torch.full((20000, 8), 1 + 2j, dtype=torch.complex32, device=device)
    each = torch.arange(20000, device=device)
    for picks in (each, torch_ops.gather_plan(each, 20000)):
        means = torch_ops.scatter(many, picks, 20000, reduce="mean")
        assert torch.equal(torch.view_as_real(means), torch.view_as_real(many))
    index, offsets = (torch.tensor(n, device=device) for n in ([0, 0, 2], [0, 2, 2, 3]))
    zeros = torch.zeros(3, dtype=torch.complex32, device=device)
    for means in (
        torch_ops.scatter(values, index, 3, reduce="mean"),
        torch_ops.scatter_(zeros, values, index, reduce="mean", include_self=False),
        torch_ops.segment_reduce(values, offsets, "mean"),
    ):
        assert means.dtype == torch.complex32
        assert means.tolist() == [2 + 1j, 0, 5j]


@pytest.mark.parametrize("reduce", REDUCES)
def test_out_of_range(device: torch.device, reduce: str) -> None:
    values, index = torch.ones(3, device=device), torch.tensor([0, -1, 2], device=device)
    message = r"^scatter: index\[1\] is -1, out of range.*size 3"
    if device.type == "cpu":
        with pytest.raises(IndexError, match=message):
            torch_ops.scatter(values, index, 3, reduce=reduce)
        return
    with pytest.raises(IndexError, match=message):  # noqa: PT012, the second op of a call may raise
        torch_ops.scatter(values, index, 3, reduce=reduce)
        torch_ops.check_errors()


def test_paths() -> None:
    """The way to the largest values on CUDA is chosen from sizes alone."""
    from torch_ops._ext.scatter import plan_best

    def ways(entries: int, inner: int, axis_size: int = 1000, planned: bool = False) -> list[str]:
        sizes = (axis_size, entries, inner)
        plans = [plan_best(*sizes, planned=planned, positions=which) for which in (True, False)]
        return [str(plan["way"]) for plan in plans]

    assert ways(2**18, 64) == ["sorted", "sorted"]
    assert ways(2**18 - 1, 64) == ["two passes", "one pass"]  # small calls
    assert ways(2**19, 32) == ["sorted", "sorted"]
    assert ways(2**24, 31) == ["two passes", "one pass"]  # short rows
    assert ways(2**18, 1, 256) == ["sorted", "sorted"]  # rather few rows
    assert ways(2**17, 1, 32) == ways(2**16, 64, 32) == ["privatized"] * 2  # few rows
    assert ways(2**16, 64, 32, planned=True) == ["privatized"] * 2
    assert ways(2**16 - 1, 64, 32) == ["two passes", "one pass"]
    assert ways(2**18 - 1, 1, 256) == ways(2**18, 1, 257) == ["two passes", "one pass"]
    assert ways(2**18, 64, 2**16) == ["sorted", "sorted"]
    assert ways(2**18, 64, 2**16 + 1) == ["sorted", "one pass"]  # few entries per row
    assert ways(10, 1, 10, planned=True) == ["sorted", "sorted"]
    assert ways(10, 1, 11, planned=True) == ["sorted", "one pass"]


@pytest.mark.parametrize("hot", [False, True])
def test_runs_over_many_tiles(device: torch.device, hot: bool) -> None:
    """Rows that have most of the entries; on CUDA both ways to the largest value."""
    width = 64
    for count in (1000, 2**24 // width if device.type == "cuda" else 20_000):
        index = torch.randint(50, (count,), device=device)
        if hot:
            index[torch.rand(count, device=device) < 0.9] = 7
        plan = torch_ops.gather_plan(index, 60)
        values = torch.randint(-1000, 1000, (count, width), device=device).float()
        for reduce in ("amax", "amin"):
            leaf = values.clone().requires_grad_()
            actual = torch_ops.scatter(leaf, index, 60, reduce=reduce)
            wide = index[:, None].expand_as(values)
            expected = torch.zeros(60, width, device=device).scatter_reduce(
                0, wide, values, reduce, include_self=False
            )
            assert torch.equal(actual, expected)
            by_plan = torch_ops.scatter(leaf, plan, reduce=reduce)
            assert torch.equal(by_plan, expected)
            # To the first of several that are alike.
            (grad,) = torch.autograd.grad(actual.sum(), leaf)
            assert torch.equal(grad, torch.autograd.grad(by_plan.sum(), leaf)[0])
            position = torch.arange(count, device=device)[:, None].expand_as(values)
            ties = torch.where(values == expected[index], position, count)
            first = torch.full((60, width), count, device=device).scatter_reduce(
                0, wide, ties, "amin"
            )
            assert torch.equal(grad, (position == first[index]).float())
        signs = values.sign() + (values == 0)
        actual = torch_ops.scatter(signs, index, 60, reduce="prod")
        negative = torch_ops.scatter_add((signs < 0).int(), index, 60)
        assert torch.equal(actual, 1.0 - 2 * (negative % 2))
        assert torch.equal(actual, torch_ops.scatter(signs, plan, reduce="prod"))


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for case in CASES:
        values = values_for(case.output, device, torch.float32).requires_grad_()
        index = entries_for(case, device, "fill")
        for reduce in REDUCES:
            size = case.source[case.axis]
            output = torch_ops.scatter(
                values, index, size, **case.kwargs, reduce=reduce, mode="fill"
            )
            output.sum().backward()


@given(
    call=row_calls(),
    reduce=st.sampled_from(REDUCES),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int32]),
)
def test_any_scatter(
    device: torch.device, call: dict[str, Any], reduce: str, dtype: torch.dtype
) -> None:
    case = call["case"]
    generator = torch.Generator().manual_seed(sum(case.output))
    # Sums and products are exact in any order, and small ones of integers do not wrap.
    whole = torch.randint(-2, 3, case.output, generator=generator).to(dtype)
    options = {**case.kwargs, "mode": call["mode"], "reduce": reduce}
    size = case.source[case.axis]
    with np.errstate(all="ignore"):  # products may exceed int32: they wrap
        expected = scatter_reference(whole, call["index"], size, **options)
    values = other_layout(whole, call["layout"]).to(device)
    actual = torch_ops.scatter(values, call["index"].to(device), size, **options)
    assert_same(actual + 0, expected + 0, f"{options}")  # no zero is negative
