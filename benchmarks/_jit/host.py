"""What kernels compiled at run time cost the host: a launch, a compilation, a load from disk."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._measure import Bar, Benchmark, Measurement, Result
from benchmarks._measure.figures import Kind
from benchmarks._measure.timing import Timing
from torch_ops.jit import RawKernel

N = 4096
BLOCK = 256

CODE = """
extern "C" __global__ void leaky_relu(const float* x, float* y, float slope, long long n) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
       i += (long long)gridDim.x * blockDim.x)
    y[i] = x[i] > 0 ? x[i] : slope * x[i];
}
"""


def result(group: str, name: str) -> Result:
    """A case of the host's time: it moves no bytes that count."""
    return Result(group, f"{group}, {name}", group, name, (group,), {}, bytes=0)


# ---- a launch -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way to launch the kernel on x and y."""

    name: str
    kind: Kind
    launch: Callable[[], Any]


def time_launches(ways: list[Way], batches: int = 15, calls: int = 400) -> dict[str, Timing]:
    """Seconds a call, of the host alone: the ways take turns, so that all see the same machine."""
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(batches):
        for way in ways:
            way.launch()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                way.launch()
            seconds[way.name].append((time.perf_counter() - start) / calls)
            torch.cuda.synchronize()
    return {name: Timing.of(times) for name, times in seconds.items()}


def launch_ways(x: Tensor, y: Tensor) -> list[Way]:
    grid, block = (N // BLOCK,), (BLOCK,)
    ours = RawKernel(CODE, "leaky_relu")
    args = (x, y, 0.1, N)
    numpy_args = (x, y, np.float32(0.1), np.int64(N))
    ways = [
        Way("torch_ops RawKernel", "ours", lambda: ours(grid, block, args)),
        Way("torch_ops, NumPy scalars", "own", lambda: ours(grid, block, numpy_args)),
        Way("torch.cuda._compile_kernel", "eager", _of_torch(x, y, grid, block)),
    ]
    if importlib.util.find_spec("cupy"):
        import cupy

        theirs = cupy.RawKernel(CODE, "leaky_relu")
        cupy_args = (cupy.from_dlpack(x), cupy.from_dlpack(y), np.float32(0.1), np.int64(N))
        slope, count = np.float32(0.1), np.int64(N)

        def with_views() -> None:
            theirs(grid, block, (cupy.from_dlpack(x), cupy.from_dlpack(y), slope, count))

        ways += [
            Way("CuPy RawKernel", "eager", lambda: theirs(grid, block, cupy_args)),
            Way("CuPy RawKernel on torch tensors", "eager", with_views),
        ]
    return ways


def _of_torch(
    x: Tensor, y: Tensor, grid: tuple[int, ...], block: tuple[int, ...]
) -> Callable[[], Any]:
    # It hands over a Python float as a double.
    code = CODE.replace("float slope", "double slope")
    kernel = torch.cuda._compile_kernel(code, "leaky_relu")
    grid3, block3 = (*grid, 1, 1), (*block, 1, 1)
    return lambda: kernel(grid=grid3, block=block3, args=(x, y, 0.1, N))


def run_launch(case: Result, bench: Benchmark) -> None:
    x = torch.randn(N, device="cuda")
    y = torch.empty_like(x)
    expected = torch.nn.functional.leaky_relu(x, 0.1)
    ways = []
    for way in launch_ways(x, y):
        try:
            y.fill_(torch.nan)
            torch.cuda.synchronize()
            way.launch()
            torch.cuda.synchronize()
            torch.testing.assert_close(y, expected, rtol=1e-6, atol=0)
            ways.append(way)
        except Exception as error:
            failed = Measurement(way.name, way.kind, note=f"{type(error).__name__}: {error}"[:200])
            failed.failed = True
            bench.add(case, failed)
    for name, timing in time_launches(ways).items():
        kind = next(way.kind for way in ways if way.name == name)
        bench.add(case, Measurement(name, kind, timing))
    ours, cupy = case.seconds("ours"), case.find("CuPy RawKernel")
    if cupy:
        ratio = ours / cupy.timing.median if ours and cupy.timing else None
        case.bars = [Bar("host time over CuPy's", ratio, 1.2, "<=")]


# ---- a new process ------------------------------------------------------------------------------

# Each program prints seconds by name. The context is made, and torch imported, before time counts.
BEGIN = f"""
import json, sys, time
import torch
import torch_ops
CODE = {CODE!r}
x = torch.ones({N}, device="cuda")
y = torch.empty_like(x)
torch.cuda.synchronize()
now = time.perf_counter
start = now()
"""
END = """
torch.cuda.synchronize()
end = now()
print(json.dumps({"whole": end - start, "after imports": end - imported}))
"""
OURS = f"""
from torch_ops.jit import RawKernel, cache_info
if "cold" in sys.argv: import cuda.core
imported = now()
RawKernel(CODE, "leaky_relu")(16, 256, (x, y, 0.1, {N}))
{END}
assert cache_info().compiles == ("cold" in sys.argv)
assert ("cuda.core" in sys.modules) == ("cold" in sys.argv)
"""
CUPY = f"""
import cupy, numpy
view, out = cupy.from_dlpack(x), cupy.from_dlpack(y)
imported = now()
cupy.RawKernel(CODE, "leaky_relu")((16,), (256,), (view, out, numpy.float32(0.1), {N}))
{END}
"""


def run_program(program: str, folder: Path, state: str) -> dict[str, float]:
    environ = {
        **os.environ,
        "TORCH_OPS_CACHE_DIR": str(folder / "torch_ops"),
        "CUPY_CACHE_DIR": str(folder / "cupy"),
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    run = subprocess.run(
        [sys.executable, "-c", BEGIN + program, state],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise RuntimeError(run.stderr.strip().splitlines()[-1])
    seconds: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return seconds


def time_processes(program: str, state: str, repeats: int) -> dict[str, Timing]:
    """Of new processes with an empty cache ("cold"), or with one that has the kernel ("warm")."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = []
        run_program(program, folder / "first", "cold")  # writes bytecode, reads files
        for repeat in range(repeats):
            where = folder / ("first" if state == "warm" else str(repeat))
            found.append(run_program(program, where, state))
        return {part: Timing.of([each[part] for each in found]) for part in found[0]}


def run_processes(case: Result, bench: Benchmark, state: str, part: str) -> None:
    programs: list[tuple[str, Kind, str]] = [("torch_ops RawKernel", "ours", OURS)]
    if importlib.util.find_spec("cupy"):
        programs.append(("CuPy RawKernel", "eager", CUPY))
    repeats = 3 if bench.options.quick else 5
    for name, kind, program in programs:
        key = (name, state)
        if key not in _processes:
            _processes[key] = time_processes(program, state, repeats)
        bench.add(case, Measurement(name, kind, _processes[key][part]))
    ours = case.seconds("ours")
    if state == "warm":
        case.bars = [Bar("ms", ours * 1e3 if ours else None, 10.0, "<=")]
    elif case.find("CuPy RawKernel"):
        case.bars = [Bar("CuPy's time over ours", case.ratio("eager"), 1.0)]


_processes: dict[tuple[str, str], dict[str, Timing]] = {}


def tasks(bench: Benchmark) -> list[tuple[Result, Callable[[], None]]]:
    """The cases of this module, each with what fills it."""
    launch = result("launch", f"{N} float32 elements")
    first = result("first compilation", "with the import of the compiler's package")
    later = result("first compilation", "after imports")
    load = result("from disk in a new process", "with imports")
    return [
        (launch, lambda: run_launch(launch, bench)),
        (first, lambda: run_processes(first, bench, "cold", "whole")),
        (later, lambda: run_processes(later, bench, "cold", "after imports")),
        (load, lambda: run_processes(load, bench, "warm", "whole")),
    ]
