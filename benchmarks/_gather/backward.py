"""Gradients of gathers, which are sums into rows: the ways that torch has, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import torch_ops
from benchmarks._gather.cases import Case
from benchmarks._gather.inputs import flattened, make_gradient, make_index
from benchmarks._measure import (
    Bar,
    Benchmark,
    Check,
    Implementation,
    Measurement,
    Result,
    relative_error,
)

# ‖error‖ / ‖gradient‖ in a sum that is rounded once, with room; float32 sums round at each step.
TOLERANCE = {"bf16": 4e-3, "f16": 5e-4, "f32": 3e-6, "f64": 3e-14}
# A sum of both signs may happen to be small beside what it is made of; the grid's are not.
MIXED_TOLERANCE = 10
# On the CPU up to 32768 values are added one after the other, and 1048576 of them in 32 such sums.
CPU_TOLERANCE = {**TOLERANCE, "f32": 1e-4, "f64": 1e-12}


def scatter_float64(case: Case, gradient: Tensor, flat: Tensor) -> Tensor:
    """The sums in float64, with the gradient converted a few columns at a time."""
    rows = gradient.reshape(case.batch * case.picks, -1)
    sums = torch.zeros(
        case.batch * case.rows, rows.shape[1], dtype=torch.float64, device=rows.device
    )
    columns = max(1, 2**27 // rows.shape[0])
    for part, wide in zip(rows.split(columns, dim=1), sums.split(columns, dim=1), strict=True):
        wide.index_add_(0, flat, part.double())
    return sums.view(case.batch, case.rows, *case.tail)


def gradient_checks(case: Case, index: Tensor) -> dict[str, Check]:
    """Gradients of both signs, which are timed; and positive ones, whose sums grow, losing bits."""
    flat = flattened(case, index)
    mixed = make_gradient(case, index.device)
    return {
        label: Check(gradient, relative_error(scatter_float64(case, gradient, flat)))
        for label, gradient in (("mixed", mixed), ("positive", mixed.abs()))
    }


def torch_scatter_add(case: Case, index: Tensor) -> Callable[[Tensor], Tensor]:
    def call(gradient: Tensor) -> Tensor:
        sums = gradient.new_zeros(case.batch, case.rows, *case.tail)
        expanded = index if case.width is None else index.unsqueeze(2).expand_as(gradient)
        return sums.scatter_add_(1, expanded, gradient)

    return call


def our_scatter_add(case: Case, index: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda gradient: torch_ops.scatter_add(gradient, index, case.rows, batch_dims=1)


def implementations(case: Case, index: Tensor) -> Iterator[Implementation]:
    flat = flattened(case, index)
    rows = case.batch * case.rows
    result_shape = (case.batch, case.rows, *case.tail)

    def zeros(gradient: Tensor) -> Tensor:
        return gradient.new_zeros(rows, *case.tail)

    def index_add(gradient: Tensor) -> Tensor:
        return zeros(gradient).index_add_(0, flat, gradient.flatten(0, 1)).view(result_shape)

    def index_put(gradient: Tensor) -> Tensor:
        sums = zeros(gradient).index_put_((flat,), gradient.flatten(0, 1), accumulate=True)
        return sums.view(result_shape)

    def embedding(gradient: Tensor) -> Tensor:
        sums = torch.ops.aten.embedding_dense_backward(
            gradient.reshape(flat.numel(), -1), flat, rows, -1, False
        )
        return sums.view(result_shape)

    yield Implementation("torch_ops", "ours", our_scatter_add(case, index))
    plan = torch_ops.gather_plan(index, case.rows, batch_dims=1)
    yield Implementation(
        "torch_ops, planned", "own", lambda gradient: torch_ops.scatter_add(gradient, plan)
    )
    yield Implementation("scatter_add_", "eager", torch_scatter_add(case, index))
    yield Implementation("index_add_, flattened", "eager", index_add)
    yield Implementation("index_put_, flattened", "eager", index_put)
    yield Implementation("embedding_dense_backward, flattened", "eager", embedding)


# What took over a second on a distribution: (dtype, sizes, implementation) and what to say of it.
Slow = dict[tuple[str, str, str], str]


def run(case: Case, result: Result, bench: Benchmark, slow: Slow) -> None:
    index = make_index(case, bench.device)
    checks = gradient_checks(case, index)
    keys, timed = {}, []
    for implementation in implementations(case, index):
        key = keys[implementation.name] = (case.dtype, case.sizes, implementation.name)
        if key in slow:
            bench.skip(result, implementation, slow[key])
        else:
            timed.append(implementation)
    for measurement in bench.measure(result, timed, checks):
        if measurement.kind == "ours":
            hold_to_tolerance(case, measurement, bench)
        elif measurement.timing and measurement.timing.median > 1:
            slow[keys[measurement.name]] = (
                f"left out: {measurement.timing.median:.1f} s on {case.distribution} indices"
            )


def hold_to_tolerance(case: Case, measurement: Measurement, bench: Benchmark) -> None:
    """Marks a result that is too far off as failed; its time stays, to tell what it would be."""
    if any(not bar.met for bar in error_bars(case, measurement, bench)):
        measurement.failed = True


def error_bars(case: Case, measurement: Measurement | None, bench: Benchmark) -> list[Bar]:
    tolerance = (CPU_TOLERANCE if bench.device.type == "cpu" else TOLERANCE)[case.dtype]
    if measurement is None or not measurement.errors:
        return [Bar("relative error", None, tolerance, "<=")]
    room = {"mixed": MIXED_TOLERANCE} if case.group == "random sum" else {}
    return [
        Bar(f"relative error, {label}", error, room.get(label, 1) * tolerance, "<=")
        for label, error in measurement.errors.items()
    ]


def bars(case: Case, result: Result, bench: Benchmark) -> list[Bar]:
    fastest = Bar("over fastest eager", result.ratio("eager"), 1.0)
    return [fastest, *error_bars(case, result.find("torch_ops"), bench)]
