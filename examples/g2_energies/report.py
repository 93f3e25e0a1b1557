"""What a run comes to: its figures, as tables and as a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure  # draws with Agg: to files, without a display
from matplotlib.ticker import LogLocator, NullFormatter
from rich.table import Table
from training import Training


def summarise(seeds: list[int], ours: list[Training], theirs: Training) -> dict[str, Any]:
    """What results.json holds: errors and energies in eV; the comparison is of the first seed."""
    predictions = [
        {
            "training mean": run.train.energies.mean().expand(len(run.test)),
            "linear fit": run.linear_fit(run.test),
            "network": run.predict(),
        }
        for run in ours
    ]
    errors = [
        {method: run.test_error(energies) for method, energies in predicted.items()}
        for run, predicted in zip(ours, predictions, strict=True)
    ]
    methods = list(errors[0])
    return {
        "device": theirs.device.type,
        "seeds": seeds,
        "errors": errors,
        "mean errors": {
            method: statistics.mean(error[method] for error in errors) for method in methods
        },
        "true energies": torch.cat([run.test.energies for run in ours]).tolist(),
        "predicted energies": {
            method: torch.cat([predicted[method] for predicted in predictions]).tolist()
            for method in methods
        },
        "losses": {"torch_ops": ours[0].losses, "torch": theirs.losses},
        "test errors": ours[0].test_errors,
        "largest loss difference": max(
            abs(a - b) for a, b in zip(ours[0].losses, theirs.losses, strict=True)
        ),
        "milliseconds an epoch": {
            "torch_ops": ours[0].milliseconds_an_epoch(),
            "torch": theirs.milliseconds_an_epoch(),
        },
    }


def error_table(results: dict[str, Any]) -> Table:
    table = Table("seed")
    for method in results["mean errors"]:
        table.add_column(method, justify="right")
    for seed, errors in zip(results["seeds"], results["errors"], strict=True):
        table.add_row(str(seed), *(f"{error:.2f}" for error in errors.values()))
    table.add_section()
    means = (f"{error:.2f}" for error in results["mean errors"].values())
    table.add_row("mean", *means, style="bold")
    return table


def comparison_table(results: dict[str, Any]) -> Table:
    table = Table("operators")
    table.add_column("last training loss, eV", justify="right")
    table.add_column("median time of an epoch, ms", justify="right")
    for name, losses in results["losses"].items():
        milliseconds = results["milliseconds an epoch"][name]
        table.add_row(name, f"{losses[-1]:.6f}", f"{milliseconds:.1f}")
    return table


def plot(results: dict[str, Any], file: Path) -> None:
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2)

    losses, test_errors = results["losses"], results["test errors"]
    epochs = range(1, len(test_errors) + 1)
    left.axhline(
        results["errors"][0]["linear fit"], color="grey", linestyle="--", label="linear fit, test"
    )
    left.plot(epochs, test_errors, color="C1", label="network, test")
    left.plot(epochs, losses["torch_ops"], color="C0", label="network, training, torch_ops")
    left.plot(epochs, losses["torch"], "k:", label="network, training, torch")
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("epoch")
    left.set_ylabel("mean absolute error (eV)")
    left.set_title(f"Learning curves, seed {results['seeds'][0]}")
    left.legend()

    true = results["true energies"]
    limits = [0, 1.05 * max(true)]
    right.plot(limits, limits, color="black", linewidth=0.8, zorder=0)
    styles = {
        "training mean": {"color": "lightgrey", "marker": "."},
        "linear fit": {"color": "grey", "marker": "x"},
        "network": {"color": "C1", "marker": "o"},
    }
    for method, style in styles.items():
        label = f"{method}, {results['mean errors'][method]:.2f} eV"
        right.scatter(
            true, results["predicted energies"][method], s=22, linewidth=1, label=label, **style
        )
    right.set_xlabel("measured atomisation energy (eV)")
    right.set_ylabel("predicted atomisation energy (eV)")
    right.set_title(f"Test molecules, seeds {', '.join(map(str, results['seeds']))}")
    right.legend(title="mean absolute error")

    figure.savefig(file, dpi=150)
