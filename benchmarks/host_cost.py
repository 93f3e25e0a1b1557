"""What a call costs the host: each op of the library beside torch's own, on small tensors.

Three passes: forward without a gradient, forward with one, forward and backward. The ways of one op
take turns, round after round, in an order that changes; of each the fastest round counts, for
whatever else the machine does only adds to it. Ours is compared with the cheapest of torch's ways
from the same arguments to the same result.
"""

from __future__ import annotations

import datetime
import gc
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops
from benchmarks._activations import ops as activation_ops
from benchmarks._measure import Bar, argument_parser, positive
from benchmarks._measure.run import describe_machine
from benchmarks._measure.timing import turns

ELEMENTS = 4096
ROWS = 64  # of an index, and of 64 elements each
BARS = {"forward": 1.2, "forward, grad": 1.3, "forward + backward": 1.15}
Call = Callable[[Tensor], Tensor]


@dataclass
class Case:
    """An op: what it takes, our call, torch's calls."""

    name: str
    input: Tensor
    ours: Call
    torchs: dict[str, Call]
    passes: tuple[str, ...] = tuple(BARS)
    microseconds: dict[str, dict[str, float]] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)


def cases(device: torch.device) -> Iterator[Case]:
    yield from activations(device)
    yield from gathers(device)
    yield from family(device)
    yield from mixes(device)


def activations(device: torch.device) -> Iterator[Case]:
    x = torch.randn(ELEMENTS, device=device)
    yield Case("relu, save='output'", x, relu_saving_output, {"relu": torch.relu})
    for name in activation_ops.names():
        yield Case(name, x, getattr(torch_ops, name), {name: activation_ops.torchs(name)})
        # In place, on a tensor that needs no gradient: it would be a leaf.
        inplace = f"{name}_"
        theirs = {inplace: activation_ops.torchs(inplace)}
        yield Case(inplace, x.clone(), getattr(torch_ops, inplace), theirs, ("forward",))


def gathers(device: torch.device) -> Iterator[Case]:
    rows = torch.randn(ROWS, ELEMENTS // ROWS, device=device)
    index = torch.randint(ROWS, (ROWS,), device=device)
    plan = torch_ops.gather_plan(index, ROWS)
    torchs: dict[str, Call] = {
        "index_select": lambda s: torch.index_select(s, 0, index),
        "embedding": lambda s: F.embedding(index, s),
        "source[index]": lambda s: s[index],
        "gather, expanded": lambda s: torch.gather(s, 0, expanded(index, s)),
    }
    yield Case("gather", rows, lambda s: torch_ops.gather(s, index), torchs)
    yield Case("gather, plan", rows, lambda s: torch_ops.gather(s, plan), torchs)
    torchs = {
        "index_add_": lambda v: torch.zeros_like(v).index_add_(0, index, v),
        "scatter_add_": lambda v: torch.zeros_like(v).scatter_add_(0, expanded(index, v), v),
        "index_put_": lambda v: torch.zeros_like(v).index_put_((index,), v, accumulate=True),
    }
    yield Case("scatter_add", rows, lambda v: torch_ops.scatter_add(v, index, ROWS), torchs)
    yield Case("scatter_add, plan", rows, lambda v: torch_ops.scatter_add(v, plan), torchs)

    batches = torch.randn(4, 16, ELEMENTS // ROWS, device=device)
    picks = torch.randint(16, (4, 16), device=device)
    batch = torch.arange(4, device=device)[:, None]
    torchs = {
        "gather, expanded": lambda s: torch.gather(s, 1, expanded(picks, s)),
        "source[b, index]": lambda s: s[batch, picks],
    }
    yield Case("batch_gather", batches, lambda s: torch_ops.batch_gather(s, picks), torchs)


def family(device: torch.device) -> Iterator[Case]:
    """The other ops with an index."""
    rows = torch.randn(ROWS, ELEMENTS // ROWS, device=device)
    index = torch.randint(ROWS, (ROWS,), device=device)
    full = torch.randint(ROWS, rows.shape, device=device)
    columns = torch.randint(rows.shape[1], (ROWS,), device=device)
    points = torch.stack([index, columns], dim=1)
    one = torch.ones((), device=device)
    yield Case(
        "take_along_dim",
        rows,
        lambda s: torch_ops.take_along_dim(s, full, 0),
        {"take_along_dim": lambda s: torch.take_along_dim(s, full, 0)},
    )
    yield Case(
        "gather_elements",
        rows,
        lambda s: torch_ops.gather_elements(s, full, 0),
        {"gather": lambda s: torch.gather(s, 0, full)},
    )
    yield Case(
        "scatter_elements_add",
        rows,
        lambda v: torch_ops.scatter_elements_add(v, full, rows.shape, 0),
        {"scatter_add_": lambda v: torch.zeros_like(v).scatter_add_(0, full, v)},
    )
    yield Case(
        "scatter, amax",
        rows,
        lambda v: torch_ops.scatter(v, index, ROWS, reduce="amax"),
        {
            "scatter_reduce": lambda v: torch.zeros_like(v).scatter_reduce(
                0, expanded(index, v), v, "amax", include_self=False
            )
        },
        ("forward",),  # ties share torch's gradient
    )
    yield Case(
        "index, one array",
        rows,
        lambda s: torch_ops.index(s, index),
        {"source[index]": lambda s: s[index]},
    )
    yield Case(
        "index, two arrays",
        rows,
        lambda s: torch_ops.index(s, (index, columns)),
        {"source[i, j]": lambda s: s[index, columns]},
    )
    yield Case(
        "index, slices",
        rows,
        lambda s: torch_ops.index(s, (slice(1, None), slice(None, -1))),
        {"source[slices]": lambda s: s[1:, :-1]},
    )
    yield Case(
        "gather_nd",
        rows,
        lambda s: torch_ops.gather_nd(s, points),
        {"source[i, j]": lambda s: s[points[:, 0], points[:, 1]]},
    )
    yield Case(
        "index_put_",
        rows.clone(),
        lambda s: torch_ops.index_put_(s, index, one),
        {"source[index] = v": lambda s: s.index_put_((index,), one)},
        ("forward",),
    )
    yield Case(
        "embedding",
        rows,
        lambda w: torch_ops.embedding(index, w),
        {"F.embedding": lambda w: F.embedding(index, w)},
    )


def mixes(device: torch.device) -> Iterator[Case]:
    """Reads and writes with index arrays beside integers, slices and lists."""
    rows = torch.randn(ROWS, ELEMENTS // ROWS, device=device)
    index = torch.randint(rows.shape[1], (ROWS,), device=device)
    columns = torch.randint(rows.shape[1], (ROWS,), device=device)
    one = torch.ones((), device=device)
    indices: dict[str, Any] = {
        "x[3, i]": (3, index),
        "x[i, 3]": (index, 3),
        "x[:, i]": (slice(None), index),
        "x[1:5, i]": (slice(1, 5), index),
        "x[None, i]": (None, index),
        "x[[0, 2]]": [0, 2],
    }
    for name, each in indices.items():
        yield Case(
            name,
            rows,
            lambda s, each=each: torch_ops.index(s, each),
            {"source[indices]": lambda s, each=each: s[each]},
        )
    indices["x[3]"] = 3
    for name, each in indices.items():
        yield Case(
            f"{name} = 1.0",
            rows.clone(),
            lambda s, each=each: torch_ops.index_put_(s, each, 1.0),
            {"source[indices] = v": lambda s, each=each: assigned(s, each, 1.0)},
            ("forward",),
        )
    yield Case(
        "index_put, x[3, i]",
        rows,
        lambda s: torch_ops.index_put(s, (3, index), one),
        {"clone, source[indices] = v": lambda s: assigned(s.clone(), (3, index), one)},
    )
    yield Case(
        "index_add, x[i]",
        rows,
        lambda s: torch_ops.index_add(s, index, one),
        {"index_put(accumulate)": lambda s: torch.index_put(s, (index,), one, accumulate=True)},
    )
    yield Case(
        "index_add, x[i, j]",
        rows,
        lambda s: torch_ops.index_add(s, (index, columns), one),
        {
            "index_put(accumulate)": lambda s: torch.index_put(
                s, (index, columns), one, accumulate=True
            )
        },
    )


def assigned(source: Tensor, indices: Any, values: Any) -> Tensor:
    source[indices] = values
    return source


def expanded(index: Tensor, rows: Tensor) -> Tensor:
    return index.unsqueeze(-1).expand(*index.shape, rows.shape[-1])


def relu_saving_output(x: Tensor) -> Tensor:
    return torch_ops.relu(x, save="output")


def in_pass(which: str, call: Call, given: Tensor) -> Callable[[], Tensor]:
    """What a round of this pass repeats."""
    if which == "forward":
        return lambda: call(given)
    x = given.detach().requires_grad_()
    if which == "forward, grad":
        return lambda: call(x)
    weights = torch.ones_like(call(x))
    return lambda: torch.autograd.grad(call(x), x, weights)[0]


def seconds_a_call(body: Callable[[], Tensor], calls: int, wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        body()
    seconds = time.perf_counter() - start
    wait()
    return seconds / calls


def measure(case: Case, options: Namespace, wait: Callable[[], None]) -> None:
    ways = {"torch_ops": case.ours, **case.torchs}
    for which in case.passes:
        bodies = {name: in_pass(which, call, case.input) for name, call in ways.items()}
        expected = bodies["torch_ops"]()
        for name, body in bodies.items():
            torch.testing.assert_close(body(), expected, msg=lambda text, name=name: name + text)
        best = dict.fromkeys(bodies, float("inf"))
        names = list(bodies)
        for turn in turns([options.rounds] * len(names)):
            name = names[turn]
            best[name] = min(best[name], seconds_a_call(bodies[name], options.calls, wait))
        case.microseconds[which] = {name: 1e6 * seconds for name, seconds in best.items()}
        ours = best.pop("torch_ops")
        case.bars.append(
            Bar(f"{which}: over torch's cheapest", ours / min(best.values()), BARS[which], "<=")
        )


def show(case: Case) -> None:
    for (which, times), bar in zip(case.microseconds.items(), case.bars, strict=True):
        shown = "  ".join(f"{name} {time:.2f}" for name, time in times.items())
        print(
            f"{case.name:20} {which:20} {bar.value:5.2f} {'' if bar.met else 'MISSED':7} {shown}",
            flush=True,
        )


def save(data: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "host_cost.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def plot(data: dict[str, Any], path: Path) -> Path:
    """The ratio to torch's cheapest way, with the bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(BARS), figsize=(15, 5), sharey=True, layout="constrained")
    for axis, (which, bar) in zip(axes, BARS.items(), strict=True):
        shown = [case for case in data["cases"] if which in case["microseconds"]]
        ratios = []
        for case in shown:
            times = dict(case["microseconds"][which])
            ours = times.pop("torch_ops")
            ratios.append(ours / min(times.values()))
        axis.barh([case["name"] for case in shown], ratios, color="#0072b2")
        axis.axvline(1, color="k", lw=0.8)
        axis.axvline(bar, color="#d55e00", lw=1, ls="--", label="bar")
        axis.set_title(which)
        axis.set_xlabel("time of a call, over torch's")
        axis.invert_yaxis()
    machine = data["machine"]
    figure.suptitle(
        f"Host cost at {ELEMENTS} elements, {machine['device']}, torch {machine['torch']}, "
        f"{data['date'][:10]}"
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def main() -> int:
    parser = argument_parser("host_cost", __doc__ or "")
    parser.add_argument("--calls", type=positive, default=200, help="calls a round")
    parser.add_argument("--rounds", type=positive, default=75)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is visible. To measure the CPU: --device cpu")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.quick:
        options.rounds = 25
    device = torch.device(options.device)
    machine = describe_machine(device)
    for key, value in machine.items():
        print(f"{key:16} {value}")
    print(f"\n{'':41} over torch's cheapest; microseconds a call")

    done = []
    gc.disable()  # a collection in a round would be blamed on whoever it befalls
    for case in cases(device):
        if options.filter and not any(text in case.name for text in options.filter):
            continue
        measure(case, options, torch.cuda.synchronize if device.type == "cuda" else lambda: None)
        show(case)
        done.append(case)
    missed = [f"{case.name}: {bar}" for case in done for bar in case.bars if not bar.met]
    print(f"\nMISSED: {len(missed)}, of {sum(len(case.bars) for case in done)} bars")
    for line in missed:
        print(f"  {line}")

    data = {
        "benchmark": "host_cost",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "options": {key: str(value) for key, value in vars(options).items()},
        "machine": machine,
        "cases": [
            {
                "name": case.name,
                "microseconds": case.microseconds,
                "bars": [{**asdict(bar), "met": bar.met} for bar in case.bars],
            }
            for case in done
        ],
    }
    path = save(data, options.out)
    print(f"figures: {path}")
    print(f"plot: {plot(data, path.with_suffix('.png'))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
