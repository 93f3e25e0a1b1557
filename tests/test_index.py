from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gathering import bad_index, values_for
from hypothesis import given
from hypothesis import strategies as st
from op_checks import Op, OpChecks, Sample, assert_same
from torch import Tensor

import torch_ops

INDEX_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)


def as_numpy(indices: Any) -> Any:
    if isinstance(indices, tuple):
        return tuple(as_numpy(item) for item in indices)
    return indices.cpu().numpy() if isinstance(indices, Tensor) else indices


def reference(source: Tensor, indices: Any) -> Tensor:
    return torch.from_numpy(np.array(source.numpy()[as_numpy(indices)]))


def put_reference(source: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    result = source.numpy().copy()
    values = values.numpy() if isinstance(values, Tensor) else values
    if accumulate:
        np.add.at(result, as_numpy(indices), values)
    else:
        result[as_numpy(indices)] = values
    return torch.from_numpy(result)


def add_reference(source: Tensor, indices: Any, values: Any) -> Tensor:
    return put_reference(source, indices, values, True)


def indices_for(shape: tuple[int, ...], device: torch.device) -> Iterator[Any]:
    """Indices for a source of three axes, of 5, 4 and 3."""
    a = torch.tensor([4, 0, -1, 2], device=device)
    b = torch.tensor([[1], [-4]], device=device)
    c = torch.tensor([2, -3, 0, 1], device=device, dtype=torch.int32)
    everything = slice(None)
    yield a
    yield (everything, c)
    yield (..., c.clamp(min=-3))
    yield (a, b)
    yield (everything, b, c.clamp(max=2))
    yield (a, everything, c.clamp(max=2))
    yield (a, c, torch.tensor(1, device=device))
    yield (slice(1, None, 2), None, torch.tensor([1, 1], device=device))
    yield (1, c)
    yield (1, everything, c.clamp(max=2))
    yield (b, 2, ...)
    yield a[:0]


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ((5, 4, 3), (5, 4, 3, 16)):
        for indices in indices_for(shape, device):
            yield Sample((values_for(shape, device, dtype), indices))


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    shape = (5, 4, 3)
    for indices in indices_for(shape, device):
        yield Sample((values_for(shape, device, torch.float64), indices))


def distinct(indices: Any, shape: tuple[int, ...]) -> bool:
    """Is no place named twice? Else what is written is not defined."""
    places = np.arange(np.prod(shape)).reshape(shape)[as_numpy(indices)]
    return np.unique(places).size == places.size


def write_samples(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, ...] = (5, 4, 3), add: bool = False
) -> Iterator[Sample]:
    for indices in indices_for(shape, device):
        if add or distinct(indices, shape):
            written = np.zeros(shape)[as_numpy(indices)].shape
            source = values_for(shape, device, dtype)
            yield Sample((source, indices, values_for(written, device, dtype, seed=1)))
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


def sized(device: torch.device, size: int) -> Sample:
    source = values_for((size + 1, 4, size), device, torch.float32)
    a = torch.arange(size + 1, device=device)
    return Sample((source, (a, slice(None), a % size)))


def sized_write(device: torch.device, size: int) -> Sample:
    source, indices = sized(device, size).args
    return Sample((source, indices, values_for((size + 1, 4), device, torch.float32, seed=1)))


def sized_points(device: torch.device, size: int) -> Sample:
    source, (a, _, b), values = sized_write(device, size).args
    return Sample((source, [a, b], [0, 2], values))


def bad(device: torch.device) -> Iterator[Sample]:
    source = values_for((5, 4, 3), device, torch.float32)
    a = torch.tensor([4, 0, -1], device=device)
    for index in bad_index(a.clone(), -6):
        yield Sample((source, index))
        yield Sample((source, (index, slice(None), a.clamp(max=2))))
    yield Sample((source, (a, a[:2])))


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


def for_registered(sample: Sample) -> Sample | None:
    """The op itself takes index arrays alone; and opcheck no mask, for what follows from data."""
    indices = sample.args[1]
    items = list(indices) if isinstance(indices, tuple) else [indices]
    fits = all(isinstance(item, Tensor) and item.dtype != torch.bool for item in items)
    if not fits or sample.args[0].dim() > 3:
        return None
    return Sample((sample.args[0], items, *sample.args[2:]), sample.kwargs)


def torchs_put(source: Tensor, indices: Any, values: Tensor) -> Tensor:
    """torch's op of these dtypes, whatever the indices."""
    first = torch.zeros(1, dtype=torch.int64, device=source.device)
    return torch.index_put(source.flatten(), (first,), values.flatten()[:1])


PUT_POINTS: dict[str, Any] = {
    "reference": point_reference,
    "samples": point_samples,
    "smooth_samples": smooth_point_samples,
    "sized": sized_points,
    "bad": bad_points,
    "node": "PutPointsBackward",
}


# A copy of elements is exact.
OPS = [
    Op(
        "index",
        torch_ops.index,
        reference,
        samples,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        registered=for_registered,
        node="GatherBackward",
        calls="gather",
    ),
    Op(
        "index_put",
        torch_ops.index_put,
        put_reference,
        write_samples,
        smooth_samples=smooth_write_samples,
        sized=sized_write,
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


# ---- against NumPy ------------------------------------------------------------------------------


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


# The table of numpy.org/doc/stable/user/basics.indexing.html, "Combining advanced and basic
# indexing": where the axes of the arrays go. Source shape, indices (n: an array of that shape),
# shape of the result.
NUMPY_PLACES = [
    ((10, 20, 30, 40, 50), (slice(None), (2,), (2,)), (10, 2, 40, 50)),
    ((10, 20, 30, 40, 50), (slice(None), (2,), slice(None), (2,)), (2, 10, 30, 50)),
    ((10, 20, 30, 40, 50), (..., (2, 3, 4), slice(None)), (10, 20, 30, 2, 3, 4, 50)),
    ((10, 20, 30), (0, slice(None), (2, 3)), (2, 3, 20)),
    ((10, 20, 30), ((2, 3), slice(None), 0), (2, 3, 20)),
    ((10, 20, 30), (slice(None), (2, 3), 0), (10, 2, 3)),
    ((10, 20, 30), ((2,), None, (2,)), (2, 1, 30)),
]


@pytest.mark.parametrize("case", NUMPY_PLACES, ids=str)
def test_where_axes_go(case: Any, device: torch.device) -> None:
    shape, items, expected = case
    indices = tuple(
        torch.zeros(item, dtype=torch.int64, device=device) if isinstance(item, tuple) else item
        for item in items
    )
    source = torch.zeros(shape, device=device)
    assert tuple(torch_ops.index(source, indices).shape) == expected
    assert np.zeros(shape)[as_numpy(indices)].shape == expected


def test_differences_from_torch(device: torch.device) -> None:
    source = torch.arange(24, device=device).view(2, 3, 4)
    columns = torch.tensor([3, 0, 1, 1, 2], device=device)
    ours = torch_ops.index(source, (0, slice(None), columns))
    assert ours.shape == (5, 3)
    assert torch.equal(ours.t(), source[0, :, columns])
    assert torch_ops.index(
        source, torch.tensor([1, 0], dtype=torch.uint8, device=device)
    ).shape == (
        2,
        3,
        4,
    )


# ---- what is special ----------------------------------------------------------------------------


def test_views(device: torch.device) -> None:
    source = torch.zeros(4, 5, device=device)
    for indices in (0, slice(1, 3), (..., 2), None, (slice(None), slice(0, 5, 2)), ()):
        view = torch_ops.index(source, indices)
        assert view._base is source
        assert view.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    torch_ops.index(source, (1, slice(2))).fill_(3)
    assert source.sum() == 6


def test_lists_and_numbers(device: torch.device) -> None:
    source = torch.arange(12, device=device).view(3, 4)
    assert torch_ops.index(source, [2, 0]).tolist() == source[[2, 0]].tolist()
    assert torch_ops.index(source, ([0, -1], [1, 2])).tolist() == [1, 10]
    assert torch_ops.index(source, []).shape == (0, 4)
    assert torch_ops.index(source, np.int64(1)).tolist() == [4, 5, 6, 7]
    assert torch_ops.index(source, np.array([1])).tolist() == [[4, 5, 6, 7]]
    assert torch_ops.index(source, [True, False, True]).tolist() == source[[0, 2]].tolist()
    assert torch_ops.index_put(source, 1, [0, 1, 2, 3])[1].tolist() == [0, 1, 2, 3]


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


def test_version_counter_and_saved_tensors(device: torch.device) -> None:
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
    index = torch.tensor([0, 3], device=device)
    output = torch_ops.index(leaf.view(2, 2), (index // 2, index % 2))
    output.sum().backward()
    assert leaf.grad.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_of_many_duplicates_in_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    source = torch.zeros(2, 3, 4, device=device, dtype=dtype, requires_grad=True)
    zeros = torch.zeros(10_000, dtype=torch.int64, device=device)
    torch_ops.index(source, (zeros, zeros - 1)).sum().backward()
    assert source.grad[0, 2].tolist() == [torch.tensor(10_000).to(dtype).item()] * 4
    assert source.grad.count_nonzero() == 4


def check_vmap(
    call: Callable[..., Tensor], dims: tuple[int | None, ...], stacked: tuple[Tensor, ...]
) -> None:
    """``stacked`` has three samples of each argument; those that are not mapped over have one."""
    args = [x[0] if d is None else x for x, d in zip(stacked, dims, strict=True)]
    samples_of = [
        [x if d is None else x[n] for x, d in zip(args, dims, strict=True)] for n in range(3)
    ]
    expected = torch.stack([call(*sample) for sample in samples_of])
    assert torch.equal(torch.vmap(call, in_dims=dims)(*args), expected), dims


def test_vmap(device: torch.device) -> None:
    i = torch.tensor([[0, -1], [2, 1], [1, 1]], device=device)
    j = torch.tensor([[4, 0], [-5, 3], [2, 2]], device=device)

    def call(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch_ops.index(s, (a, slice(None), b))

    table = values_for((3, 4, 2, 5), device, torch.float32)
    for dims in [(0, 0, 0), (None, 0, None), (0, None, 0), (0, None, None), (None, 0, 0)]:
        check_vmap(call, dims, (table, i, j))

    def write(s: Tensor, a: Tensor, v: Tensor) -> Tensor:
        return torch_ops.index_put(s, (a, torch.tensor(1, device=device)), v)

    values = values_for((3, 2, 5), device, torch.float32)
    i = torch.tensor([[0, -1], [2, 1], [1, 0]], device=device)
    big = values_for((3, 4, 3, 5), device, torch.float32)
    for dims in [(0, 0, 0), (None, 0, None), (0, None, 0), (None, None, 0)]:
        check_vmap(write, dims, (big, i, values))


@pytest.mark.sanitizer
def test_small_calls(device: torch.device) -> None:
    i = torch.tensor([2, -3], device=device, dtype=torch.int16)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128):
        for tail in ((), (3,), (8,)):
            x = values_for((3, 2, *tail), device, dtype)
            assert torch.equal(torch_ops.index(x, (i, 1)), x[[2, 0], 1])
            assert torch.equal(torch_ops.index(x, (slice(None), [1, 0])), x[:, [1, 0]])
            y = torch_ops.index_put(x, (i, [0, 1]), x[:2, 0])
            assert torch.equal(y[2, 0], x[0, 0]) and torch.equal(y[0, 1], x[1, 0])


# ---- errors -------------------------------------------------------------------------------------


def test_out_of_range(device: torch.device, sync_mode: None) -> None:
    source = torch.zeros(3, 4, 2, device=device)
    i = torch.tensor([2, -4], device=device)
    j = torch.tensor([[0], [3]], device=device)
    with pytest.raises(
        IndexError, match=r"index: index\[1\] is -4, out of range .* size 3: .* between -3 and 2"
    ):
        torch_ops.index(source, i)
    with pytest.raises(
        IndexError,
        match=r"index: entry \[[01], 1\] of the index for axis 0 is -4, .* size 3: .* -3 and 2",
    ):
        torch_ops.index(source, (i, j))
    written = source.clone()
    with pytest.raises(IndexError, match=r"index_put: entry .* is -4"):
        torch_ops.index_put_(written, (i, j), 1.0)
    if device.type == "cpu":
        assert written.count_nonzero() == 0
    with pytest.raises(IndexError, match=r"index_add: index\[1\] is -4"):
        torch_ops.index_add(source, i, 1.0)
    with pytest.raises(IndexError, match="is -4"):
        torch_ops.index_add(source, (i, j), 1.0)
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        torch_ops.index(source, 3)
    with pytest.raises(IndexError, match="size 0: no entry is allowed"):
        torch_ops.index(source[:0], i)
    with pytest.raises(IndexError, match="no entry is allowed"):
        torch_ops.index(source[:0], (i, j))


def test_bad_arguments(device: torch.device) -> None:
    source = torch.zeros(3, 4, device=device)
    i = torch.tensor([2, 0], device=device)
    with pytest.raises(IndexError, match="indices are for 3 axes"):
        torch_ops.index(source, (i, 0, 0))
    with pytest.raises(IndexError, match="one ellipsis"):
        torch_ops.index(source, (..., i, ...))
    with pytest.raises(IndexError, match=r"shapes that fit each other, but they are \[2\], \[3\]"):
        torch_ops.index(source, (i, torch.zeros(3, dtype=torch.int64, device=device)))
    with pytest.raises(IndexError, match=r"axis 0 of mask with shape \[4\] is not as long as"):
        torch_ops.index(source, torch.ones(4, dtype=torch.bool, device=device))
    with pytest.raises(IndexError, match="indices are for 3 axes"):
        torch_ops.index(source, (0, torch.ones(3, 4, dtype=torch.bool, device=device)))
    mask, whole = torch.ones(3, dtype=torch.bool, device=device), slice(None)
    for write in (torch_ops.index_put, torch_ops.index_put_, torch_ops.index_add):
        for indices in ((mask, whole, whole), (whole, whole, whole, mask), (i, whole, whole)):
            with pytest.raises(IndexError, match=r"indices are for 3 axes, but source.* has 2\."):
                write(source, indices, torch.zeros((), device=device))
        for indices in ((whole, mask[:, None]), (whole, whole, mask)):
            with pytest.raises(IndexError, match=r"a mask with shape .* from there on"):
                write(source, indices, torch.zeros((), device=device))
    with pytest.raises(TypeError, match="index must be uint8, int16, int32 or int64"):
        torch_ops.index(source, (i, i.float()))
    with pytest.raises(TypeError, match="an index must be an int, a slice"):
        torch_ops.index(source, "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source must be a tensor"):
        torch_ops.index([1], 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step"):
        torch_ops.index(source, slice(None, None, -1))
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
            torch_ops.index(source, i.cpu())


# ---- sizes beyond 32 bits -----------------------------------------------------------------------


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
