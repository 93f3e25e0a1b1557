"""A loop that is unrolled by a factor picked at run time, timed over factors and plotted.

The factor is baked into the source (constants={"UNROLL": ...}), so the compiler knows it: all loads
of a thread are issued before the first of them has come.

    python examples/jit/unroll_factors.py --out unroll_factors.png
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from torch_ops.jit import RawKernel

CODE = """
__global__ void scale(const T* x, T* y, float factor, long long n) {
  // A block has UNROLL * blockDim.x neighbouring elements, a thread every blockDim.x-th of them.
  const long long first = blockIdx.x * (long long)(UNROLL * blockDim.x) + threadIdx.x;
  T values[UNROLL];
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    const long long i = first + k * blockDim.x;
    if (i < n) values[k] = x[i];
  }
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    const long long i = first + k * blockDim.x;
    if (i < n) y[i] = factor * values[k];
  }
}
"""

FACTORS = (1, 2, 4, 8, 16)
BLOCK = 256


def make_scale(unroll: int) -> RawKernel:
    return RawKernel(CODE, "scale", constants={"UNROLL": unroll, "T": torch.float32})


def scale(kernel: RawKernel, unroll: int, x: Tensor, factor: float) -> Tensor:
    y = torch.empty_like(x)
    n = x.numel()
    kernel(-(-n // (unroll * BLOCK)), BLOCK, (x, y, factor, n))
    return y


def loads(kernel: RawKernel) -> int:
    """How many loads from memory the compiled kernel has: as many as the loop was unrolled."""
    return kernel.module.ptx.count("ld.global")


def milliseconds(kernel: RawKernel, unroll: int, x: Tensor, repeats: int = 20) -> float:
    """The median over repeats, by CUDA events."""
    times = []
    for _ in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        scale(kernel, unroll, x, 2.0)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times[3:])[repeats // 2]


def plot(rates: dict[int, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3), layout="constrained")
    axes.bar([str(factor) for factor in rates], list(rates.values()))
    axes.set(xlabel="unroll factor", ylabel="GB/s, read and written", title="y = factor * x")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("unroll_factors.png"), help="the plot")
    parser.add_argument("--elements", type=int, default=2**26)
    options = parser.parse_args()

    kernels = {factor: make_scale(factor) for factor in FACTORS}
    for factor, kernel in kernels.items():
        print(f"unrolled by {factor:2}: {loads(kernel):2} loads a thread")
    if not torch.cuda.is_available():
        print("There is no GPU to time them on.")
        return

    x = torch.randn(options.elements, device="cuda")
    rates = {}
    for factor, kernel in kernels.items():
        torch.testing.assert_close(scale(kernel, factor, x, 2.0), 2 * x, rtol=0, atol=0)
        rates[factor] = 2 * x.nbytes / milliseconds(kernel, factor, x) / 1e6
        print(f"unrolled by {factor:2}: {rates[factor]:5.0f} GB/s, {kernel.num_regs} registers")
    if importlib.util.find_spec("matplotlib") is None:
        print("No plot: matplotlib is not installed.")
        return
    plot(rates, options.out)
    print(f"plotted to {options.out}")


if __name__ == "__main__":
    main()
