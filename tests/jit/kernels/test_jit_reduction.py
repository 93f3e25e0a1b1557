"""ReductionKernel: axes, dtypes, order, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from op_checks import layouts_of
from torch import Tensor

from torch_ops.jit import CompileError, ReductionKernel

SUM = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, "total")
NORM = ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", 0, "norm")
DOT = ReductionKernel("T x, T y", "T z", "x * y", "a + b", "z = a", 0.0, "dot")
LARGEST = ReductionKernel("T x", "T y", "x", "a > b ? a : b", "y = a", None, "largest")


def random(shape: tuple[int, ...], device: torch.device, dtype=torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(3 + sum(shape))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values * 10 if not dtype.is_floating_point else values).to(dtype).to(device)


SHAPES = [(), (1,), (7,), (300,), (4, 5), (1, 9), (70, 3), (3, 700), (2, 3, 4, 5), (9, 1, 8, 33)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_axes(shape: tuple[int, ...], device: torch.device) -> None:
    x = random(shape, device, torch.float64)
    rank = len(shape)
    dims: list[object] = [None, *range(-rank, rank)]
    dims += [(0, rank - 1), tuple(range(rank)), (), (-1, 0, 1)[: min(rank, 2)]] if rank > 1 else []
    for dim in dims:
        for keepdim in (False, True):
            if dim == ():
                expected = x
            else:
                expected = torch.sum(x, dim=dim, keepdim=keepdim)
            actual = SUM(x, dim=dim, keepdim=keepdim)
            assert actual.shape == expected.shape, (dim, keepdim)
            torch.testing.assert_close(actual, expected)
            out = torch.empty_like(expected)
            assert torch.equal(SUM(x, dim=dim, keepdim=keepdim, out=out), actual)
            assert torch.equal(out, actual)


def test_layouts(device: torch.device) -> None:
    for shape in ((33,), (5, 7), (2, 3, 4, 5)):
        x = random(shape, device, torch.float64)
        for name, view in (*layouts_of(x), ("expanded", x[:1].expand(shape))):
            for dim in (None, 0, -1):
                torch.testing.assert_close(SUM(view, dim=dim), view.sum(dim), msg=name)


@pytest.mark.parametrize("size", [1, 31, 1000, 16384, 16385, 100_003, 1_500_000])
def test_sizes_around_the_parts(size: int, device: torch.device) -> None:
    """Several passes; sums of integers show every element that is missing or counted twice."""
    x = torch.arange(size, device=device)
    assert SUM(x) == size * (size - 1) // 2
    assert LARGEST(x) == size - 1
    if size < 200_000:
        rows = torch.stack([x, -x, x + 1])
        assert SUM(rows, dim=1).tolist() == [SUM(x), -SUM(x), SUM(x) + size]
        assert torch.equal(SUM(rows.T.contiguous(), dim=0), SUM(rows, dim=1))
        assert torch.equal(SUM(rows, dim=0), rows.sum(0))


def integers(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Sums of them are exact, so that an element left out or counted twice shows."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(dtype).to(device)


# Sixteen, eight, four, two and one to a word of 16 bytes.
WORDS = [torch.uint8, torch.bfloat16, torch.float32, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", WORDS, ids=str)
def test_rows_that_begin_within_words(dtype: torch.dtype, device: torch.device) -> None:
    """Of any length, from any element of a word on; few rows in parts."""
    wide_type = torch.complex128 if dtype.is_complex else torch.float64
    exact = ReductionKernel("T x", f"{str(wide_type)[6:]} y", "x", "a + b", "y = a", 0, "exact")
    # Of the most and of the fewest to a word, also what has other kernels: a row or two elements.
    is_extreme = dtype in (WORDS[0], WORDS[-1])
    for rows, length in (
        *((19, length) for length in (1, 2)[: 2 * is_extreme]),
        *((19, length) for length in (3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 64, 129, 333)),
        (300, 1001), (2, 20_011), *[(1, 70_003)][: is_extreme],
    ):  # fmt: skip
        memory = integers((rows * length + 40,), device, dtype)
        for offset in (0, 1, 3, 8) if rows > 1 else (0, 5):
            x = memory[offset:][: rows * length].view(rows, length)
            assert torch.equal(exact(x, dim=1), x.to(wide_type).sum(1)), (length, offset)
        wide = memory[: rows * length].view(rows, length)
        for x in (wide[:, 1:], wide[:, :-1], wide[1:, 2:-1]):
            if x.numel() > 0:
                assert torch.equal(exact(x, dim=1), x.to(wide_type).sum(1)), length
    x = integers((5, 7, 101), device, dtype)
    for dim in (2, (1, 2), (0, 2))[: 2 + is_extreme]:
        assert torch.equal(exact(x, dim=dim), x.to(wide_type).sum(dim)), dim


def test_rows_of_several_inputs(device: torch.device) -> None:
    """Whose words begin at other elements, or which are the same for a row or in all rows."""
    dot = ReductionKernel("T x, U y", "float64 z", "x * y + 1", "a + b", "z = a", 0)
    for rows, length in ((9, 64), (40, 257), (2, 9001), (2, 300_007)):
        x = integers((rows, length + 3), device, torch.float32)
        half, byte = x.bfloat16(), x.to(torch.int8)
        odd = x[:, :length]
        for y in (
            odd, x[:, 3:], x[:, 1:-2], x[:, :1], x[0, :length], x[:1, 1:-2], x[0, 0],
            half[:, :length], half[:, 2:-1], half[0, 3:], byte[:, 3:], byte[:, :1],
            x.T.contiguous().T[:, :length],
        ):  # fmt: skip
            expected = (odd.double() * y + 1).sum(1)
            assert torch.equal(dot(odd, y, dim=1), expected)
            if y.dtype != torch.bfloat16:
                assert torch.equal(dot(y, odd, dim=1), expected)
    first = ReductionKernel("T x, T y", "T z", "x * y", "a > b ? a : b", "z = a", None)
    x = random((33, 65), device)
    assert torch.equal(first(x, x[:, :1], dim=1), (x * x[:, :1]).amax(1))


@pytest.mark.parametrize("length", [1, 2, 3, 12, 31, 32, 33, 67])
def test_short_rows(length: int, device: torch.device) -> None:
    """In numbers around those that are reduced together, and axes that are not joined."""
    for rows in (1, 7, 8, 15, 16, 17, 100, 1000):
        x = integers((rows, length, 2), device, torch.int32)
        for view in (x[..., 0].contiguous(), x[..., 1], x[:, :, 0].T.contiguous().T):
            assert torch.equal(SUM(view, dim=1), view.sum(1, dtype=torch.int32))
    x = integers((3, 20, length + 1), device, torch.bfloat16)[:, :, 1:]
    assert torch.equal(SUM(x, dim=2), x.double().sum(2).bfloat16())
    assert torch.equal(DOT(x, x[:1], dim=2), (x.double() * x[:1]).sum(2).bfloat16())
    assert torch.equal(LARGEST(x, dim=(0, 2)), x.amax((0, 2)))


COLUMNS = [
    (1, 5), (3, 1), (2, 4099), (5, 300), (40, 260), (700, 33), (1000, 3), (3000, 16), (257, 1024),
    (100_000, 7), (20_000, 64),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_columns(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    """Few and many of them, words of 16 bytes or less, tails; the output a row or strided."""
    count = ReductionKernel("T x", "int64 n", "x", "a + b", "n = a", 0, "count")
    x = integers((*shape, 2), device, dtype)
    row = x[..., 0].contiguous()
    expected = row.long().sum(0)
    for view in (row, x[..., 1], row[:, 1:], row[1:], row.T.contiguous().T):
        assert torch.equal(count(view, dim=0), view.long().sum(0)), view.stride()
    out = torch.empty(2 * shape[1], dtype=torch.int64, device=device)[::2]
    assert torch.equal(count(row, dim=0, out=out), expected)
    small = row[:100]
    if dtype != torch.uint8:  # whose sums do not fit
        assert torch.equal(SUM(small, dim=0), small.double().sum(0).to(dtype))


def test_columns_of_several_inputs(device: torch.device) -> None:
    """Of which some are the same for all rows, or for all of a row, or lie otherwise."""
    dot = ReductionKernel("T x, T y", "float64 z", "x * y + 1", "a + b", "z = a", 0)
    for rows, columns in ((90, 64), (301, 10), (7, 520)):
        x = integers((rows, columns), device, torch.float32)
        others = [x, x[0], x[:1], x[:, :1], x[0, 0], x[:1, :1], x.T.contiguous().T, x[:, -1:]]
        for y in (*others, *(other.bfloat16() for other in others[:5]), 3):
            of_one_type = not isinstance(y, Tensor) or y.dtype == x.dtype
            for a, b in ((x, y), (y, x))[: 1 + of_one_type]:
                assert torch.equal(dot(a, b, dim=0), (a * b + 1).double().sum(0))
    # Several axes that are kept, and several that are reduced.
    x = integers((6, 9, 5, 8), device, torch.bfloat16)
    y = x[0, :, :1, :1]
    for dim in ((0, 2), 1, (0, 1), 0, 2):
        assert torch.equal(dot(x, y, dim=dim), (x.double() * y + 1).sum(dim))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits_are_summed_in_float32(dtype: torch.dtype, device: torch.device) -> None:
    ones = torch.ones(30_000, dtype=dtype, device=device)
    assert SUM(ones).item() == torch.tensor(30_000.0).to(dtype).item()
    x = random((50, 600), device, dtype)
    torch.testing.assert_close(SUM(x, dim=1), x.double().sum(1).to(dtype), rtol=0.01, atol=0.2)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float64], ids=str
)
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    x = random((40, 30), device, dtype)
    assert torch.equal(LARGEST(x, dim=1), x.amax(1))
    count = ReductionKernel("T x", "int64 n", "x != T(0)", "a + b", "n = a", 0, "count")
    assert torch.equal(count(x, dim=0), (x != 0).sum(0))


def test_several_inputs_and_numbers(device: torch.device) -> None:
    x, y = random((6, 5), device), random((5,), device)
    torch.testing.assert_close(DOT(x, y, dim=1), x @ y)
    torch.testing.assert_close(DOT(x, 2.0), 2 * x.sum())
    torch.testing.assert_close(DOT(x, torch.tensor(2.0)), 2 * x.sum())
    scaled = ReductionKernel("T x, raw T w", "T y", "x * w[1]", "a + b",
                             "y = a / (_in_ind.size() / _out_ind.size())", 0)  # fmt: skip
    torch.testing.assert_close(scaled(x, y, dim=1), x.mean(1) * y[1])
    twice = ReductionKernel("T x", "T y", "f(x)", "a + b", "y = a", 0,
                            preamble="__device__ float f(float a) { return 2 * a; }")  # fmt: skip
    torch.testing.assert_close(twice(x), 2 * x.sum())


def test_empty(device: torch.device) -> None:
    x = torch.empty(3, 0, device=device)
    assert SUM(x, dim=1).tolist() == [0, 0, 0]
    assert SUM(x).item() == 0
    assert SUM(x, dim=0).shape == (0,)
    assert LARGEST(x, dim=0).shape == (0,)
    with pytest.raises(ValueError, match=r"largest: there is no element to reduce.*no identity"):
        LARGEST(x, dim=1)
    least = ReductionKernel("T x", "T y", "x", "a < b ? a : b", "y = a", math.inf)
    assert least(x, dim=1).tolist() == [math.inf] * 3
    assert least(random((4,), device)).item() == random((4,), device).min().item()


@pytest.mark.parametrize(
    "identity", [np.float64(1.5), np.float32(1.5), np.int64(2), np.bool_(True), True, "T(1) / 2"],
    ids=repr,
)  # fmt: skip
def test_identity_of_any_type_of_number(identity: object, device: torch.device) -> None:
    kernel = ReductionKernel("T x", "T y", "x", "a * b", "y = a", identity)
    expected = 0.5 if isinstance(identity, str) else float(identity)
    assert kernel(torch.empty(0, device=device)).item() == expected


def test_nan(device: torch.device) -> None:
    x = random((100,), device)
    x[17] = math.nan
    assert SUM(x).isnan()
    x[17] = math.inf
    assert SUM(x).item() == math.inf
    rows = random((101, 101), device)
    rows.fill_diagonal_(math.nan)  # in each place of a word, and before and after the words
    assert SUM(rows, dim=1).isnan().all()
    rows.fill_diagonal_(0)
    before = rows.flatten()[103:]
    before[:-1000] = math.nan
    assert not SUM(before[-1000:].view(8, 125), dim=1).isnan().any()


def test_deterministic(device: torch.device) -> None:
    """To the last bit, on any number of threads."""
    for shape, dim in (((400_000,), None), ((100, 4000), 0), ((4000, 100), 1), ((3, 70_000), 1),
                       ((70_000, 3), 0), ((9000, 64), 0)):  # fmt: skip
        x = random(shape, device)
        first = SUM(x, dim=dim)
        threads = torch.get_num_threads()
        try:
            for number in (1, 2, threads):
                torch.set_num_threads(number)
                assert torch.equal(SUM(x, dim=dim), first)
        finally:
            torch.set_num_threads(threads)


def test_errors(device: torch.device) -> None:
    x = random((3, 4), device)
    with pytest.raises(IndexError, match="total: dim must be between -2 and 1, but it is 2"):
        SUM(x, dim=2)
    with pytest.raises(ValueError, match="dim 1 is named twice"):
        SUM(x, dim=(1, -1))
    for dim in ("rows", 1.0, [None]):
        with pytest.raises(TypeError, match=r"^total: dim must be None, an int or several, but"):
            SUM(x, dim=dim)
    with pytest.raises(ValueError, match=r"^total: dim must fit in 64 bits"):
        SUM(x, dim=2**70)
    with pytest.raises(TypeError, match=r"^total: keepdim must be a bool, but it is 'yes'"):
        SUM(x, keepdim="yes")
    with pytest.raises(ValueError, match=r"out has shape \[4\], but the result has \[3\]"):
        SUM(x, dim=1, out=torch.empty(4, device=device))
    with pytest.raises(TypeError, match=r"not cast to torch\.int32"):
        SUM(x, dim=1, out=torch.empty(3, dtype=torch.int32, device=device))
    with pytest.raises(RuntimeError, match="unsupported operation"):
        SUM(x, dim=1, out=x.view(-1)[:3])
    with pytest.raises(TypeError, match=r"dim=, keepdim= and out=, but got axis=\. CuPy's axis"):
        SUM(x, axis=1)
    with pytest.raises(TypeError, match="total: the number of arguments must be 1, but it is 2"):
        SUM(x, x)
    with pytest.raises(TypeError, match="x must be a tensor or a number, but it is str"):
        SUM("x")
    with pytest.raises(TypeError, match="a tensor at least"):
        SUM(1.0)
    with pytest.raises(ValueError, match="does not broadcast with"):
        DOT(x, x[:, :3])
    with pytest.raises(ValueError, match="one output that is not raw"):
        ReductionKernel("T x", "T y, T z", "x", "a + b", "y = a", 0)
    with pytest.raises(TypeError, match="identity must be a number"):
        ReductionKernel("T x", "T y", "x", "a + b", "y = a", [0])
    with pytest.raises(ValueError, match=f"identity is {2**70}, which no integer"):
        ReductionKernel("T x", "T y", "x", "a + b", "y = a", 2**70)
    for text in ("sqrt(a)", "y == a", ""):
        with pytest.raises(ValueError, match=r"post_map_expr assigns the output y nowhere\. Write"):
            ReductionKernel("T x", "T y", "x * x", "a + b", text, 0)
    for snippets, name in (
        (("nothing", "a + b", "y = a"), "map_expr"),
        (("x", "a +* b", "y = a"), "reduce_expr"),
        (("x", "a + b", "y = wrong"), "post_map_expr"),
        (("x)", "a + b", "y = a"), "map_expr"),
    ):
        with pytest.raises(CompileError) as caught:
            ReductionKernel("T x", "T y", *snippets, 0)(x)
        assert caught.value.name == name


@pytest.mark.parametrize("part", ["map_expr", "reduce_expr", "post_map_expr"])
def test_unfinished_texts(part: str, device: torch.device) -> None:
    parts = {"map_expr": "x", "reduce_expr": "a + b", "post_map_expr": "y = a"}
    parts[part] += " *"
    with pytest.raises(CompileError) as found:
        ReductionKernel("T x", "T y", *parts.values(), "0")(torch.ones(2, device=device))
    assert (found.value.name, found.value.line) == (part, 1)


def test_no_gradient(device: torch.device) -> None:
    x = random((3, 4), device).requires_grad_()
    y = SUM(x, dim=1)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match='ReductionKernel "total" has no gradient'):
        y.sum().backward()
    with torch.no_grad():
        assert not SUM(x).requires_grad
    assert not SUM(x.detach()).requires_grad


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for shape in ((1,), (33,), (5, 3), (700, 2), (2, 700), (9, 107), (130, 36), (3000, 5)):
        x = torch.ones(shape, device=device)
        for dim in (None, 0, -1):
            torch.testing.assert_close(SUM(x, dim=dim), x.sum(dim))
            half = x.bfloat16()[1:] if len(shape) > 1 else x.bfloat16()
            torch.testing.assert_close(SUM(half, dim=dim), half.sum(dim))
    x, y = torch.ones(40, 6, 24, device=device), torch.ones(6, 1, device=device)
    for dim in (0, 1, 2, (0, 1), (0, 2)):
        torch.testing.assert_close(DOT(x, y, dim=dim), x.sum(dim))
