"""Ops of random shapes, dtypes and arguments, beside torch's: all but gathers and their sums.

benchmarks/random_shapes.py draws those. A kind of call is a function here: it draws its arguments
from `Drawn`, and returns the bytes that must be moved and the two calls. Whatever has less than
0.95 of torch's speed is listed. Each result is checked first.

--kinds reduce bag ... draws only these kinds.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
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
    Result,
    argument_parser,
    plot_ratios,
    positive,
    relative_error,
)
from benchmarks.random_shapes import CASE_SECONDS, LEAST

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TOLERANCE = {"f32": 1e-4, "bf16": 8e-3, "f16": 1e-3}  # ||error|| / ||result||
ELEMENTS = {"cuda": 2**25, "cpu": 2**21}
WIDTHS = (1, 2, 3, 5, 8, 16, 24, 33, 64, 65, 100, 128, 200, 256, 512)

Call = Callable[[Tensor], Tensor]


class Drawn:
    """A case's random numbers, the same for the same seed; and the tensors made of them."""

    def __init__(self, seed: str, device: str, scale: float) -> None:
        self.chosen = random.Random(seed)
        self.device = device
        self.elements = round(ELEMENTS[device] * scale)  # at the most, of a tensor
        self.dtype = self.pick("f32", "f32", "bf16", "f16")
        self.width = self.pick(*WIDTHS)
        self.names: list[str] = [self.dtype]

    def pick(self, *choices: Any) -> Any:
        return self.chosen.choice(choices)

    def size(self, least: int, most: int) -> int:
        """Its logarithm is uniform."""
        log = self.chosen.uniform(math.log(least), math.log(max(least, most)))
        return round(math.exp(log))

    def entries(self) -> int:
        return self.size(16, self.elements // self.width)

    def values(self, *shape: int) -> Tensor:
        self.names.append("x".join(map(str, shape)))
        return torch.randn(shape, device=self.device, dtype=DTYPES[self.dtype])

    def index(self, rows: int, *shape: int) -> Tensor:
        """Uniform, or skewed: half of the entries name one row of a thousand."""
        skewed = self.pick(False, False, True)
        named = "x".join(map(str, shape))
        self.names.append(f"{named} of {rows} {'skewed' if skewed else 'uniform'}")
        index = torch.randint(rows, shape, device=self.device)
        if skewed:
            index = torch.where(torch.rand(shape, device=self.device) < 0.5, index // 1000, index)
        return index

    def offsets(self, segments: int, entries: int, least: int = 0) -> Tensor:
        """Of segments of at least so many entries: of any lengths, skewed or equal ones."""
        spread = self.pick("uniform", "skewed", "equal")
        self.names.append(f"in {segments} {spread}")
        ends = torch.linspace(0, 1, segments + 1, device=self.device, dtype=torch.float64)
        if spread != "equal":
            ends[1:-1] = torch.rand_like(ends[1:-1]) ** (4 if spread == "skewed" else 1)
        ends = (ends * (entries - least * segments)).long().sort().values
        return ends + least * torch.arange(segments + 1, device=self.device)


# What is moved in bytes, at the least; the input of both calls, ours, torch's.
Drawing = tuple[int, Tensor, Call, Call]


def moved(*tensors: Tensor) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def trained(call: Call, grad: Tensor) -> Call:
    def run(values: Tensor) -> Tensor:
        leaf = values.detach().requires_grad_()
        return torch.autograd.grad(call(leaf), leaf, grad.to(values.dtype))[0]

    return run


def reduce(drawn: Drawn) -> Drawing:
    entries, name = drawn.entries(), drawn.pick("sum", "mean", "max", "min")
    segments = drawn.size(1, entries)
    values, offsets = drawn.values(entries, drawn.width), drawn.offsets(segments, entries, 1)
    drawn.names.append(name)
    ours = {"max": "amax", "min": "amin"}.get(name, name)
    # unsafe: without a wait for a look at the offsets.
    return (
        moved(values) + segments * drawn.width * values.element_size(),
        values,
        lambda v: torch_ops.segment_reduce(v, offsets, ours),
        lambda v: torch.segment_reduce(v, name, offsets=offsets, unsafe=True),
    )


def repeat(drawn: Drawn) -> Drawing:
    entries = drawn.entries()
    segments = drawn.size(1, entries)
    values, offsets = drawn.values(segments, drawn.width), drawn.offsets(segments, entries)
    return (
        moved(values) + entries * drawn.width * values.element_size(),
        values,
        lambda v: torch_ops.gather_csr(v, offsets, output_size=entries),
        lambda v: torch.repeat_interleave(v, offsets.diff(), 0, output_size=entries),
    )


def bag(drawn: Drawn) -> Drawing:
    entries, mode = drawn.entries(), drawn.pick("sum", "mean", "max")
    bags, rows = drawn.size(1, entries), drawn.size(16, entries)
    table = drawn.values(rows, drawn.width)
    picks, offsets = drawn.index(rows, entries), drawn.offsets(bags, entries)[:-1]
    drawn.names.append(mode)
    ours: Call = lambda t: torch_ops.embedding_bag(picks, t, offsets, mode=mode)  # noqa: E731
    theirs: Call = lambda t: F.embedding_bag(picks, t, offsets, mode=mode)  # noqa: E731
    size = (entries + bags) * drawn.width * table.element_size()
    if drawn.pick(True, False):
        return size, table, ours, theirs
    drawn.names.append("trained")
    grad = torch.randn(bags, drawn.width, device=drawn.device)
    return 2 * size + moved(table), table, trained(ours, grad), trained(theirs, grad)


def softmax(drawn: Drawn) -> Drawing:
    drawn.width = drawn.pick(1, 4, 8, 64)
    entries = drawn.entries()
    segments = drawn.size(1, entries)
    values, index = drawn.values(entries, drawn.width), drawn.index(segments, entries)

    def theirs(v: Tensor) -> Tensor:  # torch_geometric's formula
        wide = index[:, None].expand_as(v)
        size = (segments, v.shape[1])
        most = v.new_zeros(size).scatter_reduce(0, wide, v.detach(), "amax", include_self=False)
        exps = (v - most.index_select(0, index)).exp()
        return exps / (v.new_zeros(size).scatter_add(0, wide, exps) + 1e-16).index_select(0, index)

    return (
        2 * moved(values),
        values,
        lambda v: torch_ops.softmax(v, index, segments),
        theirs,
    )


def scatter(drawn: Drawn) -> Drawing:
    entries, name = drawn.entries(), drawn.pick("amax", "amin", "mean", "prod")
    rows = drawn.size(1, min(4 * entries, drawn.elements // drawn.width))
    values, index = drawn.values(entries, drawn.width), drawn.index(rows, entries)
    wide = index[:, None].expand_as(values)
    drawn.names.append(name)
    if name == "prod":
        values.sign_()
    size = 2 * moved(values)
    if drawn.pick(True, False):  # in place
        drawn.names.append("in place")
        given = torch.randn(rows, drawn.width, device=drawn.device)
        copies = {dtype: given.to(dtype) for dtype in (values.dtype, torch.float64)}
        return (
            size,
            values,
            lambda v: torch_ops.scatter_(copies[v.dtype].clone(), v, index, reduce=name),
            lambda v: copies[v.dtype].clone().scatter_reduce_(0, wide, v, name),
        )
    fill, include = int(name == "prod"), name == "prod"
    return (
        size,
        values,
        lambda v: torch_ops.scatter(v, index, rows, reduce=name),
        lambda v: v.new_full((rows, drawn.width), fill).scatter_reduce_(
            0, wide, v, name, include_self=include
        ),
    )


def elements(drawn: Drawn) -> Drawing:
    """gather_elements, or its transpose, along the first axis or the last."""
    rows = drawn.entries()
    entries, dim, width = drawn.size(16, rows), drawn.pick(0, 1), drawn.width
    shape = (rows, width) if dim == 0 else (width, rows)
    short = (entries, width) if dim == 0 else (width, entries)
    if drawn.pick(True, False):
        drawn.names.append(f"picked on {dim}")
        source, index = drawn.values(*shape), drawn.index(rows, *short)
        return (
            10 * index.numel() + index.numel() * source.element_size(),
            source,
            lambda v: torch_ops.gather_elements(v, index, dim),
            lambda v: v.gather(dim, index),
        )
    drawn.names.append(f"added on {dim}")
    values, index = drawn.values(*short), drawn.index(rows, *short)
    return (
        moved(values, index) + rows * width * values.element_size(),
        values,
        lambda v: torch_ops.scatter_elements_add(v, index, shape, dim),
        lambda v: v.new_zeros(shape).scatter_add_(dim, index, v),
    )


def points(drawn: Drawn) -> Drawing:
    """x[i, j], or its gradient."""
    rows, columns = drawn.size(4, 3000), drawn.size(4, 3000)
    drawn.width = max(1, min(drawn.width, drawn.elements // (rows * columns)))
    source = drawn.values(rows, columns, drawn.width)
    entries = drawn.entries()
    i, j = drawn.index(rows, entries), drawn.index(columns, entries)
    ours: Call = lambda v: torch_ops.index(v, (i, j))  # noqa: E731
    theirs: Call = lambda v: v[i, j]  # noqa: E731
    size = 2 * entries * drawn.width * source.element_size()
    if drawn.pick(True, False):
        return size + moved(i, j), source, ours, theirs
    drawn.names.append("gradient")
    grad = torch.randn(entries, drawn.width, device=drawn.device)
    return size + moved(i, j, source), source, trained(ours, grad), trained(theirs, grad)


def activation(drawn: Drawn) -> Drawing:
    """Forward or backward, of rows as they are, transposed, expanded or cut."""
    name = drawn.pick("relu", "leaky_relu", "sigmoid")
    rows, layout = drawn.entries(), drawn.pick("rows", "rows", "transposed", "cut")
    drawn.names.append(f"{name}, {layout}")
    if layout == "transposed":
        x = drawn.values(drawn.width, rows).t()
    elif layout == "cut":
        x = drawn.values(rows, drawn.width + 1)[:, 1:]
    else:
        x = drawn.values(rows, drawn.width)
    ours = getattr(torch_ops, name)
    theirs = torch.sigmoid if name == "sigmoid" else getattr(F, name)
    if drawn.pick(True, False):
        return 2 * moved(x), x, ours, theirs
    grads = drawn.pick("rows", "transposed", "expanded")
    drawn.names.append(f"backward of {grads}")
    size = {"rows": (rows, drawn.width), "transposed": (drawn.width, rows), "expanded": (1, 1)}
    grad = torch.randn(size[grads], device=drawn.device)
    grad = grad.t() if grads == "transposed" else grad.expand(rows, drawn.width)
    return 5 * moved(x), x, trained(ours, grad), trained(theirs, grad)


SQUARES = torch_ops.jit.ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "squares")
HARMONIC = torch_ops.jit.ElementwiseKernel("T x, T y", "T z", "z = x * y / (1 + abs(x))", "harm")


def reduction(drawn: Drawn) -> Drawing:
    """A kernel from text; its rival is torch's sum of squares along the same axis."""
    rows, dim = drawn.entries(), drawn.pick(0, 1)
    shape = drawn.pick((rows, drawn.width), (drawn.width, rows))
    x = drawn.values(*shape)
    drawn.names.append(f"along {dim}")
    return (
        moved(x),
        x,
        lambda v: SQUARES(v, dim=dim),
        lambda v: torch.linalg.vector_norm(v, dim=dim).square(),
    )


def kernel(drawn: Drawn) -> Drawing:
    """A kernel from text, of rows and of rows, of one row, or of a column."""
    rows = drawn.entries()
    x = drawn.values(rows, drawn.width)
    shape = drawn.pick((rows, drawn.width), (1, drawn.width), (rows, 1))
    y = drawn.values(*shape)
    others = {dtype: y.to(dtype) for dtype in (x.dtype, torch.float64)}
    return (
        2 * moved(x) + moved(y),
        x,
        lambda v: HARMONIC(v, others[v.dtype]),
        lambda v: v * others[v.dtype] / (1 + v.abs()),
    )


KINDS: dict[str, Callable[[Drawn], Drawing]] = {
    each.__name__: each
    for each in (
        reduce,
        repeat,
        bag,
        softmax,
        scatter,
        elements,
        points,
        activation,
        reduction,
        kernel,
    )
}


def run_case(kind: str, seed: str, result: Result, bench: Benchmark) -> None:
    torch.manual_seed(0)
    drawn = Drawn(seed, bench.options.device, bench.options.scale)
    result.bytes, given, ours, theirs = KINDS[kind](drawn)
    result.name = " ".join((kind, *drawn.names))
    found = [Implementation("torch_ops", "ours", ours), Implementation("torch", "eager", theirs)]
    expected = theirs(given.double())
    mine, _ = bench.measure(result, found, {"": Check(given, relative_error(expected))})
    for error in mine.errors.values():
        result.bars.append(Bar("relative error", error, TOLERANCE[drawn.dtype], "<="))
    result.bars.append(Bar("over fastest eager", result.ratio("eager"), LEAST))


def draw(kinds: list[str], seed: int) -> Iterator[tuple[str, str]]:
    chosen = random.Random(seed)
    while True:
        yield chosen.choice(kinds), f"{seed} {chosen.random()}"


def main() -> int:
    parser = argument_parser("random_ops", __doc__ or "")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default: 0)")
    parser.add_argument(
        "--cases", type=positive, help="how many are drawn (default: 400; quick: 40)"
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of calls (default: all)"
    )
    options = parser.parse_args()
    cases = options.cases or (40 if options.quick else 400)
    bench = Benchmark("random_ops", options, case_seconds=CASE_SECONDS)
    tasks = []
    for number, (kind, seed) in enumerate(islice(draw(options.kinds, options.seed), cases)):
        result = Result(kind, f"{kind} {number}", kind, kind, (kind,), {"seed": seed}, 0)
        tasks.append((result, partial(run_case, kind, seed, result, bench)))
    bench.run(tasks)
    return bench.finish(lambda *_: [], plot_ratios)


if __name__ == "__main__":
    sys.exit(main())
