from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from gathering import (
    CASES,
    Case,
    bad_index,
    gather_reference,
    index_for,
    scatter_add_reference,
    values_for,
)
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from support import without_derivative
from torch import Tensor
from torch.utils import _pytree as pytree

import torch_ops
from torch_ops import GatherPlan

COMPLEX = (torch.complex64, torch.complex128)
INDEX_DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)
# Batches and axes before dim together: what a plan says of batches must be spread over slices.
SPREAD = [
    Case((3, 2, 7, 5), (3, 11), dim=2, batch_dims=1),
    Case((2, 3, 4, 7), (2, 3, 5), dim=-1, batch_dims=2),
    Case((3, 2, 2, 7, 4), (3, 4, 3), dim=3, batch_dims=1),
    Case((5, 300, 9, 33), (5, 700), dim=2, batch_dims=1),
]


def plan_for(case: Case, device: torch.device, dtype: torch.dtype = torch.int64) -> GatherPlan:
    index = index_for(case, device, dtype)
    return torch_ops.gather_plan(index, case.source[case.axis], **case.kwargs)


def parts(plan: GatherPlan) -> tuple[Any, ...]:
    """What the overloads take behind the data."""
    return plan.index, plan.rows, plan.order, plan.dim_size, plan.dim, plan.batch_dims


# ---- the overloads ------------------------------------------------------------------------------


def by_index(reference: Callable[..., Tensor], sums: bool) -> Callable[..., Tensor]:
    """A reference that leaves rows and order aside."""

    def call(
        data: Tensor, index: Tensor, _: Tensor, __: Tensor, size: int, dim: int, batch_dims: int
    ) -> Tensor:
        sizes = (size,) if sums else ()
        return reference(data, index, *sizes, dim, batch_dims=batch_dims)

    return call


def samples_of(
    shape: Callable[[Case], tuple[int, ...]],
) -> Callable[[torch.device, torch.dtype], Iterator[Sample]]:
    def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
        for case in CASES + SPREAD:
            yield Sample((values_for(shape(case), device, dtype), *parts(plan_for(case, device))))

    return samples


def smooth_samples_of(
    shape: Callable[[Case], tuple[int, ...]],
) -> Callable[[torch.device], Iterator[Sample]]:
    def samples(device: torch.device) -> Iterator[Sample]:
        for case in CASES:
            few_enough = max(torch.Size(case.source).numel(), torch.Size(case.output).numel()) <= 60
            if few_enough:
                values = values_for(shape(case), device, torch.float64)
                yield Sample((values, *parts(plan_for(case, device))))

    return samples


def sized_with(
    shape: Callable[[Case], tuple[int, ...]],
) -> Callable[[torch.device, int], Sample]:
    def sized(device: torch.device, size: int) -> Sample:
        # The plan has the size of the axis as a number, which is the same in each call.
        case = Case((size, 5, 3), (size, size + 2), batch_dims=1)
        return Sample(
            (values_for(shape(case), device, torch.float32), *parts(plan_for(case, device)))
        )

    return sized


def bad_by_plan(device: torch.device) -> Iterator[Sample]:
    """Of another shape than what the plan was made for."""
    plan = plan_for(Case((7, 3), (5,)), device)
    yield Sample((torch.ones(6, 3, device=device), *parts(plan)))
    yield Sample((torch.ones(3, device=device), plan.index, plan.rows[1:], *parts(plan)[2:]))


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


def source_shape(case: Case) -> tuple[int, ...]:
    return case.source


def output_shape(case: Case) -> tuple[int, ...]:
    return case.output


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """As in test_scatter.py: 16 bits are rounded once, and sums of n <= 700 are off by n eps."""
    info = torch.finfo(dtype)
    summed = torch.finfo(torch.float32) if info.bits == 16 else info
    return 0.51 * info.eps if info.bits == 16 else 0.0, 700 * summed.eps


OPS = [
    Op(
        "gather.plan",
        torch.ops.torch_ops.gather.plan,
        by_index(gather_reference, sums=False),
        samples_of(source_shape),
        smooth_samples=smooth_samples_of(source_shape),
        sized=sized_with(source_shape),
        bad=bad_by_plan,
        shared=(1, 2, 3),
        node="GatherByPlanBackward",
    ),
    Op(
        "scatter_add.plan",
        torch.ops.torch_ops.scatter_add.plan,
        by_index(scatter_add_reference, sums=True),
        samples_of(output_shape),
        tolerance,
        dtypes=(*FLOATS, *COMPLEX),
        smooth_samples=smooth_samples_of(output_shape),
        sized=sized_with(output_shape),
        bad=bad_by_plan,
        shared=(1, 2, 3),
        node="ScatterAddByPlanBackward",
    ),
]
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


class TestChecks(OpChecks):
    pass


# ---- what a plan is -----------------------------------------------------------------------------


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


# ---- calls with a plan --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.int64], ids=str
)
def test_equals_calls_without_a_plan(device: torch.device, dtype: torch.dtype) -> None:
    for case in CASES + SPREAD:
        source = values_for(case.source, device, dtype)
        values = values_for(case.output, device, dtype)
        plan = plan_for(case, device)
        gathered = torch_ops.gather(source, plan.index, **case.kwargs)
        assert_same(torch_ops.gather(source, plan), gathered, str(case))
        # Exactly: the plan saves the sort and changes no order.
        summed = torch_ops.scatter_add(
            values, plan.index, plan.dim_size, **case.kwargs, deterministic=True
        )
        assert_same(torch_ops.scatter_add(values, plan), summed, str(case))
        if case.dim is None and case.batch_dims == len(case.index) - 1:
            assert_same(torch_ops.batch_gather(source, plan), gathered, str(case))
            assert_same(torch_ops.BatchGather()(source, plan), gathered, str(case))
        assert_same(torch_ops.Gather(**case.kwargs)(source, plan), gathered, str(case))


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_gradients_are_the_same_on_every_run(device: torch.device, dtype: torch.dtype) -> None:
    """Short rows too, which without a plan are added in no given order on CUDA."""
    for shape, count in [((2, 50, 1), 3000), ((2, 2, 50, 3), 3000), ((20, 70), 500)]:
        batch_dims = len(shape) > 2
        index = torch.randint(shape[-2], (2,) * batch_dims + (count,), device=device)
        plan = torch_ops.gather_plan(index, shape[-2], dim=-2, batch_dims=batch_dims)
        source = values_for(shape, device, dtype).requires_grad_()
        output = torch_ops.gather(source, plan)
        weights = values_for(tuple(output.shape), device, dtype)
        (first,) = torch.autograd.grad(output, source, weights, retain_graph=True)
        for _ in range(3):
            (again,) = torch.autograd.grad(output, source, weights, retain_graph=True)
            assert_same(again, first, f"{shape}")
        index_grad = torch_ops.scatter_add(
            weights, index, shape[-2], -2, batch_dims=int(batch_dims), deterministic=True
        )
        assert_same(index_grad, first, f"{shape}")


def test_gradient_saves_the_plan_alone(device: torch.device) -> None:
    source = values_for((6, 3), device, torch.float32).requires_grad_()
    leaf = source * 1
    plan = torch_ops.gather_plan(torch.tensor([5, 0, 5], device=device), 6)
    output = torch_ops.gather(leaf, plan)
    with torch.no_grad():
        leaf.zero_()  # allowed: the backward needs no source
    output.sum().backward()
    assert source.grad.sum(1).tolist() == [3, 0, 0, 0, 0, 6]
    output = torch_ops.gather(source, plan)
    plan.order.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


class Step(torch.nn.Module):
    """There and back, so that both overloads and their derivatives are in one graph."""

    def forward(self, source: Tensor, plan: GatherPlan) -> Tensor:
        return torch_ops.scatter_add(torch_ops.gather(source, plan).sin(), plan)


step = Step()


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_with_a_plan_as_argument(device: torch.device, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for case in (Case((2, 7, 3), (2, 5), batch_dims=1), Case((2, 9, 3), (2, 4), batch_dims=1)):
        plan = plan_for(case, device)
        results = []
        for function in (step, compiled):
            source = values_for(case.source, device, torch.float32).requires_grad_()
            output = function(source, plan)
            output.cos().sum().backward()
            results.append((output, source.grad))
        torch.testing.assert_close(results[1], results[0])


def test_compile_makes_a_plan(device: torch.device) -> None:
    def function(source: Tensor, index: Tensor) -> Tensor:
        return step(source, torch_ops.gather_plan(index, source.shape[1], batch_dims=1))

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for size in (7, 9, 11):  # dynamic from the second on
        case = Case((2, size, 3), (2, 5), batch_dims=1)
        call = values_for(case.source, device, torch.float32), index_for(case, device)
        torch.testing.assert_close(compiled(*call), function(*call))


def test_export(device: torch.device) -> None:
    case = Case((2, 7, 3), (2, 5), batch_dims=1)
    source, plan = values_for(case.source, device, torch.float32), plan_for(case, device)
    exported = torch.export.export(step, (source, plan))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    with torch.serialization.safe_globals([GatherPlan]):  # the example inputs hold one
        loaded = torch.export.load(file).module()
    torch.testing.assert_close(loaded(source, plan), step(source, plan))


def test_transforms(device: torch.device) -> None:
    case = Case((2, 7, 3), (2, 5), batch_dims=1)
    plan = plan_for(case, device)
    source = values_for((4, *case.source), device, torch.float64)

    def loss(source: Tensor, plan: GatherPlan) -> Tensor:
        return step(source, plan).square().sum()

    def plain(source: Tensor) -> Tensor:
        rows = torch_ops.gather(source, plan.index, batch_dims=1).sin()
        return torch_ops.scatter_add(rows, plan.index, 7, batch_dims=1).square().sum()

    grad = torch.func.grad
    torch.testing.assert_close(grad(loss)(source[0], plan), grad(plain)(source[0]))
    expected = torch.stack([grad(plain)(one) for one in source])
    actual = torch.vmap(grad(loss), in_dims=(0, None))(source, plan)
    torch.testing.assert_close(actual, expected)
    _, tangent = torch.func.jvp(lambda s: loss(s, plan), (source[0],), (source[1],))
    torch.testing.assert_close(tangent, (grad(plain)(source[0]) * source[1]).sum())


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vmap_over_the_data(device: torch.device, axis: int) -> None:
    for case in [Case((7, 3), (5,)), Case((4, 7), (5,), 1), *SPREAD[:2]]:
        plan = plan_for(case, device)
        for op, shape in ((torch_ops.gather, case.source), (torch_ops.scatter_add, case.output)):
            data = values_for((3, *shape), device, torch.float32)
            expected = torch.stack([op(one, plan) for one in data])
            actual = torch.vmap(op, in_dims=(axis, None))(data.movedim(0, axis), plan)
            assert_same(actual, expected, f"{op} {case}")


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
        ({"batch_dims": 1, "dim": 0}, ValueError, r"one of the 1 batch axes.*but it is 0\."),
    ],
)
def test_bad_arguments(
    device: torch.device, options: dict[str, int], error: type[Exception], message: str
) -> None:
    for on in (device, "meta"):
        index = torch.zeros(3, 4, dtype=torch.int64, device=on)
        with pytest.raises(error, match=f"^gather_plan: .*{message}"):
            torch_ops.gather_plan(index, **{"dim_size": 5, **options})


def test_wrong_types(device: torch.device) -> None:
    with pytest.raises(TypeError, match="index must be uint8, int16, int32 or int64, but it is"):
        torch_ops.gather_plan(torch.zeros(3, device=device), 4)
    with pytest.raises(TypeError, match="index must be a tensor, but a list was given"):
        torch_ops.gather_plan([0, 1], 4)
    index = torch.zeros(3, dtype=torch.int64, device=device)
    with pytest.raises(TypeError, match=r"dim_size is missing.*gather_plan"):
        torch_ops.scatter_add(index, index)
    plan = torch_ops.gather_plan(index, 4)
    with pytest.raises(TypeError, match="gather: source must be a tensor, but a list was given"):
        torch_ops.gather([0, 1], plan)
    with pytest.raises(TypeError, match="values must be a tensor, but a GatherPlan was given"):
        torch_ops.scatter_add(plan, plan)
    rows = plan.rows.long()
    with pytest.raises(TypeError, match="must both be int32 or both int64, but they are Long and"):
        torch.ops.torch_ops.gather.plan(index, index, rows, plan.order, 4, 0, 0)
    with pytest.raises(ValueError, match=r"one element for each of the 3 entries.*\[2\]"):
        torch.ops.torch_ops.scatter_add.plan(index, index, plan.rows[1:], plan.order, 4, 0, 0)


def test_a_plan_that_does_not_fit(device: torch.device) -> None:
    index = torch.zeros(2, 5, dtype=torch.int64, device=device)
    plan = torch_ops.gather_plan(index, 7, batch_dims=1)
    source = torch.zeros(2, 7, 3, device=device)
    message = r"the plan was made for an axis of size 7, but axis 1 of source .*\[2, 6, 3\] has s"
    with pytest.raises(ValueError, match=message):
        torch_ops.gather(source[:, 1:], plan)
    with pytest.raises(ValueError, match="must have the same batch axes"):
        torch_ops.gather(source[:1], plan)
    with pytest.raises(ValueError, match=r"made for dim=1 and batch_dims=1, but dim=2 and batch_d"):
        torch_ops.gather(source, plan, 2)
    with pytest.raises(ValueError, match=r"but dim=None and batch_dims=2 were given. Leave both"):
        torch_ops.scatter_add(source[:, :5], plan, batch_dims=2)
    with pytest.raises(ValueError, match=r"made for dim_size=7, but dim_size=8 was given"):
        torch_ops.scatter_add(source[:, :5], plan, 8)
    assert torch_ops.gather(source, plan, 1, batch_dims=1).shape == (2, 5, 3)
    assert torch_ops.scatter_add(source[:, :5], plan, 7, 1, batch_dims=1).shape == (2, 7, 3)
    for other in (
        torch_ops.gather_plan(index, 7),
        torch_ops.gather_plan(index, 7, dim=2, batch_dims=1),
        torch_ops.gather_plan(index[0, 0], 7),
    ):
        with pytest.raises(ValueError, match=r"batch_gather: a plan must be made with batch_dims"):
            torch_ops.batch_gather(source, other)


def test_a_plan_on_another_device(device: torch.device) -> None:
    other = "meta" if device.type == "cpu" else "cpu"
    plan = torch_ops.gather_plan(torch.zeros(3, dtype=torch.int64, device=other), 4)
    data = torch.zeros(4, device=device)
    for op, name, given in (
        (torch_ops.gather, "source", data),
        (torch_ops.scatter_add, "values", data[:3]),
    ):
        message = (
            rf"{name} and the plan must be on one device, but {name} is on {given.device} and the "
            rf"plan is on {other}: use plan.to\({name}.device\)"
        )
        with pytest.raises(RuntimeError, match=message):
            op(given, plan)


def test_vmap_over_a_plan(device: torch.device) -> None:
    index = torch.zeros(3, 5, dtype=torch.int64, device=device)
    source = torch.zeros(3, 5, device=device)
    plan = torch_ops.gather_plan(index, 5, batch_dims=1)
    with pytest.raises(RuntimeError, match="cannot map over the index of a plan"):
        torch.vmap(lambda i: torch_ops.gather_plan(i, 5).rows)(index)
    for op in (torch_ops.gather, torch_ops.scatter_add):
        flat = GatherPlan(index, *(part.view(3, 5) for part in (plan.rows, plan.order)), 5, 0, 0)
        with pytest.raises(
            RuntimeError, match=r"torch.vmap cannot map over a plan. Give it in_dim"
        ):
            torch.vmap(op)(source, flat)
    # A plan made inside, of an index that is the same for all.
    inside = torch.vmap(lambda s: torch_ops.gather(s, torch_ops.gather_plan(index[0], 5)))(source)
    assert inside.shape == (3, 5)


# ---- on a GPU -----------------------------------------------------------------------------------


def test_capture(device: torch.device) -> None:
    if device.type == "cpu":
        return
    index = torch.randint(50, (4, 300), device=device)
    plan = torch_ops.gather_plan(index, 50, batch_dims=1)
    values = values_for((4, 300, 3), device, torch.float32)
    expected = torch_ops.scatter_add(values, plan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch_ops.scatter_add(values, plan)
    graph.replay()
    assert_same(captured, expected, "replayed")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        values.clone()  # of an empty graph torch warns
        with pytest.raises(RuntimeError, match="Make the plan before the capture"):
            torch_ops.gather_plan(index, 50, batch_dims=1)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for case in CASES + SPREAD[:3]:
        plan = plan_for(case, device, torch.int32)
        source = values_for(case.source, device, torch.float32).requires_grad_()
        output = torch_ops.gather(source, plan)
        output.sum().backward()
        index = plan.index.cpu().long()
        ones = torch.ones(case.output, dtype=torch.float64)
        expected = scatter_add_reference(ones, index, plan.dim_size, **case.kwargs)
        assert torch.equal(source.grad.cpu().double(), expected), case


@pytest.mark.slow
@pytest.mark.parametrize("slices", [1, 2])
def test_more_than_two_to_the_31_rows(device: torch.device, slices: int) -> None:
    """In one slice, where the plan has 64 bits, or in two, where the call must widen it. 8 GiB."""
    size = 2**30 // slices + 1
    index = torch.tensor([[size - 1, 3, size - 1], [0, size - 1, 0]], device=device)
    plan = torch_ops.gather_plan(index, size, dim=2, batch_dims=1)
    assert plan.rows.dtype == (torch.int64 if slices == 1 else torch.int32)
    values = torch.tensor([1.0, 2.0, 4.0], device=device).expand(2, slices, 3)
    result = torch_ops.scatter_add(values, plan)
    assert result[0, :, [3, size - 1]].tolist() == [[2, 5]] * slices
    assert result[1, :, [0, size - 1]].tolist() == [[5, 2]] * slices
    assert result.sum() == 14 * slices
