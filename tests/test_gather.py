from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from activations import run_tests_with
from gathering import CASES, Case, bad_index, gather_reference, index_for, values_for
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from support.layers import Layer
from torch import Tensor

import torch_ops

INDEX_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)
ALL_DTYPES = (
    *FLOATS,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex64,
    torch.complex128,
)


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        source = values_for(case.source, device, dtype)
        yield Sample((source, index_for(case, device)), case.kwargs)


def batch_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        if case.dim is None and case.batch_dims == len(case.index) - 1:
            yield Sample((values_for(case.source, device, dtype), index_for(case, device)))


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for case in CASES:
        if torch.Size(case.source).numel() <= 100:
            source = values_for(case.source, device, torch.float64)
            yield Sample((source, index_for(case, device)), case.kwargs)
    case = Case((2, 3, 2), (2, 2), batch_dims=1)
    source = values_for(case.source, device, torch.complex128)
    yield Sample((source, index_for(case, device)), case.kwargs)


def smooth_batch_samples(device: torch.device) -> Iterator[Sample]:
    for case in (Case((2, 4, 3), (2, 5), batch_dims=1), Case((4,), (3,))):
        yield Sample((values_for(case.source, device, torch.float64), index_for(case, device)))


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, size + 1, 3), (size, size + 2), batch_dims=1)
    source = values_for(case.source, device, torch.float32)
    return Sample((source, index_for(case, device)), case.kwargs)


def sized_batch(device: torch.device, size: int) -> Sample:
    return Sample(sized(device, size).args)


def bad_batch(device: torch.device) -> Iterator[Sample]:
    case = Case((2, 7, 3), (2, 5), batch_dims=1)
    source = values_for(case.source, device, torch.float32)
    for index in bad_index(index_for(case, device), 7):
        yield Sample((source, index))
    yield Sample((source, torch.zeros(3, 5, dtype=torch.int64, device=device)))


def bad(device: torch.device) -> Iterator[Sample]:
    for sample in bad_batch(device):
        yield Sample(sample.args, {"batch_dims": 1})
    yield Sample((torch.ones(2, 3, device=device), torch.tensor([0], device=device), 2))


def batch_gather_reference(source: Tensor, index: Tensor) -> Tensor:
    return gather_reference(source, index, batch_dims=index.dim() - 1)


# A copy of elements is exact.
OPS = [
    Op(
        "gather",
        torch_ops.gather,
        gather_reference,
        samples,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="GatherBackward",
    ),
    Op(
        "batch_gather",
        torch_ops.batch_gather,
        batch_gather_reference,
        batch_samples,
        smooth_samples=smooth_batch_samples,
        sized=sized_batch,
        bad=bad_batch,
        node="GatherBackward",
    ),
]


def layer_inputs(device: torch.device) -> tuple[Tensor, Tensor]:
    case = Case((2, 7, 3), (2, 5), batch_dims=1)
    return values_for(case.source, device, torch.float32), index_for(case, device)


TWO_INPUTS = {"sequential": "it has two inputs, and torch no layer of it"}
LAYERS = [
    Layer(
        torch_ops.Gather,
        layer_inputs,
        (
            ({"batch_dims": 1}, False),
            ({"dim": 1, "mode": "clip"}, False),
            ({"dim": -2, "mode": "fill", "fill_value": 2.5}, False),
        ),
        exempt=TWO_INPUTS,
    ),
    Layer(
        torch_ops.BatchGather,
        layer_inputs,
        (({}, False), ({"mode": "wrap"}, False)),
        exempt=TWO_INPUTS,
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
def test_every_dtype(device: torch.device, dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    for case in CASES:
        if case.source[case.axis] > torch.iinfo(index_dtype).max:
            continue
        source = values_for(case.source, device, dtype)
        index = index_for(case, device, index_dtype)
        actual = torch_ops.gather(source, index, **case.kwargs)
        assert actual.is_contiguous()
        # NumPy has no bfloat16, and all of its values are float32 values.
        table = source.cpu().float() if dtype == torch.bfloat16 else source.cpu()
        expected = gather_reference(table, index.cpu(), **case.kwargs).to(dtype)
        assert_same(actual, expected, str(case))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32])
def test_dtypes_without_arithmetic(device: torch.device, dtype: torch.dtype) -> None:
    """Whatever torch stores can be gathered: compared as bytes."""
    source = torch.arange(48, dtype=torch.uint8, device=device).view(dtype)
    index = torch.tensor([3, 0, 3, 11], device=device)
    source = source[: source.numel() // 12 * 12].view(12, -1)
    actual = torch_ops.gather(source, index)
    assert torch.equal(actual.view(torch.uint8), source.view(torch.uint8)[index])


def test_symbolic_trace(device: torch.device) -> None:
    """torch.fx passes proxies, which are no tensors."""
    traced = torch.fx.symbolic_trace(torch_ops.BatchGather())
    source, index = torch.ones(2, 3, device=device), torch.zeros(2, 1, dtype=torch.int64)
    assert traced(source, index.to(device)).tolist() == [[1], [1]]


def test_conjugate_and_negative_views(device: torch.device) -> None:
    source = values_for((5, 3), device, torch.complex64)
    index = torch.tensor([4, 0], device=device)
    for view in (source.conj(), source.conj().imag):
        assert torch.equal(torch_ops.gather(view, index), view.clone()[index])


def test_agrees_with_torch(device: torch.device) -> None:
    source = values_for((4, 50, 6), device, torch.float32)
    index = torch.randint(50, (4, 20), device=device)
    expanded = torch.gather(source, 1, index[:, :, None].expand(4, 20, 6))
    assert torch.equal(torch_ops.batch_gather(source, index), expanded)
    assert torch.equal(torch_ops.gather(source, index[0], 1), source.index_select(1, index[0]))


def test_strided_tables_are_read_in_place(device: torch.device) -> None:
    """A transposed source with many axes; each joint stride, and none."""
    base = values_for((3, 4, 5, 6, 2), device, torch.float32)
    index = torch.tensor([1, 0, 2, 2], device=device)
    for order in [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (1, 0, 2, 4, 3), (2, 4, 0, 1, 3)]:
        source = base.permute(order)
        for dim in range(5):
            index = index.clamp(max=source.shape[dim] - 1)
            expected = source.index_select(dim, index)
            assert torch.equal(torch_ops.gather(source, index, dim), expected)


def test_empty_tables_of_any_strides(device: torch.device) -> None:
    """Of axes that no one stride walks, as an empty one's copy has them too."""
    source = torch.ones(4, 3, 5, 2, device=device)[:0].transpose(1, 2)
    index = torch.tensor([0, 1], device=device)
    for mode in ("raise", "wrap", "clip", "fill", "unchecked"):
        assert torch_ops.gather(source, index, 1, mode=mode).shape == (0, 2, 3, 2)
    if device.type == "cpu":  # on CUDA nobody looks at an index that has nothing to pick
        with pytest.raises(IndexError, match="9, out of range for an axis of size 5"):
            torch_ops.gather(source, torch.tensor([9]), 1)
    values = torch.ones(0, 2, 3, 4, dtype=torch.float64, device=device, requires_grad=True)
    output = torch_ops.scatter_add(values, index, 5, 1, mode="wrap")
    (output.permute(0, 1, 3, 2) * torch.ones(0, 5, 4, 3, device=device)).sum().backward()
    assert values.grad.shape == values.shape
    no_index = torch.zeros(2, 3, 0, dtype=torch.int64, device=device).transpose(0, 1)
    assert torch_ops.gather(torch.ones(4, device=device), no_index).shape == (3, 2, 0)


def test_gradient_saves_the_index_alone(device: torch.device) -> None:
    source = values_for((6, 3), device, torch.float32).requires_grad_()
    leaf = source * 1
    index = torch.tensor([5, 0, 5], device=device)
    output = torch_ops.gather(leaf, index)
    with torch.no_grad():
        leaf.zero_()  # allowed: the backward needs no source
    output.sum().backward()
    assert source.grad.sum(1).tolist() == [3, 0, 0, 0, 0, 6]

    output = torch_ops.gather(source, index)
    index.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_of_many_duplicates_in_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    """Summed in float32 and rounded once; adding in 16 bits would stop growing at 256 or 2048."""
    source = torch.zeros(2, 3, device=device, dtype=dtype, requires_grad=True)
    index = torch.zeros(10_000, dtype=torch.int64, device=device)
    torch_ops.gather(source, index).sum().backward()
    assert source.grad[0].tolist() == [torch.tensor(10_000).to(dtype).item()] * 3
    assert source.grad[1].tolist() == [0, 0, 0]


def test_paths() -> None:
    """The kernel is chosen from sizes alone."""
    from torch_ops._ext.gather import path

    sizes = {"axis_size": 1000, "entries": 10_000, "shared_bytes": 96 * 1024, "cache_bytes": 10**7}
    assert path(**sizes, inner=4, word_bytes=16) == "flat"
    assert path(**sizes, inner=4, word_bytes=16, index_stride=2) == "rows"  # gaps in the index
    assert path(**sizes, inner=2, word_bytes=4) == "flat"
    assert path(**sizes, inner=2, word_bytes=8) == "short"
    assert path(**sizes, inner=3, word_bytes=4) == "short"
    assert path(**sizes, inner=3, word_bytes=4, index_stride=2) == "rows"
    assert path(**sizes, inner=4, word_bytes=4, index_stride=2) == "streamed"
    # Up to so many words of a table that the cache holds, or of one that it does not.
    many = {**sizes, "entries": 10**6}
    for word_bytes, cached, most in [(1, 24, 24), (2, 128, 64), (4, 128, 48), (8, 48, 12)]:
        for axis_size, words in [(1000, cached), (10**6, most)]:
            rows = {**many, "axis_size": axis_size, "word_bytes": word_bytes}
            assert path(**rows, inner=words) == "short"
            assert path(**rows, inner=words + 1) == "streamed"
    # A cache that holds the table, and rows that are picked four times, each for itself.
    rows = {"axis_size": 10**5, "inner": 100, "word_bytes": 4, "shared_bytes": 96 * 1024}
    assert path(**rows, entries=10**5, cache_bytes=4 * 10**7) == "short"
    assert path(**rows, entries=4 * 10**5, cache_bytes=1000) == "short"
    assert path(**rows, entries=4 * 10**5 - 1, cache_bytes=4 * 10**7 - 1) == "streamed"
    few = {**sizes, "axis_size": 10**7, "entries": 2048}
    assert path(**few, inner=256, word_bytes=4) == "short"
    assert path(**few, inner=257, word_bytes=4) == "streamed"
    assert path(**sizes, inner=2**30 + 1, word_bytes=1) == "rows"  # cut into parts
    assert path(**sizes, inner=1, word_bytes=16) == "flat"
    assert path(**{**sizes, "entries": 2**31}, inner=1, word_bytes=16) == "rows"  # beyond 32 bits
    large = {**sizes, "axis_size": 10**7}
    assert path(**large, inner=1, word_bytes=4) == "elements"
    assert path(**{**large, "entries": 2**24}, inner=1, word_bytes=2) == "elements"
    assert path(**{**large, "entries": 4_000}, inner=1, word_bytes=4) == "flat"  # less than a block
    assert path(**large, inner=1, word_bytes=1) == "flat"
    assert path(**large, inner=1, word_bytes=4, index_stride=2) == "rows"


def test_staged_where_it_pays() -> None:
    """Elements come from shared memory where that is faster: the cases are measured ones."""
    from torch_ops._ext.gather import path

    h200 = {"inner": 1, "shared_bytes": 227 * 1024, "cache_bytes": 60 * 2**20}

    def of(batches: int, axis_size: int, entries: int, word_bytes: int = 4, **device: int) -> str:
        sizes = {"batches": batches, "axis_size": axis_size, "entries": entries}
        return path(**sizes, word_bytes=word_bytes, **{**h200, **device})

    assert of(64, 1024, 16384) == "staged"
    assert of(4096, 1024, 16384) == "staged"
    assert of(64, 65536, 2**20) == "staged"  # most of the table
    assert of(64, 65536, 2**20, word_bytes=2) == "staged"
    assert of(1, 65536, 2**24) == "staged"  # one table for all multiprocessors
    assert of(1, 1024, 2**24) == "flat"  # the L1 cache does as well
    assert of(1, 65536, 2**20) == "flat"  # each block would copy it
    assert of(64, 1024, 256) == "flat"
    assert of(64, 262144, 2**20) == "flat"  # too large a part is not in shared memory
    assert of(64, 1024, 16384, shared_bytes=1024) == "flat"  # no room
    assert of(1, 1, 1) == "flat"


def test_modules(device: torch.device) -> None:
    source = values_for((2, 7, 3), device, torch.float32)
    index = torch.tensor([[6, 0], [1, 1]], device=device)
    layer = torch_ops.Gather(batch_dims=1)
    assert repr(layer) == "Gather(dim=None, batch_dims=1)"
    assert torch.equal(layer(source, index), torch_ops.batch_gather(source, index))
    assert torch.equal(torch_ops.BatchGather()(source, index), layer(source, index))


def test_function_class(device: torch.device) -> None:
    source = values_for((2, 4, 3), device, torch.float64).requires_grad_()
    index = torch.tensor([[3, 3], [0, 1]], device=device)
    for options in ((None, 1), (-2, 1)):

        def apply(source: Tensor, options: tuple[int | None, int] = options) -> Tensor:
            return torch_ops.GatherFunction.apply(source, index, *options)

        assert torch.equal(apply(source), torch_ops.batch_gather(source, index))
        assert torch.autograd.gradcheck(apply, source, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(apply, source)
    plain = torch_ops.GatherFunction.apply(source, index[1])  # dim and batch_dims left out
    assert torch.equal(plain, torch_ops.gather(source, index[1]))


# ---- torch.vmap ---------------------------------------------------------------------------------


@pytest.mark.parametrize("in_dims", [(0, 0), (1, 0), (0, 1), (2, None), (None, 1), (-1, -1)])
def test_vmap(device: torch.device, in_dims: tuple[int | None, int | None]) -> None:
    for case in (Case((7, 3), (5,)), Case((2, 7, 3), (2, 5), batch_dims=1), Case((4, 7), (5,), 1)):
        size = 3
        source = values_for((size, *case.source), device, torch.float32)
        index = torch.stack([index_for(case, device, seed=seed) for seed in range(size)])
        if in_dims[0] is None:
            source = source[:1].expand_as(source)
        if in_dims[1] is None:
            index = index[:1].expand_as(index)
        expected = torch.stack(
            [torch_ops.gather(s, i, **case.kwargs) for s, i in zip(source, index, strict=True)]
        )
        hidden = [
            t[0] if d is None else t.movedim(0, min(d, t.dim() - 1))
            for t, d in zip((source, index), in_dims, strict=True)
        ]
        dims = tuple(
            None if d is None else min(d, t.dim() - 1) for t, d in zip(hidden, in_dims, strict=True)
        )
        actual = torch.vmap(lambda s, i, k=case.kwargs: torch_ops.gather(s, i, **k), dims)(*hidden)
        assert torch.equal(actual, expected)


# ---- Bad input ----------------------------------------------------------------------------------


def test_torchs_argument_order_is_explained(device: torch.device) -> None:
    source = torch.zeros(2, 3, device=device)
    index = torch.zeros(2, 3, dtype=torch.int64, device=device)
    with pytest.raises(TypeError, match=r"torch_ops.gather takes \(source, index, dim\) where"):
        torch_ops.gather(source, 1, index)
    with pytest.raises(TypeError, match="index must be a tensor, but a list was given"):
        torch_ops.gather(source, [0, 1])
    with pytest.raises(TypeError, match="source must be a tensor, but a list was given"):
        torch_ops.batch_gather([0, 1], index)


@pytest.mark.parametrize(
    ("source", "index", "options", "error", "message"),
    [
        ((3,), (2,), {"dim": 1}, IndexError, r"dim must be between -1 and 0.*it is 1"),
        ((3,), (2,), {"dim": -2}, IndexError, r"dim must be between -1 and 0.*it is -2"),
        ((), (2,), {}, ValueError, "source must have at least one axis"),
        ((3, 4), (3,), {"batch_dims": 2}, ValueError, r"batch_dims must be between 0 and index"),
        ((3, 4), (3, 4), {"batch_dims": 2}, ValueError, r"batch_dims must be below source.dim"),
        ((3, 4), (3,), {"batch_dims": -1}, ValueError, r"batch_dims must be between 0 and index"),
        ((3, 4), (3,), {"batch_dims": 1, "dim": 0}, ValueError, "dim must not be one of the 1 bat"),
        (
            (3, 4),
            (2, 5),
            {"batch_dims": 1},
            ValueError,
            r"same batch axes: axis 0 of source with shape \[3, 4\].*axis 0 of index.*\[2, 5\]",
        ),
    ],
)
def test_bad_arguments(
    device: torch.device,
    source: tuple[int, ...],
    index: tuple[int, ...],
    options: dict[str, int],
    error: type[Exception],
    message: str,
) -> None:
    args = torch.zeros(source, device=device), torch.zeros(index, dtype=torch.int64, device=device)
    with pytest.raises(error, match=message):
        torch_ops.gather(*args, **options)
    with pytest.raises(error, match=message):  # the fake kernel says the same
        torch_ops.gather(*(a.to("meta") for a in args), **options)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32, torch.complex64])
def test_index_dtype(device: torch.device, dtype: torch.dtype) -> None:
    index = torch.zeros(2, dtype=dtype, device=device)
    with pytest.raises(TypeError, match="index must be uint8, int16, int32 or int64, but it is"):
        torch_ops.gather(torch.zeros(3, device=device), index)


def test_batch_gather_of_a_scalar_index(device: torch.device) -> None:
    with pytest.raises(ValueError, match="index must have at least one axis"):
        torch_ops.batch_gather(torch.zeros(3, device=device), torch.tensor(0, device=device))


def test_mixed_devices(device: torch.device) -> None:
    other = "meta" if device.type == "cpu" else "cpu"
    with pytest.raises(RuntimeError, match=r"source and index must be on one device|same device"):
        torch_ops.gather(
            torch.zeros(3, device=device), torch.zeros(2, dtype=torch.int64, device=other)
        )


@pytest.mark.parametrize("index_dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("bad", [-1, 32, 2**15 - 1])
def test_out_of_range(device: torch.device, index_dtype: torch.dtype, bad: int) -> None:
    """Which entry is named, when and how often: test_errors.py."""
    source = values_for((4, 32, 3), device, torch.float32)
    index = torch.zeros(4, 20, dtype=index_dtype, device=device)
    index[2, 17] = bad
    index[3, 5] = bad
    if device.type == "cpu":
        message = rf"gather: index\[2, 17\] is {bad}, out of range.*size 32.*between 0 and 31"
        with pytest.raises(IndexError, match=message):
            torch_ops.batch_gather(source, index)
        return
    output = torch_ops.batch_gather(source, index)
    with pytest.raises(IndexError, match=rf"gather: index\[(2, 17|3, 5)\] is {bad}, out of range"):
        torch_ops.check_errors()
    assert output[2, 17].tolist() == [0, 0, 0]
    assert output[3, 5].tolist() == [0, 0, 0]
    index[2, 17] = index[3, 5] = 0
    good = torch_ops.batch_gather(source, index)  # the context is usable
    good[2, 17] = good[3, 5] = 0
    assert torch.equal(output, good)


def test_out_of_range_where_nothing_is_read() -> None:
    index = torch.tensor([0, 7])
    with pytest.raises(IndexError, match=r"index\[1\] is 7, out of range for an axis of size 5"):
        torch_ops.gather(torch.zeros(5, 0), index)
    with pytest.raises(IndexError, match=r"index\[0\] is 0, but the axis has size 0"):
        torch_ops.gather(torch.zeros(0, 3), index)


def test_direct_pair(device: torch.device) -> None:
    from torch_ops._ext import gather

    source = values_for((7, 3), device, torch.float32)
    index = torch.tensor([6, 0, 6], device=device)
    if device.type == "cpu":
        with pytest.raises(RuntimeError, match="source must be a CUDA tensor, but it is on cpu"):
            gather.forward(source, index)
        return
    output = gather.forward(source, index)
    assert torch.equal(output, source[index])
    grad = gather.backward(torch.ones_like(output), index, dim_size=7)
    assert grad[:, 0].tolist() == [1, 0, 0, 0, 0, 0, 2]
    with pytest.raises(ValueError, match="source must be contiguous"):
        gather.forward(source.t(), index)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for case in CASES:
        source = values_for(case.source, device, torch.float32).requires_grad_()
        index = index_for(case, device, torch.int32)
        output = torch_ops.gather(source, index, **case.kwargs)
        output.sum().backward()
        expected = gather_reference(source.detach().cpu(), index.cpu(), **case.kwargs)
        assert_same(output.detach(), expected, str(case))


@pytest.mark.sanitizer
def test_out_of_range_stays_in_bounds(device: torch.device) -> None:
    if device.type == "cpu":
        return  # raises: test_out_of_range
    index = torch.tensor([-(2**31), -1, 5, 2**31 - 1], dtype=torch.int32, device=device)
    source = torch.ones(5, 3, device=device, requires_grad=True)
    output = torch_ops.gather(source, index)
    with pytest.raises(IndexError, match=r"gather: index\[\d\] is .* axis of size 5"):
        torch_ops.check_errors()
    output.sum().backward()
    with pytest.raises(IndexError, match=r"scatter_add: index\[\d\] is .* axis of size 5"):
        torch_ops.check_errors()
    assert output.abs().sum() == 0
    assert source.grad.abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_staged_and_rows(device: torch.device, dtype: torch.dtype) -> None:
    """Each kernel on enough work for many blocks, with unaligned starts and strided indices."""
    for shape, count in [
        ((3, 100), 40_003),
        ((64, 1000), 16_403),  # staged
        ((64, 40_000), 24_003),  # staged, in part where elements have 8 bytes
        ((3, 50, 5), 3001),
        ((3, 50, 17), 3001),
        ((3, 50, 64), 3001),
    ]:
        source = values_for(shape, device, dtype)
        index = torch.randint(shape[1], (shape[0], 2 * count + 1), device=device)
        batch = torch.arange(shape[0], device=device)[:, None]
        for picks in (index[:, :count], index[:, 1 : count + 1], index[:, ::2]):
            for numbers in (picks, picks.int()):
                actual = torch_ops.batch_gather(source, numbers)
                assert_same(actual, source[batch, picks], f"{shape} {numbers.dtype}")


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
def test_elements_of_a_table_in_memory(device: torch.device, dtype: torch.dtype) -> None:
    """Tables that exceed the L2 cache, with picks for one window of them and for several."""
    size = 2**28 // dtype.itemsize // 3
    source = torch.arange(3 * size, device=device).view(3, size).to(dtype)
    for count in (4096, 5001, 300_007):
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


def test_short_rows_of_each_length(device: torch.device) -> None:
    """On the CPU in pieces that overlap; a byte too many would show in the next row."""
    for width in [*range(1, 300), 511, 513, 575, 960, 961, 1023, 1024, 1025]:
        source = values_for((20, width), device, torch.uint8)
        index = torch.randint(20, (37,), device=device)
        assert_same(torch_ops.gather(source, index), source[index], f"{width}")


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_instruction_sets(capability: str) -> None:
    """The CPU's loops exist once for each; the tests here run the widest that there is."""
    run_tests_with(capability, __file__, "cpu and of_each_length")


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.float32, torch.float64], ids=str
)
def test_rows_of_any_length_and_start(device: torch.device, dtype: torch.dtype) -> None:
    """Rows around 16 bytes and around what a block holds, in tables that begin anywhere."""
    for width in (5, 15, 16, 17, 31, 33, 64, 99, 127, 255, 1021, 8175, 8177, 20_001):
        rows = 40 if width < 1000 else 7
        whole = values_for((3, rows + 1, width + 5), device, dtype)
        index = torch.randint(rows, (3, 50 if width < 1000 else 9), device=device)
        spaced = index.repeat_interleave(2, 1)[:, ::2]
        batch = torch.arange(3, device=device)[:, None]
        for first, left, right in [(0, 0, 5), (1, 1, 4), (1, 3, 2)]:
            source = whole[:, first : first + rows, left : left + width + 5 - right - left]
            for picks in (index, spaced):  # on CUDA gaps mean another kernel
                actual = torch_ops.batch_gather(source, picks)
                assert_same(actual, source[batch, index], f"{width} {first} {left}")
        # Axes before dim, few entries a slab, and the first and the last row of the memory.
        dense = whole[:, :, : width + 1].contiguous()
        edges = torch.tensor([0, rows, rows, 0, 3], device=device, dtype=torch.int16)
        assert_same(torch_ops.gather(dense, edges, 1), dense[:, edges.long()], f"{width} dense")


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
    for dtype, width in [(torch.uint8, 17), (torch.float16, 9), (torch.float32, 5)]:
        source = values_for((3, width), device, dtype)
        index = torch.tensor([2, 0, 1, 2], device=device)
        for picks in (index, index.repeat_interleave(2)[::2]):
            assert_same(torch_ops.gather(source, picks), source[index], f"{dtype}")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["source", "output", "source of rows", "output of rows"])
def test_more_than_two_to_the_31(device: torch.device, what: str) -> None:
    """64-bit offsets: elements beyond 2^31 of one byte each."""
    far = 2**31 + 7
    if what == "source":
        source = torch.zeros(far, dtype=torch.uint8, device=device)
        source[-1] = 5
        index = torch.tensor([far - 1, 0, far - 1], device=device)
        assert torch_ops.gather(source, index).tolist() == [5, 0, 5]
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
    else:
        source = torch.tensor([[3, 4]], dtype=torch.uint8, device=device)
        index = torch.zeros(1, dtype=torch.uint8, device=device).expand(far // 2 + 1)
        output = torch_ops.gather(source, index)
        assert output.numel() > 2**31
        assert output[-1].tolist() == [3, 4]
        assert int(output[:, 1].min()) == 4
