from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gathering import (
    CASES,
    Case,
    bad_index,
    index_for,
    scatter_add_reference,
    scatter_arguments,
    sum_tolerance,
    values_for,
)
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from torch import Tensor

import torch_ops

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.output, device, dtype)
        yield Sample((values, index_for(case, device)), scatter_arguments(case))


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for case in CASES:
        if torch.Size(case.output).numel() <= 100:
            values = values_for(case.output, device, torch.float64)
            yield Sample((values, index_for(case, device)), scatter_arguments(case))


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, 4, 3), (size, size + 2), batch_dims=1)
    values = values_for(case.output, device, torch.float32)
    return Sample((values, index_for(case, device)), scatter_arguments(case))


def bad(device: torch.device) -> Iterator[Sample]:
    case = Case((2, 7, 3), (2, 5), batch_dims=1)
    values = values_for(case.output, device, torch.float32)
    for index in bad_index(index_for(case, device), 7):
        yield Sample((values, index), scatter_arguments(case))
    yield Sample((values, index_for(case, device)[:, :4]), scatter_arguments(case))
    yield Sample((values, index_for(case, device)), {**scatter_arguments(case), "dim_size": -1})


OPS = [
    Op(
        "scatter_add",
        torch_ops.scatter_add,
        scatter_add_reference,
        samples,
        sum_tolerance,
        dtypes=(*FLOATS, *COMPLEX),
        sums=True,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="ScatterAddBackward",
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "index_dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str
)
def test_integers_wrap(device: torch.device, dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    for case in CASES:
        if case.source[case.axis] > torch.iinfo(index_dtype).max:
            continue
        values = values_for(case.output, device, dtype)
        index = index_for(case, device, index_dtype)
        actual = torch_ops.scatter_add(values, index, **scatter_arguments(case))
        expected = scatter_add_reference(values.cpu(), index.cpu(), **scatter_arguments(case))
        assert_same(actual, expected, str(case))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_wide_unsigned_integers(device: torch.device, dtype: torch.dtype) -> None:
    case = Case((5, 3), (40,))
    values = values_for(case.output, torch.device("cpu"), dtype)
    index = index_for(case, torch.device("cpu"))
    actual = torch_ops.scatter_add(values.to(device), index.to(device), 5)
    assert_same(actual, scatter_add_reference(values, index, 5), str(dtype))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_half_complex(device: torch.device) -> None:
    values = torch.full((5000, 2), 1 + 2j, dtype=torch.complex32, device=device)
    index = torch.zeros(5000, dtype=torch.int32, device=device)
    result = torch_ops.scatter_add(values, index, 2)
    assert result.dtype == torch.complex32
    assert torch.view_as_real(result).float()[0].tolist() == [[5000, 10000]] * 2
    assert torch.view_as_real(result).float()[1].tolist() == [[0, 0]] * 2


def test_conjugate_views(device: torch.device) -> None:
    values = values_for((4, 3), device, torch.complex64)
    index = torch.tensor([1, 0, 1, 1], device=device)
    actual = torch_ops.scatter_add(values.conj(), index, 2)
    torch.testing.assert_close(actual, torch_ops.scatter_add(values.conj().clone(), index, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_summed_in_float32(device: torch.device, dtype: torch.dtype) -> None:
    case = Case((3, 8), (20_000,))
    values = values_for(case.output, device, dtype).abs()
    index = index_for(case, device)
    actual = torch_ops.scatter_add(values, index, 3)
    expected = scatter_add_reference(values.cpu().double(), index.cpu(), 3)
    # One rounding to the format, and float32's own over some 7,000 terms.
    torch.testing.assert_close(
        actual.cpu().double(), expected, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-2
    )


def test_it_is_the_transpose_of_gather(device: torch.device) -> None:
    """<gather(s), v> = <s, scatter_add(v)>."""
    for case in CASES:
        source = values_for(case.source, device, torch.float64)
        values = values_for(case.output, device, torch.float64, seed=1)
        index = index_for(case, device)
        left = (torch_ops.gather(source, index, **case.kwargs) * values).sum()
        right = (source * torch_ops.scatter_add(values, index, **scatter_arguments(case))).sum()
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_deterministic_argument(device: torch.device, dtype: torch.dtype) -> None:
    """The same bits on every run, under vmap and as a tangent too; nothing raises on any device."""
    index = torch.randint(20, (2, 5000), device=device)
    for row in (1, 3, 40):
        values = values_for((2, 5000, row), device, dtype)

        def add(values: Tensor) -> Tensor:
            return torch_ops.scatter_add(values, index, 20, batch_dims=1, deterministic=True)

        first = add(values)
        for _ in range(3):
            assert_same(add(values), first, f"{row}")
        _, tangent = torch.func.jvp(add, (values,), (values,))
        assert_same(tangent, first, f"{row}")
        batched = torch.vmap(add)(torch.stack([values, values]))
        assert_same(batched[1], first, f"{row}")
        torch.library.opcheck(
            torch.ops.torch_ops.scatter_add.default,
            (values, index, 20),
            {"batch_dims": 1, "deterministic": True},
        )
        applied = torch_ops.ScatterAddFunction.apply(values, index, 20, None, 1, True)
        assert_same(applied, first, f"{row}")


def test_deterministic_argument_and_the_global_flag(device: torch.device) -> None:
    index = torch.randint(20, (5000,), device=device)
    values = values_for((5000, 3), device, torch.float32)
    expected = torch_ops.scatter_add(values, index, 20, deterministic=True)
    fast = torch_ops.scatter_add(values, index, 20, deterministic=False)
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(torch_ops.scatter_add(values, index, 20), expected, "the flag alone")
        against = torch_ops.scatter_add(values, index, 20, deterministic=False)
    finally:
        torch.use_deterministic_algorithms(False)
    # Some 250 numbers near 1 a row.
    torch.testing.assert_close(fast, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(against, expected, rtol=0, atol=1e-4)


def test_function_class(device: torch.device) -> None:
    values = values_for((2, 4, 3), device, torch.float64).requires_grad_()
    index = torch.tensor([[3, 3, 0, 1], [0, 1, 1, 1]], device=device)

    def apply(values: Tensor) -> Tensor:
        return torch_ops.ScatterAddFunction.apply(values, index, 5, None, 1)

    assert torch.equal(apply(values), torch_ops.scatter_add(values, index, 5, batch_dims=1))
    slack = 0.0 if device.type == "cpu" else 1e-12
    assert torch.autograd.gradcheck(apply, values, check_forward_ad=True, nondet_tol=slack)
    assert torch.autograd.gradgradcheck(apply, values, nondet_tol=slack)
    plain = torch_ops.ScatterAddFunction.apply(values, index, 5)
    assert torch.equal(plain, torch_ops.scatter_add(values, index, 5))


@pytest.mark.parametrize("in_dims", [(0, 0), (1, 1), (1, None), (None, 0)])
def test_vmap(device: torch.device, in_dims: tuple[int | None, int | None]) -> None:
    for case in (Case((7, 3), (5,)), Case((2, 7, 3), (2, 5), batch_dims=1), Case((4, 7), (5,), 1)):
        size = 3
        values = values_for((size, *case.output), device, torch.float64)
        index = torch.stack([index_for(case, device, seed=seed) for seed in range(size)])
        if in_dims[0] is None:
            values = values[:1].expand_as(values)
        if in_dims[1] is None:
            index = index[:1].expand_as(index)
        options = scatter_arguments(case)
        expected = torch.stack(
            [torch_ops.scatter_add(v, i, **options) for v, i in zip(values, index, strict=True)]
        )
        hidden = [
            t[0] if d is None else t.movedim(0, d)
            for t, d in zip((values, index), in_dims, strict=True)
        ]
        actual = torch.vmap(lambda v, i, k=options: torch_ops.scatter_add(v, i, **k), in_dims)(
            *hidden
        )
        torch.testing.assert_close(actual, expected)


# ---- Bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "index", "options", "error", "message"),
    [
        ((3,), (3,), {"dim_size": -1}, ValueError, "dim_size must not be negative, but it is -1"),
        ((3,), (3,), {"dim": 1}, IndexError, "between -1 and 0, since .* of the result is 1"),
        ((3, 4), (3,), {"dim": -3}, IndexError, "between -2 and 1, since .* of the result is 2"),
        ((3,), (3, 4), {}, ValueError, r"values must have at least as many axes as index.*\[3\]"),
        ((3, 4), (3, 4), {"batch_dims": 3}, ValueError, "batch_dims must be between 0 and index"),
        ((3, 4), (3, 4), {"batch_dims": 1, "dim": 0}, ValueError, "dim must not be a batch axis"),
        ((3, 4), (2, 4), {"batch_dims": 1}, ValueError, r"same batch axes: axis 0 of values"),
        ((3, 4), (5,), {}, ValueError, r"index's axes at dim: axis 0 of values.*\[3, 4\].*\[5\]"),
        ((3, 4), (5,), {"dim": 1}, ValueError, r"index's axes at dim: axis 1 of values.*\[3, 4\]"),
    ],
)
def test_bad_arguments(
    device: torch.device,
    values: tuple[int, ...],
    index: tuple[int, ...],
    options: dict[str, int],
    error: type[Exception],
    message: str,
) -> None:
    args = torch.zeros(values, device=device), torch.zeros(index, dtype=torch.int64, device=device)
    with pytest.raises(error, match=message):
        torch_ops.scatter_add(*args, **{"dim_size": 4, **options})
    with pytest.raises(error, match=message):
        torch_ops.scatter_add(*(a.to("meta") for a in args), **{"dim_size": 4, **options})


def test_wrong_types(device: torch.device) -> None:
    index = torch.zeros(3, dtype=torch.int64, device=device)
    with pytest.raises(TypeError, match=r"values must be of an integer type.* is torch\.bool"):
        torch_ops.scatter_add(index.bool(), index, 4)
    with pytest.raises(TypeError, match=r"values must be of an integer type.*torch\.float8"):
        torch_ops.scatter_add(index.to(torch.float8_e5m2), index, 4)
    with pytest.raises(TypeError, match="index must be uint8, int8, int16, int32 or int64"):
        torch_ops.scatter_add(index, index.float(), 4)
    with pytest.raises(TypeError, match="index must be a tensor, but an int was given"):
        torch_ops.scatter_add(index, 0, index)


@pytest.mark.parametrize("bad", [-1, 4])
def test_out_of_range(device: torch.device, bad: int) -> None:
    values = torch.ones(2, 3, device=device)
    index = torch.tensor([[0, 1, 2], [3, bad, 0]], device=device)
    if device.type == "cpu":
        message = rf"scatter_add: index\[1, 1\] is {bad}, out of range for an axis of size 4"
        with pytest.raises(IndexError, match=message):
            torch_ops.scatter_add(values, index, 4, batch_dims=1)
        with pytest.raises(IndexError, match="but the axis has size 0"):
            torch_ops.scatter_add(values, index, 0, batch_dims=1)
        return
    result = torch_ops.scatter_add(values, index, 4, batch_dims=1)
    with pytest.raises(IndexError, match=rf"scatter_add: index\[1, 1\] is {bad}, out of range for"):
        torch_ops.check_errors()
    assert result.tolist() == [[1, 1, 1, 0], [1, 0, 0, 1]]


def test_direct_pair(device: torch.device) -> None:
    from torch_ops._ext import scatter

    values = torch.ones(3, 2, device=device)
    index = torch.tensor([4, 0, 4], device=device)
    if device.type == "cpu":
        with pytest.raises(RuntimeError, match="values must be a CUDA tensor, but it is on cpu"):
            scatter.forward(values, index, 5)
        return
    result = scatter.forward(values, index, 5)
    assert result[:, 0].tolist() == [1, 0, 0, 0, 2]
    assert torch.equal(scatter.backward(result, index), result[index])


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.int64):
        for case in CASES:
            values = values_for(case.output, device, dtype)
            index = index_for(case, device, torch.int32)
            result = torch_ops.scatter_add(values, index, **scatter_arguments(case))
            assert result.shape == case.source
