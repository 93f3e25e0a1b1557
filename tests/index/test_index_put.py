"""index_put, index_put_ and index_add, and the registered ops that write for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from gathering import bad_index, values_for
from indices import (
    add_reference,
    as_numpy,
    bad,
    distinct,
    for_registered,
    indices_for,
    put_reference,
    sized,
)
from op_checks import Op, OpChecks, Sample, assert_same
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode
from torch.utils import _pytree as pytree

import torch_ops


def write_samples(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, ...] = (5, 4, 3), add: bool = False
) -> Iterator[Sample]:
    for indices in indices_for(shape, device):
        if add or distinct(indices, shape):
            written = np.zeros(shape)[as_numpy(indices)].shape
            source = values_for(shape, device, dtype)
            yield Sample((source, indices, values_for(written, device, dtype, seed=1)))
    source, rows = values_for(shape, device, dtype), values_for((2, 4, 3), device, dtype, seed=1)
    yield Sample((source, torch.tensor([0, -1], device=device), rows[None, None]))
    if not add:
        mask = torch.arange(5, device=device) % 2 == 0
        yield Sample((source, mask, values_for((4, 3), device, dtype)))


def add_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    return write_samples(device, dtype, add=True)


def smooth_write_samples(device: torch.device) -> Iterator[Sample]:
    return write_samples(device, torch.float64)


def smooth_add_samples(device: torch.device) -> Iterator[Sample]:
    return add_samples(device, torch.float64)


def point_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    """For the registered ops below the public ones."""
    for shape, dims, arrays in [
        ((5, 4, 3), [0, 1], [[4, 0, -1], [0, 3, 1]]),
        ((5, 4, 3), [0, 2], [[4, 0, -1], [0, 2, 1]]),
        ((2, 5, 4, 8), [1, 2], [[[4], [-2]], [0, 1, 2]]),
        ((5,), [0], [[]]),
    ]:
        source = values_for(shape, device, dtype)
        coordinates = [torch.tensor(a, dtype=torch.int64, device=device) for a in arrays]
        items: list[Any] = [slice(None)] * len(shape)
        for dim, coordinate in zip(dims, coordinates, strict=True):
            items[dim] = as_numpy(coordinate)
        written = np.zeros(shape)[tuple(items)].shape
        yield Sample((source, coordinates, dims, values_for(written, device, dtype, seed=1)))


def smooth_point_samples(device: torch.device) -> Iterator[Sample]:
    return (s for s in point_samples(device, torch.float64) if s.args[0].numel() <= 60)


def point_reference(
    source: Tensor, coordinates: list[Tensor], dims: list[int], values: Tensor
) -> Tensor:
    items: list[Any] = [slice(None)] * source.dim()
    for dim, coordinate in zip(dims, coordinates, strict=True):
        items[dim] = coordinate
    return put_reference(source, tuple(items), values)


def add_tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Sums of few values: each may be rounded a few times, and once when it is added."""
    return (8 * torch.finfo(dtype).eps, 8 * torch.finfo(dtype).eps)


def sized_write(device: torch.device, size: int) -> Sample:
    source, indices = sized(device, size).args
    return Sample((source, indices, values_for((size + 1, 4), device, torch.float32, seed=1)))


def sized_points(device: torch.device, size: int) -> Sample:
    source, (a, _, b), values = sized_write(device, size).args
    return Sample((source, [a, b], [0, 2], values))


def colliding_write(device: torch.device) -> Sample:
    a = torch.arange(20000, device=device)
    values = values_for((20000, 4), device, torch.float32, seed=1)
    source = values_for((7, 4, 5), device, torch.float32)
    return Sample((source, (a % 7, slice(None), a % 5), values))


def colliding_points(device: torch.device) -> Sample:
    source, (a, _, b), values = colliding_write(device).args
    return Sample((source, [a, b], [0, 2], values))


def bad_write(device: torch.device) -> Iterator[Sample]:
    for sample in bad(device):
        yield Sample((*sample.args, torch.ones(4, 3, device=device)))
    source, indices = sized(device, 3).args
    yield Sample((source, indices, torch.ones(7, device=device)))
    yield Sample((source, indices, torch.ones(4, dtype=torch.float64, device=device)))


def bad_points(device: torch.device) -> Iterator[Sample]:
    source, (a, b), dims, values = sized_points(device, 3).args
    for index in bad_index(b, 9):
        yield Sample((source, [a, index], dims, values))
    yield Sample((source, [a, b], dims, values[:2]))


def torchs_put(source: Tensor, indices: Any, values: Tensor) -> Tensor:
    """torch's op of these dtypes, whatever the indices."""
    first = torch.zeros(1, dtype=torch.int64, device=source.device)
    return torch.index_put(source.flatten(), (first,), values.flatten()[:1])


PUT_POINTS: dict[str, Any] = {
    "reference": point_reference,
    "samples": point_samples,
    "smooth_samples": smooth_point_samples,
    "sized": sized_points,
    "colliding": colliding_points,
    "bad": bad_points,
    "node": "PutPointsBackward",
}


# A copy of elements is exact.
OPS = [
    Op(
        "index_put",
        torch_ops.index_put,
        put_reference,
        write_samples,
        smooth_samples=smooth_write_samples,
        sized=sized_write,
        colliding=colliding_write,
        bad=bad_write,
        registered=for_registered,
        node="PutPointsBackward",
        torchs=torchs_put,
    ),
    Op(
        "index_put_",
        torch_ops.index_put_,
        put_reference,
        write_samples,
        smooth_samples=smooth_write_samples,
        sized=sized_write,
        colliding=colliding_write,
        bad=bad_write,
        registered=for_registered,
        node="PutPointsBackward",
        inplace=True,
    ),
    Op(
        "index_add",
        torch_ops.index_add,
        add_reference,
        add_samples,
        smooth_samples=smooth_add_samples,
        sized=sized_write,
        bad=bad_write,
        registered=for_registered,
        node="ScatterAddInplaceBackward",
        torchs=torchs_put,
        calls="index_put",
        tolerance=add_tolerance,
        sums=True,
    ),
    Op("put_points", torch.ops.torch_ops.put_points.default, **PUT_POINTS),
    Op("put_points_", torch.ops.torch_ops.put_points_.default, **PUT_POINTS, inplace=True),
]


class TestChecks(OpChecks):
    pass


def test_masks_write_without_waiting(device: torch.device) -> None:
    x = torch.tensor([[1.0, -2.0], [-3.0, 4.0]], device=device)
    torch_ops.index_put_(x, x < 0, 0)
    assert x.tolist() == [[1, 0], [0, 4]]
    rows = torch.tensor([False, True], device=device)
    torch_ops.index_put_(x, rows, torch.tensor([8.0, 9.0], device=device))
    assert x.tolist() == [[1, 0], [8, 9]]
    torch_ops.index_put_(x, (slice(None), rows), 5.0, accumulate=True)
    assert x.tolist() == [[1, 5], [8, 14]]
    assert torch_ops.index_add(x, x > 5, 1.0).tolist() == [[1, 5], [9, 15]]
    compiled = torch.compile(torch_ops.index_put, fullgraph=True, backend="aot_eager")
    assert compiled(x, x > 5, 0.0).tolist() == [[1, 5], [0, 0]]
    each = torch.tensor([6.0, 7.0], device=device)  # a value for each true entry
    assert torch_ops.index_put(x, x > 5, each).tolist() == [[1, 5], [6, 7]]


@pytest.mark.parametrize(
    "put",
    [
        torch_ops.index_put,
        torch_ops.index_put_,
        torch_ops.index_add,
        torch.compile(torch_ops.index_put, fullgraph=True, backend="aot_eager"),
    ],
    ids=["index_put", "index_put_", "index_add", "compiled"],
)
def test_values_that_do_not_fit_a_mask(put: Callable[..., Tensor], device: torch.device) -> None:
    """Neither are they to make the result larger, where an axis after the mask has size 1."""
    mask = torch.tensor([True, False, True], device=device)
    for shape, indices, values in (
        ((3, 1), mask, (4,)),
        ((3, 1), mask, (1, 4)),
        ((3, 2), mask, (3,)),
        ((2, 3, 1), (slice(None), mask), (4,)),
        ((2, 3, 4, 1), (slice(None), mask), (4, 2)),
        ((3, 1), mask, (2, 1, 1)),
    ):
        for where in (device, torch.device("meta")):
            if where.type == "meta" and len(values) > 1 and shape != (2, 3, 4, 1):
                continue  # there nobody knows how many entries of the mask are true
            source = torch.zeros(shape, device=where)
            at = pytree.tree_map_only(Tensor, lambda t, to=where: t.to(to), indices)
            with pytest.raises((ValueError, RuntimeError), match="cannot be broadcast"):
                put(source, at, torch.ones(values, device=where))


@pytest.mark.parametrize("accumulate", [False, True])
def test_rows_where_a_mask_is_true(accumulate: bool, device: torch.device) -> None:
    """On the CPU they alone are written: the others keep their bits, as -0.0 does."""
    everything = slice(None)
    for shape, indices, values in (
        ((6, 5), (0,), (5,)),
        ((6, 5), (0,), (1,)),
        ((4, 6, 5), (1,), (5,)),
        ((4, 6, 5), (0, 1), (5,)),
        ((4, 6, 5, 3), (1, 2), (1,)),
        ((4, 6, 5), (0,), (6, 1)),
        ((6, 0), (0,), (1,)),
    ):
        base = torch.full((*shape[:-1], 2 * shape[-1]), -0.0, device=device)
        for source in (base[..., ::2], base[..., : shape[-1]].contiguous()):
            for full in (True, False):
                mask_shape = [shape[axis] for axis in indices]
                mask = torch.arange(math.prod(mask_shape), device=device).view(mask_shape) % 3 == 1
                mask &= full
                at = (everything,) * indices[0] + (mask,)
                rows = values_for(values, device, torch.float32)
                written = source.clone()
                expected = put_reference(source.cpu(), at, rows.cpu(), accumulate)
                assert torch_ops.index_put_(written, at, rows, accumulate) is written
                assert torch.equal(written.cpu(), expected)
                if device.type == "cpu":
                    assert torch.equal(written.signbit(), expected.signbit())
                view = base.clone()[..., ::2]
                torch_ops.index_put_(view, at, rows, accumulate)
                assert torch.equal(view.cpu(), expected)
    source = torch.zeros(3, 2, device=device, requires_grad=True)
    row = torch.ones(2, device=device, requires_grad=True)
    mask = torch.tensor([True, False, True], device=device)
    torch_ops.index_put_(source * 1, mask, row, accumulate).sum().backward()
    assert row.grad.tolist() == [2, 2]
    assert source.grad.tolist() == [[accumulate] * 2, [1, 1], [accumulate] * 2]


UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", [*UNSIGNED, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool])
def test_rare_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    """Whatever the indices: torch has no sums of these, nor writes where masks are true."""
    values = torch.tensor([[3, 1], [2, 0], [1, 2]], device=device).to(dtype)
    mask = torch.tensor([True, False, True], device=device)
    entries = torch.tensor([2, 0], device=device)
    one = torch.tensor(1, device=device).to(dtype)
    whole = slice(None)
    for indices in (mask, (whole, mask[1:]), 1, slice(2), (), entries, (entries, whole, [0, 1])):
        source = (
            values[:, None].expand(3, 3, 2).clone()
            if indices == (entries, whole, [0, 1])
            else values
        )
        expected = source.float()
        expected[indices] = 1
        assert torch.equal(torch_ops.index_put(source, indices, one).float(), expected)
        assert torch.equal(torch_ops.index_put_(source.clone(), indices, 1).float(), expected)
        if dtype in UNSIGNED:
            expected = source.float()
            expected[indices] += 1
            assert torch.equal(torch_ops.index_add(source, indices, one).float(), expected)
            added = torch_ops.index_put_(source.clone(), indices, one, True)
            assert torch.equal(added.float(), expected)
            continue
        for name, add in (
            ("index_add", lambda x, at: torch_ops.index_add(x, at, one)),
            ("index_put", lambda x, at: torch_ops.index_put(x, at, one, True)),
            ("index_put_", lambda x, at: torch_ops.index_put_(x, at, one, True)),
        ):
            with pytest.raises(TypeError, match=f"^{name}: values must be of an integer type"):
                add(source, indices)


def test_numbers_that_do_not_fit(device: torch.device) -> None:
    source = torch.zeros(3, 2, device=device)
    for values, to, message in (
        (1j, source, "real numbers for torch.float32, but 1j"),
        (1000, source.char(), "between -128 and 127 for torch.int8, but 1000"),
        (-1, source.byte(), "between 0 and 255 for torch.uint8, but -1"),
        (2**70, source.long(), f"between {-(2**63)} and {2**63 - 1} for torch.int64, but {2**70}"),
        ([2**70, 0], source.long(), f"between .* but {2**70}"),
        (2.5, source.int(), "integers for torch.int32, but 2.5"),
        ([[2, 3.5]], source.int(), "integers for torch.int32, but 3.5"),
        (math.nan, source.int(), "integers for torch.int32, but nan"),
        (2, source.bool(), "between 0 and 1 for torch.bool, but 2"),
        (1.0, source.bool(), "integers for torch.bool, but 1.0"),
        (-1e6, source.half(), "between -65504 and 65504 for torch.float16, but -1000000.0"),
        (1e39j, source.cfloat(), r"between .* in both parts for torch.complex64, but 1e\+39j"),
        (np.longdouble(1.5), source.int(), "integers for torch.int32, but 1.5"),
        (np.float32(1.5), source.int(), "integers for torch.int32, but 1.5"),
        (np.array([0, 300]), source.byte(), "between 0 and 255 for torch.uint8, but 300"),
        (np.array([math.inf, 1e6]), source.half(), "between .* but 1000000.0"),
        (np.array([1, 1e39j]), source.cfloat(), "between .* in both parts"),
    ):
        for name in ("index_put", "index_put_", "index_add"):
            with pytest.raises(ValueError, match=f"^{name}: values must be {message}"):
                getattr(torch_ops, name)(to, 0, values)
        assert to.count_nonzero() == 0
    for value, dtype in (
        (math.inf, torch.half),
        (True, torch.int32),
        (2**63, torch.uint64),
        (2**70, torch.float32),
        (-(2**63) - 2**40, torch.float64),
        (2**64, torch.complex64),
        (np.longdouble(1.5), torch.float32),
        (np.clongdouble(1.5j), torch.complex64),
        (np.array(1.5, np.longdouble), torch.float64),
        (np.array([2.5], np.clongdouble)[0], torch.complex128),
    ):
        to = torch.zeros(3, dtype=dtype, device=device)
        assert torch_ops.index_put(to, 0, value)[0].item() == value
    compiled = torch.compile(torch_ops.index_put, backend="aot_eager")
    with pytest.raises((ValueError, RuntimeError), match="values must be integers for"):
        compiled(source.int(), 0, 2.5)
    with pytest.raises(TypeError, match=r"^index_put: accumulate must be a bool"):
        torch_ops.index_put(source, 0, 1.0, "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^index_put_: accumulate must be a bool"):
        torch_ops.index_put_(source, 0, 1.0, "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^index_add: deterministic must be a bool or None"):
        torch_ops.index_add(source, 0, 1.0, "a")  # type: ignore[arg-type]


def test_vmap_of_a_source_that_is_shared(device: torch.device) -> None:
    values = torch.ones(3, 2, device=device)
    entries = torch.zeros(1, dtype=torch.int64, device=device)
    for indices in (0, slice(0, 1), entries, torch.tensor([True, False], device=device)):
        for accumulate in (False, True):
            source = torch.zeros(2, 2, device=device)

            def write(v: Tensor, to: Tensor = source, at: Any = indices, add: bool = accumulate):
                return torch_ops.index_put_(to, at, v, add)

            with pytest.raises(RuntimeError, match=r"^index_put_: torch\.vmap cannot write"):
                torch.vmap(write)(values)
            assert source.count_nonzero() == 0


@pytest.mark.parametrize("way", [nullcontext, BaseTorchFunctionMode])
def test_expanded_sources(way: Callable[[], Any], device: torch.device) -> None:
    """Whatever the indices: a view may have none of the axes that share memory."""
    entries = torch.tensor([0, 2], device=device)
    mask = torch.tensor([True, False, False], device=device)
    for indices in (0, slice(0, 2), None, (None, 0), entries, [1], mask, (mask, 0), (..., entries)):
        for accumulate in (False, True):
            source = torch.zeros(1, 3, device=device).expand(3, 3)
            with (
                way(),
                pytest.raises(RuntimeError, match=r"^index_put_: .* single memory location"),
            ):
                torch_ops.index_put_(source, indices, 1.0, accumulate)
            assert source.count_nonzero() == 0


@pytest.mark.parametrize("way", [nullcontext, BaseTorchFunctionMode])
def test_expanded_sources_without_elements(way: Callable[[], Any], device: torch.device) -> None:
    for indices in (0, np.array([0]), torch.tensor([0], device=device), (slice(1), 0), [True] * 3):
        source = torch.zeros(3, 1, 0, device=device).expand(3, 4, 0)
        with way():
            assert torch_ops.index_put_(source, indices, 1.0) is source


@pytest.mark.parametrize("way", [nullcontext, BaseTorchFunctionMode])
def test_leading_axes_of_length_one(way: Callable[[], Any], device: torch.device) -> None:
    """NumPy and torch leave them out where values have more axes than what is written."""
    mask = torch.tensor([True, False, True], device=device)
    array = torch.tensor([2, 0], device=device)
    for indices in (slice(None), 1, ..., (1, 2), array, mask, (array, 1), (slice(2), array)):
        source = values_for((3, 4), device, torch.float32)
        expected = source.clone()
        written = expected[indices].shape
        for own in {written, (), *([(4,)] if written[-1:] == (4,) else [])}:
            values = values_for((1, 1, 1, *own), device, torch.float32, seed=1)
            expected[indices] = values
            with way():
                assert_same(torch_ops.index_put(source, indices, values), expected, f"{indices}")
                torch_ops.index_put_(source, indices, values)
                assert_same(source, expected, f"{indices}")
                twice = torch_ops.index_add(source, indices, values)
            expected[indices] += values.reshape(own)
            assert_same(twice, expected, f"{indices}")
            source = expected.clone()
    with pytest.raises(ValueError, match=r"values with shape \[2, 1, 4\] cannot be broadcast"):
        torch_ops.index_put(source, array, torch.zeros(2, 1, 4, device=device))


def test_writes_to_what_is_read(device: torch.device) -> None:
    x = torch.arange(5.0, device=device)
    torch_ops.index_put_(x, torch.tensor([1, 2, 3, 4], device=device), x[:4])
    assert x.tolist() == [0, 0, 1, 2, 3]
    i = torch.tensor([2, 0, 1], device=device)
    torch_ops.index_put_(i, i, torch.tensor([0, 1, 2], device=device))
    assert i.tolist() == [1, 2, 0]


def test_strided_sources_and_values(device: torch.device) -> None:
    base = torch.zeros(6, 5, 4, 2, device=device)
    source = base.permute(3, 1, 0, 2)[:, ::2]
    rows = torch.tensor([[0], [2]], device=device)
    columns = torch.tensor([5, -6, 1], device=device)
    values = values_for((4, 2, 3), device, torch.float32).permute(1, 2, 0)
    torch_ops.index_put_(source, (1, rows, columns), values)
    assert torch.equal(source[1][rows, columns], values)
    assert (source != 0).sum() == (values != 0).sum()


@pytest.mark.parametrize("indices", [..., (), slice(None), slice(0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_gradient_of_a_source_that_is_overwritten(
    dtype: torch.dtype, indices: Any, device: torch.device
) -> None:
    """Zeros, even where nothing of it is left."""
    source = torch.ones(3, 2, dtype=dtype, device=device).T.contiguous().T.requires_grad_()
    values = torch.full((2,), 2.0, dtype=dtype, device=device, requires_grad=True)
    result = torch_ops.index_put(source, indices, values)
    assert bool((result == 2).all()) and result.is_contiguous()
    of_source, of_values = torch.autograd.grad(result.sum(), (source, values))
    assert not of_source.any() and of_values.tolist() == [3, 3]


def test_version_counter(device: torch.device) -> None:
    leaf = torch.ones(4, device=device, requires_grad=True)
    squared = leaf * 1
    output = squared**2
    version = squared._version
    torch_ops.index_put_(squared, torch.tensor([1], device=device), 0.0)
    assert squared._version == version + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        torch_ops.index_put_(leaf, torch.tensor([1], device=device), 0.0)


def test_the_gradient_of_a_sum_takes_no_copies(device: torch.device) -> None:
    """As CopySlices does, the node of a write to a view."""
    source = torch.zeros(4, 3, 5, device=device, requires_grad=True)
    i = torch.tensor([2, 0, 2], device=device)
    nodes = [torch_ops.index_add(source, (i, i % 2), 1.0).grad_fn]
    for node in nodes:
        nodes += [each for each, _ in node.next_functions if each is not None]
    names = [node.name() for node in nodes]
    assert "ScatterAddInplaceBackward" in names and "CopySlices" not in names


@pytest.mark.sanitizer
def test_small_calls(device: torch.device) -> None:
    i = torch.tensor([2, -3], device=device, dtype=torch.int16)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128):
        for tail in ((), (3,), (8,)):
            x = values_for((3, 2, *tail), device, dtype)
            y = torch_ops.index_put(x, (i, [0, 1]), x[:2, 0])
            assert torch.equal(y[2, 0], x[0, 0]) and torch.equal(y[0, 1], x[1, 0])


def test_out_of_range(device: torch.device, sync_mode: None) -> None:
    source = torch.zeros(3, 4, 2, device=device)
    i = torch.tensor([2, -4], device=device)
    j = torch.tensor([[0], [3]], device=device)
    written = source.clone()
    with pytest.raises(IndexError, match=r"index_put_: entry .* is -4"):
        torch_ops.index_put_(written, (i, j), 1.0)
    if device.type == "cpu":
        assert written.count_nonzero() == 0
    with pytest.raises(IndexError, match=r"index_add: index\[1\] is -4"):
        torch_ops.index_add(source, i, 1.0)
    with pytest.raises(IndexError, match="is -4"):
        torch_ops.index_add(source, (i, j), 1.0)
    with pytest.raises(IndexError, match=r"^index_put: index 3 is out of range for axis 0"):
        torch_ops.index_put(source, 3, 1.0)
    # Sums of other types and sizes take other kernels.
    for dtype in (torch.bfloat16, torch.float32):
        for size in ((5,), (6000, 2), (2**21, 4)):
            zeros = torch.zeros(size, dtype=dtype, device=device)
            bad = -size[0] - 2
            index = torch.tensor([1, bad], device=device)
            for deterministic in (None, True):
                with pytest.raises(IndexError, match=rf"index_add: index\[1\] is {bad}, out"):
                    torch_ops.index_add(zeros, index, 1.0, deterministic)
    with pytest.raises(IndexError, match="no entry is allowed"):
        torch_ops.index_put(source[:0], (i, j), 1.0)


def test_which_entry_is_named(device: torch.device, sync_mode: None) -> None:
    """Also where many rows of what is written share the entry."""
    source = torch.zeros(4, 3, 5, device=device)
    whole, column = slice(None), torch.tensor([[0], [9]], device=device)
    some = "0" if device.type == "cpu" else "[012]"  # of equal ones
    row = torch.tensor([2, 0, 1], device=device)
    for indices, name in (
        ((whole, column[:, 0]), r"\[1\] .*axis 1 is 9"),
        ((whole, whole, column), r"\[1, 0\] .*axis 2 is 9"),
        ((whole, column.expand(2, 3), row), rf"\[1, {some}\] .*axis 1 is 9"),
        ((whole, whole, column[:, 0].expand(3, 2)), r"\[[012], 1\] .*axis 2 is 9"),
        ((row, whole, column.expand(2, 3)), r"\[1, [012]\] .*axis 2 is 9"),
    ):
        with pytest.raises(IndexError, match=rf"index_put_: entry {name}, out of range"):
            torch_ops.index_put_(source, indices, 1.0)
    assert device.type != "cpu" or source.count_nonzero() == 0


def test_bad_arguments(device: torch.device) -> None:
    source = torch.zeros(3, 4, device=device)
    i = torch.tensor([2, 0], device=device)
    mask, whole = torch.ones(3, dtype=torch.bool, device=device), slice(None)
    for write in (torch_ops.index_put, torch_ops.index_put_, torch_ops.index_add):
        for axes, indices in (
            (3, (mask, whole, whole)),
            (4, (whole, whole, whole, mask)),
            (3, (i, whole, whole)),
            (3, (whole, mask[:, None])),
        ):
            message = rf"indices are for more axes \({axes}\) than source.* has \(2\)\."
            with pytest.raises(IndexError, match=message):
                write(source, indices, torch.zeros((), device=device))
    registered = torch.ops.torch_ops.index_put.default
    for arrays in ([None, mask[:, None]], [None, None, mask]):
        with pytest.raises(IndexError, match=r"a mask with shape .* from there on"):
            registered(source, arrays, torch.zeros((), device=device))
    with pytest.raises(
        IndexError, match=r"indices are for more axes \(3\) than source.* has \(2\)\."
    ):
        registered(source, [None, None, None, mask], torch.zeros((), device=device))
    with pytest.raises(ValueError, match=r"values with shape \[3\] cannot be broadcast"):
        torch_ops.index_put(source, i, torch.zeros(3, device=device))
    with pytest.raises(TypeError, match="source and values must have one dtype"):
        torch_ops.index_put(source, i, torch.zeros(4, dtype=torch.float64, device=device))
    with pytest.raises(TypeError, match=r"order of torch\.index_add"):
        torch_ops.index_add(source, 0, i, torch.zeros(2, 4, device=device))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="single memory location"):
        torch_ops.index_put_(source[:1].expand(3, 4), (i, i), 1.0)
    if device.type == "cuda":
        with pytest.raises(RuntimeError, match="must be on one device"):
            torch_ops.index_put(source, i, torch.zeros(()))


def test_float8_by_a_mask_has_gradients(device: torch.device) -> None:
    dtype = torch.float8_e4m3fn
    mask = torch.tensor([True, False, True], device=device)
    source = torch.zeros(3, device=device).to(dtype).requires_grad_()
    value = torch.ones((), device=device).to(dtype).requires_grad_()
    ones = torch.ones(3, device=device).to(dtype)
    (grad,) = torch.autograd.grad(torch_ops.index_put(source, mask, value), source, ones)
    assert grad.float().tolist() == [0, 1, 0]
    written = source.clone()
    torch_ops.index_put_(written, mask, value.detach())
    assert written.requires_grad
    assert written.detach().float().tolist() == [1, 0, 1]
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        torch_ops.index_put_(source, mask, value)
    sources, masks = torch.zeros(2, 3, device=device).to(dtype), torch.stack((mask, ~mask))
    put = torch.vmap(lambda s, m: torch_ops.index_put(s, m, value.detach()))
    assert put(sources, masks).float().tolist() == [[1, 0, 1], [0, 1, 0]]
