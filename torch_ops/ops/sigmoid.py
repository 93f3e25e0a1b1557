"""Sigmoid: 1 / (1 + exp(-x)), elementwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torch_ops.ops._elementwise import directly, forms, self_check_of

_ops = torch.ops.torch_ops


@directly("sigmoid")
def sigmoid(input: Tensor) -> Tensor:
    """Returns ``1 / (1 + exp(-input))``, elementwise.

    16-bit inputs are computed in float32 and rounded once. Small results are kept down to the
    dtype's least denormal number.

    Args:
        input: A tensor of any shape and strides, also a jagged nested one, on the CPU or a CUDA
            device; float16, bfloat16, float32 or float64. Integers, complex numbers, and sparse,
            quantized and other tensors that are not dense are computed by torch.

    Returns:
        A tensor of the input's shape, dtype, device and memory format; of torch's default dtype
        for integers.

    Gradient:
        ``grad_output * y * (1 - y)`` for the output ``y``, which is saved. Differentiable any
        number of times; forward mode too.

    Deterministic, on every device.

    Raises:
        TypeError: ``input`` is not a tensor.
        NotImplementedError: ``input`` has another dtype (such as an 8-bit float), as in torch.

    Example:
        >>> import torch, torch_ops
        >>> torch_ops.sigmoid(torch.tensor([0.0, 100.0]))
        tensor([0.5000, 1.0000])
    """
    return _ops.sigmoid.default(input)


sigmoid_, SigmoidFunction, _Sigmoid = forms(sigmoid, saves="output", base=nn.Sigmoid)
if TYPE_CHECKING:

    class Sigmoid(nn.Sigmoid):
        """For type checkers, to which a class that a function returns is no type."""
else:
    Sigmoid = _Sigmoid
self_check = self_check_of(sigmoid, [0.0], [0.5], [0.25])

# For torch_ops.decompositions.
DECOMPOSITIONS = {
    _ops.sigmoid.default: torch.ops.aten.sigmoid.default,
    _ops.sigmoid_backward.default: torch.ops.aten.sigmoid_backward.default,
}
