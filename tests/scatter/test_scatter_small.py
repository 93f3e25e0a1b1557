"""Sums of few entries a slab.

On CUDA one kernel makes these, whose bits follow from a row's entries alone. The CPU, which has the
same results to give, has no such kernel.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from gathering import SPREADS, spread_index, values_for
from memory import peak_memory
from modes import INDEX_DTYPES, MODES, scatter_add_by_mode
from op_checks import FLOATS, assert_same
from torch import Tensor

import torch_ops

WIDTHS = (1, 2, 3, 5, 8, 33, 64, 100, 256, 1000)
# Slabs, rows, entries: a run of a row, several, and several of several; more rows than a block has
# threads; the most entries that it takes by default, and in the deterministic mode; one row; one
# entry; more blocks than run at once, which have wider strips.
SHAPES = (
    (4, 32, 112),
    (3, 300, 700),
    (1, 2000, 90),
    (1, 40, 2048),
    (1, 700, 8192),
    (2, 1, 1030),
    (5, 7, 1),
    (900, 20, 70),
)

add = partial(torch_ops.scatter_add, batch_dims=1)


def sums(values: Tensor, index: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """By torch, on the device that values are on."""
    result = values.new_zeros(values.shape[0], rows, *values.shape[2:], dtype=dtype)
    index = index.to(values.device).long()
    return result.scatter_add_(1, index[:, :, None].expand(values.shape), values.to(dtype))


def assert_near(actual: Tensor, values: Tensor, index: Tensor, rows: int, message: str) -> None:
    """To the rounding of the result, and of the type that sums are made in."""
    error = (actual.double() - sums(values, index, rows, torch.float64)).abs()
    magnitudes = sums(values.abs(), index, rows, torch.float64)
    summed = torch.float32 if values.dtype.itemsize == 2 else values.dtype
    # On the CPU the sums of a row are some 2000 additions, one after the other.
    slack = (8 if actual.is_cuda else 2000) * torch.finfo(summed).eps
    rounding = 0.51 * torch.finfo(values.dtype).eps if values.dtype.itemsize == 2 else 0.0
    least = torch.finfo(values.dtype).tiny
    assert (error <= (rounding + slack) * magnitudes + least).all(), message


def plan_of(
    device: torch.device,
    slabs: int,
    rows: int,
    count: int,
    width: int,
    dtype: torch.dtype = torch.bfloat16,
    **options: Any,
) -> dict[str, Any]:
    """What a call does on this GPU, or on an H200 where there is none."""
    from torch_ops._ext.scatter import plan

    from torch_ops._explain import H200, limits_of_gpu

    limits = limits_of_gpu()[0] if device.type == "cuda" else H200
    floats = dtype.is_floating_point
    sizes = {"batch": slabs, "value_bytes": dtype.itemsize, "floats": floats}
    return dict(plan(rows, count, width, **sizes, **{**limits, **options}))


def cut_of(*sizes: Any, way: str = "small", **options: Any) -> dict[str, int]:
    """How this way cuts a call, whether it is the fastest one or not."""
    return dict(plan_of(*sizes, way=way, **options)["cut"])


def spoil(device: torch.device, *sizes: int, dtype: torch.dtype) -> None:
    """What is allocated next finds no zeros, and so tells whether it writes all of its rows."""
    torch.full(sizes, 7, device=device, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spread", SPREADS)
def test_right_and_repeatable(device: torch.device, dtype: torch.dtype, spread: str) -> None:
    """By default and in the deterministic mode."""
    for batch, rows, count in SHAPES:
        if spread == "hot" and rows < 3:
            continue
        for width in WIDTHS:
            if batch * count * width > 2**18:
                continue
            message = f"{batch} {rows} {count} {width}"
            index = spread_index(spread, rows, count, batch).to(device)
            values = values_for((batch, count, width), device, dtype)
            spoil(device, batch, rows, width, dtype=dtype)
            first = add(values, index, rows)
            assert_near(first, values, index, rows, message)
            # Others are added in no given order on CUDA.
            plan = plan_of(device, batch, rows, count, width, dtype)
            if device.type == "cpu" or plan["guarantee"] == "the same bits on every run":
                assert_same(add(values, index, rows), first, message)
            in_order = add(values, index, rows, deterministic=True)
            assert_near(in_order, values, index, rows, message)
            again = add(values, index, rows, deterministic=True)
            assert_same(again, in_order, message)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_integers(device: torch.device, dtype: torch.dtype) -> None:
    for width in (1, 3, 64, 100):
        index = spread_index("hot", 60, 900, 3)
        values = values_for((3, 900, width), device, dtype)
        expected = sums(values.cpu(), index, 60, dtype)
        assert_same(add(values, index.to(device), 60).cpu(), expected, f"{width}")


@pytest.mark.parametrize("width", [3, 16, 64, 100, 256])
def test_bits_follow_from_a_rows_entries(device: torch.device, width: int) -> None:
    """Not from other slabs, other rows, other columns, or where the values lie in memory."""
    if device.type == "cpu":
        return  # there the order of a row's entries may be cut where a thread's work ends
    # In strips as wide as the number of slabs allows; by small alone, by sparse together.
    shapes = [(40, 50, 1000), (40, 3000, 2048), (40, 20_000, 900)]
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    for (batch, rows, count), dtype in product(shapes, dtypes):
        if rows * width > 2**20:
            continue
        index = spread_index("hot", rows, count, batch).to(device)
        values = values_for((batch, count, width), device, dtype)
        together = add(values, index, rows, deterministic=True)
        for b in (0, 7, 39):
            alone = add(values[b : b + 1], index[b : b + 1], rows, deterministic=True)
            assert_same(alone[0], together[b], f"slab {b}")
            plain = torch_ops.scatter_add(values[b], index[b], rows, deterministic=True)
            assert_same(plain, together[b], f"slab {b}, without batches")
        more = add(values, index, rows + 3000, deterministic=True)
        assert_same(more[:, :rows], together, "more rows")
        assert (more[:, rows:] == 0).all()
        shorter = add(values[:, :, : width - 1], index, rows, deterministic=True)
        if width - 1 not in (2, 4):  # which are summed in fixed point
            assert_same(shorter, together[:, :, : width - 1], "fewer columns")
        memory = torch.empty(values.numel() + 1, device=device, dtype=dtype)
        unaligned = memory[1:].view(values.shape).copy_(values)
        assert_same(add(unaligned, index, rows, deterministic=True), together, "unaligned")
        of_a_slab = partial(torch_ops.scatter_add, dim_size=rows, deterministic=True)
        assert_same(torch.vmap(of_a_slab)(values, index), together, "vmap")


# Few entries beside many rows, of which a block has a share: slabs, rows, entries.
SPARSE_SHAPES = (
    (1, 70_000, 4096),
    (2, 40_000, 2500),
    (3, 60_000, 1),
    (40, 16_500, 117),
    (5, 33_001, 700),
    (1, 50_000, 300),
    (1, 1_000_000, 9000),
    (50, 1000, 77),
    (150, 1000, 77),
)
SPARSE_WIDTHS = (1, 3, 5, 8, 33, 64, 100)


def test_the_shapes_reach_each_kind_of_cut() -> None:
    """Zeros by the blocks or before, large blocks or small, whole rows or strips: on an H200."""
    # Of odd widths and so many values no other way comes before this one.
    plans = [
        plan_of(torch.device("cpu"), *shape, width)
        for shape in SPARSE_SHAPES
        for width in SPARSE_WIDTHS
        if width % 4 and shape[0] * shape[1] * width >= 2**19
    ]
    cuts = [plan["cut"] for plan in plans if plan["way"] == "sparse"]
    kinds = {(cut["fills"], cut["threads"], cut["strips"] > 1) for cut in cuts}
    assert kinds == set(product((0, 1), (256, 512), (False, True)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spread", SPREADS)
def test_few_entries_beside_many_rows(
    device: torch.device, dtype: torch.dtype, spread: str
) -> None:
    most = 2**23 if device.type == "cuda" else 2**20  # on the CPU no way depends on it
    for batch, rows, count in SPARSE_SHAPES:
        for width in SPARSE_WIDTHS:
            if rows * batch * width > most or batch * count * width > 2**20:
                continue
            message = f"{batch} {rows} {count} {width}"
            index = spread_index(spread, rows, count, batch).to(device)
            values = values_for((batch, count, width), device, dtype)
            spoil(device, batch, rows, width, dtype=dtype)
            result = add(values, index, rows)
            assert_near(result, values, index, rows, message)
            plan = plan_of(device, batch, rows, count, width, dtype)
            if device.type == "cpu" or plan["guarantee"] == "the same bits on every run":
                assert_same(add(values, index, rows), result, message)
            if device.type == "cuda":  # the CPU has one way
                spoil(device, batch, rows, width, dtype=dtype)
                in_order = add(values, index, rows, deterministic=True)
                assert_near(in_order, values, index, rows, message)
                assert_same(add(values, index, rows, deterministic=True), in_order, message)


def test_the_same_bits_whatever_the_rows_are(device: torch.device) -> None:
    """Side by side in the deterministic mode, and here scattered by default."""
    if device.type == "cpu":
        return  # there the order of a row's entries may be cut where a thread's work ends
    for dtype, width in [(torch.float16, 5), (torch.bfloat16, 64)]:
        for spread in SPREADS:
            index = spread_index(spread, 16_384, 1000, 3).to(device)
            values = values_for((3, 1000, width), device, dtype)
            side_by_side = add(values, index, 16_384, deterministic=True)
            assert_same(add(values, index, 16_384), side_by_side, f"{dtype} {spread}")


def share_of(row: Tensor, cut: dict[str, int]) -> Tensor:
    """Which block has a row: ScatteredChunks in small_cut.h."""
    place = (row >> cut["row_bits"]) * cut["factor"] & ((1 << cut["place_bits"]) - 1)
    return place // cut["share_places"]


@pytest.mark.parametrize("rows", [2_000_000, 200_000])
def test_more_rows_than_a_block_has_room_for(device: torch.device, rows: int) -> None:
    """Whether blocks write the zeros too, or a kernel before them."""
    count, width = 2000, 3
    plan = plan_of(device, 1, rows, count, width)
    cut = plan["cut"]
    assert plan["way"] == "sparse" and cut["fills"] == (rows == 200_000)
    named = torch.arange(rows)
    shares = share_of(named, cut)
    assert shares.min() >= 0 and shares.max() < cut["row_blocks"]
    named = named[shares == 1][:1500]
    assert len(named) == 1500 > 5 * cut["rows"]
    index = named[torch.randint(1500, (1, count))].to(device)
    values = values_for((1, count, width), device, torch.bfloat16)
    spoil(device, 1, rows, width, dtype=torch.bfloat16)
    result = add(values, index, rows)
    assert_near(result, values, index, rows, "one share")


def test_rows_in_a_pattern_are_scattered() -> None:
    """Neighbours, and rows that are equally far apart, are no block's work alone."""
    device = torch.device("cpu")
    for slabs, rows, count, width in [
        (1, 1 << 20, 4096, 5),
        (100, 2000, 500, 1),
        (60, 4000, 900, 1),
    ]:
        cut = cut_of(device, slabs, rows, count, width, way="sparse")
        for step in (1, 2, 3, 64, 100, 256):
            if step * count > rows:
                continue
            entries = share_of(torch.arange(count) * step, cut).bincount(
                minlength=cut["row_blocks"]
            )
            chunks = max(1, (1 << cut["row_bits"]) // step)  # entries of a chunk
            assert entries.max() <= 2 * count / cut["row_blocks"] + 2 * chunks, (rows, step)


def test_each_row_is_in_one_share() -> None:
    for rows in (1, 7, 8, 9, 1000, 4097, 1 << 20):
        for width in (1, 33, 600):
            cut = cut_of(torch.device("cpu"), 1, rows, min(rows, 500), width, way="sparse")
            chunk, places = 1 << cut["row_bits"], 1 << cut["place_bits"]
            assert places * chunk >= rows and (places == 1 or places * chunk < 2 * (rows + chunk))
            assert cut["row_blocks"] * cut["share_places"] >= places
            # As first_row in small_cut.h has it.
            inverse = pow(cut["factor"], -1, places)
            first_rows = torch.arange(places) * inverse % places * chunk
            assert first_rows.sort().values.equal(torch.arange(places) * chunk)
            assert share_of(first_rows, cut).equal(torch.arange(places) // cut["share_places"])


def test_the_cut_leaves_room_for_the_kernels_own() -> None:
    """16 bytes: a launch that asks for more than a block may have is refused."""

    def needed(shared_bytes: int, entries: int, inner: int) -> int:
        sizes = (torch.device("cpu"), 1, 1 << 20, entries, inner)
        return cut_of(*sizes, way="sparse", shared_bytes=shared_bytes).get("bytes", 0)

    for entries in (1, 100, 3000, 16384):
        for inner in (1, 5, 32):
            most = needed(2**20, entries, inner)
            assert needed(most + 16, entries, inner) == most
            assert needed(most + 15, entries, inner) < most


@pytest.mark.parametrize("mode", MODES)
def test_modes(device: torch.device, mode: str) -> None:
    low, high = (-70, 90) if mode not in ("raise", "unchecked") else (0, 40)
    for dtype in INDEX_DTYPES:
        index = torch.randint(max(low, 0) if dtype == torch.uint8 else low, high, (2, 500))
        index = index.to(dtype)
        values = values_for((2, 500, 9), torch.device("cpu"), torch.float64)
        expected = scatter_add_by_mode(values, index, 40, batch_dims=1, mode=mode)
        actual = add(values.to(device), index.to(device), 40, mode=mode)
        torch.testing.assert_close(actual.cpu(), expected)
        # Beside many rows, in 16 bits, where sums of ones are exact.
        ones, index = torch.ones(2, 256, 9, dtype=torch.bfloat16), index[:, :256]
        expected = scatter_add_by_mode(ones.double(), index, 20_000, batch_dims=1, mode=mode)
        actual = add(ones.to(device), index.to(device), 20_000, mode=mode)
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=0, atol=0)


def test_no_entry_of_many_names_a_row(device: torch.device) -> None:
    values = torch.ones(4, 300, 8, dtype=torch.bfloat16, device=device)
    index = torch.full((4, 300), 10**6, device=device)
    for rows in (20_000, 50_000):
        for _ in range(10):
            spoil(device, 4, rows, 8, dtype=torch.bfloat16)
            assert (add(values, index, rows, mode="fill") == 0).all()


@pytest.mark.parametrize("width", [1, 3, 64])
def test_an_index_with_gaps(device: torch.device, width: int) -> None:
    """One for all slabs, each entry twice, from the end; axes before dim."""
    values = values_for((6, 300, width), device, torch.float32)
    once = spread_index("uniform", 50, 300, 1).to(device)
    for index in (
        once.expand(6, 300),
        once.repeat_interleave(2, 1)[:, ::2].expand(6, 300),
        once.to(torch.int16).flip(1).t().contiguous().t().expand(6, 300),
    ):
        assert_near(add(values, index, 50), values, index, 50, f"{index.stride()}")
    in_rows = torch_ops.scatter_add(values, once[0], 50, dim=1)
    assert_same(in_rows, add(values, once.expand(6, 300), 50), "axes before dim")


def test_zeros_and_numbers_that_are_none(device: torch.device) -> None:
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([[-0.0], [-0.0], [inf], [1.0], [inf], [-inf], [nan]], device=device)
    index = torch.tensor([0, 0, 1, 1, 2, 2, 3], device=device)
    for width in (1, 3, 4):
        result = torch_ops.scatter_add(values.expand(7, width).contiguous(), index, 5)
        expected = torch.tensor([0.0, inf, nan, nan, 0.0])[:, None].expand(5, width)
        assert_same(result.cpu(), expected.contiguous(), f"{width}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16], ids=str)
def test_out_of_range(device: torch.device, dtype: torch.dtype) -> None:
    """Named once, and dropped on CUDA."""
    if device.type == "cpu":
        return  # test_scatter.py
    values = torch.ones(3, 200, 8, device=device, dtype=dtype)  # bfloat16 has each number to 256
    index = torch.zeros(3, 200, device=device, dtype=torch.int64)
    index[2, 199] = 2**40
    for rows in (1000, 50_000, 100_000):
        spoil(device, 3, rows, 8, dtype=dtype)
        result = add(values, index, rows)
        message = r"scatter_add: index\[2, 199\] is 1099511627776, out of"
        with pytest.raises(IndexError, match=message):
            torch_ops.check_errors()
        torch_ops.check_errors()
        assert result[:, 0, 0].float().tolist() == [200, 200, 199]
        assert (result[:, 1:] == 0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_in_a_cuda_graph() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    for rows, width in [(80, 64), (50_000, 64), (20_000, 5), (20_000, 33)]:
        values = values_for((2, 500, width), device, torch.bfloat16)
        index = spread_index("uniform", rows, 500, 2).to(device)
        expected = add(values, index, rows)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = add(values, index, rows)
        for _ in range(2):
            captured.fill_(7)
            graph.replay()
            assert_same(captured, expected, "replayed")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_of_calls_with_more_and_less_shared_memory() -> None:
    """Both have more than a kernel has unasked: the second must not lower what the first has."""
    device = torch.device("cuda", torch.cuda.current_device())
    calls = []
    for count in (2048, 1600):
        values = values_for((200, count, 16), device, torch.float32)
        calls.append((values, spread_index("uniform", 256, count, 200).to(device)))
    few = (values[:, :100], calls[0][1][:, :100])
    add(*few, 256, deterministic=True)  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [add(*call, 256, deterministic=True) for call in calls]
    graph.replay()
    for call, sums in zip(calls, captured, strict=True):
        assert_same(sums, add(*call, 256, deterministic=True), "replayed")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_it_is_one_kernel() -> None:
    """And no scratch."""
    for dtype, width in [(torch.float32, 64), (torch.bfloat16, 5)]:
        values = torch.ones(4, 112, width, device="cuda", dtype=dtype)
        index = torch.randint(32, (4, 112), device="cuda")
        for deterministic in (False, True):
            call = partial(add, values, index, 32, deterministic=deterministic)
            result = call()
            assert peak_memory(values.device, call) == result.nbytes
            activities = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities, acc_events=True) as run:
                call()
                torch.cuda.synchronize()
            kernels = [event.name for event in run.events() if "sum_kernel" in event.name]
            others = [event.name for event in run.events() if "zero" in event.name]
            assert len(kernels) == 1 and not others, (kernels, others)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for rows, count, width in [(5, 70, 4), (300, 40, 3), (2, 600, 33), (30_000, 300, 3)]:
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            index = spread_index("uniform", rows, count, 2)
            values = torch.ones(2, count, width, dtype=dtype, device=device)
            counts = torch.stack([part.bincount(minlength=rows) for part in index])
            expected = counts[:, :, None].expand(2, rows, width).to(dtype)
            assert_same(add(values, index.to(device), rows).cpu(), expected, f"{rows} {dtype}")


def test_the_cut() -> None:
    """From sizes alone."""
    h200 = torch.device("cpu")
    cut = partial(cut_of, h200, dtype=torch.float32)
    one = cut(slabs=1, rows=1024, count=1000, width=64)
    # Strips of 64 bytes, a block a multiprocessor.
    assert (one["columns"], one["strips"], one["rows"], one["row_blocks"]) == (16, 4, 32, 32)
    assert one["piece"] == 128 and cut(slabs=1, rows=9, count=1025, width=1)["piece"] == 160
    many = cut(slabs=256, rows=1024, count=1000, width=64)
    assert (many["rows"], many["row_blocks"]) == (256, 4)
    for rows, count, width in [(1, 1, 1), (10_000, 2048, 1), (999, 2048, 999), (99, 7, 33)]:
        for slabs in (1, 7, 1000):
            for dtype in (torch.float32, torch.uint8, torch.bfloat16, torch.float64):
                found = cut_of(h200, slabs, rows, count, width, dtype)
                assert 0 < found["rows"] <= 256 and found["piece"] <= 256
                assert found["rows"] * found["row_blocks"] >= rows
                assert found["columns"] * found["strips"] >= width
                assert found["piece"] * 8 >= count
                assert found["bytes"] <= 227 * 1024 // 2
                if dtype == torch.float64:
                    same = plan_of(h200, slabs, rows, count, width, dtype, repeatable=True)
                    blocks = -(-slabs * found["row_blocks"] * found["strips"] // 132)
                    sparse = rows > 2 * count and blocks > 2
                    assert same["way"] == ("sparse" if sparse else "small")
    # Wider strips where blocks are many, unless their sums take too much of the shared memory.
    assert [cut(slabs=n, rows=9, count=99, width=64)["columns"] for n in (100, 200, 400)] == [
        16,
        32,
        64,
    ]
    assert cut(slabs=400, rows=9, count=8000, width=64)["columns"] == 16

    # The default for few entries and values, and for more where sums have to be rounded, in blocks
    # that run at once.
    def is_default(dtype: torch.dtype, *sizes: int) -> bool:
        return bool(plan_of(h200, *sizes, dtype=dtype)["way"] == "small")

    floats, halves = partial(is_default, torch.float32), partial(is_default, torch.bfloat16)
    assert floats(1, 256, 512, 256) and not floats(1, 256, 513, 256)
    assert halves(1, 256, 512, 256) and not halves(1, 256, 513, 256)
    assert floats(1, 256, 1024, 8) and not floats(1, 256, 1025, 7)
    assert halves(1, 256, 2048, 8)
    assert floats(396, 256, 500, 8) and not floats(397, 256, 500, 8)
    assert not floats(198, 513, 500, 8)

    # With the same bits on every run, up to 8192 entries, or some more if most rows have none, and
    # as many as the blocks of a slab can read.
    def repeatable(*sizes: int) -> str:
        return str(plan_of(h200, 1, *sizes, dtype=torch.float32, repeatable=True)["way"])

    assert repeatable(16384, 8192, 9) == "small" and repeatable(16384, 8193, 9) == "sorted"
    assert repeatable(16385, 8192, 9) == "small" and repeatable(32_769, 16_384, 3) == "sorted"
    assert repeatable(1 << 20, 8192, 32) == "sparse" and repeatable(1 << 20, 8192, 33) == "sorted"
    assert repeatable(1 << 20, 2048, 512) == "sparse"


@pytest.mark.parametrize("shared_bytes", [99 << 10, 163 << 10, 227 << 10])
def test_the_choice_is_a_slabs(shared_bytes: int) -> None:
    """Small or sparse is not, whose bits are the same; nor whether a cut fits."""
    generator = torch.Generator().manual_seed(0)
    most = torch.tensor([70_000.0, 20_000.0, 300.0])
    device, ways = torch.device("cpu"), set()
    drawn = [most ** torch.rand(3, generator=generator) for _ in range(300)]
    # The first one would have 83 rows per block, or 128, which do not fit.
    calls = [[7241, 8192, 18], *(sizes.long().tolist() for sizes in drawn)]
    for rows, count, width in calls:
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            options = {"repeatable": True, "shared_bytes": shared_bytes}
            found = {
                plan_of(device, slabs, rows, count, width, dtype, **options)["way"]
                for slabs in (1, 3, 40, 306, 5000)
            }
            assert len(found) == 1 or found == {"small", "sparse"}, (rows, count, width, dtype)
            ways |= found
    assert ways >= {"small", "sparse", "sorted", "privatized", "fixed point"}
