"""scatter_add on the CPU: blocks of rows, tiles of the index, pieces of a block's entries."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from gathering import SPREADS, spread_index, sum_tolerance, values_for
from op_checks import FLOATS
from programs import ROOT, needs, output_of
from torch import Tensor

import torch_ops


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mode", ["raise", "unchecked", "wrap", "clip"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8], ids=str)
def test_an_axis_without_rows(dtype: torch.dtype, mode: str) -> None:
    for count, row in [(5, 1), (5, 16), (70_000, 16)]:
        values = torch.ones(count, row, dtype=dtype)
        index = torch.arange(count)
        with pytest.raises(IndexError, match="size 0"):
            torch_ops.scatter_add(values, index, 0, mode=mode)
        assert torch_ops.scatter_add(values, index, 0, mode="fill").shape == (0, row)


# batches, axis_size, entries, row. One block and several; runs of 40 elements where sorted; blocks
# that end within the axis and rows that are cut into strips; slabs of one piece and of several;
# tiles that are not full; large slabs that are one block.
CUTS = [
    (1, 100, 80_000, 1),
    (1, 2_000, 80_000, 1),
    (1, 70_000, 300_000, 1),
    (1, 140_000, 10_000, 1),
    (3, 140_000, 10_000, 1),
    (2, 70_000, 600_000, 1),
    (1, 30_000, 70_000, 3),
    (2, 3_000, 9_000, 64),
    (1, 50, 2_000, 130),
    (1, 9, 200, 9_000),
    (300, 7, 5, 2),
]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("batches", "outer", "size", "entries"),
    [(700, 1, 7, 5), (40, 3, 200, 256), (30, 2, 256, 3), (5, 4, 1, 130), (2000, 1, 2, 1)],
)
def test_short_slabs(batches: int, outer: int, size: int, entries: int, dtype: torch.dtype) -> None:
    """Several are widened, and summed, at a time; sums of small integers are exact."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-3, 4, (batches, outer, entries), generator=generator)
    index = torch.randint(size, (batches, entries), generator=generator)
    wide = torch.zeros(batches, outer, size, dtype=torch.int64)
    expanded = index[:, None].expand(-1, outer, -1)
    wide.scatter_add_(2, expanded, values)
    sums = torch_ops.scatter_add(values.to(dtype), index, size, dim=-1, batch_dims=1)
    assert torch.equal(sums, wide.to(dtype))
    onto = torch.full((batches, outer, size), -0.0 if dtype.is_floating_point else 1).to(dtype)
    wanted = onto + wide.to(dtype)
    torch_ops.scatter_add_(onto, values.to(dtype), index, dim=-1, batch_dims=1)
    assert torch.equal(onto, wanted)

    last = index.clone()
    last[batches // 2, -1] = size  # not a row; the second name of one in mode "wrap"
    with pytest.raises(
        IndexError, match=rf"^scatter_add: index\[{batches // 2}, {entries - 1}\] is {size}, "
    ):
        torch_ops.scatter_add(values.to(dtype), last, size, dim=-1, batch_dims=1)
    kept = values.clone()
    kept[batches // 2, :, -1] = 0
    for mode, into in (("fill", kept), ("wrap", values)):
        where = torch.where(last == size, 0, index)[:, None].expand(-1, outer, -1)
        wanted = torch.zeros_like(wide).scatter_add_(2, where, into).to(dtype)
        actual = torch_ops.scatter_add(
            values.to(dtype), last, size, dim=-1, batch_dims=1, mode=mode
        )
        assert torch.equal(actual, wanted), mode


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("spread", SPREADS)
def test_any_number_of_threads(dtype: torch.dtype, spread: str) -> None:
    """The same bits for any number of threads, and the right ones."""
    for batches, size, count, row in CUTS:
        index = spread_index(spread, size, count, batches)
        values = values_for((batches, count, row), torch.device("cpu"), dtype)
        results = []
        for number in (1, 2, 5):
            with threads(number):
                results.append(torch_ops.scatter_add(values, index, size, batch_dims=1))
        first, *others = results
        for other in others:
            assert torch.equal(other, first)
        wide = torch.float64 if dtype.is_floating_point else dtype
        expected = torch.zeros(batches, size, row, dtype=wide)
        expected.scatter_add_(1, index[:, :, None].expand(values.shape), values.to(wide))
        if wide == dtype and wide != torch.float64:
            assert torch.equal(first, expected)
            continue
        rtol, _ = sum_tolerance(dtype)
        summed = torch.float32 if dtype.itemsize == 2 else dtype
        # Up to n = 300,000 numbers near 1: partial sums reach some sqrt(n), and the error of n
        # roundings of random sign some sqrt(n) times half an eps of that; twice, for the reference.
        atol = 2 * count * torch.finfo(summed).eps
        torch.testing.assert_close(first.double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("spread", ["uniform", "hot", "sorted"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_short_rows(dtype: torch.dtype, spread: str) -> None:
    """Rows of 1 to 7 values, few beside the result and many, in one block and in several."""
    summed = torch.float32 if dtype.itemsize == 2 else dtype
    for row in range(1, 8):
        for batches, size, count in [(2, 30_000, 90), (1, 80_000, 7), (2, 500, 700), (1, 40, 9000)]:
            index = spread_index(spread, size, count, batches)
            values = values_for((batches, count, row), torch.device("cpu"), dtype)
            results = []
            for number in (1, 2, 3, 8):
                with threads(number):
                    results.append(torch_ops.scatter_add(values, index, size, batch_dims=1))
            first, *others = results
            for other in others:
                assert torch.equal(other, first)
            expected = torch.zeros(batches, size, row, dtype=torch.float64)
            expected.scatter_add_(1, index[:, :, None].expand(values.shape), values.double())
            rtol, _ = sum_tolerance(dtype)
            atol = 2 * count * torch.finfo(summed).eps
            torch.testing.assert_close(first.double(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("mode", ["wrap", "clip", "fill"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int16], ids=str)
def test_modes_of_short_rows(dtype: torch.dtype, mode: str) -> None:
    """Entries that a mode rewrites, few and many, beyond what 16 bits can number too."""
    for batches, size, count, row in [(2, 140_000, 900, 1), (2, 140_000, 5000, 1), (2, 900, 9, 3)]:
        index = spread_index("uniform", 3 * size, count, batches) - size
        values = values_for((batches, count, row), torch.device("cpu"), dtype)
        rows = {
            "wrap": index % size,
            "clip": index.clamp(0, size - 1),
            "fill": torch.where(index < 0, index + size, index).masked_fill_(index >= size, -1),
        }[mode]
        results = []
        for number in (1, 3):
            with threads(number):
                results.append(torch_ops.scatter_add(values, index, size, batch_dims=1, mode=mode))
        first, other = results
        assert torch.equal(first, other)
        for batch in range(batches):
            assert torch.equal(first[batch], one_by_one(values[batch], rows[batch], size))


@pytest.mark.parametrize("index_dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_strided_index_of_several_tiles(index_dtype: torch.dtype) -> None:
    for size, row in [(200, 1), (200, 3000), (30_000, 5)]:
        if size > torch.iinfo(index_dtype).max:
            continue
        index = spread_index("uniform", size, 20_000, 1)[0].to(index_dtype)[::2]
        values = values_for((10_000, row), torch.device("cpu"), torch.int32)
        expected = torch.zeros(size, row, dtype=torch.int32).index_add_(0, index.long(), values)
        assert torch.equal(torch_ops.scatter_add(values, index, size), expected)


@pytest.mark.parametrize(("size", "row"), [(1000, 1), (300_000, 1), (1000, 40), (50_000, 40)])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64], ids=str)
def test_the_first_entry_out_of_range_is_named(size: int, row: int, dtype: torch.dtype) -> None:
    values = torch.ones(2, 90_000, row)
    for number in (1, 2, 5):
        index = torch.zeros(2, 90_000, dtype=dtype)
        bad = -1 if dtype == torch.int16 else size
        index[1, 80_000] = index[1, 11] = index[0, 89_999] = bad
        message = (
            rf"scatter_add: index\[0, 89999\] is {bad}, out of range for an axis of size {size}"
        )
        with threads(number), pytest.raises(IndexError, match=message):
            torch_ops.scatter_add(values, index, size, batch_dims=1)
        index[0, 30_000] = -7
        with threads(number), pytest.raises(IndexError, match=r"index\[0, 30000\] is -7"):
            torch_ops.scatter_add(values, index, size, batch_dims=1)


# ---- An index that is in order, wholly or in part ------------------------------------------------

# axis_size, entries, row: of several blocks, so that there are tiles, and of no pieces.
IN_ORDER = [(200_000, 30_000, 1), (9_000, 9_000, 64), (30_000, 20_000, 8)]


def one_by_one(values: Tensor, rows: Tensor, size: int) -> Tensor:
    """The values that name a row, added in their order and then rounded."""
    kept = rows >= 0
    summed = torch.float32 if values.dtype.itemsize == 2 else values.dtype
    sums = torch.zeros(size, *values.shape[1:], dtype=summed)
    np.add.at(sums.numpy(), rows[kept].numpy(), values[kept].to(summed).numpy())
    return sums.to(values.dtype)


def nearly_in_order(count: int, size: int, at: int) -> Tensor:
    """In order but for one entry."""
    index = spread_index("sorted", size, count, 1)[0]
    index[at] = 0
    return index


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_index_in_order(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    """Every entry is added in its turn, in tiles that are in order and in those that are not."""
    for size, count, row in IN_ORDER:
        in_order = spread_index("sorted", size, count, 1)[0]
        # A tile has 4096 entries, and parts of 512 of it are looked at one after the other.
        indices = [in_order, in_order.roll(count // 2), in_order.flip(0)]
        indices += [nearly_in_order(count, size, at) for at in (1, 512, 513, 4095, 4096, count - 1)]
        values = values_for((count, row), torch.device("cpu"), dtype)
        for index in indices:
            expected = one_by_one(values, index, size)
            for number in (1, 3):
                with threads(number):
                    actual = torch_ops.scatter_add(values, index.to(index_dtype), size)
                assert torch.equal(actual, expected)


def test_index_of_bytes_in_order() -> None:
    index = spread_index("sorted", 200, 10_000, 1)[0]
    values = values_for((10_000, 600), torch.device("cpu"), torch.int32)
    actual = torch_ops.scatter_add(values, index.to(torch.uint8), 200)
    assert torch.equal(actual, one_by_one(values, index, 200))


def test_strided_index_in_order() -> None:
    """An index with gaps, one that is expanded, and batches of which one is in order."""
    for size, count, row in IN_ORDER:
        values = values_for((2, count, row), torch.device("cpu"), torch.float32)
        in_order, other = (spread_index(spread, size, count, 1)[0] for spread in ("sorted", "hot"))
        gaps = torch.stack((in_order, other), dim=1)
        for index in (gaps.t(), in_order.expand(2, -1), in_order[:1].expand(2, count)):
            actual = torch_ops.scatter_add(values, index, size, batch_dims=1)
            for batch in range(2):
                # Of one row alone: its block is summed in pieces.
                expected = one_by_one(values[batch].double(), index[batch], size).float()
                torch.testing.assert_close(actual[batch], expected, rtol=0, atol=count * 2**-22)


@pytest.mark.parametrize("mode", ["raise", "wrap", "clip", "fill"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_index_in_order_with_entries_out_of_range(mode: str, dtype: torch.dtype) -> None:
    """Bad entries at the ends, where the order hides them, and extremes in the middle."""
    for size, count, row in IN_ORDER:
        values = values_for((count, row), torch.device("cpu"), dtype)
        for at, bad in ((0, -3), (count - 1, size + 2), (5000, 2**63 - 1), (5000, -(2**63))):
            index = spread_index("sorted", size, count, 1)[0]
            index[at] = bad
            if mode == "raise":
                with pytest.raises(IndexError, match=rf"index\[{at}\] is {bad}, out of range"):
                    torch_ops.scatter_add(values, index, size)
                continue
            rows = index.clone()
            inside = {
                "wrap": bad % size,
                "clip": min(max(bad, 0), size - 1),
                "fill": bad + size if -size <= bad < 0 else -1,
            }
            rows[at] = inside[mode]
            actual = torch_ops.scatter_add(values, index, size, mode=mode)
            assert torch.equal(actual, one_by_one(values, rows, size))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_few_rows_are_added_to(dtype: torch.dtype) -> None:
    """Rows that no entry names are zeros, in blocks with entries, without, and cut into pieces."""
    for size, count, row in [(9_000, 40, 64), (20_000, 6_000, 9), (50, 40_000, 130), (9, 90, 9000)]:
        for few in (1, 5):
            index = torch.arange(few).repeat_interleave(count // few) * (size // few)
            values = values_for((index.numel(), row), torch.device("cpu"), dtype)
            results = []
            for number in (1, 3):
                with threads(number):
                    results.append(torch_ops.scatter_add(values, index, size))
            actual, other = results
            assert torch.equal(actual, other)
            named = torch.zeros(size, dtype=torch.bool)
            named[index] = True
            assert not actual[~named].any()
            expected = values.double().view(few, -1, row).sum(1)
            summed = torch.float32 if dtype.itemsize == 2 else dtype
            rtol, _ = sum_tolerance(dtype)
            atol = 2 * count * torch.finfo(summed).eps
            torch.testing.assert_close(actual[named].double(), expected, rtol=rtol, atol=atol)


# ---- The cut ------------------------------------------------------------------------------------


CUT = """
#include "scatter/cpu/blocking.h"

extern "C" void cut(int64_t slabs, int64_t entries, int64_t axis_size, int64_t inner,
                    int64_t sum_bytes, int64_t threads, bool onto, int64_t* found) {
  using namespace torch_ops;
  const auto layout = RowLayout::contiguous(slabs, /*outer=*/1, axis_size, entries, inner);
  const CpuBlocking cut = choose_cpu_blocking(layout, sum_bytes, threads, onto);
  found[0] = cut.block_rows();
  found[1] = cut.blocks;
  found[2] = cut.columns;
  found[3] = cut.tile_entries;
  found[4] = cut.piece_entries;
}
"""


@needs("c++")
def test_cpu_blocking(tmp_path: Path) -> None:
    """How the CPU cuts a call: from sizes alone."""
    (tmp_path / "cut.cpp").write_text(CUT)
    flags = ["-std=c++17", "-shared", "-fPIC", f"-I{ROOT / 'src'}"]
    output_of("c++", *flags, tmp_path / "cut.cpp", "-o", tmp_path / "cut.so")
    library = ctypes.CDLL(str(tmp_path / "cut.so"))

    def cpu_blocking(
        slabs: int, entries: int, axis_size: int, inner: int, sum_bytes: int, threads: int,
        onto: bool = False,
    ) -> dict[str, int]:  # fmt: skip
        sizes = (slabs, entries, axis_size, inner, sum_bytes, threads)
        found = (ctypes.c_int64 * 5)()
        library.cut(*map(ctypes.c_int64, sizes), ctypes.c_bool(onto), found)
        names = ("block_rows", "blocks", "columns", "tile_entries", "piece_entries")
        return dict(zip(names, found, strict=True))

    sizes = {"slabs": 1, "entries": 1 << 20, "sum_bytes": 4, "threads": 4}
    # A table that fits one block is not sorted; 16 bits number the rows of a block.
    assert cpu_blocking(**sizes, axis_size=1 << 16, inner=1)["blocks"] == 1
    few = {**sizes, "entries": 1 << 18}
    assert cpu_blocking(**few, axis_size=(1 << 16) + 1, inner=1)["blocks"] == 2
    assert (
        cpu_blocking(**{**sizes, "sum_bytes": 1}, axis_size=1 << 18, inner=1)["block_rows"]
        == 1 << 16
    )
    assert cpu_blocking(**sizes, axis_size=1 << 16, inner=64)["blocks"] == 32
    # Elements are not sorted where slabs are enough work for the threads, up to 4 MiB of sums, or 1
    # where there is one slab.
    alone = {**few, "threads": 3}
    assert cpu_blocking(**alone, axis_size=1 << 18, inner=1)["blocks"] == 1
    assert cpu_blocking(**alone, axis_size=(1 << 18) + 1, inner=1)["blocks"] == 5
    assert cpu_blocking(**alone, axis_size=1 << 17, inner=2)["blocks"] == 2
    assert cpu_blocking(**few, axis_size=1 << 18, inner=1)["blocks"] == 4
    several = {**few, "slabs": 2}
    assert cpu_blocking(**{**several, "threads": 7}, axis_size=1 << 20, inner=1)["blocks"] == 1
    assert cpu_blocking(**{**several, "threads": 8}, axis_size=1 << 20, inner=1)["blocks"] == 16
    several["threads"] = 7
    assert cpu_blocking(**several, axis_size=(1 << 20) + 1, inner=1)["blocks"] == 17
    # Nobody sets to zero what is added to.
    onto = {**alone, "onto": True}
    assert cpu_blocking(**onto, axis_size=1 << 22, inner=1)["blocks"] == 1
    assert cpu_blocking(**onto, axis_size=(1 << 22) + 1, inner=1)["blocks"] == 65
    # Where there may be pieces, sizes alone decide: the order of the additions follows from it.
    for threads_there in (1, 2, 64):
        several = {**sizes, "slabs": 2, "threads": threads_there}
        assert cpu_blocking(**several, axis_size=1 << 20, inner=1)["blocks"] == 1
        one = {**sizes, "threads": threads_there}
        assert cpu_blocking(**one, axis_size=1 << 17, inner=1)["blocks"] == 1
        assert cpu_blocking(**one, axis_size=(1 << 17) + 1, inner=1)["blocks"] == 3
    # Long rows are cut into strips; a block has a row at least.
    assert cpu_blocking(**sizes, axis_size=100, inner=10**9) == {
        "block_rows": 32,
        "blocks": 4,
        "columns": 4096,
        "tile_entries": 1 << 15,
        "piece_entries": 1 << 15,
    }
    # Pieces: some for each core of a large machine, but none that costs more than it saves.
    assert cpu_blocking(**sizes, axis_size=1000, inner=1)["piece_entries"] == 1 << 15
    assert cpu_blocking(**sizes, axis_size=1 << 16, inner=1)["piece_entries"] == 1 << 18
    assert cpu_blocking(**{**sizes, "slabs": 64}, axis_size=9, inner=1)["piece_entries"] == 1 << 21
    assert cpu_blocking(**{**sizes, "entries": 0}, axis_size=0, inner=1)["blocks"] == 1


# ---- To a tensor that there is -------------------------------------------------------------------

# batches, axis_size, entries, row. Few entries beside many rows, which one thread adds as they
# stand; the other ways as above.
ONTO = [
    (1, 500_000, 300, 1),
    (2, 300_000, 40, 1),
    (1, 40_000, 900, 3),
    (2, 9_000, 60, 130),
    (1, 20, 9_000, 3),
    (1, 2_000, 80_000, 1),
    (2, 40_000, 300_000, 1),
    (2, 3_000, 9_000, 64),
    (1, 9, 200, 9_000),
    (300, 7, 5, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("spread", ["uniform", "hot", "sorted"])
def test_onto_what_there_is(dtype: torch.dtype, spread: str) -> None:
    """The same bits for any number of threads; 16 bits are rounded once; the rest stays."""
    for batches, size, count, row in ONTO:
        index = spread_index(spread, size, count, batches)
        values = values_for((batches, count, row), torch.device("cpu"), dtype)
        start = values_for((batches, size, row), torch.device("cpu"), dtype, seed=1)
        results = []
        for number in (1, 3):
            with threads(number):
                results.append(torch_ops.scatter_add_(start.clone(), values, index, batch_dims=1))
        first, other = results
        assert torch.equal(other, first)
        wide = dtype
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.complex128 if dtype.is_complex else torch.float64
        expected = start.to(wide)
        expected.scatter_add_(1, index[:, :, None].expand(values.shape), values.to(wide))
        if wide == dtype and wide != torch.float64:
            assert torch.equal(first, expected)
            continue
        rtol, _ = sum_tolerance(dtype)
        summed = torch.float32 if dtype.itemsize == 2 else dtype
        atol = 2 * count * torch.finfo(summed).eps
        torch.testing.assert_close(first.to(wide), expected, rtol=rtol, atol=atol)
        named = torch.zeros(batches, size, dtype=torch.bool).scatter_(1, index, True)
        assert torch.equal(first[~named], start[~named])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int16], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int16, torch.int64], ids=str)
def test_onto_by_a_strided_index(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    for size, count, row in [(30_000, 50, 1), (30_000, 4_000, 9), (40, 30_000, 3)]:
        index = spread_index("uniform", size, 2 * count, 1)[0].to(index_dtype)[::2]
        values = values_for((count, row), torch.device("cpu"), dtype)
        start = torch.ones(size, row, dtype=dtype)
        actual = torch_ops.scatter_add_(start.clone(), values, index)
        if not dtype.is_floating_point:
            assert torch.equal(actual, start.index_add_(0, index.long(), values))
            continue
        exact = start.double().index_add_(0, index.long(), values.double())
        rtol, _ = sum_tolerance(dtype)
        torch.testing.assert_close(actual.double(), exact, rtol=rtol, atol=count * 2**-22)


def test_index_add_counts_from_the_end() -> None:
    """index_add's own mode, few and many."""
    for size, count, row in [(500_000, 300, 1), (9_000, 60, 130), (2_000, 80_000, 1)]:
        index = spread_index("uniform", size, count, 1)[0]
        values = values_for((count, row), torch.device("cpu"), torch.int32)
        source = torch.ones(size, row, dtype=torch.int32)
        index = torch.where(torch.arange(count) % 2 == 0, index, index - size)
        expected = source.clone().index_put_((index,), values, accumulate=True)
        assert torch.equal(torch_ops.index_add(source, index, values), expected)
        assert torch.equal(
            torch_ops.index_put_(source.clone(), index, values, accumulate=True), expected
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int16], ids=str)
def test_nothing_is_added_where_an_entry_is_out_of_range(dtype: torch.dtype) -> None:
    for batches, size, count, row in ONTO:
        index = spread_index("uniform", size, count, batches)
        index[-1, -1] = size
        values = torch.ones(batches, count, row, dtype=dtype)
        out = torch.zeros(batches, size, row, dtype=dtype)
        with pytest.raises(
            IndexError, match=rf"index\[{batches - 1}, {count - 1}\] is {size}, out"
        ):
            torch_ops.scatter_add_(out, values, index, batch_dims=1)
        assert not out.any()
    empty = torch.zeros(0, 3, dtype=dtype)
    with pytest.raises(IndexError, match="size 0"):
        torch_ops.scatter_add_(empty, torch.ones(2, 3, dtype=dtype), torch.tensor([0, 1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_negative_zeros_stay(dtype: torch.dtype) -> None:
    """Nothing but -0 is added to -0, most of it to one row, by one way and another."""
    for size, count in [
        (200_000, 60_000),
        (200_000, 1000),
        (1000, 1000),
        (20, 30),
        (6_000_000, 900),
    ]:
        index = torch.full((count,), 7)
        index[::5] = size - 1
        for number in (1, 3, 8):
            out = torch.full((size,), -0.0, dtype=dtype)
            with threads(number):
                torch_ops.scatter_add_(out, torch.full((count,), -0.0, dtype=dtype), index)
            assert out.signbit().all()
