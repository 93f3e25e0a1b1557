"""mode and fill_value on every member that takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gathering import Case, enough, sum_tolerance, values_for
from hypothesis import given
from hypothesis import strategies as st
from modes import (
    CASES,
    INDEX_DTYPES,
    MODES,
    REWRITING,
    default_fill,
    entries_for,
    gather_by_mode,
    other_layout,
    row_calls,
    scatter_add_by_mode,
)
from op_checks import Op, OpChecks, Sample, assert_same
from support.compiling import CompileChecks
from support.transforms import TransformChecks
from torch import Tensor

import torch_ops


def gather_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        source = values_for(case.source, device, dtype)
        for mode in MODES:
            options = {**case.kwargs, "mode": mode}
            yield Sample((source, entries_for(case, device, mode)), options)
        options["mode"] = "fill"
        yield Sample((source, entries_for(case, device, "fill")), {**options, "fill_value": 2})


def smooth_gather_samples(device: torch.device) -> Iterator[Sample]:
    """NaN has no differences: a fill value of its own."""
    for case in CASES[:5]:
        source = values_for(case.source, device, torch.float64)
        for mode in REWRITING:
            options = {"fill_value": 1.5} if mode == "fill" else {}
            index = entries_for(case, device, mode)
            yield Sample((source, index), {**case.kwargs, "mode": mode, **options})


def batch_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for mode in REWRITING:
        case = Case((2, 5, 3), (2, 6), batch_dims=1)
        source = values_for(case.source, device, dtype)
        fill = {"fill_value": 2} if mode == "fill" else {}  # opcheck takes no NaN for equal
        yield Sample((source, entries_for(case, device, mode)), {"mode": mode, **fill})


def smooth_batch_samples(device: torch.device) -> Iterator[Sample]:
    case = Case((2, 3), (2, 4), batch_dims=1)
    source = values_for(case.source, device, torch.float64)
    yield Sample((source, entries_for(case, device, "wrap")), {"mode": "wrap"})


def batch_gather_by_mode(source: Tensor, index: Tensor, **options: Any) -> Tensor:
    return gather_by_mode(source, index, batch_dims=index.dim() - 1, **options)


def scatter_samples(
    device: torch.device, dtype: torch.dtype, modes: tuple[str, ...] = MODES
) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.output, device, dtype)
        for mode in modes:
            options = {"dim_size": case.source[case.axis], **case.kwargs, "mode": mode}
            yield Sample((values, entries_for(case, device, mode)), options)


def smooth_scatter_samples(device: torch.device) -> Iterator[Sample]:
    for sample in scatter_samples(device, torch.float64, REWRITING):
        if sample.args[0].numel() <= 40:
            yield sample


OPS = [
    Op(
        "gather",
        torch_ops.gather,
        gather_by_mode,
        gather_samples,
        smooth_samples=smooth_gather_samples,
    ),
    Op(
        "batch_gather",
        torch_ops.batch_gather,
        batch_gather_by_mode,
        batch_samples,
        smooth_samples=smooth_batch_samples,
    ),
    Op(
        "scatter_add",
        torch_ops.scatter_add,
        scatter_add_by_mode,
        scatter_samples,
        sum_tolerance,
        sums=True,
        smooth_samples=smooth_scatter_samples,
    ),
]


class TestChecks(OpChecks):
    """And of what test_support.py runs with mode="raise" what depends on the mode."""

    test_gradcheck = TransformChecks.test_gradcheck
    test_opcheck = CompileChecks.test_opcheck
    test_compiled_autograd = CompileChecks.test_compiled_autograd


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
    torch.complex128,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 3, 5, 16, 33, 8179])
def test_fill_of_every_dtype(device: torch.device, dtype: torch.dtype, width: int) -> None:
    """Words of every width, and rows that are moved as several elements a word, or in parts."""
    source = values_for((7, width), device, dtype)
    source = source[:, 0] if width == 1 else source
    index = torch.tensor([0, 7, -7, -8, 3] * 9, device=device)
    output = torch_ops.gather(source, index, mode="fill").view(9, 5, -1)
    # On CUDA gaps in the index mean another kernel.
    spaced = torch_ops.gather(source, index.repeat_interleave(2)[::2], mode="fill")
    assert_same(spaced.view(9, 5, -1), output, "spaced")
    elements = torch_ops.gather_elements(
        source,
        index.view(-1, *[1] * (source.dim() - 1)).expand(-1, *source.shape[1:]),
        0,
        mode="fill",
        fill_value=1,
    ).view(9, 5, -1)
    filled = torch.full((width,), default_fill(dtype), dtype=dtype)
    for row in (0, 8):
        for at, from_row in ((0, 0), (2, 0), (4, 3)):
            expected = source[from_row].reshape(-1)
            assert_same(output[row, at], expected, f"{at}")
            assert_same(elements[row, at], expected, f"{at}")
        for at in (1, 3):
            assert_same(output[row, at].cpu(), filled, f"{at}")
            assert elements[row, at].tolist() == [1] * width


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("mode", REWRITING)
def test_extreme_entries(device: torch.device, index_dtype: torch.dtype, mode: str) -> None:
    """The ends of the index's type, for axes of every relation to it."""
    info = torch.iinfo(index_dtype)
    low, high = info.min, info.max
    for size in (1, 2, 3, 7, 64, 255, 256, 1000, 40_000):
        entries = sorted({low, low + 1, -size - 1, -size, -1, 0, size - 1, size, high - 1, high})
        index = torch.tensor([e for e in entries if low <= e <= high], dtype=index_dtype)
        source = torch.arange(size)
        expected = gather_by_mode(source, index, mode=mode, fill_value=None)
        actual = torch_ops.gather(source.to(device), index.repeat(20).to(device), mode=mode)
        assert actual.tolist() == expected.tolist() * 20, size
        if size == 1000:  # elements from shared memory on a GPU
            times = enough(device, 140_003, 1003) // len(index)
            picks = index.to(device).repeat(times).expand(64, -1).contiguous()
            many = torch_ops.batch_gather(source.to(device).expand(64, -1), picks, mode=mode)
            assert (many.view(64, -1, len(index)) == expected.to(device)).all(), size
        counts = torch_ops.scatter_add(
            torch.ones(len(index), dtype=torch.int64, device=device),
            index.to(device),
            size,
            mode=mode,
        )
        ones = torch.ones(len(index), dtype=torch.int64)
        assert counts.tolist() == scatter_add_by_mode(ones, index, size, mode=mode).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_empty_axis(device: torch.device, mode: str) -> None:
    source = torch.zeros(2, 0, 3, device=device)
    some = torch.zeros(2, 4, dtype=torch.int64, device=device)
    none = some[:, :0]
    wide = some[:, :, None].expand(2, 4, 3)
    calls: list[Callable[[], Tensor]] = [
        lambda: torch_ops.gather(source, some, batch_dims=1, mode=mode),
        lambda: torch_ops.batch_gather(source, some, mode=mode),
        lambda: torch_ops.gather_elements(source, wide, 1, mode=mode),
        lambda: torch_ops.gather_elements(source, wide.contiguous(), 1, mode=mode),
        lambda: torch_ops.take_along_dim(source, some[:, :, None], 1, mode=mode),
    ]
    sums: list[Callable[[], Tensor]] = [
        lambda: torch_ops.scatter_add(wide.float(), some, 0, batch_dims=1, mode=mode),
        lambda: torch_ops.scatter_elements_add(wide.float(), wide, (2, 0, 3), 1, mode=mode),
        *[
            partial(
                torch_ops.scatter, wide.float(), some, 0, batch_dims=1, mode=mode, reduce=reduce
            )
            for reduce in ("sum", "mean", "amax", "prod")
        ],
    ]
    for call in calls:
        if mode == "fill":
            assert call().shape == (2, 4, 3)
            assert call().isnan().all()
        else:
            with pytest.raises(IndexError, match="the axis has size 0"):
                call()
    for call in sums:
        if mode == "fill":
            assert call().shape == (2, 0, 3)
        else:
            with pytest.raises(IndexError, match="the axis has size 0"):
                call()
    assert torch_ops.gather(source, none, batch_dims=1, mode=mode).shape == (2, 0, 3)
    assert torch_ops.gather(source, none, batch_dims=1, mode=mode).device.type == device.type


@pytest.mark.parametrize("spread", [1, 100, 100_000])
def test_scatter_drops_on_every_way(device: torch.device, spread: int) -> None:
    """On the CPU one block a slab, tiles and pieces; on CUDA each kernel, and sorted."""
    generator = torch.Generator().manual_seed(spread)
    for width in (None, 1, 2, 3, 4, 5, 9, 64):
        count = 300_000 if width is None else 20_000
        index = torch.randint(-spread // 2, 2 * spread, (count,), generator=generator)
        shape = (count,) if width is None else (count, width)
        values = torch.randint(-8, 8, shape, generator=generator).float()  # sums are exact
        for mode in REWRITING:
            expected = scatter_add_by_mode(values, index, spread, mode=mode)
            for way in (None, True):
                actual = torch_ops.scatter_add(
                    values.to(device), index.to(device), spread, mode=mode, deterministic=way
                )
                assert torch.equal(actual.cpu(), expected), f"{width} {mode} {way}"


def test_nothing_is_recorded(device: torch.device) -> None:
    """An entry out of range is an error in mode raise alone."""
    index = torch.tensor([0, 9, -9], device=device)
    for mode in REWRITING:
        torch_ops.gather(torch.ones(5, device=device), index, mode=mode)
        torch_ops.scatter_add(torch.ones(3, device=device), index, 5, mode=mode)
    torch_ops.check_errors()


def test_gradient_follows_the_mode(device: torch.device) -> None:
    index = torch.tensor([0, 4, 5, -1, -6], device=device)
    for mode, expected in [
        ("wrap", [2, 0, 0, 0, 3]),
        ("clip", [3, 0, 0, 0, 2]),
        ("fill", [1, 0, 0, 0, 2]),
    ]:
        source = torch.arange(5.0, device=device, requires_grad=True)
        torch_ops.gather(source, index, mode=mode).nansum().backward()
        assert source.grad.tolist() == expected, mode
        _, tangent = torch.func.jvp(
            lambda s, mode=mode: torch_ops.gather(s, index, mode=mode),
            (source.detach(),),
            (torch.ones(5, device=device),),
        )
        assert tangent.tolist() == ([1, 1, 0, 1, 0] if mode == "fill" else [1] * 5), mode
        values = torch.ones(5, device=device, requires_grad=True)
        torch_ops.scatter_add(values, index, 5, mode=mode).sum().backward()
        assert values.grad.tolist() == ([1, 1, 0, 1, 0] if mode == "fill" else [1] * 5), mode


def test_function_classes(device: torch.device) -> None:
    index = torch.tensor([[0, 7], [-1, 2]], device=device)
    source = values_for((2, 4, 3), device, torch.float64).requires_grad_()
    values = values_for((2, 2, 3), device, torch.float64).requires_grad_()
    for mode, fill in (("wrap", None), ("clip", None), ("fill", 2.5)):

        def gather(source: Tensor, mode: str = mode, fill: float | None = fill) -> Tensor:
            return torch_ops.GatherFunction.apply(source, index, None, 1, mode, fill)

        def add(values: Tensor, mode: str = mode) -> Tensor:
            return torch_ops.ScatterAddFunction.apply(values, index, 4, None, 1, None, mode)

        expected = torch_ops.gather(source, index, batch_dims=1, mode=mode, fill_value=fill)
        assert_same(gather(source), expected, mode)
        assert torch.autograd.gradcheck(gather, source, check_forward_ad=True)
        expected = torch_ops.scatter_add(values, index, 4, batch_dims=1, mode=mode)
        torch.testing.assert_close(add(values), expected)
        assert torch.autograd.gradcheck(add, values, check_forward_ad=True, nondet_tol=1e-12)


def test_modules(device: torch.device) -> None:
    source, index = torch.ones(1, 3, device=device), torch.tensor([[5]], device=device)
    layer = torch_ops.BatchGather(mode="fill", fill_value=7)
    assert repr(layer) == "BatchGather(mode='fill', fill_value=7)"
    assert layer(source, index).tolist() == [[7]]
    layer = torch_ops.Gather(1, mode="clip")
    assert repr(layer) == "Gather(dim=1, batch_dims=0, mode='clip')"
    assert layer(source, index).tolist() == [[[1]]]
    assert repr(torch_ops.BatchGather()) == "BatchGather()"


def test_batched_by_vmap(device: torch.device) -> None:
    source = values_for((3, 5, 2), device, torch.float32)
    index = torch.tensor([[0, 7], [-1, 2], [4, -9]], device=device)
    for mode in REWRITING:
        actual = torch.vmap(lambda s, i, m=mode: torch_ops.gather(s, i, mode=m))(source, index)
        expected = torch_ops.gather(source, index, batch_dims=1, mode=mode)
        assert_same(actual, expected, mode)
        values = values_for((3, 2, 2), device, torch.float32)
        sums = torch.vmap(lambda v, i, m=mode: torch_ops.scatter_add(v, i, 5, mode=m))
        expected = torch_ops.scatter_add(values, index, 5, batch_dims=1, mode=mode)
        torch.testing.assert_close(sums(values, index), expected)


# ---- Bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "fill", "message"),
    [
        (torch.uint8, 256, "between 0 and 255 for torch.uint8, but it is 256"),
        (torch.uint8, -1, "between 0 and 255"),
        (torch.int8, 128, "between -128 and 127"),
        (torch.int32, 1.5, "must be an integer for torch.int32, but it is 1.5"),
        (torch.int32, float("nan"), "must be an integer"),
        (torch.int64, 2**63, "must fit int64"),
        (torch.uint64, -1, "between 0 and 18446744073709551615"),
        (torch.bool, 2, "between 0 and 1 for torch.bool"),
        (torch.float16, 1e5, "between -65504 and 65504 for torch.float16"),
        (torch.bfloat16, 1e39, "for torch.bfloat16"),
        (torch.float32, 1e39, "for torch.float32"),
        (torch.float32, 2 - 3j, r"must be a real number for torch.float32, but it is \(2-3j\)\."),
        (torch.int32, 1.0, r"must be an integer for torch.int32, but it is 1\.0\."),
        (torch.int32, 1e300, r"but it is 1e\+300\."),
    ],
)
def test_fill_value_that_does_not_fit(
    device: torch.device, dtype: torch.dtype, fill: Any, message: str
) -> None:
    source = torch.zeros(3, 3, dtype=dtype, device=device)
    index = torch.zeros(3, dtype=torch.int64, device=device)
    for on in (device, torch.device("meta")):
        arguments = source.to(on), index.to(on)
        for call in (
            partial(torch_ops.gather, *arguments),
            partial(torch_ops.gather_elements, arguments[0], arguments[1][:, None], 0),
        ):
            with pytest.raises(ValueError, match=message):
                call(mode="fill", fill_value=fill)


@pytest.mark.parametrize("index_dtype", [torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("rows", [True, False])
def test_entries_from_the_end(
    device: torch.device, sync_mode: None, index_dtype: torch.dtype, rows: bool
) -> None:
    """As in torch, take_along_dim reads -n to n - 1, and gather_elements 0 to n - 1."""
    source = values_for((4, 3), device, torch.float64).requires_grad_()
    index = torch.tensor([[-1], [0], [-4], [3], [-2]], dtype=index_dtype, device=device)
    if not rows:
        index = (index + torch.tensor([[0, 4, 0]], dtype=index_dtype, device=device)) % 8 - 4
    outputs = [
        take(source, index.long() if take is torch.take_along_dim else index, 0)
        for take in (torch_ops.take_along_dim, torch.take_along_dim)
    ]
    assert_same(*outputs, "take_along_dim")
    weights = values_for((5, 3), device, torch.float64)
    gradients = [torch.autograd.grad(output, source, weights)[0] for output in outputs]
    torch.testing.assert_close(*gradients)
    for entry in (-5, 4):
        bad = index.clone()
        bad[3, 0] = entry
        message = rf"index\[3, 0\] is {entry}, out of range for an axis of size 4.*between -4 and 3"
        with pytest.raises(IndexError, match="take_along_dim: " + message):
            torch_ops.take_along_dim(source, bad, 0)
    with pytest.raises(ValueError, match='fill_value is for mode="fill", but mode is "raise"'):
        torch_ops.take_along_dim(source, index, 0, fill_value=1.0)
    with pytest.raises(IndexError, match=r"gather_elements: .*between 0 and 3"):
        torch_ops.gather_elements(source, index, 0)


def test_bad_modes(device: torch.device) -> None:
    source = torch.zeros(3, device=device)
    index = torch.zeros(2, dtype=torch.int64, device=device)
    calls = [
        partial(torch_ops.gather, source, index),
        partial(torch_ops.batch_gather, source, index),
        partial(torch_ops.gather_elements, source, index, 0),
        partial(torch_ops.take_along_dim, source, index, 0),
        partial(torch_ops.scatter_add, source[:2], index, 3),
        partial(torch_ops.scatter_elements_add, source[:2], index, (3,), 0),
        partial(torch_ops.scatter, source[:2], index, 3),
        partial(torch_ops.scatter, source[:2], index, 3, reduce="amax"),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r'"raise", "wrap", "clip", "fill" or "unchecked".*"no"'
        ):
            call(mode="no")
        with pytest.raises(TypeError, match="mode must be a string, but it is 1"):
            call(mode=1)
    for call in calls[:4]:
        with pytest.raises(ValueError, match='fill_value is for mode="fill", but mode is "clip"'):
            call(mode="clip", fill_value=1)
        with pytest.raises(ValueError, match='fill_value is for mode="fill", but mode is "raise"'):
            call(fill_value=1)
        with pytest.raises(TypeError, match="fill_value must be a number, but a Tensor"):
            call(mode="fill", fill_value=source[0])


@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [
        (torch.float8_e4m3fn, 449.0),
        (torch.float16, -65505.0),
        (torch.complex64, complex(0, 1e39)),
        (torch.uint64, 2**63),
    ],
)
def test_fills_beyond_the_dtype(
    device: torch.device, dtype: torch.dtype, fill_value: complex
) -> None:
    source, index = torch.zeros(2, dtype=dtype, device=device), torch.tensor([5], device=device)
    mask = torch.tensor([False, True], device=device)
    for call in (
        lambda: torch_ops.gather(source, index, mode="fill", fill_value=fill_value),
        lambda: torch_ops.masked_gather(source, mask, size=2, fill_value=fill_value),
    ):
        with pytest.raises(ValueError, match="gather: fill_value must"):
            call()


def test_fills_of_numpy(device: torch.device) -> None:
    source, index = torch.zeros(2, device=device), torch.tensor([5], device=device)
    for number in (np.float32(1.5), np.longdouble(1.5)):
        for output in (
            torch_ops.gather(source, index, mode="fill", fill_value=number),
            torch_ops.masked_gather(source, source > 0, size=1, fill_value=number),
            torch_ops.Gather(mode="fill", fill_value=number)(source, index),
        ):
            assert output.tolist() == [1.5]
    with pytest.raises(ValueError, match="fill_value must be a real number"):
        torch_ops.gather(source, index, mode="fill", fill_value=np.clongdouble(1.5j))


def test_plans_take_one_mode(device: torch.device) -> None:
    plan = torch_ops.gather_plan(torch.tensor([1, 0], device=device), 3)
    source = torch.zeros(3, device=device)
    assert torch_ops.gather(source, plan, mode="raise").tolist() == [0, 0]
    for call in (
        partial(torch_ops.gather, source, plan, mode="wrap"),
        partial(torch_ops.scatter_add, source[:2], plan, mode="wrap"),
    ):
        with pytest.raises(ValueError, match='a plan is made for mode="raise", but mode="wrap"'):
            call()
    with pytest.raises(ValueError, match="but fill_value=1 was given"):
        torch_ops.gather(source, plan, fill_value=1)


# ---- Any call -----------------------------------------------------------------------------------


GATHERED = (torch.uint8, torch.float16, torch.float32, torch.complex128, torch.int64)


@given(call=row_calls(), dtype=st.sampled_from(GATHERED), fill=st.sampled_from([None, 0, 3]))
def test_any_gather(
    device: torch.device, call: dict[str, Any], dtype: torch.dtype, fill: int | None
) -> None:
    case, mode = call["case"], call["mode"]
    source = other_layout(values_for(case.source, torch.device("cpu"), dtype), call["layout"])
    options: dict[str, Any] = {**case.kwargs, "mode": mode}
    if mode == "fill":
        options["fill_value"] = fill
    actual = torch_ops.gather(source.to(device), call["index"].to(device), **options)
    assert_same(actual, gather_by_mode(source, call["index"], **options), str(options))


@given(call=row_calls(all_batched=True), dtype=st.sampled_from(GATHERED))
def test_any_batch_gather(device: torch.device, call: dict[str, Any], dtype: torch.dtype) -> None:
    case, mode = call["case"], call["mode"]
    source = other_layout(values_for(case.source, torch.device("cpu"), dtype), call["layout"])
    expected = gather_by_mode(source, call["index"], **case.kwargs, mode=mode)
    actual = torch_ops.batch_gather(source.to(device), call["index"].to(device), mode=mode)
    assert_same(actual, expected, f"{case} {mode}")


@given(call=row_calls(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int16]))
def test_any_scatter_add(device: torch.device, call: dict[str, Any], dtype: torch.dtype) -> None:
    case = call["case"]
    generator = torch.Generator().manual_seed(sum(case.output))
    whole = torch.randint(-4, 4, case.output, generator=generator)  # sums are exact in any order
    values = other_layout(whole.to(dtype), call["layout"])
    options = {**case.kwargs, "mode": call["mode"]}
    size = case.source[case.axis]
    expected = scatter_add_by_mode(whole, call["index"], size, **options).to(dtype)
    for way in (None, True):
        actual = torch_ops.scatter_add(
            values.to(device), call["index"].to(device), size, **options, deterministic=way
        )
        assert_same(actual + 0, expected + 0, str(options))  # no zero is negative
