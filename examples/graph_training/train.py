"""Train graph networks of PyTorch Geometric's layers and of ours: losses, time, memory.

python examples/graph_training/train.py [--device cuda] [--dtype float64] [--steps N] [--out DIR]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

try:
    import data
    import torch
    import torch.nn.functional as F
    from networks import EnergyNetwork, NodeNetwork, graph_of, pair
    from report import largest_difference, plot, table
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    from torch import Tensor, nn
    from torch.profiler import ProfilerActivity, profile
except ModuleNotFoundError as error:
    sys.exit(
        f"The example needs {error.name}, which {sys.executable} does not find:\n"
        "    pip install torch_geometric networkx numpy rich matplotlib"
    )

WARM_UP = 3  # steps whose time does not count: kernels are compiled in the first


@dataclass
class Run:
    """One training: the loss of each step, and what it took."""

    network: nn.Module
    loss_of: Callable[[int], Tensor]  # of the step with this number
    score_of: Callable[[], float]
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    score: float = 0.0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.005)

    def step(self) -> None:
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.loss_of(len(self.losses))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())  # which waits for a GPU
        self.seconds.append(time.perf_counter() - begin)

    def milliseconds(self) -> float:
        return 1e3 * statistics.median(self.seconds[WARM_UP:] or self.seconds)


@dataclass
class Task:
    """The same training with their layers and with ours."""

    name: str
    theirs: Run
    ours: Run
    rounds: int = 1  # how many times the steps that are asked for


def node_task(
    name: str, graph: data.Graph, width: int, device: torch.device, dtype: torch.dtype
) -> Task:
    classes = int(graph.label.max()) + 1
    networks = pair(NodeNetwork, graph.x.shape[1], width, classes)
    x, edges = graph.x.to(device, dtype), graph.edges.to(device)
    label, is_known = graph.label.to(device), graph.is_known.to(device)

    def run(is_ours: bool) -> Run:
        network = networks[is_ours].to(device, dtype)
        given = graph_of(edges, len(x), is_ours)

        def loss_of(_: int) -> Tensor:
            return F.cross_entropy(network(x, **given)[is_known], label[is_known])

        @torch.no_grad()
        def accuracy() -> float:
            return (network(x, **given).argmax(1) == label)[~is_known].double().mean().item()

        return Run(network, loss_of, accuracy)

    return Task(name, run(False), run(True))


def energy_task(copies: int, width: int, device: torch.device, dtype: torch.dtype) -> Task:
    *batches, test = data.molecules(copies, 5)
    networks = pair(EnergyNetwork, width)

    def run(is_ours: bool) -> Run:
        network = networks[is_ours].to(device, dtype)

        def prepared(batch: data.Molecules) -> Callable[[], tuple[Tensor, Tensor]]:
            """Gives the errors of energies, an atom each, and of forces."""
            numbers, molecule = batch.numbers.to(device), batch.molecule.to(device)
            edges, count = batch.edges.to(device), len(batch.energies)
            energies, forces = (t.to(device, dtype) for t in (batch.energies, batch.forces))
            positions = batch.positions.to(device, dtype).requires_grad_()
            given = graph_of(edges, len(numbers), is_ours)
            atoms = molecule.bincount(minlength=count)

            def errors() -> tuple[Tensor, Tensor]:
                found = network(numbers, positions, edges, molecule, count, **given)
                (gradient,) = torch.autograd.grad(found.sum(), positions, create_graph=True)
                return (found - energies) / atoms, -gradient - forces

            return errors

        trained, tested = [prepared(batch) for batch in batches], prepared(test)

        def loss_of(step: int) -> Tensor:
            of_energies, of_forces = trained[step % len(trained)]()
            return of_energies.square().mean() + of_forces.square().mean()

        def force_error() -> float:
            return tested()[1].abs().mean().item()

        return Run(network, loss_of, force_error)

    return Task("molecules", run(False), run(True), rounds=3)


def peak_megabytes(run: Run, device: torch.device) -> float:
    """Of a forward and a backward pass: memory at its peak beyond what was there before."""
    run.optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run.loss_of(0).backward()
        return (torch.cuda.max_memory_allocated() - before) * 1e-6
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        run.loss_of(0).backward()
    records = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for record in sorted(records, key=lambda record: record.start_ns()):
        now += record.nbytes()
        peak = max(peak, now)
    return peak * 1e-6


def train(task: Task, steps: int, device: torch.device, advance: Callable[[], None]) -> None:
    """Takes steps of both in turn: whatever else the machine does then slows both alike."""
    for _ in range(steps * task.rounds):
        task.theirs.step()
        task.ours.step()
        advance()
    for run in (task.theirs, task.ours):
        run.megabytes = peak_megabytes(run, device)
        run.score = run.score_of()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train graph networks, with PyG's layers and ours")
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    add("--dtype", choices=["float32", "float64"], default="float32", help="default: float32")
    add("--steps", type=int, default=60, metavar="N", help="of each graph; default: 60")
    add("--nodes", type=int, default=2000, metavar="N", help="of the made graph; default: 2000")
    add("--copies", type=int, default=1, metavar="N", help="of each molecule; default: 1")
    add("--width", type=int, default=64, metavar="N", help="features; default: 64")
    out = Path(__file__).with_name("out")
    add("--out", type=Path, default=out, metavar="DIR", help="folder for the plot")
    options = parser.parse_args()
    if min(options.steps, options.nodes, options.copies) < 1:
        parser.error("--steps, --nodes and --copies must be at least 1")
    if options.width < 4 or options.width % 4:
        parser.error(f"--width is {options.width}; it must be a multiple of 4, the heads")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU. Leave --device out to train on the CPU.")
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def main() -> None:
    options = parse_arguments()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    tasks = [
        node_task("power-law graph", data.power_law(options.nodes), options.width, device, dtype),
        node_task("karate club", data.karate_club(), options.width, device, dtype),
        energy_task(options.copies, options.width, device, dtype),
    ]
    console = Console()
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        for task in tasks:
            bar = progress.add_task(task.name.ljust(15), total=options.steps * task.rounds)
            train(task, options.steps, device, lambda bar=bar: progress.advance(bar))
    console.print(table(tasks))
    console.print(
        "Score: accuracy on the nodes whose class is not known in training; of molecules the mean\n"
        "error of forces on molecules that were not trained on, eV/angstrom."
    )
    console.print("Largest difference between the losses of a step, over the first loss:")
    for task in tasks:
        console.print(f"  {task.name.ljust(15)} {largest_difference(task):.1e}")
    picture = options.out / "graph_training.png"
    plot(tasks, picture)
    console.print(f"Plot: {picture}", soft_wrap=True)


if __name__ == "__main__":
    main()
