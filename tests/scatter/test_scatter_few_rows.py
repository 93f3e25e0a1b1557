"""Sums of many entries to few rows, of which CUDA's threads each have their own sums.

The CPU, which has the same results to give, runs the same cases.
"""

from __future__ import annotations

import pytest
import torch
from gathering import spread_index, sum_tolerance, values_for
from op_checks import FLOATS, assert_same
from torch import Tensor

import torch_ops

# Slabs, entries of a slab, rows, and widths: for one lane per value and per four, with columns in
# one strip and in several, one entry at a time and many.
SHAPES = [
    (1, 140_000, 2, 1),
    (1, 70_000, 31, 2),
    (1, 70_001, 31, 3),
    (2, 34_000, 7, 4),
    (3, 20_000, 5, 33),
    (1, 9000, 3, 64),
    (40, 300, 1, 130),
    (1, 3000, 1, 600),
    (2, 2100, 1, 1100),
    (1, 120_000, 110, 3),
]


def exact_sums(values: Tensor, index: Tensor, rows: int) -> Tensor:
    """In double, or in the type of integers: values [slabs, entries, width]."""
    dtype = torch.float64 if values.is_floating_point() else values.dtype
    sums = torch.zeros(len(values), rows, values.shape[2], dtype=dtype)
    return sums.scatter_add_(1, index[:, :, None].expand(values.shape), values.to(dtype))


def assert_sums(actual: Tensor, exact: Tensor) -> None:
    if not actual.is_floating_point():
        return assert_same(actual.cpu(), exact, "")
    rtol, _ = sum_tolerance(actual.dtype)
    summed = torch.float64 if actual.dtype == torch.float64 else torch.float32
    # Up to 140000 numbers near 1 that cancel: partial sums reach some 1000.
    atol = 50_000 * torch.finfo(summed).eps
    torch.testing.assert_close(actual.cpu().double(), exact, rtol=rtol, atol=atol)


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint8, torch.int32, torch.int64], ids=str)
def test_shapes(device: torch.device, dtype: torch.dtype) -> None:
    for slabs, count, rows, width in SHAPES:
        index = spread_index("hot" if rows > 4 else "uniform", rows, count, slabs)
        values = values_for((slabs, count, width), torch.device("cpu"), dtype)
        exact = exact_sums(values, index, rows)
        given = values.to(device)
        for deterministic in (None, True):
            for kind in (torch.int8, torch.int64):
                actual = torch_ops.scatter_add(
                    given, index.to(device, kind), rows, batch_dims=1, deterministic=deterministic
                )
                assert_sums(actual, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_bits_of_a_slab_are_its_own(device: torch.device, dtype: torch.dtype) -> None:
    """On every run. On CUDA whatever else is in the call, wherever values lie, and by a plan."""
    for count, rows, width in [(5000, 3, 33), (40_000, 30, 4), (2000, 1, 1100)]:
        index = spread_index("uniform", rows, count, 5).to(device)
        values = values_for((5, count, width), device, dtype)
        sums = torch_ops.scatter_add(values, index, rows, batch_dims=1, deterministic=True)
        again = torch_ops.scatter_add(values, index, rows, batch_dims=1, deterministic=True)
        assert_same(again, sums, f"{count} {rows} {width}")
        for slab in (0, 4) if device.type == "cuda" else ():
            alone = torch_ops.scatter_add(values[slab], index[slab], rows, deterministic=True)
            assert_same(alone, sums[slab], f"{count} {rows} {width}")
            memory = torch.empty(count * width + 1, device=device, dtype=dtype)
            unaligned = memory[1:].view(count, width).copy_(values[slab])
            again = torch_ops.scatter_add(unaligned, index[slab], rows, deterministic=True)
            assert_same(again, alone, "unaligned")
            plan = torch_ops.gather_plan(index[slab], rows)
            assert_same(torch_ops.scatter_add(values[slab], plan), alone, "plan")


def test_slabs_that_share_an_index(device: torch.device) -> None:
    """Values [outer, entries, width], from an index that is a column of a matrix."""
    index = spread_index("uniform", 9, 30_000, 1)[0]
    columns = torch.stack([index, index.flip(0)], dim=1).to(device)
    values = values_for((4, 30_000, 5), device, torch.float32)
    for column in (0, 1):
        actual = torch_ops.scatter_add(values, columns[:, column], 9, dim=1)
        exact = exact_sums(values.cpu(), columns[:, column].cpu().expand(4, -1), 9)
        assert_sums(actual, exact)


def test_modes_and_bad_entries(device: torch.device) -> None:
    count, rows = 40_000, 11
    index = spread_index("uniform", rows, count, 1)[0]
    index[::7] += rows
    values = values_for((count, 33), device, torch.float32)
    named = index < rows
    dropped = torch_ops.scatter_add(values, index.to(device), rows, mode="fill")
    assert_sums(dropped[None], exact_sums(values.cpu()[named][None], index[named][None], rows))
    wrapped = torch_ops.scatter_add(values, index.to(device), rows, mode="wrap")
    assert_sums(wrapped[None], exact_sums(values.cpu()[None], index[None] % rows, rows))
    index %= rows
    index[39_999] = rows
    with pytest.raises(IndexError, match=r"index\[39999\] is 11"):  # noqa: PT012
        torch_ops.scatter_add(values, index.to(device), rows)
        torch_ops.check_errors()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_in_place(device: torch.device, dtype: torch.dtype) -> None:
    """Added to what is there; rows that no entry names keep their bits, also those of -0."""
    values = values_for((50_000, 34), device, dtype)
    index = spread_index("uniform", 12, 50_000, 1)[0].to(device)
    start = torch.zeros(20, 34, device=device).neg().to(dtype)
    start[3] = 5
    out = start.clone()
    torch_ops.scatter_add_(out, values, index)
    exact = exact_sums(values.cpu()[None], index.cpu()[None], 20)[0]
    rounded_first = device.type == "cuda" and dtype == torch.bfloat16
    if rounded_first:  # and again when added
        assert ((out.cpu() - start.cpu() - exact).abs() <= 8e-3 * exact.abs() + 0.04).all()
    else:
        assert_sums(out, exact + start.cpu().to(exact.dtype))
    if dtype.is_floating_point:
        assert rounded_first or torch.signbit(out[12:]).all()
        assert not torch.signbit(torch_ops.scatter_add(values, index, 20)[12:]).any()


def test_in_place_into_many_slabs(device: torch.device) -> None:
    """Of one part each."""
    values = values_for((300, 400, 33), device, torch.float32)
    index = spread_index("uniform", 4, 400, 300).to(device)
    out = torch.ones(300, 4, 33, device=device)
    torch_ops.scatter_add_(out, values, index, batch_dims=1)
    assert_sums(out, exact_sums(values.cpu(), index.cpu(), 4) + 1)


def test_a_cut_that_does_not_fit() -> None:
    from torch_ops._ext.scatter import plan

    assert plan(100, 1 << 20, 64, way="privatized")["cut"]["threads"] >= 128
    assert plan(300, 1 << 20, 64, way="privatized")["cut"] == {}


@pytest.mark.parametrize("include_self", [False, True])
def test_largest_in_place(device: torch.device, include_self: bool) -> None:
    values = values_for((40_000, 33), device, torch.float32)
    index = spread_index("uniform", 9, 40_000, 1)[0].to(device)
    out = torch.full((12, 33), 4.0, device=device)
    expected = out.clone().scatter_reduce_(
        0, index[:, None].expand(-1, 33), values, "amax", include_self=include_self
    )
    torch_ops.scatter_(out, values, index, reduce="amax", include_self=include_self)
    assert_same(out, expected, f"{include_self}")


def test_sums_of_16_bits_that_stay_in_float32(device: torch.device) -> None:
    values = values_for((30_000, 34), device, torch.bfloat16)
    index = spread_index("uniform", 12, 30_000, 1)[0].to(device)
    sums = torch_ops.scatter(values, index, 12, reduce="sum", dtype=torch.float32)
    assert sums.dtype == torch.float32
    assert_sums(sums[None], exact_sums(values.cpu()[None], index.cpu()[None], 12))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "dtype", [*FLOATS, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str
)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_largest_and_smallest(device: torch.device, dtype: torch.dtype, reduce: str) -> None:
    """Their positions too: the first of equal ones, and NaN before all others."""
    for slabs, count, rows, width in [(1, 70_001, 31, 3), (3, 20_000, 5, 33), (1, 131_072, 2, 1)]:
        index = spread_index("uniform", rows, count, slabs)
        index[index == 1] = 0  # a row without entries
        values = values_for((slabs, count, width), torch.device("cpu"), dtype)
        if dtype.is_floating_point:
            values.mul_(4).round_()  # many are equal
            values[0, 5] = torch.nan
        found, where = torch_ops.scatter(
            values.to(device),
            index.to(device),
            rows,
            dim=1,
            batch_dims=1,
            reduce=reduce,
            return_arg=True,
        )
        alone = torch_ops.scatter(
            values.to(device), index.to(device), rows, dim=1, batch_dims=1, reduce=reduce
        )
        assert_same(alone, found, f"{slabs} {count}")
        assert (where[:, 1] == count).all() and (found[:, 1] == 0).all()
        for slab, row in [(0, 0), (slabs - 1, rows - 1)]:
            if row == 1:
                continue
            own = (index[slab] == row).nonzero()[:, 0]
            best = values[slab, own]
            exact = getattr(best, reduce)(0)
            torch.testing.assert_close(
                found[slab, row].cpu(), exact, rtol=0, atol=0, equal_nan=True
            )
            first = ((best == exact) | (best != best)).to(torch.uint8).argmax(0)
            assert torch.equal(where[slab, row].cpu(), own[first])
