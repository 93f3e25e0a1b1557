"""ReLU, forward and backward, as one CUDA string.

The string is compiled to PTX here, at run time; the driver makes code of the PTX for whatever GPU
there is. An autograd.Function launches the two kernels on torch's tensors and torch's stream.

    python examples/jit/relu_from_ptx.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_ops.jit import RawModule

CODE = """
// A grid-stride loop: any grid does any n.
#define FOR_EACH(i, n)                                                                   \\
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;            \\
       i += (long long)gridDim.x * blockDim.x)

__global__ void relu_forward(const float* x, float* y, long long n) {
  FOR_EACH(i, n) y[i] = x[i] <= 0 ? 0 : x[i];  // so that NaN stays NaN
}

__global__ void relu_backward(const float* grad_y, const float* y, float* grad_x, long long n) {
  FOR_EACH(i, n) grad_x[i] = y[i] <= 0 ? 0 : grad_y[i];
}
"""

PTX = RawModule(CODE).ptx
MODULE = RawModule.from_ptx(PTX)
FORWARD = MODULE.get_function("relu_forward")
BACKWARD = MODULE.get_function("relu_backward")


def launch_shape(n: int) -> tuple[int, int]:
    """Blocks and threads: enough for n, and no more than some blocks a multiprocessor."""
    return min(-(-n // 256), 4096), 256


class ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        FORWARD(*launch_shape(x.numel()), (x, y, x.numel()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        grad_x = torch.empty_like(y)
        n = y.numel()
        BACKWARD(*launch_shape(n), (grad_y.contiguous(), y, grad_x, n))
        return grad_x


def main() -> None:
    kernels = [line.strip(" (") for line in PTX.splitlines() if ".entry" in line]
    print(f"{len(PTX.splitlines())} lines of PTX, with the kernels:", *kernels, sep="\n  ")
    if not torch.cuda.is_available():
        print("There is no GPU to launch them on.")
        return

    x = torch.randn(1000, 777, device="cuda")
    x[0, 0] = torch.nan
    weights = torch.randn_like(x)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = ReLU.apply(ours), torch.relu(theirs)
    (y * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)
    print("forward and backward equal torch.relu's to the last bit")


if __name__ == "__main__":
    main()
