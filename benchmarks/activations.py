"""relu, leaky_relu, sigmoid and others beside torch's, as fractions of a copy; and small networks.

Groups: relu, leaky, sigmoid, others (contiguous tensors), strided, accuracy (of sigmoid), nets
(time and memory of a training step; CUDA only). With --device cpu the tensors are smaller.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_ops
from benchmarks._activations import nets
from benchmarks._activations import ops as activation_ops
from benchmarks._measure import (
    Bar,
    Benchmark,
    Check,
    Implementation,
    Result,
    Wrong,
    argument_parser,
    must_equal,
)
from torch_ops.decompositions import activations as decompositions

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}
SLOPE = 0.1
OPS, ATEN = torch.ops.torch_ops, torch.ops.aten

# ---- cases --------------------------------------------------------------------------------------

GROUPS = ("relu", "leaky", "sigmoid", "others", "strided", "accuracy", "nets")
MASKED = ("relu", "leaky_relu")
# Without cases of their own. Results are compared with the decompositions' in float64.
OTHERS = [name for name in activation_ops.names() if name not in (*MASKED, "sigmoid")]
PASSES = ("forward", "forward, mask", "backward")


@dataclass(frozen=True)
class Case:
    """`what` is one of PASSES, or a net's name."""

    group: str
    op: str
    what: str
    dtype: str
    layout: str = "contiguous"
    quick: bool = False

    @property
    def name(self) -> str:
        words = [self.op, self.what, self.dtype]
        if self.group in ("strided", "accuracy"):
            words.append(self.layout)
        return " ".join(filter(None, words))

    def bytes(self, elements: int) -> int:
        """What has to be moved at least."""
        size = DTYPES[self.dtype].itemsize
        if self.op not in MASKED:
            return elements * size * (3 if self.what == "backward" else 2)
        masked = self.what != "forward"
        return elements * size * 2 + (elements // 8 if masked else 0)


# A dtype of each size where one stands for all.
CASES = [
    *(
        Case(group, op, what, dtype, quick=group != "leaky" and dtype in ("f32", "bf16"))
        for group, op in (("relu", "relu"), ("leaky", "leaky_relu"))
        for what in PASSES
        for dtype in ("f32", "bf16", "f16", "f64")
    ),
    *(
        Case("sigmoid", "sigmoid", what, dtype, quick=dtype in ("f32", "bf16"))
        for what in ("forward", "backward")
        for dtype in ("f32", "bf16", "f16", "f64")
    ),
    *(
        Case("others", op, what, dtype, quick=dtype in ("f32", "bf16"))
        for op in OTHERS
        for what in ("forward", "backward")
        for dtype in ("f32", "bf16", "f16", "f64")
    ),
    *(
        Case("strided", op, what, dtype, layout)
        for op in ("relu", "sigmoid")
        for what in (PASSES if op == "relu" else ("forward", "backward"))
        for dtype in ("f32", "bf16")
        for layout in ("sliced rows", "every second", "transposed gradient", "expanded gradient")
        if "gradient" not in layout or what == "backward"
    ),
    *(
        Case(
            "accuracy", "sigmoid", what, dtype, "all values" if dtype != "f32" else "all exponents"
        )
        for what in ("forward", "backward")
        for dtype in ("bf16", "f16", "f32")
    ),
]
NETS = [
    Case("nets", "", name, dtype, quick=name == "residual")
    for name in nets.NETS
    for dtype in ("f32", "bf16")
]
# What a CPU's cores are held to.
CPU_CASES = [case for case in CASES if case.dtype in ("f32", "bf16")]


def select(options: Namespace) -> list[Case]:
    cases = CPU_CASES if options.device == "cpu" else CASES + NETS
    cases = [case for case in cases if case.group in options.only]
    if options.quick:
        cases = [case for case in cases if case.quick]
    if options.filter:
        cases = [case for case in cases if any(text in case.name for text in options.filter)]
    return cases


# ---- inputs -------------------------------------------------------------------------------------


def elements(options: Namespace) -> int:
    """A square number, for the tensors with two axes."""
    side = 2**12 if options.device == "cpu" else 2**14
    return max(64, round(side * options.scale)) ** 2


def make_tensor(layout: str, shape: tuple[int, int], dtype: torch.dtype, device: Any) -> Tensor:
    rows, width = shape
    if layout == "sliced rows":
        return torch.randn(rows, width + 8, dtype=dtype, device=device)[:, 3:-5]
    if layout == "every second":
        return torch.randn(rows, 2 * width, dtype=dtype, device=device)[:, ::2]
    if layout == "transposed gradient":
        return torch.randn(width, rows, dtype=dtype, device=device).t()
    if layout == "expanded gradient":
        return torch.randn((), dtype=dtype, device=device).expand(shape)
    return torch.randn(shape, dtype=dtype, device=device)


def all_values(case: Case, device: Any) -> Tensor:
    """Each 16-bit number; for float32 2^13 of each sign and exponent. Without NaN."""
    if case.dtype == "f32":
        mantissas = torch.randint(2**23, (2**9, 2**13), dtype=torch.int32)
        mantissas[:, 0], mantissas[:, 1] = 0, 2**23 - 1
        bits = (torch.arange(-(2**8), 2**8, dtype=torch.int32) << 23)[:, None] | mantissas
        x = bits.view(torch.float32).flatten()
    else:
        x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(DTYPES[case.dtype])
    return x[~x.isnan()].to(device)


# ---- what is compared ---------------------------------------------------------------------------


def forwards(case: Case) -> Iterator[Implementation]:
    mask = case.what == "forward, mask"
    if case.op not in MASKED:
        yield Implementation("torch_ops", "ours", getattr(torch_ops, case.op))
        yield Implementation("torch", "eager", activation_ops.torchs(case.op))
    elif case.op == "relu":
        masked = lambda x: OPS._relu_mask(x, None)[0]  # noqa: E731
        yield Implementation("torch_ops", "ours", masked if mask else torch_ops.relu)
        yield Implementation("torch", "eager", torch.relu)
    else:
        masked = lambda x: OPS._relu_mask(x, SLOPE)[0]  # noqa: E731
        plain = partial(torch_ops.leaky_relu, negative_slope=SLOPE)
        yield Implementation("torch_ops", "ours", masked if mask else plain)
        yield Implementation("torch", "eager", partial(F.leaky_relu, negative_slope=SLOPE))


def backwards(case: Case, x: Tensor) -> Iterator[Implementation]:
    """Each takes the gradient; what it saved before is made here."""
    if case.op == "sigmoid":
        y = torch.sigmoid(x)
        yield Implementation("torch_ops", "ours", lambda g: OPS.sigmoid_backward(g, y))
        yield Implementation("torch", "eager", lambda g: ATEN.sigmoid_backward(g, y))
        return
    if case.op in OTHERS:
        op, saved = activation_ops.backward(case.op), saved_by(case.op, x)
        yield Implementation("torch_ops", "ours", lambda g: op(g, saved))
        yield Implementation("torch", "eager", lambda g: decompositions[op](g, saved))
        return
    slope = None if case.op == "relu" else SLOPE
    y, mask = OPS._relu_mask(x, slope)
    yield Implementation("torch_ops", "ours", lambda g: OPS._relu_mask_backward(g, mask, [], slope))
    if slope is None:
        yield Implementation("torch_ops, save='output'", "own", lambda g: OPS.relu_backward(g, y))
        yield Implementation("torch", "eager", lambda g: ATEN.threshold_backward(g, y, 0))
    else:
        yield Implementation(
            "torch_ops, save='output'", "own", lambda g: OPS.leaky_relu_backward(g, y, slope)
        )
        yield Implementation(
            "torch", "eager", lambda g: ATEN.leaky_relu_backward(g, x, slope, False)
        )


def saved_by(op: str, x: Tensor) -> Tensor:
    return activation_ops.torchs(op)(x) if activation_ops.saves_output(op) else x


def exactly(case: Case, wide: list[Tensor]) -> Tensor:
    """The result in float64."""
    if case.op == "sigmoid":
        return wide[0] * wide[1] * (1 - wide[1]) if case.what == "backward" else sigmoid64(wide[0])
    forward = getattr(OPS, case.op).default
    return decompositions[activation_ops.backward(case.op) if len(wide) > 1 else forward](*wide)


def sigmoid64(x: Tensor) -> Tensor:
    # float64's own would lose the lower tail too, only later.
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, torch.ones_like(e)) / (1 + e)


def steps(output: Tensor, exact: Tensor) -> float:
    """The largest distance from the exact value, in steps of the output's format there."""
    info = torch.finfo(output.dtype)
    exact = exact.clamp(-info.max, info.max)
    exponent = torch.frexp(exact).exponent - 1
    least = torch.tensor(info.smallest_normal, dtype=torch.float64, device=exact.device)
    step = torch.ldexp(torch.full_like(exact, info.eps), exponent).clamp_(min=least * info.eps)
    return ((output.double() - exact).abs() / step).max().item()


def in_steps(case: Case, x: Tensor, y: Tensor | None) -> Callable[[Tensor], float]:
    """A judge of an op (y None), or of its gradient from what is saved, y."""

    def judge(output: Tensor) -> float:
        worst = 0.0
        part = 2**26 if output.is_cuda else 2**18  # which a CPU keeps in its cache
        flat = [t.reshape(-1).split(part) for t in (output, x, y) if t is not None]
        for out, given, *at in zip(*flat, strict=True):
            wide = [t.double() for t in (given, *at)]
            exact = exactly(case, wide)
            if not torch.equal(out.isnan(), exact.isnan()):
                raise Wrong("NaN where there should be none, or none where there should be")
            worst = max(worst, steps(out, exact))
        return worst

    return judge


# The largest error allowed, in steps of the format; elsewhere 0.51, one rounding.
STEPS = {
    ("forward", "f32"): 1.5,  # 1 from the correctly rounded result
    ("forward", "f64"): 8.0,
    ("backward", "f32"): 8.0,
    ("backward", "f64"): 8.0,
    ("backward", "bf16"): 2.0,
    ("backward", "f16"): 2.0,
}
OF_COPY = {"forward": 0.97, "forward, mask": 0.93}


def run_op(case: Case, result: Result, bench: Benchmark) -> None:
    side = round(elements(bench.options) ** 0.5)
    dtype, device = DTYPES[case.dtype], bench.device
    if case.group == "accuracy":
        x = all_values(case, device)
        shape: tuple[int, ...] = tuple(x.shape)
    else:
        shape = (side, side)
        of_input = "contiguous" if "gradient" in case.layout else case.layout
        x = make_tensor(of_input, shape, dtype, device)
    if case.what == "backward":
        if case.group == "accuracy":
            given = torch.randn(shape, dtype=dtype, device=device)
        else:
            given = make_tensor(case.layout, shape, dtype, device)
        implementations = list(backwards(case, x))
        y = saved_by(case.op, x) if case.op not in MASKED else None
    else:
        given, y = x, None
        implementations = list(forwards(case))
    if case.op not in MASKED:
        judge = in_steps(case, given, y)
    else:
        torchs = next(each for each in implementations if each.kind == "eager")
        judge = must_equal(torchs.call(given))
    bench.measure(result, implementations, {"": Check(given, judge)})
    result.bars = op_bars(case, result, bench)


def op_bars(case: Case, result: Result, bench: Benchmark) -> list[Bar]:
    bars = []
    ours = result.find("torch_ops")
    if case.op not in MASKED and ours is not None:
        allowed = STEPS.get((case.what, case.dtype), 0.51)
        bars.append(Bar("steps off", ours.errors.get(""), allowed, "<="))
    if case.group == "accuracy":
        return bars
    if bench.device.type == "cpu":
        return [*bars, Bar("over torch", result.ratio("eager"), 1.0)]
    if case.group == "strided":
        return bars
    if case.op in MASKED and case.what == "backward":
        if case.dtype != "f64":
            bars.append(Bar("over torch", result.ratio("eager"), 1.35))
    else:
        rate = result.bytes_per_second("ours")
        fraction = rate / bench.copy["start"] if rate else None
        bars.append(Bar("of copy", fraction, OF_COPY.get(case.what, 0.97)))
    return bars


# ---- the run ------------------------------------------------------------------------------------


def describe(case: Case, bench: Benchmark) -> Result:
    count = elements(bench.options)
    if case.group == "accuracy":
        count = 2**22 if case.dtype == "f32" else 2**16
    moved = nets.bytes_moved(bench.options) if case.group == "nets" else case.bytes(count)
    tag = case.name if case.group in ("strided", "nets") else f"{case.what} {case.dtype}"
    return Result(case.group, case.name, case.group, tag, (case.group,), asdict(case), moved)


def run_case(case: Case, result: Result, bench: Benchmark) -> None:
    torch.manual_seed(0)  # the same data whichever cases are selected
    if case.group == "nets":
        nets.run(case.what, DTYPES[case.dtype], result, bench)
    else:
        run_op(case, result, bench)


def main() -> int:
    parser = argument_parser("activations", __doc__ or "")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    options = parser.parse_args()
    cases = select(options)
    if not cases:
        parser.error(f"no case is selected; names are such as: {CASES[0].name}")
    bench = Benchmark("activations", options)
    tasks = []
    for case in cases:
        result = describe(case, bench)
        tasks.append((result, partial(run_case, case, result, bench)))
    bench.run(tasks)
    return bench.finish(lambda *_: [])


if __name__ == "__main__":
    sys.exit(main())
