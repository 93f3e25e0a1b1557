"""scatter_add_: sums into a tensor that is there already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gathering import Case, bad_index, index_for, sum_tolerance, values_for
from hypothesis import given
from hypothesis import strategies as st
from modes import CASES, other_layout, row_calls, scatter_reference
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from torch import Tensor

import torch_ops


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        out = values_for(case.source, device, dtype, seed=1)
        values = values_for(case.output, device, dtype)
        yield Sample((out, values, index_for(case, device)), case.kwargs)


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for sample in samples(device, torch.float64):
        if sample.args[0].numel() <= 40:
            yield sample


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, size + 1, 3), (size, size + 2), batch_dims=1)
    out = values_for(case.source, device, torch.float32, seed=1)
    values = values_for(case.output, device, torch.float32)
    return Sample((out, values, index_for(case, device)), case.kwargs)


def bad(device: torch.device) -> Iterator[Sample]:
    out, values = (values_for((n, 3), device, torch.float32) for n in (4, 5))
    for index in bad_index(torch.tensor([0, 3, 1, 0, 2], device=device), 4):
        yield Sample((out, values, index))
    yield Sample((out, values.double(), torch.tensor([0, 3, 1, 0, 2], device=device)))
    yield Sample((out, values[:, :2], torch.tensor([0, 3, 1, 0, 2], device=device)))


def reference(out: Tensor, values: Tensor, index: Tensor, **options: Any) -> Tensor:
    batch_dims = options["batch_dims"]
    dim = batch_dims if options["dim"] is None else options["dim"]
    return out + scatter_reference(values, index, out.shape[dim], **options)


def rounded_twice(dtype: torch.dtype) -> tuple[float, float]:
    """16 bits on CUDA: the sum, and what it is added to."""
    rtol, atol = sum_tolerance(dtype)
    return rtol, atol + (8 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)


OPS = [
    Op(
        "scatter_add_",
        torch_ops.scatter_add_,
        reference,
        samples,
        rounded_twice,
        sums=True,
        inplace=True,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="ScatterAddInplaceBackward",
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8], ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_integers_that_torch_does_not_add(
    device: torch.device, dtype: torch.dtype, deterministic: bool
) -> None:
    """Not all of them, nor everywhere; they wrap."""
    start = torch.tensor([[1, 2], [3, 127], [5, 6]])
    values, index = torch.tensor([[1, 1], [2, 2], [3, 3]]), torch.tensor([1, 1, 0], device=device)
    expected = start.index_add(0, index.cpu(), values).to(dtype)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        for out in (start, start.t().contiguous().t()):
            out = out.to(dtype).to(device)
            torch_ops.scatter_add_(out, values.to(dtype).to(device), index)
            assert torch.equal(out.cpu().long(), expected.long())
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8], ids=str)
def test_they_are_added_under_functionalize_too(device: torch.device, dtype: torch.dtype) -> None:
    """Where the sums are made first, and added as a tensor."""
    start = torch.tensor([[1, 2], [3, 127], [5, 6]])
    values, index = torch.tensor([[1, 1], [2, 2], [3, 3]]), torch.tensor([1, 1, 0])
    expected = start.index_add(0, index, values).to(dtype)
    index = index.to(device)

    def add(out: Tensor, values: Tensor) -> Tensor:
        return torch_ops.scatter_add_(out.clone(), values, index)

    def put(out: Tensor, values: Tensor) -> Tensor:
        return torch_ops.index_put_(out.clone(), (index,), values, accumulate=True)

    for call in (add, put):
        arguments = start.to(dtype).to(device), values.to(dtype).to(device)
        functional = torch.func.functionalize(call)(*arguments)
        assert torch.equal(functional.cpu().long(), expected.long()), call
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(*arguments)
        assert torch.equal(compiled.cpu().long(), expected.long()), call


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
                torch.testing.assert_close(
                    out.cpu(), expected.to(dtype)
                )  # 16 bits: rounded twice on CUDA
            else:
                assert torch.equal(out.cpu(), expected.long().to(dtype))


def test_out_is_untouched_by_an_error() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        out = torch.ones(5, 3, dtype=dtype)
        values = torch.ones(4, 3, dtype=dtype)
        with pytest.raises(IndexError, match=r"scatter_add_?: index\[3\] is 5, out of range"):
            torch_ops.scatter_add_(out, values, torch.tensor([0, 1, 2, 5]))
        assert torch.equal(out, torch.ones(5, 3, dtype=dtype))


def test_an_index_that_is_added_to(device: torch.device) -> None:
    """Its entries are those from before."""
    count = 5000
    index = (torch.arange(count, device=device) + count // 2) % count
    values = torch.full((count,), 10**6, device=device)
    expected = index + 10**6
    out = index.clone()
    torch_ops.scatter_add_(out, values, out)
    assert torch.equal(out, expected)
    out = index.clone()
    torch_ops.index_put_(out, out, 10**6, accumulate=True)
    assert torch.equal(out, expected)


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
        (
            (4, 3),
            (5, 3),
            (5,),
            {"dim": 2},
            IndexError,
            "between -2 and 1, since the number of axes of out is 2",
        ),
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
    with pytest.raises(TypeError, match=r"but out is torch\.float32 and values is torch\.float64"):
        torch_ops.scatter_add_(out, out[:2].double(), index)
    with pytest.raises(RuntimeError, match=r"^scatter_add_: elements of out must not share"):
        torch_ops.scatter_add_(out[:1].expand(4), torch.ones(2, device=device), index)
    with pytest.raises(TypeError, match=r"values must be a tensor.*takes \(out, values, index"):
        torch_ops.scatter_add_(out, [1.0], index)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for case in CASES:
        values = values_for(case.output, device, torch.float32)
        out = torch.zeros(case.source, device=device)
        torch_ops.scatter_add_(out, values, index_for(case, device), **case.kwargs)


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
