"""index and its writes together: with any mix of indices, many arrays, large sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from indices import add_reference, distinct, put_reference, reference
from op_checks import assert_same
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode
from torch.utils import _pytree as pytree

import torch_ops

INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape, and indices for it: NumPy arrays, ints, slices, None, Ellipsis, masks and bools."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    points = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    items: list[Any] = []
    has_ellipsis = False
    axis = 0
    rest = list(shape)
    while True:
        kinds = ["none", "end"]
        if not has_ellipsis:
            kinds.append("ellipsis")
        if len(points) <= 1 and (points == () or points[-1] == 1):
            kinds.append("bool")
        if axis < len(shape):
            kinds += ["array", "array", "array", "slice", "int", "scalar"]
            if points == (1,):
                kinds.append("mask")
        kind = draw(st.sampled_from(kinds))
        size = rest[axis] if axis < len(shape) else 0
        if kind == "end" or len(items) > 6:
            break
        if kind == "none":
            items.append(None)
        elif kind == "ellipsis":
            has_ellipsis = True
            items.append(Ellipsis)
            axis += draw(st.integers(0, len(shape) - axis))
        elif kind == "bool":
            items.append(draw(st.booleans()) if points else True)
        elif kind == "slice":
            items.append(
                slice(
                    draw(st.none() | st.integers(-6, 6)),
                    draw(st.none() | st.integers(-6, 6)),
                    draw(st.none() | st.integers(1, 3)),
                )
            )
            axis += 1
        elif kind in ("int", "scalar") and size > 0:
            value = draw(st.integers(-size, size - 1))
            items.append(value if kind == "int" else np.array(value))
            axis += 1
        elif kind == "array":
            own = points[draw(st.integers(0, len(points))) :]
            own = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in own)
            if size == 0 and 0 not in own:
                continue
            count = int(np.prod(own))
            entries = st.integers(-size, max(size - 1, 0))
            values = draw(st.lists(entries, min_size=count, max_size=count))
            items.append(np.array(values, dtype=np.int64).reshape(own))
            axis += 1
        elif kind == "mask":
            # One true entry, so that it can be broadcast with the other arrays.
            axes = draw(st.integers(1, len(shape) - axis))
            mask = np.zeros(shape[axis : axis + axes], dtype=bool)
            if mask.size:
                mask.reshape(-1)[draw(st.integers(0, mask.size - 1))] = True
                items.append(mask)
                axis += axes
    return shape, tuple(items)


def check_call(device: torch.device, call: Any, dtype: torch.dtype) -> None:
    shape, items = call
    source = torch.arange(1, int(np.prod(shape)) + 1, dtype=torch.float32).view(shape)
    try:
        expected = torch.from_numpy(np.array(source.numpy()[items]))
    except IndexError:
        return  # what an ellipsis of any length leaves may be too short for the rest

    def convert(item: Any) -> Any:
        if not isinstance(item, np.ndarray):
            return item
        tensor = torch.from_numpy(item).to(device)
        if tensor.dtype == torch.bool or (dtype == torch.uint8 and (tensor < 0).any()):
            return tensor
        return tensor.to(dtype)

    indices = tuple(convert(item) for item in items)
    leaf = source.clone().to(device).requires_grad_()
    actual = torch_ops.index(leaf, indices)
    assert_same(actual, expected, f"{shape} {items}")
    basic = not any(isinstance(item, (np.ndarray, bool)) for item in items)
    assert actual._is_view() == basic or not basic
    (grad,) = torch.autograd.grad(actual.sum(), leaf, allow_unused=True)
    counts = torch.bincount(expected.reshape(-1).long(), minlength=source.numel() + 1)[1:]
    assert torch.equal(grad.cpu(), counts.view(shape).float()), f"{shape} {items}"
    # Writes, of values that say where they were written; broadcast values; sums.
    values = torch.arange(expected.numel(), dtype=torch.float32).view(expected.shape)
    wanted = add_reference(source, items, values)
    added = torch_ops.index_add(source.to(device), indices, values.to(device))
    assert torch.equal(added.cpu(), wanted), f"{shape} {items}"
    if distinct(items, shape):
        wanted = put_reference(source, items, values)
        written = torch_ops.index_put(source.to(device), indices, values.to(device))
        assert torch.equal(written.cpu(), wanted), f"{shape} {items}"
    wanted = put_reference(source, items, 7.0)
    in_place = source.clone().to(device)
    assert torch_ops.index_put_(in_place, indices, 7) is in_place
    assert torch.equal(in_place.cpu(), wanted), f"{shape} {items}"


@given(call=calls(), dtype=st.sampled_from(INDEX_DTYPES))
def test_any_call(call: Any, dtype: torch.dtype) -> None:
    check_call(torch.device("cpu"), call, dtype)
    if torch.cuda.is_available():
        check_call(torch.device("cuda"), call, dtype)


# ---- the direct way and that by torch.ops -------------------------------------------------------


@st.composite
def items_for(draw: st.DrawFn, size: int) -> Any:
    """One index, for an axis of this size if for any; also such as are errors."""
    entries = st.integers(-size, max(size - 1, 0)) if draw(st.integers(0, 9)) else st.just(size)
    lists = st.lists(entries, max_size=3)
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return draw(entries)
    if kind <= 2:
        numbers = st.none() | st.integers(-6, 6)
        return slice(draw(numbers), draw(numbers), draw(st.sampled_from([None, 1, 2, -1, 0])))
    if kind == 3:
        return draw(lists)
    if kind == 4:
        return draw(st.sampled_from([None, ..., True, False, torch.tensor(True), slice(None)]))
    if kind == 5:
        return draw(st.sampled_from([np.int64(0), "a", 2**70, [[0], [0]], [True, 0], [0.5], 1.0]))
    if kind == 6:
        return torch.tensor(draw(entries), dtype=draw(st.sampled_from(INDEX_DTYPES[1:])))
    if kind == 7:
        return torch.arange(draw(st.sampled_from([size, size, 3]))) % 2 == 0
    if kind == 8:
        return torch.tensor(draw(lists), dtype=draw(st.sampled_from([torch.int32, torch.float32])))
    if kind == 9:
        return torch.tensor(draw(st.lists(entries.map(abs), max_size=2)), dtype=torch.uint8)
    return torch.tensor(draw(st.lists(entries, min_size=2, max_size=2)))[draw(st.integers(0, 1)) :]


@st.composite
def mixes(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """A shape, and any indices, most of which fit."""
    shape = tuple(draw(st.lists(st.integers(0, 4) | st.integers(2, 4), max_size=4)))
    items = [draw(items_for(size)) for size in shape[: draw(st.integers(0, 4))]]
    if draw(st.booleans()):
        more = st.sampled_from([None, ..., slice(None), 0])
        items.insert(draw(st.integers(0, len(items))), draw(more))
    return shape, items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def outcome(call: Callable[[Tensor], Tensor], source: Tensor, named: bool) -> Any:
    """What a call gives, and to what; or the error that it raises, its text where it is named."""
    given = source.clone()
    try:
        result = call(given)
    except (IndexError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        return type(error), str(error) if named else ""
    assert type(result) is Tensor
    # An axis of fewer than two places has no stride of its own.
    strides = [n for n, size in zip(result.stride(), result.shape, strict=True) if size > 1]
    where = result.storage_offset() if result._is_view() else None
    described = (result.shape, strides, where, result is given, result.dtype)
    return described, result.tolist(), given.tolist()


NUMBERS = st.sampled_from([7, 2.5, True, -1, 300, 2**70, 1j, [3], np.float32(2)])


@given(
    call=mixes(),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.uint8, torch.bool]),
    values=NUMBERS | st.sampled_from([(), (1,), (2, 1), (3,)]),
)
def test_both_ways_agree(device: torch.device, call: Any, dtype: torch.dtype, values: Any) -> None:
    """A mode keeps calls from the direct way (tests/framework/test_direct_calls.py)."""
    shape, indices = call
    indices = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), indices)
    source = torch.arange(math.prod(shape), device=device).view(shape).to(dtype)
    if isinstance(values, tuple):  # several, but all equal: of two for one place any is written
        values = torch.full(values, 5, dtype=dtype, device=device)
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda to: torch_ops.index(to, indices),
        lambda to: torch_ops.index_put(to, indices, values),
        lambda to: torch_ops.index_put_(to, indices, values),
        lambda to: torch_ops.index_put_(to, indices, values, True),
        lambda to: torch_ops.index_add(to, indices, values),
        lambda to: torch_ops.index_add(to, indices, values, deterministic=True),
    ]
    named = device.type == "cpu"  # a GPU names any of several errors
    torch_ops.set_error_mode("sync")
    try:
        for way in ways:
            direct = outcome(way, source, named)
            with BaseTorchFunctionMode():
                assert outcome(way, source, named) == direct
    finally:
        torch_ops.set_error_mode("async")


# ---- large calls ---------------------------------------------------------------------------------


def test_more_arrays_than_kernels_take(device: torch.device) -> None:
    """Eighteen arrays, side by side and not; NumPy allows 64 axes, torch as many."""
    shape = (2,) * 20
    source = torch.arange(2.0**20, device=device).view(shape)
    arrays = [torch.tensor([0, 1, n % 2], device=device) for n in range(18)]
    everything = slice(None)
    for indices in (
        (everything, *arrays),
        (*arrays[:9], everything, *arrays[9:]),
        tuple(arrays),
        (*arrays, 0, torch.tensor([[1], [0]], device=device)),
    ):
        leaf = source.clone().requires_grad_()
        actual = torch_ops.index(leaf, indices)
        expected = reference(source.cpu(), indices)
        assert_same(actual.detach(), expected, f"{len(indices)}")
        (grad,) = torch.autograd.grad(actual, leaf, torch.ones_like(actual))
        counts = add_reference(torch.zeros(shape), indices, 1.0)
        assert torch.equal(grad.cpu(), counts)
        added = torch_ops.index_add(source, indices, 1.0)
        assert torch.equal(added.cpu(), add_reference(source.cpu(), indices, 1.0))
        values = -expected.to(device)
        wanted = put_reference(source.cpu(), indices, values.cpu())
        assert torch.equal(torch_ops.index_put(source, indices, values).cpu(), wanted)
        in_place = source.clone()
        torch_ops.index_put_(in_place, indices, values)
        assert torch.equal(in_place.cpu(), wanted)
    points = torch.stack(arrays, -1)
    assert torch.equal(torch_ops.gather_nd(source, points), source[tuple(arrays)])
    arrays[17] = torch.tensor([0, 1, 2], device=device)
    torch_ops.set_error_mode("sync")
    try:
        with pytest.raises(IndexError, match=r"^index: entry .* for axis 18 is 2, .* size 2"):
            torch_ops.index(source, (everything, *arrays))
    finally:
        torch_ops.set_error_mode("async")


@pytest.mark.parametrize("count", [20, 40])
def test_which_of_many_coordinates_is_out_of_range(
    count: int, device: torch.device, sync_mode: None
) -> None:
    """Kernels take them by sixteen."""
    source = torch.zeros(2, *[1] * count, device=device)
    index = torch.zeros(2, 3, count, dtype=torch.int64, device=device)
    for number in (0, 15, 16, count - 1):
        bad = index.clone()
        bad[1, 2, number] = 5
        with pytest.raises(
            IndexError, match=rf"^gather_nd: index\[2, {number}\], for axis {number}, is 5, "
        ):
            torch_ops.gather_nd(source[0], bad[1])
        message = rf"^gather_nd: index\[1, 2, {number}\], for axis {number + 1}, is 5, "
        with pytest.raises(IndexError, match=message):
            torch_ops.gather_nd(source, bad, 1)


def test_many_groups_of_axes(device: torch.device) -> None:
    """Arrays for every other axis leave more axes between them than kernels walk."""
    shape = (2, 3) * 8
    source = torch.arange(float(6**8), device=device).view(shape)
    i = torch.tensor([[1, 0], [0, 1]], device=device)
    indices = (i, slice(None)) * 8
    assert torch.equal(torch_ops.index(source, indices).cpu(), reference(source.cpu(), indices))
    values = -torch_ops.index(source, (i[:1], slice(None)) * 8)
    wanted = put_reference(source.cpu(), (i[:1].cpu(), slice(None)) * 8, values.cpu())
    written = source.clone()
    torch_ops.index_put_(written, (i[:1], slice(None)) * 8, values)
    assert torch.equal(written.cpu(), wanted)


def test_many_groups_of_axes_of_no_elements(device: torch.device, sync_mode: None) -> None:
    source = torch.ones(3, 3, 0, *(2,) * 7, device=device).permute(0, 1, *range(9, 1, -1))
    i = torch.tensor([0, 1], device=device)
    assert torch_ops.index(source, (i, i)).shape == (2, *(2,) * 7, 0)
    assert torch_ops.index_put_(source, (i, i), 1.0) is source
    for call in (
        lambda at: torch_ops.index(source, at),
        lambda at: torch_ops.index_put_(source, at, 1.0),
    ):
        if device.type == "cpu":
            with pytest.raises(IndexError, match="axis 1 is 5, out of range"):
                call((i, i + 5))
    many = torch.zeros(0, 2, 3, 2, 3, 2, 3, 2, 3, device=device, dtype=torch.int64)
    assert torch_ops.index(source, (many, many.transpose(1, 3)[..., :1])).shape[:1] == (0,)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_beyond_2_31(device: torch.device) -> None:
    """Offsets of more than 31 bits; more points of two axes than are counted in 32 bits at once."""
    source = torch.zeros(2, 2**30 + 8, dtype=torch.uint8, device=device)
    source[1, -3] = 7
    points = torch.tensor([[1, 2**30 + 5], [0, 0]], device=device)
    assert torch_ops.gather_nd(source, points).tolist() == [7, 0]
    torch_ops.index_put_(source, (points[:, 0], points[:, 1] + 1), 9)
    assert source[1, -2] == 9 and source[0, 1] == 9
    del source
    table = torch.randint(256, (300, 200), dtype=torch.uint8, device=device)
    rows = torch.randint(300, (40_000, 1), device=device)
    columns = torch.randint(-200, 200, (30_000,), device=device, dtype=torch.int32)
    picked = torch_ops.index(table, (rows, columns))
    for row in (0, 26_843, 35_791, 35_792, 39_999):
        assert torch.equal(picked[row], table[rows[row], columns.long()]), row
    values = torch.randint(256, (30_000,), dtype=torch.uint8, device=device)
    everything = [torch.arange(size, device=device) for size in picked.shape]
    torch_ops.index_put_(picked, (everything[0][:, None], everything[1]), values)
    for row in (0, 26_843, 35_791, 35_792, 39_999):
        assert torch.equal(picked[row], values), row


@pytest.mark.parametrize("indices", [(), 1, (slice(None), -1), (None, slice(1, 3)), ...], ids=str)
def test_a_number_for_a_view(device: torch.device, indices: Any) -> None:
    source = torch.randn(4, 3, device=device)
    expected = source.clone()
    expected[indices] = 7
    leaf = source.clone().requires_grad_()
    written = leaf * 1
    assert torch_ops.index_put_(written, indices, 7) is written
    assert torch.equal(written, expected)
    assert written._version == 1
    (grad,) = torch.autograd.grad(written.sum(), leaf)
    assert torch.equal(grad, (expected != 7).float())
    twice = torch.vmap(lambda x: torch_ops.index_put_(x, indices, 7.0))(source.repeat(2, 1, 1))
    assert torch.equal(twice, expected.expand(2, 4, 3))
    with pytest.raises(ValueError, match=r"index_put_: values must be between 0 and 255"):
        torch_ops.index_put_(source.byte(), indices, 300)
    with pytest.raises(RuntimeError, match="single memory location"):
        torch_ops.index_put_(source[:1].expand(4, 3), indices, 7.0)
    with pytest.raises(RuntimeError, match="leaf"):
        torch_ops.index_put_(leaf, indices, 7.0)
