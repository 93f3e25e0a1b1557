"""segment_reduce, gather_csr, and scatters by an index in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gathering import bad_index, sum_tolerance, values_for
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from torch import Tensor

import torch_ops

REDUCES = ("sum", "mean", "amax", "amin", "prod")
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Segments:
    """Values of `shape`, `batch_dims` leading axes of which the offsets share."""

    shape: tuple[int, ...]
    segments: int
    dim: int | None = None
    batch_dims: int = 0
    spread: str = "random"

    @property
    def axis(self) -> int:
        return (self.batch_dims if self.dim is None else self.dim) % len(self.shape)

    @property
    def kwargs(self) -> dict[str, int | None]:
        return {"dim": self.dim, "batch_dims": self.batch_dims}

    @property
    def rows(self) -> tuple[int, ...]:
        return (*self.shape[: self.axis], self.segments, *self.shape[self.axis + 1 :])

    def offsets(self, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
        """Most cases have empty segments, and entries at both ends that are in none."""
        count = self.shape[self.axis]
        generator = torch.Generator().manual_seed(sum(self.shape))
        batch = self.shape[: self.batch_dims]
        marks = torch.randint(count + 1, (*batch, self.segments + 1), generator=generator)
        if self.spread == "hot":  # one segment has nearly all entries
            marks = torch.where(marks < count // 20, marks, count)
        elif self.spread == "whole":
            marks[..., :1] = 0
            marks[..., -1:] = count
        return marks.sort(-1).values.to(device, dtype)


CASES = [
    Segments((7,), 4),
    Segments((9, 3), 5, spread="whole"),
    Segments((2, 9), 3, batch_dims=1),
    Segments((2, 9, 3), 4, batch_dims=1),
    Segments((4, 9, 3), 5, dim=1),
    Segments((2, 3, 11, 4), 5, dim=2, batch_dims=1),
    Segments((2, 3, 11), 5, dim=-1, batch_dims=2),
    *[Segments((40, row), 9) for row in (1, 2, 4, 5, 8, 15, 16, 17, 33, 64, 130)],
    # Segments of several tiles, and tiles of several batches.
    Segments((3000, 4), 20),
    Segments((2500,), 30, spread="hot"),
    Segments((700, 33), 6, spread="hot"),
    Segments((600, 64), 700),
    Segments((3, 500, 8), 6, batch_dims=1, spread="hot"),
    Segments((40, 30, 5), 7, batch_dims=1, spread="whole"),
    Segments((3, 4, 200, 6), 5, dim=2, batch_dims=1),
    # Empties.
    Segments((5, 3), 0),
    Segments((0, 3), 4),
    Segments((5, 0), 4),
    Segments((0, 5), 4, batch_dims=1),
    Segments((0, 5), 4, dim=1),
]


def reduce_reference(
    values: Tensor,
    offsets: Tensor,
    reduce: str = "sum",
    dim: int | None = None,
    *,
    batch_dims: int = 0,
) -> Tensor:
    """A loop over batches and segments."""
    axis = (batch_dims if dim is None else dim) % values.dim()
    segments = offsets.shape[-1] - 1
    result = values.new_full(
        (*values.shape[:axis], segments, *values.shape[axis + 1 :]), int(reduce == "prod")
    )
    for at in np.ndindex(*values.shape[:batch_dims]):
        marks = offsets[at].tolist()
        for s in range(segments):
            part = values[at].narrow(axis - batch_dims, marks[s], max(marks[s + 1] - marks[s], 0))
            if marks[s + 1] > marks[s]:
                where = (*at, *(slice(None),) * (axis - batch_dims), s)
                if reduce == "mean" and not (part.is_floating_point() or part.is_complex()):
                    whole = part.sum(axis - batch_dims).to(values.dtype).long()
                    result[where] = whole.div(marks[s + 1] - marks[s], rounding_mode="floor")
                else:
                    result[where] = getattr(part, reduce)(axis - batch_dims).to(values.dtype)
    return result


def gather_reference(
    values: Tensor,
    offsets: Tensor,
    dim: int | None = None,
    *,
    batch_dims: int = 0,
    output_size: int,
) -> Tensor:
    axis = (batch_dims if dim is None else dim) % values.dim()
    shape = (*values.shape[:axis], output_size, *values.shape[axis + 1 :])
    output = values.new_zeros(shape)
    for at in np.ndindex(*values.shape[:batch_dims]):
        marks = offsets[at]
        repeated = values[at].repeat_interleave(marks.diff(), axis - batch_dims)
        first = marks[0].item() if len(marks) else 0
        output[at].narrow(axis - batch_dims, first, repeated.shape[axis - batch_dims]).copy_(
            repeated
        )
    return output


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.shape, device, dtype)
        for reduce in REDUCES:
            if dtype in COMPLEX and reduce not in ("sum", "mean"):
                continue
            if reduce == "prod":  # of many it would overflow
                values = torch.where(values < 0, -1, 1).to(dtype)
            yield Sample((values, case.offsets(device)), {"reduce": reduce, **case.kwargs})


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    """Sums and means first: some checks take the first five, and extremes keep the values."""
    for reduce in REDUCES:
        for case in (
            Segments((8,), 3),
            Segments((2, 6, 2), 3, batch_dims=1),
            Segments((2, 6, 2, 1), 3, dim=1, spread="whole"),
        ):
            values = values_for(case.shape, device, torch.float64)
            yield Sample((values, case.offsets(device)), {"reduce": reduce, **case.kwargs})


def sized(device: torch.device, size: int) -> Sample:
    case = Segments((size, size + 3, 3), size + 1, batch_dims=1)
    values = values_for(case.shape, device, torch.float32)
    return Sample((values, case.offsets(device)), {"reduce": "mean", **case.kwargs})


def bad(device: torch.device) -> Iterator[Sample]:
    values = values_for((5, 3), device, torch.float32)
    for offsets in bad_index(torch.tensor([0, 2, 2, 5], device=device), 6):
        for reduce in REDUCES:
            yield Sample((values, offsets), {"reduce": reduce})
    offsets = torch.tensor([0, 5], device=device)
    yield Sample((values, offsets), {"reduce": "median"})
    yield Sample((values, offsets), {"batch_dims": 1})
    yield Sample((values, offsets[:0]), {})


def gather_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.rows, device, dtype)
        size = case.shape[case.axis]
        yield Sample((values, case.offsets(device)), {**case.kwargs, "output_size": size})


def gather_smooth_samples(device: torch.device) -> Iterator[Sample]:
    for sample in gather_samples(device, torch.float64):
        if sample.args[0].numel() <= 60:
            yield sample


def gather_sized(device: torch.device, size: int) -> Sample:
    case = Segments((size, 5, 3), size + 1, batch_dims=1)
    values = values_for(case.rows, device, torch.float32)
    return Sample((values, case.offsets(device)), {**case.kwargs, "output_size": 5})


def gather_bad(device: torch.device) -> Iterator[Sample]:
    values = values_for((3, 2), device, torch.float32)
    for offsets in bad_index(torch.tensor([0, 2, 2, 5], device=device), 6):
        yield Sample((values, offsets), {"output_size": 5})
    offsets = torch.tensor([0, 2, 2, 5], device=device)
    yield Sample((values, offsets), {"output_size": -1})
    yield Sample((values, offsets[:3]), {"output_size": 5})


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """That of sums, of up to 3000 numbers in place of 400, and 40 roundings of a product."""
    rtol, atol = sum_tolerance(dtype)
    return max(rtol, 40 * torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps), 8 * atol


OPS = [
    Op(
        "segment_reduce",
        torch_ops.segment_reduce,
        reduce_reference,
        samples,
        tolerance,
        dtypes=(*FLOATS, *COMPLEX),
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        offsets=(1,),
        node="SegmentSumBackward",
        calls="_segment_sum",
    ),
    Op(
        "gather_csr",
        torch_ops.gather_csr,
        gather_reference,
        gather_samples,
        dtypes=(*FLOATS, *COMPLEX),
        smooth_samples=gather_smooth_samples,
        sized=gather_sized,
        bad=gather_bad,
        offsets=(1,),
        node="GatherCsrBackward",
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(device: torch.device, dtype: torch.dtype, reduce: str) -> None:
    for case in CASES:
        values = values_for(case.shape, device, dtype)
        offsets = case.offsets(device, torch.int32)
        actual = torch_ops.segment_reduce(values, offsets, reduce, **case.kwargs)
        expected = reduce_reference(values.cpu(), offsets.cpu(), reduce, **case.kwargs)
        assert_same(actual, expected, f"{case} {reduce}")


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_as_scatter(device: torch.device, dtype: torch.dtype, reduce: str) -> None:
    """Values and gradients; whole numbers, which no order of sums rounds, with ties and zeros."""
    for case in CASES:
        values = values_for(case.shape, device, torch.int64).remainder(5).sub(2).to(dtype)
        values.requires_grad_()
        offsets = case.offsets(device)
        if case.shape[case.axis] > 100 and reduce == "prod":
            continue
        size = case.shape[case.axis]
        counted = torch.arange(case.segments, device=device).expand(
            *case.shape[: case.batch_dims], case.segments
        )
        repeated = torch_ops.gather_csr(
            counted + 1, offsets, batch_dims=case.batch_dims, output_size=size
        )
        index = torch.where(repeated > 0, repeated - 1, case.segments)  # of those in no segment
        options: dict[str, Any] = {"reduce": reduce, "mode": "fill", **case.kwargs}
        expected = torch_ops.scatter(values, index, case.segments, **options)
        actual = torch_ops.segment_reduce(values, offsets, reduce, **case.kwargs)
        assert_same(actual + 0, expected + 0, f"{case}")  # no zero is negative
        weights = values_for(case.rows, device, torch.int64).remainder(3).to(dtype)
        (wanted,) = torch.autograd.grad((expected * weights).sum(), values)
        (grad,) = torch.autograd.grad((actual * weights).sum(), values)
        torch.testing.assert_close(grad, wanted)


def test_as_torch(device: torch.device) -> None:
    case = Segments((1000, 12), 50, spread="whole")
    values = values_for(case.shape, device, torch.float64)
    offsets = case.offsets(device)
    offsets = torch.unique(offsets)  # of an empty segment torch.segment_reduce makes something else
    for reduce, theirs in (("sum", "sum"), ("mean", "mean"), ("amax", "max"), ("amin", "min")):
        expected = torch.segment_reduce(values, theirs, offsets=offsets)
        torch.testing.assert_close(torch_ops.segment_reduce(values, offsets, reduce), expected)
        torch.testing.assert_close(torch_ops.segment_reduce(values, offsets, theirs), expected)


def test_names() -> None:
    values, offsets = torch.tensor([2.0, 3.0]), torch.tensor([0, 2, 2])
    for name, alias in (("sum", "add"), ("prod", "mul"), ("amax", "max"), ("amin", "min")):
        ours = torch_ops.segment_reduce(values, offsets, name)
        assert torch.equal(ours, torch_ops.segment_reduce(values, offsets, alias))
    message = r'^segment_reduce: reduce must be "sum".* or "prod" \(or "add".*but it is "var"'
    with pytest.raises(ValueError, match=message):
        torch_ops.segment_reduce(values, offsets, "var")


def test_not_a_number(device: torch.device) -> None:
    values = torch.tensor([1.0, torch.nan, 2.0, -torch.inf, torch.inf], device=device)
    offsets = torch.tensor([0, 3, 4, 5], device=device)
    for reduce in ("amax", "amin"):
        result = torch_ops.segment_reduce(values, offsets, reduce)
        assert result.isnan().tolist() == [True, False, False]
        assert result[1:].tolist() == [-torch.inf, torch.inf]


@pytest.mark.parametrize("offsets_dtype", INTEGERS, ids=str)
def test_dtypes_of_offsets(device: torch.device, offsets_dtype: torch.dtype) -> None:
    case = Segments((40, 4), 9)
    values, offsets = values_for(case.shape, device, torch.float32), case.offsets(device)
    expected = torch_ops.segment_reduce(values, offsets)
    assert torch.equal(torch_ops.segment_reduce(values, offsets.to(offsets_dtype)), expected)
    repeated = torch_ops.gather_csr(expected, offsets, output_size=40)
    narrow = torch_ops.gather_csr(expected, offsets.to(offsets_dtype), output_size=40)
    assert torch.equal(narrow, repeated)


def test_output_size(device: torch.device) -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    offsets = torch.tensor([[0, 1, 2], [0, 1, 4]], device=device)
    output = torch_ops.gather_csr(values, offsets, batch_dims=1)
    assert output.tolist() == [[1, 2, 0, 0], [3, 4, 4, 4]]
    with pytest.raises(RuntimeError, match=r"^gather_csr: output_size must be given on meta"):
        torch_ops.gather_csr(values.to("meta"), offsets.to("meta"), batch_dims=1)


ROW_SIZES = [*range(1, 20), *range(31, 35), *range(62, 67), *range(126, 131), 1023, 1024, 1025]


@pytest.mark.parametrize("shape", ["rows", "outer", "batch"])
def test_row_sizes(device: torch.device, shape: str) -> None:
    """Rows of each number of bytes for which gather_csr has a loop on the CPU."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor([0, 1, 1, 2, 3, 0, 0, 4, 5, 8, 0, 9, 40, 1, 0])
    before, after = 2, 3  # entries that are in no segment
    for size in ROW_SIZES:
        repeats = max(1, 4000 // size)  # several tasks of the CPU's threads
        many = counts.repeat(repeats)[torch.randperm(len(counts) * repeats, generator=generator)]
        offsets = torch.nn.functional.pad(many.cumsum(0), (1, 0)) + before
        total = int(many.sum())
        slabs = {"rows": (), "outer": (3,), "batch": (2,)}[shape]
        values = torch.randint(1, 256, (*slabs, len(many), size), generator=generator).byte()
        axis = len(slabs)
        expected = torch.nn.functional.pad(
            values.repeat_interleave(many, axis), (0, 0, before, after)
        )
        batch_dims = int(shape == "batch")
        offsets = offsets.expand(2, -1) if batch_dims else offsets
        actual = torch_ops.gather_csr(
            values.to(device),
            offsets.to(device),
            axis,
            batch_dims=batch_dims,
            output_size=before + total + after,
        )
        assert torch.equal(actual.cpu(), expected), size


def test_repeatable(device: torch.device) -> None:
    case = Segments((40_000, 16), 30, spread="hot")
    values = values_for(case.shape, device, torch.float32)
    offsets = case.offsets(device)
    for reduce in ("sum", "mean"):
        first = torch_ops.segment_reduce(values, offsets, reduce)
        for _ in range(3):
            assert_same(torch_ops.segment_reduce(values, offsets, reduce), first, reduce)
        assert_same(torch_ops.segment_reduce(values[:, :], offsets.int(), reduce), first, reduce)


def test_many_segments(device: torch.device) -> None:
    """More than one search of a block finds; and long stretches without entries."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(5, (200_000,), generator=generator)
    counts[50_000:120_000] = 0
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(device)
    values = torch.randint(-9, 9, (int(counts.sum()), 3), generator=generator).double().to(device)
    ids = torch.arange(200_000).repeat_interleave(counts).to(device)
    expected = torch.zeros(200_000, 3, dtype=torch.float64, device=device).index_add(0, ids, values)
    assert torch.equal(torch_ops.segment_reduce(values, offsets), expected)
    assert torch.equal(torch_ops.gather_csr(expected, offsets), expected[ids])
    assert torch.equal(torch_ops.scatter_add(values, ids, 200_000, sorted=True), expected)


def test_blocks_of_segments(device: torch.device) -> None:
    """On CUDA a block has each segment, however long; or but for those that are on a list."""
    generator = torch.Generator().manual_seed(0)
    for segments, entries, columns in [
        (1, 3000, 40),  # on the list, as the only one
        (5, 900, 40),  # however long
        (300, 20_000, 70),
        (1500, 60_000, 5),  # with one on the list
        (1500, 500_000, 1),
    ]:
        cuts = torch.randint(entries // 2, (segments - 1,), generator=generator).sort().values
        offsets = torch.cat((torch.tensor([0]), cuts, torch.tensor([entries])))
        ids = torch.arange(segments).repeat_interleave(offsets.diff()).to(device)
        values = torch.randint(-9, 9, (entries, columns), generator=generator).float().to(device)
        for reduce in ("sum", "mean", "amax"):
            expected = torch_ops.scatter(values, ids, segments, reduce=reduce)
            actual = torch_ops.segment_reduce(values, offsets.to(device), reduce)
            torch.testing.assert_close(actual, expected)


def test_offsets_of_no_axis(device: torch.device) -> None:
    values, offsets = torch.ones(1, device=device), torch.tensor(0, device=device)
    for call in (torch_ops.gather_csr, torch_ops.segment_reduce):
        with pytest.raises(ValueError, match=r"offsets must have .* the shape of offsets is \[\]"):
            call(values, offsets)


def test_runs_of_segments(device: torch.device, sync_mode: None) -> None:
    """Of so many rows that a group of lanes has several in turn, short, long and empty ones."""
    generator = torch.Generator().manual_seed(0)
    batch, segments, columns = 2, 33_000, 64
    lengths = torch.tensor([0, 0, 1, 2, 3, 5])[
        torch.randint(6, (batch, segments), generator=generator)
    ]
    lengths[:, [0, 9, 10, 777]] = torch.tensor([65, 3000, 64, 200])
    lengths[:, 500:600] = 40
    lengths[:, -1] = 0
    lengths[:, -1] = lengths.sum(1).max() - lengths.sum(1)  # as many entries in each batch
    ids = torch.stack([torch.arange(segments).repeat_interleave(each) for each in lengths])
    offsets = torch.nn.functional.pad(lengths.cumsum(1), (1, 0)).to(device)
    shape = (batch, ids.size(1), columns)
    values = torch.randint(-9, 9, shape, generator=generator).float().to(device)
    given = (values, ids.to(device), segments)
    for reduce in ("sum", "mean", "amax", "amin"):
        expected = torch_ops.scatter(*given, reduce=reduce, batch_dims=1)
        actual = torch_ops.segment_reduce(values, offsets, reduce, batch_dims=1)
        torch.testing.assert_close(actual, expected)
    wrong = offsets.clone()
    wrong[1, 5000:5003] = torch.tensor([-1, 10**12, 3], device=device)
    kept = torch_ops.segment_reduce(values, offsets, batch_dims=1)
    with pytest.raises(IndexError, match=r"offsets\[1, 500[01]\]"):
        torch_ops.segment_reduce(values, wrong, batch_dims=1)
    wrong[1, 5000:5003] = torch.tensor([9, 5, 3], device=device)
    actual = torch_ops.segment_reduce(values, wrong, batch_dims=1)
    assert torch.equal(actual[0], kept[0])
    assert torch.equal(actual[1, :4999], kept[1, :4999])
    assert torch.equal(actual[1, 5003:], kept[1, 5003:])


def sorted_calls(device: torch.device) -> Iterator[tuple[Tensor, Tensor, int, dict[str, Any]]]:
    generator = torch.Generator().manual_seed(0)
    for shape, picks, rows, kwargs in [
        ((50,), (50,), 8, {}),
        ((50, 16), (50,), 8, {}),
        ((4, 50, 3), (50,), 8, {"dim": 1}),
        ((3, 50, 3), (3, 50), 8, {"batch_dims": 1}),
        ((2, 3, 5, 10, 4), (2, 5, 10), 8, {"batch_dims": 1, "dim": 2}),
        ((4,), (), 3, {}),
        ((0, 3), (0,), 3, {}),
    ]:
        index = torch.randint(rows, picks, generator=generator)
        batch_dims = kwargs.get("batch_dims", 0)
        flat = index.reshape(*picks[:batch_dims], -1).sort(-1).values.reshape(picks)
        values = torch.randint(-9, 9, shape, generator=generator).double()
        yield values.to(device), flat.to(device), rows, kwargs


@pytest.mark.parametrize("index_dtype", INTEGERS)
def test_sorted(device: torch.device, index_dtype: torch.dtype) -> None:
    for values, index, rows, kwargs in sorted_calls(device):
        index = index.to(index_dtype)
        values.requires_grad_()
        for reduce in REDUCES:
            expected = torch_ops.scatter(values, index, rows, reduce=reduce, **kwargs)
            actual = torch_ops.scatter(values, index, rows, reduce=reduce, sorted=True, **kwargs)
            torch.testing.assert_close(actual, expected)
            (wanted,) = torch.autograd.grad(expected.square().sum(), values)
            (grad,) = torch.autograd.grad(actual.square().sum(), values)
            torch.testing.assert_close(grad, wanted)
        actual = torch_ops.scatter_add(values, index, rows, sorted=True, **kwargs)
        assert torch.equal(actual, torch_ops.scatter_add(values, index, rows, **kwargs))


def test_sorted_but_not_in_order(device: torch.device, sync_mode: None) -> None:
    """Nothing is written out of bounds, and entries out of range are errors all the same."""
    values = values_for((500, 4), device, torch.float32)
    index = torch.arange(499, -1, -1, device=device)
    result = torch_ops.scatter_add(values, index, 500, sorted=True)
    assert result.shape == (500, 4)
    index[250] = 500
    for function in (torch_ops.scatter, torch_ops.scatter_add):
        with pytest.raises(IndexError, match=rf"{function.__name__}: index\[250\] is 500"):
            function(values, index, 500, sorted=True)
        with pytest.raises(ValueError, match="sorted=True is for mode"):
            function(values, index, 500, sorted=True, mode="clip")


def test_offsets_out_of_range(device: torch.device, sync_mode: None) -> None:
    """An offset may be the axis's size, but no more; of bags too."""
    values = torch.ones(3, 2, device=device)

    def offsets(last: int) -> Tensor:
        return torch.tensor([0, last], device=device)

    text = r"offsets\[1\] is 4, out of range for an axis of size 3: it must be between 0 and 3"
    with pytest.raises(IndexError, match=f"^segment_reduce: {text}"):
        torch_ops.segment_reduce(values, offsets(4))
    with pytest.raises(IndexError, match=f"^gather_csr: {text}"):
        torch_ops.gather_csr(values[:1], offsets(4), output_size=3)
    with pytest.raises(IndexError, match=f"^embedding_bag: {text}"):
        torch_ops.embedding_bag(torch.zeros_like(values[:, 0]).long(), values, offsets(4))
    with pytest.raises(IndexError, match=r"^gather_csr: offsets\[1\] is -3, "):
        torch_ops.gather_csr(values[:1], offsets(-3))


def test_offsets_that_decrease(device: torch.device) -> None:
    """Nothing is read or written out of bounds."""
    values = values_for((300, 4), device, torch.float32)
    offsets = torch.randint(301, (50,), generator=torch.Generator().manual_seed(1)).to(device)
    for reduce in REDUCES:
        assert torch_ops.segment_reduce(values, offsets, reduce).shape == (49, 4)
    assert torch_ops.gather_csr(values[:49], offsets, output_size=300).shape == (300, 4)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for case in CASES:
        values = values_for(case.shape, device, torch.float32).requires_grad_()
        for reduce in REDUCES:
            offsets = case.offsets(device)
            torch_ops.segment_reduce(values, offsets, reduce, **case.kwargs).sum().backward()
    for values, index, rows, kwargs in sorted_calls(device):
        torch_ops.scatter_add(values, index, rows, sorted=True, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_of_a_mean_of_many_in_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    """The lengths of segments are not rounded to 16 bits, where the first would be infinite."""
    values = torch.zeros(70_001 + 257, device=device, dtype=dtype, requires_grad=True)
    offsets = torch.tensor([0, 70_001, 70_001 + 257], device=device)
    torch_ops.segment_reduce(values, offsets, "mean").backward(
        torch.tensor([1000.0, 1.0], device=device, dtype=dtype)
    )
    expected = torch.tensor([1000 / 70_001, 1 / 257], dtype=torch.float64).to(dtype)
    assert torch.equal(values.grad[[0, -1]].cpu(), expected)


def test_gradient_of_a_product_that_does_not_fit_16_bits(device: torch.device) -> None:
    for pair in ([3e-4, 3e-4], [1e-4, 1e-4], [300.0, 200.0]):
        values = torch.tensor(pair, dtype=torch.float16, device=device).requires_grad_()
        offsets, index = torch.tensor([0, 2], device=device), torch.zeros(2, device=device).int()
        for product in (
            torch_ops.segment_reduce(values, offsets, "prod"),
            torch_ops.scatter(values, index, 1, reduce="prod"),
        ):
            (grad,) = torch.autograd.grad(product, values)
            torch.testing.assert_close(grad, values.detach().flip(0))


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod"])
def test_the_same_bits_at_any_address(device: torch.device, reduce: str) -> None:
    values = torch.rand(320_000, 4, device=device) + 0.5
    moved = torch.empty(values.numel() + 1, device=device)[1:].view(values.shape).copy_(values)
    offsets = torch.randint(320_001, (10_001,), device=device).sort().values
    assert torch.equal(
        torch_ops.segment_reduce(values, offsets, reduce),
        torch_ops.segment_reduce(moved, offsets, reduce),
    )
