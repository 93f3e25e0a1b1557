"""Rows of a table that ranks share: ShardedTable beside an exchange in torch's calls and DTensor's.

    torchrun --nproc-per-node=2 -m benchmarks.distributed   # on two GPUs
    python -m benchmarks.distributed --device cpu           # starts two processes by itself

Groups: gather (forward, without a gradient), train (forward and backward), host (what a call of few
rows costs). Each result is checked before it is timed. Every rank has an index of its own; times
are those of the slowest rank. Bars are those for two H200.
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
from benchmarks._measure import Bar, argument_parser, must_equal, relative_error
from benchmarks._measure.run import describe_machine
from torch_ops.distributed import ShardedTable

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 1e-5, "bf16": 8e-3}  # ||error|| / ||result|| of a gradient
LINK_SHARE = {16: 0.28, 64: 0.76, 128: 0.93, 256: 0.97, 512: 0.97, 4096: 0.97}
MOST_BYTES = 1 << 32  # of an output
ROUNDS = 7

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
    yield Case("host", "f32", 128, "uniform", 64)
    yield Case("host with gradient", "f32", 128, "uniform", 64)


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


def seconds_of(call: Callable[[], Any], device: torch.device) -> float:
    """Of one call among several: the median of rounds, of the slowest rank."""

    def run(count: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    run(2)
    once = torch.tensor(run(1), device=device)
    dist.all_reduce(once, dist.ReduceOp.MAX)
    count = max(1, min(200, int(0.02 / once.item())))
    times = torch.tensor([run(count) / count for _ in range(ROUNDS)], device=device)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return median(times.tolist())


def gathered(tensor: Tensor) -> list[Tensor]:
    """Those of all ranks, which have one shape."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


def expected_gradient(index: Tensor, grad: Tensor, rows: int) -> Tensor:
    """Of the whole table, in float64."""
    total = torch.zeros(rows, grad.shape[1], dtype=torch.float64, device=grad.device)
    for entries, values in zip(gathered(index), gathered(grad), strict=True):
        total.index_add_(0, entries, values.double())
    return total


def measure(case: Case, rows: int, device: torch.device) -> dict[str, Any]:
    dtype = DTYPES[case.dtype]
    width = case.row_bytes // dtype.itemsize
    tables = {
        route: ShardedTable(rows, width, dtype=dtype, device=device, route=route)
        for route in ("auto", "exchange")
    }
    table = tables["auto"]
    weight: Any = table.weight
    whole = weight.detach().full_tensor()
    with torch.no_grad():
        tables["exchange"].weight.copy_(weight)
    index = case.index(rows, device)
    part = weight.to_local().detach().clone().requires_grad_()
    leaves = {"ours": weight, "exchange": tables["exchange"].weight, "all_to_all": part}
    calls: dict[str, Lookup] = {
        "ours": table,
        "exchange": tables["exchange"],
        "all_to_all": exchange(part, rows),
    }
    if case.group in ("gather", "train") and case.spread != "hot":
        calls["DTensor"], leaves["DTensor"] = by_dtensor(table), weight
    local = whole[: part.shape[0]].clone().requires_grad_()
    calls["local"], leaves["local"] = (lambda i: torch_ops.gather(local, i % len(local))), local

    with_gradient = case.group != "gather" and case.group != "host"
    grad = torch.randn(case.picks, width, device=device).to(dtype)
    wanted = expected_gradient(index, grad, rows) if case.group == "train" else None
    first = dist.get_rank() * -(-rows // dist.get_world_size())
    measurements, seconds = [], {}
    for name, look_up in calls.items():
        expected = whole[index] if name != "local" else local.detach()[index % len(local)]
        must_equal(expected)(look_up(index).detach())
        leaf = leaves[name]

        def call(look_up: Lookup = look_up, leaf: Any = leaf) -> Any:
            if case.group == "train":
                return torch.autograd.grad(look_up(index), leaf, grad)[0]
            with torch.set_grad_enabled(with_gradient):
                return look_up(index)

        if wanted is not None and name != "local":
            found: Any = call()
            if isinstance(found, DTensor):
                found = found.redistribute(placements=[Shard(0)]).to_local()
            error = relative_error(wanted[first : first + part.shape[0]])(found)
            # What torch sums in 16 bits is as wrong as it is; ours must be right.
            assert error <= TOLERANCE[case.dtype] or name in ("all_to_all", "DTensor"), (
                name,
                error,
            )
        seconds[name] = seconds_of(call, device)
        kind = {"ours": "ours", "all_to_all": "eager", "DTensor": "eager"}.get(name, "reference")
        timing = {"median": seconds[name]}
        measurements.append({"name": name, "kind": kind, "timing": timing, "failed": ""})
    remote = case.picks * case.row_bytes * (1 - 1 / dist.get_world_size())
    copy = copy_of_a_peer(table, 1 << 28)
    if copy is not None and case.group == "gather":
        size = copy().nbytes
        seconds["peer copy"] = seconds_of(copy, device) * remote / size
    bars = bars_of(case, seconds) if device.type == "cuda" and dist.get_world_size() == 2 else []
    return {
        "panel": case.group,
        "name": str(case),
        "route": table.route,
        "remote_bytes_per_second": remote / seconds["ours"],
        "seconds": seconds,
        "measurements": measurements,
        "bars": bars,
        "error": "",
    }


def bars_of(case: Case, seconds: dict[str, float]) -> list[dict[str, Any]]:
    """Those of the two GPUs of one host."""
    bars = []

    def at_least(what: str, ratio: float, bar: float) -> None:
        bars.append(Bar(what, ratio, bar))

    ours = seconds["ours"]
    if case.group == "gather":
        if case.spread == "uniform" and case.picks == 1 << 20 and case.row_bytes in LINK_SHARE:
            share = seconds["peer copy"] / ours
            at_least("share of the link", share, LINK_SHARE[case.row_bytes])
        if case.picks in (1 << 12, 1 << 20):
            at_least(
                "all_to_all / ours", seconds["all_to_all"] / ours, 10 if case.picks < 1e4 else 2
            )
    elif case.group == "train" and case.picks == 1 << 20:
        at_least("all_to_all / ours", seconds["all_to_all"] / ours, 1.5)
        if "DTensor" in seconds:
            at_least("DTensor / ours", seconds["DTensor"] / ours, 6)
    elif case.group.startswith("host"):
        most = 10 if case.group == "host with gradient" else 2
        over = (ours - seconds["local"]) * 1e6
        bars.append(Bar("us over the local op", over, most, "<="))
    return [asdict(bar) | {"met": bar.met} for bar in bars]


def run(options: Namespace) -> int:
    cuda = options.device == "cuda"
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(options.threads or 1)
    dist.init_process_group("nccl" if cuda else "gloo")
    results = []
    for case in cases(cuda, options.quick):
        if options.filter and not any(text in f"{case.group}: {case}" for text in options.filter):
            continue
        rows = int((1 << 28 if cuda else 1 << 20) / case.row_bytes * options.scale)
        results.append(measure(case, rows * dist.get_world_size(), device))
        if rank == 0:
            found = results[-1]
            times = ", ".join(f"{k} {v * 1e6:.1f}" for k, v in found["seconds"].items())
            missed = [bar["what"] for bar in found["bars"] if not bar["met"]]
            print(f"{case.group}: {case}: us: {times} {'MISSED ' if missed else ''}{missed or ''}")
    if rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
        content = {
            "benchmark": "distributed",
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(device) | {"ranks": dist.get_world_size()},
            "options": {name: str(value) for name, value in vars(options).items()},
            "left_out": [],
            "cases": results,
        }
        path = options.out / "distributed.json"
        path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        print(f"{len(results)} cases: {path}")
    dist.barrier()
    dist.destroy_process_group()
    return int(any(not bar["met"] for found in results for bar in found["bars"]))


def _start(rank: int, port: int, options: Namespace) -> None:
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
    }
    run(options)


def main() -> int:
    options = argument_parser("distributed", __doc__.splitlines()[0]).parse_args()
    if "RANK" in os.environ:
        return run(options)
    if options.device == "cuda" and torch.cuda.device_count() < 2:
        print("benchmarks.distributed: left out, for there are not two GPUs.", file=sys.stderr)
        return 0
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_start, (port, options), nprocs=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
