"""What PyTorch's transforms cost: torch.vmap over gathers, and compiled networks.

Groups: vmap (a mapped gather beside the call of the whole batch and torch.vmap of torch.gather),
nets (a training step of compiled networks with our activations and with torch's; CUDA only, for
Inductor takes minutes on a CPU).
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor, nn

import torch_ops
from benchmarks._activations import nets
from benchmarks._measure import (
    Bar,
    Benchmark,
    Check,
    Implementation,
    Result,
    argument_parser,
    must_equal,
    relative_error,
)

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
GROUPS = ("vmap", "nets")
# From here on vmap may cost a tenth of the call; below, as much as torch's own vmap does.
LONG_SECONDS = 400e-6


@dataclass(frozen=True)
class Gather:
    """source [batch, rows, width], index [batch, entries]; `mapped` says which vmap maps over."""

    mapped: str
    dtype: str
    batch: int
    rows: int
    entries: int
    width: int
    group: str = "vmap"

    @property
    def name(self) -> str:
        sizes = f"{self.batch}x{self.rows}x{self.width}, {self.entries} entries"
        return f"vmap over {self.mapped}, {self.dtype} {sizes}"

    @property
    def bytes(self) -> int:
        """Index, rows read and rows written."""
        size = DTYPES[self.dtype].itemsize
        indices = self.entries * (1 if self.mapped == "source" else self.batch)
        return 8 * indices + 2 * self.batch * self.entries * self.width * size

    def scaled(self, scale: float) -> Gather:
        rows, entries = (max(1, round(n * scale)) for n in (self.rows, self.entries))
        return Gather(self.mapped, self.dtype, self.batch, rows, entries, self.width, self.group)


@dataclass(frozen=True)
class Net:
    net: str
    dtype: str
    group: str = "nets"

    @property
    def name(self) -> str:
        return f"compiled {self.net}, {self.dtype}"


Case = Gather | Net
CASES: list[Case] = [
    *(
        Gather(mapped, *sizes)
        for mapped in ("both", "source", "index")
        for sizes in (
            ("f32", 32, 131072, 131072, 64),
            ("bf16", 64, 65536, 65536, 128),
            ("f32", 8, 131072, 131072, 64),
            ("f32", 64, 1000, 1000, 64),
            ("f32", 4, 64, 16, 64),
        )
    ),
    *(Net(net, dtype) for net in ("mlp", "residual", "neighbours") for dtype in ("f32", "bf16")),
]
QUICK = {
    Gather("both", "f32", 32, 131072, 131072, 64),
    Gather("both", "f32", 4, 64, 16, 64),
}


def select(options: Namespace) -> list[Case]:
    chosen = [case for case in CASES if case.group in options.only]
    if options.device == "cpu":
        chosen = [case for case in chosen if isinstance(case, Gather)]
    if options.quick:
        chosen = [case for case in chosen if case in QUICK]
    if options.filter:
        chosen = [case for case in chosen if any(text in case.name for text in options.filter)]
    return chosen


# ---- torch.vmap ---------------------------------------------------------------------------------


def run_gather(case: Gather, result: Result, bench: Benchmark) -> None:
    of_source = (case.batch,) if case.mapped != "index" else ()
    of_index = (case.batch,) if case.mapped != "source" else ()
    source = torch.randn(*of_source, case.rows, case.width, device=bench.device)
    source = source.to(DTYPES[case.dtype])
    index = torch.randint(case.rows, (*of_index, case.entries), device=bench.device)
    in_dims = (0 if of_source else None, 0 if of_index else None)

    def torchs(table: Tensor, entries: Tensor) -> Tensor:
        return torch.gather(table, 0, entries[:, None].expand(-1, table.shape[1]))

    def whole(table: Tensor) -> Tensor:
        if case.mapped == "both":
            return torch_ops.gather(table, index, batch_dims=1)
        return torch_ops.gather(table, index, dim=1 if case.mapped == "source" else 0)

    mapped = torch.vmap(torch_ops.gather, in_dims)
    theirs = torch.vmap(torchs, in_dims)
    judge = must_equal(theirs(source, index).contiguous())
    calls = (
        Implementation("vmap of torch_ops.gather", "ours", lambda s: mapped(s, index)),
        Implementation("the call of the batch", "own", whole),
        Implementation("vmap of torch.gather", "eager", lambda s: theirs(s, index)),
    )
    bench.measure(result, calls, {"": Check(source, judge)})
    batched = result.seconds("own")
    if batched is not None and batched >= LONG_SECONDS:
        result.bars = [Bar("over the batched call", result.ratio("own"), 1 / 1.1)]
    else:
        result.bars = [Bar("over vmap of torch.gather", result.ratio("eager"), 1.0)]


# ---- compiled networks --------------------------------------------------------------------------


def run_net(case: Net, result: Result, bench: Benchmark) -> None:
    dtype = DTYPES[case.dtype]
    x = nets.make_input(case.net, dtype, bench.options)
    weights = nets.NETS[case.net](nn.ReLU).to(bench.device, dtype).state_dict()

    def make(relu: Callable[[], nn.Module]) -> nn.Module:
        model = nets.NETS[case.net](relu).to(bench.device, dtype)
        model.load_state_dict(weights)
        return model

    reference = make(nn.ReLU)
    judge = relative_error(nets.step(reference, x).double())
    calls = [Implementation("torch, not compiled", "eager", lambda x: nets.step(reference, x))]
    torch.compiler.reset()
    for name, kind, relu in (
        ("torch_ops", "ours", torch_ops.ReLU),
        ("torch", "compiled", nn.ReLU),
    ):
        model = torch.compile(make(relu), dynamic=False)
        nets.step(model, x)  # compiles
        calls.append(Implementation(name, kind, lambda x, model=model: nets.step(model, x)))  # type: ignore[arg-type]
    bench.measure(result, calls, {"": Check(x, judge)})
    result.bars = [Bar("over torch, compiled", result.ratio("compiled"), 0.95)]


# ---- the run ------------------------------------------------------------------------------------


def describe(case: Case, bench: Benchmark) -> Result:
    moved = case.bytes if isinstance(case, Gather) else nets.bytes_moved(bench.options)
    return Result(case.group, case.name, case.group, case.name, (case.group,), asdict(case), moved)


def run_case(case: Case, result: Result, bench: Benchmark) -> None:
    torch.manual_seed(0)  # the same data whichever cases are selected
    if isinstance(case, Gather):
        run_gather(case, result, bench)
    else:
        run_net(case, result, bench)


def main() -> int:
    parser = argument_parser("transforms", __doc__ or "")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    options = parser.parse_args()
    cases = select(options)
    if not cases:
        parser.error(f"no case is selected; names are such as: {CASES[0].name}")
    bench = Benchmark("transforms", options)
    tasks = []
    for case in cases:
        if isinstance(case, Gather):
            case = case.scaled(options.scale)
        result = describe(case, bench)
        tasks.append((result, partial(run_case, case, result, bench)))
    bench.run(tasks)
    return bench.finish(lambda *_: [])


if __name__ == "__main__":
    sys.exit(main())
