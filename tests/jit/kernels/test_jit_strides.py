"""ElementwiseKernel on operands that are not contiguous, and outputs that are not."""

from __future__ import annotations

import pytest
import torch

from torch_ops.jit import ElementwiseKernel


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64, torch.complex128])
def test_operands_that_lie_otherwise(dtype: torch.dtype, device: torch.device) -> None:
    """Broadcast, transposed or with gaps; with rows of some elements, and of many."""
    kernel = ElementwiseKernel("T x, T y", "T z, int64 at", "z = x * y; at = i", "otherwise")
    parts = ElementwiseKernel("T x", "T z", "if (i % 2) z = x", "odd")
    for width in (1, 2, 3, 17, 40, 100, 300):
        x = torch.randint(1, 9, (37, width), device=device).to(dtype)
        many = torch.randint(1, 9, (3, 37, 2 * width), device=device).to(dtype)
        others = (x[:, :1], x[:1], x.T.contiguous().T, many[0, :, ::2], many[:, :, :width], x[0, 0])
        for y in others:
            z, at = kernel(x, y)
            expected = x * y
            assert torch.equal(z, expected)
            assert torch.equal(at.flatten(), torch.arange(at.numel(), device=device))
            out = torch.zeros(*expected.shape, 2, dtype=dtype, device=device)[..., 0]
            indices = torch.zeros_like(at.transpose(0, -1).contiguous()).transpose(0, -1)
            kernel(x, y, out=(out, indices))
            assert torch.equal(out, expected) and torch.equal(indices, at)
        kept = many[1, :, ::2]
        expected = torch.where((at if at.dim() == 2 else at[0]) % 2 == 1, x, kept)
        parts(x, out=kept)
        assert torch.equal(kept, expected)
