"""Gradients in PyTorch's deterministic mode: whether they are so, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from benchmarks._gather.backward import (
    error_bars,
    gradient_checks,
    hold_to_tolerance,
    our_scatter_add,
    torch_scatter_add,
)
from benchmarks._gather.cases import Case
from benchmarks._gather.inputs import make_index
from benchmarks._measure import Bar, Benchmark, Implementation, Result


@contextmanager
def deterministic_algorithms(fill: bool) -> Iterator[None]:
    """The mode, with or without its default of filling each fresh tensor before it is written."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(False)


def deterministic(
    call: Callable[[Tensor], Tensor], fill: bool = True
) -> Callable[[Tensor], Tensor]:
    def wrapped(gradient: Tensor) -> Tensor:
        with deterministic_algorithms(fill):
            return call(gradient)

    return wrapped


DEFAULT_MODE = "torch_ops, default mode"


def run(case: Case, result: Result, bench: Benchmark) -> None:
    index = make_index(case, bench.device)
    checks = gradient_checks(case, index)
    ours, scatter_add = our_scatter_add(case, index), torch_scatter_add(case, index)
    ours_in_mode = Implementation("torch_ops", "ours", deterministic(ours))
    implementations: tuple[Implementation, ...] = (
        ours_in_mode,
        Implementation("torch_ops, memory not filled", "own", deterministic(ours, fill=False)),
        Implementation(DEFAULT_MODE, "own", ours),
        Implementation("scatter_add_", "eager", deterministic(scatter_add)),
    )
    if case.distribution != "uniform":
        implementations = implementations[:-1]  # up to seconds a call
    measurement, *_ = bench.measure(result, implementations, checks)
    if measurement.failed and "deterministic" in measurement.note:
        measurement.failed = False  # the op refuses the mode and says so; its bars are missed
    elif measurement.timing:
        hold_to_tolerance(case, measurement, bench)
        first, *others = (ours_in_mode.call(checks["mixed"].input) for _ in range(3))
        result.facts["same_bits"] = all(torch.equal(first, other) for other in others)


def bars(case: Case, result: Result, bench: Benchmark) -> list[Bar]:
    ours, default = result.seconds("ours"), result.find(DEFAULT_MODE)
    slower = ours / default.timing.median if ours and default and default.timing else None
    rival = [Bar("over scatter_add_", result.ratio("eager"), 15.0)]
    return [
        Bar("times its own default mode", slower, 1.5, "<="),
        *(rival if case.distribution == "uniform" else []),
        Bar("same bits on each call", result.facts.get("same_bits"), True),
        *error_bars(case, result.find("torch_ops"), bench),
    ]
