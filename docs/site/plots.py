"""The plots of the site, drawn from the tables that they stand above, so that the two agree.

A comment before a table, which a code host does not show, asks for one::

    <!-- plot speed 5 7: NVIDIA H200 -->

draws the columns 5 and 7 of the table, counted from 1, each row a line; the worst rows come first.
The numbers are torch's time over ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

MARK = re.compile(r"^<!-- plot speed ([\d ]+): (.+) -->\n((?:\|.*\n?)+)", re.MULTILINE)
AXIS = "times as fast as torch (left of 1: torch is faster)"
# They can be told apart by the colour-blind, and on both backgrounds.
COLOURS = ["#0a84c1", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8a6fd1"]
MARKERS = "oD^svPX"
THEMES = {
    "light": {"text": "#222222", "grid": "#d0d0d0"},
    "dark": {"text": "#d8d8d8", "grid": "#484848"},
}


@dataclass(frozen=True)
class Series:
    label: str
    values: list[float | None]  # one for each row


@dataclass(frozen=True)
class Table:
    rows: list[str]
    series: list[Series]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read_table(text: str, columns: list[int]) -> Table:
    """The named columns of a table, its rows sorted by their least value."""
    head, _, *body = [cells(line) for line in text.strip().splitlines()]
    numeric = min(columns) - 1
    texts = next((i for i, cell in enumerate(body[0]) if as_number(cell) is not None), numeric)
    rows = [", ".join(row[:texts]) for row in body]
    if len(set(rows)) < len(rows):
        raise ValueError(f"rows of a table that is drawn must have names of their own: {rows}")
    labels = []
    for column in columns:
        name = head[column - 1]
        if name == "ratio":  # about the column before it
            name = head[column - 2]
        labels.append(re.sub(r", us$|`", "", name))
    series = [
        Series(label, [as_number(row[column - 1]) for row in body])
        for label, column in zip(labels, columns, strict=True)
    ]
    return Table(rows, series)


def as_number(cell: str) -> float | None:
    try:
        return float(cell.strip("*").replace(" ", ""))
    except ValueError:
        return None


def sort_worst_first(table: Table) -> Table:
    def worst(row: int) -> float:
        return min((value for s in table.series if (value := s.values[row])), default=0)

    order = sorted(range(len(table.rows)), key=worst)
    return Table(
        [table.rows[i] for i in order],
        [Series(s.label, [s.values[i] for i in order]) for s in table.series],
    )


def draw(table: Table, colours: dict[str, str], path: Path) -> None:
    settings: dict[str, Any] = {
        "text.color": colours["text"],
        "axes.labelcolor": colours["text"],
        "xtick.color": colours["text"],
        "ytick.color": colours["text"],
        "axes.edgecolor": colours["grid"],
        "grid.color": colours["grid"],
        "svg.hashsalt": "torch_ops",  # the same file for the same table
        "font.size": 9,
    }
    with mpl.rc_context(settings):
        height = 0.9 + 0.21 * len(table.rows) + 0.2 * (len(table.series) > 1)
        figure = Figure(figsize=(7.6, height), layout="constrained")
        axis = figure.subplots()
        for number, series in enumerate(table.series):
            points = [(x, y) for y, x in enumerate(series.values) if x]
            axis.plot(
                *zip(*points, strict=True),
                MARKERS[number],
                color=COLOURS[number],
                label=series.label,
                ms=5,
                alpha=0.9,
            )
        axis.axvline(1, color=colours["text"], lw=1)
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        low, high = min(low, 0.8), max(high, 1.25)
        axis.axvspan(low, 1, color="#d55e00", alpha=0.09, lw=0)
        axis.set_xlim(low, high)
        axis.xaxis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if high / low > 5 else (1, 1.5, 2, 3, 5, 7, 8, 9))
        )
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_yticks(range(len(table.rows)), table.rows)
        axis.set_ylim(len(table.rows) - 0.4, -0.6)
        axis.set_xlabel(AXIS)
        axis.grid(True, axis="both", lw=0.5)
        axis.tick_params(length=0)
        if len(table.series) > 1:
            figure.legend(
                loc="outside upper center",
                ncols=len(table.series),
                frameon=False,
                handletextpad=0.1,
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None})


def draw_marked(text: str, page: str, folder: Path) -> str:
    """The text of a page with a plot in place of each comment that asks for one."""
    count = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        columns, caption, lines = match.groups()
        table = sort_worst_first(read_table(lines, [int(c) for c in columns.split()]))
        images = []
        for theme, colours in THEMES.items():
            path = folder / f"{page.replace('/', '_')}_{count}_{theme}.svg"
            draw(table, colours, path)
            images.append(
                f"```{{image}} /{path.relative_to(folder.parents[1]).as_posix()}\n"
                f":alt: {caption}: the last table's columns, the worst rows first\n"
                f":class: only-{theme}\n"
                f"```\n"
            )
        frame = "\n".join(["````{container} plot", *images, "````\n"])
        return f"{frame}\n*{caption}. The rows of the table below, the worst first.*\n\n{lines}"

    return MARK.sub(replace, text)
