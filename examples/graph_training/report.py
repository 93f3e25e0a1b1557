"""What the trainings come to, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from rich.table import Table

if TYPE_CHECKING:
    from train import Task

NAMES = "PyG", "torch_ops"


def largest_difference(task: Task) -> float:
    """Between the losses of a step, as a fraction of the first loss."""
    pairs = zip(task.theirs.losses, task.ours.losses, strict=True)
    return max(abs(a - b) for a, b in pairs) / task.theirs.losses[0]


def table(tasks: list[Task]) -> Table:
    made = Table("training", "layers", "last loss", "score", "a step, ms", "peak, MB")
    for task in tasks:
        for name, run in zip(NAMES, (task.theirs, task.ours), strict=True):
            made.add_row(
                task.name, name, f"{run.losses[-1]:.5f}", f"{run.score:.3f}",
                f"{run.milliseconds():.1f}", f"{run.megabytes:.1f}",
            )  # fmt: skip
        made.add_section()
    return made


def plot(tasks: list[Task], file: Path) -> None:
    figure = Figure(figsize=(13, 3.6 * len(tasks)), layout="constrained")
    rows = figure.subplots(len(tasks), 3, width_ratios=[2, 1, 1], squeeze=False)
    for task, (losses, times, sizes) in zip(tasks, rows, strict=True):
        runs = task.theirs, task.ours
        for name, run, style in zip(NAMES, runs, ("C0", "k:"), strict=True):
            losses.plot(range(1, len(run.losses) + 1), run.losses, style, label=name)
        losses.set(xlabel="step", ylabel="training loss", yscale="log", title=task.name)
        losses.legend()
        colors = ["grey", "C0"]
        times.bar(NAMES, [run.milliseconds() for run in runs], color=colors)
        times.set(title="Median time of a step (ms)")
        sizes.bar(NAMES, [run.megabytes for run in runs], color=colors)
        sizes.set(title="Peak memory of a step (MB)")
    figure.savefig(file, dpi=150)
