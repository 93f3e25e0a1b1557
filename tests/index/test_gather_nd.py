from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gathering import bad_index, enough, values_for
from hypothesis import given
from hypothesis import strategies as st
from op_checks import Op, OpChecks, Sample, assert_same
from programs import ROOT, needs, output_of
from support import without_derivative
from torch import Tensor

import torch_ops

INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MODES = ("raise", "wrap", "clip", "fill", "unchecked")

# source, index without its last axis, coordinates, batch_dims
CASES: list[tuple[tuple[int, ...], tuple[int, ...], int, int]] = [
    ((5, 4), (7,), 2, 0),
    ((5, 4, 3), (7,), 2, 0),
    ((5, 4, 3), (2, 6), 3, 0),
    ((5, 4, 3, 2), (6,), 4, 0),
    ((5, 4, 8), (6,), 1, 0),
    ((5, 4, 16), (6,), 2, 0),
    ((5, 4, 2, 33), (300,), 2, 0),
    ((2, 5, 4, 3), (2, 6), 2, 1),
    ((2, 3, 5, 4), (2, 3, 6), 2, 2),
    ((2, 5, 4), (2,), 2, 1),
    ((5, 4), (), 2, 0),
    ((5, 4, 3), (3, 2), 0, 0),
    ((2, 4, 3), (2, 5), 0, 1),
    ((3, 2), (), 0, 0),
    ((5, 4, 3), (0,), 2, 0),
    ((5, 4, 0), (6,), 2, 0),
    ((0, 4, 3), (0,), 2, 0),
    ((2, 2, 2, 2, 2, 2), (9,), 6, 0),
    ((3, 2, 3000), (4,), 2, 0),
]


def index_for(
    source: tuple[int, ...],
    points: tuple[int, ...],
    count: int,
    batch_dims: int,
    device: torch.device,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    generator = torch.Generator().manual_seed(len(points) + count)
    sizes = source[batch_dims : batch_dims + count]
    columns = [torch.randint(max(size, 1), points, generator=generator) for size in sizes]
    whole = torch.stack(columns, -1) if columns else torch.zeros(*points, 0, dtype=torch.int64)
    return whole.to(device, dtype)


def reference(
    source: Tensor, index: Tensor, batch_dims: int = 0, *, mode: str = "raise", fill_value: Any = 0
) -> Tensor:
    """NumPy's indexing for each batch; the modes entry by entry."""
    table, entries = source.numpy(), index.long().numpy()
    count = entries.shape[-1]
    shape = entries.shape[:-1] + table.shape[batch_dims + count :]
    output = np.zeros(shape, table.dtype)
    for batch in np.ndindex(*table.shape[:batch_dims]):
        part = table[batch]
        for point in np.ndindex(*entries.shape[batch_dims:-1]):
            at: list[int] | None = []
            for value, size in zip(entries[(*batch, *point)].tolist(), part.shape, strict=False):
                if mode == "wrap":
                    value %= size
                elif mode == "clip":
                    value = min(max(value, 0), size - 1)
                elif mode == "fill":
                    value += size if value < 0 else 0
                    if not 0 <= value < size:
                        at = None
                        break
                assert at is not None
                at.append(value)
            output[(*batch, *point)] = fill_value if at is None else part[tuple(at)]
    return torch.from_numpy(output)


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for source, points, count, batch_dims in CASES:
        index = index_for(source, points, count, batch_dims, device)
        yield Sample((values_for(source, device, dtype), index), {"batch_dims": batch_dims})


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for source, points, count, batch_dims in CASES:
        if torch.Size(source).numel() <= 60:
            index = index_for(source, points, count, batch_dims, device)
            values = values_for(source, device, torch.float64)
            yield Sample((values, index), {"batch_dims": batch_dims})


def point_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    """Broadcast index arrays, axes that do not stand side by side, axes before them."""
    for source, dims, shapes in [
        ((5, 4, 3), [0, 1], [(7,), (7,)]),
        ((5, 4, 3), [1, 2], [(2, 1), (6,)]),
        ((5, 4, 3), [0, 2], [(7,), (7,)]),
        ((5, 2, 4, 8), [0, 2], [(2, 1), (1, 3)]),
        ((3, 5, 4, 3), [1, 2], [(), (6,)]),
        ((5, 4, 3), [0, 1, 2], [(7,), (), (1,)]),
        ((5, 4, 3), [0, 1], [(0,), (1,)]),
    ]:
        yield Sample(
            (
                values_for(source, device, dtype),
                [
                    torch.randint(source[dim], shape, device=device)
                    for dim, shape in zip(dims, shapes, strict=True)
                ],
                dims,
            )
        )


def smooth_point_samples(device: torch.device) -> Iterator[Sample]:
    return (s for s in point_samples(device, torch.float64) if s.args[0].numel() <= 60)


def sized(device: torch.device, size: int) -> Sample:
    source = (size, size + 1, 4, 3)
    index = index_for(source, (size, size + 2), 2, 1, device)
    return Sample((values_for(source, device, torch.float32), index), {"batch_dims": 1})


def sized_points(device: torch.device, size: int) -> Sample:
    source = values_for((size, size + 1, 3), device, torch.float32)
    arrays = [torch.arange(size + 2, device=device) % length for length in (size, size + 1)]
    return Sample((source, arrays, [0, 1]))


def sized_ravel(device: torch.device, size: int) -> Sample:
    return Sample(([torch.arange(size, device=device) % length for length in (5, 4)], (5, 4)))


def ravel_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    a = torch.tensor([4, 0, 2], device=device)
    yield Sample(([a, torch.tensor([[3], [1]], device=device)], (5, 4)))
    yield Sample(([a, a.int(), a[:1]], (5, 6, 7)))


def bad(device: torch.device) -> Iterator[Sample]:
    source = values_for((5, 4, 3), device, torch.float32)
    for index in bad_index(index_for((5, 4, 3), (7,), 2, 0, device), 4):
        yield Sample((source, index))
    yield Sample((source, torch.zeros(2, 4, dtype=torch.int64, device=device)))


def bad_points(device: torch.device) -> Iterator[Sample]:
    source = values_for((5, 4, 3), device, torch.float32)
    a, b = (torch.tensor([3, 0, 2], device=device) for _ in range(2))
    for index in bad_index(b, 9):
        yield Sample((source, [a, index], [0, 1]))
    yield Sample((source, [a, b[:2]], [0, 1]))


def bad_ravel(device: torch.device) -> Iterator[Sample]:
    for sample in bad_points(device):
        yield Sample((sample.args[1], (5, 4)))


def point_reference(source: Tensor, coordinates: list[Tensor], dims: list[int]) -> Tensor:
    items: list[Any] = [slice(None)] * source.dim()
    for dim, coordinate in zip(dims, coordinates, strict=True):
        items[dim] = coordinate.numpy()
    return torch.from_numpy(source.numpy()[tuple(items)].copy())


# A copy of elements is exact.
OPS = [
    Op(
        "gather_nd",
        torch_ops.gather_nd,
        reference,
        samples,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="GatherPointsBackward",
    ),
    Op(
        "gather_points",
        torch.ops.torch_ops.gather_points.default,
        point_reference,
        point_samples,
        smooth_samples=smooth_point_samples,
        sized=sized_points,
        bad=bad_points,
        node="GatherPointsBackward",
    ),
]
OTHER_OPS = [
    Op(
        "ravel_multi_index",
        torch.ops.torch_ops.ravel_multi_index.default,
        reference=lambda coordinates, sizes: torch.from_numpy(
            np.ravel_multi_index([each.numpy() for each in coordinates], sizes)
        ),
        samples=ravel_samples,
        sized=sized_ravel,
        bad=bad_ravel,
        exempt=without_derivative("an index has no derivative"),
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.int32, torch.complex64, torch.complex128],
    ids=str,
)
def test_every_dtype(device: torch.device, dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    for source, points, count, batch_dims in CASES:
        table = values_for(source, device, dtype)
        index = index_for(source, points, count, batch_dims, device, index_dtype)
        actual = torch_ops.gather_nd(table, index, batch_dims)
        assert actual.is_contiguous()
        expected = reference(table.cpu(), index.cpu(), batch_dims)
        assert_same(actual, expected, str((source, points, count, batch_dims)))


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], int, int, int]:
    rank = draw(st.integers(1, 5))
    source = tuple(draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    batch_dims = draw(st.integers(0, rank - 1))
    count = draw(st.integers(0, rank - batch_dims))
    points = source[:batch_dims] + tuple(draw(st.lists(st.integers(0, 4), max_size=2)))
    return source, points, count, batch_dims, draw(st.integers(0, 2**31))


def check_call(device: torch.device, call: Any, mode: str, dtype: torch.dtype) -> None:
    source, points, count, batch_dims, seed = call
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(1, 100, source, generator=generator).to(torch.float32)
    order = torch.randperm(table.dim(), generator=generator).tolist()
    table = table.permute(order).contiguous().permute(np.argsort(order).tolist()).to(device)
    low, high = (0, 1) if mode in ("raise", "unchecked") else (-2, 3)
    if dtype == torch.uint8:
        low = 0
    columns = [
        torch.randint(low * size, high * size, points, generator=generator)
        for size in source[batch_dims : batch_dims + count]
    ]
    index = torch.stack(columns, -1) if columns else torch.zeros(*points, 0, dtype=torch.int64)
    index = index.to(device, dtype)
    options = {"fill_value": -1.0} if mode == "fill" else {}
    leaf = table.requires_grad_()
    actual = torch_ops.gather_nd(leaf, index, batch_dims, mode=mode, **options)
    expected = reference(table.detach().cpu(), index.cpu(), batch_dims, mode=mode, **options)
    assert_same(actual, expected, f"{call} {mode}")
    # The gradient counts how often an element was read.
    (grad,) = torch.autograd.grad(actual.sum(), leaf)
    places = torch.arange(table.numel(), dtype=torch.float32).view(source)
    read = reference(places, index.cpu(), batch_dims, mode=mode, fill_value=-1).reshape(-1).long()
    wanted = torch.bincount(read[read >= 0], minlength=table.numel()).view(source)
    assert torch.equal(grad.cpu().long(), wanted), f"{call} {mode}"


@given(call=calls(), mode=st.sampled_from(MODES), dtype=st.sampled_from(INDEX_DTYPES))
def test_any_call(call: Any, mode: str, dtype: torch.dtype) -> None:
    check_call(torch.device("cpu"), call, mode, dtype)
    if torch.cuda.is_available():
        check_call(torch.device("cuda"), call, mode, dtype)


# ---- agreement with TensorFlow and ONNX ---------------------------------------------------------

# Examples of the documentation of tf.gather_nd (tensorflow.org/api_docs/python/tf/gather_nd) and of
# ONNX's operator GatherND (onnx.ai/onnx/operators/onnx__GatherND.html): source, index, batch_dims,
# output.
PUBLISHED = {
    "tf: elements": ([["a", "b"], ["c", "d"]], [[0, 0], [1, 1]], 0, ["a", "d"]),
    "tf: slices": ([["a", "b"], ["c", "d"]], [[1], [0]], 0, [["c", "d"], ["a", "b"]]),
    "tf: batched index": (
        [["a", "b"], ["c", "d"]],
        [[[0, 0]], [[0, 1]]],
        0,
        [["a"], ["b"]],
    ),
    "tf: batch_dims": (
        [[["a0", "b0"], ["c0", "d0"]], [["a1", "b1"], ["c1", "d1"]]],
        [[[1]], [[0]]],
        1,
        [[["c0", "d0"]], [["a1", "b1"]]],
    ),
    "tf: batch_dims, elements": (
        [[["a0", "b0"], ["c0", "d0"]], [["a1", "b1"], ["c1", "d1"]]],
        [[[1, 0]], [[0, 1]]],
        1,
        [["c0"], ["b1"]],
    ),
    "onnx: 1": ([[0, 1], [2, 3]], [[0, 0], [1, 1]], 0, [0, 3]),
    "onnx: 2": ([[0, 1], [2, 3]], [[1], [0]], 0, [[2, 3], [0, 1]]),
    "onnx: 3": (
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
        [[0, 1], [1, 0]],
        0,
        [[2, 3], [4, 5]],
    ),
    "onnx: 4": (
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
        [[[0, 1]], [[1, 0]]],
        0,
        [[[2, 3]], [[4, 5]]],
    ),
    "onnx: 5": (
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
        [[1], [0]],
        1,
        [[2, 3], [4, 5]],
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_examples(name: str, device: torch.device) -> None:
    source, index, batch_dims, output = PUBLISHED[name]
    # Strings become numbers: their places in the source.
    letters = {str(letter): n for n, letter in enumerate(np.array(source).reshape(-1))}
    numbers = np.vectorize(lambda letter: letters[str(letter)])
    table = torch.from_numpy(numbers(np.array(source))).to(device)
    actual = torch_ops.gather_nd(table, torch.tensor(index, device=device), batch_dims)
    assert actual.tolist() == numbers(np.array(output)).tolist()


# ---- strides, sizes, the rest -------------------------------------------------------------------


def test_strided_sources_are_read_in_place(device: torch.device) -> None:
    base = values_for((3, 4, 5, 6, 2), device, torch.float32)
    for order in [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (1, 0, 2, 4, 3), (2, 4, 0, 1, 3)]:
        source = base.permute(order)[:, ::2]
        index = torch.stack(
            [torch.randint(size, (50,), device=device) for size in source.shape[:2]], -1
        )
        for view in (index, index.t().contiguous().t(), index[:1].expand(50, 2)):
            expected = source[view[:, 0], view[:, 1]]
            assert torch.equal(torch_ops.gather_nd(source, view), expected)


def test_many_rows_and_long_rows(device: torch.device) -> None:
    """Tiles of each size, which are cut by the number of words; rows that are cut as well."""
    for width, count in [
        (1, 3001),
        (3, 3001),
        (3, enough(device, 200_003, 3001)),
        (2, enough(device, 600_003, 3001)),
        (64, 3001),
        (5001, 3001),
    ]:
        # At odd places, so that words are no wider than elements.
        source = values_for((7, 3, width + 1), device, torch.bfloat16)[..., 1:]
        index = torch.stack([torch.randint(n, (count,), device=device) for n in (7, 3)], -1)
        expected = source[index[:, 0], index[:, 1]]
        assert torch.equal(torch_ops.gather_nd(source, index), expected), f"{width} {count}"


def test_many_rows_written(device: torch.device) -> None:
    for width, side in [(3, 30), (3, 500), (2, 800)]:
        table = values_for((side, side, width), device, torch.float32)
        rows = torch.randperm(side * side, device=device)[: -side // 2]
        places = torch.unravel_index(rows, (side, side))
        values = values_for((len(rows), width), device, torch.float32)
        written = torch_ops.index_put(table, places, values)
        assert torch.equal(written, table.index_put(places, values)), f"{width} {side}"


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
def test_elements_of_a_table_in_memory(device: torch.device, dtype: torch.dtype) -> None:
    """Tables that exceed the L2 cache of a GPU."""
    total = (2**28 if device.type == "cuda" else 2**22) // dtype.itemsize
    count = 400_003
    flat = torch.arange(total, device=device).to(dtype)
    places = torch.randint(total, (count,), device=device)
    places[0], places[-1] = 0, total - 1
    expected = flat[places]
    for coordinates in (2, 3, 4):
        source = flat.view(*(8, 16, 4)[: coordinates - 1], -1)
        columns = torch.unravel_index(places, source.shape)
        index = torch.stack(columns, -1)
        assert_same(torch_ops.gather_nd(source, index), expected, f"{coordinates}")
        assert_same(torch_ops.gather_nd(source, index.int()), expected, "int32")
        assert_same(torch_ops.gather_nd(source, index - 8 * 2**28, mode="wrap"), expected, "wrap")
        apart = [column - size for column, size in zip(columns, source.shape, strict=True)]
        assert_same(torch_ops.index(source, tuple(apart)), expected, "arrays apart, from the end")
        index[0, 0], index[-1, -1] = -9, source.shape[-1]
        filled = torch_ops.gather_nd(source, index, mode="fill", fill_value=7)
        assert_same(filled[1:-1], expected[1:-1], "fill")
        assert filled[[0, -1]].tolist() == [7, 7]

        def pick(index: Tensor = index, source: Tensor = source) -> None:
            torch_ops.gather_nd(source, index)
            torch_ops.check_errors()

        with pytest.raises(IndexError, match=rf"index\[(0, 0|{count - 1}, {coordinates - 1})\]"):
            pick()


@pytest.mark.sanitizer
def test_small_calls(device: torch.device) -> None:
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128):
        for tail in ((), (3,), (8,)):
            source = values_for((3, 2, *tail), device, dtype)
            index = torch.tensor([[2, 1], [0, 0], [2, 0]], device=device, dtype=torch.int32)
            assert torch.equal(torch_ops.gather_nd(source, index), source[[2, 0, 2], [1, 0, 0]])


def test_direct_pair() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="must be a CUDA tensor"):
            torch_ops._ext.index.forward(torch.ones(2, 2), torch.zeros(1, 2, dtype=torch.int64))
        return
    source = torch.arange(6.0, device="cuda").view(2, 3)
    index = torch.tensor([[1, 2], [1, 2]], device="cuda")
    rows = torch_ops._ext.index.forward(source, index)
    grad = torch_ops._ext.index.backward(torch.ones_like(rows), index, [2, 3])
    assert rows.tolist() == [5, 5]
    assert grad.tolist() == [[0, 0, 0], [0, 0, 2]]


# ---- ravel_multi_index --------------------------------------------------------------------------


def test_ravel_multi_index(device: torch.device) -> None:
    ravel = torch.ops.torch_ops.ravel_multi_index.default
    rows = torch.tensor([[0], [2]], device=device, dtype=torch.int16)
    columns = torch.tensor([3, 0, 1], device=device)
    places = ravel([rows, columns], [3, 4])
    assert places.dtype == torch.int32
    assert (
        places.cpu().numpy().tolist()
        == np.ravel_multi_index(
            np.broadcast_arrays(rows.cpu().numpy(), columns.cpu().numpy()), (3, 4)
        ).tolist()
    )
    assert ravel([rows, columns], [3, 2**40]).dtype == torch.int64
    assert ravel([rows - 1, columns], [2, 4], mode="fill").tolist() == [[7, 4, 5], [7, 4, 5]]
    assert ravel([rows, columns], [2, 4], mode="fill").tolist() == [[3, 0, 1], [8, 8, 8]]
    torch.library.opcheck(ravel, ([rows, columns], [3, 4]))
    batched = torch.vmap(lambda i: ravel([i, columns], [3, 4]))(rows)
    assert batched.tolist() == places.tolist()


# ---- errors -------------------------------------------------------------------------------------


def test_out_of_range(device: torch.device, sync_mode: None) -> None:
    source = torch.zeros(3, 4, 2, device=device)
    index = torch.tensor([[[0, 0], [2, 4]], [[1, 1], [0, 3]]], device=device)
    message = (
        r"gather_nd: index\[0, 1, 1\], for axis 1, is 4, out of range for an axis of size 4: "
        r"it must be between 0 and 3"
    )
    with pytest.raises(IndexError, match=message):
        torch_ops.gather_nd(source, index)
    with pytest.raises(IndexError, match=r"index\[0, 0\], for axis 0, is -1,"):
        torch_ops.gather_nd(source, torch.tensor([[-1, 0]], device=device))
    for at, entry in (([[0], [3]], "1, 0"), ([3], "0")):
        with pytest.raises(IndexError, match=rf"gather_nd: index\[{entry}\] is 3, out of range"):
            torch_ops.gather_nd(source, torch.tensor(at, device=device))
    with pytest.raises(IndexError, match="size 0: no entry is allowed"):
        torch_ops.gather_nd(source[:, :0], index)
    filled = torch_ops.gather_nd(source[:, :0], index, mode="fill", fill_value=7)
    assert filled.unique().tolist() == [7]


@needs("c++")
def test_parts(tmp_path: Path) -> None:
    """What the launcher for CUDA makes of calls that 32-bit arithmetic does not count."""
    program = tmp_path / "points_parts"
    source = Path(__file__).with_name("points_parts.cpp")
    output_of("c++", "-std=c++17", f"-I{ROOT / 'src'}", source, "-o", program)
    assert output_of(program) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gather_nd", "index", "index_put"])
def test_transposed_rows_of_more_than_two_to_the_31(device: torch.device, name: str) -> None:
    """Rows whose two axes no stride walks at once."""
    height, width = 65600, 32769
    down = (torch.arange(height, device=device) % 251).byte()
    along = (torch.arange(width, device=device) % 241).byte()
    source = (down[:, None] ^ along).t()[None, None]
    zeros = torch.zeros(1, dtype=torch.int64, device=device)
    if name == "gather_nd":
        rows = torch_ops.gather_nd(source, torch.stack([zeros, zeros], -1))
    elif name == "index":
        rows = torch_ops.index(source, (zeros, zeros))
    else:
        rows = torch.zeros_like(source)
        torch_ops.index_put_(rows, (zeros, zeros), (down ^ along[:, None])[None])
        rows = rows[0]
    assert rows.shape == source[0].shape
    # By the numbers: to walk the source, whose columns are its rows, takes half a minute.
    for begin in range(0, width, 1024):
        assert torch.equal(rows[0, begin : begin + 1024], down ^ along[begin : begin + 1024, None])


def test_bad_arguments(device: torch.device) -> None:
    source = torch.zeros(3, 4, device=device)
    index = torch.zeros(5, 2, dtype=torch.int64, device=device)
    with pytest.raises(TypeError, match="index must be uint8, int8, int16, int32 or int64"):
        torch_ops.gather_nd(source, index.float())
    with pytest.raises(TypeError, match="source must be a tensor, but a list"):
        torch_ops.gather_nd([1], index)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"has more coordinates \(3\) than source with shape"):
        torch_ops.gather_nd(source, index.new_zeros(5, 3))
    with pytest.raises(ValueError, match="at least one axis"):
        torch_ops.gather_nd(source, index[0, 0])
    with pytest.raises(ValueError, match="batch_dims must be between 0 and 1"):
        torch_ops.gather_nd(source, index, 2)
    with pytest.raises(ValueError, match="axis 0 of source with shape"):
        torch_ops.gather_nd(source, index[:, :1], 1)
    with pytest.raises(ValueError, match="mode must be"):
        torch_ops.gather_nd(source, index, mode="reflect")
    with pytest.raises(ValueError, match='fill_value is for mode="fill"'):
        torch_ops.gather_nd(source, index, fill_value=1)
    with pytest.raises(ValueError, match="fill_value must be an integer"):
        torch_ops.gather_nd(source.int(), index, mode="fill", fill_value=1.5)
    if device.type == "cuda":
        with pytest.raises(RuntimeError, match="must be on one device"):
            torch_ops.gather_nd(source, index.cpu())
