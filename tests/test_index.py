from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gathering import values_for
from indices import as_numpy, bad, check_vmap, for_registered, indices_for, reference, sized
from op_checks import Op, OpChecks, Sample
from torch import Tensor

import torch_ops


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for shape in ((5, 4, 3), (5, 4, 3, 16)):
        for indices in indices_for(shape, device):
            yield Sample((values_for(shape, device, dtype), indices))


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    shape = (5, 4, 3)
    for indices in indices_for(shape, device):
        yield Sample((values_for(shape, device, torch.float64), indices))


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
]


class TestChecks(OpChecks):
    pass


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_of_many_duplicates_in_16_bits(device: torch.device, dtype: torch.dtype) -> None:
    source = torch.zeros(2, 3, 4, device=device, dtype=dtype, requires_grad=True)
    zeros = torch.zeros(10_000, dtype=torch.int64, device=device)
    torch_ops.index(source, (zeros, zeros - 1)).sum().backward()
    assert source.grad[0, 2].tolist() == [torch.tensor(10_000).to(dtype).item()] * 4
    assert source.grad.count_nonzero() == 4


def test_vmap(device: torch.device) -> None:
    i = torch.tensor([[0, -1], [2, 1], [1, 1]], device=device)
    j = torch.tensor([[4, 0], [-5, 3], [2, 2]], device=device)

    def call(s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch_ops.index(s, (a, slice(None), b))

    table = values_for((3, 4, 2, 5), device, torch.float32)
    for dims in [(0, 0, 0), (None, 0, None), (0, None, 0), (0, None, None), (None, 0, 0)]:
        check_vmap(call, dims, (table, i, j))


@pytest.mark.sanitizer
def test_small_calls(device: torch.device) -> None:
    i = torch.tensor([2, -3], device=device, dtype=torch.int16)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128):
        for tail in ((), (3,), (8,)):
            x = values_for((3, 2, *tail), device, dtype)
            assert torch.equal(torch_ops.index(x, (i, 1)), x[[2, 0], 1])
            assert torch.equal(torch_ops.index(x, (slice(None), [1, 0])), x[:, [1, 0]])


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
    with pytest.raises(TypeError, match="index must be uint8, int16, int32 or int64"):
        torch_ops.index(source, (i, i.float()))
    with pytest.raises(TypeError, match="an index must be an int, a slice"):
        torch_ops.index(source, "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source must be a tensor"):
        torch_ops.index([1], 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step"):
        torch_ops.index(source, slice(None, None, -1))
    if device.type == "cuda":
        with pytest.raises(RuntimeError, match="must be on one device"):
            torch_ops.index(source, i.cpu())
