"""Training steps of models: eager torch or PyTorch Geometric, torch.compile, and ours.

A step is a forward and a backward pass; its result is the gradient of the features or of the table.
The layers of SchNet, GraphSAGE, GATv2 and PointNet++ are PyTorch Geometric's, without which these
cases are skipped: ours is the same layers within `torch_ops.compat.pyg.enable()`. A mixture of
experts calls index_select and index_add_, in ours gather and scatter_add; an embedding is
`torch_ops.replace_modules(model)`. Errors are against the same step in float64; scratch is the
memory at its peak less what is kept.

"same graph" has the same tensor of edges in each step, whose sort is kept; "new graph" a new one.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib.util
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

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
from torch_ops.compat import pyg

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Relative to the norm of what float64 gives; of ours. bf16 rounds at each layer. Of a maximum's
# gradient whole rows go elsewhere where float32 and float64 differ in which entry is the largest.
TOLERANCES = {"f32": 1e-4, "bf16": 3e-2}
TOLERANCE_OF_MAXIMA = 3e-3
# Every model that needs PyTorch Geometric.
OF_GRAPHS = ("SchNet", "SAGE mean", "SAGE max", "GATv2", "PointNet++")
OF_MAXIMA = ("SAGE max", "PointNet++")


@dataclass(frozen=True)
class Case:
    """A model and its size: rows are nodes, tokens or rows of a table."""

    model: str
    dtype: str
    rows: int
    entries: int
    width: int
    new_graph: bool = False

    @property
    def name(self) -> str:
        graph = ("same graph", "new graph")[self.new_graph] if self.model in OF_GRAPHS else ""
        sizes = f"{self.rows} rows, {self.entries} entries, D={self.width}"
        return ", ".join(filter(None, [f"{self.model} {self.dtype}", sizes, graph]))

    @property
    def bytes(self) -> int:
        """Of the rows that one layer picks: to place the model in the plot."""
        return self.entries * self.width * DTYPES[self.dtype].itemsize


@dataclass
class Model:
    """A module, its arguments, and what its gradient is asked for.

    `ours` makes the module ours, and its steps are `within` a context.
    """

    module: nn.Module
    args: tuple[Any, ...]
    wanted: Callable[[nn.Module, tuple[Any, ...]], Tensor]
    ours: Callable[[nn.Module], nn.Module] = lambda module: module
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    grad: Tensor | None = None  # of the output, the same for all ways


def sizes(options: Namespace) -> list[Case]:
    scale = (
        options.scale * (1 if options.device == "cuda" else 2**-5) / (16 if options.quick else 1)
    )

    def of(number: int) -> int:
        return max(int(number * scale), 64)

    graphs = [
        Case("SchNet", "f32", of(2**15), of(2**20), 128),
        Case("SAGE mean", "f32", of(2**17), of(2**21), 128),
        Case("SAGE max", "f32", of(2**17), of(2**21), 128),
        Case("GATv2", "f32", of(2**17), of(2**20), 128),
        Case("PointNet++", "f32", of(2**16), of(2**19), 64),
    ]
    others = [
        Case(model, dtype, rows, entries, width)
        for model, rows, entries, width in (
            ("experts", of(2**15), of(2**16), 1024),
            ("embedding", of(2**17), of(2**17), 512),
        )
        for dtype in DTYPES
    ]
    new = [Case(c.model, c.dtype, c.rows, c.entries, c.width, True) for c in graphs]
    if options.quick:
        return [*graphs, *others]
    return [*graphs, *new, *others]


# ---- graphs -------------------------------------------------------------------------------------


def edges_of(case: Case, receivers: int, device: torch.device) -> Tensor:
    """Senders, and receivers that are sorted, as what searches for neighbours gives them."""
    senders = torch.randint(case.rows, (case.entries,), device=device)
    return torch.stack(
        [senders, torch.randint(receivers, (case.entries,), device=device).sort()[0]]
    )


class Layers(nn.Module):
    """Two layers with a LeakyReLU between."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edges: Tensor, *rest: Any) -> Tensor:
        for layer in self.layers[:-1]:
            x = nn.functional.leaky_relu(layer(x, *rest[:1], edges, *rest[1:]))
        return self.layers[-1](x, *rest[:1], edges, *rest[1:])


class Interactions(nn.Module):
    """SchNet's continuous-filter convolutions, each onto its residual."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, edges: Tensor, length: Tensor, basis: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x, edges, length, basis)
        return x


class Grouped(nn.Module):
    """PointNet++'s grouping: each centre takes the largest of what its neighbours give."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edges: Tensor, points: Tensor, centres: Tensor) -> Tensor:
        return self.layer((x, None), (points, centres), edges)


def graph_model(case: Case, device: torch.device) -> Model:
    import torch_geometric.nn as layers
    from torch_geometric.nn.models.schnet import InteractionBlock

    width = case.width
    x = torch.randn(case.rows, width, device=device)
    receivers = case.rows // 4 if case.model == "PointNet++" else case.rows
    edges = edges_of(case, receivers, device)
    args: tuple[Any, ...] = (x, edges)
    if case.model == "SchNet":
        module: nn.Module = Interactions(
            [InteractionBlock(width, 50, width, 10.0) for _ in range(3)]
        )
        length = torch.rand(case.entries, device=device) * 10
        basis = (-(length[:, None] - torch.linspace(0, 10, 50, device=device)).square()).exp()
        args = (x, edges, length, basis)
    elif case.model == "PointNet++":
        mlp = nn.Sequential(nn.Linear(width + 3, width), nn.ReLU(), nn.Linear(width, 2 * width))
        module = Grouped(layers.PointNetConv(mlp, add_self_loops=False))
        points = torch.rand(case.rows, 3, device=device)
        args = (x, edges, points, points[:receivers])
    elif case.model == "GATv2":
        made = [layers.GATv2Conv(width, width // 4, 4, add_self_loops=False) for _ in range(2)]
        module = Layers(*made)
    else:
        aggr = case.model.split()[1]
        module = Layers(*(layers.SAGEConv(width, width, aggr) for _ in range(2)))
    return Model(module, args, lambda module, args: args[0], within=pyg.enable)


# ---- others -------------------------------------------------------------------------------------


def eager_gather(source: Tensor, index: Tensor) -> Tensor:
    return source.index_select(0, index)


def eager_scatter_add(values: Tensor, index: Tensor, size: int) -> Tensor:
    return values.new_zeros(size, *values.shape[1:]).index_add_(0, index, values)


EAGER = SimpleNamespace(gather=eager_gather, scatter_add=eager_scatter_add)


class Experts(nn.Module):
    """Two of 64 experts for each token, a scale each: dispatch and combine, and little else."""

    def __init__(self, ops: Any, width: int) -> None:
        super().__init__()
        self.ops = ops
        self.scale = nn.Parameter(torch.rand(64, width) + 0.5)

    def forward(self, x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
        order = expert.flatten().argsort()
        token = order // 2
        dispatched = self.ops.gather(x, token)
        scale = self.ops.gather(self.scale, expert.flatten()[order])
        results = torch.tanh(dispatched * scale) * weight.flatten()[order, None]
        return self.ops.scatter_add(results, token, x.shape[0])


def experts(case: Case, device: torch.device) -> Model:
    x = torch.randn(case.rows, case.width, device=device)
    expert = torch.rand(case.rows, 64, device=device).topk(2, 1)[1]
    args = (x, expert, torch.rand(case.rows, 2, device=device))

    def ours(module: nn.Module) -> nn.Module:
        module.ops = torch_ops
        return module

    return Model(Experts(EAGER, case.width), args, lambda module, args: args[0], ours)


def embedding(case: Case, device: torch.device) -> Model:
    """Tokens as often as words are, by Zipf's law."""
    ranks = torch.arange(1, case.rows + 1, dtype=torch.float64, device=device)
    cumulative = ranks.pow_(-1.1).cumsum(0)
    picked = torch.rand(case.entries, dtype=torch.float64, device=device) * cumulative[-1]
    rank = torch.searchsorted(cumulative, picked).clamp_(max=case.rows - 1)
    tokens = torch.randperm(case.rows, device=device)[rank].view(-1, 64)
    module = nn.Sequential(nn.Embedding(case.rows, case.width), nn.LayerNorm(case.width))
    return Model(
        module, (tokens,), lambda module, args: module[0].weight, torch_ops.replace_modules
    )


def model_of(case: Case, device: torch.device) -> Model:
    if case.model == "experts":
        return experts(case, device)
    return embedding(case, device) if case.model == "embedding" else graph_model(case, device)


# ---- a case -------------------------------------------------------------------------------------


def converted(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Floats of a dtype, the first of them with a gradient."""
    found = [arg.to(dtype) if arg.is_floating_point() else arg for arg in args]
    if found[0].is_floating_point():
        found[0] = found[0].clone().requires_grad_()
    return tuple(found)


def step_of(
    model: Model,
    module: nn.Module,
    args: tuple[Any, ...],
    call: Callable[..., Tensor],
    new_graph: bool,
) -> Callable[[Tensor], Tensor]:
    """One training step; gives the gradient that is asked for."""
    wanted = model.wanted(module, args)

    def step(_: Tensor) -> Tensor:
        wanted.grad = None
        module.zero_grad(set_to_none=True)
        # Copied here: a compiler would drop a copy that the model makes.
        output = call(*(x.clone() if new_graph and x.dtype == torch.int64 else x for x in args))
        if model.grad is None:
            model.grad = torch.randn_like(output)
        output.backward(model.grad.to(output.dtype))
        assert wanted.grad is not None
        return wanted.grad

    return step


def run_case(case: Case, result: Result, bench: Benchmark, with_compile: bool) -> None:
    torch.manual_seed(0)
    model = model_of(case, bench.device)
    base = model.module.to(bench.device)
    exact_args = converted(model.args, torch.float64)
    exact = copy.deepcopy(base).double()
    expected = step_of(model, exact, exact_args, exact, False)(exact_args[0]).detach()
    del exact, exact_args
    relative = relative_error(expected)
    result.facts["errors"], result.facts["peak MB"] = {}, {}
    dtype = DTYPES[case.dtype]
    rival = "PyTorch Geometric" if case.model in OF_GRAPHS else "torch"
    tolerance = TOLERANCE_OF_MAXIMA if case.model in OF_MAXIMA else TOLERANCES[case.dtype]

    def measure(name: str, kind: Any, is_ours: bool, compiles: bool) -> None:
        args = converted(model.args, dtype)
        module = copy.deepcopy(base).to(dtype)
        module = model.ours(module) if is_ours else module
        call: Callable[..., Tensor] = module
        if compiles:
            torch._dynamo.reset()
            call = torch.compile(module, dynamic=False)
        step = step_of(model, module, args, call, case.new_graph)

        def judge(output: Tensor) -> float:
            error = relative(output)
            result.facts["errors"][name] = error
            if is_ours and not error < tolerance:
                raise ValueError(f"relative error {error}")
            return error

        with model.within() if is_ours else contextlib.nullcontext():
            # What is compiled or sorted once is no part of a step. Edges that stay the same are
            # sorted when layers have used them 16 times.
            for _ in range(3 if case.new_graph else 17):
                with contextlib.suppress(RuntimeError):  # the check tells of it
                    step(args[0])
            way = Implementation(name, kind, step)
            bench.measure(result, [way], {"": Check(args[0].detach(), judge)})
        scratch = result.measurements[-1].scratch_bytes
        if scratch is not None:
            result.facts["peak MB"][name] = round(scratch * 1e-6, 1)

    measure("torch_ops", "ours", True, False)
    measure(rival, "eager", False, False)
    if with_compile:
        measure("torch_ops, compiled", "own", True, True)
        measure("torch.compile", "compiled", False, True)
    result.bars = [Bar(f"over {rival}", result.ratio("eager"), 1.0)]
    peaks = result.facts["peak MB"]
    if peaks.get("torch_ops") and peaks.get(rival):
        result.bars.append(
            Bar("peak memory of theirs", peaks["torch_ops"] / peaks[rival], 1.05, "<=")
        )
    if with_compile:
        theirs, ours = result.seconds("compiled"), result.seconds("own")
        value = theirs / ours if theirs and ours else None
        result.bars.append(Bar("compiled, over torch.compile", value, 0.95))
    gc.collect()


def describe(case: Case) -> Result:
    tag = f"{case.dtype}{', new' * case.new_graph}"
    return Result(
        case.model, case.name, case.model, tag, (case.model,), asdict(case), case.bytes,
    )  # fmt: skip


def main() -> int:
    parser = argument_parser("models", __doc__ or "")
    options = parser.parse_args()
    with_compile = options.compile
    if with_compile is None:
        with_compile = not options.quick and options.device == "cuda"
    bench = Benchmark("models", options)
    has_pyg = importlib.util.find_spec("torch_geometric") is not None
    if not has_pyg:
        print(f"PyTorch Geometric is not installed: {', '.join(OF_GRAPHS)} are skipped.")
    tasks = []
    for case in sizes(options):
        chosen = not options.filter or any(text in case.name for text in options.filter)
        if chosen and (has_pyg or case.model not in OF_GRAPHS):
            result = describe(case)
            tasks.append((result, functools.partial(run_case, case, result, bench, with_compile)))
    if not tasks:
        parser.error("no case is selected")
    bench.run(tasks)
    return bench.finish(lambda label, figures: [])


if __name__ == "__main__":
    sys.exit(main())
