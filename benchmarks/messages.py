"""Messages along the edges of a graph by one kernel, beside every other way to compute them.

Entries of a graph read rows at their sources, compute, and are summed at their destinations:
``w x`` with a weight for each entry, and ``w (x - y)``. Ours takes a plan of the indices. Beside it
are our ops composed; eager torch (index_select, index_add_); NVIDIA Warp (float32; its kernels sum
by atomics); and, for the forward pass of ``w x``, the matrix products of torch.sparse.mm (cuSPARSE)
and of PyTorch Geometric's EdgeIndex (CSR; it has no gradient by the weights). Both matrices have
the weights sorted before, which ours reads in the plan's order, 32 bytes of memory for each: that
shows in rows of one feature. Warp and PyTorch Geometric are skipped where they are not installed.

Groups: forward, backward (forward and backward), host (the time of a small call on the host, beside
ElementwiseKernel's). With --compile, torch.compile of the eager text is beside ours, which compiles
for seconds per case: of forward and backward alone, in a run of its own, messages_compiled.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
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
    relative_error,
)
from benchmarks._measure.timing import Timing, host_scratch
from torch_ops.jit import ElementwiseKernel, IndexedKernel, IndexPlan, index_plan

WEIGHTED = IndexedKernel("T x[src], T w", "T out[dst]", "out = w * x", "weighted")
DIFFERENCE = IndexedKernel(
    "T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y)", "difference"
)
SCALE = ElementwiseKernel("T x, T y, T w", "T out", "out = w * (x - y)", "scale")

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Relative to the norm of what is exact; torch's own 16-bit sums are not asked for it.
TOLERANCES = {"f32": 1e-4, "bf16": 4e-3}
HAS = {name: importlib.util.find_spec(name) is not None for name in ("torch_geometric", "warp")}


@dataclass(frozen=True)
class Case:
    """A graph and what is computed on it."""

    group: str
    message: str
    dtype: str
    entries: int
    rows: int
    width: int
    distribution: str

    @property
    def name(self) -> str:
        exponent = self.entries.bit_length() - 1
        return (
            f"{self.group} {self.message} {self.dtype} 2^{exponent} entries, "
            f"N=E/{self.entries // self.rows}, D={self.width}, {self.distribution}"
        )

    @property
    def bytes(self) -> int:
        """Rows read and written, and indices: of the forward pass."""
        item = DTYPES[self.dtype].itemsize
        reads = self.entries * (self.width * item + item + 8)
        return reads + self.rows * self.width * item * (2 if self.message == "w(x-y)" else 1)

    @functools.cached_property
    def has_bars(self) -> bool:
        return self.width >= 64


def cases(options: Namespace) -> list[Case]:
    large = options.device == "cuda"
    found = []
    exponents = (17, 20, 22, 24) if large else (17,)
    for group in ("forward", "backward"):
        for message in ("w x", "w(x-y)"):
            for dtype in DTYPES:
                for exponent in exponents:
                    for width in (1, 3, 16, 64, 128, 256):
                        if (width << exponent) > 2**31:  # eager torch makes several of [E, D]
                            continue
                        for ratio in (8, 64):
                            for distribution in ("uniform", "zipf", "hot"):
                                entries = max(int(2**exponent * options.scale), 64)
                                rows = max(entries // ratio, 4)
                                found.append(
                                    Case(group, message, dtype, entries, rows, width, distribution)
                                )
    if options.quick:
        found = [
            case
            for case in found
            if case.entries in (2**22, 2**17)[: 1 if large else 2]
            and case.width in (3, 64)
            and case.entries == 8 * case.rows
            and case.dtype == "f32"
        ]
    return found


def entries_of(case: Case, device: torch.device) -> Tensor:
    shape, rows = (case.entries,), case.rows
    uniform = torch.randint(rows, shape, device=device)
    if case.distribution == "uniform":
        return uniform
    if case.distribution == "hot":  # 90 % on one row
        return uniform.where(torch.rand(shape, device=device) > 0.9, uniform[:1])
    ranks = torch.arange(1, rows + 1, dtype=torch.float64, device=device)
    cumulative = ranks.pow_(-1.1).cumsum(0)
    picked = torch.rand(shape, dtype=torch.float64, device=device) * cumulative[-1]
    rank = torch.searchsorted(cumulative, picked).clamp_(max=rows - 1)
    return torch.randperm(rows, device=device)[rank]


class Graph:
    """The tensors of a case, and the ways to compute on them."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        dtype = DTYPES[case.dtype]
        self.rows = case.rows
        self.src, self.dst = (entries_of(case, device) for _ in range(2))
        self.plan: IndexPlan = index_plan(src=(self.src, self.rows), dst=(self.dst, self.rows))
        self.plans = [torch_ops.gather_plan(index, self.rows) for index in (self.src, self.dst)]
        shape = (self.rows, case.width)
        self.x, self.y = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        self.w = torch.rand(case.entries, 1, device=device).to(dtype)
        self.grad = torch.randn(shape, device=device).to(dtype)

    def ours(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        if self.case.message == "w x":
            return WEIGHTED(x, w, plan=self.plan)
        return DIFFERENCE(x, y, w, plan=self.plan)

    def composed(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        src, dst = self.plans
        rows = torch_ops.gather(x, src)
        if self.case.message != "w x":
            rows = rows - torch_ops.gather(y, dst)
        return torch_ops.scatter_add(w * rows, dst)

    def eager(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        rows = x.index_select(0, self.src)
        if self.case.message != "w x":
            rows = rows - y.index_select(0, self.dst)
        zeros = torch.zeros(self.rows, x.shape[1], dtype=x.dtype, device=x.device)
        return zeros.index_add(0, self.dst, w * rows)

    def exact(self) -> Tensor:
        x, y, w = (value.double() for value in (self.x, self.y, self.w))
        return self.eager(x, y, w)

    def products(self) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
        """Products of matrices that are made once, as a plan is."""
        order, offsets = self.plan.parts[4].long(), self.plan.parts[5]
        values, size = self.w.flatten()[order], (self.rows, self.rows)
        if self.x.is_cuda:
            columns = self.src[order].to(offsets.dtype)
            matrix = torch.sparse_csr_tensor(offsets, columns, values, size)
            yield "torch.sparse.mm", lambda x: torch.sparse.mm(matrix, x)
        if HAS["torch_geometric"]:
            from torch_geometric import EdgeIndex

            edges = torch.stack((self.dst[order], self.src[order]))
            index = EdgeIndex(edges, sparse_size=size, sort_order="row").fill_cache_()
            yield "PyG EdgeIndex", lambda x: index.matmul(x, values)

    def warp(self) -> Callable[[Tensor], Tensor]:
        ways = importlib.import_module("benchmarks._messages.warp_kernels")
        kernel = ways.weighted if self.case.message == "w x" else ways.difference
        if self.case.group == "forward":
            run = ways.forward(kernel, self.src, self.dst)
        else:
            run = ways.gradients(kernel, self.src, self.dst, self.grad)
        return lambda _: run(self.x, self.y, self.w)

    def with_gradients(self, way: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        """Forward and backward; returns the gradient by x, which the check looks at."""
        given = [self.x.clone().requires_grad_(), self.w.clone().requires_grad_()]
        other = self.y.clone().requires_grad_()
        wanted = [*given, other] if self.case.message != "w x" else given

        def call(_: Tensor) -> Tensor:
            out = way(given[0], other, given[1])
            return torch.autograd.grad(out, wanted, self.grad)[0]

        return call

    def exact_gradient(self) -> Tensor:
        weights = self.w.double() * self.grad.double().index_select(0, self.dst)
        zeros = torch.zeros(self.rows, self.case.width, dtype=torch.float64, device=self.w.device)
        return zeros.index_add(0, self.src, weights)


def implementations(graph: Graph, with_compile: bool) -> Iterator[Implementation]:
    forward = graph.case.group == "forward"

    def way(name: str, kind: Any, function: Callable[..., Tensor]) -> Implementation:
        if forward:
            return Implementation(name, kind, lambda x: function(x, graph.y, graph.w))
        return Implementation(name, kind, graph.with_gradients(function))

    yield way("torch_ops", "ours", graph.ours)
    if with_compile:
        torch._dynamo.reset()
        yield way("index_select, index_add", "eager", graph.eager)
        yield way("torch.compile", "compiled", torch.compile(graph.eager, dynamic=False))
        return
    yield way("our ops composed", "own", graph.composed)
    if forward:
        gather = torch_ops.gather
        yield Implementation("gather alone", "own", lambda x: _first_rows(gather(x, graph.src), x))
        if graph.case.message == "w x":
            for name, product in graph.products():
                yield Implementation(name, "eager", product)
    yield way("index_select, index_add", "eager", graph.eager)
    if HAS["warp"] and graph.case.dtype == "f32":
        yield Implementation("Warp", "own", graph.warp())


def _first_rows(rows: Tensor, like: Tensor) -> Tensor:
    """What the check compares by shape; the rows were made as a whole."""
    return rows[: like.shape[0]]


def run_case(case: Case, result: Result, bench: Benchmark, with_compile: bool) -> None:
    torch.manual_seed(0)
    graph = Graph(case, bench.device)
    expected = graph.exact() if case.group == "forward" else graph.exact_gradient()
    relative = relative_error(expected)
    result.facts["errors"] = {}

    def judged(name: str) -> Callable[[Tensor], float]:
        def judge(output: Tensor) -> float:
            if name == "gather alone":
                return 0.0
            error = relative(output)
            result.facts["errors"][name] = error
            if name == "torch_ops" and not error < TOLERANCES[case.dtype]:
                raise ValueError(f"relative error {error}")
            return error

        return judge

    for way in implementations(graph, with_compile):
        (measurement,) = bench.measure(result, [way], {"": Check(graph.x, judged(way.name))})
        if bench.device.type == "cpu" and way.name == "torch_ops":
            measurement.scratch_bytes = host_scratch(lambda way=way: way.call(graph.x))
    result.bars = bars(case, result)
    gc.collect()


def times_ours(result: Result, name: str) -> float | None:
    rival, ours = result.find(name), result.seconds("ours")
    return rival.timing.median / ours if ours and rival and rival.timing else None


def bars(case: Case, result: Result) -> list[Bar]:
    """The bars of a case. Means are in the summary."""
    found = []
    if result.find("torch.sparse.mm"):
        wanted = (1.4 if case.distribution == "uniform" else 1.15) if case.has_bars else 1.0
        found.append(Bar("over cuSPARSE", times_ours(result, "torch.sparse.mm"), wanted))
    is_difference = case.group == "forward" and case.message != "w x"
    if is_difference and case.has_bars and case.distribution == "uniform":
        found.append(Bar("over gather alone", times_ours(result, "gather alone"), 1.2))
    if case.group == "backward" and case.has_bars and result.find("our ops composed"):
        found.append(Bar("over our ops composed", times_ours(result, "our ops composed"), 2.7))
    if case.group == "backward" and result.find("torch.compile"):
        least = 1.5 if case.has_bars else 1.0
        found.append(Bar("over torch.compile", times_ours(result, "torch.compile"), least))
    ours = result.find("torch_ops")
    if ours and ours.scratch_bytes is not None:
        # The output and the gradients by w and y are dropped, and so count as scratch.
        item = DTYPES[case.dtype].itemsize
        given = item * (case.entries + 2 * case.rows * case.width)
        given *= case.group == "backward"
        extra = max(ours.scratch_bytes - given, 0) / case.entries
        found.append(Bar("scratch bytes an entry", extra, 16.0, "<="))
    return found


def host_cost(result: Result, bench: Benchmark) -> None:
    """The host's time of a call, beside ElementwiseKernel's on as many values."""
    device = bench.device
    src, dst = (torch.randint(64, (64,), device=device) for _ in range(2))
    plan = index_plan(src=(src, 64), dst=(dst, 64))
    x, y = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    w = torch.randn(64, 1, device=device)

    def timed(name: str, kind: Any, call: Callable[[], Tensor]) -> float:
        best = []
        for _ in range(5):
            for _ in range(50):
                call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                call()
            best.append((time.perf_counter() - begin) / 200)
            if device.type == "cuda":
                torch.cuda.synchronize()
        bench.add(result, Measurement(name, kind, Timing.of(best)))
        return min(best)

    ours = timed("IndexedKernel", "ours", lambda: DIFFERENCE(x, y, w, plan=plan))
    other = timed("ElementwiseKernel", "eager", lambda: SCALE(x, y, w))
    result.bars = [Bar("host time over ElementwiseKernel's", ours / other, 1.3, "<=")]


def tag(case: Case) -> str:
    return f"2^{case.entries.bit_length() - 1} {case.width} {case.distribution}"


def describe(case: Case) -> Result:
    wide = "D >= 64" if case.has_bars else "D < 64"
    panel = f"{case.group}, {case.message}, {case.dtype}"
    labels = (f"{case.group} {case.message}, {wide}", f"{case.group}, {wide}")
    return Result(
        case.group, case.name, panel, tag(case), labels, asdict(case), case.bytes,
    )  # fmt: skip


def summary_bars(label: str, figures: dict[str, Any]) -> list[Bar]:
    """Geometric means over a rival."""
    required = {
        ("forward w x, D >= 64", "torch.sparse.mm"): 2.0,
        ("forward w(x-y), D >= 64", "gather alone"): 1.15,
        ("backward, D >= 64", "our ops composed"): 6.5,
        ("backward, D >= 64", "torch.compile"): 6.0,
        ("backward, D < 64", "torch.compile"): 3.0,
    }
    means = figures["over_each"]
    return [
        Bar(f"geometric mean over {rival}", means[rival], value)
        for (where, rival), value in required.items()
        if where == label and rival in means
    ]


def cpu_bars(label: str, figures: dict[str, Any]) -> list[Bar]:
    mean = figures["over_each"].get("index_select, index_add")
    if mean is None or label not in ("forward, D >= 64", "backward, D >= 64"):
        return []
    return [Bar("geometric mean over eager", mean, 1.5)]


def main() -> int:
    parser = argument_parser("messages", __doc__ or "")
    parser.add_argument(
        "--only", nargs="+", choices=("forward", "backward", "host"), help="groups to run"
    )
    options = parser.parse_args()
    chosen = [
        case
        for case in cases(options)
        if (not options.only or case.group in options.only)
        and (not options.filter or any(text in case.name for text in options.filter))
    ]
    with_compile = bool(options.compile)
    if with_compile:
        chosen = [case for case in chosen if case.group == "backward"]
    bench = Benchmark("messages_compiled" if with_compile else "messages", options)
    for package, is_there in HAS.items():
        if not is_there:
            print(f"{package} is not installed: it is skipped.")
    tasks = []
    if not (options.filter or with_compile or (options.only and "host" not in options.only)):
        result = Result("host", "host, a call on [64, 64]", "host", "call", ("host",), {}, 0)
        tasks.append((result, functools.partial(host_cost, result, bench)))
    for case in chosen:
        result = describe(case)
        tasks.append((result, functools.partial(run_case, case, result, bench, with_compile)))
    if not tasks:
        parser.error("no case is selected")
    bench.run(tasks)
    return bench.finish(summary_bars if options.device == "cuda" else cpu_bars)


if __name__ == "__main__":
    sys.exit(main())
