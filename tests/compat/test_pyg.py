"""torch_ops.compat.pyg: PyTorch Geometric's results with it and without, and what it changes."""

from __future__ import annotations

import gc
import importlib
import itertools
import re
import sys
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from op_checks import assert_same
from programs import ROOT, run_with_torch
from torch import Tensor

import torch_ops
from torch_ops.compat import pyg

pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")

import torch_geometric
from pyg_layers import LAYERS, LEFT_OUT, names
from pyg_layers import run as run_layer
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATv2Conv, GCNConv, MessagePassing, SAGEConv
from torch_geometric.utils import (
    scatter,
    segment,
    softmax,
    to_torch_coo_tensor,
    to_torch_csr_tensor,
)

# torch.jit.script, which PyTorch Geometric calls when it is imported, is deprecated.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*:DeprecationWarning",
    "ignore:.*[Ss]parse:UserWarning",
    "ignore:The usage of `scatter:UserWarning",  # theirs, of CUDA without torch_scatter
)

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
OURS = "torch_ops.compat._pyg"
THEIRS = scatter.__module__


def small(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Of numbers whose sums and products are exact."""
    return torch.randint(1, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def both(call: Any) -> tuple[Any, Any]:
    """What it gives with our ops, and without."""
    wanted = call()
    with pyg.enable():
        return call(), wanted


# ---- functions ----------------------------------------------------------------------------------


SHAPES = [((6,), 0), ((6, 3), 0), ((6, 3), -2), ((2, 6), 1), ((2, 6, 3), 1), ((0, 3), 0)]


def scattered(reduce: str, device: torch.device) -> Iterator[Tensor | None]:
    """Results, or None where a dtype is refused, as a GPU refuses some."""
    for dtype, (shape, dim), size in itertools.product(DTYPES, SHAPES, (None, 6)):
        index = torch.tensor([0, 4, 0, 1, 4, 0], device=device)[: shape[dim]]
        src = small(shape, dtype).to(device)
        if reduce == "any":  # which of several values is written is not said
            src = torch.ones_like(src)
        try:
            yield torch_geometric.utils.scatter(src, index, dim, size, reduce)
        except NotImplementedError:
            yield None


@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "mul", "min", "max", "any"])
def test_scatter(reduce: str, device: torch.device) -> None:
    """Values and dtypes: a mean of integers is of floats, a sum of bools is bool."""
    results, expected = both(lambda: list(scattered(reduce, device)))
    assert sum(wanted is not None for wanted in expected) >= len(expected) // 2
    for actual, wanted in zip(results, expected, strict=True):
        if wanted is None:  # ours may take more
            continue
        assert actual is not None and actual.dtype == wanted.dtype
        if reduce == "mean":  # 16 bits are rounded once, not three times
            half = wanted.dtype.itemsize == 2
            torch.testing.assert_close(actual, wanted, rtol=2**-7 if half else 2e-7, atol=0)
        else:
            assert_same(actual, wanted, f"{actual.dtype} {actual.shape}")


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_softmax(dtype: torch.dtype, device: torch.device) -> None:
    src = small((6, 3), dtype).to(device)
    index, ptr = torch.tensor([[0, 0, 2, 2, 2, 3], [0, 2, 2, 5, 6, 6]], device=device)[:, :6]
    half = dtype.is_floating_point and dtype.itemsize == 2

    def results() -> list[Tensor | None]:
        return [attempt(call) for call in calls]

    def attempt(call: Any) -> Tensor | None:
        try:
            return call()
        except NotImplementedError:  # their segments are of floats
            return None

    calls = (
        lambda: torch_geometric.utils.softmax(src, index),
        lambda: torch_geometric.utils.softmax(src, index, num_nodes=7),
        lambda: torch_geometric.utils.softmax(src, index[:3], dim=-1),
        lambda: torch_geometric.utils.softmax(src, index, ptr, 5),
        lambda: torch_geometric.utils.softmax(src.float(), ptr=ptr),
    )
    compared = 0
    for actual, wanted in zip(*both(results), strict=True):
        if wanted is None:
            continue
        assert actual is not None and actual.dtype == wanted.dtype
        torch.testing.assert_close(
            actual, wanted, rtol=2**-6 if half else 1e-6, atol=0, equal_nan=True
        )
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_segment(reduce: str, device: torch.device) -> None:
    ptr = torch.tensor([0, 2, 2, 5, 6], device=device)
    sources = [small((6, 3), dtype).to(device) for dtype in DTYPES[-2:]]
    wanted = [torch_geometric.utils.segment(src, ptr, reduce) for src in sources]
    with pyg.enable():
        actual = [torch_geometric.utils.segment(src, ptr, reduce) for src in sources]
        # Along another axis, for which they need torch_scatter.
        along = torch_geometric.utils.segment(sources[-1].t(), ptr[None], reduce)
    torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(along, wanted[-1].t(), rtol=1e-6, atol=0)


def test_segment_of_what_is_left_to_theirs() -> None:
    src, ptr = small((6, 3), torch.float64), torch.tensor([0, 2, 3, 6])

    def call(src: Tensor, ptr: Tensor, reduce: str) -> Tensor:
        return torch_geometric.utils.segment(src, ptr, reduce)

    wanted = {reduce: call(src, ptr, reduce) for reduce in ("prod", "amax", "amin", "sum")}
    with pyg.enable():
        scripted = torch.jit.script(call)
        for reduce, result in wanted.items():
            torch.testing.assert_close(call(src, ptr, reduce), result)
            torch.testing.assert_close(scripted(src, ptr, reduce), result)


def error_of(call: Any) -> tuple[type, str]:
    with pytest.raises(Exception, match=r".") as found:
        call()
    return found.type, str(found.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: torch_geometric.utils.scatter(x, i[:, None]),
        lambda x, i: torch_geometric.utils.scatter(x, i, dim=2),
        lambda x, i: torch_geometric.utils.scatter(x, i, reduce="median"),
        lambda x, i: torch_geometric.utils.softmax(x),
        lambda x, i: torch_geometric.utils.softmax(x, i[0]),
        lambda x, i: torch_geometric.utils.softmax(x, torch.stack([i, i, i])),
        lambda x, i: torch_geometric.utils.segment(x, i, "median"),
        lambda x, i: SAGEConv(3, 2)(x, torch.stack([i + 3, i])),
        lambda x, i: SAGEConv(3, 2)(x, torch.stack([i - 1, i])),
        lambda x, i: torch_geometric.nn.SumAggregation()(x, i, dim_size=1),
    ],
)
def test_errors_are_theirs(call: Any) -> None:
    x, index = torch.ones(3, 3), torch.tensor([0, 1, 2])
    wanted = error_of(lambda: call(x, index))
    with pyg.enable():
        assert error_of(lambda: call(x, index)) == wanted


# ---- what is replaced, and for how long ---------------------------------------------------------


def importing(name: str) -> types.ModuleType:
    """A module of a user, who imports the functions by name."""
    module = sys.modules[name] = types.ModuleType(name)
    exec("from torch_geometric.utils import scatter, softmax as soft, segment", vars(module))
    return module


def test_names_in_all_modules() -> None:
    before = importing("imported_before")
    modules = [
        before,
        torch_geometric.utils,
        importlib.import_module("torch_geometric.nn.aggr.base"),
    ]
    methods = {name: vars(MessagePassing)[name] for name in ("_lift", "_index_select")}
    pyg.enable()
    later = importing("imported_later")
    for module in (*modules, later):
        assert module.scatter.__module__ == module.segment.__module__ == OURS
    assert before.soft.__module__ == OURS
    assert importlib.import_module("torch_geometric.utils._softmax").scatter.__module__ == OURS
    assert scatter.__module__ == softmax.__module__ == segment.__module__ == OURS  # of this module
    assert all(vars(MessagePassing)[name] is not method for name, method in methods.items())
    pyg.disable()
    for module in (*modules, later):
        assert module.scatter.__module__ == THEIRS
    assert later.soft.__module__ == softmax.__module__ == "torch_geometric.utils._softmax"
    assert all(vars(MessagePassing)[name] is method for name, method in methods.items())
    del sys.modules["imported_before"], sys.modules["imported_later"]


def test_the_end_of_a_with() -> None:
    with pyg.enable():
        with pyg.enable():
            pass
        assert scatter.__module__ == OURS  # what the outer one began, the inner one does not end
    assert scatter.__module__ == THEIRS
    with pytest.raises(KeyError), pyg.enable():
        raise KeyError
    assert scatter.__module__ == THEIRS
    pyg.disable()  # once more does nothing
    pyg.enable()
    with pyg.enable():
        pass
    assert scatter.__module__ == OURS


def test_another_version_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_geometric, "__version__", "2.9.1")
    with (
        pytest.warns(
            UserWarning, match=r"made for PyTorch Geometric 2\.7 and 2\.8, but 2\.9\.1"
        ) as w,
        pyg.enable(),
    ):
        assert scatter.__module__ == THEIRS
    assert len(w) == 1 and w[0].filename == __file__
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pyg.enable()


def test_before_anything_of_theirs_is_imported() -> None:
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
import torch_ops
torch_ops.compat.pyg.enable()
from torch_geometric.utils import scatter
from torch_geometric.nn.models import schnet
print(scatter.__module__)
"""
    result = run_with_torch("-c", code, cwd=ROOT)
    assert result.returncode == 0, result.stdout
    assert result.stdout.splitlines()[-1] == OURS


def test_without_it() -> None:
    code = """
import sys
sys.modules["torch_geometric"] = None
import torch_ops
torch_ops.compat.pyg.enable()
"""
    result = run_with_torch("-c", code, cwd=ROOT)
    assert result.returncode == 1
    assert "ModuleNotFoundError: import of torch_geometric halted" in result.stdout


# ---- plans --------------------------------------------------------------------------------------


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The indices that plans are made of; on the CPU too, where the module makes none."""
    made: list[Tensor] = []
    make = torch_ops.ops.plan.gather_plan

    def recorded(index: Tensor, *args: Any, **kwargs: Any) -> Any:
        made.append(index)
        return make(index, *args, **kwargs)

    monkeypatch.setattr(torch_ops.ops.plan, "gather_plan", recorded)
    patch = importlib.import_module("torch_ops.compat._pyg")
    monkeypatch.setattr(patch, "_saves_a_sort", lambda index: True)
    return made


def test_a_graph_is_sorted_once(plans: list[Tensor], device: torch.device) -> None:
    layer = layers()["attention"].double().to(device)
    edges = some_edges().to(device)
    x = torch.randn(10, 8, dtype=torch.float64, device=device, requires_grad=True)
    wanted = layer(x, edges)
    (wanted_grad,) = torch.autograd.grad(wanted.square().sum(), x)
    pyg.enable()
    patch = importlib.import_module("torch_ops.compat._pyg")
    layer(x, edges)
    assert not plans  # each step may have a graph of its own
    for _ in range(patch._pyg_messages.SIGHTS):
        result = layer(x, edges)
        torch.testing.assert_close(result, wanted, rtol=1e-12, atol=1e-13)
        (grad,) = torch.autograd.grad(result.square().sum(), x)
        torch.testing.assert_close(grad, wanted_grad, rtol=1e-11, atol=1e-12)
    assert sorted(index.data_ptr() for index in plans) == [row.data_ptr() for row in edges]

    plans.clear()
    edges[:, 0] = torch.tensor([3, 4])  # another graph in the same memory
    after = layer(x, edges)
    pyg.disable()
    torch.testing.assert_close(after, layer(x, edges), rtol=1e-12, atol=1e-13)
    assert not torch.allclose(after, wanted)


def test_a_graph_is_not_kept_alive(plans: list[Tensor], device: torch.device) -> None:
    layer = layers()["max"].to(device)
    edges, x = some_edges().to(device), torch.randn(10, 8, device=device)
    kept = weakref.ref(edges)
    with pyg.enable():
        for _ in range(importlib.import_module("torch_ops.compat._pyg_messages").SIGHTS):
            layer(x, edges)
    assert plans
    plans.clear()
    del edges
    gc.collect()
    assert kept() is None


def test_no_plan_is_made_on_a_cpu_or_in_a_graph() -> None:
    patch = importlib.import_module("torch_ops.compat._pyg")
    index = torch.tensor([0, 1, 1])
    for _ in range(3):
        assert patch._planned(index, 2, 0) is index


# ---- layers -------------------------------------------------------------------------------------


def some_edges() -> Tensor:
    pairs = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:40]
    return torch.stack([pairs // 10, pairs % 10])


def layers() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    return {
        "mean": SAGEConv(8, 4),
        "max": SAGEConv(8, 4, aggr="max"),
        "attention": GATv2Conv(8, 4, heads=2, add_self_loops=False),
        "back": SAGEConv(8, 4, flow="target_to_source"),
        "several": SAGEConv(8, 4, aggr=["std", "softmax"]),
    }


@pytest.mark.parametrize("name", layers())
def test_forms_of_edges(name: str, device: torch.device) -> None:
    """Sparse tensors and EdgeIndex give what an index of edges does, gradients too."""
    layer = layers()[name].double().to(device)
    edges = some_edges()
    edges = edges[:, edges[1].argsort(stable=True)].to(device)
    forms: list[Any] = [edges, EdgeIndex(edges, sparse_size=(10, 10), sort_order="col")]
    # They say of "back" that a sparse tensor must be transposed for it, and have no maxima on CUDA.
    if name != "back" and not (name == "max" and device.type == "cuda"):
        makes = (to_torch_coo_tensor, to_torch_csr_tensor)
        forms += [make(edges.flip(0), size=(10, 10)).double() for make in makes]
    x = torch.randn(10, 8, dtype=torch.float64, device=device, requires_grad=True)
    wanted = layer(x, edges)
    (wanted_grad,) = torch.autograd.grad(wanted.square().sum(), x)
    with pyg.enable():
        for form in forms:
            actual = layer(x, form)
            (grad,) = torch.autograd.grad(actual.square().sum(), x)
            torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(grad, wanted_grad, rtol=1e-11, atol=1e-12)


class Lifted(MessagePassing):
    """A layer that always carries features to the edges."""

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_i * x_j


def test_lifting_by_sparse_tensors(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = some_edges().to(device)
    x = torch.randn(10, 8, dtype=torch.float64, device=device)
    layer = Lifted()
    wanted = layer(x, edges)
    called: list[Any] = []
    patch = importlib.import_module("torch_ops.compat._pyg")
    gathered = patch._gathered
    monkeypatch.setattr(patch, "_gathered", lambda *args: (called.append(args), gathered(*args))[1])
    with pyg.enable():
        for form in (
            edges,
            EdgeIndex(edges, sparse_size=(10, 10)),
            to_torch_coo_tensor(edges.flip(0), size=(10, 10)),
            to_torch_csr_tensor(edges.flip(0), size=(10, 10)),
        ):
            torch.testing.assert_close(layer(x, form), wanted, rtol=1e-12, atol=1e-13)
            assert len(called) == 2
            called.clear()


@pytest.mark.parametrize("make", [lambda: SAGEConv(8, 4), lambda: GCNConv(8, 4)])
def test_torchscript(make: Any) -> None:
    torch.manual_seed(0)
    layer, edges, x = make(), some_edges(), torch.randn(10, 8)
    with pyg.enable():
        scripted = torch.jit.script(layer)
        torch.testing.assert_close(scripted(x, edges), layer(x, edges))
        assert "torch_ops" in str(scripted.inlined_graph)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GCNConv(8, 4),
        lambda: GATv2Conv(8, 4),
        lambda: SAGEConv(8, 4, aggr="max"),
        lambda: SAGEConv(8, 4, aggr="mul"),
    ],
    ids=["gcn", "gat", "max", "mul"],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning:torch_geometric")
def test_a_traced_layer_takes_graphs_of_any_size(make: Any) -> None:
    torch.manual_seed(0)
    layer, edges = make(), torch.tensor([[0, 1, 2], [1, 2, 0]])
    with pyg.enable():
        traced = torch.jit.trace(layer, (torch.randn(3, 8), edges), check_trace=False)
    for count in (2, 3, 7):
        x, ring = torch.randn(count, 8), torch.stack((torch.arange(count), torch.arange(count)))
        torch.testing.assert_close(traced(x, ring), layer(x, ring))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["max", "attention"])
def test_compiled(name: str, device: torch.device) -> None:
    layer, edges = layers()[name].double().to(device), some_edges().to(device)
    x = torch.randn(10, 8, dtype=torch.float64, device=device, requires_grad=True)
    wanted = layer(x, edges)
    (wanted_grad,) = torch.autograd.grad(wanted.square().sum(), x)
    with pyg.enable():
        actual = torch.compile(layer, fullgraph=True)(x, edges)
        (grad,) = torch.autograd.grad(actual.square().sum(), x)
    torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(grad, wanted_grad, rtol=1e-10, atol=1e-11)


def test_every_layer_is_listed() -> None:
    assert sorted([*LAYERS, *LEFT_OUT]) == sorted({*names(), *LAYERS, *LEFT_OUT})
    assert not set(LAYERS) & set(LEFT_OUT)
    assert [name for name in names() if name not in LAYERS and name not in LEFT_OUT] == []


def difference(actual: list[Tensor | None], wanted: list[Tensor | None]) -> float:
    """The largest, over the largest value: a gradient that should be 0 is made of roundings."""
    assert len(actual) == len(wanted)
    scale, largest = 0.0, 0.0
    for ours, theirs in zip(actual, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None and ours.numel():
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            assert torch.equal(ours.isfinite(), theirs.isfinite())
            scale = max(scale, float(theirs.nan_to_num().abs().max()))
            largest = max(largest, float((ours - theirs).nan_to_num().abs().max()))
    return largest / scale if scale else largest


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs, of layers that are deprecated or in beta
@pytest.mark.parametrize("sights", [16, 1])
def test_every_layer_agrees(
    sights: int, monkeypatch: pytest.MonkeyPatch, kernels: list[Any]
) -> None:
    """Outputs and gradients in float64, by rounding alone; and the table of the documentation.

    With plans from the first use of edges on, layers are computed in one kernel where they can be.
    """
    messages = importlib.import_module("torch_ops.compat._pyg_messages")
    monkeypatch.setattr(messages, "SIGHTS", sights)
    compute, fused = messages._fused, set()

    def recorded(layer: MessagePassing, *args: Any) -> Tensor | None:
        before = len(kernels)
        output = compute(layer, *args)
        if len(kernels) > before and type(layer).__module__.startswith("torch_geo"):
            fused.add(type(layer).__name__)
        return output

    monkeypatch.setattr(messages, "_fused", recorded)
    theirs = {name: run_layer(name) for name in LAYERS}
    with pyg.enable():  # once: it looks at all names of all modules
        ours = {name: run_layer(name) for name in LAYERS}
    for name, wanted in theirs.items():
        errors = [difference(*parts) for parts in zip(ours[name], wanted, strict=True)]
        print(f"{name:30} {errors[0]:8.1e} {errors[1]:8.1e}")
        assert max(errors) < 1e-12, name
        assert wanted[0], name
    page = (ROOT / "docs/coming_from/pyg.md").read_text("utf-8")
    if sights == 1:
        in_one_kernel = page.split("computed this way: ")[1].split(", and networks")[0]
        assert re.findall(r"`(\w+)`", in_one_kernel) == sorted(fused)
    listed, left_out = page.split("## Layers")[1].split("These are left out")
    assert re.findall(r"`(\w+)`", listed) == list(LAYERS)
    for name, reason in LEFT_OUT.items():
        assert f"- `{name}`: {reason}\n" in left_out.replace("\n  ", " "), name
    assert left_out.count("\n- ") == len(LEFT_OUT)
