"""batch_gather and its gradient against every way that torch has, as fractions of a plain copy.

Groups: rows (of 16-byte multiples), odd rows, elements, skewed (gathers by an index that names few
rows often, CUDA only), backward, deterministic (CUDA only). With --device cpu the cases are smaller
ones.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from benchmarks._gather import backward, deterministic, forward
from benchmarks._gather.backward import Slow
from benchmarks._gather.cases import (
    BACKWARD,
    CASES,
    CPU_CASES,
    DETERMINISTIC,
    DTYPES,
    ELEMENTS,
    FORWARD_GROUPS,
    ODD,
    ROWS,
    SKEWED,
    Case,
)
from benchmarks._measure import Bar, Benchmark, Result, argument_parser

GROUPS_OF = {
    "forward": FORWARD_GROUPS,
    "rows": ("rows",),
    "odd": ("odd rows",),
    "elements": ("elements",),
    "skewed": ("skewed",),
    "backward": ("backward",),
    "deterministic": ("deterministic",),
}


def select(options: Namespace) -> list[Case]:
    groups = {group for name in options.only for group in GROUPS_OF[name]}
    of_device = CPU_CASES if options.device == "cpu" else CASES
    cases = [case.scaled(options.scale) for case in of_device if case.group in groups]
    if options.quick:
        cases = [case for case in cases if case.quick]
    if options.dtype:
        cases = [case for case in cases if case.dtype in options.dtype]
    if options.filter:
        cases = [case for case in cases if any(text in case.name for text in options.filter)]
    return cases


def describe(case: Case, bench: Benchmark) -> Result:
    labels: tuple[str, ...] = (case.group,)
    panel, tag = case.group, f"{case.dtype} {short(case.sizes)}"
    facts: dict[str, Any] = {}
    if case.group == "backward":
        labels += (f"backward {case.dtype}", f"backward {case.distribution}")
        panel = f"backward, {case.distribution} indices"
    if case.group == "elements":
        tag += f" {case.index}"
    if case.group in ("deterministic", "skewed"):
        tag += f" {case.distribution}"
    if case.group in ("rows", "odd rows"):
        labels += (ALL_ROWS,)
    if case.group == "odd rows":
        facts["sector_ceiling"] = case.sector_ceiling
    if case.group in FORWARD_GROUPS:
        l2 = bench.machine["l2_bytes"]
        facts["source_exceeds_l2"] = l2 is not None and case.source_bytes > l2
    return Result(case.group, case.name, panel, tag, labels, asdict(case), case.bytes, facts)


def short(sizes: str) -> str:
    """8x131072x64 as 8x128Kx64, for the plot."""
    return re.sub(r"\d+", lambda size: _short(int(size.group())), sizes)


def _short(size: int) -> str:
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if (size >= 2 * unit and size % unit == 0) or size == unit:
            return f"{size // unit}{letter}"
    return str(size)


def run_case(case: Case, result: Result, bench: Benchmark, with_compile: bool, slow: Slow) -> None:
    torch.manual_seed(0)  # the same data whichever cases are selected
    if case.group == "backward":
        backward.run(case, result, bench, slow)
        result.bars = backward.bars(case, result, bench)
    elif case.group == "deterministic":
        deterministic.run(case, result, bench)
        result.bars = deterministic.bars(case, result, bench)
    else:
        forward.run(case, result, bench, with_compile)
        result.bars = forward.bars(case, result, bench)


ALL_ROWS = "rows and odd rows"


def summary_bars(label: str, figures: dict[str, Any]) -> list[Bar]:
    """The bars of geometric means, for what was measured."""
    required = {
        ("rows", "over_fastest_eager"): 1.6,
        (ALL_ROWS, "over_fastest_eager"): 1.6,
        ("rows", "over_compiled"): 1.0,
        ("odd rows", "over_compiled"): 1.2,
        ("backward", "over_fastest_eager"): 3.0,
    }
    return [
        Bar(f"geometric mean {what.replace('_', ' ')}", figures[what]["mean"], value)
        for (where, what), value in required.items()
        if where == label and figures[what]
    ]


def main() -> int:
    parser = argument_parser("gather", __doc__ or "")
    parser.add_argument("--only", nargs="+", choices=GROUPS_OF, default=list(GROUPS_OF))
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES))
    options = parser.parse_args()
    cases = select(options)
    if not cases:
        parser.error(
            "no case is selected; names are such as:\n  "
            + "\n  ".join(
                f"{group[0].name}"
                for group in (ROWS, ODD, ELEMENTS, SKEWED, BACKWARD, DETERMINISTIC)
            )
        )
    with_compile = options.compile
    if with_compile is None:
        with_compile = not options.quick and options.device == "cuda"

    bench = Benchmark("gather", options)
    slow: Slow = {}
    tasks = []
    for case in cases:
        result = describe(case, bench)
        tasks.append((result, partial(run_case, case, result, bench, with_compile, slow)))
    bench.run(tasks)
    return bench.finish(summary_bars if options.device == "cuda" else lambda *_: [])


if __name__ == "__main__":
    sys.exit(main())
