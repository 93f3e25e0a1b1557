"""scatter with each reduction, and scatter_add_."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from activations import run_tests_with
from gathering import Case, bad_index, index_for, values_for
from hypothesis import given
from hypothesis import strategies as st
from modes import other_layout, resolve
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from test_modes import CASES, entries_for, row_calls
from test_scatter import tolerance
from torch import Tensor

import torch_ops

REDUCES = ("sum", "mean", "amax", "amin", "prod")


def scatter_reference(
    values: Tensor,
    index: Tensor,
    dim_size: int,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    reduce: str = "sum",
    mode: str = "raise",
    deterministic: bool | None = None,
) -> Tensor:
    """Entry by entry, as the documentation says it."""
    picked = index.dim() - batch_dims
    rank = values.dim() - picked + 1
    axis = (batch_dims if dim is None else dim) % rank
    rows, there = (part.numpy() for part in resolve(index, dim_size, mode))
    # Entries in front, behind the batch axes; then the axes before dim, and those behind.
    given = np.moveaxis(
        values.numpy(),
        range(axis, axis + picked),
        range(batch_dims, batch_dims + picked),
    )
    shape = (*values.shape[:axis], dim_size, *values.shape[axis + picked :])
    start = {"sum": 0, "mean": 0, "prod": 1}.get(reduce, 0)
    result = np.full(shape, start, given.dtype)
    moved = np.moveaxis(result, axis, batch_dims)
    counts = np.zeros(moved.shape, np.int64)
    better = {"amax": np.maximum, "amin": np.minimum}
    for at in np.ndindex(*index.shape):
        if not there[at]:
            continue
        to = (*at[:batch_dims], rows[at])
        if reduce in better:
            first = counts[to] == 0
            moved[to] = np.where(first, given[at], better[reduce](moved[to], given[at]))
        elif reduce == "prod":
            moved[to] = moved[to] * given[at]
        else:
            moved[to] = moved[to] + given[at]
        counts[to] += 1
    if reduce == "mean":
        divide = np.floor_divide if given.dtype.kind in "iu" else np.true_divide
        moved[...] = divide(moved, np.maximum(counts, 1))
    return torch.from_numpy(result)


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.output, device, dtype)
        for reduce in REDUCES:
            for mode in ("raise", "fill"):
                options = {"reduce": reduce, "mode": mode, **case.kwargs}
                index = entries_for(case, device, mode)
                yield Sample((values, index, case.source[case.axis]), options)


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    """Random numbers: none is zero, and none near another."""
    for case in (Case((4,), (6,)), Case((2, 3, 2), (2, 2, 2), batch_dims=1), Case((2, 3), (4,), 1)):
        values = values_for(case.output, device, torch.float64)
        for reduce in REDUCES:
            for mode in ("raise", "fill"):
                options = {"reduce": reduce, "mode": mode, **case.kwargs}
                index = entries_for(case, device, mode)
                yield Sample((values, index, case.source[case.axis]), options)


def product_tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """That of sums, and n roundings of a product of n numbers, here some 40."""
    rtol, atol = tolerance(dtype)
    return max(rtol, 40 * torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps), atol


def adding_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        out = values_for(case.source, device, dtype, seed=1)
        values = values_for(case.output, device, dtype)
        yield Sample((out, values, index_for(case, device)), case.kwargs)


def smooth_adding_samples(device: torch.device) -> Iterator[Sample]:
    for sample in adding_samples(device, torch.float64):
        if sample.args[0].numel() <= 40:
            yield sample


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, 4, 3), (size, size + 2), batch_dims=1)
    values = values_for(case.output, device, torch.float32)
    return Sample((values, index_for(case, device), 4), {**case.kwargs, "reduce": "mean"})


def sized_adding(device: torch.device, size: int) -> Sample:
    case = Case((size, size + 1, 3), (size, size + 2), batch_dims=1)
    out = values_for(case.source, device, torch.float32, seed=1)
    values = values_for(case.output, device, torch.float32)
    return Sample((out, values, index_for(case, device)), case.kwargs)


def bad(device: torch.device) -> Iterator[Sample]:
    values = values_for((5, 3), device, torch.float32)
    for reduce in REDUCES:
        for index in bad_index(torch.tensor([0, 3, 1, 0, 2], device=device), 4):
            yield Sample((values, index, 4), {"reduce": reduce})
    yield Sample((values, torch.tensor([0, 1], device=device), 4), {"reduce": "mean"})


def bad_adding(device: torch.device) -> Iterator[Sample]:
    out, values = (values_for((n, 3), device, torch.float32) for n in (4, 5))
    for index in bad_index(torch.tensor([0, 3, 1, 0, 2], device=device), 4):
        yield Sample((out, values, index))
    yield Sample((out, values.double(), torch.tensor([0, 3, 1, 0, 2], device=device)))
    yield Sample((out, values[:, :2], torch.tensor([0, 3, 1, 0, 2], device=device)))


def adding_reference(out: Tensor, values: Tensor, index: Tensor, **options: Any) -> Tensor:
    batch_dims = options["batch_dims"]
    dim = batch_dims if options["dim"] is None else options["dim"]
    return out + scatter_reference(values, index, out.shape[dim], **options)


def rounded_twice(dtype: torch.dtype) -> tuple[float, float]:
    """16 bits: the sum, and what it is added to."""
    rtol, atol = tolerance(dtype)
    return rtol, atol + (8 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)


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
    Op(
        "scatter_add_",
        torch_ops.scatter_add_,
        adding_reference,
        adding_samples,
        rounded_twice,
        sums=True,
        inplace=True,
        smooth_samples=smooth_adding_samples,
        sized=sized_adding,
        bad=bad_adding,
        node="ScatterAddInplaceBackward",
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
    assert largest[3].signbit()  # the first of what is alike
    smallest = torch_ops.scatter(values, index, 5, reduce="amin")
    assert smallest[0].isnan()
    assert smallest[1:].tolist() == [-inf, 2, 0, 0]


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


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_instruction_sets(capability: str) -> None:
    """The CPU's loops exist once for each; the tests here run the widest that there is."""
    run_tests_with(capability, __file__, "cpu and (agrees or nan_infinity or ties)")


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


@pytest.mark.parametrize("name", ["_scatter_arg", "_scatter_prod"])
def test_opcheck_of_the_parts(device: torch.device, name: str) -> None:
    op = getattr(torch.ops.torch_ops, name).default
    for case in CASES[:5]:
        values = values_for(case.output, device, torch.float32)
        arguments = (values, index_for(case, device), case.source[case.axis], case.dim)
        rest = (
            (case.batch_dims, True, "raise")
            if name == "_scatter_arg"
            else (case.batch_dims, "fill")
        )
        torch.library.opcheck(op, (*arguments, *rest))


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


# ---- scatter_add_ -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.complex64, torch.uint8, torch.int16, torch.int64], ids=str
)
def test_adds_in_place(device: torch.device, dtype: torch.dtype) -> None:
    """On each way of CUDA's atomics, from tables that are not zeros; and rows out of line."""
    for size, count, width in [
        (7, 4000, 1),
        (900, 40, 3),
        (900, 400, 4),
        (7, 3000, 64),
        (9, 50, 9),
    ]:
        whole = torch.randint(-4, 4, (2, count, width))
        index = torch.randint(size, (2, count))
        start = torch.randint(-4, 4, (2, size, width)).to(dtype)
        exact = start.to(torch.complex128 if dtype.is_complex else torch.float64)
        expected = exact.scatter_add(
            1, index[:, :, None].expand(whole.shape), whole.to(exact.dtype)
        )
        for layout in range(4):
            out = other_layout(start.clone().to(device), layout)
            values = whole.to(dtype).to(device)
            if width == 1:
                result = torch_ops.scatter_add_(
                    out[:, :, 0], values[:, :, 0], index.to(device), batch_dims=1
                )
                assert result.data_ptr() == out.data_ptr()
            else:
                assert (
                    torch_ops.scatter_add_(out, values, index.to(device), -2, batch_dims=1) is out
                )
            if dtype.is_floating_point or dtype.is_complex:
                torch.testing.assert_close(out.cpu(), expected.to(dtype))  # 16 bits: rounded twice
            else:
                assert torch.equal(out.cpu(), expected.long().to(dtype))


def test_out_is_untouched_by_an_error() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        out = torch.ones(5, 3, dtype=dtype)
        values = torch.ones(4, 3, dtype=dtype)
        with pytest.raises(IndexError, match=r"scatter_add_?: index\[3\] is 5, out of range"):
            torch_ops.scatter_add_(out, values, torch.tensor([0, 1, 2, 5]))
        assert torch.equal(out, torch.ones(5, 3, dtype=dtype))


def test_errors_on_cuda(device: torch.device) -> None:
    if device.type == "cpu":
        return
    out = torch.ones(5, 3, device=device)
    torch_ops.scatter_add_(out, out.new_ones(2, 3), torch.tensor([0, 5], device=device))
    with pytest.raises(IndexError, match=r"scatter_add_: index\[1\] is 5, out of range"):
        torch_ops.check_errors()
    assert out.sum() == 18


def test_autograd_in_place(device: torch.device) -> None:
    index = torch.tensor([2, 0, 2], device=device)
    leaf = torch.ones(3, device=device, requires_grad=True)
    values = torch.tensor([1.0, 2, 3], device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        torch_ops.scatter_add_(leaf, values, index)
    out = leaf * 2
    view = out[:2]
    kept = out * out  # saves a value that is overwritten
    torch_ops.scatter_add_(out, values, index)
    assert out.tolist() == [4, 2, 6]
    weights = torch.tensor([1.0, 10, 100], device=device)
    (out * weights).sum().backward()
    assert leaf.grad.tolist() == [2, 20, 200]
    assert values.grad.tolist() == [100, 1, 100]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()
    # A part of a tensor: the gradient of the whole is right too.
    base = torch.zeros(2, 3, device=device) + values[0]
    torch_ops.scatter_add_(base[1], values * values, index)
    (grad,) = torch.autograd.grad(base.sum(), values)
    assert grad.tolist() == [6 + 2, 4, 6]
    assert view.tolist() == [4, 2]

    # Forward mode.
    def add(out: Tensor, values: Tensor) -> Tensor:
        return torch_ops.scatter_add_(out.clone(), values, index)

    tangents = torch.ones(3, device=device), torch.ones(3, device=device)
    _, tangent = torch.func.jvp(add, (leaf.detach(), values.detach()), tangents)
    assert tangent.tolist() == [2, 1, 3]


def test_vmap_in_place(device: torch.device) -> None:
    index = torch.tensor([[2, 0, 2], [1, 1, 1]], device=device)
    values = values_for((2, 3, 4), device, torch.float64)

    def add(out: Tensor, values: Tensor, index: Tensor) -> Tensor:
        return torch_ops.scatter_add_(out, values, index)

    for dims in ((0, 0, 0), (0, None, 0), (0, 0, None), (0, None, None), (1, 0, 0)):
        given = [t if d == 0 else t[0] for t, d in zip((values, index), dims[1:], strict=True)]
        out = torch.zeros(2, 3, 4, dtype=torch.float64, device=device)
        out = out.movedim(0, dims[0])
        torch.vmap(add, dims)(out, *given)
        for n in range(2):
            v, i = (t[n] if d == 0 else t for t, d in zip(given, dims[1:], strict=True))
            torch.testing.assert_close(out.select(dims[0], n), torch_ops.scatter_add(v, i, 3))
    shared = torch.zeros(3, 4, dtype=torch.float64, device=device)
    with pytest.raises(RuntimeError, match="cannot map over values or index where out is one"):
        torch.vmap(add, (None, 0, 0))(shared, values, index)


@pytest.mark.parametrize(
    ("out", "values", "index", "options", "error", "message"),
    [
        ((4, 3), (5, 2), (5,), {}, ValueError, r"fit out: axis 1 of out with shape \[4, 3\]"),
        (
            (4,),
            (5, 2),
            (5,),
            {},
            ValueError,
            r"out with shape \[4\] must have the axes of the sums",
        ),
        ((4, 3), (6, 3), (5,), {}, ValueError, "values must have index's axes at dim"),
        ((4, 3), (5, 3), (5,), {"dim": 2}, IndexError, "dim must be between -2 and 1 for out"),
        ((2, 4), (3, 5), (3, 5), {"batch_dims": 1}, ValueError, r"axis 0 of out"),
    ],
)
def test_bad_shapes(
    device: torch.device,
    out: tuple[int, ...],
    values: tuple[int, ...],
    index: tuple[int, ...],
    options: dict[str, int],
    error: type[Exception],
    message: str,
) -> None:
    arguments = (
        torch.zeros(out, device=device),
        torch.zeros(values, device=device),
        torch.zeros(index, dtype=torch.int64, device=device),
    )
    with pytest.raises(error, match=message):
        torch_ops.scatter_add_(*arguments, **options)
    with pytest.raises(error, match=message):
        torch_ops.scatter_add_(*(a.to("meta") for a in arguments), **options)


def test_bad_arguments(device: torch.device) -> None:
    out, index = torch.zeros(4, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    with pytest.raises(TypeError, match="must have one dtype, but out is Float and values is Doub"):
        torch_ops.scatter_add_(out, out[:2].double(), index)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch_ops.scatter_add_(out[:1].expand(4), torch.ones(2, device=device), index)
    with pytest.raises(RuntimeError, match=r"single memory location|overlap"):
        torch_ops.scatter_add_(out, out[:2], index)
    with pytest.raises(TypeError, match=r"values must be a tensor.*takes \(out, values, index"):
        torch_ops.scatter_add_(out, [1.0], index)
    with pytest.raises(ValueError, match=r'reduce must be "sum".*but it is "max"'):
        torch_ops.scatter(out[:2], index, 4, reduce="max")
    with pytest.raises(TypeError, match="reduce must be a string"):
        torch_ops.scatter(out[:2], index, 4, reduce=None)
    for reduce in ("amax", "prod"):
        with pytest.raises(TypeError, match="for this reduction, but it is ComplexFloat"):
            torch_ops.scatter(out[:2].to(torch.complex64), index, 4, reduce=reduce)
    with pytest.raises(ValueError, match="dim_size must not be negative"):
        torch_ops.scatter(out[:2], index, -1, reduce="mean")


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
    from torch_ops._ext.scatter import best_path

    assert best_path(entries=2**18, inner=64) == "sorted"
    assert best_path(entries=2**18 - 1, inner=64) == "atomics"  # small calls
    assert best_path(entries=2**19, inner=32) == "sorted"
    assert best_path(entries=2**24, inner=31) == "atomics"  # short rows


@pytest.mark.parametrize("hot", [False, True])
def test_runs_over_many_tiles(device: torch.device, hot: bool) -> None:
    """Rows that have most of the entries; on CUDA both ways to the largest value."""
    width = 64
    for count in (1000, 2**24 // width if device.type == "cuda" else 20_000):
        index = torch.randint(50, (count,), device=device)
        if hot:
            index[torch.rand(count, device=device) < 0.9] = 7
        values = torch.randint(-1000, 1000, (count, width), device=device).float()
        for reduce in ("amax", "amin"):
            leaf = values.clone().requires_grad_()
            actual = torch_ops.scatter(leaf, index, 60, reduce=reduce)
            wide = index[:, None].expand_as(values)
            expected = torch.zeros(60, width, device=device).scatter_reduce(
                0, wide, values, reduce, include_self=False
            )
            assert torch.equal(actual, expected)
            # To the first of several that are alike.
            (grad,) = torch.autograd.grad(actual.sum(), leaf)
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
        out = torch.zeros(case.source, device=device)
        torch_ops.scatter_add_(out, values.detach(), index_for(case, device), **case.kwargs)


# ---- Any call -----------------------------------------------------------------------------------


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


@given(call=row_calls(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int16]))
def test_any_scatter_add_(device: torch.device, call: dict[str, Any], dtype: torch.dtype) -> None:
    case = call["case"]
    if call["mode"] not in ("raise", "unchecked"):
        call["index"] = index_for(case, torch.device("cpu")) if case.source[case.axis] else None
        if call["index"] is None:
            return
    generator = torch.Generator().manual_seed(sum(case.output))
    values = torch.randint(-4, 4, case.output, generator=generator).to(dtype)
    start = torch.randint(-4, 4, case.source, generator=generator).to(dtype)
    out = other_layout(start.to(device), call["layout"])
    before = out.clone()
    torch_ops.scatter_add_(out, values.to(device), call["index"].to(device), **case.kwargs)
    sums = scatter_reference(values.double(), call["index"], case.source[case.axis], **case.kwargs)
    assert_same(out + 0, (before.cpu().double() + sums).to(dtype) + 0, f"{case}")
