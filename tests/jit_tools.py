"""What the tests of torch_ops.jit share."""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import ROOT, run_with_torch
from torch import Tensor

from torch_ops.jit import ElementwiseKernel
from torch_ops.jit.building import cache

HAS_CUDA_CORE = bool(importlib.util.find_spec("cuda")) and all(
    importlib.util.find_spec(name) for name in ("cuda.core", "cuda.bindings")
)

needs_cuda_core = pytest.mark.skipif(
    not HAS_CUDA_CORE,
    reason='cuda-core is not installed, so NVRTC compiles nothing: pip install "cuda-core>=1.2,<2"',
)


def forget() -> None:
    """Empties the cache in memory, as in a new process."""
    cache._memory.entries.clear()


def run_python(code: str, **environ: str) -> str:
    """What a new process prints that runs this code; it must end well."""
    result = run_with_torch("-c", code, cwd=ROOT, **environ)
    assert result.returncode == 0, result.stdout
    return result.stdout


def _call(function: Callable[..., Any], args: tuple[Any, ...], ready: Any, results: Any) -> None:
    ready.wait()
    try:
        results.put((True, function(*args)))
    except BaseException as error:
        results.put((False, repr(error)))


def in_processes(method: str, count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What a function returns in processes that all call it at the same time."""
    context = multiprocessing.get_context(method)
    ready, results = context.Barrier(count), context.Queue()
    processes = [
        context.Process(target=_call, args=(function, args, ready, results)) for _ in range(count)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert all(well for well, _ in found), found
    return [result for _, result in found]


# ---- Kernels with derivatives, and values for them ----------------------------------------------

SMOOTH = ElementwiseKernel("T x, T y", "T z", "z = x * sin(y) + x * x * y", "smooth")
TWO = ElementwiseKernel("T x, T y", "T p, T s, int32 k", "p = x * y; s = exp(x); k = x > y", "two")
LEAKY = ElementwiseKernel("T x, T slope", "T y", "y = x > 0 ? x : slope * x", "leaky_relu")
# Their backward passes read outputs: in place of the input, or as well.
SOFTPLUS = ElementwiseKernel(
    "T x", "T y", "y = x > 20 ? x : log1p(exp(x))", "softplus",
    backward="grad_x = -grad_y * expm1(-y)",
)  # fmt: skip
SCALED = ElementwiseKernel(
    "T x, T s", "T y, int32 k", "k = x > 0; y = x * exp(x) * (k ? s : s * s)", "scaled",
    backward="grad_x = grad_y * (y + y / x); grad_s = grad_y * (k ? y / s : 2 * y / s)",
)  # fmt: skip


def random(shape: tuple[int, ...], device: torch.device, dtype=torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(7 + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)
