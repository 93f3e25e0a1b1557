"""Train a message-passing network on the G2 molecules, with torch_ops and with torch alone.

    python examples/g2_energies/train.py [--device cuda] [--epochs N] [--seeds S ...] [--out DIR]

Read model.py first: it shows how the operators are used.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

try:
    import torch
    import torch_only
    from dataset import LinearFit, Molecules, load, split
    from model import EnergyModel, Ops
    from plot import plot
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    from rich.table import Table
    from torch import Tensor

    import torch_ops
except ModuleNotFoundError as error:
    sys.exit(
        f"The demo needs {error.name}, which {sys.executable} does not have.\n"
        "`make demo` installs all it needs, builds torch_ops and runs it. By hand, in the "
        "repository's root: pip install numpy rich matplotlib, then "
        "pip install --no-build-isolation -e ."
    )

# Chosen by the errors on validation molecules (--validate), which are part of the training part.
BATCH = 16
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2

EXPLANATION = """
The energy that splits a molecule into its atoms is mostly a matter of which atoms there are: a
linear fit on their numbers, made on the training molecules, is off by little more than 1 eV. What
is left depends on how the atoms are joined. A network learns it from messages along the bonds:
`torch_ops.batch_gather` fetches the features of the two atoms of each bond, and
`torch_ops.scatter_add` sums the messages at the atom that they lead to.

For each seed the {count} molecules are split anew, {train} to train on and {test} to test on. For
the first seed the same training also runs with torch's own operators, an epoch of the one after an
epoch of the other.
"""


class Training:
    """A network on its way: the linear fit it starts from, and what each epoch brought."""

    def __init__(self, ops: Ops, train: Molecules, test: Molecules, seed: int, epochs: int) -> None:
        self.train, self.test = train, test
        self.linear_fit = LinearFit(train)
        self.residuals = train.energies - self.linear_fit(train)
        self.scale = self.residuals.std()

        torch.manual_seed(seed)  # the same initial weights whatever the ops are
        self.order = torch.Generator().manual_seed(seed)  # and the same batches
        # In float64 rounding does not grow to a visible size over the epochs, so that a difference
        # between the losses of two runs would be a mistake in an operator.
        self.model = EnergyModel(ops).to(train.energies)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, LEARNING_RATE, epochs=epochs, steps_per_epoch=-(-len(train) // BATCH)
        )

        self.losses: list[float] = []  # mean absolute error in eV on the batches of each epoch
        self.test_errors: list[float] = []  # and on the test part after it, for the plot alone
        self.seconds: list[float] = []

    def epoch(self) -> None:
        start = time.perf_counter()
        order = torch.randperm(len(self.train), generator=self.order).to(self.residuals.device)
        total = torch.zeros_like(self.scale)
        for rows in order.split(BATCH):
            predicted = self.model(self.train[rows]) * self.scale
            loss = (predicted - self.residuals[rows]).abs().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            total += loss.detach() * len(rows)
        # item() waits for the GPU, so the time is that of the work and not of its launches.
        self.losses.append(total.item() / len(self.train))
        self.seconds.append(time.perf_counter() - start)
        self.test_errors.append(mean_absolute_error(self.predict(), self.test.energies))

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Energies of the test molecules."""
        return self.linear_fit(self.test) + self.model(self.test) * self.scale

    def milliseconds(self) -> float:
        """Median time of an epoch of training; the first tenth of the epochs is warm-up."""
        return 1e3 * statistics.median(self.seconds[len(self.seconds) // 10 :])


def mean_absolute_error(predicted: Tensor, energies: Tensor) -> float:
    return (predicted - energies).abs().mean().item()


def main() -> None:
    arguments = parse_arguments()
    console = Console()
    molecules = load().to(torch.device(arguments.device))
    sizes = [len(rows) for rows in split(len(molecules), 0, arguments.validate)]
    console.print(
        Markdown(EXPLANATION.format(count=len(molecules), train=sizes[0], test=sizes[1]))
    )
    console.print()

    ours: list[Training] = []
    with Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console,
    ) as progress:  # fmt: skip
        for seed in arguments.seeds:
            train, test = (
                molecules[rows.to(arguments.device)]
                for rows in split(len(molecules), seed, arguments.validate)
            )
            runs = [Training(torch_ops, train, test, seed, arguments.epochs)]
            name = f"seed {seed}"
            if seed == arguments.seeds[0]:
                runs.append(Training(torch_only, train, test, seed, arguments.epochs))
                name += ", torch_ops and torch"
                theirs = runs[1]
            for _ in progress.track(range(arguments.epochs), description=f"{name:29}"):
                for run in runs:
                    run.epoch()
            ours.append(runs[0])

    results = summarise(arguments.seeds, ours, theirs)
    console.print(error_table(results, "validation" if arguments.validate else "test"))
    console.print(comparison_table(results))

    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    plot(results, arguments.out / "energies.png")
    console.print(f"Plot: {arguments.out / 'energies.png'}", soft_wrap=True)
    console.print(f"Figures: {arguments.out / 'results.json'}", soft_wrap=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn atomisation energies of small molecules.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument("--epochs", type=int, default=300, metavar="N", help="default: 300")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="S",
        help="a split and initial weights each; default: 0 1 2",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).with_name("out"), metavar="DIR",
        help="where the plot goes; default: out, beside this file",
    )  # fmt: skip
    parser.add_argument(
        "--validate", action="store_true",
        help="lay the test molecules aside and report errors on a part of the training molecules "
        "instead: for choosing hyperparameters",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs is {arguments.epochs}, it must be at least 1")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU. Without --device the demo runs on the CPU.")
    return arguments


def summarise(seeds: list[int], ours: list[Training], theirs: Training) -> dict[str, Any]:
    """What results.json holds: errors in eV, times in ms; the comparison is of the first seed."""
    errors = []
    for run in ours:
        true = run.test.energies
        errors.append(
            {
                "training mean": mean_absolute_error(run.train.energies.mean(), true),
                "linear fit": mean_absolute_error(run.linear_fit(run.test), true),
                "network": mean_absolute_error(run.predict(), true),
            }
        )
    return {
        "device": str(theirs.scale.device),
        "seeds": seeds,
        "errors": errors,
        "mean errors": {
            method: statistics.mean(error[method] for error in errors) for method in errors[0]
        },
        "true energies": torch.cat([run.test.energies for run in ours]).tolist(),
        "predicted energies": {
            "linear fit": torch.cat([run.linear_fit(run.test) for run in ours]).tolist(),
            "network": torch.cat([run.predict() for run in ours]).tolist(),
        },
        "test errors": ours[0].test_errors,
        "losses": {"torch_ops": ours[0].losses, "torch": theirs.losses},
        "largest loss difference": max(
            abs(a - b) for a, b in zip(ours[0].losses, theirs.losses, strict=True)
        ),
        "milliseconds an epoch": {
            "torch_ops": ours[0].milliseconds(),
            "torch": theirs.milliseconds(),
        },
    }


def error_table(results: dict[str, Any], part: str) -> Table:
    table = Table(title=f"Mean absolute error on the {part} molecules, eV", title_justify="left")
    table.add_column("seed")
    for method in results["mean errors"]:
        table.add_column(method, justify="right")
    for seed, errors in zip(results["seeds"], results["errors"], strict=True):
        table.add_row(str(seed), *(f"{error:.2f}" for error in errors.values()))
    table.add_section()
    table.add_row(
        "mean", *(f"{error:.2f}" for error in results["mean errors"].values()), style="bold"
    )
    return table


def comparison_table(results: dict[str, Any]) -> Table:
    table = Table(
        title=f"The same training with either's operators, seed {results['seeds'][0]}, "
        f"{results['device']}",
        title_justify="left",
        caption=f"largest difference between the losses of an epoch: "
        f"{results['largest loss difference']:.1e} eV",
        caption_justify="left",
    )
    table.add_column("")
    table.add_column("last loss, eV", justify="right")
    table.add_column("time of an epoch, ms", justify="right")
    for name, losses in results["losses"].items():
        milliseconds = results["milliseconds an epoch"][name]
        table.add_row(name, f"{losses[-1]:.6f}", f"{milliseconds:.1f}")
    return table


if __name__ == "__main__":
    main()
