"""Derivatives at single points, where they could be chosen: those of torch 2.11."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_ops.jit import ElementwiseKernel

FUNCTIONS = {
    "fabs": torch.abs,
    "atan2": torch.atan2,
    "copysign": lambda x, y: torch.copysign(x, y.detach()),
    # Of equal arguments the first; torch 2.15 divides the gradient of its own among them.
    "fmin": lambda x, y: torch.where(x <= y, x, y),
    "fmax": lambda x, y: torch.where(x >= y, x, y),
    "min": torch.minimum,
    "max": torch.maximum,
}


def gradients(function, *values: Tensor) -> tuple[Tensor, ...]:
    leaves = tuple(value.clone().requires_grad_() for value in values)
    return torch.autograd.grad(function(*leaves).sum(), leaves, materialize_grads=True)


def kernel_of(names: list[str]) -> ElementwiseKernel:
    calls = "; ".join(f"z_{name} = {name}(x{', y' * (name != 'fabs')})" for name in names)
    return ElementwiseKernel("T x, T y", ", ".join(f"T z_{name}" for name in names), calls, "kinks")


def test_kinks(device: torch.device) -> None:
    nan = float("nan")
    points = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, nan], device=device)
    x, y = (grid.reshape(-1) for grid in torch.meshgrid(points, points, indexing="ij"))
    known = ~(x.isnan() | y.isnan())
    # Apart from the others, whose NaN times a gradient of 0 is NaN.
    of_numbers = [name for name in FUNCTIONS if "min" in name or "max" in name]
    for names in (of_numbers, [name for name in FUNCTIONS if name not in of_numbers]):
        kernel = kernel_of(names)
        for number, name in enumerate(names):
            mine = gradients(lambda x, y, n=number, kernel=kernel: kernel(x, y)[n], x, y)
            theirs = gradients(FUNCTIONS[name], *((x,) if name == "fabs" else (x, y)))
            for one, other in zip(mine, theirs, strict=False):
                torch.testing.assert_close(one[known], other[known], msg=lambda m, n=name: n + m)
            if names == of_numbers:  # of a number and a NaN both value and derivative
                for one, value, other in zip(mine, (x, y), (y, x), strict=True):
                    assert (one[other.isnan() & ~value.isnan()] == 1).all(), name


def test_cube_root_of_zero(device: torch.device) -> None:
    root = ElementwiseKernel("T x", "T y", "y = cbrt(x)", "root")
    x = torch.tensor([0.0, -0.0, 8.0, -27.0], device=device)
    expected = torch.tensor([float("inf"), float("inf"), 1 / 12, 1 / 27], device=device)
    torch.testing.assert_close(gradients(root, x)[0], expected)
