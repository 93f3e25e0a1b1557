"""Rows of a table that ranks share: ShardedTable beside an exchange in torch's calls and DTensor's.

    python -m benchmarks.distributed                # two ranks; one, where there is one GPU
    python -m benchmarks.distributed --ranks 2      # which share a GPU where there is one
    python -m benchmarks.distributed --device cpu   # two ranks
    torchrun --nproc-per-node=4 -m benchmarks.distributed

Groups: gather (forward, without a gradient), train (forward and backward), host (what the host
needs for a call of few rows: distributed.gather beside gather, and the module beside Embedding).
Each result is checked before it is timed; gradients against the sum of all ranks' values in
float64. Every rank has an index of its own; times are those of the slowest rank. One rank is judged
beside the ops on one GPU, two ranks by the bars for two H200. Ranks that share a GPU, over gloo,
are checked and timed, but not judged: there is no link between them.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional as F

import torch_ops
from benchmarks._measure import (
    Bar,
    Wrong,
    argument_parser,
    must_equal,
    positive,
    relative_error,
)
from benchmarks._measure.run import describe_machine
from torch_ops.distributed import ShardedTable

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# ||error|| / ||result|| of a gradient. A sum that is rounded once to bfloat16, which has 8 bits of
# significand, is off by up to 2^-8 of itself, where few rows make up the norm.
TOLERANCE = {"f32": 1e-5, "bf16": 2**-8}
LINK_SHARE = {16: 0.28, 64: 0.76, 128: 0.93, 256: 0.97, 512: 0.97, 4096: 0.97}
MOST_BYTES = 1 << 32  # of an output
ROUNDS, ROUND_SECONDS = 5, 0.03
QUICK_ROUND_SECONDS = 0.005

Lookup = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    group: str
    dtype: str
    row_bytes: int
    spread: str
    picks: int

    def __str__(self) -> str:
        return f"{self.dtype} rows of {self.row_bytes} bytes, {self.spread}, {self.picks} picks"

    def index(self, rows: int, device: torch.device) -> Tensor:
        """Of this rank's own. Hot: 90 % are one row."""
        generator = torch.Generator(device).manual_seed(1 + dist.get_rank())
        options: dict[str, Any] = {"device": device, "generator": generator}
        if self.spread == "zipf":
            uniform = torch.rand(self.picks, dtype=torch.float64, **options)
            ranked = (torch.pow(rows + 1.0, uniform) - 1).long().clamp(max=rows - 1)
            return ranked * 7919 % rows  # frequent rows are not all of the first rank
        index = torch.randint(rows, (self.picks,), **options)
        if self.spread == "hot":
            index[torch.rand(self.picks, **options) < 0.9] = rows // 2
        return index


def cases(cuda: bool, quick: bool) -> Iterator[Case]:
    picks = (1 << 12, 1 << 16, 1 << 20, 1 << 22) if cuda and not quick else (1 << 12,)
    widths = (16, 32, 64, 128, 256, 512, 4096) if not quick else (16, 128)
    spreads = ("uniform", "zipf", "hot")
    yield Case("host", "f32", 128, "uniform", 64)
    yield Case("host with gradient", "f32", 128, "uniform", 64)
    for row_bytes in widths:
        for dtype in DTYPES:
            for spread in spreads:
                for count in picks:
                    if count * row_bytes <= MOST_BYTES:
                        yield Case("gather", dtype, row_bytes, spread, count)
    for dtype in DTYPES:
        for spread in spreads:
            for count in picks:
                yield Case("train", dtype, 128, spread, count)


# ---- Ways to look rows up -----------------------------------------------------------------------


def exchange(weight: Tensor, rows: int) -> Lookup:
    """all_to_all_single and index_select, as one writes it; ``weight`` is this rank's part."""
    world, rank = dist.get_world_size(), dist.get_rank()
    length = -(-rows // world)
    group = dist.group.WORLD

    def look_up(index: Tensor) -> Tensor:
        owner = index // length
        order = owner.argsort()
        sent = torch.bincount(owner, minlength=world)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        to, come = sent.tolist(), received.tolist()
        asked = index.new_empty(sum(come))
        dist.all_to_all_single(asked, index[order], come, to)
        own = weight.index_select(0, asked - rank * length)
        picked: Any = all_to_all_single_autograd(own, to, come, group)
        return torch.empty_like(picked).index_copy(0, order, picked)

    return look_up


def by_dtensor(table: ShardedTable) -> Lookup:
    """torch's embedding of DTensors: each rank gets the part of the output for its own index."""
    weight: Any = table.weight
    mesh = weight.device_mesh

    def look_up(index: Tensor) -> Tensor:
        whole = DTensor.from_local(index, mesh, [Shard(0)], run_check=False)
        whole = whole.redistribute(mesh, [Replicate()])
        output: Any = F.embedding(whole, weight)
        return output.redistribute(mesh, [Shard(0)]).to_local()

    return look_up


def copy_of_a_peer(table: ShardedTable, nbytes: int) -> Callable[[], Tensor] | None:
    """Reads another rank's memory by a kernel: what the link gives."""
    if table._peers is None or dist.get_world_size() == 1:
        return None
    memory = table._peers._memory.of[(dist.get_rank() + 1) % dist.get_world_size()]
    source = memory[: min(nbytes, memory.numel()) // 16 * 16].view(torch.int64)
    output = torch.empty_like(source)
    return lambda: torch.bitwise_not(source, out=output)


# ---- Measuring ----------------------------------------------------------------------------------


def seconds_of(
    calls: dict[str, Callable[[], Any]],
    device: torch.device,
    round_seconds: float,
    host: bool = False,
) -> dict[str, float]:
    """What a call takes on the slowest rank: the median of rounds, in which all calls take turns.

    ``host``: until the host has made the calls, in the fastest round, for whatever else the machine
    does only adds to it.
    """

    def run(call: Callable[[], Any], count: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        if device.type == "cuda" and not host:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def of_slowest(times: Any) -> Any:
        all_times = torch.tensor(times, device=device)
        dist.all_reduce(all_times, dist.ReduceOp.MAX)
        return all_times.tolist()

    for call in calls.values():
        run(call, 2)
    # Not of one call: the first after those of another way is slower.
    once = of_slowest([run(call, 5) / 5 for call in calls.values()])
    counts = [max(1, min(200, int(round_seconds / seconds))) for seconds in once]
    rounds = of_slowest(
        [
            [run(call, count) / count for call, count in zip(calls.values(), counts, strict=True)]
            for _ in range(ROUNDS)
        ]
    )
    choose = min if host else median
    return dict(zip(calls, map(choose, zip(*rounds, strict=True)), strict=True))


def gathered(tensor: Tensor) -> list[Tensor]:
    """Those of all ranks, which have one shape."""
    # Ranks that share a GPU use gloo, which does not take CUDA tensors in all collectives. They
    # send copies on the host.
    sent = tensor if dist.get_backend() == "nccl" else tensor.cpu()
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, sent)
    return [part.to(tensor.device) for part in parts]


def expected_gradient(index: Tensor, grad: Tensor, rows: int) -> Tensor:
    """Of the whole table, in float64."""
    total = torch.zeros(rows, grad.shape[1], dtype=torch.float64, device=grad.device)
    for entries, values in zip(gathered(index), gathered(grad), strict=True):
        total.index_add_(0, entries, values.double())
    return total


def name_of_ranks(shared: bool) -> str:
    world = dist.get_world_size()
    return "1 rank" if world == 1 else f"{world} ranks{' that share a GPU' * shared}"


def measure(
    case: Case, rows: int, device: torch.device, shared: bool, round_seconds: float
) -> dict[str, Any]:
    """``shared``: whether ranks share a GPU."""
    world, dtype = dist.get_world_size(), DTYPES[case.dtype]
    width = case.row_bytes // dtype.itemsize
    tables = {
        route: ShardedTable(rows, width, dtype=dtype, device=device, route=route)
        for route in ("auto", "exchange")
    }
    table = tables["auto"]
    weight: Any = table.weight
    whole = torch.cat(gathered(weight.to_local().detach()))  # all parts have as many rows
    with torch.no_grad():
        tables["exchange"].weight.copy_(weight)
    index = case.index(rows, device)
    part = weight.to_local().detach().clone().requires_grad_()
    leaves = {"ours": weight, "exchange": tables["exchange"].weight, "all_to_all": part}
    ways: dict[str, Lookup] = {"ours": table}
    if world > 1:
        ways["exchange"] = tables["exchange"]
    if world > 1 and not shared:
        ways["all_to_all"] = exchange(part, rows)
        if case.group in ("gather", "train") and case.spread != "hot":
            ways["DTensor"], leaves["DTensor"] = by_dtensor(table), weight
    grad = torch.randn(case.picks, width, device=device).to(dtype)

    def way(look_up: Lookup, leaf: Any) -> Callable[[], Any]:
        if case.group == "train":
            return lambda: torch.autograd.grad(look_up(index), leaf, grad)[0]
        return lambda: look_up(index)

    calls = {name: way(look_up, leaves[name]) for name, look_up in ways.items()}
    # The same of this rank's part alone, by the ops on one device.
    own = part.detach().clone().requires_grad_(case.group == "host with gradient")
    entries = index % len(own)

    def local() -> Any:
        picked = torch_ops.gather(own, entries)
        if case.group != "train":
            return picked
        return torch_ops.scatter_add(grad, entries, len(own), deterministic=True)

    must_equal(own.detach()[entries])(torch_ops.gather(own.detach(), entries))
    calls["local"] = local
    host = case.group.startswith("host")
    if host:
        frozen = not own.requires_grad
        embedding = torch_ops.Embedding.from_pretrained(own.detach(), freeze=frozen)
        must_equal(own.detach()[entries])(embedding(entries).detach())
        calls["module"], calls["local module"] = calls["ours"], lambda: embedding(entries)
        calls["ours"] = lambda: torch_ops.distributed.gather(weight, index)
        must_equal(whole[index])(calls["ours"]().detach())

    errors, gradient_bytes = {}, {}
    for look_up in ways.values():
        must_equal(whole[index])(look_up(index).detach())
    if case.group == "train":
        wanted = expected_gradient(index, grad, rows)
        first = dist.get_rank() * -(-rows // world)
        for name, look_up in ways.items():
            (of_part,) = torch.autograd.grad(look_up(index), leaves[name], grad)
            local_part = of_part.to_local() if isinstance(of_part, DTensor) else of_part
            gradient_bytes[name] = local_part.nbytes
            if isinstance(of_part, DTensor):
                of_part = of_part.redistribute(placements=[Shard(0)]).to_local()
            errors[name] = relative_error(wanted[first : first + len(own)])(of_part)
            # What torch sums in 16 bits is as wrong as it is; ours must be right.
            if name in ("ours", "exchange") and not errors[name] <= TOLERANCE[case.dtype]:
                raise Wrong(f"{case}: the gradient by {name} has an error of {errors[name]:.2g}")
        del wanted, of_part, local_part

    with torch.set_grad_enabled(case.group in ("train", "host with gradient")):
        seconds = seconds_of(calls, device, round_seconds, host)
    kinds = {"all_to_all": "eager", "DTensor": "eager", "ours": "ours"}
    measurements = [
        {
            "name": name,
            "kind": kinds.get(name, "own"),
            "timing": {"median": taken},
            "errors": {"gradient": errors[name]} if name in errors else {},
            "failed": "",
        }
        for name, taken in seconds.items()
    ]
    remote = case.picks * case.row_bytes * (1 - 1 / world)
    copy = copy_of_a_peer(table, 1 << 28)
    if copy is not None and case.group == "gather" and not shared:
        nbytes = copy().nbytes
        seconds["peer copy"] = seconds_of({"": copy}, device, round_seconds)[""] * remote / nbytes
    judged = device.type == "cuda" and not shared
    bars = bars_of(case, seconds, gradient_bytes, world) if judged else []
    return {
        "panel": f"{case.group}, {name_of_ranks(shared)}",
        "name": str(case),
        "route": table.route,
        "remote_bytes_per_second": remote / seconds["ours"],
        "seconds": seconds,
        "gradient_bytes": gradient_bytes,
        "measurements": measurements,
        "bars": [asdict(bar) | {"met": bar.met} for bar in bars],
        "error": "",
    }


def bars_of(
    case: Case, seconds: dict[str, float], gradient_bytes: dict[str, int], world: int
) -> list[Bar]:
    """Those of one GPU, and of the two GPUs of one host."""
    ours, bars = seconds["ours"], []

    def at_least(other: str, bar: float, note: str = "") -> None:
        bars.append(Bar(f"{other} / ours{note}", seconds[other] / ours, bar))

    if case.group.startswith("host"):
        most = 10 if case.group == "host with gradient" else 2
        beside = [("op", ours, "local"), ("module", seconds["module"], "local module")]
        return [
            Bar(f"us over the local {what}", (taken - seconds[local]) * 1e6, most, "<=")
            for what, taken, local in beside
        ]
    if world == 1 and case.picks >= 1 << 20:  # of fewer the host's time is what counts
        return [Bar("ours / local", ours / seconds["local"], 1.05, "<=")]
    if world != 2:
        return []
    if case.group == "gather":
        if case.spread == "uniform" and case.picks == 1 << 20 and case.row_bytes in LINK_SHARE:
            share = seconds["peer copy"] / ours
            bars.append(Bar("share of the link", share, LINK_SHARE[case.row_bytes]))
        if case.row_bytes == 128 and case.spread != "hot" and case.picks == 1 << 20:
            at_least("all_to_all", 3)
        elif case.picks in (1 << 12, 1 << 20):
            at_least("all_to_all", 10 if case.picks < 1e4 else 2)
    elif case.spread != "hot" and case.picks == 1 << 20:
        at_least("all_to_all", 3)
        at_least("all_to_all", 1.5, ", deterministic as ours is")
        at_least("DTensor", 6)
        if case.dtype == "f32":  # sums of 16-bit floats are taken in float32
            share = gradient_bytes["ours"] / gradient_bytes["DTensor"]
            bars.append(Bar("memory of the gradient, ours / DTensor", share, 1 / world, "<="))
    return bars


def run(options: Namespace) -> int:
    cuda = options.device == "cuda"
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shared, device, backend = False, torch.device("cpu"), "gloo"
    if cuda:
        count = torch.cuda.device_count()
        shared = int(os.environ.get("LOCAL_WORLD_SIZE", world)) > count
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % count)
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:gloo" if shared else "nccl"  # NCCL refuses ranks that share
        if shared:  # torch and ShardedTable read it
            os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    else:
        torch.set_num_threads(options.threads or 1)
    dist.init_process_group(backend)
    results = []
    round_seconds = QUICK_ROUND_SECONDS if options.quick else ROUND_SECONDS
    for case in cases(cuda, options.quick):
        if options.filter and not any(text in f"{case.group}: {case}" for text in options.filter):
            continue
        rows = int((1 << 28 if cuda else 1 << 20) / case.row_bytes * options.scale)
        results.append(measure(case, rows * world, device, shared, round_seconds))
        if rank == 0:
            found = results[-1]
            times = ", ".join(f"{k} {v * 1e6:.1f}" for k, v in found["seconds"].items())
            missed = [bar["what"] for bar in found["bars"] if not bar["met"]]
            print(
                f"{case.group}: {case}: us: {times} {'MISSED ' if missed else ''}{missed or ''}",
                flush=True,
            )
    if rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        content = {
            "benchmark": "distributed",
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(device) | {"ranks": world, "shared": shared},
            "options": {name: str(value) for name, value in vars(options).items()},
            "stopped": "",
            "left_out": [],
            "cases": results,
        }
        path = options.out / "distributed.json"
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        print(f"{len(results)} cases, {name_of_ranks(shared)}: {path}")
    dist.barrier()
    dist.destroy_process_group()
    return int(any(not bar["met"] for found in results for bar in found["bars"]))


def _start(rank: int, port: int, options: Namespace) -> None:
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(options.ranks),
    }
    code = run(options)
    sys.stdout.flush()
    # Not sys.exit: a thread of gloo that still frees a tensor of Python's while the interpreter
    # ends aborts the process (torch 2.11).
    os._exit(code)


def main() -> int:
    parser = argument_parser("distributed", __doc__.splitlines()[0])
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help="how many to start (default: 2, or 1 where there is one GPU); those that there is no "
        "GPU for share one, over gloo, and are checked but not judged",
    )
    options = parser.parse_args()
    if "RANK" in os.environ:
        return run(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is visible. To measure the CPU: --device cpu")
    gpus = torch.cuda.device_count() if options.device == "cuda" else 2
    options.ranks = options.ranks or min(2, gpus)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    try:
        torch.multiprocessing.spawn(_start, (port, options), nprocs=options.ranks)
    except torch.multiprocessing.ProcessExitedException as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
