"""What each op's module does in its ``self_check``, which ``python -m torch_ops`` calls."""

from __future__ import annotations

from typing import Any

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
