"""What elementwise kernels move, beside CuPy's, the jiterator's and torch's own."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks._jit.host import Way, result, time_launches
from benchmarks._measure import Bar, Benchmark, Check, Implementation, Measurement, Result
from benchmarks._measure.figures import relative_error
from torch_ops.jit import ElementwiseKernel, ReductionKernel

LEAKY = ElementwiseKernel("T x, T slope", "T y", "y = x > 0 ? x : slope * x", "leaky_relu")
ADD = ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")
TOTAL = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, "total")

LEAKY_JITERATOR = "template <typename T> T leaky_relu(T x) { return x > T(0) ? x : T(0.1f) * x; }"
ADD_JITERATOR = "template <typename T> T add(T x, T y) { return x + y; }"


def cupy_kernel(*arguments: str) -> Callable[..., Any] | None:
    """Takes and gives torch tensors; the views are free of copies, and are part of the call."""
    if importlib.util.find_spec("cupy") is None:
        return None
    import cupy

    kernel = cupy.ElementwiseKernel(*arguments)

    def call(*tensors: Any) -> Tensor:
        views = [cupy.from_dlpack(t) if isinstance(t, Tensor) else t for t in tensors]
        return torch.from_dlpack(kernel(*views))

    return call


def jiterator(code: str) -> Callable[..., Tensor]:
    return torch.cuda.jiterator._create_jit_fn(code)


@dataclass(frozen=True)
class Case:
    """Inputs and the ways to the output, each on the same inputs."""

    group: str
    name: str
    inputs: Callable[[], Sequence[Tensor]]
    ours: Callable[..., Tensor]
    rivals: dict[str, Callable[..., Tensor] | None]
    bytes: int
    bar: tuple[str, float] | None  # "copy", or the name of a rival; the ratio to reach
    reference: Callable[..., Tensor]
    reads_only: bool = False

    def task(self, bench: Benchmark) -> tuple[Result, Callable[[], None]]:
        case = Result(
            self.group, f"{self.group}, {self.name}", self.group, self.name, (self.group,), {},
            bytes=self.bytes, reads_only=self.reads_only,
        )  # fmt: skip
        return case, lambda: self.run(case, bench)

    def run(self, case: Result, bench: Benchmark) -> None:
        inputs = self.inputs()
        expected = self.reference(*inputs).double()
        tolerance = 1e-2 if inputs[0].dtype.itemsize == 2 else 1e-5
        relative = relative_error(expected)

        def judge(output: Tensor) -> float:
            error = relative(output)
            if not error < tolerance:
                raise ValueError(f"relative error {error}")
            return error

        checks = {"": Check(inputs[0], judge)}
        ways, calls = {"torch_ops": self.ours, **self.rivals}, []
        for name, way in ways.items():
            if way is None:
                continue
            call = Implementation(
                name, "ours" if name == "torch_ops" else "eager",
                lambda _, way=way: way(*inputs),
            )  # fmt: skip
            # Compiles. A first call of more than a second would be the only one that is timed; what
            # raises here raises again where it is reported.
            with contextlib.suppress(Exception):
                way(*inputs)
            calls.append(call)
        bench.measure(case, calls, checks)
        if self.bar is None:
            return
        what, bar = self.bar
        ours = case.seconds("ours")
        if what == "copy":
            rate = case.bytes_per_second("ours")
            value = rate / bench.copy["start"] if rate else None
            case.bars = [Bar("fraction of copy", value, bar)]
        else:
            rival = case.find(what)
            value = rival.timing.median / ours if ours and rival and rival.timing else None
            case.bars = [Bar(f"{what}'s time over ours", value, bar)]


def cases(scale: float) -> list[Case]:
    side = max(int(2**14 * math.sqrt(scale)) // 8 * 8, 64)
    size = side * side
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        item = dtype.itemsize
        name = str(dtype).removeprefix("torch.")

        def flat(dtype=dtype) -> list[Tensor]:
            return [torch.randn(size, device="cuda").to(dtype)]

        def rows(dtype=dtype) -> list[Tensor]:
            return [torch.randn(side, side, device="cuda").to(dtype),
                    torch.randn(side, device="cuda").to(dtype)]  # fmt: skip

        def positive(dtype=dtype) -> list[Tensor]:
            return [torch.rand(side, side, device="cuda").to(dtype)]

        def odd_rows(dtype=dtype) -> list[Tensor]:
            return [torch.randn(side, side - 3, device="cuda").to(dtype)]

        def square(dtype=dtype) -> list[Tensor]:
            return [torch.randn(side, side, device="cuda").to(dtype) for _ in range(2)]

        cupy_leaky = cupy_add = None
        if dtype is torch.float32:  # CuPy has no bfloat16
            cupy_leaky = cupy_kernel("T x, T slope", "T y", "y = x > 0 ? x : slope * x", "leaky")
            cupy_add = cupy_kernel("T x, T y", "T z", "z = x + y", "add")
        jit_leaky, jit_add = jiterator(LEAKY_JITERATOR), jiterator(ADD_JITERATOR)
        found += [
            Case(
                "contiguous", f"leaky relu, {name}", flat, lambda x: LEAKY(x, 0.1),
                {
                    "torch": lambda x: torch.nn.functional.leaky_relu(x, 0.1),
                    "jiterator": lambda x, f=jit_leaky: f(x),
                    "CuPy": cupy_leaky and (lambda x, f=cupy_leaky: f(x, 0.1)),
                },
                2 * size * item, ("copy", 0.97),
                lambda x: torch.nn.functional.leaky_relu(x.double(), 0.1),
            ),
            Case(
                "broadcast", f"[n, n] + [n], {name}", rows, ADD,
                {"torch": torch.add, "jiterator": jit_add, "CuPy": cupy_add},
                2 * size * item, ("torch", 0.97), lambda x, y: x.double() + y,
            ),
            Case(
                "strided", f"transposed + rows, {name}", square,
                lambda x, y: ADD(x.T, y),
                {
                    "torch": lambda x, y: torch.add(x.T, y),
                    "jiterator": lambda x, y, f=jit_add: f(x.T, y),
                },
                3 * size * item, ("torch", 0.9), lambda x, y: x.T.double() + y,
            ),
            Case(
                "strided", f"both transposed, {name}", square,
                lambda x, y: ADD(x.T, y.T),
                {"torch": lambda x, y: torch.add(x.T, y.T)},
                3 * size * item, ("torch", 0.9), lambda x, y: x.T.double() + y.T,
            ),
            Case(
                "strided", f"sliced, {name}", square,
                lambda x, y: ADD(x[:, 3:-1], y[:, 1:-3]),
                {"torch": lambda x, y: torch.add(x[:, 3:-1], y[:, 1:-3])},
                3 * size * item, ("torch", 0.9), lambda x, y: x[:, 3:-1].double() + y[:, 1:-3],
            ),
            Case(
                "generated backward", f"leaky relu, {name}", square, _backward_of_leaky,
                {"torch": _torch_backward},
                3 * size * item, ("copy", 0.95),
                lambda x, g: torch.where(x > 0, g.double(), 0.1 * g.double()),
            ),
            Case(
                "generated backward", f"[n, n] + [n], gradient of [n], {name}", square,
                _backward_of_bias, {"torch": lambda x, g: g.sum(0)},
                size * item, ("copy", 0.95), lambda x, g: g.double().sum(0), reads_only=True,
            ),
            Case(
                "reduction", f"all of [n, n], {name}", positive, lambda x: TOTAL(x).reshape(1),
                {"torch": lambda x: x.sum().reshape(1)},
                size * item, None, lambda x: x.double().sum().reshape(1), reads_only=True,
            ),
            Case(
                "reduction", f"rows of [n, n], {name}", square, lambda x, y: TOTAL(x, dim=1),
                {"torch": lambda x, y: x.sum(1)},
                size * item, None, lambda x, y: x.double().sum(1), reads_only=True,
            ),
            Case(
                "reduction", f"rows of [n, n - 3], {name}", odd_rows, lambda x: TOTAL(x, dim=1),
                {"torch": lambda x: x.sum(1)},
                side * (side - 3) * item, ("torch", 0.9), lambda x: x.double().sum(1),
                reads_only=True,
            ),
            Case(
                "reduction", f"columns of [n, n], {name}", square, lambda x, y: TOTAL(x, dim=0),
                {"torch": lambda x, y: x.sum(0)},
                size * item, None, lambda x, y: x.double().sum(0), reads_only=True,
            ),
        ]  # fmt: skip
    return found


def _backward_of_leaky(x: Tensor, grad: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    # The forward pass is no part of what is timed: its node is kept.
    key = (x.data_ptr(), x.dtype)
    if key not in _graphs:
        _graphs.clear()
        _graphs[key] = (x, LEAKY(x, 0.1))
    leaf, output = _graphs[key]
    return torch.autograd.grad(output, leaf, grad, retain_graph=True)[0]


def _torch_backward(x: Tensor, grad: Tensor) -> Tensor:
    return torch.ops.aten.leaky_relu_backward(grad, x, 0.1, False)


def _backward_of_bias(x: Tensor, grad: Tensor) -> Tensor:
    bias = x[0].detach().clone().requires_grad_()
    key = (x.data_ptr(), grad.data_ptr(), x.dtype)
    if key not in _graphs:
        _graphs.clear()
        _graphs[key] = (bias, ADD(x, bias))
    leaf, output = _graphs[key]
    return torch.autograd.grad(output, leaf, grad, retain_graph=True)[0]


_graphs: dict[Any, tuple[Tensor, Tensor]] = {}


# ---- the host's time ----------------------------------------------------------------------------


def run_host(case: Result, bench: Benchmark) -> None:
    x, y = (torch.randn(4096, device="cuda") for _ in range(2))
    leaf = x.clone().requires_grad_()
    theirs = jiterator(ADD_JITERATOR)
    ways = [
        Way("torch_ops ElementwiseKernel", "ours", lambda: ADD(x, y)),
        Way("torch_ops, gradient recorded", "own", lambda: ADD(leaf, y)),
        Way("jiterator", "eager", lambda: theirs(x, y)),
        Way("torch.add", "own", lambda: torch.add(x, y)),
    ]
    if importlib.util.find_spec("cupy"):
        import cupy

        kernel = cupy.ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")
        a, b = cupy.from_dlpack(x), cupy.from_dlpack(y)
        ways.append(Way("CuPy on its own arrays", "eager", lambda: kernel(a, b)))
    torch.testing.assert_close(ADD(x, y), x + y)
    for name, timing in time_launches(ways).items():
        kind = next(way.kind for way in ways if way.name == name)
        bench.add(case, Measurement(name, kind, timing))
    case.bars = [Bar("fastest rival's host time over ours", case.ratio("eager"), 1.0)]


def tasks(bench: Benchmark) -> list[tuple[Result, Callable[[], None]]]:
    """The cases of this module, each with what fills it."""
    host = result("call of an elementwise kernel", "4096 float32 elements")
    return [
        (host, lambda: run_host(host, bench)),
        *(case.task(bench) for case in cases(bench.options.scale)),
    ]
