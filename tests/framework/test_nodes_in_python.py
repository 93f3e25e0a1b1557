"""The nodes of the autograd graph as Python sees them, and what torch takes them for by that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torch_ops

INDEX = torch.tensor([2, 0, 2])
ROWS = torch.arange(3.0) - 1

IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_": torch_ops.relu_,
    "leaky_relu_": lambda x: torch_ops.leaky_relu_(x, 0.1),
    "sigmoid_": torch_ops.sigmoid_,
    "scatter_add_": lambda x: torch_ops.scatter_add_(x, ROWS.to(x.device), INDEX.to(x.device), 0),
    "scatter_": lambda x: torch_ops.scatter_(
        x, ROWS.to(x.device), INDEX.to(x.device), 0, reduce="amax"
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_they_have_their_names(name: str, device: torch.device) -> None:
    node = IN_PLACE[name](torch.randn(4, device=device, requires_grad=True) * 1).grad_fn
    assert node is not None
    assert type(node).__name__ == node.name().removeprefix("torch::autograd::")
    assert type(node).__name__ != "CppFunction"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_compiled_call_in_place_returns_its_argument(
    name: str, backend: str, device: torch.device
) -> None:
    """AOTAutograd would take a node without a type for that of a custom function's view."""
    torch.compiler.reset()
    leaf = torch.linspace(-1, 1, 4, device=device, requires_grad=True)
    written = leaf * 1
    function = torch.compile(IN_PLACE[name], fullgraph=True, backend=backend)
    assert function(written) is written
    expected = IN_PLACE[name](leaf * 1)
    torch.testing.assert_close(written, expected)
    (grad,) = torch.autograd.grad((written**2).sum(), leaf)
    torch.testing.assert_close(grad, torch.autograd.grad((expected**2).sum(), leaf)[0])
