"""gather and scatter with a plan: the same results, gradients, transforms and errors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from gathering import CASES, Case, gather_reference, index_for, scatter_add_reference, values_for
from modes import scatter_reference
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from planning import SPREAD, parts, plan_for
from torch import Tensor

import torch_ops
from torch_ops import GatherPlan

COMPLEX = (torch.complex64, torch.complex128)
REDUCES = ("sum", "mean", "amax", "amin", "prod")


def by_index(reference: Callable[..., Tensor], sums: bool) -> Callable[..., Tensor]:
    """A reference that leaves rows and order aside."""

    def call(
        data: Tensor,
        index: Tensor,
        _: Tensor,
        __: Tensor,
        size: int,
        dim: int,
        batch_dims: int,
        **options: str,
    ) -> Tensor:
        sizes = (size,) if sums else ()
        return reference(data, index, *sizes, dim, batch_dims=batch_dims, **options)

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


def each_reduction(samples: Callable[..., Iterator[Sample]]) -> Callable[..., Iterator[Sample]]:
    def reductions(*args: object) -> Iterator[Sample]:
        for sample in samples(*args):
            for reduce in REDUCES:
                yield Sample(sample.args, {"reduce": reduce})

    return reductions


def smooth_values(device: torch.device) -> Iterator[Sample]:
    for case in (Case((4,), (6,)), Case((2, 3, 2), (2, 2, 2), batch_dims=1), Case((2, 3), (4,), 1)):
        values = values_for(case.output, device, torch.float64)
        yield Sample((values, *parts(plan_for(case, device))))


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


def source_shape(case: Case) -> tuple[int, ...]:
    return case.source


def output_shape(case: Case) -> tuple[int, ...]:
    return case.output


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """As sum_tolerance: 16 bits are rounded once, and sums of n <= 700 are off by n eps."""
    info = torch.finfo(dtype)
    summed = torch.finfo(torch.float32) if info.bits == 16 else info
    return 0.51 * info.eps if info.bits == 16 else 0.0, 700 * summed.eps


def product_tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """As tolerance, and n roundings of a product of n numbers, here some 130."""
    rtol, atol = tolerance(dtype)
    return rtol + 130 * torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps, atol


def sized_mean(device: torch.device, size: int) -> Sample:
    return Sample(sized_with(output_shape)(device, size).args, {"reduce": "mean"})


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
    Op(
        "scatter.plan",
        torch.ops.torch_ops.scatter.plan,
        by_index(scatter_reference, sums=True),
        each_reduction(samples_of(output_shape)),
        product_tolerance,
        smooth_samples=each_reduction(smooth_values),
        sized=sized_mean,
        bad=each_reduction(bad_by_plan),
        shared=(1, 2, 3),
        node="ScatterAddByPlanBackward",
    ),
]


class TestChecks(OpChecks):
    pass


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


@pytest.mark.slow
@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64], ids=str
)
def test_reductions_equal_those_without_a_plan(
    device: torch.device, dtype: torch.dtype, reduce: str
) -> None:
    for case in [*CASES, *SPREAD, Case((2, 20, 64), (2, 3000), batch_dims=1)]:
        values = values_for(case.output, device, dtype)
        plan = plan_for(case, device)
        if reduce == "prod" and dtype.is_floating_point:
            values = torch.where(values.abs() < 0.1, 0, values.sign())  # exact, in any order
        values.requires_grad_(dtype.is_floating_point)
        options = {**case.kwargs, "reduce": reduce, "deterministic": True}
        # Sums of few entries, and of short rows, that are not rounded are sorted in both cases.
        expected = torch_ops.scatter(values, plan.index, plan.dim_size, **options)
        actual = torch_ops.scatter(values, plan, reduce=reduce)
        assert_same(actual, expected, str(case))
        if dtype.is_floating_point:
            grad_output = values_for(tuple(actual.shape), device, dtype)
            (grad,) = torch.autograd.grad(actual, values, grad_output)
            (expected_grad,) = torch.autograd.grad(expected, values, grad_output)
            assert_same(grad, expected_grad, str(case))


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
        reductions = [
            (partial(torch_ops.scatter, reduce=reduce), case.output) for reduce in REDUCES
        ]
        for op, shape in (
            (torch_ops.gather, case.source),
            (torch_ops.scatter_add, case.output),
            *reductions,
        ):
            data = values_for((3, *shape), device, torch.float32)
            expected = torch.stack([op(one, plan) for one in data])
            actual = torch.vmap(op, in_dims=(axis, None))(data.movedim(0, axis), plan)
            assert_same(actual, expected, f"{op} {case}")


def test_index_and_embedding(device: torch.device) -> None:
    """Their results, gradients and options are those with the index."""
    index = torch.tensor([[4, 0, 4], [4, 2, 0]], device=device)
    plan = torch_ops.gather_plan(index, 5)
    table = values_for((5, 3), device, torch.float32).requires_grad_()
    assert_same(torch_ops.index(table, plan), table[index], "index")
    compiled = torch.compile(torch_ops.index, fullgraph=True, backend="aot_eager")
    assert_same(compiled(table, plan), table[index], "compiled")
    grad_output = values_for((2, 3, 3), device, torch.float32)
    for options in ({}, {"padding_idx": -1}, {"scale_grad_by_freq": True}, {"sparse": True}):
        grads = []
        for picks in (index, plan):
            rows = torch_ops.embedding(picks, table, **options)
            assert_same(rows, table[index], f"{options}")
            grads.append(torch.autograd.grad(rows, table, grad_output)[0].to_dense())
        torch.testing.assert_close(*grads)
    weights = values_for((3, 5, 3), device, torch.float32)

    def loss(w: Tensor, picks: Tensor | GatherPlan) -> Tensor:
        return (torch_ops.embedding(picks, w, padding_idx=0) ** 2).sum()

    actual, expected = (
        torch.vmap(torch.func.grad(loss), (0, None))(weights, picks) for picks in (plan, index)
    )
    torch.testing.assert_close(actual, expected)
    ours, theirs = weights[0].clone(), weights[0].clone()
    torch_ops.embedding(plan, ours, max_norm=0.5)
    torch_ops.embedding(index, theirs, max_norm=0.5)
    assert torch.equal(ours, theirs)


# ---- bad input ----------------------------------------------------------------------------------


def test_wrong_types(device: torch.device) -> None:
    with pytest.raises(
        TypeError, match="index must be uint8, int8, int16, int32 or int64, but it is"
    ):
        torch_ops.gather_plan(torch.zeros(3, device=device), 4)
    with pytest.raises(TypeError, match="index must be a tensor, but a list was given"):
        torch_ops.gather_plan([0, 1], 4)
    index = torch.zeros(3, dtype=torch.int64, device=device)
    for op in (torch_ops.scatter_add, torch_ops.scatter):
        with pytest.raises(TypeError, match=rf"{op.__name__}: dim_size is missing.*gather_plan"):
            op(index, index)
    plan = torch_ops.gather_plan(index, 4)
    with pytest.raises(TypeError, match="scatter: values must be a tensor, but a list was given"):
        torch_ops.scatter([0, 1, 2], plan)
    with pytest.raises(TypeError, match="scatter: reduce must be a string, but it is None"):
        torch_ops.scatter(index, plan, reduce=None)
    for reduce in ("sum", "mean", "amax", "prod"):
        with pytest.raises(TypeError, match=r"^scatter: values must be .*, but it is torch.bool"):
            torch_ops.scatter(index.bool(), plan, reduce=reduce)
    with pytest.raises(TypeError, match="gather: source must be a tensor, but a list was given"):
        torch_ops.gather([0, 1], plan)
    with pytest.raises(TypeError, match="values must be a tensor, but a GatherPlan was given"):
        torch_ops.scatter_add(plan, plan)
    rows = plan.rows.long()
    with pytest.raises(TypeError, match=r"int32 or both int64, but they are torch\.int64 and"):
        torch.ops.torch_ops.gather.plan(index, index, rows, plan.order, 4, 0, 0)
    with pytest.raises(ValueError, match=r"as many elements as its index has entries \(3\).*\[2\]"):
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
    with pytest.raises(ValueError, match=r"made for dim=1 and batch_dims=1, but dim=2 was given"):
        torch_ops.gather(source, plan, 2)
    with pytest.raises(ValueError, match=r"1, but batch_dims=2 was given. Leave out dim and"):
        torch_ops.scatter_add(source[:, :5], plan, batch_dims=2)
    for op in (torch_ops.scatter_add, torch_ops.scatter):
        with pytest.raises(
            ValueError, match=rf"^{op.__name__}: the plan was made for dim_size=7, but dim_size=8 w"
        ):
            op(source[:, :5], plan, 8)
    for reduce in REDUCES:
        reduced = partial(torch_ops.scatter, source[:, :5], plan, reduce=reduce)
        with pytest.raises(ValueError, match=r"^scatter: the plan was made for dim=1 and batch_d"):
            reduced(dim=0)
        with pytest.raises(ValueError, match=r'^scatter: a plan is made for mode="raise", but mo'):
            reduced(mode="fill")
        with pytest.raises(ValueError, match=r"^scatter: values must have index's axes at dim"):
            torch_ops.scatter(source[:, :4], plan, reduce=reduce)
        assert reduced(7, 1, batch_dims=1).shape == (2, 7, 3)
    with pytest.raises(ValueError, match=r'^scatter: reduce must be "sum".*but it is "most"'):
        torch_ops.scatter(source[:, :5], plan, reduce="most")
    for op, message in (
        (torch_ops.index, "index: the plan was made for dim=1 and batch_dims=1, but index takes"),
        (lambda s, p: torch_ops.embedding(p, s[0]), "embedding: a plan must be made with dim_size"),
    ):
        with pytest.raises(ValueError, match=message):
            op(source, plan)
    with pytest.raises(ValueError, match=r"made for dim=1 and batch_dims=1, but dim=-3 was given"):
        torch_ops.gather(source, plan, -3)
    assert torch_ops.gather(source, plan, 1, batch_dims=1).shape == (2, 5, 3)
    assert torch_ops.scatter_add(source[:, :5], plan, 7, 1, batch_dims=1).shape == (2, 7, 3)
    for other in (
        torch_ops.gather_plan(index, 7),
        torch_ops.gather_plan(index, 7, dim=2, batch_dims=1),
        torch_ops.gather_plan(index[0, 0], 7),
    ):
        with pytest.raises(ValueError, match=r"batch_gather: a plan must be made with batch_dims"):
            torch_ops.batch_gather(source, other)


@pytest.mark.parametrize(("made", "named"), [(-1, 1), (1, -1), (-1, -1)])
def test_an_axis_that_counts_from_the_end(device: torch.device, made: int, named: int) -> None:
    index = torch.tensor([2, 0, 2], device=device)
    plan = torch_ops.gather_plan(index, 4, dim=made)
    source = torch.randn(2, 4, device=device)
    picked = torch_ops.gather(source, plan, named)
    assert torch.equal(picked, source[:, index])
    for op in (torch_ops.scatter_add, torch_ops.scatter, torch_ops.softmax):
        assert torch.equal(op(picked, plan, 4, named), op(picked, index, 4, 1))
    with pytest.raises(ValueError, match=f"made for dim={made} and batch_dims=0, but dim=0 was"):
        torch_ops.gather(source, plan, 0)
    assert torch_ops.index(source[0], torch_ops.gather_plan(index, 4, dim=-1)).shape == (3,)


def test_a_plan_on_another_device(device: torch.device) -> None:
    other = "meta" if device.type == "cpu" else "cpu"
    plan = torch_ops.gather_plan(torch.zeros(3, dtype=torch.int64, device=other), 4)
    data = torch.zeros(4, device=device)
    for op, name, given in (
        (torch_ops.gather, "source", data),
        (torch_ops.scatter_add, "values", data[:3]),
        (torch_ops.scatter, "values", data[:3]),
        (partial(torch_ops.scatter, reduce="amax"), "values", data[:3]),
    ):
        message = (
            rf"{name} and the plan must be on one device, but {name} is on {given.device} and the "
            rf"plan is on {other}: use plan.to\({name}.device\)"
        )
        with pytest.raises(RuntimeError, match=message):
            op(given, plan)


def test_vmap_over_a_plan_by_mistake(device: torch.device) -> None:
    """in_dims=0 is the default, for a plan too."""
    plan = torch_ops.gather_plan(torch.tensor([0, 2], device=device), 4)
    source, values = torch.zeros(2, 4, 3, device=device), torch.zeros(2, 2, 3, device=device)
    for op, data in (
        (torch_ops.gather, source),
        (torch_ops.scatter_add, values),
        (torch_ops.scatter, values),
        (torch_ops.softmax, values),
        (torch_ops.logsumexp, values),
    ):
        with pytest.raises(RuntimeError, match=f"^{op.__name__}: torch.vmap cannot map over a pl"):
            torch.vmap(op)(data, plan)


def test_vmap_over_a_plan(device: torch.device) -> None:
    index = torch.zeros(3, 5, dtype=torch.int64, device=device)
    source = torch.zeros(3, 5, device=device)
    plan = torch_ops.gather_plan(index, 5, batch_dims=1)
    with pytest.raises(RuntimeError, match="cannot map over the index of a plan"):
        torch.vmap(lambda i: torch_ops.gather_plan(i, 5).rows)(index)
    reductions = [partial(torch_ops.scatter, reduce=reduce) for reduce in REDUCES]
    for op in (torch_ops.gather, torch_ops.scatter_add, *reductions):
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
    for op in (
        torch_ops.scatter_add,
        *(partial(torch_ops.scatter, reduce=reduce) for reduce in REDUCES),
    ):
        expected = op(values, plan)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = op(values, plan)
        graph.replay()
        assert_same(captured, expected, f"{op} replayed")
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
        values = output.detach().requires_grad_()
        for reduce in REDUCES:
            torch_ops.scatter(values, plan, reduce=reduce).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("slices", [1, 2])
def test_more_than_two_to_the_31_rows(device: torch.device, slices: int) -> None:
    """In one slice, where the plan has 64 bits, or in two, where the call must widen it. 4 GiB."""
    size = 2**30 // slices + 1
    index = torch.tensor([[size - 1, 3, size - 1], [0, size - 1, 0]], device=device)
    plan = torch_ops.gather_plan(index, size, dim=2, batch_dims=1)
    assert plan.rows.dtype == (torch.int64 if slices == 1 else torch.int32)
    values = torch.tensor([1, 2, 4], dtype=torch.float16, device=device).expand(2, slices, 3)
    result = torch_ops.scatter_add(values, plan)
    assert result[0, :, [3, size - 1]].tolist() == [[2, 5]] * slices
    assert result[1, :, [0, size - 1]].tolist() == [[5, 2]] * slices
    assert result.sum() == 14 * slices
