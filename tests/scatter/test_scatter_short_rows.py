"""Sums of rows of one, two or four values with the same bits on every run.

On CUDA these are made in integers, in tables in shared memory: a table for whole slabs, or for a
bin of a slab's rows. The CPU, which has the same results to give, has none of that.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gathering import values_for
from op_checks import assert_same
from torch import Tensor

import torch_ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPREADS = ("uniform", "one", "hot", "half", "sorted")

add = partial(torch_ops.scatter_add, batch_dims=1, deterministic=True)


def plan(slabs: int, **sizes: Any) -> dict[str, Any]:
    """What a call does on an H200; its cut is that of tables, where they can take it."""
    from torch_ops._ext.scatter import plan

    return dict(plan(batch=slabs, way="fixed point", **sizes))


def is_default(**sizes: Any) -> bool:
    return bool(plan(**sizes)["way"] == "fixed point")


def cut_of(**sizes: Any) -> dict[str, int]:
    return dict(plan(**sizes)["cut"])


def spread_index(spread: str, batch: int, rows: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows + count)
    index = torch.randint(rows, (batch, count), generator=generator)
    if spread == "one":
        index.fill_(rows - 1)
    elif spread == "hot":
        index[torch.rand(batch, count, generator=generator) < 0.9] = rows // 2
    elif spread == "half":  # tiles of one row, and tiles of many
        index[:, : count // 2] = rows // 2
    elif spread == "sorted":
        index = index.sort().values
    return index


def sums(values: Tensor, index: Tensor, rows: int) -> Tensor:
    """In float64, on the CPU."""
    result = torch.zeros(values.shape[0], rows, *values.shape[2:], dtype=torch.float64)
    values, index = values.cpu().double(), index.cpu()
    if values.dim() == 3:
        index = index[:, :, None].expand(values.shape)
    return result.scatter_add_(1, index, values)


def assert_near(actual: Tensor, values: Tensor, index: Tensor, rows: int, message: str) -> None:
    """To the rounding of the result, and float32's of what goes into each sum."""
    error = (actual.cpu().double() - sums(values, index, rows)).abs()
    magnitudes = sums(values.abs(), index, rows)
    # On the CPU the sums of a row are some 60,000 additions, one after the other.
    slack = 1e-6 if actual.is_cuda else 2e-5
    rounding = 0.51 * torch.finfo(values.dtype).eps if values.dtype.itemsize == 2 else 0.0
    assert (error <= (rounding + slack) * magnitudes + 1e-45).all(), message


# Tables of several slabs; of one slab, in few parts, and in many; bins of it; several tiles, and
# several parts of a hot bin; several segments. Three are not aligned to anything.
SHAPES = [
    (1500, 7, 40),
    (3, 1000, 50_000),
    (2, 1000, 180_001),
    (2, 5000, 4000),
    (2, 30_001, 120_007),
    (1, 5001, 1_200_003),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [None, 2, 4])
@pytest.mark.parametrize("spread", SPREADS)
def test_repeatable_and_right(
    device: torch.device, dtype: torch.dtype, width: int | None, spread: str
) -> None:
    for batch, rows, count in SHAPES:
        if device.type == "cpu" and count > 200_000 and (dtype != torch.float32 or width):
            continue  # what it is for is CUDA's alone
        index = spread_index(spread, batch, rows, count)
        values = values_for((batch, count, *([width] if width else [])), device, dtype)
        first = add(values, index.to(device), rows)
        for _ in range(2):
            assert_same(add(values, index.to(device), rows), first, f"{batch} {rows} {count}")
        if dtype == torch.float16 and spread in ("one", "hot", "half"):
            continue  # 65504 is exceeded by magnitudes
        assert_near(first, values, index, rows, f"{batch} {rows} {count}")


def meeting_entries(kind: str, rows: int, count: int) -> Tensor:
    """Of which some name a row that an entry close by names too."""
    generator = torch.Generator().manual_seed(count)

    def random(high: int, size: int) -> Tensor:
        return torch.randint(high, (size,), generator=generator)

    if kind == "runs":  # of one entry to several times the 128 that a warp has side by side
        longest = torch.tensor([1, 3, 4, 5, 20, 70, 600])[random(7, count)]
        lengths = 1 + (torch.rand(count, generator=generator) * longest).long()
        return random(rows, count).repeat_interleave(lengths)[:count]
    if kind == "runs of four":  # a lane's
        return random(rows, count // 4 + 1).repeat_interleave(4)[:count]
    if kind == "crowds":  # of one row here and another there, among short runs
        index = random(rows, count // 3 + 1).repeat_interleave(3)[:count]
        crowd = random(rows, count // 10_000 + 1).repeat_interleave(10_000)[:count]
        return torch.where(random(100, count) < 60, crowd, index)
    assert kind == "pairs"  # in few lanes of a warp
    index = random(rows, count)
    firsts = random(count // 30, count // 60) * 30
    index[firsts + 1] = index[firsts]
    return index


@pytest.mark.parametrize("kind", ["runs", "runs of four", "crowds", "pairs"])
def test_entries_that_meet(device: torch.device, kind: str) -> None:
    """They are added up before they are put into bins: none may be lost, or be taken twice."""
    rows = 9000
    generator = torch.Generator().manual_seed(rows)
    for count in (40_000, 100_003):
        index = meeting_entries(kind, rows, count)
        # Out of range: single entries, and more than a lane, and a warp, has side by side.
        some_bad = index.clone()
        some_bad[torch.randint(count, (count // 50,), generator=generator)] = rows
        some_bad[count // 3 :][:7] = rows
        some_bad[count // 2 :][:5000] = rows
        for width, dtype in [
            (1, torch.float32),
            (2, torch.float32),
            (4, torch.float32),
            (1, torch.bfloat16),
            (2, torch.float16),
        ]:
            values = torch.randint(-8, 9, (count, width), generator=generator).double()  # exact
            for entries, mode in [(index, "raise"), (index.int(), "raise"), (some_bad, "fill")]:
                expected = torch.zeros(rows + 1, width, dtype=torch.float64)
                expected.index_add_(0, entries, values)
                result = add(
                    values[None].to(device, dtype), entries[None].to(device), rows, mode=mode
                )
                message = f"{kind} {count} {width} {dtype} {mode}"
                assert_same(result[0].cpu(), expected[:rows].to(dtype), message)


@pytest.mark.parametrize(
    ("rows", "count", "width"),
    [(20, 5000, 1), (300, 40_000, 1), (6000, 60_000, 1), (6000, 60_000, 2), (6000, 60_000, 4)],
)
def test_a_slab_does_not_depend_on_the_others(
    device: torch.device, rows: int, count: int, width: int
) -> None:
    """Under torch.vmap too, whether it is the values that have a hidden axis or the index."""
    index = spread_index("hot", 3, rows, count).to(device)
    values = values_for((3, count, width), device, torch.float32)
    together = add(values, index, rows)
    for b in range(3):
        alone = add(values[b : b + 1], index[b : b + 1], rows)
        assert_same(alone[0], together[b], f"{b}")
    of_values = torch.vmap(lambda v: add(v, index, rows))(torch.stack([values, -values]))
    assert_same(of_values[0], together, "values")
    assert_same(of_values[1], -together + 0.0, "values, negated")
    of_both = torch.vmap(lambda v, i: add(v[None], i[None], rows))(values, index)
    assert_same(of_both[:, 0], together, "both")


def test_slabs_in_turn(device: torch.device) -> None:
    """More slabs than there is scratch for at a time, on CUDA."""
    batch, rows, count, width = 60, 5000, 100_000, 4
    sizes = {"axis_size": rows, "entries": count, "inner": width, "value_bytes": 4}
    cut = cut_of(slabs=batch, **sizes)
    assert cut["bins"] > 0 and batch / 2 < cut["slabs_at_once"] < batch
    generator = torch.Generator(device).manual_seed(rows)
    index = torch.randint(rows, (batch, count), device=device, generator=generator)
    shape = (batch, count, width)
    values = torch.randint(-8, 9, shape, device=device, generator=generator).float()
    expected = torch.zeros(batch, rows, width, device=device, dtype=torch.float64)
    expected.scatter_add_(1, index[:, :, None].expand(values.shape), values.double())
    assert_same(add(values, index, rows), expected.float(), "exact sums")


def test_the_order_of_entries_does_not_matter(device: torch.device) -> None:
    """To sums of one part: they are exact but for their scale, which is the same.

    Not of float32 and of elements in bins, of which a warp adds up first what it has for a row.
    """
    # Three tiles, nearly all of which are of the first bin.
    sizes = {"axis_size": 2100, "entries": 20_000, "inner": 2, "value_bytes": 2}
    cut = cut_of(slabs=1, **sizes)
    tiles = -(-20_000 // cut["tile_entries"])
    assert cut["bins"] == 2 and tiles == 3 and cut["part_units"] >= 20_000 / 32 + tiles
    if device.type == "cpu":
        return  # there they are added in their order
    for rows, count, width, dtype in [
        (300, 900, 1, torch.float32),
        (2100, 20_000, 2, torch.bfloat16),
    ]:
        index = spread_index("hot", 1, rows, count).to(device)
        values = values_for((1, count, width), device, dtype)
        shuffled = torch.randperm(count, device=device)
        expected = add(values, index, rows)
        assert_same(add(values[:, shuffled], index[:, shuffled], rows), expected, f"{rows}")


@pytest.mark.parametrize(("rows", "width"), [(100, 1), (6000, 1), (6000, 4)])
def test_any_magnitude(device: torch.device, rows: int, width: int) -> None:
    """Rows whose values differ from other rows' by up to 2^250, and within a row by up to 2^40."""
    count = 20 * rows
    index = spread_index("uniform", 2, rows, count)
    generator = torch.Generator().manual_seed(rows)
    exponents = index * 37 % 250 - 140 - torch.randint(40, index.shape, generator=generator)
    values = torch.randn(2, count, width, generator=generator, dtype=torch.float64)
    values = torch.ldexp(values, exponents[:, :, None]).float()
    assert (values.abs() < torch.finfo(torch.float32).tiny).any()
    result = add(values.to(device), index.to(device), rows)
    assert_near(result, values, index, rows, "")


@pytest.mark.parametrize(("rows", "width"), [(14, 1), (6000, 1), (6000, 2), (6000, 4)])
def test_values_that_are_no_numbers(device: torch.device, rows: int, width: int) -> None:
    """Among few entries of a row and many; in one column, with zeros and ones in the others."""
    inf, nan, most = math.inf, math.nan, torch.finfo(torch.float32).max
    of_row = [
        ([1.0, inf, 2.0, inf], inf),
        ([1.0, -inf, -most], -inf),
        ([inf, 3.0, -inf], nan),
        ([nan, 1.0], nan),
        ([nan, inf, inf], nan),
        ([-nan, 7.0, -inf], nan),
        ([most, most], inf),
        ([-most, -most, -1.0], -inf),
        ([-0.0, -0.0], 0.0),
        ([0.0] * 3, 0.0),
        ([1.4e-45, 1.4e-45, -4.2e-45], -1.4e-45),
        ([1.0] * 300 + [-inf] + [1.0] * 300, -inf),
        ([inf] + [1.0] * 50 + [-inf], nan),
        ([], 0.0),
    ]
    last = rows - 1
    rest = [1.0] * (2 * rows)  # all to the last row
    column = torch.tensor([v for row, _ in of_row for v in row] + rest)
    index = [i for i, (row, _) in enumerate(of_row) for _ in row] + [last] * len(rest)
    others = torch.arange(width - 1).expand(len(index), -1) % 2
    values = torch.cat([column[:, None], others], dim=1)
    for dtype in (torch.float32, torch.bfloat16):
        # In both halves of a batch, the second in reverse.
        both = torch.stack([values, values.flip(0)]).to(device, dtype)
        entries = torch.tensor([index, index[::-1]], device=device)
        result = add(both, entries, rows).cpu()
        expected = torch.zeros(2, rows, width, dtype=dtype)
        expected[:, : len(of_row), 0] = torch.tensor([sum_ for _, sum_ in of_row]).to(dtype)
        expected[:, last, 0] += 2.0 * rows
        counts = torch.tensor(index).bincount(minlength=rows)
        expected[:, :, 1:] = counts[:, None] * (torch.arange(width - 1) % 2)
        torch.testing.assert_close(result, expected, rtol=0.01, atol=0, equal_nan=True)
        assert not (torch.signbit(result) & (result == 0)).any()


def test_sums_of_16_bits_exceed_their_range_on_the_way(device: torch.device) -> None:
    """Of a row's 32 entries, which follow each other, the first 16 alone have no sum in float16."""
    rows = 6000
    index = torch.arange(rows, device=device).repeat_interleave(32)[None]
    halves = torch.tensor([60_000.0, -60_000.0], device=device).repeat_interleave(16)
    values = halves.repeat(rows)[None].half()
    values[0, 31::32] = -59_968.0
    assert_same(add(values, index, rows), torch.full((1, rows), 32.0, device=device).half(), "")


@pytest.mark.parametrize("index_dtype", [torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("mode", ["wrap", "clip", "fill", "unchecked"])
def test_modes(device: torch.device, index_dtype: torch.dtype, mode: str) -> None:
    for rows, width in [(50, 1), (6000, 1), (6000, 4)]:
        count = 3 * rows
        index = spread_index("uniform", 3, rows, count)
        if mode != "unchecked":
            index = index * 3 - rows
        expected = {
            "wrap": index % rows,
            "clip": index.clamp(0, rows - 1),
            "fill": torch.where(index < 0, index + rows, index),
            "unchecked": index,
        }[mode]
        values = values_for((3, count, width), torch.device("cpu"), torch.float32)
        dropped = (expected < 0) | (expected >= rows)
        kept = values.masked_fill(dropped[:, :, None], 0)
        result = add(values.to(device), index.to(device, index_dtype), rows, mode=mode)
        assert_near(result, kept, expected.masked_fill(dropped, 0), rows, f"{rows} {width}")


@pytest.mark.parametrize(("rows", "width"), [(50, 1), (6000, 1), (6000, 4)])
def test_out_of_range(device: torch.device, rows: int, width: int) -> None:
    count = 2 * rows
    index = spread_index("uniform", 2, rows, count).to(device)
    index[1, 7] = rows
    values = torch.ones(2, count, width, device=device)
    message = rf"scatter_add: index\[1, 7\] is {rows}, out of range for an axis of size {rows}"
    if device.type == "cpu":
        with pytest.raises(IndexError, match=message):
            add(values, index, rows)
        return
    result = add(values, index, rows)
    with pytest.raises(IndexError, match=message):
        torch_ops.check_errors()
    index[1, 7], values[1, 7] = 0, 0
    assert_same(result, add(values, index, rows), "the others")


def test_strides_and_views(device: torch.device) -> None:
    """An index with gaps; values that begin anywhere, which vectors cannot read."""
    for rows in (50, 6000):
        count = 2 * rows
        index = spread_index("uniform", 3, rows, count).to(device)
        strided = torch.stack([index, index], dim=2).transpose(0, 1).contiguous().transpose(0, 1)
        for width in (1, 2, 4):
            values = values_for((3, count, width), device, torch.float32)
            shifted = torch.zeros(values.numel() + 1, device=device)[1:].view(values.shape)
            shifted.copy_(values)
            expected = add(values, index, rows)
            assert_same(add(values, strided[:, :, 1], rows), expected, f"{rows} {width}")
            assert_same(add(shifted, index, rows), expected, f"{rows} {width}, shifted")
            assert_near(expected, values, index.cpu(), rows, f"{rows} {width}")
            one = add(values, index[:1].expand(3, count), rows)
            assert_same(one[0], expected[0], f"{rows} {width}, one index for all")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_graph() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    for rows in (50, 6000):
        index = spread_index("hot", 2, rows, 60_000).to(device)
        values = values_for((2, 60_000), device, torch.float32)
        other = values_for((2, 60_000), device, torch.float32, seed=1)
        expected = add(other, index, rows)
        stream = torch.cuda.Stream(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = add(values, index, rows)
        values.copy_(other)
        for _ in range(2):
            captured.fill_(7)
            graph.replay()
            assert_same(captured, expected, f"{rows} rows, replayed")


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    """Whole slabs, in one part and several; bins, in one part and several."""
    for batch, rows, count in [(3, 7, 20), (1, 7, 600), (2, 5000, 1300), (1, 4100, 60_000)]:
        for dtype, width in [
            (torch.float32, 1),
            (torch.bfloat16, 1),
            (torch.float32, 4),
            (torch.bfloat16, 4),
        ]:
            index = spread_index("hot", batch, rows, count)
            values = torch.ones(batch, count, width, dtype=dtype, device=device)
            result = add(values, index.to(device), rows)
            counts = torch.stack([part.bincount(minlength=rows) for part in index])
            expected = counts[:, :, None].expand(result.shape).to(dtype)
            assert_same(result.cpu(), expected, f"{batch} {rows} {count} {dtype}")
    index = spread_index("uniform", 1, 5000, 1300).to(device, torch.int32)
    index[0, 9] = -1
    for width in (1, 4) if device.type == "cuda" else ():
        add(torch.ones(1, 1300, width, device=device), index, 5000)
        with pytest.raises(IndexError, match=r"index\[0, 9\] is -1"):
            torch_ops.check_errors()


def test_cuts() -> None:
    """How a call is cut on CUDA: from sizes alone."""
    sizes = {"slabs": 64, "inner": 1, "value_bytes": 4}
    # A slab's table fits, and takes its entries in parts; small slabs share one.
    whole = cut_of(**sizes, axis_size=1024, entries=16384)
    assert whole["bins"] == 0 and whole["slabs"] == 1 and whole["parts"] == 1
    assert cut_of(**sizes, axis_size=1024, entries=1 << 20)["parts"] == 64
    small = cut_of(**{**sizes, "slabs": 1 << 17}, axis_size=16, entries=512)
    assert small["bins"] == 0 and small["slabs"] == 32 and small["table_rows"] == 512
    # Where blocks keep their entries, and fill the GPU, it is the default for elements.
    many = {**sizes, "slabs": 1024}
    assert is_default(**many, axis_size=1024, entries=16384)
    assert not is_default(**{**many, "inner": 2}, axis_size=1024, entries=16384)
    # And for slabs so small that a launch is most of their time.
    tiny = {**sizes, "axis_size": 500, "entries": 2048}
    assert is_default(**tiny)
    assert not is_default(**{**tiny, "entries": 2049})
    assert is_default(**{**tiny, "entries": 4096, "value_bytes": 2})
    assert is_default(**{**tiny, "entries": 512, "inner": 4})
    assert not is_default(**{**tiny, "entries": 512, "inner": 4, "slabs": 500})
    # And for rows of a few values, where many go to few.
    crowd = {**sizes, "slabs": 1, "entries": 1 << 20, "inner": 4}
    assert is_default(**crowd, axis_size=1024)
    assert is_default(**{**crowd, "slabs": 2}, axis_size=1024)
    assert not is_default(**{**crowd, "slabs": 2, "entries": 1 << 19}, axis_size=1024)
    assert not is_default(**{**many, "slabs": 16}, axis_size=1024, entries=16384)
    assert not is_default(**many, axis_size=4096, entries=65536)  # read twice
    assert not is_default(**many, axis_size=4096, entries=4095)
    assert not is_default(**many, axis_size=4097, entries=16384)  # bins
    # Bins of a slab's rows; a segment is 128 tiles.
    bins = cut_of(**sizes, axis_size=1 << 16, entries=1 << 20)
    assert bins["bins"] == 32 and bins["segments"] == 1
    assert cut_of(**sizes, axis_size=1 << 16, entries=(1 << 20) + 1)["segments"] == 2
    assert cut_of(**{**sizes, "inner": 4}, axis_size=4097, entries=120_000)["bins"] == 5
    assert cut_of(**sizes, axis_size=4097, entries=1025)["bins"] == 3
    # No way for other rows, for float64, for tables too large, for few entries, for a GPU with too
    # little shared memory.
    for other in (
        {"inner": 3},
        {"value_bytes": 8},
        {"axis_size": 1 << 20},
        {"entries": 1 << 12},
        {"shared_bytes": 48 * 1024},
    ):
        assert not cut_of(**{**sizes, "axis_size": 1 << 16, "entries": 1 << 20, **other}), other


def test_a_slab_is_cut_as_if_alone() -> None:
    """So its bits do not depend on the others: they are summed in turn where memory is short."""
    generator = np.random.default_rng(0)
    several = 0
    for _ in range(3000):
        rows, entries = (int(2 ** generator.uniform(0, top)) for top in (19, 25))
        sizes = {
            "axis_size": rows,
            "entries": entries,
            "inner": int(generator.choice([1, 2, 4])),
            "value_bytes": int(generator.choice([2, 4])),
        }
        slabs = int(2 ** generator.uniform(0, 10))
        alone, cut = cut_of(slabs=1, **sizes), cut_of(slabs=slabs, **sizes)
        assert bool(alone) == bool(cut), sizes
        if not cut:
            continue
        assert 1 <= cut["slabs_at_once"] <= slabs
        several += cut["slabs_at_once"] < slabs
        for name in ("bins", "tile_entries", "segments", "part_units", "parts"):
            assert alone[name] == cut[name], (sizes, name)
        if cut["slabs"] > 1:
            assert cut["parts"] == 1 and cut["table_rows"] == cut["slabs"] * rows
        if cut["bins"]:
            assert cut["bins"] * cut["table_rows"] >= rows
            # What a sum has room for: a part's units of 32 entries, and the tile that it ends in.
            assert cut["part_units"] * 32 + cut["tile_entries"] <= 65535
            # A full bin of uniform entries, a unit of each tile of which is not full, is one part.
            tiles = -(-entries // cut["tile_entries"]) / cut["segments"]
            share = min(cut["table_rows"] / rows, 1) / cut["segments"]
            units = max(entries * share / 32 + tiles, cut["tile_entries"] / 32)
            assert cut["part_units"] >= min(1536 // sizes["inner"], units), sizes
        else:
            assert cut["parts"] * 16384 >= entries
    assert several > 10
