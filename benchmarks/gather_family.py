"""The gather family beside torch's own calls, forward and backward, and the modes of gather.

Groups: modes (gather with each mode beside mode="raise"), elements (take_along_dim), scatter (its
reductions and scatter_add_), index (one array along each axis), points (gather_nd), embedding. With
--device cpu the cases are smaller ones.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
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
    must_equal,
    relative_error,
)

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "int64": torch.int64}
# ||error|| / ||result||: one rounding of a 16-bit float, and some of float32's.
TOLERANCE = {"bf16": 4e-3, "f32": 1e-4, "int64": 0.0}

Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One call: what it works on, and who can do it."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]  # of the source, or of the values
    index: tuple[int, ...]
    dim: int
    what: str = "forward"
    distribution: str = "uniform"
    index_dtype: str = "int64"
    size: int = 0  # of a scatter's result along dim
    quick: bool = False
    on: str = "cuda"

    @property
    def sizes(self) -> str:
        return f"{'x'.join(map(str, self.shape))} by {'x'.join(map(str, self.index))}"

    def __str__(self) -> str:
        return (
            f"{self.name} {self.what} {self.dtype} {self.sizes} along {self.dim} "
            f"{self.index_dtype} {self.distribution}"
        )

    @property
    def tag(self) -> str:
        """What tells the cases of a panel of the plot apart, as far as there is room."""
        name = self.name.removeprefix("gather_nd of ")
        spread = "" if self.distribution == "uniform" else f" {self.distribution}"
        return f"{name} {self.dtype} {self.sizes}{spread}"


@dataclass
class Task:
    """What a case becomes on a device: ``input`` goes to each of ``implementations``."""

    input: Tensor
    expected: Tensor
    bytes: int
    implementations: list[tuple[str, str, Call]]  # name, kind, call
    exact: bool


# ---- inputs -------------------------------------------------------------------------------------


def make_values(shape: tuple[int, ...], dtype: str, device: torch.device) -> Tensor:
    if dtype == "int64":
        return torch.randint(1000, shape, device=device)
    return torch.randn(shape, device=device).to(DTYPES[dtype])


def make_index(case: Case, size: int, device: torch.device) -> Tensor:
    index = torch.randint(size, case.index, device=device)
    if case.distribution == "hot":  # 90 % of the entries are one
        index[torch.rand(case.index, device=device) < 0.9] = size // 2
    if case.distribution == "sort":
        index = torch.rand(case.index, device=device).argsort(case.dim)
    return index


def nbytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---- modes --------------------------------------------------------------------------------------


def mode_cases() -> Iterator[Case]:
    for name in ("wrap", "clip", "fill", "unchecked"):
        yield Case("modes", name, "f32", (8, 131072, 64), (8, 131072), 1, quick=name == "fill")
        yield Case("modes", name, "f32", (8, 131072, 25), (8, 131072), 1)
        yield Case("modes", name, "f32", (4096, 1024), (4096, 16384), 1)
        yield Case("modes", name, "f32", (131072, 64), (131072,), 0, on="cpu", quick=True)
        yield Case("modes", name, "f32", (256, 1024), (256, 4096), 1, on="cpu")


def mode_task(case: Case, device: torch.device) -> Task:
    """Entries in range, so that all modes are to give the same; the rival is mode="raise"."""
    source = make_values(case.shape, case.dtype, device)
    index = make_index(case, case.shape[case.dim], device)
    batch = len(case.index) - 1
    expected = torch_ops.gather(source, index, batch_dims=batch)
    call = partial(torch_ops.gather, index=index, batch_dims=batch)
    return Task(
        source,
        expected,
        nbytes(index, expected, expected),
        [
            ("torch_ops", "ours", lambda given: call(given, mode=case.name)),
            ('torch_ops, mode="raise"', "eager", call),
        ],
        exact=True,
    )


# ---- elements -----------------------------------------------------------------------------------


def element_cases() -> Iterator[Case]:
    """What differs: which axes the index varies on, how long they are, and how often rows meet."""
    cuda = [
        ("f32", (1048576, 64), (1048576, 64), 0),
        ("f32", (64, 4096, 64), (64, 16384, 64), 1),
        ("bf16", (64, 4096, 64), (64, 16384, 64), 1),
        ("f32", (8, 131072, 3), (8, 131072, 3), 1),
        ("f32", (4096, 1024), (4096, 16384), 1),
        ("f32", (4096, 50304), (4096, 8), 1),
        ("f32", (8, 131072, 64), (8, 131072, 1), 1),  # rows
        ("f32", (1, 131072, 64), (8, 131072, 1), 1),  # of one source
        ("int64", (65536, 64), (65536, 64), 0),
    ]
    cpu = [
        ("f32", (65536, 64), (65536, 64), 0),
        ("f32", (16, 4096, 16), (16, 4096, 16), 1),
        ("bf16", (16, 4096, 16), (16, 4096, 16), 1),
        ("f32", (262144, 3), (262144, 3), 0),
        ("f32", (512, 1024), (512, 4096), 1),
        ("f32", (4, 65536, 64), (4, 16384, 1), 1),
    ]
    for on, shapes in (("cuda", cuda), ("cpu", cpu)):
        for number, (dtype, shape, index, dim) in enumerate(shapes):
            common = {"dtype": dtype, "shape": shape, "index": index, "dim": dim, "on": on}
            quick = number in (0, 1, 3)
            yield Case("elements", "take_along_dim", **common, quick=quick)
            if dtype == "int64":
                continue
            yield Case("elements", "take_along_dim", **common, what="backward", quick=quick)
            yield Case("elements", "take_along_dim", **common, what="backward", distribution="hot")
    for on, shape in (("cuda", (4096, 4096)), ("cpu", (1024, 1024))):
        for dim in (0, 1):
            yield Case(
                "elements", "take_along_dim", "f32", shape, shape, dim, distribution="sort", on=on
            )


def element_task(case: Case, device: torch.device) -> Task:
    source = make_values(case.shape, case.dtype, device)
    index = make_index(case, case.shape[case.dim], device)
    output = torch.take_along_dim(source, index, case.dim)
    if case.what == "forward":
        return Task(
            source,
            output,
            nbytes(index, output, output),
            [
                ("torch_ops", "ours", lambda s: torch_ops.take_along_dim(s, index, case.dim)),
                (
                    "torch.take_along_dim",
                    "eager",
                    lambda s: torch.take_along_dim(s, index, case.dim),
                ),
            ],
            exact=True,
        )

    def gradient(take: Callable[..., Tensor]) -> Call:
        leaf = source.clone().requires_grad_()
        result = take(leaf, index, case.dim)
        return lambda grad: torch.autograd.grad(result, leaf, grad, retain_graph=True)[0]

    grad = make_values(tuple(output.shape), case.dtype, device)
    leaf = source.double().requires_grad_()
    exact = torch.take_along_dim(leaf, index, case.dim)
    (expected,) = torch.autograd.grad(exact, leaf, grad.double())
    return Task(
        grad,
        expected,
        nbytes(index, grad, source),
        [
            ("torch_ops", "ours", gradient(torch_ops.take_along_dim)),
            ("torch.take_along_dim", "eager", gradient(torch.take_along_dim)),
        ],
        exact=False,
    )


# ---- scatter ------------------------------------------------------------------------------------


def scatter_cases() -> Iterator[Case]:
    for reduce in ("sum", "mean", "amax", "prod"):
        for distribution in ("uniform", "hot"):
            quick = distribution == "uniform" and reduce == "amax"
            common = {"distribution": distribution, "quick": quick}
            # torch multiplies what goes to one row one after the other: ten seconds for all of it.
            part = 16 if reduce == "prod" and distribution == "hot" else 1
            rows, size = 1048576 // part, 65536 // part
            yield Case("scatter", reduce, "f32", (rows, 64), (rows,), 0, size=size, **common)
            yield Case(
                "scatter", reduce, "f32", (65536, 16), (65536,), 0, size=4096, on="cpu", **common
            )
    yield Case("scatter", "add_", "f32", (1048576, 64), (1048576,), 0, size=65536)
    yield Case("scatter", "add_", "f32", (4096, 64), (4096,), 0, size=1048576)
    yield Case("scatter", "add_", "f32", (65536, 16), (65536,), 0, size=4096, on="cpu")


def scatter_task(case: Case, device: torch.device) -> Task:
    values = make_values(case.shape, case.dtype, device)
    if case.name == "prod":  # of a million numbers: neither 0 nor infinity
        values = values.sign() * values.abs().clamp(0.99999, 1.00001)
    index = make_index(case, case.size, device)
    wide = index.unsqueeze(1).expand_as(values)
    result = torch.zeros(case.size, *case.shape[1:], dtype=values.dtype, device=device)
    size = nbytes(index, values, result)
    if case.name == "add_":
        ours, theirs = result.clone(), result.clone()
        exact = result.double().index_add(0, index, values.double())

        def add(out: Tensor, function: Callable[..., Any]) -> Call:
            # The first call's result is checked; the others add more to it.
            return lambda given: function(out, given)

        return Task(
            values,
            exact,
            size,
            [
                (
                    "torch_ops",
                    "ours",
                    add(ours, lambda out, given: torch_ops.scatter_add_(out, given, index)),
                ),
                (
                    "index_add_",
                    "eager",
                    add(theirs, lambda out, given: out.index_add_(0, index, given)),
                ),
            ],
            exact=False,
        )

    def torchs(given: Tensor) -> Tensor:
        # One where nothing goes, in a product.
        start = torch.full_like(result, int(case.name == "prod"), dtype=given.dtype)
        return start.scatter_reduce(0, wide, given, case.name, include_self=case.name == "prod")

    return Task(
        values,
        torchs(values.double()) if case.name != "prod" else torchs(values).double(),
        size,
        [
            (
                "torch_ops",
                "ours",
                lambda given: torch_ops.scatter(given, index, case.size, reduce=case.name),
            ),
            ("scatter_reduce", "eager", torchs),
        ],
        exact=False,
    )


# ---- index, gather_nd, embedding ----------------------------------------------------------------


def with_backward(cases: list[Case]) -> Iterator[Case]:
    for case in cases:
        yield case
        if case.dtype == "int64":
            continue
        for distribution in ("uniform", "hot"):
            yield replace(case, what="backward", distribution=distribution)


def index_cases() -> Iterator[Case]:
    """One integer array along each axis: rows of many lengths, and elements."""
    for dtype, shape, index, dim in (
        ("f32", (1048576, 64), (1048576,), 0),
        ("f32", (8, 131072, 64), (131072,), 1),
        ("f32", (1048576, 3), (1048576,), 0),
        ("f32", (131072, 25), (1048576,), 0),
        ("f32", (4096, 16384), (8192,), 1),
        ("f32", (64, 64, 4096), (16384,), 2),
        ("bf16", (50304, 1024), (131072,), 0),
        ("bf16", (64, 4096, 128), (16384,), 1),
        ("f32", (65536, 64), (4096,), 0),
    ):
        quick = dtype == "f32" and shape[0] in (1048576, 4096)
        yield from with_backward([Case("index", "index", dtype, shape, index, dim, quick=quick)])
    for dtype, shape, index, dim in (
        ("f32", (65536, 64), (65536,), 0),
        ("f32", (16, 8192, 16), (8192,), 1),
        ("f32", (512, 2048), (2048,), 1),
        ("bf16", (131072, 3), (131072,), 0),
    ):
        common = {"quick": dim == 0, "on": "cpu"}
        yield from with_backward([Case("index", "index", dtype, shape, index, dim, **common)])


def index_task(case: Case, device: torch.device) -> Task:
    source = make_values(case.shape, case.dtype, device)
    index = make_index(case, case.shape[case.dim], device)
    items = (*(slice(None),) * case.dim, index)
    return reading_task(
        case,
        source,
        index,
        {
            "torch_ops": lambda s: torch_ops.index(s, items),
            "source[index]": lambda s: s[items],
            "index_select": lambda s: s.index_select(case.dim, index),
        },
    )


def point_cases() -> Iterator[Case]:
    """Points of 1 to 4 coordinates (``dim`` counts them): rows and elements."""
    for dtype, shape, points, count in (
        ("f32", (1048576, 64), (1048576,), 1),
        ("f32", (1024, 1024, 64), (1048576,), 2),
        ("bf16", (1024, 1024, 64), (1048576,), 2),
        ("f32", (1024, 1024, 3), (1048576,), 2),
        ("bf16", (512, 512, 33), (1048576,), 2),
        ("f32", (8192, 8192), (4194304,), 2),
        ("f32", (128, 64, 128, 64), (1048576,), 3),
        ("f32", (256, 256, 256), (4194304,), 3),
        ("f32", (32, 32, 32, 32, 64), (1048576,), 4),
        ("f32", (64, 64, 64, 64), (4194304,), 4),
        ("f32", (256, 256, 64), (4096,), 2),
    ):
        quick = count == 2 and dtype == "f32"
        yield from with_backward(
            [Case("points", f"gather_nd of {count}", dtype, shape, points, count, quick=quick)]
        )
    for dtype, shape, points, count in (
        ("f32", (65536, 64), (65536,), 1),
        ("f32", (256, 256, 64), (65536,), 2),
        ("f32", (1024, 1024), (1048576,), 2),
        ("f32", (64, 32, 32, 16), (65536,), 3),
        ("f32", (32, 32, 32, 32), (1048576,), 4),
    ):
        common = {"quick": count == 2, "on": "cpu"}
        yield from with_backward(
            [Case("points", f"gather_nd of {count}", dtype, shape, points, count, **common)]
        )


def point_task(case: Case, device: torch.device) -> Task:
    source = make_values(case.shape, case.dtype, device)
    sizes = case.shape[: case.dim]
    index = torch.stack([make_index(case, size, device) for size in sizes], -1)

    def flattened(s: Tensor) -> Tensor:
        places = index[..., 0]
        for axis in range(1, case.dim):
            places = places * sizes[axis] + index[..., axis]
        return s.flatten(0, case.dim - 1).index_select(0, places)

    reads: dict[str, Call] = {
        "torch_ops": lambda s: torch_ops.gather_nd(s, index),
        "source[index]": lambda s: s[index.unbind(-1)],
    }
    if case.what == "forward":  # its backward has the places already
        reads["flattened, index_select"] = flattened
    return reading_task(case, source, index, reads)


def embedding_cases() -> Iterator[Case]:
    for dtype, shape, index in (
        ("f32", (1048576, 64), (1024, 1024)),
        ("bf16", (50304, 1024), (16, 8192)),
        ("f32", (50304, 1024), (16, 8192)),
        ("bf16", (32000, 4096), (4, 4096)),
        ("f32", (10000, 16), (1024, 1024)),
        ("f32", (50304, 768), (8, 512)),
    ):
        quick = dtype == "bf16"
        yield from with_backward(
            [Case("embedding", "embedding", dtype, shape, index, 0, quick=quick)]
        )
    common = {"quick": True, "on": "cpu"}
    for dtype, shape, index in (("f32", (32000, 64), (64, 512)), ("bf16", (8192, 512), (8, 512))):
        yield from with_backward([Case("embedding", "embedding", dtype, shape, index, 0, **common)])


def embedding_task(case: Case, device: torch.device) -> Task:
    weight = make_values(case.shape, case.dtype, device)
    index = make_index(case, case.shape[0], device)
    return reading_task(
        case,
        weight,
        index,
        {
            "torch_ops": lambda w: torch_ops.embedding(index, w, padding_idx=0),
            "F.embedding": lambda w: F.embedding(index, w, padding_idx=0),
        },
    )


def reading_task(case: Case, source: Tensor, index: Tensor, reads: dict[str, Call]) -> Task:
    """``reads`` from ours on; backward their gradients, of one call each."""
    kinds = {name: "ours" if name == "torch_ops" else "eager" for name in reads}
    last = list(reads.values())[1]
    output = last(source)
    if case.what == "forward":
        implementations = [(name, kinds[name], read) for name, read in reads.items()]
        return Task(source, output, nbytes(index, output, output), implementations, exact=True)

    def gradient(read: Call) -> Call:
        leaf = source.clone().requires_grad_()
        result = read(leaf)
        return lambda grad: torch.autograd.grad(result, leaf, grad, retain_graph=True)[0]

    grad = make_values(tuple(output.shape), case.dtype, source.device)
    leaf = source.double().requires_grad_()
    (expected,) = torch.autograd.grad(last(leaf), leaf, grad.double())
    implementations = [(name, kinds[name], gradient(read)) for name, read in reads.items()]
    return Task(grad, expected, nbytes(index, grad, source), implementations, exact=False)


# ---- the run ------------------------------------------------------------------------------------

# A member of the family adds its cases, and how one becomes a task.
GROUPS: dict[str, tuple[Callable[[], Iterator[Case]], Callable[[Case, torch.device], Task]]] = {
    "modes": (mode_cases, mode_task),
    "elements": (element_cases, element_task),
    "scatter": (scatter_cases, scatter_task),
    "index": (index_cases, index_task),
    "points": (point_cases, point_task),
    "embedding": (embedding_cases, embedding_task),
}


def scaled(case: Case, scale: float) -> Case:
    """Shrinks every axis that is long, to try the script itself."""
    if scale == 1:
        return case

    def shrink(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n if n < 100 else max(100, math.ceil(n * scale)) for n in shape)

    fields = {"shape": shrink(case.shape), "index": shrink(case.index)}
    if case.size:
        fields["size"] = max(100, math.ceil(case.size * scale))
    return Case(**{**asdict(case), **fields})


def select(options: Namespace) -> list[Case]:
    cases = [case for group in options.only for case in GROUPS[group][0]()]
    cases = [scaled(case, options.scale) for case in cases if case.on == options.device]
    if options.quick:
        cases = [case for case in cases if case.quick]
    if options.filter:
        cases = [case for case in cases if any(text in str(case) for text in options.filter)]
    return cases


def run_case(case: Case, result: Result, bench: Benchmark) -> None:
    torch.manual_seed(0)  # the same data whichever cases are selected
    task = GROUPS[case.group][1](case, bench.device)
    result.bytes = task.bytes
    judge = must_equal(task.expected) if task.exact else relative_error(task.expected.double())
    implementations = [Implementation(*each) for each in task.implementations]
    ours, *_ = bench.measure(result, implementations, {"": Check(task.input, judge)})
    if not task.exact:
        for error in ours.errors.values():
            result.bars.append(Bar("relative error", error, TOLERANCE[case.dtype], "<="))
    least = 0.95 if case.group == "modes" else 1.0
    result.bars.append(Bar("over fastest eager", result.ratio("eager"), least))


def describe(case: Case) -> Result:
    labels = (case.group, f"{case.group} {case.what}")
    return Result(
        case.group, str(case), f"{case.group}, {case.what}", case.tag, labels, asdict(case), 0, {}
    )


def main() -> int:
    parser = argument_parser("gather_family", __doc__ or "")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    options = parser.parse_args()
    cases = select(options)
    if not cases:
        parser.error("no case is selected")
    bench = Benchmark("gather_family", options)
    tasks = []
    for case in cases:
        result = describe(case)
        tasks.append((result, partial(run_case, case, result, bench)))
    bench.run(tasks)
    return bench.finish(lambda *_: [])


if __name__ == "__main__":
    sys.exit(main())
