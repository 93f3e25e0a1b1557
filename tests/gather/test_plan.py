"""gather_plan and GatherPlan: what a plan holds, how it is kept and moved, what is refused."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from gathering import CASES, Case, bad_index, index_for, values_for
from op_checks import Op, Sample, assert_same
from planning import SPREAD, parts, plan_for
from support import without_derivative
from torch.utils import _pytree as pytree

import torch_ops
from torch_ops import GatherPlan

INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def index_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES + SPREAD:
        yield Sample((index_for(case, device), case.source[case.axis]), case.kwargs)


def sized_index(device: torch.device, size: int) -> Sample:
    case = Case((size, 5, 3), (size, size + 2), batch_dims=1)
    return Sample((index_for(case, device), 5), case.kwargs)


def bad_indices(device: torch.device) -> Iterator[Sample]:
    for index in bad_index(index_for(Case((7,), (5,)), device), 7):
        yield Sample((index, 7))
    yield Sample((torch.zeros(3, dtype=torch.int64, device=device), -1))


OTHER_OPS = [
    Op(
        "gather_plan",
        torch.ops.torch_ops.gather_plan.default,
        reference=torch.sort,
        samples=index_samples,
        sized=sized_index,
        bad=bad_indices,
        shared=(0,),
        exempt={
            **without_derivative("an index has no derivative"),
            "vmap": "a plan is of one index: that of stacked ones has batch_dims",
            "nested_vmap": "a plan is of one index: that of stacked ones has batch_dims",
            "cuda_graph": "it waits for the GPU, so that a plan with a bad entry does not exist",
            "reduce_overhead": "it waits for the GPU, which a CUDA graph cannot",
        },
    ),
]


@pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
def test_rows_and_order(device: torch.device, dtype: torch.dtype) -> None:
    for case in CASES + SPREAD:
        if case.source[case.axis] > torch.iinfo(dtype).max:
            continue
        index = index_for(case, device, dtype)
        size = case.source[case.axis]
        plan = torch_ops.gather_plan(index, size, **case.kwargs)
        assert plan.index is index
        assert (plan.dim_size, plan.batch_dims) == (size, case.batch_dims)
        assert plan.dim == (case.batch_dims if case.dim is None else case.dim)
        batch = int(np.prod(case.index[: case.batch_dims], dtype=np.int64))
        entries = index.cpu().long().numpy().reshape(batch, -1 if index.numel() else 0)
        named = (entries + size * np.arange(batch)[:, None]).reshape(-1)
        order = np.argsort(named, kind="stable")
        assert plan.rows.dtype == plan.order.dtype == torch.int32
        assert plan.order.tolist() == order.tolist(), case
        assert plan.rows.tolist() == named[order].tolist(), case


def test_opcheck(device: torch.device) -> None:
    op = torch.ops.torch_ops.gather_plan.default
    for case in (CASES[0], CASES[3], CASES[5], SPREAD[1]):
        arguments = index_for(case, device), case.source[case.axis]
        torch.library.opcheck(op, arguments, {"batch_dims": case.batch_dims})
        torch.library.opcheck(op, arguments)


def test_strided_index(device: torch.device) -> None:
    index = index_for(Case((9, 2), (3, 4, 5)), device)
    wide = torch.stack([index, index + 1], dim=-1)  # picked apart again below
    other = index.movedim(0, 2).contiguous().movedim(2, 0)
    repeated = index[:1, :1].expand(3, 4, 5)
    for batch_dims in (0, 1, 2, 3):
        for same, strided in [
            (index, wide[..., 0]),
            (index, other),
            (repeated.contiguous(), repeated),
        ]:
            expected = torch_ops.gather_plan(same, 9, batch_dims=batch_dims)
            actual = torch_ops.gather_plan(strided, 9, batch_dims=batch_dims)
            assert torch.equal(actual.rows, expected.rows)
            assert torch.equal(actual.order, expected.order)
            source = values_for((*index.shape[:batch_dims], 9, 2), device, torch.float32)
            assert torch.equal(
                torch_ops.gather(source, actual),
                torch_ops.gather(source, same, batch_dims=batch_dims),
            )


@pytest.mark.parametrize("on", ["cpu", "meta"])
def test_64_bits_where_32_do_not_do(on: str) -> None:
    """On the CPU alone: a call that adds to so many rows takes as much memory."""
    for batch, size, dtype in [
        (1, 2**31 - 1, torch.int32),
        (1, 2**31, torch.int64),
        (2, 2**30, torch.int64),
        (2, 2**30 - 1, torch.int32),
        (4, 2**62, torch.int64),
        (0, 2**31 - 1, torch.int32),
    ]:
        index = torch.full((batch, 3), min(size, 2**62) - 1, device=on)
        plan = torch_ops.gather_plan(index, size, batch_dims=1)
        assert plan.rows.dtype == plan.order.dtype == dtype
        if on == "cpu" and batch in (1, 2):
            assert plan.rows.tolist() == [size - 1] * 3 + [2 * size - 1] * 3 * (batch - 1)


def test_large_plan(device: torch.device) -> None:
    """Enough entries for the parallel ways of sorting; equal rows stay in order."""
    index = torch.randint(1000, (4, 50_000), device=device)
    plan = torch_ops.gather_plan(index, 1000, batch_dims=1)
    named = index + 1000 * torch.arange(4, device=device)[:, None]
    rows, order = torch.sort(named.flatten(), stable=True)
    assert torch.equal(plan.rows.long(), rows)
    assert torch.equal(plan.order.long(), order)


def test_pickles_and_copies(device: torch.device) -> None:
    plan = plan_for(SPREAD[0], device)
    file = io.BytesIO()
    torch.save(plan, file)
    file.seek(0)
    with torch.serialization.safe_globals([GatherPlan]):
        loaded = torch.load(file)
    others = [
        loaded,
        pickle.loads(pickle.dumps(plan)),
        copy.copy(plan),
        copy.deepcopy(plan),
        plan.to("cpu").to(device),
    ]
    values = values_for(SPREAD[0].output, device, torch.float32)
    for other in others:
        assert type(other) is GatherPlan
        assert repr(other) == repr(plan)
        for name in ("index", "rows", "order"):
            assert_same(getattr(other, name), getattr(plan, name), name)
            assert getattr(other, name).device == getattr(plan, name).device
        assert torch.equal(
            torch_ops.scatter_add(values, other), torch_ops.scatter_add(values, plan)
        )


def test_to(device: torch.device) -> None:
    plan = plan_for(SPREAD[0], device)
    there = plan.to("meta")
    assert {there.index.device.type, there.rows.device.type, there.order.device.type} == {"meta"}
    assert parts(there)[3:] == parts(plan)[3:]
    assert plan.to(device).rows is plan.rows
    output = torch_ops.gather(torch.empty(SPREAD[0].source, device="meta"), there)
    assert output.shape == SPREAD[0].output
    for device_like, what in ((torch.float32, "torch.float32"), (True, "a bool"), ([0], "a list")):
        with pytest.raises(TypeError, match=rf"^GatherPlan\.to: device must be .* but {what} was"):
            plan.to(device_like)


def test_its_numbers_are_ints(device: torch.device) -> None:
    """Not NumPy's, which cannot be saved, nor a tensor that may be overwritten."""
    index, size = torch.tensor([[2, 0]], device=device), torch.tensor(5)
    plan = torch_ops.gather_plan(index, size, dim=np.int64(1), batch_dims=torch.tensor(1))
    known = [torch_ops.plan_cache(index, number) for number in (np.int32(5), size.clone())]
    size.fill_(9)
    for made in (plan, known[1]):
        numbers = (made.dim_size, made.dim, made.batch_dims)
        assert all(type(number) is int for number in numbers) and made.dim_size == 5


def test_is_frozen_and_shows_no_values(device: torch.device) -> None:
    plan = plan_for(Case((2, 7, 3), (2, 5), batch_dims=1), device, torch.int16)
    assert repr(plan) == (
        "GatherPlan(index=int16[2, 5], dim_size=7, dim=1, batch_dims=1, "
        f"device='{plan.index.device}')"
    )
    with pytest.raises(FrozenInstanceError):
        plan.dim_size = 8
    assert plan == plan and plan != copy.copy(plan)  # identity: tensors have no one truth value
    assert len({plan, plan}) == 1


def test_pytree(device: torch.device) -> None:
    plan = plan_for(Case((2, 7, 3), (2, 5), dim=-2, batch_dims=1), device)
    leaves, spec = pytree.tree_flatten(plan)
    assert [leaf is part for leaf, part in zip(leaves, parts(plan), strict=False)] == [True] * 3
    assert spec == pytree.treespec_loads(pytree.treespec_dumps(spec))
    again = pytree.tree_unflatten(leaves, spec)
    assert all(a is b for a, b in zip(parts(again), parts(plan), strict=True))
    keys = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(plan)[0]]
    assert keys == [".index", ".rows", ".order"]


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, 4])
def test_out_of_range_raises_at_once(device: torch.device, bad: int) -> None:
    index = torch.tensor([[0, 1, 2], [3, bad, 0]], device=device)
    message = (
        rf"^gather_plan: index\[1, 1\] is {bad}, out of range for an axis of size 4: "
        r"it must be between 0 and 3\.$"
    )
    for batch_dims in (0, 1, 2):
        with pytest.raises(IndexError, match=message):
            torch_ops.gather_plan(index, 4, batch_dims=batch_dims)
    index[1, 1] = 3
    assert torch_ops.gather_plan(index, 4).order.tolist() == [0, 5, 1, 2, 3, 4]


def test_an_earlier_error_is_not_blamed_on_the_plan(device: torch.device) -> None:
    index = torch.tensor([0, 9], device=device)
    if device.type == "cpu":
        return  # there each call has raised its own
    torch_ops.gather(torch.ones(3, device=device), index)
    with pytest.raises(IndexError, match=r"^gather: index\[1\] is 9.*by an earlier call"):
        torch_ops.gather_plan(index, 10)
    assert torch_ops.gather_plan(index, 10).rows.tolist() == [0, 9]


def test_an_axis_of_size_0(device: torch.device) -> None:
    with pytest.raises(IndexError, match="but the axis has size 0: no entry is allowed"):
        torch_ops.gather_plan(torch.tensor([0], device=device), 0)
    plan = torch_ops.gather_plan(torch.zeros(2, 0, dtype=torch.int64, device=device), 0)
    assert plan.rows.shape == plan.order.shape == (0,)
    assert torch_ops.gather(torch.zeros(0, 3, device=device), plan).shape == (2, 0, 3)
    assert torch_ops.scatter_add(torch.zeros(2, 0, 3, device=device), plan).shape == (0, 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim_size": -1}, ValueError, "dim_size must not be negative, but it is -1"),
        ({"batch_dims": 3}, ValueError, r"batch_dims must be between 0 and index.dim\(\) = 2"),
        ({"batch_dims": -1}, ValueError, "batch_dims must be between 0"),
        (
            {"batch_dims": 1, "dim": 0},
            ValueError,
            r"must not be a batch axis \(batch_dims=1\), but it is 0\.",
        ),
    ],
)
def test_bad_arguments(
    device: torch.device, options: dict[str, int], error: type[Exception], message: str
) -> None:
    for on in (device, "meta"):
        index = torch.zeros(3, 4, dtype=torch.int64, device=on)
        with pytest.raises(error, match=f"^gather_plan: .*{message}"):
            torch_ops.gather_plan(index, **{"dim_size": 5, **options})
