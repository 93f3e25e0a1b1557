"""gather_elements, take_along_dim and scatter_elements_add."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from gathering import bad_index, sum_tolerance, values_for
from hypothesis import assume, given
from hypothesis import strategies as st
from memory import peak_memory
from modes import (
    INDEX_DTYPES,
    MODES,
    fits_mode,
    gather_elements_by_mode,
    layouts,
    other_layout,
    random_index,
    scatter_elements_add_by_mode,
    seeds,
    sizes,
)
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from torch import Tensor

import torch_ops

# source, index, dim
SHAPES = [
    ((5,), (7,), 0),
    ((), (), 0),
    ((), (1,), -1),
    ((5,), (), 0),
    ((5, 3), (4, 3), 0),
    ((5, 3), (5, 2), 1),
    ((5, 3), (5, 2), -1),
    ((2, 5, 3), (2, 6, 3), 1),
    ((2, 5, 3), (1, 6, 2), -2),
    ((2, 3, 4, 2), (2, 3, 5, 2), 2),
    ((3, 2, 2, 3, 2), (3, 2, 4, 2, 2), 2),
    ((40, 33), (70, 33), 0),
    ((3, 200), (3, 900), 1),
    ((5, 3), (0, 3), 0),
    ((0, 3), (0, 3), 0),
    ((5, 0), (4, 0), 0),
    ((5, 3), (0,), 1),  # an empty index may have any shape
    ((5, 3), (9, 2, 0), -1),
    ((5, 3), (0, 7), 0),
    ((), (0, 2), 0),
]
# Where whole rows move: the index has length 1, or is expanded.
BROADCAST = [
    ((2, 5, 3), (2, 6, 1), 1),
    ((2, 5, 3), (1, 6, 1), 1),
    ((1, 5, 3), (2, 6, 3), 1),
    ((4, 1, 5, 3), (1, 2, 6, 1), 2),
    ((5, 4), (3, 1), 0),
    ((5, 64), (3, 1), 0),
    ((3, 5), (1, 4), -1),
    ((2, 5, 1), (2, 6, 3), 1),
    ((3, 1, 2), (1, 4, 2), 0),
]


def index_of(
    shape: tuple[int, ...], size: int, device: torch.device, mode: str = "raise"
) -> Tensor:
    return random_index(shape, size, torch.int64, mode, seed=sum(shape)).to(device)


def length(shape: tuple[int, ...], dim: int) -> int:
    return shape[dim] if shape else 1


def gather_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for shape, picks, dim in SHAPES:
        source = values_for(shape, device, dtype)
        size = length(shape, dim)
        yield Sample((source, index_of(picks, size, device), dim))
        if size > 0:
            for mode in ("wrap", "clip", "fill"):
                index = index_of(picks, size, device, mode)
                yield Sample((source, index, dim), {"mode": mode})


def smooth_gather_samples(device: torch.device) -> Iterator[Sample]:
    for shape, picks, dim in SHAPES[:11]:
        source = values_for(shape, device, torch.float64)
        index = index_of(picks, length(shape, dim), device, "fill")
        yield Sample((source, index, dim), {"mode": "fill", "fill_value": 1.5})
    source = values_for((3, 2), device, torch.complex128)
    yield Sample((source, index_of((2, 2), 3, device), 0))


def take_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for shape, picks, dim in BROADCAST:
        source = values_for(shape, device, dtype)
        yield Sample((source, index_of(picks, shape[dim], device, "from_end"), dim))
        yield Sample((source, index_of(picks, shape[dim], device, "wrap"), dim), {"mode": "wrap"})
    yield Sample((values_for((2, 3), device, dtype), index_of((4, 2), 6, device, "from_end")))


def smooth_take_samples(device: torch.device) -> Iterator[Sample]:
    for sample in take_samples(device, torch.float64):
        if sample.args[0].numel() <= 50:
            yield sample


def add_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for shape, picks, dim in SHAPES:
        values = values_for(picks, device, dtype)
        size = length(shape, dim)
        yield Sample((values, index_of(picks, size, device), shape, dim))
        if size > 0:
            for mode in ("wrap", "fill"):
                index = index_of(picks, size, device, mode)
                yield Sample((values, index, shape, dim), {"mode": mode})
    # Values beyond the index are left out.
    values = values_for((4, 3, 5), device, dtype)
    yield Sample((values, index_of((2, 3, 4), 6, device), (6, 4, 4), 0))


def smooth_add_samples(device: torch.device) -> Iterator[Sample]:
    for sample in add_samples(device, torch.float64):
        if 0 < sample.args[0].numel() <= 60 and sample.kwargs.get("mode") != "wrap":
            yield sample


def sized_gather(device: torch.device, size: int) -> Sample:
    source = values_for((size, size + 1, 3), device, torch.float32)
    return Sample((source, index_of((size, size + 2, 3), size + 1, device), 1))


def sized_add(device: torch.device, size: int) -> Sample:
    values = values_for((size + 2, 3), device, torch.float32)
    return Sample((values, index_of((size + 2, 3), 5, device), (5, 3), 0))


def bad_gather(device: torch.device) -> Iterator[Sample]:
    source = values_for((2, 5, 3), device, torch.float32)
    for index in bad_index(index_of((2, 6, 3), 5, device), -9):
        yield Sample((source, index, 1))
    yield Sample((source, index_of((2, 6), 5, device), 1))


def bad_add(device: torch.device) -> Iterator[Sample]:
    values = values_for((2, 6, 3), device, torch.float32)
    for index in bad_index(index_of((2, 6, 3), 5, device), 5):
        yield Sample((values, index, (2, 5, 3), 1))
    yield Sample((values, index_of((2, 7, 3), 5, device), (2, 5, 3), 1))


def take_along_dim_reference(
    source: Tensor, index: Tensor, dim: int | None = None, *, mode: str = "raise", **options: Any
) -> Tensor:
    options["mode"] = "from_end" if mode == "raise" else mode
    if dim is None:
        return gather_elements_by_mode(source.reshape(-1), index.reshape(-1), 0, **options)
    shape = list(
        torch.broadcast_shapes(
            *(
                tuple(1 if d == dim % source.dim() else n for d, n in enumerate(t.shape))
                for t in (source, index)
            )
        )
    )
    at = dim % source.dim()
    from_shape, picks = [*shape], [*shape]
    from_shape[at], picks[at] = source.shape[at], index.shape[at]
    return gather_elements_by_mode(source.expand(from_shape), index.expand(picks), dim, **options)


OPS = [
    Op(
        "gather_elements",
        torch_ops.gather_elements,
        gather_elements_by_mode,
        gather_samples,
        smooth_samples=smooth_gather_samples,
        sized=sized_gather,
        bad=bad_gather,
        torchs=lambda source, index, dim, **_: torch.gather(source, dim, index.clamp(0, 0)),
        node="GatherElementsBackward",
    ),
    Op(
        "take_along_dim",
        torch_ops.take_along_dim,
        take_along_dim_reference,
        take_samples,
        smooth_samples=smooth_take_samples,
        sized=sized_gather,
        bad=bad_gather,
        node="GatherElementsBackward",
    ),
    Op(
        "scatter_elements_add",
        torch_ops.scatter_elements_add,
        scatter_elements_add_by_mode,
        add_samples,
        sum_tolerance,
        dtypes=(*FLOATS, torch.complex64),
        sums=True,
        smooth_samples=smooth_add_samples,
        sized=sized_add,
        bad=bad_add,
        node="ScatterElementsAddBackward",
    ),
]


class TestChecks(OpChecks):
    pass


# ---- Against torch ------------------------------------------------------------------------------


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_agrees_with_torch(device: torch.device, index_dtype: torch.dtype) -> None:
    """On work for many blocks: the element kernel, its transpose, and rows."""
    for shape, picks, dim in [
        ((200, 70), (3000, 70), 0),
        ((8, 100, 40), (8, 700, 40), 1),
        ((8, 100, 3), (8, 3000, 3), 1),
        ((64, 200), (64, 2001), 1),
        ((200,), (50_001,), 0),
        ((200, 3), (40_001, 3), 0),  # few columns
    ]:
        source = values_for(shape, device, torch.float32)
        size = min(shape[dim], torch.iinfo(index_dtype).max)
        index = index_of(picks, size, device).to(index_dtype)
        expected = torch.gather(source, dim, index.long())
        assert_same(torch_ops.gather_elements(source, index, dim), expected, f"{shape}")
        values = values_for(picks, device, torch.float32)
        exact = torch.zeros(shape, dtype=torch.float64, device=device)
        exact.scatter_add_(dim, index.long(), values.double())
        for way in (None, True):
            sums = torch_ops.scatter_elements_add(values, index, shape, dim, deterministic=way)
            # Up to 250 numbers near 1 that cancel.
            torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-3)


def test_duplicates_meet(device: torch.device) -> None:
    """All to one element, where lanes of a warp add up what they share; and 16 bits."""
    for width in (1, 2, 5, 40):
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int16):
            values = torch.ones(5000, width, dtype=dtype, device=device)
            index = torch.zeros(5000, width, dtype=torch.int32, device=device)
            sums = torch_ops.scatter_elements_add(values, index, (3, width), 0)
            exact = torch.tensor(5000).to(dtype).item()
            assert sums.tolist() == [[exact] * width, [0] * width, [0] * width], f"{width}"


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str
)
def test_most_entries_of_a_column_are_one(device: torch.device, dtype: torch.dtype) -> None:
    """Blocks of such entries add them up first. Integers, whose sums are exact in any order."""
    for batches, rows, columns in [
        *((2, 700, columns) for columns in (1, 3, 16, 33, 64, 100, 513)),
        (1, 3, 20_001),  # columns too short to fill a lane
        (1, 9, 20_001),
        (1, 40_001, 2),
    ]:
        picks, shape = (batches, rows, columns), (batches, 50, columns)
        index = torch.randint(50, picks, device=device)
        one = torch.randint(50, (batches, 1, columns), device=device)
        index = torch.where(torch.rand(picks, device=device) < 0.9, one, index)
        values = torch.randint(-8, 9, picks, device=device).to(dtype)
        exact = torch.zeros(shape, dtype=torch.float64, device=device)
        exact.scatter_add_(1, index, values.double())
        sums = torch_ops.scatter_elements_add(values, index, shape, 1)
        assert_same(sums, exact.to(dtype), f"{picks}")


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_few_elements_of_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    """CUDA adds them up by their places; the last of them is alone in a pair of two."""
    shape = (4099, 2051)
    for count in (3, 20):
        index = torch.randint(4099, (count, 2051), device=device)
        index[:, ::3] = 4098
        values = values_for((count, 2051), device, dtype)
        exact = torch.zeros(shape, dtype=torch.float64, device=device)
        exact.scatter_add_(0, index, values.double())
        sums = torch_ops.scatter_elements_add(values, index, shape, 0)
        torch.testing.assert_close(
            sums.double(), exact, rtol=0.55 * torch.finfo(dtype).eps, atol=1e-5
        )
        index[1, 2] = 4099
        with pytest.raises(IndexError, match=r"index\[1, 2\] is 4099"):  # noqa: PT012
            torch_ops.scatter_elements_add(values, index, shape, 0)
            torch_ops.check_errors()


def test_in_order(device: torch.device) -> None:
    index = index_of((3000, 5), 20, device)
    values = values_for((3000, 5), device, torch.float32)

    def add(values: Tensor) -> Tensor:
        return torch_ops.scatter_elements_add(values, index, (20, 5), 0, deterministic=True)

    first = add(values)
    for _ in range(3):
        assert_same(add(values), first, "again")
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(torch_ops.scatter_elements_add(values, index, (20, 5), 0), first, "flag")
    finally:
        torch.use_deterministic_algorithms(False)


def test_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    for shape in ((9000, 70), (100_000, 2)):
        index = index_of(shape, 50, torch.device("cpu"))
        values = values_for(shape, torch.device("cpu"), torch.float32)
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(torch_ops.scatter_elements_add(values, index, (50, shape[1]), 0))
        torch.set_num_threads(threads)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_nothing_is_copied(device: torch.device) -> None:
    """An expanded index or source takes no memory of its own."""
    if device.type == "cpu":
        pytest.skip("torch does not count the memory of the CPU")
    source = torch.ones(64, 1000, 64, device=device)
    index = torch.zeros(64, 500, 1, dtype=torch.int64, device=device)
    elements = torch.zeros(64, 500, 64, dtype=torch.int16, device=device)
    for call in (
        lambda: torch_ops.take_along_dim(source, index, 1),
        lambda: torch_ops.take_along_dim(source[:1], elements, 1),
        lambda: torch_ops.gather_elements(source.transpose(0, 2), elements.transpose(0, 2), 1),
    ):
        assert peak_memory(device, call) <= call().nbytes + 4096


def test_sorts(device: torch.device) -> None:
    source = values_for((4, 5, 6), device, torch.float32)
    for dim in (0, 1, 2, -1):
        actual = torch_ops.take_along_dim(source, source.argsort(dim), dim)
        assert_same(actual, source.sort(dim).values, f"{dim}")


def test_unaligned_complex(device: torch.device) -> None:
    """Complex numbers may begin where their parts do."""
    parts = values_for((2 * 15 + 1,), device, torch.float64)
    halves = parts[1:].view(15, 2)
    source = torch.view_as_complex(halves.clone()).view(5, 3)
    index = torch.tensor([[1, 7, 0]], device=device)
    output = torch_ops.gather_elements(source, index, 0, mode="fill", fill_value=1 + 2j)
    assert output.tolist() == [[source[1, 0].item(), 1 + 2j, source[0, 2].item()]]


@pytest.mark.parametrize("in_dims", [(0, 0), (1, None), (None, 1), (-1, 0)])
def test_vmap(device: torch.device, in_dims: tuple[int | None, int | None]) -> None:
    for shape, picks, dim in [((4, 5), (4, 3), 1), ((4, 5), (6, 5), -2), ((), (), 0)]:
        data = [values_for((3, *shape), device, torch.float64)]
        data += [torch.stack([index_of(picks, length(shape, dim), device)] * 3)]
        data += [values_for((3, *picks), device, torch.float64)]
        hidden = [
            t[0] if d is None else t.movedim(0, d if t.dim() > 1 else 0)
            for t, d in zip(data, (*in_dims, in_dims[0]), strict=True)
        ]
        dims = [
            None if d is None else (d if data[i].dim() > 1 else 0)
            for i, d in enumerate((*in_dims, in_dims[0]))
        ]
        gather = partial(torch_ops.gather_elements, dim=dim)
        actual = torch.vmap(lambda s, i, f=gather: f(s, i), tuple(dims[:2]))(*hidden[:2])
        for n in range(3):
            expected = gather(data[0][n if dims[0] is not None else 0], data[1][n])
            assert_same(actual[n], expected, f"{shape}")
        add = partial(torch_ops.scatter_elements_add, size=shape, dim=dim)
        sums = torch.vmap(lambda v, i, f=add: f(v, i), (dims[2], dims[1]))(hidden[2], hidden[1])
        for n in range(3):
            expected = add(data[2][n if dims[2] is not None else 0], data[1][n])
            torch.testing.assert_close(sums[n], expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gather", "add"])
def test_more_than_two_to_the_31(device: torch.device, name: str) -> None:
    """64-bit offsets, and calls of several launches: elements beyond 2^31."""
    columns = 2**30 + 5
    index = torch.zeros(1, columns, dtype=torch.uint8, device=device)
    index[0, -1] = 1
    picks = index.expand(2, columns)
    if name == "gather":
        source = torch.tensor([[3], [4]], dtype=torch.uint8, device=device).expand(2, columns)
        output = torch_ops.gather_elements(source, picks, 0)
        assert output.numel() > 2**31
        assert output[:, -2:].tolist() == [[3, 4], [3, 4]]
        assert int(output[1, :-1].max()) == 3
    elif device.type == "cuda":  # the CPU takes a minute and 11 GB
        values = torch.ones(1, 1, dtype=torch.uint8, device=device).expand(2, columns)
        sums = torch_ops.scatter_elements_add(values, picks, (2, columns), 0)
        assert sums[:, -2:].tolist() == [[2, 0], [0, 2]]
        assert int(sums[0, :-1].min()) == 2


# ---- Bad input ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of sizes that become constants, and of jit.trace itself
def test_traced_by_jit(device: torch.device) -> None:
    def transposed(like: Tensor, values: Tensor, index: Tensor) -> Tensor:
        return torch_ops.scatter_elements_add(values, index, like.shape, 0)

    like, values = torch.zeros(3, 4, device=device), torch.rand(2, 4, device=device)
    index = torch.zeros(2, 4, dtype=torch.int64, device=device)
    traced = torch.jit.trace(transposed, (like, values, index))
    assert_same(traced(like, values, index + 2), transposed(like, values, index + 2), "traced")


def test_bad_arguments(device: torch.device) -> None:
    source = torch.zeros(4, 5, device=device)
    index = torch.zeros(4, 5, dtype=torch.int64, device=device)
    for call, error, message in [
        (lambda: torch_ops.gather_elements(source, index, 2), IndexError, "dim must be between -2"),
        (
            lambda: torch_ops.gather_elements(source, index[0], 0),
            ValueError,
            r"index must have as many axes as source, but its shape is \[5\] and.*\[4, 5\]",
        ),
        (
            lambda: torch_ops.gather_elements(source[:2], index, 1),
            ValueError,
            r"index with shape \[4, 5\] must not be longer than source with shape \[2, 5\].*axis 0",
        ),
        (
            lambda: torch_ops.take_along_dim(source, index[:3], 1),
            ValueError,
            r"source with shape \[4, 5\] and index with shape \[3, 5\].*differ on axis 0",
        ),
        (
            lambda: torch_ops.take_along_dim(source, index[0], 0),
            ValueError,
            r"the same number of axes, but their shapes are \[4, 5\] and \[5\]",
        ),
        (lambda: torch_ops.gather_elements(source, source, 0), TypeError, "index must be uint8"),
        (lambda: torch_ops.gather_elements(source, index > 0, 0), TypeError, "index must be uint8"),
        (lambda: torch_ops.gather_elements(source, [0], 0), TypeError, "index must be a tensor"),
        (
            lambda: torch_ops.scatter_elements_add(source, index, (4,), 0),
            ValueError,
            "index must have as many axes as the result",
        ),
        (
            lambda: torch_ops.scatter_elements_add(source, index, (4, 4), 0),
            ValueError,
            r"must not be longer than the result with shape \[4, 4\].*axis 1",
        ),
        (
            lambda: torch_ops.scatter_elements_add(source[:3], index, (4, 5), 0),
            ValueError,
            r"must not be longer than values with shape \[3, 5\], but it is on axis 0",
        ),
        (
            lambda: torch_ops.scatter_elements_add(source, index, (-1, 5), 0),
            ValueError,
            "size must not be negative",
        ),
        (
            lambda: torch_ops.scatter_elements_add(source > 0, index, (4, 5), 0),
            TypeError,
            "values must be of an integer type",
        ),
        (
            lambda: torch_ops.gather_elements(source, index.to("meta"), 0),
            RuntimeError,
            "one device",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("name", ["gather", "take", "add"])
def test_out_of_range(device: torch.device, name: str) -> None:
    index = torch.zeros(4, 5, dtype=torch.int32, device=device)
    index[2, 3] = 7
    source = torch.ones(4, 5, device=device)

    def call(index: Tensor) -> Tensor:
        if name == "gather":
            return torch_ops.gather_elements(source, index, 0)
        if name == "take":
            return torch_ops.take_along_dim(source, index[:, 3:4], 0)
        return torch_ops.scatter_elements_add(source, index, (4, 5), 0)

    names = {
        "take": r"take_along_dim: index\[2, 0\]",
        "add": r"scatter_elements_add: index\[2, 3\]",
    }
    message = names.get(name, r"gather_elements: index\[2, 3\]") + " is 7, out of range.*size 4"
    if device.type == "cpu":
        with pytest.raises(IndexError, match=message):
            call(index)
    else:
        output = call(index)
        with pytest.raises(IndexError, match=message):
            torch_ops.check_errors()
        assert output.sum() == (19 if name != "take" else 15)
    index[2, 3] = 0
    call(index)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for shape, picks, dim in SHAPES:
        source = values_for(shape, device, torch.float32).requires_grad_()
        index = index_of(
            picks, length(shape, dim), device, "fill" if length(shape, dim) else "raise"
        )
        for way in (False, True):
            output = torch_ops.gather_elements(source, index, dim, mode="fill", fill_value=0)
            sums = torch_ops.scatter_elements_add(
                output, index, shape, dim, mode="fill", deterministic=way
            )
            sums.sum().backward()


# ---- Any call -----------------------------------------------------------------------------------


@st.composite
def element_calls(draw: st.DrawFn, raises: str = "raise") -> dict[str, Any]:
    """`raises`: the mode of random_index by which entries are drawn for mode "raise"."""
    shape = tuple(draw(st.lists(sizes, min_size=1, max_size=4)))
    axis = draw(st.integers(0, len(shape) - 1))
    picks = tuple(
        draw(sizes) if d == axis else draw(st.integers(0, size)) for d, size in enumerate(shape)
    )
    mode = draw(st.sampled_from(MODES))
    assume(fits_mode(shape[axis], torch.Size(picks).numel(), mode))
    # Along some axes all entries are the same: there rows may move as a whole.
    same = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    stored = tuple(min(n, 1) if same[d] and d != axis else n for d, n in enumerate(picks))
    dtype = draw(st.sampled_from(INDEX_DTYPES))
    entries = raises if mode == "raise" else mode
    index = random_index(stored, shape[axis], dtype, entries, draw(seeds))
    index = other_layout(index, draw(layouts))
    return {
        "shape": shape,
        "stored": index,
        "picks": picks,
        "dim": draw(st.sampled_from([axis, axis - len(shape)])),
        "mode": mode,
        "layout": draw(layouts),
    }


GATHERED = (torch.uint8, torch.float16, torch.float32, torch.complex64, torch.complex128)


@given(call=element_calls(), dtype=st.sampled_from(GATHERED), fill=st.sampled_from([None, 0, 3]))
def test_any_gather_elements(
    device: torch.device, call: dict[str, Any], dtype: torch.dtype, fill: int | None
) -> None:
    source = values_for(call["shape"], torch.device("cpu"), dtype)
    options: dict[str, Any] = {"mode": call["mode"]}
    if call["mode"] == "fill":
        options["fill_value"] = fill
    index = call["stored"].expand(call["picks"])
    expected = gather_elements_by_mode(source, index, call["dim"], **options)
    actual = torch_ops.gather_elements(
        other_layout(source, call["layout"]).to(device),
        call["stored"].to(device).expand(call["picks"]),
        call["dim"],
        **options,
    )
    assert_same(actual, expected, f"{call}")
    assert actual.is_contiguous()


@given(call=element_calls("from_end"), expand=st.lists(st.booleans(), min_size=4, max_size=4))
def test_any_take_along_dim(device: torch.device, call: dict[str, Any], expand: list[bool]) -> None:
    """Axes of length one on either side."""
    axis = call["dim"] % len(call["shape"])
    shape = list(call["picks"])
    shape[axis] = call["shape"][axis]
    for d, single in enumerate(expand[: len(shape)]):
        if single and d != axis and shape[d] > 0:
            shape[d] = 1
    source = values_for(tuple(shape), torch.device("cpu"), torch.float32)
    options = {"mode": call["mode"]}
    # Where both have length one, so has the result.
    expected = take_along_dim_reference(source, call["stored"], call["dim"], **options)
    actual = torch_ops.take_along_dim(
        other_layout(source, call["layout"]).to(device),
        call["stored"].to(device),
        call["dim"],
        **options,
    )
    assert_same(actual, expected, f"{call}")


@given(call=element_calls(), dtype=st.sampled_from([torch.float32, torch.float16, torch.int32]))
def test_any_scatter_elements_add(
    device: torch.device, call: dict[str, Any], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(sum(call["picks"]))
    whole = torch.randint(-4, 4, call["picks"], generator=generator)  # exact in any order
    index = call["stored"].expand(call["picks"])
    options = {"mode": call["mode"]}
    expected = scatter_elements_add_by_mode(whole, index, call["shape"], call["dim"], **options)
    for way in (None, True):
        actual = torch_ops.scatter_elements_add(
            other_layout(whole.to(dtype), call["layout"]).to(device),
            call["stored"].to(device).expand(call["picks"]),
            call["shape"],
            call["dim"],
            deterministic=way,
            **options,
        )
        assert_same(actual + 0, expected.to(dtype) + 0, f"{call}")  # no zero is negative
