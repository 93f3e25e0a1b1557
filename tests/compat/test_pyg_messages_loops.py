"""torch_ops.compat.pyg: edges to which layers add loops."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from programs import ROOT, run_with_torch
from torch._dynamo.testing import CompileCounter

from torch_ops.compat import pyg

pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")

import torch_geometric
from pyg_message_layers import EDGES, NODES, edges_on, messages
from torch_geometric.nn import ClusterGCNConv, GATConv, GATv2Conv, GCNConv

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


LOOPS = {
    "GCN": lambda: GCNConv(8, 4),
    "GAT": lambda: GATConv(8, 4, heads=2),
    "GATv2": lambda: GATv2Conv(8, 4, heads=2),
    "ClusterGCN": lambda: ClusterGCNConv(8, 4),
}


@pytest.mark.parametrize("name", LOOPS)
def test_edges_with_loops_are_kept(
    name: str, monkeypatch: pytest.MonkeyPatch, kernels: list[Any], device: torch.device
) -> None:
    """Layers that add loops make other edges of the same each time; one of them gets a plan."""
    monkeypatch.setattr(messages, "SIGHTS", 2)
    torch.manual_seed(0)
    layer, edges = LOOPS[name]().to(device), edges_on(device)
    x = torch.randn(NODES, 8, device=device)
    wanted = layer(x, edges)
    with pyg.enable():
        for _ in range(8):
            torch.testing.assert_close(layer(x, edges), wanted)
        assert ("sum", True, True) in kernels
        edges[1] = edges[1].flip(0)  # other edges in the same memory
        actual = layer(x, edges)
    torch.testing.assert_close(actual, layer(x, edges))
    assert not torch.allclose(actual, wanted)


@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_edges_with_loops_are_not_kept_in_compiled_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled as often for new edges as without the line, in one graph."""
    monkeypatch.setattr(messages, "SIGHTS", 2)
    x, graphs = torch.randn(NODES, 8), [edges_on(torch.device("cpu")) for _ in range(4)]
    layer, counts = LOOPS[name](), []
    wanted = layer(x, graphs[0])
    for enabled in (False, True):
        torch._dynamo.reset()
        if enabled:
            pyg.enable()
            for _ in range(3):
                layer(x, graphs[0])
        counter = CompileCounter()
        compiled = torch.compile(layer, fullgraph=True, backend=counter)
        for edges in graphs:
            torch.testing.assert_close(compiled(x, edges), wanted)
        counts.append(counter.frame_count)
    assert counts[1] == counts[0]


def test_kept_edges_that_somebody_wrote_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SIGHTS", 1)
    gcn = importlib.import_module("torch_geometric.nn.conv.gcn_conv")
    edges = edges_on(torch.device("cpu"))
    wanted, _ = gcn.add_remaining_self_loops(edges, None, 1.0, NODES)
    with pyg.enable():
        first, none = gcn.add_remaining_self_loops(edges, None, 1.0, NODES)
        again, _ = gcn.add_remaining_self_loops(edges, None, 1.0, NODES)
        assert first is again and none is None
        assert torch.equal(first, wanted)
        assert gcn.add_remaining_self_loops(edges, None, 1.0, NODES + 1)[0] is not first
        first.zero_()
        assert torch.equal(gcn.add_remaining_self_loops(edges, None, 1.0, NODES)[0], wanted)
        weighted = gcn.add_remaining_self_loops(edges, torch.ones(EDGES), 1.0, NODES)
        assert torch.equal(weighted[0], wanted) and weighted[1] is not None
        own = torch_geometric.utils.add_remaining_self_loops  # which may be written to
        assert own(edges)[0] is not own(edges)[0]
    assert gcn.add_remaining_self_loops(edges, None, 1.0, NODES)[0] is not first


def test_scripts_with_our_edges_and_with_theirs() -> None:
    """Both in one process, in either order: torch.jit.script keeps overloads by name."""
    orders = (
        "enable feast cheb disable feast",
        "cheb enable feast disable feast",
        "enable cheb feast",
    )
    code = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import torch
from torch_geometric.nn import ChebConv, FeaStConv
from torch_ops.compat import pyg
layers = {"feast": FeaStConv(4, 4), "cheb": ChebConv(4, 4, 2)}  # ours once enabled; theirs
x, edges = torch.randn(3, 4), torch.tensor([[0, 1, 2], [1, 2, 0]])
for order in sys.argv[1:]:
    child = os.fork()  # to import once what takes seconds
    if child:
        assert os.waitpid(child, 0)[1] == 0, order
        continue
    for step in order.split():
        if step in layers:
            layer = layers[step]
            torch.testing.assert_close(torch.jit.script(layer)(x, edges), layer(x, edges))
        else:
            getattr(pyg, step)()
    break
"""
    result = run_with_torch("-c", code, *orders, cwd=ROOT)
    assert result.returncode == 0, result.stdout
