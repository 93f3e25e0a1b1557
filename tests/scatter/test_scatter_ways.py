"""Each way that a sum takes on CUDA, which one it takes, and what memory it may have.

The CPU, which has the same results to give, runs the same cases.
"""

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
    index_for,
    scatter_add_reference,
    scatter_arguments,
    spread_index,
    sum_tolerance,
    values_for,
)
from memory import peak_memory
from op_checks import FLOATS, assert_same

import torch_ops


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
            rtol, _ = sum_tolerance(dtype)
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
                rtol, _ = sum_tolerance(dtype)
                summed = torch.float32 if dtype.itemsize == 2 else dtype
                torch.testing.assert_close(
                    actual.cpu().double(),
                    expected,
                    rtol=rtol,
                    atol=10_000 * torch.finfo(summed).eps,
                )
            else:
                assert_same(actual.cpu(), expected, f"{row} {size} {count}")


@pytest.mark.parametrize("width", [1, 3, 8, 9])
def test_slabs_side_by_side(device: torch.device, width: int) -> None:
    """Of a result beyond the L2 cache: sets of slabs that divide them all run at a time."""
    count = 66_000  # so many that no slabs are joined
    for batch in (24, 25, 23):
        rows = 10_000_000 // (batch * width)
        index = spread_index("hot", rows, count, batch).to(device)
        values = torch.ones(batch, count, width, device=device)
        result = torch_ops.scatter_add(values, index, rows, batch_dims=1)
        counts = torch.stack([part.bincount(minlength=rows) for part in index])
        assert torch.equal(result, counts[:, :, None].expand(result.shape).float()), f"{batch}"


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32], ids=str
)
@pytest.mark.parametrize("spread", ["uniform", "hot"])
def test_elements_of_slabs_that_share_entries(
    device: torch.device, dtype: torch.dtype, spread: str
) -> None:
    """As the gradient of index_select along the last axis has them: on CUDA a block to a slab."""
    slabs, size = 256, 5000
    rtol = atol = 0.0
    if dtype.is_floating_point:
        rtol, atol = sum_tolerance(dtype)
        atol *= 25  # thousands of numbers on one row
    close = partial(torch.testing.assert_close, rtol=rtol, atol=atol)
    for count in (5000, 5003):  # aligned to four entries, and not
        index = spread_index(spread, size, 2 * count, 1)[0].to(device)
        values = values_for((slabs, count), device, dtype)
        for picks in (index[:count], index[::2]):
            summed = torch.float64 if dtype.is_floating_point else dtype
            expected = torch.zeros(slabs, size, dtype=summed, device=device)
            expected.index_add_(1, picks, values.to(summed))
            actual = torch_ops.scatter_add(values, picks, size, 1)
            close(actual.to(summed), expected)
            wrapped = torch_ops.scatter_add(values, picks - size, size, 1, mode="wrap")
            close(wrapped.to(summed), expected)
            if dtype != torch.bfloat16:  # whose sums would be rounded once more
                onto = torch.ones_like(actual)
                torch_ops.scatter_add_(onto, values, picks, 1)
                close(onto.to(summed), expected + 1)


def test_the_bad_entry_of_slabs_that_share_entries_is_named(device: torch.device) -> None:
    index = torch.arange(5000, device=device)
    index[7] = 5000

    def add(count: int) -> None:
        torch_ops.scatter_add(torch.ones(256, count, device=device), index[:count], 5000, 1)
        torch_ops.check_errors()

    for count in (5000, 4999):
        with pytest.raises(IndexError, match=r"index\[7\] is 5000, out of range"):
            add(count)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("spread", ["uniform", "one", "sorted"])
def test_batches_of_slabs_that_share_entries(device: torch.device, spread: str, width: int) -> None:
    """In place, so that few entries are not summed by one kernel; sums of ones are exact."""
    shapes = [(3, 50, 200, 48), (3, 50, 200, 47)]  # slabs, rows and entries: joined in a launch
    if width == 1:
        # In shared memory, the second by blocks of 1024; and more slabs than a grid has rows.
        shapes += [(2, 150, 3000, 4096), (2, 150, 30_000, 30_001)]
        shapes += [(2, 35_000, 9, 1040)] if spread == "uniform" else []
    for batch, outer, rows, count in shapes:
        index = spread_index(spread, rows, count, batch).to(device)
        values = torch.ones(batch, outer, count, width, device=device)
        result = torch.ones(batch, outer, rows, width, device=device)
        counts = torch.stack([part.bincount(minlength=rows) for part in index]).float()
        expected = (1 + counts)[:, None, :, None].expand(result.shape)
        if width == 1:
            values, result, expected = values[..., 0], result[..., 0], expected[..., 0]
        torch_ops.scatter_add_(result, values, index, 2, batch_dims=1)
        assert torch.equal(result, expected), f"{outer} {rows} {count}"


@pytest.mark.sanitizer
def test_every_way_for_the_sanitizer(device: torch.device) -> None:
    for row in (1, 2, 3, 4, 8, 9, 33):
        # Entries that meet, and few that do; elements in shared memory.
        for size, count in [
            *[(6, 7), (6, 8), (6, 40), (98, 40)],
            *([(6, 2400), (6, 2401)] if row == 1 else []),
        ]:
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
            actual = torch_ops.scatter_add(values, index, **scatter_arguments(case))
            expected = scatter_add_reference(values.cpu(), index.cpu(), **scatter_arguments(case))
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
    [
        *[(64, 2**16, 500), (65, 2**16, 500), (5, 2**20, 500), (1, 2**22, 501), (64, 2**16, 2**14)],
        *[(1, 2**22, 20_001), (2, 2**21, 20_000), (3, 2**21, 20_000), (33, 2**18, 20_000)],
    ],
)
def test_few_entries_of_16_bits(device: torch.device, width: int, rows: int, count: int) -> None:
    """CUDA keeps sums for the rows with entries alone; rounded once all the same."""
    rows = rows if device.type == "cuda" else rows // 16
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


def test_the_last_of_an_odd_number_of_elements(device: torch.device) -> None:
    """CUDA writes elements of 16 bits in pairs."""
    rows = 2**23 + 1
    for last in (1, 2, 300):  # that name it
        index = torch.arange(20_000, device=device) * 400
        index[-last:] = rows - 1
        values = torch.ones(20_000, dtype=torch.bfloat16, device=device)
        result = torch_ops.scatter_add(values, index, rows)
        assert result[-2:].tolist() == [0, last]
        assert result.count_nonzero() == 20_001 - last


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int16], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_tables_beyond_the_cache(device: torch.device, dtype: torch.dtype, shared: bool) -> None:
    """CUDA sums values of 16 bits some slabs at a time. The last slabs are fewer."""
    smaller = 1 if device.type == "cuda" else 10
    for slabs, count, size, width in [(9, 6000, 20_000, 63), (5, 6001, 9001, 250)]:
        count, size = count // smaller, size // smaller
        values = values_for((slabs, count, width), device, dtype)
        index = spread_index("hot", size, count, 1 if shared else slabs).to(device)
        if shared:
            add = partial(torch_ops.scatter_add, values, index[0], size, 1)
        else:
            add = partial(torch_ops.scatter_add, values, index, size, batch_dims=1)
        exact = torch.zeros(slabs, size, width, dtype=torch.float64, device=device)
        exact.scatter_add_(1, index[:, :, None].expand(values.shape), values.double())
        if dtype == torch.int16:
            assert_same(add(), exact.long().to(dtype), f"{width}")
        else:
            rtol, _ = sum_tolerance(dtype)
            # Some 5400 numbers near 1 that cancel: partial sums reach some 200.
            torch.testing.assert_close(add().double(), exact, rtol=rtol, atol=2e-3)
        index[-1, 7] = size
        where = "7" if shared else f"{slabs - 1}, 7"
        with pytest.raises(IndexError, match=rf"index\[{where}\] is {size}"):  # noqa: PT012
            add()
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
        chosen = True if way == "deterministic" else None
        add = partial(torch_ops.scatter_add, values, index, size, deterministic=chosen)
        scratch = peak_memory(device, add) - size * width * dtype.itemsize
        assert scratch <= max(16 * count + 16 * size + values.nbytes // 10, 64 * 10**6), width


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


def way(axis_size: int, entries: int, inner: int, *, slabs: int = 1, **options: Any) -> str:
    """The way of a call on an H200."""
    from torch_ops._ext.scatter import plan

    return str(plan(axis_size, entries, inner, batch=slabs, **options)["way"])


def test_ways() -> None:
    """On CUDA: those that add in no given order, and the sort."""
    few = partial(way, 1000, 4000)
    # Blocks that sum four entries to each element, and enough of them.
    assert way(1000, 96 * 4000, 1) == "staged"
    assert way(1000, 96 * 4000 - 4, 1) == "entries"
    assert way(1000, 96 * 4000, 1, shared_bytes=3999) == "entries"  # no room
    assert way(1000, 96 * 4000, 1, adjacent=False) == "staged"
    assert few(1, adjacent=False) == "entries"
    # Or a block to a slab, where slabs are many, of what fixed point does not take.
    for slabs in (partial(way, floats=False), partial(way, value_bytes=8)):
        assert slabs(1024, 2048, 1, slabs=512) == "staged"
        assert slabs(1024, 2048, 1, slabs=511) == "entries"
        assert slabs(1000, 2048, 1, slabs=512) == "entries"
        assert slabs(2048, 8188, 1, slabs=256) == "staged"
        assert slabs(2048, 8188, 1, slabs=255) == "entries"
        assert slabs(4, 1020, 1, slabs=9999) == "entries"  # too few to a slab
        assert slabs(1024, 1020, 1, slabs=2000) == "entries"
    widths = (1, 2, 3, 4, 7, 8, 64)
    ways = ["entries", "entries", "values", "entries", "values", "tiles", "tiles"]
    assert [few(width) for width in widths] == ways
    # One instruction adds a vector of floats, where it is aligned, and no other.
    assert few(2, value_bytes=8) == few(4, aligned=False) == "values"
    assert few(16, value_bytes=8) == few(16, aligned=False) == "streamed"
    many = partial(way, 1000, 1 << 19)
    ways = ["entries", "streamed", "streamed", "tiles"]
    assert [many(width) for width in (4, 8, 12, 16)] == ways
    assert many(64) == "sorted"
    assert many(63) == many(65) == "streamed"  # whole vectors are faster to sort
    assert way(1 << 20, (1 << 19) - 1, 129) == "sorted"  # most rows have no entry
    assert many(64, value_bytes=8) == many(65, value_bytes=8) == "sorted"
    # Atomics for each value, if entries are so few that they hardly meet.
    wide = partial(way, 3000, 2048, 63)
    assert wide() == wide(value_bytes=8) == wide(floats=False) == "values"
    assert wide(value_bytes=2) == way(3000, 2081, 63) == way(2000, 2048, 63) == "streamed"
    # Many entries to few rows would wait for each other.
    ways = ["staged", "fixed point", "privatized", "fixed point", "privatized"]
    assert [way(128, 1 << 18, width) for width in (1, 2, 3, 4, 8)] == ways
    assert way(32, 1 << 16, 2) == way(32, 1 << 16, 4) == way(32, 1 << 17, 1) == "privatized"
    assert way(33, 1 << 18, 2) == way(1024, 1 << 20, 4) == "fixed point"
    assert way(257, (1 << 18) - 4, 4) == way(1025, 1 << 21, 4) == "entries"
    assert way(100, 1 << 18, 2, value_bytes=8) == way(200, 1 << 19, 7) == "privatized"
    assert way(129, 1 << 19, 8, aligned=False) == "streamed"
    assert way(300, 1 << 20, 3) == "streamed"  # no room
    assert way(256, 1 << 20, 3) == way(128, 1 << 20, 3, value_bytes=8) == "sorted"
    assert way(256, 1 << 20, 17) == way(256, (1 << 20) - 1, 3) == "streamed"  # atomics wait less
    assert way(256, 1 << 20, 3, slabs=2) == "sorted" != way(256, 1 << 20, 3, slabs=3)
    assert way(128, (1 << 18) - 1, 3) == "streamed"
    for options in ({"floats": False}, {"in_place": True}, {"value_bytes": 1, "floats": False}):
        assert way(128, 1 << 18, 64, **options) == "privatized"
    # Also if they are in several slabs, each with enough for its own sums.
    assert way(16, 8192, 33, slabs=64) == way(16, 8192, 33, outer=64) == "privatized"
    assert way(16, 500, 31, slabs=200) == "streamed"


def test_ways_of_16_bits() -> None:
    """By atomics their sums take a table of floats."""
    halves = partial(way, value_bytes=2)
    # Sorting pays for fewer entries beside a large result, and for very few of them a table of
    # their own rows.
    assert way(1 << 19, 1 << 18, 64) == "tiles"
    assert halves(1 << 19, 1 << 18, 64) == "sorted"  # theirs takes too much too
    assert halves(1 << 19, 1 << 18, 16) == "tiles"
    assert way(1 << 19, 1 << 17, 64) == "tiles"
    assert halves(1 << 19, 1 << 17, 64) == "few"
    assert halves(1 << 19, 1 << 17, 128) == "sorted"  # the table takes too much
    assert halves(1 << 19, 20_000, 16) == "few"
    assert halves(1 << 19, 20_000, 15) == "streamed"  # a small result
    assert halves(1 << 23, 1 << 17, 1) == halves(1 << 23, 1 << 18, 1) == "few"
    assert halves(1 << 23, 1 << 19, 1) == "entries"  # finding the entries of a row takes longer
    # Up to 16384 of them to a slab are one kernel's.
    assert halves(1 << 19, 1000, 16) == "sparse"
    # What exceeds the bound of the scratch is sorted.
    widths = (5, 8, 15, 16, 63)
    ways = ["streamed", "streamed", "streamed", "sorted", "sorted"]
    assert [halves(1 << 20, 1 << 20, width) for width in widths] == ways
    assert way(1 << 20, 1 << 20, 63) == "streamed"  # no table
    assert halves(1 << 21, 1 << 20, 9) == "sorted"
    assert halves(1 << 22, 1 << 20, 9) == "few"
    # The table is for some slabs at a time, where one does not exceed a part of the cache.
    assert halves(5000, 4000, 63, slabs=64) == halves(5000, 4000, 63, outer=64) == "streamed"
    assert halves(50_000, 40_000, 63, slabs=8) == "streamed"  # 12.6 MB
    assert halves(130_000, 120_000, 63, slabs=8) == "sorted"
    assert halves(5000, 2000, 63, slabs=64) == "sorted"  # most rows have no entry
    assert halves(5000, 4000, 64, slabs=64) == halves(5000, 1 << 19, 72) == "sorted"
    assert halves(5000, 1 << 19, 65) == "streamed" and halves(5000, 1 << 19, 76) == "tiles"


def test_ways_of_sums_that_stay_in_float32() -> None:
    """Those of floats, but for the ways that write 16 bits."""
    sums = partial(way, value_bytes=2, unrounded=True)
    assert sums(1000, 1 << 19, 64) == "sorted"
    assert sums(1000, 1 << 19, 16) == "tiles"
    assert sums(256, 512, 256) == "tiles"  # small
    assert sums(500, 2000, 1) == "entries"  # binned
    assert sums(200, 1 << 19, 2) == "privatized"  # binned
    same = partial(sums, repeatable=True)
    assert [same(1000, 1 << 19, width) for width in (1, 3, 64)] == ["sorted"] * 3
    assert same(100, 500, 3) == "sorted"


def test_ways_of_one_kernel_and_of_the_same_bits() -> None:
    assert way(256, 512, 256) == "small"
    assert way(256, 1000, 8, floats=False) == "small"
    assert way(500, 2000, 1) == "fixed point"
    same = partial(way, repeatable=True)
    ways = ["fixed point", "fixed point", "sorted", "fixed point", "sorted"]
    assert [same(1000, 1 << 19, width) for width in (1, 2, 3, 4, 64)] == ways
    assert same(1000, 1 << 19, 1, value_bytes=8) == "sorted"
    ways = ["fixed point", "fixed point", "privatized", "fixed point", "privatized"]
    assert [same(90, 1 << 17, width) for width in (1, 2, 3, 4, 64)] == ways
    assert same(91, 1 << 17, 64) == same(200, 9000, 3, value_bytes=8) == "sorted"
    assert [same(32, 1 << 15, width) for width in (1, 2, 3, 4, 64)] == ["privatized"] * 5
    assert same(100, 500, 3) == same(100, 4096, 3) == "small"
    assert same(20_000, 5000, 3, slabs=8) == same(200_000, 500, 64) == "sparse"
    assert same(1000, 1 << 19, 1, floats=False) == "staged"  # integers have them in any case
