"""Gathers and their gradients of random shapes, dtypes and indices, beside torch's ways.

The grid of benchmarks/gather.py has shapes that somebody thought of. Here what is slower than torch
somewhere between them is to be found: each seed draws other cases, and whatever has less than 0.95
of torch's speed is listed. Each result is checked first.
"""

from __future__ import annotations

import math
import random
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice

import torch

from benchmarks._gather import backward, forward
from benchmarks._gather.backward import Slow
from benchmarks._gather.cases import Case
from benchmarks._measure import Bar, Benchmark, Result, argument_parser, plot_ratios, positive

# Small calls are timed to some percent; a case below this is slower in another run too, mostly.
LEAST = 0.95
CASE_SECONDS = 0.05
ELEMENTS = {"cuda": 2**26, "cpu": 2**22}  # at the most, of a tensor

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 33, 48, 63, 64, 65, 100, 128, 200, 256, 512, 1000)
BATCHES = (1, 1, 1, 2, 4, 8, 32, 64, 256)
GATHERED = ("f32", "f32", "bf16", "f16", "f64", "u8")
SUMMED = ("f32", "f32", "bf16", "bf16", "f16", "f64")
DISTRIBUTIONS = ("uniform", "uniform", "sorted", "zipf", "hot", "one")


def draw(seed: int, elements: int) -> Iterator[Case]:
    """Cases without end, the same for the same seed. Sizes are uniform in their logarithm."""
    chosen = random.Random(seed)

    def size(least: int, most: int) -> int:
        return round(math.exp(chosen.uniform(math.log(least), math.log(max(least, most)))))

    while True:
        group = chosen.choice(("random gather", "random sum", "random sum"))
        width, batch = chosen.choice(WIDTHS), chosen.choice(BATCHES)
        most = elements // (width * batch)
        yield Case(
            group,
            chosen.choice(GATHERED if group == "random gather" else SUMMED),
            batch,
            size(8, min(most, 2**22)),
            size(64, min(most, 2**23)),
            None if width == 1 else width,
            chosen.choice(("int64", "int32")),
            chosen.choice(DISTRIBUTIONS),
        )


def select(options: Namespace) -> list[Case]:
    drawn = islice(draw(options.seed, ELEMENTS[options.device]), options.cases)
    cases = [case.scaled(options.scale) for case in drawn]
    if options.filter:
        cases = [case for case in cases if any(text in case.name for text in options.filter)]
    return cases


def describe(case: Case) -> Result:
    labels = (case.group, f"{case.group} {case.dtype}", f"{case.group} {case.distribution}")
    return Result(case.group, case.name, case.group, case.dtype, labels, asdict(case), case.bytes)


def run_case(case: Case, result: Result, bench: Benchmark, slow: Slow) -> None:
    torch.manual_seed(0)
    if case.group == "random gather":
        forward.run(case, result, bench, with_compile=False)
        errors = []
    else:
        backward.run(case, result, bench, slow)
        errors = backward.error_bars(case, result.find("torch_ops"), bench)
    result.bars = [Bar("over fastest eager", result.ratio("eager"), LEAST), *errors]


def main() -> int:
    parser = argument_parser("random_shapes", __doc__ or "")
    parser.add_argument("--seed", type=int, default=0, help="of the shapes (default: 0)")
    parser.add_argument(
        "--cases", type=positive, help="how many are drawn (default: 400; quick: 40)"
    )
    options = parser.parse_args()
    if options.cases is None:
        options.cases = 40 if options.quick else 400
    cases = select(options)
    if not cases:
        parser.error("no case is selected")
    bench = Benchmark("random_shapes", options, case_seconds=CASE_SECONDS)
    slow: Slow = {}
    tasks = []
    for case in cases:
        result = describe(case)
        tasks.append((result, partial(run_case, case, result, bench, slow)))
    bench.run(tasks)
    return bench.finish(lambda *_: [], plot_ratios)


if __name__ == "__main__":
    sys.exit(main())
