from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from gathering import (
    CASES,
    SPREADS,
    Case,
    bad_index,
    index_for,
    scatter_add_reference,
    spread_index,
    values_for,
)
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from torch import Tensor

import torch_ops

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)


def arguments(case: Case) -> dict[str, Any]:
    return {"dim_size": case.source[case.axis], **case.kwargs}


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.output, device, dtype)
        yield Sample((values, index_for(case, device)), arguments(case))


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for case in CASES:
        if torch.Size(case.output).numel() <= 100:
            values = values_for(case.output, device, torch.float64)
            yield Sample((values, index_for(case, device)), arguments(case))


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, 4, 3), (size, size + 2), batch_dims=1)
    values = values_for(case.output, device, torch.float32)
    return Sample((values, index_for(case, device)), arguments(case))


def bad(device: torch.device) -> Iterator[Sample]:
    case = Case((2, 7, 3), (2, 5), batch_dims=1)
    values = values_for(case.output, device, torch.float32)
    for index in bad_index(index_for(case, device), 7):
        yield Sample((values, index), arguments(case))
    yield Sample((values, index_for(case, device)[:, :4]), arguments(case))
    yield Sample((values, index_for(case, device)), {**arguments(case), "dim_size": -1})


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Gives (rtol, atol).

    16 bits are rounded once from a float32 sum. A sum of n numbers near 1 is off by some n eps at
    most, whatever it is itself; here n is 400 (all values alike, on one row) at the most.
    """
    info = torch.finfo(dtype)
    summed = torch.finfo(torch.float32) if info.bits == 16 else info
    return 0.51 * info.eps if info.bits == 16 else 0.0, 400 * summed.eps


OPS = [
    Op(
        "scatter_add",
        torch_ops.scatter_add,
        scatter_add_reference,
        samples,
        tolerance,
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
@pytest.mark.parametrize("index_dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_integers_wrap(device: torch.device, dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    for case in CASES:
        if case.source[case.axis] > torch.iinfo(index_dtype).max:
            continue
        values = values_for(case.output, device, dtype)
        index = index_for(case, device, index_dtype)
        actual = torch_ops.scatter_add(values, index, **arguments(case))
        expected = scatter_add_reference(values.cpu(), index.cpu(), **arguments(case))
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
        right = (source * torch_ops.scatter_add(values, index, **arguments(case))).sum()
        torch.testing.assert_close(left, right)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# Rows of one element to several pieces of 32 vectors.
ROWS = [1, 3, 4, 8, 33, 64, 200, 600]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spread", SPREADS)
def test_deterministic(device: torch.device, dtype: torch.dtype, spread: str) -> None:
    """The sorted way: right on every spread, and the same bits on every run."""
    for row in ROWS:
        for size, count in [(7, 3000), (1000, 2100)]:
            index = spread_index(spread, size, count, 2)
            values = values_for((2, count, row), torch.device("cpu"), dtype)
            call = (values.to(device), index.to(device), size)
            first = torch_ops.scatter_add(*call, batch_dims=1)
            assert_same(torch_ops.scatter_add(*call, batch_dims=1), first, f"{row} {size}")
            expected = torch.zeros(2, size, row, dtype=torch.float64)
            expected.scatter_add_(1, index[:, :, None].expand(values.shape), values.double())
            rtol, _ = tolerance(dtype)
            summed = torch.float32 if dtype.itemsize == 2 else dtype
            # Up to 3000 numbers near 1 that cancel: partial sums reach some 150.
            torch.testing.assert_close(
                first.cpu().double(), expected, rtol=rtol, atol=10_000 * torch.finfo(summed).eps
            )


@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str
)
@pytest.mark.parametrize("spread", SPREADS)
def test_every_way(device: torch.device, dtype: torch.dtype, spread: str) -> None:
    """The default on every spread and row length, aligned to four entries and not."""
    for row in (1, 2, 3, 4, 5, 7, 8, 12, 33, 64, 200):
        for size, count in [(7, 3000), (1000, 2100), (1000, 2101)]:
            index = spread_index(spread, size, count, 2)
            values = values_for((2, count, row), torch.device("cpu"), dtype)
            if row == 1:
                values = values[:, :, 0]
            actual = torch_ops.scatter_add(
                values.to(device), index.to(device).int(), size, batch_dims=1
            )
            if dtype.is_floating_point:
                expected = torch.zeros(actual.shape, dtype=torch.float64)
            else:
                expected = torch.zeros(actual.shape, dtype=dtype)
            picked = index if row == 1 else index[:, :, None].expand(values.shape)
            expected.scatter_add_(1, picked, values.to(expected.dtype))
            if dtype.is_floating_point:
                rtol, _ = tolerance(dtype)
                summed = torch.float32 if dtype.itemsize == 2 else dtype
                torch.testing.assert_close(
                    actual.cpu().double(),
                    expected,
                    rtol=rtol,
                    atol=10_000 * torch.finfo(summed).eps,
                )
            else:
                assert_same(actual.cpu(), expected, f"{row} {size} {count}")


@pytest.mark.sanitizer
def test_every_way_for_the_sanitizer(device: torch.device) -> None:
    for row in (1, 2, 3, 4, 8, 9, 33):
        # Entries that meet, and few that do; elements in shared memory.
        for size, count in [(6, 7), (6, 8), (6, 40), (98, 40), *([(6, 2400)] if row == 1 else [])]:
            values = torch.ones(2, count, row, device=device)
            index = (torch.arange(2 * count, device=device) % (size - 1)).view(2, count)
            counts = torch.stack([part.bincount(minlength=size) for part in index])
            # In place, since so few are otherwise summed by one kernel: test_scatter_small.py.
            result = torch.zeros(2, size, row, device=device)
            torch_ops.scatter_add_(result, values, index, batch_dims=1)
            assert result.tolist() == counts[:, :, None].expand(2, size, row).tolist()
            if row == 1:
                flat = torch.zeros(2, size, device=device)
                torch_ops.scatter_add_(flat, values[:, :, 0], index, batch_dims=1)
                assert flat.tolist() == counts.tolist()


@pytest.mark.usefixtures("deterministic")
def test_deterministic_shapes(device: torch.device) -> None:
    """On every kind of shape; axes before dim, empties, complex numbers; many entries, sorted."""
    many = [
        Case((2, 40, 3), (2100,), dim=1),
        Case((2, 40, 33), (2, 2100), batch_dims=1),
        Case((2, 3, 4000, 5), (2, 30, 70), dim=2, batch_dims=1),
    ]
    for dtype in (torch.float32, torch.complex64):
        for case in CASES + many:
            values = values_for(case.output, device, dtype)
            index = index_for(case, device)
            actual = torch_ops.scatter_add(values, index, **arguments(case))
            expected = scatter_add_reference(values.cpu(), index.cpu(), **arguments(case))
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.sanitizer
def test_deterministic_for_the_sanitizer(device: torch.device) -> None:
    if device.type == "cpu":
        return  # there the order is always that of the entries: test_any_number_of_threads
    size = 2**17  # of which so few entries are sorted
    index = torch.tensor([[0, 4, -1, size, 4], [3, 3, 3, 2**40, 0]], device=device)
    for row in (1, 4, 33):
        values = torch.ones(2, 5, row, device=device)
        result = torch_ops.scatter_add(values, index, size, batch_dims=1)
        with pytest.raises(
            IndexError, match=r"scatter_add: index\[\d, \d\] is .* axis of size 131072"
        ):
            torch_ops.check_errors()
        assert result[:, :5, -1].tolist() == [[1, 0, 0, 0, 2], [1, 0, 0, 3, 0]]
    # Long runs: tiles and their join.
    values = torch.ones(2100, 5, device=device)
    index = torch.zeros(2100, dtype=torch.int16, device=device)
    index[1500:] = 1
    assert torch_ops.scatter_add(values, index, 3)[:, 4].tolist() == [1500, 600, 0]


def test_large_rows_are_repeatable(device: torch.device) -> None:
    """From 2^25 values in rows of 64 on, the default too gives the same bits on every run."""
    batch, count, size, width = 4, 2**17, 5000, 64
    values = values_for((batch, count, width), device, torch.float32)
    index = spread_index("hot", size, count, batch).to(device)
    first = torch_ops.scatter_add(values, index, size, batch_dims=1)
    for _ in range(3):
        assert torch.equal(torch_ops.scatter_add(values, index, size, batch_dims=1), first)
    expected = torch.zeros(batch, size, width, device=device, dtype=torch.float64)
    expected.scatter_add_(1, index[:, :, None].expand(values.shape), values.double())
    # Up to 118,000 numbers near 1 that cancel: partial sums reach some 1000.
    torch.testing.assert_close(first.double(), expected, rtol=1e-5, atol=1e-2)


@pytest.mark.sanitizer
def test_few_entries_beside_many_rows(device: torch.device) -> None:
    """On any stream."""
    values = values_for((2, 2, 2100, 5), device, torch.float32)
    index = torch.arange(2100, device=device).expand(2, 2100)
    add = partial(torch_ops.scatter_add, values, dim=2, batch_dims=1, deterministic=True)
    for rows in (14_000, 2800):  # filled first, and last
        expected = torch.zeros(2, 2, rows, 5, device=device).index_add_(2, index[0], values)
        assert_same(add(index, dim_size=rows), expected, f"{rows} rows")
        if device.type == "cpu":
            continue
        with torch.cuda.stream(torch.cuda.Stream(device)):
            elsewhere = add(index, dim_size=rows)
        torch.cuda.synchronize(device)
        assert_same(elsewhere, expected, f"{rows} rows, another stream")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_few_entries_in_a_cuda_graph() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    values = values_for((2100, 5), device, torch.float32)
    index = torch.arange(2100, device=device)
    for rows in (14_000, 2800):  # filled first, and last
        add = partial(torch_ops.scatter_add, values, index, rows, deterministic=True)
        expected = add()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = add()
        for _ in range(2):
            captured.fill_(7)
            graph.replay()
            assert_same(captured, expected, f"{rows} rows, replayed")


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("width", "rows", "count"),
    [(64, 2**16, 500), (65, 2**16, 500), (5, 2**20, 500), (1, 2**22, 501), (64, 2**16, 2**14)],
)
def test_few_entries_of_16_bits(device: torch.device, width: int, rows: int, count: int) -> None:
    """CUDA keeps sums for the rows with entries alone; rounded once all the same."""
    for dtype, spread in [(torch.bfloat16, "hot"), (torch.float16, "uniform")]:
        values = values_for((2, count, width), device, dtype).abs()
        index = spread_index(spread, rows, count, 2).to(device)
        expected = torch.zeros(2, rows, width, dtype=torch.float64)
        expected.scatter_add_(
            1, index.cpu()[:, :, None].expand(values.shape), values.cpu().double()
        )
        result = torch_ops.scatter_add(values, index, rows, batch_dims=1).cpu()
        # A rounding to 16 bits, and up to 500 to 32; or 60,000 on a hot row.
        rtol = (0.55 if count < 1000 else 0.7) * torch.finfo(dtype).eps
        torch.testing.assert_close(result.double(), expected, rtol=rtol, atol=0)
        if device.type == "cuda":
            index[1, 7] = rows
            torch_ops.scatter_add(values, index, rows, batch_dims=1)
            with pytest.raises(IndexError, match=rf"index\[1, 7\] is {rows}"):
                torch_ops.check_errors()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("way", ["default", "deterministic"])
def test_scratch_memory(device: torch.device, way: str, dtype: torch.dtype) -> None:
    """At most 16 bytes an entry, 16 a row of the result and a tenth of the values; or 64 MB."""
    if device.type == "cpu":
        pytest.skip("torch does not count the memory of the CPU")
    for count, size, width in [
        (2**19, 2**18, 64),
        (2**20, 2**20, 16),
        (2**21, 1000, 4),
        (2**20, 2**21, 9),
        (2**20, 2**20, 63),
        (2**20, 2**22, 8),
        (2**24, 2**16, 1),
        (2**23, 2**15, 4),
    ]:
        values = torch.ones(count, width, device=device, dtype=dtype)
        index = torch.randint(size, (count,), device=device)
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        chosen = True if way == "deterministic" else None
        result = torch_ops.scatter_add(values, index, size, deterministic=chosen)
        scratch = torch.cuda.max_memory_allocated(device) - before - result.nbytes
        assert scratch <= max(16 * count + 16 * size + values.nbytes // 10, 64 * 10**6), width


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
        options = arguments(case)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "count", "size", "width", "deterministic"),
    [
        (torch.float32, 2**31 + 67, 200, 1, None),  # values beyond 2^31
        (torch.bfloat16, 2**25 + 3, 200, 64, None),
        (torch.bfloat16, 2**26 + 3, 200, 33, True),
        (torch.float32, 500_001, 2**31 + 67, 1, None),  # the result
        (torch.bfloat16, 1001, 2**25 + 3, 64, True),
        (torch.bfloat16, 1001, 2**25 + 3, 64, None),  # what a sample runs
    ],
    ids=str,
)
def test_more_than_two_to_the_31(
    device: torch.device,
    dtype: torch.dtype,
    count: int,
    size: int,
    width: int,
    deterministic: bool | None,
) -> None:
    """Ones, whose sums are counts: up to 10,737,419, which float32 holds; uint8 wraps."""
    if device.type == "cpu":
        dtype = torch.uint8  # for its memory's sake
    values = torch.ones(count, *([width] if width > 1 else []), dtype=dtype, device=device)
    if size < 256:
        rows = torch.arange(size, device=device)
        index = rows.to(torch.uint8).repeat(count // size + 1)[:count]
        counts = count // size + (rows < count % size)
    else:  # the last rows, and others far apart
        index = size - 1 - torch.arange(count, device=device) * (size // count)
        counts = torch.ones(count, dtype=torch.int64, device=device)
    result = torch_ops.scatter_add(values, index, size, deterministic=deterministic)
    named = result if size < 256 else result[index]
    expected = counts.to(dtype).view(-1, *([1] * (width > 1))).expand(named.shape)
    assert torch.equal(named, expected)
    if size >= 256:  # nothing else was written
        assert int(result.count_nonzero()) == count * width


# ---- The choice of a way ------------------------------------------------------------------------


def test_paths() -> None:
    """The way on CUDA is chosen from sizes alone."""
    from torch_ops._ext.scatter import path

    few = {"axis_size": 1000, "entries": 4000, "shared_bytes": 96 * 1024, "adjacent": True}
    floats = {"value_bytes": 4, "sum_bytes": 4}
    # Blocks that sum four entries to each element, and enough of them.
    staged = {**few, "entries": 96 * 4000}
    assert path(**staged, **floats, inner=1) == "staged"
    assert path(**{**staged, "entries": 96 * 4000 - 4}, **floats, inner=1) == "entries"
    assert path(**{**staged, "shared_bytes": 3999}, **floats, inner=1) == "entries"  # no room
    assert path(**{**staged, "adjacent": False}, **floats, inner=1) == "values"
    assert [path(**few, **floats, inner=width) for width in (2, 3, 4, 7, 8, 64)] == [
        "entries",
        "values",
        "entries",
        "values",
        "tiles",
        "tiles",
    ]
    many = {**few, "entries": 1 << 19}
    assert path(**many, **floats, inner=64) == "sorted"
    assert path(**many, **floats, inner=63) == "tiles"
    assert path(**many, value_bytes=8, sum_bytes=8, inner=64) == "sorted"
    # Many entries to few rows would wait for each other.
    crowd = {**few, "axis_size": 256, "entries": 1 << 18}
    assert [path(**crowd, **floats, inner=width) for width in (1, 3, 8)] == [
        "staged",
        "sorted",
        "sorted",
    ]
    assert path(**{**crowd, "axis_size": 257}, **floats, inner=3) == "values"
    assert path(**{**crowd, "entries": (1 << 18) - 1}, **floats, inner=3) == "values"
    # Sixteen-bit sums take a table of floats: sorting pays for fewer entries beside a large result,
    # and for very few of them a table of their own rows.
    large = {**few, "axis_size": 1 << 19, "entries": 1 << 18}
    halves = {"value_bytes": 2, "sum_bytes": 4}
    assert path(**large, **floats, inner=64) == "tiles"
    assert path(**large, **halves, inner=64) == "sorted"  # theirs takes too much too
    assert path(**large, **halves, inner=16) == "tiles"
    very_few = {**large, "entries": 1 << 17}
    assert path(**very_few, **floats, inner=64) == "tiles"
    assert path(**very_few, **halves, inner=64) == "few"
    assert path(**very_few, **halves, inner=128) == "sorted"  # the table takes too much
    assert path(**{**very_few, "entries": 1000}, **halves, inner=16) == "few"
    assert path(**{**very_few, "entries": 1000}, **halves, inner=15) == "tiles"  # a small result
    assert path(**{**very_few, "axis_size": 1 << 23}, **halves, inner=1) == "few"
    # A table of floats takes 4 bytes a value: what exceeds the bound of the scratch is sorted.
    short = {**few, "axis_size": 1 << 20, "entries": 1 << 20}
    assert [path(**short, **halves, inner=width) for width in (5, 8, 15, 16, 63)] == [
        "values",
        "tiles",
        "tiles",
        "sorted",
        "sorted",
    ]
    assert path(**short, **floats, inner=63) == "tiles"  # no table
    assert path(**{**short, "axis_size": 1 << 21}, **halves, inner=9) == "sorted"
    assert path(**{**short, "axis_size": 1 << 22}, **halves, inner=9) == "few"


# ---- Bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "index", "options", "error", "message"),
    [
        ((3,), (3,), {"dim_size": -1}, ValueError, "dim_size must not be negative, but it is -1"),
        ((3,), (3,), {"dim": 1}, IndexError, r"dim must be between -1 and 0 for the result"),
        ((3, 4), (3,), {"dim": -3}, IndexError, r"dim must be between -2 and 1 for the result"),
        ((3,), (3, 4), {}, ValueError, r"values must have the 2 axes of index at least.*\[3\]"),
        ((3, 4), (3, 4), {"batch_dims": 3}, ValueError, "batch_dims must be between 0 and index"),
        ((3, 4), (3, 4), {"batch_dims": 1, "dim": 0}, ValueError, "dim must not be one of the 1 b"),
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
    with pytest.raises(TypeError, match=r"values must be of an integer type.*but it is Bool"):
        torch_ops.scatter_add(index.bool(), index, 4)
    with pytest.raises(TypeError, match=r"values must be of an integer type.*Float8"):
        torch_ops.scatter_add(index.to(torch.float8_e5m2), index, 4)
    with pytest.raises(TypeError, match="index must be uint8, int16, int32 or int64"):
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
            result = torch_ops.scatter_add(values, index, **arguments(case))
            assert result.shape == case.source
