"""The table of docs/distributed.md: how calls with DTensors are placed, and what that takes.

Each line of a table is a cell that test_cells.py runs: on one mesh dimension by itself, and on two
of them together with each other line, for the dimensions of a mesh do not know of each other.

``PYTHONPATH=. python tests/distributed/cells.py`` writes the tables into the document.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ranks
import torch
from torch import Tensor

import torch_ops

DOCUMENT = Path(__file__).parents[2] / "docs" / "distributed.md"


class Cell(NamedTuple):
    arguments: tuple[str, ...]
    output: str
    gradients: tuple[str, ...]  # of the arguments that have one
    forward: str  # collectives; "" for none; "cpu:" before one of CPUs alone
    backward: str

    @classmethod
    def read(cls, line: str) -> Cell:
        """arguments -> output | gradients | collectives of the forward | of the backward pass."""
        call, gradients, forward, backward = (part.strip() for part in line.split("|"))
        arguments, output = (part.strip() for part in call.split("->"))
        split = [tuple(part.split(", ")) for part in (arguments, gradients)]
        return cls(split[0], output, split[1], forward, backward)


class Call(NamedTuple):
    """A call of which there are cells: its tensors, with their axes that may be sharded."""

    function: Callable[..., Tensor]
    shapes: dict[str, tuple[int, ...]]  # of floats, or an index below `below`
    below: dict[str, int]
    axes: dict[str, dict[str, int]]  # of each tensor and of the "output"
    cells: list[Cell]
    title: str
    linear: bool = True

    def tensors(self) -> dict[str, Tensor]:
        generator = ranks.generator(0)
        return {
            name: torch.randint(self.below[name], shape, generator=generator)
            if name in self.below
            else torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, shape in self.shapes.items()
        }


# Most do not divide by 2 or 4, and one rank of 4 has nothing of 3 or 5.
SIZES = {"batch": 5, "outer": 3, "dim": 7, "inner": 6, "pick": 9, "pick2": 2, "i": 3, "j": 4}


def _call(
    title: str,
    function: Callable[..., Tensor],
    axes: dict[str, str],
    cells: str,
    below: dict[str, int] | None = None,
    **sizes: int,
) -> Call:
    """``axes`` names those of each tensor and of the output, as in "batch dim inner".

    ``sizes``: of axes that are not in ``SIZES``, or not as long. ``below``: of index tensors, if
    there are others than an ``index`` below 7.
    """
    sizes = SIZES | sizes
    return Call(
        function,
        {
            name: tuple(sizes[a] for a in of.split())
            for name, of in axes.items()
            if name != "output"
        },
        {"index": 7} if below is None else below,
        {name: {axis: i for i, axis in enumerate(of.split())} for name, of in axes.items()},
        [Cell.read(line) for line in cells.strip().splitlines()],
        title,
    )


def _reduction(reduce: str, also: str = "", more_cells: str = "", **options: float) -> Call:
    return _call(
        f'`scatter(values, index, dim_size, dim, reduce="{reduce}")`{also}',
        lambda values, index: torch_ops.scatter(values, index, 7, 1, reduce=reduce, **options),
        {"values": "outer pick inner", "index": "pick", "output": "outer dim inner"},
        """
        R, R -> R | R | |
        S(outer), R -> S(outer) | S(outer) | |
        S(inner), R -> S(inner) | S(inner) | |
        """
        + more_cells,
    )


CALLS = {
    "gather": _call(
        "`gather(source, index, dim, batch_dims=...)`, `batch_gather`",
        lambda source, index: torch_ops.gather(source, index, 2, batch_dims=1),
        {
            "source": "batch outer dim inner",
            "index": "batch pick pick2",
            "output": "batch outer pick pick2 inner",
        },
        """
        R, R -> R | R | |
        S(batch), S(batch) -> S(batch) | S(batch) | |
        S(batch), R -> S(batch) | S(batch) | |
        R, S(batch) -> S(batch) | S(batch) | |
        S(outer), R -> S(outer) | S(outer) | |
        S(inner), R -> S(inner) | S(inner) | |
        R, S(pick) -> S(pick) | P | |
        R, S(pick2) -> S(pick2) | P | |
        S(dim), R -> P | S(dim) | |
        P, R -> P | R | |
        S(outer), S(pick) -> S(outer) | S(outer) | all_gather | all_gather
        S(inner), S(batch) -> S(inner) | S(inner) | all_gather | all_gather
        S(dim), S(pick) -> P | S(dim) | all_gather | all_gather
        S(dim), S(batch) -> P | S(dim) | all_gather | all_gather
        P, S(pick) -> P | P | all_gather |
        """,
    ),
    "embedding": _call(
        "`embedding(input, weight)`, `Embedding`, also with `padding_idx`",
        lambda input, weight: torch_ops.embedding(input, weight, padding_idx=2),
        {"weight": "row column", "input": "i j", "output": "i j column"},
        """
        R, R -> R | R | |
        S(row), R -> P | S(row) | |
        S(column), R -> S(column) | S(column) | |
        R, S(i) -> S(i) | P | |
        R, S(j) -> S(j) | P | |
        S(row), S(i) -> S(i) | S(row) | all_to_all | all_to_all
        S(row), S(j) -> S(j) | S(row) | all_to_all | all_to_all
        S(column), S(j) -> S(column) | S(column) | all_gather | all_gather
        """,
        below={"input": 7},
        row=7,
        column=6,
    ),
    "scale_grad_by_freq": _call(
        "`embedding(..., scale_grad_by_freq=True)`",
        lambda input, weight: torch_ops.embedding(input, weight, scale_grad_by_freq=True),
        {"weight": "row column", "input": "i j", "output": "i j column"},
        """
        R, R -> R | R | |
        S(row), R -> P | S(row) | |
        S(column), R -> S(column) | S(column) | |
        S(row), S(i) -> S(i) | S(row) | all_to_all | all_to_all
        """,
        below={"input": 7},
        row=7,
        column=6,
    ),
    "scatter_add": _call(
        "`scatter_add(values, index, dim_size, dim, batch_dims=...)`",
        lambda values, index: torch_ops.scatter_add(values, index, 7, 2, batch_dims=1),
        {
            "values": "batch outer pick pick2 inner",
            "index": "batch pick pick2",
            "output": "batch outer dim inner",
        },
        """
        R, R -> R | R | |
        S(batch), S(batch) -> S(batch) | S(batch) | |
        S(batch), R -> S(batch) | S(batch) | |
        R, S(batch) -> S(batch) | S(batch) | |
        S(outer), R -> S(outer) | S(outer) | |
        S(inner), R -> S(inner) | S(inner) | |
        S(pick), S(pick) -> P | S(pick) | |
        S(pick2), S(pick2) -> P | S(pick2) | |
        S(pick), R -> P | R | |
        R, S(pick) -> P | S(pick) | |
        P, R -> P | R | |
        S(inner), S(pick) -> S(inner) | S(inner) | all_gather | all_gather
        S(pick), S(batch) -> P | S(batch) | all_gather |
        P, S(pick) -> P | S(pick) | all_gather |
        """,
    ),
    "gather_elements": _call(
        "`gather_elements(source, index, dim)`, `take_along_dim`",
        lambda source, index: torch_ops.gather_elements(source, index, 1),
        {"source": "batch dim inner", "index": "batch pick inner", "output": "batch pick inner"},
        """
        R, R -> R | R | |
        S(batch), S(batch) -> S(batch) | S(batch) | |
        S(inner), R -> S(inner) | S(inner) | |
        R, S(inner) -> S(inner) | S(inner) | |
        R, S(pick) -> S(pick) | P | |
        S(dim), R -> P | S(dim) | |
        P, R -> P | R | |
        S(dim), S(pick) -> P | S(dim) | all_gather | all_gather
        """,
    ),
    "scatter_elements_add": _call(
        "`scatter_elements_add(values, index, size, dim)`",
        lambda values, index: torch_ops.scatter_elements_add(values, index, (5, 7, 6), 1),
        {"values": "batch pick inner", "index": "batch pick inner", "output": "batch dim inner"},
        """
        R, R -> R | R | |
        S(batch), S(batch) -> S(batch) | S(batch) | |
        S(inner), R -> S(inner) | S(inner) | |
        R, S(inner) -> S(inner) | S(inner) | |
        S(pick), S(pick) -> P | S(pick) | |
        S(pick), R -> P | R | |
        R, S(pick) -> P | S(pick) | |
        P, R -> P | R | |
        """,
    ),
    "gather_nd": _call(
        "`gather_nd(source, index, batch_dims=...)`, points of several coordinates",
        lambda source, index: torch_ops.gather_nd(source, index, batch_dims=1),
        {
            "source": "batch dim dim2 inner",
            "index": "batch pick coordinate",
            "output": "batch pick inner",
        },
        """
        R, R -> R | R | |
        S(batch), S(batch) -> S(batch) | S(batch) | |
        S(batch), R -> S(batch) | S(batch) | |
        R, S(batch) -> S(batch) | S(batch) | |
        S(inner), R -> S(inner) | S(inner) | |
        R, S(pick) -> S(pick) | P | |
        S(dim), R -> P | R | |
        S(dim2), R -> P | R | |
        P, R -> P | R | |
        S(dim), S(pick) -> P | P | all_gather |
        """,
        below={"index": 3},
        dim2=3,
        coordinate=2,
    ),
    "index": _call(
        "`index(source, index)` with one array, along any axis",
        lambda source, index: torch_ops.index(source, (slice(None), index)),
        {"source": "outer dim inner", "index": "pick pick2", "output": "outer pick pick2 inner"},
        """
        R, R -> R | R | |
        S(outer), R -> S(outer) | S(outer) | |
        S(inner), R -> S(inner) | S(inner) | |
        R, S(pick) -> S(pick) | P | |
        S(dim), R -> P | S(dim) | |
        """,
    ),
    "index by two arrays": _call(
        "`index(source, index)` with several arrays, here for the first and the third axis",
        lambda source, a, b: torch_ops.index(source, (a, slice(None), b)),
        {
            "source": "dim outer dim2 inner",
            "a": "pick pick2",
            "b": "pick2",
            "output": "pick pick2 outer inner",
        },
        """
        R, R, R -> R | R | |
        S(outer), R, R -> S(outer) | S(outer) | |
        S(inner), R, R -> S(inner) | S(inner) | |
        R, S(pick), R -> S(pick) | P | |
        R, S(pick2), S(pick2) -> S(pick2) | P | |
        S(dim), R, R -> P | R | |
        """,
        below={"a": 7, "b": 5},
        dim2=5,
    ),
    "mean": _reduction("mean"),
    "amax": _reduction("amax", ', `"amin"`'),
    "prod": _reduction(
        "prod", "", "S(pick), S(pick) -> R | S(pick) | all_gather | all_gather reduce_scatter"
    ),
    "var": _reduction(
        "var",
        ', `"std"`',
        """P, R -> R | R | all_reduce | all_reduce
        S(pick), S(pick) -> R | S(pick) | all_gather | all_gather all_reduce cpu:reduce_scatter
        """,
        correction=-1,
    ),
    "masked_scatter": _call(
        "`masked_scatter(rows, mask)`",
        lambda rows, index: torch_ops.masked_scatter(rows, index < 4),
        {"rows": "dim inner", "index": "pick", "output": "pick inner"},
        """
        R, R -> R | R | |
        S(inner), R -> S(inner) | S(inner) | |
        P, R -> P | R | |
        S(dim), R -> R | R | all_gather |
        R, S(pick) -> R | R | all_gather | all_gather
        """,
    ),
    "masked_gather": _call(
        "`masked_gather(source, mask, size=...)`",
        lambda source, index: torch_ops.masked_gather(source, index < 4, size=9),
        {"source": "dim inner", "index": "dim", "output": "pick inner"},
        """
        R, R -> R | R | |
        S(inner), R -> S(inner) | S(inner) | |
        P, R -> R | R | all_reduce |
        S(dim), R -> P | S(dim) | |
        R, S(dim) -> R | R | all_gather |
        """,
    ),
    "gather by a plan": _call(
        "`gather(source, gather_plan(index, ...))`",
        lambda source, index: torch_ops.gather(source, torch_ops.gather_plan(index, 7, dim=1)),
        {"source": "outer dim inner", "index": "pick", "output": "outer pick inner"},
        """
        R, R -> R | R | |
        S(outer), R -> S(outer) | S(outer) | |
        S(inner), R -> S(inner) | S(inner) | |
        P, R -> P | R | |
        S(dim), R -> R | R | all_gather |
        """,
    ),
    "scatter_add by a plan": _call(
        "`scatter_add(values, gather_plan(index, ...))`",
        lambda values, index: torch_ops.scatter_add(values, torch_ops.gather_plan(index, 7, dim=1)),
        {"values": "outer pick inner", "index": "pick", "output": "outer dim inner"},
        """
        R, R -> R | R | |
        S(outer), R -> S(outer) | S(outer) | |
        S(inner), R -> S(inner) | S(inner) | |
        P, R -> P | R | |
        S(pick), R -> R | R | all_gather |
        """,
    ),
} | {
    title: _call(
        f"`{title}`",
        function,
        {"input": "outer dim inner", "output": "outer dim inner"},
        """
        R -> R | R | |
        S(outer) -> S(outer) | S(outer) | |
        S(inner) -> S(inner) | S(inner) | |
        """
        + (
            "P -> R | R | all_reduce |"
            if title != "leaky_relu(input, -0.5)"
            else "P -> R | R | all_reduce | all_reduce"
        ),
    )
    for title, function in {
        "relu(input)": torch_ops.relu,
        'relu(input, save="output")': lambda input: torch_ops.relu(input, save="output"),
        "leaky_relu(input)": torch_ops.leaky_relu,
        'leaky_relu(input, save="output")': lambda input: torch_ops.leaky_relu(
            input, save="output"
        ),
        "leaky_relu(input, -0.5)": lambda input: torch_ops.leaky_relu(input, -0.5, save="output"),
        "sigmoid(input)": torch_ops.sigmoid,
    }.items()
}


MARK = "<!-- cells: written by tests/distributed/cells.py -->\n"


def tables() -> str:
    """All tables, as they stand in the document."""
    text = []
    for call in CALLS.values():
        names = list(call.shapes)
        of_gradients = [f"gradient of {name}" for name in names if name not in call.below]
        header = [*names, "output", *of_gradients, "forward", "backward"]
        text.append(f"### {call.title}\n")
        shapes = (f"`{name}` [{', '.join(axes)}]" for name, axes in call.axes.items())
        text.append(f"Axes: {'; '.join(shapes)}.\n")
        text.append(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}")
        for cell in call.cells:
            collectives = [
                each.replace(" ", ", ").replace("cpu:", "on CPUs also ") or "-"
                for each in (cell.forward, cell.backward)
            ]
            row = [*cell.arguments, cell.output, *cell.gradients, *collectives]
            text.append(f"| {' | '.join(row)} |")
        text.append("")
    return "\n".join(text)


def with_tables(document: str) -> str:
    before, _, after = document.split(MARK)
    return f"{before}{MARK}\n{tables()}\n{MARK}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text("utf-8")), "utf-8")
