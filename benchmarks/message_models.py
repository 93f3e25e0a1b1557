"""Training steps of graph networks: PyTorch Geometric's layers and ours, also under torch.compile.

Ours are the layers of examples/messages, with a plan of the edges that was made before; both have
the same parameters. A step is a forward and a backward pass; its result is the gradient of the
nodes' features. Theirs under torch.compile is judged beside the faster of ours as they are and ours
under torch.compile: the fact "beside torch.compile" says which that is. All else is of ours as they
are. "SchNet, forces" is a step whose loss is of forces, by double backward, which torch.compile
does not do. PyTorch Geometric has no PaiNN: theirs is the paper's formula as its
MessagePassing. Errors are against the same step in float64; scratch is the memory at its peak less
what is kept, of the model and the step's result.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._measure import (
    Bar,
    Benchmark,
    Check,
    Implementation,
    Result,
    argument_parser,
    relative_error,
)
from benchmarks._measure.timing import host_scratch
from torch_ops.jit import index_plan

TOLERANCE = 1e-4  # of ours, relative to the norm of what float64 gives
CUTOFF, GAUSSIANS, RADIAL, HEADS = 10.0, 50, 20, 4
# Least speed beside theirs as it is and under torch.compile, and most of their memory.
BARS = {
    "SchNet": (1.5, 1.2, 0.5),
    "SchNet, forces": (1.5, None, 0.5),
    "PaiNN": (1.5, 1.2, 0.5),
    "GraphSAGE": (1.5, 1.2, 0.5),
    "GATv2": (1.2, None, None),
}


@dataclass(frozen=True)
class Case:
    model: str
    nodes: int
    entries: int
    width: int

    @property
    def name(self) -> str:
        return f"{self.model}, {self.nodes} nodes, {self.entries} edges, D={self.width}"


def cases(options: Namespace) -> list[Case]:
    scale = options.scale * (1 if options.device == "cuda" else 2**-5)
    scale /= 16 if options.quick else 1

    def of(number: int) -> int:
        return max(int(number * scale), 64)

    return [
        Case("SchNet", of(2**15), of(2**20), 128),
        Case("SchNet, forces", of(2**15), of(2**20), 128),
        Case("PaiNN", of(2**14), of(2**19), 64),
        Case("GraphSAGE", of(2**17), of(2**21), 128),
        Case("GATv2", of(2**17), of(2**20), 128),
    ]


class Edges:
    """A graph's edges: as theirs take them, as ours do, and what is known of each."""

    def __init__(self, case: Case, device: torch.device) -> None:
        src = torch.randint(case.nodes, (case.entries,), device=device)
        dst = torch.randint(case.nodes, (case.entries,), device=device).sort()[0]
        self.pair = torch.stack((src, dst))
        self.plan = index_plan(src=(src, case.nodes), dst=(dst, case.nodes))
        self.away = torch.randn(case.entries, 3, dtype=torch.float64, device=device)


def nets(case: Case, edges: Edges, device: torch.device) -> dict[bool, Any]:
    """Functions of (x, away) with ``.modules``: of theirs (False) and of ours (True)."""
    from torch_geometric.nn import GATv2Conv, MessagePassing, SAGEConv
    from torch_geometric.nn.models.schnet import CFConv
    from torch_geometric.utils import scatter

    from examples.messages import layers

    width = case.width
    theirs, ours = {"edge_index": edges.pair}, {"plan": edges.plan}

    class PaiNN(MessagePassing):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__(node_dim=0)
            self.layer = layer

        def forward(
            self, s: Tensor, v: Tensor, basis: Tensor, direction: Tensor, edge_index: Tensor
        ) -> tuple[Tensor, Tensor]:
            phi, filters = self.layer.phi(s), self.layer.filters(basis)
            made = self.propagate(edge_index, phi=phi, v=v, filters=filters, direction=direction)
            return s + made[0], v + made[1]

        def message(
            self, phi_j: Tensor, v_j: Tensor, filters: Tensor, direction: Tensor
        ) -> tuple[Tensor, Tensor]:
            of_s, of_v, of_direction = (phi_j * filters).chunk(3, dim=-1)
            along = of_direction.unsqueeze(1) * direction.unsqueeze(2)
            return of_s, v_j * of_v.unsqueeze(1) + along

        def aggregate(
            self, inputs: tuple[Tensor, Tensor], index: Tensor, dim_size: int
        ) -> tuple[Tensor, ...]:
            return tuple(scatter(each, index, 0, dim_size, "sum") for each in inputs)

    class Network(nn.Module):
        def __init__(self, convolutions: list[nn.Module], is_ours: bool) -> None:
            super().__init__()
            self.convolutions = nn.ModuleList(convolutions)
            self.is_ours = is_ours
            self.basis = layers.GaussianBasis(GAUSSIANS, CUTOFF)

        def forward(self, x: Tensor, away: Tensor) -> Tensor:
            graph: dict[str, Any] = ours if self.is_ours else theirs
            if case.model.startswith("SchNet"):
                distance = away.norm(dim=1)
                basis = self.basis(distance)
                for layer in self.convolutions:
                    given = (distance, basis)
                    made = (
                        layer(x, *given, **graph) if self.is_ours else layer(x, edges.pair, *given)
                    )
                    x = x + F.softplus(made)
                return x
            if case.model == "PaiNN":
                distance = away.norm(dim=1, keepdim=True)
                order = torch.arange(1, RADIAL + 1, dtype=x.dtype, device=x.device)
                basis, direction = torch.sin(order * distance) / distance, away / distance
                v = x.new_zeros(len(x), 3, width)
                for layer in self.convolutions:
                    x, v = layer(x, v, basis, direction, **graph)
                return x + v.square().sum(1)
            for layer in self.convolutions:
                x = F.elu(layer(x, **graph).flatten(1))
            return x

    def pair() -> tuple[nn.Module, nn.Module]:
        """A layer of theirs and of ours, with the same parameters."""
        if case.model == "GraphSAGE":
            mine, other = layers.GraphSAGE(width, width), SAGEConv(width, width)
            other.lin_l, other.lin_r = mine.of_neighbours, mine.of_self
        elif case.model == "GATv2":
            mine = layers.GATv2(width, width // HEADS, HEADS)
            other = GATv2Conv(width, width // HEADS, HEADS, add_self_loops=False)
            other.lin_l, other.lin_r = mine.left, mine.right
            other.att = nn.Parameter(mine.attention.detach()[None].clone())
        elif case.model == "PaiNN":
            mine = layers.PaiNNMessage(width, RADIAL)
            other = PaiNN(mine)
        else:
            mine = layers.SchNetConvolution(width, GAUSSIANS, CUTOFF)
            first, _, last = mine.filters
            filters = nn.Sequential(first, nn.Softplus(), last)
            other = CFConv(width, width, width, filters, CUTOFF)
            other.lin1, other.lin2 = mine.before, mine.after
        return other, mine

    made = [pair() for _ in range(3 if case.model.startswith("SchNet") else 2)]
    return {
        False: Network([other for other, _ in made], False).to(device),
        True: Network([mine for _, mine in made], True).to(device),
    }


def step_of(
    case: Case, network: nn.Module, x: Tensor, away: Tensor, compiles: bool
) -> Callable[[Tensor], Tensor]:
    has_forces = case.model == "SchNet, forces"
    x = x.clone().requires_grad_()
    away = away.clone().requires_grad_(has_forces)
    call = network
    if compiles:  # theirs may break its graph; ours must not
        call = torch.compile(network, dynamic=False, fullgraph=bool(network.is_ours))
    target = torch.linspace(-1, 1, case.width, dtype=x.dtype, device=x.device)

    def step(_: Tensor) -> Tensor:
        x.grad = None
        network.zero_grad(set_to_none=True)
        loss = (call(x, away) - target).square().mean()
        if has_forces:
            (forces,) = torch.autograd.grad(loss, away, create_graph=True)
            loss = loss + forces.square().sum()
        loss.backward()
        assert x.grad is not None
        return x.grad

    return step


def run_case(case: Case, result: Result, bench: Benchmark, with_compile: bool) -> None:
    torch.manual_seed(0)
    edges = Edges(case, bench.device)
    networks = nets(case, edges, bench.device)
    x = torch.randn(case.nodes, case.width, dtype=torch.float64, device=bench.device)
    exact = step_of(case, copy.deepcopy(networks[False]).double(), x, edges.away, False)
    relative = relative_error(exact(x).detach().clone())
    del exact
    result.facts["errors"], result.facts["peak MB"] = {}, {}
    small, away = x.float(), edges.away.float()

    def measure(name: str, kind: Any, is_ours: bool, compiles: bool) -> None:
        torch._dynamo.reset()
        step = step_of(case, networks[is_ours], small, away, compiles)

        def judge(output: Tensor) -> float:
            error = relative(output)
            result.facts["errors"][name] = error
            if is_ours and not error < TOLERANCE:
                raise ValueError(f"relative error {error}")
            return error

        for _ in range(3):  # what is compiled once is no part of a step
            step(small)
        way = Implementation(name, kind, step)
        (measured,) = bench.measure(result, [way], {"": Check(small, judge)})
        if bench.device.type == "cpu" and not compiles:
            measured.scratch_bytes = host_scratch(lambda: step(small))
        if measured.scratch_bytes is not None:
            result.facts["peak MB"][name] = round(measured.scratch_bytes * 1e-6, 1)

    measure("torch_ops", "ours", True, False)
    measure("PyTorch Geometric", "eager", False, False)
    if with_compile and case.model != "SchNet, forces":
        measure("torch.compile", "compiled", False, True)
        measure("torch_ops, compiled", "own", True, True)
    result.bars = bars(case, result)
    gc.collect()


def bars(case: Case, result: Result) -> list[Bar]:
    eager, compiled, memory = BARS[case.model]
    found = [Bar("over PyTorch Geometric", result.ratio("eager"), eager)]
    if compiled is not None and result.find("torch.compile"):
        theirs, ours = result.seconds("compiled"), result.timed("ours", "own")
        best = min(ours, key=lambda each: each.timing.median, default=None)
        value = theirs / best.timing.median if theirs and best else None
        result.facts["beside torch.compile"] = best.name if best else None
        found.append(Bar("over torch.compile", value, compiled))
    peaks = result.facts["peak MB"]
    if memory is not None and peaks.get("torch_ops") and peaks.get("PyTorch Geometric"):
        part = peaks["torch_ops"] / peaks["PyTorch Geometric"]
        found.append(Bar("peak memory of theirs", part, memory, "<="))
    return found


def main() -> int:
    parser = argument_parser("message_models", __doc__ or "")
    options = parser.parse_args()
    if importlib.util.find_spec("torch_geometric") is None:
        print("PyTorch Geometric is not installed: there is nothing to compare with.")
        return 0
    with_compile = options.compile
    if with_compile is None:
        with_compile = not options.quick and options.device == "cuda"
    bench = Benchmark("message_models", options)
    tasks = []
    for case in cases(options):
        if not options.filter or any(text in case.name for text in options.filter):
            moved = 4 * case.entries * case.width
            labels = (case.model,)
            result = Result(
                case.model, case.name, case.model, "f32", labels, asdict(case), moved,
            )  # fmt: skip
            tasks.append((result, functools.partial(run_case, case, result, bench, with_compile)))
    if not tasks:
        parser.error("no case is selected")
    bench.run(tasks)
    return bench.finish(lambda label, figures: [])


if __name__ == "__main__":
    sys.exit(main())
