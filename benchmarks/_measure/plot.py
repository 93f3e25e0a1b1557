"""Draws the figures of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot(data: dict[str, Any], path: Path) -> Path:
    """Draws the fraction of the copy ceiling over the bytes moved, in several panels."""
    figure, panels = _panels(data)
    legend: dict[str, Any] = {}
    for axis, panel, cases in panels:
        _draw_panel(axis, panel, cases)
        handles, labels = axis.get_legend_handles_labels()
        legend.update(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    figure.savefig(path, dpi=120)
    return path


def plot_ratios(data: dict[str, Any], path: Path) -> Path:
    """Draws how many times as fast as torch's fastest way each case is, a colour for each tag."""
    figure, panels = _panels(data)
    for axis, panel, cases in panels:
        for tag in sorted({case["tag"] for case in cases}):
            points = [
                (case["bytes"], case["over_fastest_eager"])
                for case in cases
                if case["tag"] == tag and case["over_fastest_eager"]
            ]
            if points:
                axis.plot(*zip(*points, strict=True), "o", ms=4, alpha=0.7, label=tag)
        axis.axhline(1, color="k", lw=0.8, ls="--")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(panel)
        axis.set_xlabel("bytes moved")
        axis.set_ylabel("torch's fastest time over ours")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
    return path


def _panels(data: dict[str, Any]) -> tuple[Any, list[tuple[Any, str, list[dict[str, Any]]]]]:
    """A figure headed by what ran where, and an axis for the cases of each panel."""
    from matplotlib.figure import Figure

    panels: dict[str, list[dict[str, Any]]] = {}
    for case in data["cases"]:
        if not case["bytes"]:
            continue  # of the host's time
        panels.setdefault(case["panel"], []).append(case)
    if not panels:
        raise ValueError("no case that moves bytes was run")
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(6 * columns, 4.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    machine, copy = data["machine"], float(data["copy_bytes_per_second"]["start"])
    figure.suptitle(
        f"{data['benchmark']}, {machine['device']}, torch {machine['torch']}, "
        f"copy {copy * 1e-9:.0f} GB/s, {data['date'][:10]}"
    )
    return figure, [
        (axis, panel, cases)
        for axis, (panel, cases) in zip(axes.flat, panels.items(), strict=False)
    ]


# Kind, text, marker, colour; the colours can be told apart by the colour-blind too.
SERIES = [
    ("eager", "torch, the fastest eager way", "s", "#d55e00"),
    ("compiled", "torch.compile", "^", "#009e73"),
    ("own", "torch_ops, the faster of other settings", "D", "#56b4e9"),
    ("ours", "torch_ops", "o", "#0072b2"),
]


def _draw_panel(axis: Any, title: str, cases: list[dict[str, Any]]) -> None:
    cases = sorted(cases, key=lambda case: case["bytes"])
    positions = _apart([case["bytes"] for case in cases])
    drawn: list[list[float]] = [[] for _ in cases]
    for kind, label, marker, colour in SERIES:
        points = []
        for position, case, fractions in zip(positions, cases, drawn, strict=True):
            of_kind = [entry for entry in case["measurements"] if entry["kind"] == kind]
            best = max((entry.get("copy_fraction", 0) for entry in of_kind), default=0)
            if best:
                fractions.append(best)
                points.append((position, best))
        if points:
            x, y = zip(*points, strict=True)
            axis.plot(x, y, marker, color=colour, label=label, ms=6, alpha=0.85)
    for position, case, fractions in zip(positions, cases, drawn, strict=True):
        if fractions:
            axis.plot([position] * 2, [min(fractions), max(fractions)], "0.8", lw=1, zorder=0)
        ceiling = case["facts"].get("sector_ceiling")
        if ceiling:
            axis.plot(position, ceiling, "k_", ms=14, label="ceiling of whole 32-byte sectors")
        axis.annotate(
            case["tag"],
            (position, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=6.5,
            color="0.3",
        )
    axis.axhline(1, color="k", lw=0.8, ls="--", label="copy")
    axis.set_xscale("log")
    # Room at the foot of the panel for the tags.
    lowest = min((fraction for fractions in drawn for fraction in fractions), default=1.0)
    top = max((fraction for fractions in drawn for fraction in fractions), default=1.0)
    if lowest < 0.1:
        axis.set_yscale("log")
        top = max(top, 1.0) * 1.3
        axis.set_ylim(lowest * (lowest / top) ** 0.5, top)
    else:
        top = max(top, 1.0) * 1.08
        axis.set_ylim(-0.4 * top, top)
        axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= top])
    axis.set_title(title)
    axis.set_xlabel("bytes moved")
    axis.set_ylabel("fraction of the copy ceiling")
    axis.grid(True, which="major", alpha=0.3)


def _apart(positions: Sequence[float]) -> list[float]:
    """Moves what would lie on one another to the right: each a step beyond the one before."""
    span = max(math.log(positions[-1] / positions[0]), 0.7)
    step = math.exp(0.8 * span / max(len(positions), 12))
    moved: list[float] = []
    for position in positions:
        moved.append(max(position, moved[-1] * step if moved else position))
    return moved
