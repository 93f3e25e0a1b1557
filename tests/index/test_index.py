from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from gathering import values_for
from indices import as_numpy, bad, check_vmap, for_registered, indices_for, reference, sized
from op_checks import Op, OpChecks, Sample, assert_same
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

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


def test_lists_of_tensors(device: torch.device) -> None:
    """They are stacked, whatever their shapes, as NumPy does."""
    source = torch.arange(12, device=device).view(3, 4)
    for items in ([[0], [1]], [[0, 1], [1, 0]], [2, -1], [[[0]], [[2]]]):
        listed = [torch.tensor(item, device=device) for item in items]
        expected = torch.from_numpy(source.cpu().numpy()[np.array(items)])
        assert_same(torch_ops.index(source, listed), expected, str(items))
        written = torch_ops.index_put(source, listed, [torch.tensor([9, 8, 7, 6])])
        assert (written != source).any(1).tolist() == [n in np.array(items) % 3 for n in range(3)]
    assert torch_ops.index(source, [torch.tensor(1, device=device), 0]).tolist() == (
        source[[1, 0]].tolist()
    )
    rows = [torch.tensor([1], device=device), torch.tensor([2], device=device)]
    assert torch_ops.index_put(source, [0, 1], rows)[:2].tolist() == [[1] * 4, [2] * 4]
    with pytest.raises(TypeError, match="but a list was given: "):
        torch_ops.index(source, [torch.tensor([0, 1]), torch.tensor([0])])


def test_arrays_of_numpy_in_any_layout(device: torch.device) -> None:
    """torch reads no array with a negative stride or swapped bytes."""
    source = torch.arange(12.0, device=device).view(3, 4)
    rows = np.array([[2, 0], [1, -1]])
    for array in (rows[::-1], rows[:, ::-1], rows.astype(">i4"), rows[::-1].astype("<i2"), rows.T):
        expected = source[torch.from_numpy(array.astype(np.int64)).to(device)]
        assert torch.equal(torch_ops.index(source, array), expected)
        assert torch.equal(torch_ops.index(source, (array,)), expected)
        numbers = np.array([7.0, 8], dtype=">f4")[::-1]
        written = torch_ops.index_put(source, (array, slice(2)), numbers)
        assert written[array[0, 0], :2].tolist() == [8, 7]
    assert torch_ops.index(source, np.array([True, False, True])[::-1]).shape == (2, 4)


@pytest.mark.usefixtures("every_warning")
def test_arrays_of_numpy_that_torch_warns_about(device: torch.device) -> None:
    source = torch.arange(12.0, device=device).view(3, 4)
    rows, numbers = np.array([2, 0]), np.array([7.0, 8], np.float32)
    for array in (rows, numbers):
        array.setflags(write=False)
    assert torch_ops.index(source, rows).tolist() == source[[2, 0]].tolist()
    assert torch_ops.index(source, [rows, rows[::-1]]).tolist() == (
        source[torch.tensor([[2, 0], [0, 2]], device=device)].tolist()
    )
    for values in (numbers, [numbers[0], numbers[1]], [np.array(7), np.array(8)]):
        written = torch_ops.index_put(source, (slice(2), 1), values)
        assert written[:2, 1].tolist() == [7, 8]
    with pytest.raises(TypeError, match="but a list was given: "):
        torch_ops.index(source, [rows, rows[:1]])


@pytest.fixture
def every_warning() -> Iterator[None]:
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def test_numbers_of_numpy_make_views(device: torch.device) -> None:
    source = torch.zeros(3, 4, device=device)
    torch_ops.index(source, np.int64(1)).fill_(3)
    torch_ops.index(source, (slice(1), np.uint8(2))).fill_(5)
    torch_ops.index_put_(source, (np.int32(-1), [0]), 7)
    assert source.tolist() == [[0, 0, 5, 0], [3] * 4, [7, 0, 0, 0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, m, v: torch_ops.index(x, m),
        lambda x, m, v: torch_ops.index_put(x, m, v),
        lambda x, m, v: torch_ops.index_put_(x.clone(), m, v),
        lambda x, m, v: torch_ops.index_put_(x.clone(), m, v, True),
        lambda x, m, v: torch_ops.index_add(x, m, v),
        lambda x, m, v: torch_ops.index_add(x, (slice(None), slice(1, None), m), v[0, 0, :2]),
        lambda x, m, v: torch_ops.index_put(x, (m, torch.tensor([0, 2], device=x.device)), v[:, 0]),
        lambda x, m, v: torch_ops.index_put(x, (m, 1), v[:, 0]),
        lambda x, m, v: torch_ops.index_put_(x.clone(), m, v[0]),
        lambda x, m, v: torch_ops.index_put(x, m, 7.0),
        lambda x, m, v: torch_ops.index(x, m.sum().item()),
        lambda x, m, v: torch_ops.index(x, (slice(0, m.sum().item()), [1, 0])),
        lambda x, m, v: torch_ops.index_put(x, (m.sum().item(), [1, 0]), 5.0),
        lambda x, m, v: torch_ops.index(x, np.array([0, 2])),
        lambda x, m, v: torch_ops.index(x, (slice(None), np.int64(1))),
        lambda x, m, v: torch_ops.index_put(x, (np.array([0, 2]), 0), v[:, 0]),
        lambda x, m, v: torch_ops.index(x, [m.sum(), m.sum() - 1]),
    ],
    ids=range(17),
)
def test_compiled_whole(call: Any, device: torch.device) -> None:
    """What depends on the data, and what is NumPy's; for masks that change."""
    x = values_for((3, 4, 3), device, torch.float32)
    values = values_for((2, 4, 3), device, torch.float32, seed=1)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for mask in ([True, False, True], [False, True, True]):
        given = torch.tensor(mask, device=device)
        assert torch.equal(compiled(x, given, values), call(x, given, values))


def test_exported_masks(device: torch.device) -> None:
    class Write(torch.nn.Module):
        def forward(self, x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
            return torch_ops.index_put(x, mask, values)

    x = torch.zeros(4, 3, device=device)
    mask = torch.tensor([True, False, True, False], device=device)
    for strict in (False, True):
        for values in (torch.ones(2, 3, device=device), torch.ones(3, device=device)):
            program = torch.export.export(Write(), (x, mask, values), strict=strict).module()
            assert torch.equal(program(x, ~mask, values), torch_ops.index_put(x, ~mask, values))


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
    with pytest.raises(
        IndexError,
        match=r"^index: index 3 is out of range for axis 0 .* size 3: .* between -3 and 2",
    ):
        torch_ops.index(source, 3)
    with pytest.raises(IndexError, match="size 0: no entry is allowed"):
        torch_ops.index(source[:0], i)
    with pytest.raises(IndexError, match="no entry is allowed"):
        torch_ops.index(source[:0], (i, j))


@pytest.mark.parametrize(
    "call",
    [
        torch_ops.index,
        lambda x, at: torch_ops.index_put(x, at, 1.0),
        lambda x, at: torch_ops.index_put_(x, at, 1.0),
        lambda x, at: torch_ops.index_add(x, at, 1.0),
    ],
)
def test_entries_that_no_point_has(call: Any, device: torch.device, sync_mode: None) -> None:
    """Arrays that broadcast to no points, or rows that there are none of."""
    source, whole = torch.zeros(3, 4, device=device), slice(None)
    seven = torch.tensor([7], device=device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    for axis, x, indices in (
        (0, source, (seven, none)),
        (0, source, (seven[0], none)),
        (1, source, (none, seven)),
        (1, source, (torch.zeros(3, dtype=torch.bool, device=device), seven)),
        (0, source[..., None], (seven, whole, none)),
        (1, source[None, :0].transpose(0, 1), (whole, seven, 0 * seven)),
        (0, source.view((3, 4) + (1,) * 18), (seven, none) + (0 * seven,) * 17),
    ):
        match = f"the index for axis {axis} is 7, out of range for an axis of size {x.shape[axis]}"
        with pytest.raises(IndexError, match=match):
            call(x, indices)
    if device.type == "cpu":  # on CUDA no kernel starts for one array and no values
        with pytest.raises(IndexError, match="is 7, out of range"):
            call(source[:0], (whole, seven))
    for indices in ((seven - 5, none), (none, none), (none, -seven // 7)):
        call(source, indices)


def test_bad_arguments(device: torch.device) -> None:
    source = torch.zeros(3, 4, device=device)
    i = torch.tensor([2, 0], device=device)
    with pytest.raises(IndexError, match=r"indices are for more axes \(3\)"):
        torch_ops.index(source, (i, 0, 0))
    for number in (i, [2, 0], (i,)):
        with pytest.raises(IndexError, match=r"more axes \(1\) than source with shape \[\] has"):
            torch_ops.index(source[0, 0], number)
    with pytest.raises(IndexError, match="one ellipsis"):
        torch_ops.index(source, (..., i, ...))
    with pytest.raises(IndexError, match=r"shapes that fit each other, but they are \[2\], \[3\]"):
        torch_ops.index(source, (i, torch.zeros(3, dtype=torch.int64, device=device)))
    with pytest.raises(IndexError, match=r"axis 0 of mask with shape \[4\] is not as long as"):
        torch_ops.index(source, torch.ones(4, dtype=torch.bool, device=device))
    with pytest.raises(IndexError, match=r"indices are for more axes \(3\)"):
        torch_ops.index(source, (0, torch.ones(3, 4, dtype=torch.bool, device=device)))
    with pytest.raises(
        TypeError, match=r"int16, int32 or int64, or a mask .* for axis 1 is torch\.float32"
    ):
        torch_ops.index(source, (i, i.float()))
    with pytest.raises(TypeError, match="an index must be an int, a slice"):
        torch_ops.index(source, "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="source must be a tensor"):
        torch_ops.index([1], 0)  # type: ignore[arg-type]
    for way in (nullcontext, BaseTorchFunctionMode):
        for function in (
            torch_ops.index,
            lambda x, at: torch_ops.index_put_(x, at, 1.0),
            lambda x, at: torch_ops.index_add(x, at, 1.0),
        ):
            with way():
                for step in (0, -1):
                    with pytest.raises(ValueError, match=f"^index.*: the step .* it is {step}"):
                        function(source, slice(None, None, step))
                for backwards in (np.int64(-1), torch.tensor(-1)):
                    for at in (slice(None, None, backwards), (slice(None, None, backwards), i)):
                        with pytest.raises(ValueError, match=r"^index.*: the step .* it is -1"):
                            function(source, at)
                for start, what in (
                    (1.0, "a float"),
                    (torch.tensor(1.5), "a Tensor"),
                    (torch.tensor([0, 1]), "a Tensor"),
                ):
                    for at in (slice(start, None), (i, slice(start, None))):
                        with pytest.raises(TypeError, match=f"^index.*: start, .* {what} was"):
                            function(source, at)
                for axis, indices in ((0, 2**70), (0, (None, -4)), (1, (i, 4)), (1, (..., 5))):
                    message = f"^index.*: index .* out of range for axis {axis} of source.* size"
                    with pytest.raises(IndexError, match=message):
                        function(source, indices)
                with pytest.raises(TypeError, match=r"but a list was given: .*length"):
                    function(source, [[0, 1], [2]])
                with pytest.raises(TypeError, match=r"for axis 1 is torch\.uint32"):
                    function(source, (i, i.to(torch.uint32)))
    if device.type == "cuda":
        with pytest.raises(RuntimeError, match="must be on one device"):
            torch_ops.index(source, i.cpu())
