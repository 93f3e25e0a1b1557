"""The training of train.py as it is, and after one line: time, memory, and the same losses.

python examples/pyg/compare.py [--device cuda] [--epochs N] [--nodes N] [--out DIR]
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from train import Run, arguments, make_graph, progress, train

import torch_ops


def plot(runs: dict[str, Run], file: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    losses, times, sizes = figure.subplots(1, 3, width_ratios=[2, 1, 1])
    for (name, run), style in zip(runs.items(), ("k:", "C0"), strict=True):
        losses.plot(range(1, len(run.losses) + 1), run.losses, style, label=name)
    losses.set(xlabel="epoch", ylabel="training loss", title="Learning curves")
    losses.legend()
    colors = ["grey", "C0"]
    times.bar(list(runs), [run.seconds * 1e3 for run in runs.values()], color=colors)
    times.set(title="Time of an epoch (ms)")
    sizes.bar(list(runs), [run.megabytes for run in runs.values()], color=colors)
    sizes.set(title="Memory (MB)")
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = arguments()
    out = Path(__file__).with_name("out")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help="folder for the plot")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device, graph = torch.device(options.device), make_graph(options.nodes)
    runs: dict[str, Run] = {}
    with progress() as bar:
        for name in ("PyG", "PyG, torch_ops"):
            task = bar.add_task(name.ljust(14), total=options.epochs)
            if name == "PyG, torch_ops":
                torch_ops.compat.pyg.enable()  # the line
            runs[name] = train(graph, options.epochs, device, lambda task=task: bar.advance(task))

    memory = "peak memory of a step" if device.type == "cuda" else "kept for the backward pass"
    table = Table("", "last loss", "accuracy", "an epoch, ms", f"{memory}, MB")
    for name, run in runs.items():
        figures = (f"{run.losses[-1]:.6f}", f"{run.accuracy:.3f}", f"{run.seconds * 1e3:.1f}")
        table.add_row(name, *figures, f"{run.megabytes:.1f}")
    console = Console()
    console.print(table)
    theirs, ours = runs.values()
    difference = max(abs(a - b) for a, b in zip(theirs.losses, ours.losses, strict=True))
    console.print(f"Largest difference between the losses of an epoch: {difference:.1e}")
    picture = options.out / "pyg.png"
    plot(runs, picture)
    console.print(f"Plot: {picture}", soft_wrap=True)


if __name__ == "__main__":
    main()
