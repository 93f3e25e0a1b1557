"""What each op's module does in its ``self_check``, which ``python -m torch_ops`` calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def compared(
    call: str, output: Tensor, expected: list[Any], input: Tensor, gradient: list[Any]
) -> str:
    """The call and its output as text. ``gradient``: of the output's sum, by ``input``.

    Raises:
        AssertionError: The output or the gradient is another.
    """
    output.sum().backward()
    grad = None if input.grad is None else input.grad.tolist()
    if output.tolist() != expected or grad != gradient:
        raise AssertionError(f"{call} gave {output.tolist()}, its gradient {grad}")
    return f"{call} = {expected}"


def self_check_of(
    function: Callable[[Tensor], Tensor],
    inputs: list[float],
    outputs: list[float],
    gradients: list[float],
) -> Callable[[torch.device], str]:
    """The ``self_check`` of an elementwise op's module."""

    def self_check(device: torch.device) -> str:
        x = torch.tensor(inputs, dtype=torch.float32, device=device, requires_grad=True)
        call = f"{function.__name__}({inputs})"
        return f"{compared(call, function(x), outputs, x, gradients)}, gradient {gradients}"

    return self_check
