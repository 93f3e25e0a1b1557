"""batch_gather and its gradient against every way that torch has, as fractions of a plain copy.

Groups: rows (of 16-byte multiples), odd rows, elements, backward, deterministic (CUDA only). With
--device cpu the cases are smaller ones.
"""

from __future__ import annotations

import math
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops
from benchmarks._measure import (
    Bar,
    Benchmark,
    Check,
    Implementation,
    Measurement,
    Result,
    argument_parser,
    must_equal,
    relative_error,
)

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "u8": torch.uint8,
    "int64": torch.int64,
    "int32": torch.int32,
}

# ---- cases --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """source [batch, rows, width], index [batch, picks]; width None: source [batch, rows].

    Backward, the gradient is [batch, picks, width] and what it is summed into has the source's
    shape.
    """

    group: str
    dtype: str
    batch: int
    rows: int
    picks: int
    width: int | None = None
    index: str = "int64"
    distribution: str = "uniform"
    quick: bool = False
    of_copy: float | None = None  # bars that hold for this case alone
    over_eager: float = 1.0

    @property
    def sizes(self) -> str:
        sizes = (self.batch, self.rows, self.picks, *([self.width] if self.width else []))
        return "x".join(map(str, sizes))

    @property
    def name(self) -> str:
        gradient = self.group in ("backward", "deterministic")
        last = self.distribution if gradient else self.index
        return f"{self.group} {self.dtype} {self.sizes} {last}"

    @property
    def tail(self) -> tuple[int, ...]:
        return () if self.width is None else (self.width,)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.tail) * DTYPES[self.dtype].itemsize

    @property
    def index_bytes(self) -> int:
        return DTYPES[self.index].itemsize

    @property
    def source_bytes(self) -> int:
        return self.batch * self.rows * self.row_bytes

    @property
    def bytes(self) -> int:
        """What has to be moved at least, where nothing is found in a cache by luck."""
        picks = self.batch * self.picks
        if self.group in ("backward", "deterministic"):
            return picks * (self.index_bytes + self.row_bytes) + self.source_bytes
        # Elements of a batch row that fits on chip are read once, all others once a pick.
        if self.group == "elements" and self.rows * self.row_bytes <= 128 * 1024:
            return picks * (self.index_bytes + self.row_bytes) + self.source_bytes
        return picks * (self.index_bytes + 2 * self.row_bytes)

    @property
    def sector_ceiling(self) -> float:
        """The fraction of the copy that is left when whole sectors of 32 bytes are read.

        A row of r bytes that begins at any multiple of a touches r + 32 - a bytes of sectors, on
        average over all places it may begin at.
        """
        aligned = math.gcd(self.row_bytes, 32)
        moved = self.index_bytes + 2 * self.row_bytes
        return moved / (moved + 32 - aligned)

    def scaled(self, scale: float) -> Case:
        if scale == 1:
            return self
        rows, picks = (max(2, round(size * scale)) for size in (self.rows, self.picks))
        return replace(self, batch=min(self.batch, 3), rows=rows, picks=picks)


ROWS = [
    Case("rows", "f32", 8, 131072, 131072, 64, quick=True),
    Case("rows", "f32", 1, 1048576, 1048576, 256),
    Case("rows", "bf16", 64, 4096, 16384, 128, quick=True),
    Case("rows", "bf16", 1, 50304, 131072, 1024, quick=True),
    Case("rows", "bf16", 8, 131072, 131072, 64),
    Case("rows", "f32", 512, 300, 4000, 64),
    Case("rows", "bf16", 1, 32000, 16384, 4096),
    Case("rows", "f32", 1, 65536, 4096, 64, quick=True),
]

ODD = [
    Case("odd rows", "f32", 8, 131072, 131072, 3, quick=True),
    Case("odd rows", "f32", 8, 131072, 131072, 25, quick=True),
    Case("odd rows", "bf16", 8, 131072, 131072, 33, quick=True),
    Case("odd rows", "bf16", 8, 131072, 131072, 7),
    Case("odd rows", "bf16", 8, 131072, 131072, 50),
    Case("odd rows", "f32", 1, 4 * 1048576, 4 * 1048576, 3),
    Case("odd rows", "u8", 4, 262144, 262144, 100),
]

ELEMENTS = [
    Case("elements", "f32", 2, 134217728, 1048576),
    Case("elements", "f32", 2, 134217728, 1048576, index="int32", over_eager=1.08),
    Case("elements", "f32", 2, 134217728, 33554432),
    Case("elements", "f32", 2, 134217728, 33554432, index="int32"),
    Case("elements", "f32", 64, 65536, 1048576, over_eager=1.08, quick=True),
    Case("elements", "f32", 64, 65536, 1048576, index="int32", over_eager=1.08, quick=True),
    Case("elements", "f32", 4096, 1024, 16384, of_copy=0.83, quick=True),
    Case("elements", "f32", 4096, 1024, 16384, index="int32", of_copy=0.85, quick=True),
    Case("elements", "bf16", 64, 65536, 1048576),
    Case("elements", "bf16", 64, 65536, 1048576, index="int32"),
]

GRADIENTS = [
    Case("backward", "f32", 8, 131072, 131072, 64, quick=True),
    Case("backward", "bf16", 8, 131072, 131072, 64, quick=True),
    Case("backward", "f16", 8, 131072, 131072, 64),
    Case("backward", "f32", 1, 1048576, 1048576, 256),
    Case("backward", "bf16", 1, 1048576, 1048576, 256),
    Case("backward", "f32", 64, 4096, 16384, 128),
    Case("backward", "bf16", 64, 4096, 16384, 128),
    Case("backward", "f32", 1, 50304, 131072, 1024),
    Case("backward", "bf16", 1, 50304, 131072, 1024),
    Case("backward", "f32", 1, 1048576, 65536, 64),
    Case("backward", "bf16", 1, 1048576, 65536, 64),
    Case("backward", "f32", 16, 30000, 120000, 4, quick=True),
    Case("backward", "f32", 64, 65536, 1048576, quick=True),
    Case("backward", "bf16", 64, 65536, 1048576),
    Case("backward", "f32", 4096, 1024, 16384),
    Case("backward", "bf16", 4096, 1024, 16384),
]

# From few to many entries on one row: what is slow on one of these is no faster on those behind it.
DISTRIBUTIONS = ("uniform", "permutation", "sorted", "zipf", "hot", "one")
QUICK_DISTRIBUTIONS = ("uniform", "zipf", "hot")


def in_distributions(gradients: list[Case]) -> list[Case]:
    return [
        replace(case, distribution=name, quick=case.quick and name in QUICK_DISTRIBUTIONS)
        for case in gradients
        for name in DISTRIBUTIONS
        if name != "permutation" or case.rows == case.picks
    ]


BACKWARD = in_distributions(GRADIENTS)

DETERMINISTIC = [
    Case("deterministic", "f32", 32, 4096, 16384, 256, quick=True),
    Case("deterministic", "f32", 8, 131072, 131072, 64),
    *in_distributions(
        [
            Case("deterministic", "f32", 64, 65536, 1048576),
            Case("deterministic", "bf16", 64, 65536, 1048576),
            Case("deterministic", "f32", 16, 30000, 120000, 4),
        ]
    ),
    Case("deterministic", "f32", 4096, 1024, 16384),
]

CASES = ROWS + ODD + ELEMENTS + BACKWARD + DETERMINISTIC

# Of a size for some CPU cores: a call takes some milliseconds.
CPU_FORWARD = [
    Case("rows", "f32", 1, 131072, 131072, 64, quick=True),
    Case("rows", "bf16", 1, 131072, 131072, 64),
    Case("rows", "u8", 1, 131072, 131072, 64),
    Case("rows", "int64", 4, 4096, 16384, 64),
    Case("rows", "bf16", 4, 4096, 16384, 128, quick=True),
    Case("rows", "bf16", 1, 50304, 4096, 1024),
    Case("rows", "f32", 1, 65536, 4096, 64),
    Case("odd rows", "f32", 1, 131072, 131072, 3, quick=True),
    Case("odd rows", "bf16", 1, 131072, 131072, 3),
    Case("odd rows", "u8", 1, 131072, 131072, 3),
    Case("odd rows", "int64", 1, 131072, 131072, 3),
    Case("odd rows", "f32", 4, 16384, 16384, 25),
    Case("odd rows", "bf16", 1, 131072, 131072, 33, quick=True),
    Case("elements", "f32", 1, 65536, 1048576, quick=True),
    Case("elements", "bf16", 1, 65536, 1048576),
    Case("elements", "u8", 8, 65536, 131072),
    Case("elements", "int64", 8, 65536, 131072),
    Case("elements", "f32", 256, 1024, 4096, quick=True),
    Case("elements", "f32", 1, 4194304, 1048576),
]

CPU_GRADIENTS = [
    Case("backward", "f32", 1, 65536, 1048576, quick=True),
    Case("backward", "bf16", 1, 65536, 1048576),
    Case("backward", "f64", 1, 65536, 1048576),
    Case("backward", "f32", 4, 65536, 262144),
    Case("backward", "f32", 1, 4194304, 1048576),
    Case("backward", "f32", 64, 4096, 16384),
    Case("backward", "f32", 1, 30000, 120000, 4, quick=True),
    Case("backward", "f32", 8, 30000, 120000, 4),
    Case("backward", "bf16", 8, 30000, 120000, 4),
    Case("backward", "f32", 1, 100, 65536, 64),
    Case("backward", "f32", 1, 65536, 65536, 64, quick=True),
    Case("backward", "bf16", 1, 131072, 131072, 64, quick=True),
    Case("backward", "f16", 1, 131072, 131072, 64),
    Case("backward", "f32", 4, 4096, 16384, 128),
    Case("backward", "f32", 1, 50304, 16384, 256),
    Case("backward", "bf16", 1, 50304, 16384, 256),
    Case("backward", "f32", 1, 32000, 8192, 1024),
]


CPU_CASES = CPU_FORWARD + in_distributions(CPU_GRADIENTS)
FORWARD_GROUPS = ("rows", "odd rows", "elements")

# ‖error‖ / ‖gradient‖ in a sum that is rounded once, with room; float32 sums round at each step.
TOLERANCE = {"bf16": 4e-3, "f16": 5e-4, "f32": 3e-6, "f64": 3e-14}
# On the CPU up to 32768 values are added one after the other, and 1048576 of them in 32 such sums.
CPU_TOLERANCE = {**TOLERANCE, "f32": 1e-4, "f64": 1e-12}


def select(options: Namespace) -> list[Case]:
    groups = {group for name in options.only for group in GROUPS_OF[name]}
    of_device = CPU_CASES if options.device == "cpu" else CASES
    cases = [case.scaled(options.scale) for case in of_device if case.group in groups]
    if options.quick:
        cases = [case for case in cases if case.quick]
    if options.dtype:
        cases = [case for case in cases if case.dtype in options.dtype]
    if options.filter:
        cases = [case for case in cases if any(text in case.name for text in options.filter)]
    return cases


GROUPS_OF = {
    "forward": FORWARD_GROUPS,
    "rows": ("rows",),
    "odd": ("odd rows",),
    "elements": ("elements",),
    "backward": ("backward",),
    "deterministic": ("deterministic",),
}

# ---- inputs -------------------------------------------------------------------------------------


def make_source(case: Case, device: torch.device) -> Tensor:
    shape, dtype = (case.batch, case.rows, *case.tail), DTYPES[case.dtype]
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device)
    return torch.randint(256, shape, dtype=dtype, device=device)


def make_gradient(case: Case, device: torch.device) -> Tensor:
    shape = (case.batch, case.picks, *case.tail)
    gradient = torch.randn(shape, dtype=DTYPES[case.dtype], device=device)
    # The sum of 131072 absolute values must not be infinite in float16.
    return gradient.mul_(0.25) if case.dtype == "f16" else gradient


def make_index(case: Case, device: torch.device) -> Tensor:
    shape, rows, dtype = (case.batch, case.picks), case.rows, DTYPES[case.index]

    def uniform(*shape: int) -> Tensor:
        return torch.randint(rows, shape, dtype=dtype, device=device)

    if case.distribution == "uniform":
        return uniform(*shape)
    if case.distribution == "permutation":
        return torch.rand(shape, device=device).argsort(dim=1).to(dtype)
    if case.distribution == "sorted":
        return uniform(*shape).sort(dim=1).values
    if case.distribution == "zipf":
        # The row of rank k is picked as often as k^-1.1 says; which row has which rank is random.
        ranks = torch.arange(1, rows + 1, dtype=torch.float64, device=device)
        cumulative = ranks.pow_(-1.1).cumsum(0)
        picked = torch.rand(shape, dtype=torch.float64, device=device) * cumulative[-1]
        rank = torch.searchsorted(cumulative, picked).clamp_(max=rows - 1)
        return torch.randperm(rows, device=device)[rank].to(dtype)
    if case.distribution == "hot":
        return uniform(*shape).where(torch.rand(shape, device=device) > 0.9, uniform(case.batch, 1))
    if case.distribution == "one":
        return uniform(case.batch, 1).expand(shape).contiguous()
    raise ValueError(case.distribution)


def flattened(case: Case, index: Tensor) -> Tensor:
    """The index into all batches' rows, one behind the other."""
    offsets = torch.arange(case.batch, device=index.device).unsqueeze(1) * case.rows
    return (index + offsets).flatten()


# ---- forward ------------------------------------------------------------------------------------


def torch_gather(source: Tensor, index: Tensor) -> Tensor:
    if source.dim() == 3:
        index = index.unsqueeze(2).expand(-1, -1, source.shape[2])
    return torch.gather(source, 1, index)


@cache
def gathers_int32() -> bool:
    """Whether this torch's gather takes an int32 index."""
    zeros = torch.zeros(1, dtype=torch.int32)
    try:
        torch.gather(zeros, 0, zeros)
    except RuntimeError:
        return False
    return True


def indexed(source: Tensor, index: Tensor) -> Tensor:
    batch = torch.arange(source.shape[0], device=source.device).unsqueeze(1)
    return source[batch, index.long()]


def forward_implementations(
    case: Case, index: Tensor, with_compile: bool
) -> Iterator[Implementation]:
    yield Implementation("torch_ops", "ours", lambda source: torch_ops.batch_gather(source, index))
    if index.dtype == torch.int64 or gathers_int32():
        yield Implementation("torch.gather", "eager", lambda source: torch_gather(source, index))
    else:  # a caller holds such an index
        wide = index.long()
        name = "torch.gather, int64 index"
        yield Implementation(name, "eager", lambda source: torch_gather(source, wide))
    if case.width is not None:
        # What a caller computes once for many calls is computed here, once.
        flat = flattened(case, index)
        batch = torch.arange(case.batch, device=index.device).unsqueeze(1)
        picked = (case.batch, case.picks, case.width)
        yield Implementation(
            "index_select, flattened",
            "eager",
            lambda source: source.flatten(0, 1).index_select(0, flat).view(picked),
        )
        yield Implementation(
            "F.embedding, flattened",
            "eager",
            lambda source: F.embedding(flat, source.flatten(0, 1)).view(picked),
        )
        yield Implementation("source[b, index]", "eager", lambda source: source[batch, index])
    if with_compile:
        torch._dynamo.reset()  # else the second shape is compiled for all shapes
        compiled = torch.compile(torch_gather, dynamic=False)
        yield Implementation("torch.compile", "compiled", lambda source: compiled(source, index))


def run_forward(case: Case, result: Result, bench: Benchmark, with_compile: bool) -> None:
    source, index = make_source(case, bench.device), make_index(case, bench.device)
    check = Check(source, must_equal(indexed(source, index)))
    bench.measure(result, forward_implementations(case, index, with_compile), {"": check})


def forward_bars(case: Case, result: Result, bench: Benchmark) -> list[Bar]:
    rate = result.bytes_per_second("ours")
    fraction = rate / bench.copy["start"] if rate else None
    bars = [Bar("over fastest eager", result.ratio("eager"), case.over_eager)]
    if result.timed("compiled"):
        bars.append(Bar("over torch.compile", result.ratio("compiled"), 0.97))
    if bench.device.type == "cpu":  # caches and cores: a copy of memory is no ceiling there
        return bars
    if case.group == "rows" and case.row_bytes >= 128 and case.bytes > 512e6:
        bars.append(Bar("of copy", fraction, 0.95))
    if case.group == "odd rows":
        if result.facts["source_exceeds_l2"]:
            bars.append(Bar("of copy", fraction, 0.9 * case.sector_ceiling))
        else:
            bars.append(Bar("of copy", fraction, 0.8))
    if case.of_copy is not None:
        bars.append(Bar("of copy", fraction, case.of_copy))
    return bars


# ---- backward -----------------------------------------------------------------------------------


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


def backward_implementations(case: Case, index: Tensor) -> Iterator[Implementation]:
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


def run_backward(case: Case, result: Result, bench: Benchmark, slow: Slow) -> None:
    index = make_index(case, bench.device)
    checks = gradient_checks(case, index)
    keys, timed = {}, []
    for implementation in backward_implementations(case, index):
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
    return [
        Bar(f"relative error, {label}", error, tolerance, "<=")
        for label, error in measurement.errors.items()
    ]


def backward_bars(case: Case, result: Result, bench: Benchmark) -> list[Bar]:
    fastest = Bar("over fastest eager", result.ratio("eager"), 1.0)
    return [fastest, *error_bars(case, result.find("torch_ops"), bench)]


# ---- deterministic ------------------------------------------------------------------------------


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


def run_deterministic(case: Case, result: Result, bench: Benchmark) -> None:
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


def deterministic_bars(case: Case, result: Result, bench: Benchmark) -> list[Bar]:
    ours, default = result.seconds("ours"), result.find(DEFAULT_MODE)
    slower = ours / default.timing.median if ours and default and default.timing else None
    rival = [Bar("over scatter_add_", result.ratio("eager"), 15.0)]
    return [
        Bar("times its own default mode", slower, 1.5, "<="),
        *(rival if case.distribution == "uniform" else []),
        Bar("same bits on each call", result.facts.get("same_bits"), True),
        *error_bars(case, result.find("torch_ops"), bench),
    ]


# ---- the run ------------------------------------------------------------------------------------


def describe(case: Case, bench: Benchmark) -> Result:
    labels: tuple[str, ...] = (case.group,)
    panel, tag = case.group, f"{case.dtype} {short(case.sizes)}"
    facts: dict[str, Any] = {}
    if case.group == "backward":
        labels += (f"backward {case.dtype}", f"backward {case.distribution}")
        panel = f"backward, {case.distribution} indices"
    if case.group == "elements":
        tag += f" {case.index}"
    if case.group == "deterministic":
        tag += f" {case.distribution}"
    if case.group in ("rows", "odd rows"):
        labels += (ALL_ROWS,)
    if case.group == "odd rows":
        facts["sector_ceiling"] = case.sector_ceiling
    if case.group in FORWARD_GROUPS:
        l2 = bench.machine["l2_bytes"]
        facts["source_exceeds_l2"] = l2 is not None and case.source_bytes > l2
    return Result(case.group, case.name, panel, tag, labels, asdict(case), case.bytes, facts)


def short(sizes: str) -> str:
    """8x131072x64 as 8x128Kx64, for the plot."""
    return re.sub(r"\d+", lambda size: _short(int(size.group())), sizes)


def _short(size: int) -> str:
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if (size >= 2 * unit and size % unit == 0) or size == unit:
            return f"{size // unit}{letter}"
    return str(size)


def run_case(case: Case, result: Result, bench: Benchmark, with_compile: bool, slow: Slow) -> None:
    torch.manual_seed(0)  # the same data whichever cases are selected
    if case.group == "backward":
        run_backward(case, result, bench, slow)
        result.bars = backward_bars(case, result, bench)
    elif case.group == "deterministic":
        run_deterministic(case, result, bench)
        result.bars = deterministic_bars(case, result, bench)
    else:
        run_forward(case, result, bench, with_compile)
        result.bars = forward_bars(case, result, bench)


ALL_ROWS = "rows and odd rows"


def summary_bars(label: str, figures: dict[str, Any]) -> list[Bar]:
    """The bars of geometric means, for what was measured."""
    required = {
        ("rows", "over_fastest_eager"): 1.6,
        (ALL_ROWS, "over_fastest_eager"): 1.6,
        ("rows", "over_compiled"): 1.0,
        ("odd rows", "over_compiled"): 1.2,
        ("backward", "over_fastest_eager"): 3.0,
    }
    return [
        Bar(f"geometric mean {what.replace('_', ' ')}", figures[what]["mean"], value)
        for (where, what), value in required.items()
        if where == label and figures[what]
    ]


def main() -> int:
    parser = argument_parser("gather", __doc__ or "")
    parser.add_argument("--only", nargs="+", choices=GROUPS_OF, default=list(GROUPS_OF))
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES))
    options = parser.parse_args()
    cases = select(options)
    if not cases:
        parser.error(
            "no case is selected; names are such as:\n  "
            + "\n  ".join(
                f"{group[0].name}" for group in (ROWS, ODD, ELEMENTS, BACKWARD, DETERMINISTIC)
            )
        )
    with_compile = options.compile
    if with_compile is None:
        with_compile = not options.quick and options.device == "cuda"

    bench = Benchmark("gather", options)
    slow: Slow = {}
    tasks = []
    for case in cases:
        result = describe(case, bench)
        tasks.append((result, partial(run_case, case, result, bench, with_compile, slow)))
    bench.run(tasks)
    return bench.finish(summary_bars if options.device == "cuda" else lambda *_: [])


if __name__ == "__main__":
    sys.exit(main())
