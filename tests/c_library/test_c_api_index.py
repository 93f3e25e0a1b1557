"""What libtorch_ops_c does by an index: reductions, elements, points and plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from c_calls import (
    DETERMINISTIC,
    MEMORIES,
    MODES,
    ONTO_RESULT,
    REDUCTIONS,
    Caller,
    CError,
    as_numbers,
    reduce_reference,
    resolve,
)
from torch import Tensor

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]


@pytest.fixture(params=MEMORIES)
def caller(request: pytest.FixtureRequest) -> Caller:
    return Caller(request.param)


def make(caller: Caller, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Small integers, whose sums and products in these tests are exact."""
    generator = torch.Generator().manual_seed(seed)
    low = -3 if dtype.is_signed else 0
    return caller.place(torch.randint(low, 4, shape, generator=generator).to(dtype))


def picks(
    caller: Caller,
    shape: tuple[int, ...],
    size: int,
    mode: str = "RAISE",
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Entries that the mode allows."""
    inside = (0, size)
    ranges = {"RAISE": inside, "UNCHECKED": inside, "FROM_END": (-size, size)}
    low, high = ranges.get(mode, (-3 * size, 3 * size))
    generator = torch.Generator().manual_seed(1)
    return caller.place(torch.randint(low, high, shape, generator=generator).to(dtype))


def same(actual: Tensor, wanted: Any) -> None:
    """To the last bit, from Python's numbers."""
    wanted = np.array(wanted, object).reshape(tuple(actual.shape))
    if actual.dtype.is_floating_point:
        expected = torch.from_numpy(wanted.astype(np.float64)).to(actual.dtype)
        assert torch.equal(actual.cpu(), expected)
    else:
        bits = 8 * actual.element_size()
        got = as_numbers(actual)
        assert all(int(a - b) % 2**bits == 0 for a, b in zip(got.flat, wanted.flat, strict=True))


def reference(values: Tensor, index: Tensor, size: int, reduce: str, mode: str = "RAISE") -> Any:
    parts = zip(as_numbers(values), index.cpu().numpy(), strict=True)
    return np.stack([reduce_reference(v, i, size, reduce, mode) for v, i in parts])


# ---- Reductions by rows


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *UNSIGNED], ids=str)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions(caller: Caller, reduce: str, dtype: torch.dtype) -> None:
    # Few values for one place, so that means and products of 16-bit floats are rounded alike.
    values = make(caller, (2, 40, 3), dtype)
    index = picks(caller, (2, 40), 30, dtype=torch.int32)
    if dtype in UNSIGNED and reduce in ("AMAX", "AMIN"):
        with pytest.raises(CError, match="UNSUPPORTED_DTYPE: torch_ops_scatter: dtype must not be"):
            caller.scatter(values, index, 30, reduce)
        return
    for flags in (0, DETERMINISTIC):
        result = caller.scatter(values, index, 30, reduce, flags=flags)
        same(result, reference(values, index, 30, reduce))


@pytest.mark.parametrize("mode", [*MODES, "UNCHECKED"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_modes_of_reductions(caller: Caller, reduce: str, mode: str) -> None:
    values = make(caller, (2, 60, 2), torch.float32)
    index = picks(caller, (2, 60), 12, mode)
    wanted = reference(values, index, 12, reduce, mode)
    same(caller.scatter(values, index, 12, reduce, mode), wanted)


def test_a_mean_of_integers_is_rounded_down(caller: Caller) -> None:
    values = caller.place(torch.tensor([[[-3], [-4], [3], [4]]]))
    index = caller.place(torch.tensor([[0, 0, 1, 1]]))
    assert caller.scatter(values, index, 3, "MEAN").flatten().tolist() == [-4, 3, 0]


def test_means_of_16_bits_are_rounded_once(caller: Caller) -> None:
    """Their sum, 180000, is no float16."""
    values = caller.place(torch.full((1, 3000, 1), 60, dtype=torch.float16))
    index = caller.place(torch.zeros(1, 3000, dtype=torch.int64))
    assert caller.scatter(values, index, 1, "MEAN").item() == 60


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *UNSIGNED], ids=str)
@pytest.mark.parametrize("flags", [0, DETERMINISTIC])
@pytest.mark.parametrize("start", [0, 1])
def test_sums_onto_a_result(caller: Caller, dtype: torch.dtype, flags: int, start: int) -> None:
    values = make(caller, (2, 50, 3), dtype)
    index = picks(caller, (2, 50), 7)
    whole = make(caller, (2 * 7 * 3 + 1,), dtype, seed=2)
    before = whole.clone()
    out = whole[start : start + 42].view(2, 7, 3)  # at a multiple of an element, or of 16 bytes
    wanted = as_numbers(out) + reference(values, index, 7, "SUM")
    caller.scatter(values, index, 7, flags=flags | ONTO_RESULT, out=out)
    same(out, wanted)
    assert torch.equal(whole[:start].cpu(), before[:start].cpu())
    assert torch.equal(whole[start + 42 :].cpu(), before[start + 42 :].cpu())


def test_sums_onto_16_bits_are_rounded_once(caller: Caller) -> None:
    """2048 + 1 is no float16: in steps, each of the ones would be lost."""
    values = caller.place(torch.ones(1, 100, 1, dtype=torch.float16))
    index = caller.place(torch.zeros(1, 100, dtype=torch.int64))
    out = caller.place(torch.full((1, 1, 1), 2048, dtype=torch.float16))
    assert caller.scatter(values, index, 1, flags=ONTO_RESULT, out=out).item() == 2148


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.uint8, torch.int64], ids=str)
def test_results_at_a_multiple_of_an_element(
    caller: Caller, dtype: torch.dtype, reduce: str
) -> None:
    for inner in (1, 4, 8):
        values = make(caller, (1, 60, inner), dtype)
        index = picks(caller, (1, 60), 40)
        whole = caller.like((40 * inner + 8,), dtype)
        out = whole[3 : 3 + 40 * inner].view(1, 40, inner)
        caller.scatter(values, index, 40, reduce, out=out)
        same(out, reference(values, index, 40, reduce))
        assert (as_numbers(whole[:3]) == 77).all()
        assert (as_numbers(whole[3 + 40 * inner :]) == 77).all()


def test_positions_of_the_best(caller: Caller) -> None:
    nan = float("nan")
    values = caller.place(torch.tensor([[[1.0], [3.0], [3.0], [-1.0], [nan], [2.0]]]))
    index = caller.place(torch.tensor([[0, 0, 0, 2, 2, 3]]))
    assert caller.scatter_arg(values, index, 5, "AMAX").flatten().tolist() == [1, 6, 4, 5, 6]
    assert caller.scatter_arg(values, index, 5, "AMIN").flatten().tolist() == [0, 6, 4, 5, 6]
    best = caller.scatter(values, index, 5, "AMIN").flatten().tolist()
    assert best[:2] + best[3:] == [1, 0, 2, 0]
    assert np.isnan(best[2])


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_nothing_to_reduce(caller: Caller, reduce: str) -> None:
    empty = 1 if reduce == "PROD" else 0
    for batch, entries, size, inner in ((2, 0, 3, 2), (0, 4, 3, 2), (2, 4, 3, 0), (2, 0, 0, 2)):
        values = make(caller, (batch, entries, inner), torch.float32)
        index = picks(caller, (batch, entries), max(size, 1))
        result = caller.scatter(values, index, size, reduce)
        assert (result == empty).all()
    # All entries are left out where there is no row.
    values, index = make(caller, (1, 4, 2), torch.float32), picks(caller, (1, 4), 3)
    assert caller.scatter(values, index, 0, reduce, "FILL").numel() == 0
    for mode in ("RAISE", "WRAP", "CLIP", "FROM_END"):
        with pytest.raises(CError, match=r"OUT_OF_RANGE: .*index has entries, but the axis has"):
            caller.scatter(values, index, 0, reduce, mode)


# ---- Gathers by rows and elements


@pytest.mark.parametrize("mode", [*MODES, "UNCHECKED"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.float64, torch.uint8], ids=str)
def test_gather_rows(caller: Caller, dtype: torch.dtype, mode: str) -> None:
    source = make(caller, (3, 20, 5), dtype)
    index = picks(caller, (3, 33), 20, mode)
    output = caller.gather_rows(source, index, mode, fill=9).cpu()
    for b, n in np.ndindex(3, 33):
        row = resolve(int(index[b, n]), 20, mode)
        assert (output[b, n] == (9 if row is None else source[b, row].cpu())).all()
    none = caller.place(torch.full((3, 2), 500))
    assert (caller.gather_rows(source, none, "FILL") == 0).all()  # NULL is zero
    assert (caller.gather_rows(source[:, :0].contiguous(), none, "FILL", fill=5) == 5).all()


ELEMENTS = [(3, 20, 33, 5), (1, 20, 33, 1), (4, 1, 7, 3), (4, 9, 1, 3), (4, 1, 1, 3), (1, 9, 1, 1)]


@pytest.mark.parametrize("shape", ELEMENTS, ids=str)
@pytest.mark.parametrize("mode", [*MODES, "UNCHECKED"])
def test_gather_elements(caller: Caller, mode: str, shape: tuple[int, int, int, int]) -> None:
    outer, size, entries, inner = shape
    source = make(caller, (outer, size, inner), torch.float32)
    index = picks(caller, (outer, entries, inner), size, mode, torch.int32)
    output = caller.gather_elements(source, index, mode, fill=9).cpu()
    for o, n, i in np.ndindex(outer, entries, inner):
        row = resolve(int(index[o, n, i]), size, mode)
        assert output[o, n, i] == (9 if row is None else source[o, row, i])


@pytest.mark.parametrize("shape", ELEMENTS, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("flags", [0, DETERMINISTIC])
def test_modes_of_sums_of_elements(
    caller: Caller, flags: int, mode: str, shape: tuple[int, int, int, int]
) -> None:
    outer, size, entries, inner = shape
    values = make(caller, (outer, entries, inner), torch.float32)
    index = picks(caller, (outer, entries, inner), size, mode)
    sums = np.zeros((outer, size, inner))
    for o, n, i in np.ndindex(outer, entries, inner):
        row = resolve(int(index[o, n, i]), size, mode)
        if row is not None:
            sums[o, row, i] += values[o, n, i].item()
    same(caller.scatter_elements_add(values, index, size, mode, flags), sums)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *UNSIGNED], ids=str)
@pytest.mark.parametrize("flags", [0, DETERMINISTIC])
def test_sums_of_elements(caller: Caller, dtype: torch.dtype, flags: int) -> None:
    values = make(caller, (2, 900, 3), dtype)
    index = picks(caller, (2, 900, 3), 4)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    wanted = torch.zeros(2, 4, 3, dtype=wide).scatter_add_(1, index.cpu(), values.cpu().to(wide))
    same(caller.scatter_elements_add(values, index, 4, flags=flags), as_numbers(wanted))


def test_no_elements(caller: Caller) -> None:
    for shape in ((2, 0, 3), (0, 4, 3), (2, 4, 0)):
        values, index = make(caller, shape, torch.float16), picks(caller, shape, 5)
        assert not caller.scatter_elements_add(values, index, 5).any()
        source = make(caller, (shape[0], 5, shape[2]), torch.float16)
        assert caller.gather_elements(source, index).numel() == 0
    values, index = make(caller, (2, 4, 3), torch.float32), picks(caller, (2, 4, 3), 5)
    assert caller.scatter_elements_add(values, index, 0, "FILL").numel() == 0
    empty = caller.like((2, 0, 3), torch.float32)
    assert (caller.gather_elements(empty, index, "FILL", fill=6) == 6).all()
    with pytest.raises(CError, match="INDEX_OUT_OF_RANGE"):
        caller.gather_elements(empty, index)
    with pytest.raises(CError, match="INDEX_OUT_OF_RANGE"):
        caller.scatter_elements_add(values, index, 0, "CLIP")


# ---- Points


@pytest.mark.parametrize("mode", [*MODES, "UNCHECKED"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sizes", [(7,), (4, 5), (2, 3, 1, 4)], ids=str)
@pytest.mark.parametrize("inner", [1, 6])
def test_points(caller: Caller, mode: str, batch: int, sizes: tuple[int, ...], inner: int) -> None:
    table = make(caller, (batch, *sizes, inner), torch.float32)
    coordinates = [
        picks(caller, (batch, 50), size, mode, torch.int32).roll(j, 1)
        for j, size in enumerate(sizes)
    ]
    output = caller.gather_points(table, coordinates, mode, fill=9).cpu()
    places = caller.ravel_points(coordinates, sizes, mode)
    written = table.clone()
    caller.put_points(written, coordinates, caller.like(output.shape, torch.float32), mode)
    wanted_table = table.clone()
    for b, p in np.ndindex(batch, 50):
        pairs = zip(coordinates, sizes, strict=True)
        rows = [resolve(int(each[b, p]), size, mode) for each, size in pairs]
        if None in rows:
            assert (output[b, p] == 9).all()
            assert places[b, p] == np.prod(sizes)
            continue
        at = (b, *rows)
        assert (output[b, p] == table[at].cpu()).all()
        assert places[b, p] == np.ravel_multi_index(tuple(int(r or 0) for r in rows), sizes)
        wanted_table[at] = 77
    assert torch.equal(written, wanted_table)


def test_points_add_up(caller: Caller) -> None:
    """ravel_points makes the index of a sum; a point that is out of range is left out of it."""
    coordinates = [
        caller.place(torch.tensor([[1, 0, 1, 4]])),
        caller.place(torch.tensor([[2, 0, 2, 0]])),
    ]
    places = caller.ravel_points(coordinates, (2, 3), "FILL")
    assert places.tolist() == [[5, 0, 5, 6]]
    values = caller.place(torch.tensor([[[1.0], [2.0], [4.0], [8.0]]]))
    sums = caller.scatter(values, places, 6, mode="FILL")
    assert sums.flatten().tolist() == [2, 0, 0, 0, 0, 5]


def test_no_points(caller: Caller) -> None:
    table = make(caller, (2, 3, 0, 4), torch.float32)
    none = [picks(caller, (2, 0), 3), picks(caller, (2, 0), 3)]
    assert caller.gather_points(table, none).shape == (2, 0, 4)
    some = [picks(caller, (2, 5), 3), picks(caller, (2, 5), 3)]
    assert (caller.gather_points(table, some, "FILL", fill=3) == 3).all()
    caller.put_points(table, some, make(caller, (2, 5, 4), torch.float32), "FILL")
    message = r"coordinates\[1\] has entries, but the axis has size 0: no entry is allowed"
    with pytest.raises(CError, match=message):
        caller.gather_points(table, some, "WRAP")


# ---- Plans


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_plans(caller: Caller, dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    index = picks(caller, (2, 70), 30, dtype=index_dtype)
    wanted_index = index.clone()
    with caller.plan(index, 30) as plan:
        index.fill_(-5)  # the plan has a copy
        for inner in (1, 4, 7):
            source = make(caller, (2, 30, inner), dtype)
            output = caller.plan_gather(plan, source, 70)
            expanded = wanted_index.long()[..., None].expand(-1, -1, inner)
            assert torch.equal(output, source.gather(1, expanded))
            for reduce in REDUCTIONS:
                values = make(caller, (2, 70, inner), dtype, seed=3)
                same(
                    caller.plan_scatter(plan, values, 30, reduce),
                    reference(values, wanted_index, 30, reduce),
                )
            out = source.clone()
            caller.plan_scatter(plan, values, 30, "SUM", ONTO_RESULT, out)
            same(out, as_numbers(source) + reference(values, wanted_index, 30, "SUM"))


def test_plans_of_nothing(caller: Caller) -> None:
    for batch, entries, size in ((2, 0, 3), (0, 4, 3), (2, 0, 0)):
        with caller.plan(picks(caller, (batch, entries), 3), size) as plan:
            values = make(caller, (batch, entries, 2), torch.float32)
            assert not caller.plan_scatter(plan, values, size).any()


def test_a_plan_checks_its_index(caller: Caller) -> None:
    index = picks(caller, (2, 70), 30)
    for value in (30, -1):
        index[1, 7] = value
        with (
            pytest.raises(CError, match=rf"OUT_OF_RANGE: .*_plan_create: index\[77\] is {value}, "),
            caller.plan(index, 30),
        ):
            pass
    with pytest.raises(CError, match="INDEX_OUT_OF_RANGE"), caller.plan(index, 0):
        pass
    with caller.plan(picks(caller, (2, 70), 30), 30) as plan:  # the next one is not troubled
        assert caller.plan_scatter(plan, make(caller, (2, 70, 1), torch.int32), 30).shape[1] == 30


# ---- Errors


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(
    ("mode", "value", "least"),
    [
        ("RAISE", 20, 0),
        ("RAISE", -1, 0),
        ("FROM_END", 20, -20),
        ("FROM_END", -21, -20),
        ("FROM_END", -45, -20),  # where kernels add the size of the axis, it is negative still
    ],
)
def test_entries_out_of_range(
    caller: Caller, mode: str, value: int, least: int, timed: bool
) -> None:
    caller.timed = timed
    message = rf"{value}, out of range for an axis of size 20: it must be between {least} and 19"
    source = make(caller, (2, 20, 3), torch.float32)

    def refused(name: str, index: str = r"index\[103\]") -> Any:
        return pytest.raises(CError, match=f"_OUT_OF_RANGE: torch_ops_.*: {index} is {message}")

    rows = picks(caller, (2, 90), 20)
    rows[1, 13] = value
    values = make(caller, (2, 90, 3), torch.float32)
    with refused("gather_rows"):
        caller.gather_rows(source, rows, mode)
    for reduce in REDUCTIONS:
        for flags in (0, DETERMINISTIC):
            with refused("scatter"):
                caller.scatter(values, rows, 20, reduce, mode, flags)
    with refused("scatter"):
        caller.scatter(
            values, rows, 20, "SUM", mode, ONTO_RESULT, make(caller, (2, 20, 3), values.dtype)
        )
    with refused("scatter_arg"):
        caller.scatter_arg(values, rows, 20, "AMAX", mode)

    elements = picks(caller, (2, 17, 3), 20)
    elements[1, 17 - 1, 1] = value
    place = r"index\[100\]"
    with refused("gather_elements", place):
        caller.gather_elements(source, elements, mode)
    for flags in (0, DETERMINISTIC):
        with refused("scatter_elements_add", place):
            caller.scatter_elements_add(make(caller, (2, 17, 3), source.dtype), elements, 20, mode,
                                        flags)  # fmt: skip

    table = make(caller, (2, 6, 20, 3), torch.float32)
    points = [picks(caller, (2, 90), 6), rows]
    place = r"coordinates\[1\]\[103\]"
    with refused("gather_points", place):
        caller.gather_points(table, points, mode)
    with refused("put_points", place):
        caller.put_points(table, points, values, mode)
    with refused("ravel_points", place):
        caller.ravel_points(points, (6, 20), mode)
    # The next call is not troubled.
    assert caller.gather_rows(source, rows.clamp(0, 19)).shape == (2, 90, 3)
