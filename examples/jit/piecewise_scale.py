"""A piecewise scaling, once as a RawKernel for float32, once as a template in a RawModule.

y is below * x where x < 0, and above * x elsewhere.

    python examples/jit/piecewise_scale.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_ops.jit import RawKernel, RawModule

# One kernel, one type. The name is enough: extern "C" is not needed.
PIECEWISE = RawKernel(
    """
__global__ void piecewise(const float* x, float* y, float below, float above, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = (x[i] < 0 ? below : above) * x[i];
}
""",
    "piecewise",
)

# A template: its instances are named beforehand, and each becomes a kernel.
INSTANCES = {
    torch.float32: "piecewise<float, 4>",
    torch.float16: "piecewise<__half, 8>",
    torch.bfloat16: "piecewise<__nv_bfloat16, 8>",
}
MODULE = RawModule(
    """
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// VALUES elements per thread, one after the other: 16 bytes.
template <class T, int VALUES>
__global__ void piecewise(const T* x, T* y, float below, float above, long long n) {
  const long long first = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * VALUES;
#pragma unroll
  for (int k = 0; k < VALUES; ++k) {
    if (first + k >= n) return;
    const float value = x[first + k];
    y[first + k] = T((value < 0 ? below : above) * value);
  }
}
""",
    name_expressions=tuple(INSTANCES.values()),
)


def piecewise(x: Tensor, below: float, above: float) -> Tensor:
    """The RawKernel, for float32."""
    x = x.contiguous()
    y, n = torch.empty_like(x), x.numel()
    block = PIECEWISE.suggest_block()
    PIECEWISE(-(-n // block), block, (x, y, below, above, n))
    return y


def piecewise_of_any(x: Tensor, below: float, above: float) -> Tensor:
    """The instance of the template for the dtype."""
    instance = INSTANCES[x.dtype]
    kernel = MODULE.get_function(instance)
    x = x.contiguous()
    y, n = torch.empty_like(x), x.numel()
    threads = -(-n // int(instance.rpartition(", ")[2].rstrip(">")))
    kernel(-(-threads // 256), 256, (x, y, below, above, n))
    return y


def main() -> None:
    for instance in INSTANCES.values():
        print("compiled:", MODULE.get_function(instance))
    if not torch.cuda.is_available():
        print("There is no GPU to launch them on.")
        return

    for dtype in INSTANCES:
        x = torch.randn(123_457, device="cuda", dtype=dtype)
        expected = (torch.where(x < 0, 0.25, 3.0) * x.double()).to(dtype)
        # One rounding of the product to float32, and one to the dtype.
        exact = {"rtol": 2 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps), "atol": 0}
        torch.testing.assert_close(piecewise_of_any(x, 0.25, 3.0), expected, **exact)
        print(f"the template's instance for {dtype} agrees with torch.where")
        if dtype == torch.float32:
            torch.testing.assert_close(piecewise(x, 0.25, 3.0), expected, **exact)
            print("the RawKernel agrees with torch.where")

    # What does not fit is refused before anything is launched.
    try:
        piecewise(x.double(), 0.25, 3.0)
    except TypeError as error:
        print(error)


if __name__ == "__main__":
    main()
