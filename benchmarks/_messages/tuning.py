"""Fits the numbers of torch_ops/jit/generation/indexed_tuning.py, on the cases of messages.py.

Prints, for each case, the time of each set of numbers beside other ways. A set is written as its
differences from the one in use: ``entries=4,tile=128``; ``-`` is the one in use. With
``--backward`` a call is the forward and the backward pass.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks._measure import relative_error
from benchmarks._measure.timing import CudaTimer, WallTimer
from benchmarks.messages import DIFFERENCE, TOLERANCES, WEIGHTED, Case, Graph
from torch_ops.jit import IndexedKernel
from torch_ops.jit.generation.indexed_tuning import IndexedTuning, trying, tuning

SETS = (
    "-", "blocks=8", "blocks=16", "entries=3", "entries=6", "threads=32", "threads=128",
    "threads=256", "few=2", "few=8", "group=4", "group=16", "tile=128", "tile=512",
)  # fmt: skip
# dtype, exponent, entries a row, width, distributions
CASES = (
    ("f32", 22, 8, 64, ("uniform", "zipf", "hot")),
    ("f32", 20, 64, 64, ("uniform",)),
    ("f32", 17, 8, 64, ("uniform", "zipf", "hot")),
    ("f32", 20, 8, 256, ("uniform", "hot")),
    ("bf16", 22, 8, 64, ("uniform", "zipf")),
    ("f32", 22, 8, 3, ("uniform", "zipf", "hot")),
    ("f32", 22, 8, 1, ("uniform",)),
    ("f32", 22, 8, 16, ("uniform",)),
    ("f32", 22, 64, 16, ("uniform",)),
)


def parse(text: str) -> IndexedTuning:
    pairs = [pair.split("=") for pair in text.split(",") if pair != "-"]
    return dataclasses.replace(tuning("sm_90"), **{name: int(value) for name, value in pairs})


class Tried:
    """The kernels of messages.py with one set of numbers."""

    def __init__(self, text: str) -> None:
        self.text, self.numbers = text, parse(text)
        tag = "".join(letter if letter.isalnum() else "_" for letter in text)
        self.kernels = [
            IndexedKernel(k.in_params, k.out_params, k.operation, f"{k.name}_{tag}")
            for k in (WEIGHTED, DIFFERENCE)
        ]

    def of(self, graph: Graph) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def call(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            if graph.case.message == "w x":
                return self.kernels[0](x, w, plan=graph.plan)
            return self.kernels[1](x, y, w, plan=graph.plan)

        return call


def calls(graph: Graph, sets: list[Tried]) -> Iterator[tuple[str, Callable[[], Tensor], bool]]:
    forward = graph.case.group == "forward"

    def made(way: Callable[..., Tensor]) -> Callable[[], Tensor]:
        if forward:
            return lambda: way(graph.x, graph.y, graph.w)
        both = graph.with_gradients(way)
        return lambda: both(graph.x)

    for tried in sets:
        yield tried.text, made(tried.of(graph)), True
    yield "composed", made(graph.composed), False
    if forward:
        import torch_ops

        yield "gather", lambda: torch_ops.gather(graph.x, graph.src), False
        sparse = graph.sparse()
        if sparse is not None and graph.x.is_cuda:
            yield "cuSPARSE", lambda: sparse(graph.x), False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--message", nargs="+", default=("w x", "w(x-y)"))
    parser.add_argument("--width", nargs="+", type=int)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    timer = CudaTimer() if device.type == "cuda" else WallTimer()
    sets = [Tried(text) for text in options.sets]
    group = "backward" if options.backward else "forward"
    table: dict[str, dict[str, float]] = {}
    for message in options.message:
        for dtype, exponent, ratio, width, distributions in CASES:
            if options.width and width not in options.width:
                continue
            for distribution in distributions:
                exponent = exponent if device.type == "cuda" else min(exponent, 12)
                entries = 2**exponent
                case = Case(group, message, dtype, entries, entries // ratio, width, distribution)
                torch.manual_seed(0)
                graph = Graph(case, device)
                exact = graph.exact() if group == "forward" else graph.exact_gradient()
                error = relative_error(exact)
                names, ways = [], []
                for name, way, is_ours in calls(graph, sets):
                    numbers = parse(name) if is_ours else tuning("")
                    try:
                        with trying(numbers):
                            output = way()
                        if is_ours and not error(output) < TOLERANCES[dtype]:
                            raise ValueError(f"relative error {error(output)}")
                    except Exception as failed:
                        print(f"{case.name}: {name}: {failed}", flush=True)
                        continue
                    names.append(name)
                    ways.append(way)
                timings = timer.in_turn(ways, [options.repeats] * len(ways))
                found = {
                    name: timing.median * 1e6
                    for name, (timing, _) in zip(names, timings, strict=True)
                }
                table[case.name] = found
                least = case.bytes / 4.2e6
                print(f"{case.name} (bytes / 4.2 TB/s: {least:.0f})", flush=True)
                print("   ", "  ".join(f"{n} {t:.1f}" for n, t in found.items()), flush=True)
                del graph, exact, error, ways
    print("\ngeometric mean of each set's time over that of the first, over all cases")
    first = options.sets[0]
    for text in options.sets:
        ratios = [math.log(row[text] / row[first]) for row in table.values() if text in row]
        if ratios:
            print(f"    {text}: {math.exp(sum(ratios) / len(ratios)):.3f}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"messages-tuning-{group}.json").write_text(json.dumps(table, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
