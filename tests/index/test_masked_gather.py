from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gathering import values_for
from hypothesis import given
from hypothesis import strategies as st
from op_checks import Op, OpChecks, Sample
from support import without_derivative
from torch import Tensor

import torch_ops


def reference(
    source: Tensor, mask: Tensor, *, size: int | None = None, fill_value: Any = 0
) -> Tensor:
    rows = source.numpy()[mask.numpy()]
    if size is None:
        return torch.from_numpy(rows)
    result = np.full((size, *rows.shape[1:]), fill_value, rows.dtype)
    kept = rows[:size]
    result[: len(kept)] = kept
    return torch.from_numpy(result)


def mask_for(shape: tuple[int, ...], device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return (torch.rand(shape, generator=generator) > 0.5).to(device)


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for shape, axes in [
        ((7,), 1),
        ((7, 3), 1),
        ((3, 4, 8), 2),
        ((3, 4), 2),
        ((0, 3), 1),
        ((3,), 0),
    ]:
        for size in (0, 2, 20):
            mask = mask_for(shape[:axes], device)
            yield Sample((values_for(shape, device, dtype), mask), {"size": size})
    mask = mask_for((3000,), device)
    yield Sample((values_for((3000, 2), device, dtype), mask), {"size": 1600, "fill_value": 3})


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for sample in samples(device, torch.float64):
        if sample.args[0].numel() < 100 and sample.kwargs["size"] == 20:
            yield sample


def sized(device: torch.device, size: int) -> Sample:
    """The output's length is given: one that follows from the data is no shape of a graph."""
    source = values_for((size + 1, 3), device, torch.float32)
    return Sample((source, mask_for((size + 1,), device)), {"size": 4})


def bad(device: torch.device) -> Iterator[Sample]:
    source = torch.ones(3, 2, device=device)
    yield Sample((source, torch.ones(4, dtype=torch.bool, device=device)), {"size": 2})
    yield Sample((source, torch.ones(3, device=device)), {"size": 2})
    yield Sample((source, torch.ones(3, dtype=torch.bool, device=device)), {"size": -1})


def position_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for size in (0, 2, 20):
        yield Sample((mask_for((17,), device), size))


def sized_positions(device: torch.device, size: int) -> Sample:
    return Sample((mask_for((size + 1,), device), 4))


def bad_positions(device: torch.device) -> Iterator[Sample]:
    yield Sample((torch.ones(3, device=device), 2))
    yield Sample((torch.ones(3, dtype=torch.bool, device=device), -1))


def scatter_reference(rows: Tensor, mask: Tensor, base: Tensor | None = None) -> Tensor:
    shape = (*mask.shape, *rows.shape[1:])
    result = np.zeros(shape, rows.numpy().dtype) if base is None else base.numpy().copy()
    places = np.argwhere(mask.numpy())[: len(rows)]
    result[tuple(places.T)] = rows.numpy()[: len(places)]
    return torch.from_numpy(result)


def scatter_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for shape, axes in [((7,), 1), ((7, 3), 1), ((3, 4, 8), 2), ((3, 4), 2), ((0, 3), 1)]:
        mask = mask_for(shape[:axes], device)
        base = values_for(shape, device, dtype, seed=1)
        for size in (0, 2, 20):
            rows = values_for((size, *shape[axes:]), device, dtype)
            yield Sample((rows, mask))
            yield Sample((rows, mask, base))


def smooth_scatter_samples(device: torch.device) -> Iterator[Sample]:
    for sample in scatter_samples(device, torch.float64):
        if sample.args[0].numel() < 100:
            yield sample


def sized_scatter(device: torch.device, size: int) -> Sample:
    rows = values_for((size, 3), device, torch.float32)
    return Sample((rows, mask_for((size + 3,), device), torch.ones(size + 3, 3, device=device)))


def bad_scatter(device: torch.device) -> Iterator[Sample]:
    rows, mask = torch.ones(3, 2, device=device), torch.ones(4, dtype=torch.bool, device=device)
    yield Sample((rows, mask.int()))
    yield Sample((rows[0, 0], mask))
    yield Sample((rows, mask, rows))
    yield Sample((rows, mask, torch.ones(4, 2, device=device).double()))


# A copy of elements is exact.
OPS = [
    Op(
        "masked_scatter",
        torch.ops.torch_ops.masked_scatter.default,
        scatter_reference,
        scatter_samples,
        smooth_samples=smooth_scatter_samples,
        sized=sized_scatter,
        bad=bad_scatter,
        node="ViewBackward0",
    ),
    Op(
        "masked_gather",
        torch_ops.masked_gather,
        reference,
        samples,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="GatherBackward",
    ),
]
OTHER_OPS = [
    Op(
        "mask_positions",
        torch.ops.torch_ops.mask_positions.default,
        reference=torch.nonzero,
        samples=position_samples,
        sized=sized_positions,
        bad=bad_positions,
        exempt=without_derivative("a mask has no derivative"),
    ),
]


class TestChecks(OpChecks):
    pass


masks = st.tuples(
    st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple),
    st.integers(0, 3),
    st.floats(0, 1),
    st.none() | st.integers(0, 40),
    st.integers(0, 2**31),
)


def check_call(device: torch.device, call: Any) -> None:
    shape, axes, density, size, seed = call
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(-100, 100, shape, generator=generator, dtype=torch.int16)
    mask = torch.rand(shape[: min(axes, len(shape))], generator=generator) < density
    options = {} if size is None else {"size": size, "fill_value": -7}
    expected = reference(source, mask, **options)
    turned = source.t().contiguous().t() if source.dim() == 2 else source
    for layout in (source, turned):
        actual = torch_ops.masked_gather(layout.to(device), mask.to(device), **options)
        assert actual.dtype == expected.dtype, call
        assert torch.equal(actual.cpu(), expected), call


@given(call=masks)
def test_any_call(call: Any) -> None:
    check_call(torch.device("cpu"), call)
    if torch.cuda.is_available():
        check_call(torch.device("cuda"), call)


def test_large_mask(device: torch.device) -> None:
    """Several tasks of a CPU, many tiles of a GPU."""
    mask = torch.rand(300_001, device=device) > 0.7
    source = torch.arange(300_001, device=device)
    expected = source[mask]
    assert torch.equal(torch_ops.masked_gather(source, mask), expected)
    padded = torch_ops.masked_gather(source, mask, size=200_000, fill_value=-1)
    assert torch.equal(padded[: len(expected)], expected)
    assert (padded[len(expected) :] == -1).all()
    assert torch.equal(torch_ops.masked_gather(source, mask, size=1000), expected[:1000])


def test_gradient_without_size(device: torch.device) -> None:
    source = torch.arange(6.0, device=device).view(3, 2).requires_grad_()
    mask = torch.tensor([True, False, True], device=device)
    (torch_ops.masked_gather(source, mask) ** 2).sum().backward()
    assert source.grad.tolist() == [[0, 2], [0, 0], [8, 10]]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64], ids=str
)
def test_there_and_back(device: torch.device, dtype: torch.dtype) -> None:
    """masked_scatter undoes masked_gather; each is the other's gradient; compiled to one graph."""
    torch.compiler.reset()
    source = values_for((300, 5), device, dtype)
    mask = mask_for((300,), device)
    kept = torch.where(mask[:, None], source, torch.zeros((), dtype=dtype, device=device))

    def there_and_back(x: Tensor, m: Tensor) -> Tensor:
        return torch_ops.masked_scatter(torch_ops.masked_gather(x, m, size=200), m)

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    without_size = torch_ops.masked_scatter(torch_ops.masked_gather(source, mask), mask)
    for actual in (there_and_back(source, mask), compiled(source, mask), without_size):
        assert torch.equal(actual, kept)
    other = torch.flip(source, (0,))
    both = torch_ops.masked_scatter(torch_ops.masked_gather(source, mask), mask, out=other)
    assert torch.equal(both, torch.where(mask[:, None], source, other))
    if dtype.is_floating_point:
        for function in (there_and_back, compiled):
            leaf = source.clone().requires_grad_()
            (grad,) = torch.autograd.grad(function(leaf, mask).sum(), leaf)
            assert torch.equal(grad, mask[:, None].expand_as(source).to(dtype))
    masks, rows = torch.stack([mask, ~mask]), source[:200]
    mapped = torch.vmap(torch_ops.masked_scatter, in_dims=(None, 0))(rows, masks)
    assert torch.equal(mapped, torch.stack([torch_ops.masked_scatter(rows, m) for m in masks]))


def test_rows_of_a_scatter_that_are_too_many_or_too_few(device: torch.device) -> None:
    mask = torch.tensor([[True, False], [True, True]], device=device)
    rows = torch.tensor([1.0, 2, 3, 4, 5], device=device).requires_grad_()
    base = torch.full((2, 2), 9.0, device=device).requires_grad_()
    for size, expected, grad, base_grad in (
        (5, [[1, 9], [2, 3]], [1, 1, 1, 0, 0], [[0, 1], [0, 0]]),
        (2, [[1, 9], [2, 9]], [1, 1, 0, 0, 0], [[0, 1], [0, 1]]),
        (0, [[9, 9], [9, 9]], [0, 0, 0, 0, 0], [[1, 1], [1, 1]]),
    ):
        result = torch_ops.masked_scatter(rows[:size], mask, out=base)
        assert result.tolist() == expected
        grads = torch.autograd.grad(result.sum(), (rows, base))
        assert [each.tolist() for each in grads] == [grad, base_grad]
    assert base.tolist() == [[9, 9], [9, 9]]  # `out` is not changed


def test_mask_positions(device: torch.device) -> None:
    mask = torch.tensor([[True, False], [True, True]], device=device)
    positions = torch.ops.torch_ops.mask_positions.default
    assert positions(mask, 2).tolist() == [0, 2]
    assert positions(mask, 5).tolist() == [0, 2, 3, 4, 4]
    torch.library.opcheck(positions, (mask, 3))
    assert torch.vmap(lambda m: positions(m, 2))(mask).tolist() == [[0, 2], [0, 1]]


@pytest.mark.parametrize("axes", [1, 2])
def test_mapped_over_no_samples(device: torch.device, axes: int) -> None:
    masks = torch.ones((0, 3, 2)[: 1 + axes], dtype=torch.bool, device=device)
    source = torch.ones(0, 3, 2, 4, device=device, requires_grad=True)
    rows = torch.vmap(lambda x, m: torch_ops.masked_gather(x, m, size=5))(source, masks)
    assert rows.shape == (0, 5, *source.shape[1 + axes :])
    back = torch.vmap(torch_ops.masked_scatter)(rows, masks)
    assert back.shape == source.shape
    (grad,) = torch.autograd.grad(back.sum(), source)
    assert grad.shape == source.shape


def test_cuda_graph() -> None:
    if not torch.cuda.is_available():
        return  # the same call is tested above; only a GPU has graphs
    source = torch.arange(10.0, device="cuda")
    mask = source > 4
    torch_ops.masked_gather(source, mask, size=6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = torch_ops.masked_gather(source, mask, size=6)
    mask.copy_(source < 2)
    graph.replay()
    assert output.tolist() == [0, 1, 0, 0, 0, 0]


@pytest.mark.sanitizer
def test_small_calls(device: torch.device) -> None:
    mask = torch.tensor([True, False, True], device=device)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.complex128):
        source = values_for((3, 5), device, dtype)
        rows = torch_ops.masked_gather(source, mask, size=3)
        assert torch.equal(rows[:2], source[[0, 2]])
        assert rows[2].count_nonzero() == 0


def test_bad_arguments(device: torch.device) -> None:
    source = torch.zeros(3, 4, device=device)
    mask = torch.ones(3, dtype=torch.bool, device=device)
    with pytest.raises(TypeError, match="mask must be bool, but it is"):
        torch_ops.masked_gather(source, mask.to(torch.uint8))
    with pytest.raises(TypeError, match="mask must be a tensor, but a list"):
        torch_ops.masked_gather(source, [True])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fill_value must be a number"):
        torch_ops.masked_gather(source, mask, size=1, fill_value="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"its shape is \[4\] and source's is \[3, 4\]"):
        torch_ops.masked_gather(source, source[0] == 0)
    with pytest.raises(ValueError, match="size must not be negative"):
        torch_ops.masked_gather(source, mask, size=-1)
    for size in (None, 1):
        with pytest.raises(ValueError, match=r"^masked_gather: fill_value must be an integer"):
            torch_ops.masked_gather(source.int(), mask, size=size, fill_value=0.5)
    with pytest.raises(ValueError, match=r"masked_scatter: out .*its shape is \[3\].*\[3, 4\]"):
        torch_ops.masked_scatter(source, mask, out=source[:, 0])
    with pytest.raises(TypeError, match=r"rows is torch\.float32 and out is torch\.float64"):
        torch_ops.masked_scatter(source, mask, out=source.double())
    with pytest.raises(TypeError, match="masked_scatter: out must be a tensor, but an int was"):
        torch_ops.masked_scatter(source, mask, out=0)  # type: ignore[arg-type]
    if device.type == "cuda":
        for op in (torch_ops.masked_gather, torch_ops.masked_scatter):
            with pytest.raises(RuntimeError, match="must be on one device"):
                op(source, mask.cpu())


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.complex128])
def test_scatter_by_long_masks(device: torch.device, dtype: torch.dtype) -> None:
    """Of several tasks of the CPU's, with rows of any size, too few or more than there are."""
    mask = torch.rand(70_001, device=device) < 0.3
    true = int(mask.sum())
    for shape in ((), (3,), (2, 20)):
        for count in (0, 5, true - 1, true + 2):
            rows = torch.randint(1, 100, (count, *shape), device=device).to(dtype)
            places = mask.nonzero()[: min(count, true), 0]
            expected = torch.zeros((len(mask), *shape), dtype=dtype, device=device)
            expected[places] = rows[: len(places)]
            assert torch.equal(torch_ops.masked_scatter(rows, mask), expected)
