"""The picture of a run: how the network learned, and how well it predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # writes files, needs no display

from matplotlib import pyplot  # noqa: E402


def plot(results: dict[str, Any], file: Path) -> None:
    errors = results["mean errors"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.2), layout="constrained")

    epochs = range(1, len(results["test errors"]) + 1)
    left.plot(epochs, results["losses"]["torch_ops"], color="C0", label="training, torch_ops")
    left.plot(
        epochs, results["losses"]["torch"], color="black", linestyle=":", label="training, torch"
    )
    left.plot(epochs, results["test errors"], color="C1", label="test, torch_ops")
    left.axhline(
        results["errors"][0]["linear fit"], color="grey", linestyle="--", label="test, linear fit"
    )
    left.set_yscale("log")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    left.set_xlabel("epoch")
    left.set_ylabel("mean absolute error (eV)")
    left.set_title(f"Learning curves, seed {results['seeds'][0]}")
    left.legend()

    true = results["true energies"]
    limits = [0, 1.05 * max(true)]
    right.plot(limits, limits, color="black", linewidth=0.8, zorder=0)
    for name, color, marker in [("linear fit", "grey", "x"), ("network", "C1", "o")]:
        right.scatter(
            true, results["predicted energies"][name], s=22, color=color, marker=marker,
            linewidth=1, alpha=0.8, label=f"{name}: mean error {errors[name]:.2f} eV",
        )  # fmt: skip
    right.set_xlabel("measured atomisation energy (eV)")
    right.set_ylabel("predicted atomisation energy (eV)")
    right.set_title(
        f"Test molecules of {len(results['seeds'])} splits "
        f"(always the training mean: {errors['training mean']:.1f} eV)"
    )
    right.legend()

    figure.savefig(file, dpi=150)
    pyplot.close(figure)
