from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gathering import CASES, Case, bad_index, gather_reference, index_for, values_for
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from support.layers import Layer
from torch import Tensor

import torch_ops

INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
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


TWO_INPUTS = {"sequential": "they take two inputs, and torch has no such layer"}
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
        ((3,), (2,), {"dim": 1}, IndexError, r"dim must be between -1 and 0.*dim is 1"),
        ((3,), (2,), {"dim": -2}, IndexError, r"dim must be between -1 and 0.*dim is -2"),
        ((), (2,), {}, ValueError, "source must have at least one axis"),
        ((3, 4), (3,), {"batch_dims": 2}, ValueError, r"batch_dims must be between 0 and index"),
        ((3, 4), (3, 4), {"batch_dims": 2}, ValueError, r"batch_dims must be below source.dim"),
        ((3, 4), (3,), {"batch_dims": -1}, ValueError, r"batch_dims must be between 0 and index"),
        ((3, 4), (3,), {"batch_dims": 1, "dim": 0}, ValueError, "dim must not be a batch axis"),
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


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint32, torch.float32, torch.complex64])
def test_index_dtype(device: torch.device, dtype: torch.dtype) -> None:
    index = torch.zeros(2, dtype=dtype, device=device)
    with pytest.raises(
        TypeError, match="index must be uint8, int8, int16, int32 or int64, but it is"
    ):
        torch_ops.gather(torch.zeros(3, device=device), index)


def test_batch_gather_of_a_scalar_index(device: torch.device) -> None:
    with pytest.raises(ValueError, match="index must have at least one axis"):
        torch_ops.batch_gather(torch.zeros(3, device=device), torch.tensor(0, device=device))


@pytest.mark.parametrize("source", [(2, 5), (2, 5, 4)])
def test_batch_gather_by_groups(device: torch.device, source: tuple[int, ...]) -> None:
    table = torch.zeros(source, device=device)
    index = torch.zeros(2, 3, 6, dtype=torch.int64, device=device)
    message = r"^batch_gather: .*the first with gather\(source, index, batch_dims=1\)\): axis 1 "
    with pytest.raises(ValueError, match=message):
        torch_ops.batch_gather(table, index)
    assert torch_ops.gather(table, index, batch_dims=1).shape == (2, 3, 6, *source[2:])


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
