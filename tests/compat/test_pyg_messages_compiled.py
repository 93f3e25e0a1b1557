"""torch_ops.compat.pyg: sums of features times factors under torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ops.compat import pyg

pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")

from pyg_message_layers import CASES, EDGES, NODES, edges_on, messages
from torch_geometric.nn import SAGEConv
from torch_geometric.nn.models.schnet import CFConv

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def compiled_as_eager(name: str, device: torch.device) -> None:
    torch.manual_seed(0)
    make, _, shape = CASES[name]
    layer, edges = make().double().to(device), edges_on(device)
    x = torch.randn(NODES, 8, dtype=torch.float64, device=device, requires_grad=True)
    w = (
        [torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)]
        if shape
        else []
    )

    def outputs(call: Any) -> list[Tensor]:
        output = call(x, edges, *w)
        inputs = [x, *w, *layer.parameters()]
        return [output, *torch.autograd.grad(output.square().sum(), inputs)]

    wanted = outputs(layer)
    torch._dynamo.reset()
    with pyg.enable():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            for ours, theirs in zip(outputs(compiled), wanted, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [
        *("weighted", "features"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mean", "weighted mean")),
    ],
)
def test_compiled(
    name: str, way: str, kernels: list[tuple[str, bool, bool]], device: torch.device
) -> None:
    compiled_as_eager(name, device)
    _, reduce, shape = CASES[name]
    # The first backward pass is the second sight of the edges.
    has_plan = [way == "plan", way == "plan" or device.type == "cuda"]
    assert kernels == [(reduce, bool(shape), has) for has in has_plan]


@pytest.mark.parametrize("name", ["mean", "weighted mean", "features"])
def test_compiled_code_gathers_and_sums_small_messages(
    name: str, kernels: list[Any], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(messages, "_LEAST_ROW", 0)
    compiled_as_eager(name, device)
    assert not kernels


def test_short_rows_are_not_fused_in_compiled_code(kernels: list[Any]) -> None:
    torch._dynamo.reset()
    layer, edges, x = SAGEConv(8, 4), edges_on(torch.device("cpu")), torch.randn(NODES, 8)
    with pyg.enable():
        output = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, edges)
    assert not kernels
    torch.testing.assert_close(output, layer(x, edges))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # Inductor, of the matrix products
def test_inductor(way: str, kernels: list[Any], device: torch.device) -> None:
    """Graphs of several sizes by one compiled function, and the filters of SchNet."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = CFConv(16, 16, 16, nn.Linear(4, 16), 3.0).to(device)
    with pyg.enable():
        compiled = torch.compile(layer, fullgraph=True, dynamic=True)
        for count in (EDGES, 30, 20):
            edges, x = edges_on(device)[:, :count], torch.randn(NODES, 16, device=device)
            distances, basis = torch.rand(count, device=device), torch.rand(count, 4, device=device)
            x.requires_grad_()
            both = []
            for call in (compiled, layer):
                output = call(x, edges, distances, basis)
                inputs = [x, *layer.parameters()]
                both.append([output, *torch.autograd.grad(output.square().sum(), inputs)])
            torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)
    assert ("sum", True, way == "plan") in kernels
