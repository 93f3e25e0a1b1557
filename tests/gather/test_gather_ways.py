"""Each way that a gather takes on CUDA, which one it takes, and rows of every length and start.

The CPU, which has the same results to give, runs the same cases.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from gathering import enough, values_for
from op_checks import assert_same

import torch_ops


def path(
    axis_size: int,
    entries: int,
    inner: int,
    word_bytes: int,
    *,
    shared_bytes: int,
    cache_bytes: int,
    batches: int = 1,
    index_stride: int = 1,
) -> str:
    """The way of a call that moves words of this size."""
    from torch_ops._ext.gather import plan

    sizes = {"batch": batches, "element_bytes": word_bytes, "alignment": word_bytes}
    limits = {"shared_bytes": shared_bytes, "l2_bytes": cache_bytes, "index_stride": index_stride}
    return str(plan(axis_size, entries, inner, **sizes, **limits)["way"])


def test_paths() -> None:
    """The kernel is chosen from sizes alone."""
    sizes = {"axis_size": 1000, "shared_bytes": 96 * 1024, "cache_bytes": 10**7}
    many = {**sizes, "entries": 10**6}
    for word_bytes in (8, 16):
        for inner in (1, 2, 33, 10_000):
            assert path(**many, inner=inner, word_bytes=word_bytes) == "flat"
    for word_bytes, ways in [
        (1, {1: "flat", 5: "flat", 6: "short", 16: "short", 17: "granules", 99_999: "granules"}),
        (2, {2: "flat", 5: "flat", 6: "short", 300: "short", 301: "granules"}),
        (4, {3: "flat", 5: "flat", 6: "short", 8192: "short", 8193: "flat"}),
    ]:
        for inner, way in ways.items():
            assert path(**many, inner=inner, word_bytes=word_bytes) == way
    # A call of 2048 words per multiprocessor is small, one of 16384 is large.
    small = {**sizes, "inner": 33, "word_bytes": 1}
    assert path(**small, entries=2048 * 132 // 33 - 1) == "flat"
    assert path(**small, entries=2048 * 132 // 33) == "short"
    assert path(**small, entries=16384 * 132 // 33 - 1) == "short"
    assert path(**small, entries=16384 * 132 // 33) == "granules"
    long = {**sizes, "inner": 8193, "word_bytes": 2}
    assert path(**long, entries=33) == path(**long, entries=263) == "flat"
    assert path(**long, entries=264) == "granules"
    assert path(**many, inner=2**30 + 1, word_bytes=1) == "flat"  # cut into parts
    assert path(**many, inner=33, word_bytes=4, index_stride=2) == "short"
    large = {**sizes, "entries": 2**18, "axis_size": 10**7, "inner": 1}
    assert path(**large, word_bytes=4) == path(**large, word_bytes=2) == "elements"
    assert path(**{**large, "entries": 4_000}, word_bytes=4, batches=100) == "flat"  # of a block
    assert path(**{**large, "entries": 2**17}, word_bytes=4) == "flat"
    assert path(**{**large, "entries": 2**21}, word_bytes=4) == "elements"
    assert path(**{**large, "entries": 2**22}, word_bytes=4) == "flat"
    assert path(**large, word_bytes=1) == "flat"
    assert path(**large, word_bytes=4, index_stride=2) == "flat"


def test_staged_where_it_pays() -> None:
    """Elements come from shared memory where that is faster: the limits are measured ones."""
    h200 = {"inner": 1, "shared_bytes": 227 * 1024, "cache_bytes": 60 * 2**20}

    def of(batches: int, axis_size: int, entries: int, word_bytes: int = 4, **device: int) -> str:
        sizes = {"batches": batches, "axis_size": axis_size, "entries": entries}
        return path(**sizes, word_bytes=word_bytes, **{**h200, **device})

    assert of(4096, 1024, 16384) == "staged"
    assert of(1, 32768, 2**24) == "staged"  # one table for all multiprocessors
    assert of(64, 58112, 2**20) == "staged"
    assert of(64, 58113, 2**20) == "flat"  # no room
    assert of(64, 1023, 2**20) == "flat"  # the L1 cache does as well
    assert of(64, 1024, 16384) == "flat"  # few entries
    assert of(512, 32768, 24576) == "staged"
    assert of(512, 32768, 24575) == "flat"  # each table is copied for few of them
    assert of(4096, 1024, 16384, shared_bytes=4095) == "flat"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_elements_and_rows(device: torch.device, dtype: torch.dtype) -> None:
    """Each kernel on enough work for many blocks, with unaligned starts and strided indices."""
    for shape, count in [
        ((3, 100), 40_003),
        ((64, 5000), enough(device, 140_003, 1003)),  # staged on a GPU
        ((64, 40_000), 24_003),
        ((3, 50, 5), 3001),
        ((3, 50, 17), enough(device, 9001, 901)),
        ((3, 50, 64), 3001),
        ((3, 50, 321), enough(device, 3001, 301)),
    ]:
        source = values_for(shape, device, dtype)
        index = torch.randint(shape[1], (shape[0], 2 * count + 1), device=device)
        batch = torch.arange(shape[0], device=device)[:, None]
        dense = index[:, :count].contiguous()
        for picks in (dense, index[:, :count], index[:, 1 : count + 1], index[:, ::2]):
            for numbers in (picks, picks.int()):
                actual = torch_ops.batch_gather(source, numbers)
                assert_same(actual, source[batch, picks], f"{shape} {numbers.dtype}")


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
def test_elements_of_a_table_in_memory(device: torch.device, dtype: torch.dtype) -> None:
    """Tables that exceed a GPU's L2 cache, with picks for one window of them and for several."""
    size = (2**28 if device.type == "cuda" else 2**22) // dtype.itemsize // 3
    source = torch.arange(3 * size, device=device).view(3, size).to(dtype)
    for few in (50_000, 60_001, 300_007):  # of which a slab has more than one block
        count = enough(device, few, few)
        index = torch.randint(size, (3, count), device=device)
        first, last = index[:, :1], index[:, -1:]
        first.zero_(), last.fill_(size - 1)
        rows = index + torch.arange(3, device=device)[:, None] * size
        assert_same(torch_ops.batch_gather(source, index), rows.to(dtype), f"{count}")
        assert_same(torch_ops.batch_gather(source, index.int()), rows.to(dtype), f"{count}, int32")
        # One index for all slabs; from the end; and with entries that name no row.
        outer = index[0] + torch.arange(3, device=device)[:, None] * size
        assert_same(torch_ops.gather(source, index[0], 1), outer.to(dtype), "outer")
        assert_same(torch_ops.gather(source, index[0] - size, 1, mode="wrap"), outer.to(dtype), "")
        expected = rows.to(dtype)
        first.fill_(-size - 1), last.fill_(size)
        expected[:, 0] = expected[:, -1] = 7
        filled = torch_ops.batch_gather(source, index, mode="fill", fill_value=7)
        assert_same(filled, expected, f"{count}, fill")

    def pick() -> None:
        torch_ops.batch_gather(source, index)
        torch_ops.check_errors()

    with pytest.raises(IndexError, match=rf"index\[[012], (0|{count - 1})\]"):
        pick()


def test_elements_that_many_picks_name(device: torch.device) -> None:
    """Of which blocks of a GPU go through the table in fewer windows, down to two."""
    size = (2**28 if device.type == "cuda" else 2**22) // 4 // 3
    source = torch.arange(3 * size, device=device, dtype=torch.int32).view(3, size)
    counts = [enough(device, count, count) for count in (300_007, 700_007)]
    for share, count in product((0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), counts):
        index = torch.randint(size, (3, count), device=device)
        index[torch.rand(index.shape, device=device) < share] = size // 2
        index[:, ::1000], index[:, 1::1000] = 0, size - 1
        rows = index + torch.arange(3, device=device)[:, None] * size
        assert_same(torch_ops.batch_gather(source, index), rows.int(), f"{share} {count}")


def test_short_rows_of_each_length(device: torch.device) -> None:
    """Copied in pieces that overlap on the CPU; a byte too many would show in the next row."""
    for width in [*range(1, 300), 511, 513, 575, 960, 961, 1023, 1024, 1025]:
        source = values_for((20, width), device, torch.uint8)
        index = torch.randint(20, (37,), device=device)
        assert_same(torch_ops.gather(source, index), source[index], f"{width}")


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.float32, torch.float64], ids=str
)
def test_rows_of_any_length_and_start(device: torch.device, dtype: torch.dtype) -> None:
    """Rows around 16 bytes and around what a block holds, in tables that begin anywhere."""
    # As many as the kernels of long narrow words and of short rows are chosen for on a GPU.
    words = enough(device, 2_200_000 if dtype.itemsize <= 2 else 300_000, 30_000)
    for width in (5, 15, 16, 17, 31, 33, 64, 99, 127, 255, 1021, 8175, 8177, 20_001):
        rows = 40 if width < 1000 else 7
        whole = values_for((3, rows + 1, width + 5), device, dtype)
        index = torch.randint(rows, (3, words // (3 * width) + 1), device=device)
        spaced = index.repeat_interleave(2, 1)[:, ::2]
        batch = torch.arange(3, device=device)[:, None]
        for first, left, right in [(0, 0, 5), (1, 1, 4), (1, 3, 2)]:
            source = whole[:, first : first + rows, left : left + width + 5 - right - left]
            for picks in (index, spaced):  # on CUDA gaps mean another way to find rows
                actual = torch_ops.batch_gather(source, picks)
                assert_same(actual, source[batch, index], f"{width} {first} {left}")
        # Axes before dim, few entries a slab, and the first and the last row of the memory.
        dense = whole[:, :, : width + 1].contiguous()
        edges = torch.tensor([0, rows, rows, 0, 3], device=device, dtype=torch.int16)
        assert_same(torch_ops.gather(dense, edges, 1), dense[:, edges.long()], f"{width} dense")


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.float32, torch.float64], ids=str
)
def test_rows_of_a_few_words(device: torch.device, dtype: torch.dtype) -> None:
    """On CUDA a warp has 32 of them, or shares them with others, and rounds of 8 or 12 words."""
    for width in (2, 3, 5, 7, 8, 9, 12, 13, 24, 25, 31, 33, 37):
        whole = values_for((3, 70, width + 2), device, dtype)
        for count in (1, 31, 33, 1000, 40_001):
            # Rows with gaps between them, at odd places: words are no wider than elements.
            source = whole[:, :, 1 : width + 1]
            index = torch.randint(70, (3, count), device=device)
            batch = torch.arange(3, device=device)[:, None]
            expected = source[batch, index]
            label = f"{width} {count}"
            assert_same(torch_ops.batch_gather(source, index), expected, label)
            assert_same(torch_ops.batch_gather(source, index.int()), expected, label)
            shared = torch_ops.gather(source, index[0] - 70, 1, mode="wrap")
            assert_same(shared, source[:, index[0]], label)
            # What names no row, at the ends and within.
            bad = index.clone()
            expected = expected.clone()
            for at in {0, count // 2, count - 1}:
                bad[:, at], expected[:, at] = 70 + at, 9
            filled = torch_ops.batch_gather(source, bad, mode="fill", fill_value=9)
            assert_same(filled, expected, label)
    source = torch.ones(4, 3, dtype=dtype, device=device)
    index = torch.arange(40, device=device).clamp(max=3)
    index[33] = 4

    def pick() -> None:
        torch_ops.gather(source, index)
        torch_ops.check_errors()

    with pytest.raises(IndexError, match=r"index\[33\] is 4, out of range"):
        pick()


@pytest.mark.sanitizer
def test_rows_at_the_ends_of_memory(device: torch.device) -> None:
    """Rows move in aligned pieces of 16 bytes; none may reach beyond the table."""
    for dtype, width, times in [
        (torch.uint8, 17, 33_000),
        (torch.float16, 9, 8000),
        (torch.float16, 301, 2000),
        (torch.float32, 7, 10_000),
        (torch.float32, 5, 1),
    ]:
        source = values_for((3, width), device, dtype)
        index = torch.tensor([2, 0, 1, 2], device=device).repeat(enough(device, times, 3))
        for picks in (index, index.repeat_interleave(2)[::2]):
            assert_same(torch_ops.gather(source, picks), source[index], f"{dtype}")


@pytest.mark.parametrize("width", [4, 7])
def test_any_strides(device: torch.device, width: int) -> None:
    """On CUDA one kernel for each kind of words finds rows wherever they are."""
    batches, outer, rows = 3, 4, 50
    whole = values_for((batches, outer + 1, rows + 1, 2 * width), device, torch.float32)
    uneven = whole[:, :outer, :rows, :width]  # batches are not a multiple of their slabs apart
    crosswise = values_for((batches, outer, width, rows), device, torch.float32).transpose(2, 3)
    for count in (20, enough(device, 4000, 400)):
        entries = torch.randint(rows, (batches, 2 * count), device=device)
        first = entries[:, :count]
        indices = (first, entries[:, ::2], first[:1].expand_as(first), first.t().contiguous().t())
        for source in (uneven, crosswise, uneven.contiguous()):
            for index in indices:
                batch = torch.arange(batches, device=device)[:, None]
                expected = source.transpose(1, 2)[batch, index].transpose(1, 2)
                label = f"{source.stride()} {index.stride()}"
                for mode, picks in (("raise", index), ("wrap", index.int() - rows)):
                    actual = torch_ops.gather(source, picks, 2, batch_dims=1, mode=mode)
                    assert_same(actual, expected, f"{label} {mode}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["source", "output", "source of rows", "output of rows", "output of short rows", "row"]
)
def test_more_than_two_to_the_31(device: torch.device, what: str) -> None:
    """64-bit offsets: elements beyond 2^31 of one byte each."""
    far = 2**31 + 7
    if what == "source":
        source = torch.zeros(far, dtype=torch.uint8, device=device)
        source[-1] = 5
        index = torch.tensor([far - 1, 0, far - 1], device=device)
        assert torch_ops.gather(source, index).tolist() == [5, 0, 5]
    elif what == "row":  # which several launches copy on CUDA
        source = torch.zeros(2, 2**30 + 3, dtype=torch.uint8, device=device)
        source[1, 2**30 - 1 :] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
        output = torch_ops.gather(source, torch.tensor([1, 0, 1], device=device))
        assert output[:, 2**30 - 2 :].tolist() == [[0, 1, 2, 3, 4], [0] * 5, [0, 1, 2, 3, 4]]
        del output

        def pick() -> None:
            torch_ops.gather(source, torch.tensor([1, 2], device=device))
            torch_ops.check_errors()

        with pytest.raises(IndexError, match=r"index\[1\] is 2, out of range"):
            pick()
    elif what == "source of rows":
        last = 2**32 // 3 + 5  # beyond 32 bits
        source = torch.zeros(last + 1, 3, dtype=torch.uint8, device=device)
        source[-1] = torch.tensor([1, 2, 3], dtype=torch.uint8)
        index = torch.tensor([last, 0, last], device=device)
        assert torch_ops.gather(source, index).tolist() == [[1, 2, 3], [0, 0, 0], [1, 2, 3]]
    elif what == "output of rows":
        source = torch.arange(30, dtype=torch.uint8, device=device).view(2, 5, 3)
        index = torch.randint(5, (2, far // 6 + 1), dtype=torch.uint8, device=device)
        output = torch_ops.batch_gather(source, index)
        assert output.numel() > 2**31
        for batch in range(2):
            for column in range(3):
                expected = index[batch] * 3 + (15 * batch + column)
                assert torch.equal(output[batch, :, column], expected)
        last = index.shape[1] - 1
        index[1, last] = 5

        def pick_beyond() -> None:
            torch_ops.batch_gather(source, index)
            torch_ops.check_errors()

        with pytest.raises(IndexError, match=rf"index\[1, {last}\] is 5, out of range"):
            pick_beyond()
    elif what == "output of short rows":
        source = torch.arange(35, dtype=torch.uint8, device=device).view(5, 7)
        index = torch.randint(5, (far // 14 + 9,), dtype=torch.uint8, device=device)
        output = torch_ops.gather(source, index)  # two launches on a GPU
        for column in range(7):
            assert torch.equal(output[:, column], index * 7 + column)
    else:
        source = torch.tensor([[3, 4]], dtype=torch.uint8, device=device)
        index = torch.zeros(1, dtype=torch.uint8, device=device).expand(far // 2 + 1)
        output = torch_ops.gather(source, index)
        assert output.numel() > 2**31
        assert output[-1].tolist() == [3, 4]
        assert int(output[:, 1].min()) == 4
