"""Reductions and softmax over segments beside torch's own calls, forward and backward.

Groups: reduce (segment_reduce by offsets), sorted (scatter_add of an index in order), softmax (over
an index and over offsets, forward and backward in one, beside the formula of torch_geometric), bags
(embedding_bag, forward and "trained", with the gradient), others (gather_csr, variances, reductions
in place and masked_scatter).

On a CPU that does other work too, compare single threads (OMP_NUM_THREADS=1): threads that wait for
one another make of a lost core a loss by a factor of a hundred.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops
from benchmarks._measure import (
    Bar,
    Benchmark,
    Check,
    Implementation,
    Result,
    argument_parser,
    relative_error,
)

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"bf16": 8e-3, "f32": 1e-4}  # ||error|| / ||result||

Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    group: str
    name: str
    dtype: str
    entries: int
    columns: int
    segments: int
    spread: str = "uniform"
    quick: bool = False
    on: str = "cuda"

    def __str__(self) -> str:
        return (
            f"{self.name} {self.dtype} {self.entries}x{self.columns} in {self.segments} segments, "
            f"{self.spread}"
        )

    def index(self, device: torch.device) -> Tensor:
        """In order. Hot: half of the entries are one segment's. Varied: cut at random entries."""
        if self.spread == "varied":
            first = torch.zeros(self.entries, dtype=torch.int64, device=device)
            cuts = torch.randint(self.entries, (self.segments - 1,), device=device)
            return first.index_add_(0, cuts, torch.ones_like(cuts)).cumsum(0)
        index = torch.randint(self.segments, (self.entries,), device=device)
        if self.spread == "hot":
            index[: self.entries // 2] = self.segments // 2
        return index.sort().values


OTHERS = ("gather_csr", "var", "scatter_ mean", "scatter_ amax", "masked_scatter")


def bags(dtype: str) -> list[str]:
    """What torch has of them."""
    names = ["sum", "mean", "max", "sum, trained"]
    return [*names, "max, trained"] if dtype == "f32" else names


def cases() -> Iterator[Case]:
    for on, entries in (("cuda", 1_048_576), ("cpu", 65_536)):
        for columns, segments, spread in (
            (64, entries // 16, "uniform"),
            (64, entries // 16, "hot"),
            (16, entries // 16, "uniform"),
            (256, entries // 8, "uniform"),
            (64, entries * 2, "uniform"),
            (64, entries // 128, "uniform"),
            (64, 64, "uniform"),
            (1, entries // 16, "uniform"),
            (64, entries // 16, "varied"),
            (1, entries // 16, "varied"),
        ):
            common = {"entries": entries, "columns": columns, "segments": segments, "on": on}
            quick = columns == 64 and segments == entries // 16
            for dtype in ("f32", "bf16"):
                yield Case("reduce", "sum", dtype, spread=spread, quick=quick, **common)
            for name in ("mean", "amax", "prod"):
                yield Case("reduce", name, "f32", spread=spread, **common)
            yield Case("sorted", "scatter_add", "f32", spread=spread, quick=quick, **common)
        for columns, segments, spread in (
            (1, entries // 16, "uniform"),
            (8, entries // 16, "uniform"),
            (8, entries // 16, "hot"),
            (64, entries // 16, "uniform"),
        ):
            common = {"entries": entries, "columns": columns, "segments": segments, "on": on}
            for name in ("by offsets", "by index", "by a plan"):
                yield Case("softmax", name, "f32", spread=spread, quick=columns == 8, **common)
        for columns in (8, 64):
            common = {"entries": entries, "columns": columns, "segments": entries // 16, "on": on}
            for dtype in ("f32", "bf16"):
                for name in bags(dtype):
                    yield Case("bags", name, dtype, quick=columns == 64, **common)
            for name in OTHERS:
                yield Case("others", name, "f32", **common)
        for dtype in ("f32", "bf16"):  # texts of some hundred words
            for name in bags(dtype):
                yield Case("bags", name, dtype, entries // 16, 128, entries // 8192, on=on)


def offsets_of(index: Tensor, segments: int) -> Tensor:
    rows = torch.arange(segments + 1, device=index.device)
    return torch.searchsorted(index, rows)


def pyg_softmax(values: Tensor, index: Tensor, segments: int) -> Tensor:
    """What torch_geometric.utils.softmax does, in torch's ops."""
    wide = index[:, None].expand_as(values)
    size = (segments, values.shape[1])
    largest = values.new_zeros(size).scatter_reduce(
        0, wide, values.detach(), "amax", include_self=False
    )
    exps = (values - largest.index_select(0, index)).exp()
    sums = values.new_zeros(size).scatter_add(0, wide, exps) + 1e-16
    return exps / sums.index_select(0, index)


def with_gradient(softmax: Call, grad: Tensor) -> Call:
    def call(values: Tensor) -> Tensor:
        leaf = values.detach().requires_grad_()
        return torch.autograd.grad(softmax(leaf), leaf, grad)[0]

    return call


def pyg_variance(values: Tensor, index: Tensor, segments: int) -> Tensor:
    """What torch_geometric's VarAggregation does, in torch's ops."""
    wide = index[:, None].expand_as(values)
    start = values.new_zeros(segments, values.shape[1])
    counts = torch.bincount(index, minlength=segments).clamp(min=1)[:, None]
    mean = start.scatter_add(0, wide, values) / counts
    return start.scatter_add(0, wide, values * values) / counts - mean * mean


def calls_of_others(case: Case, values: Tensor, index: Tensor, offsets: Tensor) -> list[Call]:
    """Ours and torch's; of bags the values are the table."""
    entries, segments = case.entries, case.segments
    if case.group == "bags":
        picks = torch.randint(entries, (entries,), device=index.device)
        mode, *trained = case.name.split(", ")
        bags: list[Call] = [
            lambda v: torch_ops.embedding_bag(picks, v, offsets[:-1], mode=mode),
            lambda v: F.embedding_bag(picks, v, offsets[:-1], mode=mode),
        ]
        if not trained:
            return bags
        grad = torch.randn(segments, case.columns, device=index.device)
        return [
            lambda v, bag=bag: with_gradient(bag, grad.to(v.dtype))(v)  # type: ignore[misc]
            for bag in bags
        ]
    wide = index[:, None].expand_as(values)
    zeros = torch.zeros(segments, case.columns, device=index.device)
    mask = torch.rand(entries, device=index.device) < 0.5
    kept = int(mask.sum())
    how = case.name.split()[-1]

    def put(rows: Tensor) -> Tensor:
        result = torch.zeros_like(rows)
        result[mask] = rows[:kept]
        return result

    ours: dict[str, Call] = {
        "gather_csr": lambda v: torch_ops.gather_csr(v[:segments], offsets, output_size=entries),
        "var": lambda v: torch_ops.scatter(v, index, segments, reduce="var", correction=0),
        "masked_scatter": lambda v: torch_ops.masked_scatter(v[:kept], mask),
    }
    theirs: dict[str, Call] = {
        "gather_csr": lambda v: torch.repeat_interleave(
            v[:segments], offsets.diff(), 0, output_size=entries
        ),
        "var": partial(pyg_variance, index=index, segments=segments),
        "masked_scatter": put,
    }
    return [
        ours.get(
            case.name,
            lambda v: torch_ops.scatter_(zeros.to(v.dtype, copy=True), v, index, reduce=how),
        ),
        theirs.get(
            case.name,
            lambda v: zeros.to(v.dtype, copy=True).scatter_reduce_(0, wide, v, how),
        ),
    ]


def implementations(case: Case, values: Tensor) -> tuple[Tensor, list[Implementation]]:
    """What is expected, and who computes it."""
    index = case.index(values.device)
    offsets = offsets_of(index, case.segments)
    wide = index[:, None].expand_as(values)
    zeros = torch.zeros(case.segments, case.columns, device=values.device)
    if case.group in ("bags", "others"):
        our_call, their_call = calls_of_others(case, values, index, offsets)
        return their_call(values.double()), [
            Implementation("torch_ops", "ours", our_call),
            Implementation("torch", "eager", their_call),
        ]
    if case.group == "softmax":
        grad = torch.randn_like(values)
        given = {
            "by offsets": {"index": None, "offsets": offsets},
            "by index": {"index": index, "dim_size": case.segments},
            "by a plan": {"index": torch_ops.gather_plan(index, case.segments)},
        }[case.name]
        theirs = partial(pyg_softmax, index=index, segments=case.segments)
        expected = with_gradient(theirs, grad.double())(values.double())
        return expected, [
            Implementation(
                "torch_ops", "ours", with_gradient(partial(torch_ops.softmax, **given), grad)
            ),
            Implementation("torch_geometric's formula", "eager", with_gradient(theirs, grad)),
        ]
    reduce = "sum" if case.group == "sorted" else case.name

    def scattered(given: Tensor) -> Tensor:
        start = torch.full_like(zeros, int(reduce == "prod"), dtype=given.dtype)
        return start.scatter_reduce(0, wide, given, reduce, include_self=reduce == "prod")

    by_torch = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    ours: Call = partial(torch_ops.segment_reduce, offsets=offsets, reduce=reduce)
    if case.group == "sorted":
        ours = partial(torch_ops.scatter_add, index=index, dim_size=case.segments, sorted=True)
    found = [Implementation("torch_ops", "ours", ours)]
    if case.group == "sorted":
        found.append(
            Implementation("index_add", "eager", lambda v: zeros.to(v.dtype).index_add(0, index, v))
        )
    else:
        # unsafe: without a look at the offsets, for which it would wait. Of no values it makes 1 or
        # NaN or infinity unless it is told.
        theirs = partial(
            torch.segment_reduce, reduce=by_torch, offsets=offsets, unsafe=True, initial=None
        )
        if case.segments <= case.entries // 16 or reduce == "sum":
            found.append(Implementation("torch.segment_reduce", "eager", theirs))
    found.append(Implementation("scatter_reduce", "eager", scattered))
    return scattered(values.double()), found


def run_case(case: Case, result: Result, bench: Benchmark) -> None:
    torch.manual_seed(0)
    values = torch.randn(case.entries, case.columns, device=bench.device).to(DTYPES[case.dtype])
    if case.name == "prod":  # neither 0 nor infinity
        values = values.sign() * values.abs().clamp(0.9999, 1.0001)
    expected, found = implementations(case, values)
    size = values.element_size()
    if case.group == "softmax":  # values, gradient and result once each
        result.bytes = 3 * values.numel() * size
    else:
        result.bytes = (values.numel() + expected.numel()) * size + 8 * case.segments
    # Then nearly all that is moved is read.
    result.reads_only = case.group == "reduce" and case.entries >= 8 * case.segments
    ours, *_ = bench.measure(result, found, {"": Check(values, relative_error(expected.double()))})
    for error in ours.errors.values():
        result.bars.append(Bar("relative error", error, TOLERANCE[case.dtype], "<="))
    least = 0.95 if case.on == "cpu" else 2.0 if case.group == "softmax" else 1.0
    result.bars.append(Bar("over fastest eager", result.ratio("eager"), least))
    rate = result.bytes_per_second("ours")
    if case.group == "reduce" and case.columns * size >= 64 and case.on == "cuda" and rate:
        result.bars.append(Bar("of copy", rate / bench.copy["start"], 0.9))


def main() -> int:
    parser = argument_parser("segments", __doc__ or "")
    options = parser.parse_args()
    chosen = [
        Case(
            **{
                **asdict(case),
                "entries": max(100, int(case.entries * options.scale)),
                "segments": max(10, int(case.segments * options.scale)),
            }
        )
        for case in cases()
        if case.on == options.device and (case.quick or not options.quick)
    ]
    if options.filter:
        chosen = [case for case in chosen if any(text in str(case) for text in options.filter)]
    if not chosen:
        parser.error("no case is selected")
    bench = Benchmark("segments", options)
    tasks = []
    for case in chosen:
        labels = (case.group, f"{case.group} {case.name}")
        result = Result(
            case.group, str(case), f"{case.group}, {case.name}", str(case), labels, asdict(case), 0
        )
        tasks.append((result, partial(run_case, case, result, bench)))
    bench.run(tasks)
    return bench.finish(lambda *_: [])


if __name__ == "__main__":
    sys.exit(main())
