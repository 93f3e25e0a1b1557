"""What torch.compile makes of gathers: fused with what computes with their rows, else ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from op_checks import assert_same
from programs import ROOT, run_with_torch
from torch import Tensor
from torch._dynamo.utils import detect_fake_mode
from torch._functorch import config as aot_config
from torch._inductor import config, metrics
from torch._inductor.compile_fx import compile_fx
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._inductor.virtualized import V
from torch.fx import GraphModule

import torch_ops
import torch_ops._inductor as fusing
from torch_ops import gather

N, E, D = 50, 30, 8


@pytest.fixture(autouse=True)
def fused_on_every_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fusing, "_DEVICES", ("cpu", "cuda"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def tensors(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    x = torch.randn(N, D, device=device, dtype=dtype, requires_grad=True)
    return x, torch.randint(N, (E,), device=device), torch.randn(E, D, device=device, dtype=dtype)


def optimised(graph: GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """What Inductor makes of a graph before it writes code; the calls of our ops are recorded."""
    with V.set_fake_mode(detect_fake_mode(inputs)):
        post_grad_passes(graph, is_inference=options.get("is_inference", False))
    graph.graph.eliminate_dead_code()
    calls.append([str(node.target).removeprefix("torch_ops.") for node in graph.graph.nodes])

    def run(args: list[Any]) -> Any:
        return graph(*args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


calls: list[list[str]] = []  # of the forward graph, then of the backward graph


def inductor_graph(graph: GraphModule, inputs: list[Any]) -> Any:
    """A backend that is Inductor without its code: it runs the graph."""
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_fx(graph, inputs, inner_compile=optimised)


def traced(function: Callable[..., Tensor], *args: Any) -> tuple[Tensor, int, int]:
    """The result, how often the forward graph checks an index, and how often it calls gather."""
    calls.clear()
    output = torch.compile(function, fullgraph=True, backend=inductor_graph)(*args)
    return output, calls[0].count("ravel_multi_index.default"), calls[0].count("gather.default")


FUSED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "product": lambda x, i, w: torch.tanh(gather(x, i) * w),
    "reduction": lambda x, i, w: (gather(x, i) - w).square().sum(-1),
    "softmax": lambda x, i, w: torch_ops.embedding(i.view(5, 6), x).softmax(-1),
    "view": lambda x, i, w: gather(x, i).view(E, 2, 4).relu(),
    "batches": lambda x, i, w: torch_ops.batch_gather(x.view(5, 10, D), (i % 10).view(5, 6)).exp(),
    "axis": lambda x, i, w: gather(x, i % D, 1) + 1,
    "numbers": lambda x, i, w: gather(x[:, 0].double(), i).exp(),
    "small index": lambda x, i, w: gather(x, i.to(torch.uint8)) + w,
    "wrap": lambda x, i, w: torch_ops.relu(gather(x, i - N, mode="wrap") + w),
    "clip": lambda x, i, w: gather(x, 2 * i, mode="clip") * 2,
    "unchecked": lambda x, i, w: gather(x, i, mode="unchecked") * 2,
    "one row": lambda x, i, w: gather(x, i[0]) * 2,
    "two batch axes": lambda x, i, w: (
        gather(x.view(5, 2, 5, D), i.view(5, 2, 3) % 5, batch_dims=2) * 2
    ),
    "index": lambda x, i, w: torch_ops.index(x, (i - N,)) * w,
    "plan": lambda x, i, w: gather(x, torch_ops.gather_plan(i, N)) * w,
}


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str, device: torch.device) -> None:
    """Only the index is read by a kernel of ours; results and gradients are those of eager ops."""
    function, (x, i, w) = FUSED[name], tensors(device)
    expected = function(x, i, w)
    output, checks, calls = traced(function, x, i, w)
    assert (checks, calls) == (1, 0)
    torch.testing.assert_close(output, expected)
    grad = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(output, x, grad)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x, grad)[0])


LEFT: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "matrix": lambda x, i, w: gather(x, i) @ w.T,
    "matrix of a view": lambda x, i, w: gather(x, i).view(E // 2, -1) @ w.view(E // 2, -1).T,
    "alone": lambda x, i, w: gather(x, i),
    "alone, wrap": lambda x, i, w: gather(x, i - N, mode="wrap"),
    "embedding alone": lambda x, i, w: torch_ops.embedding(i, x),
    "batches alone": lambda x, i, w: torch_ops.batch_gather(x.view(5, 10, D), (i % 10).view(5, 6)),
    "scatter": lambda x, i, w: torch_ops.scatter_add(gather(x.detach(), i), i, N) + 0 * x,
    "fill": lambda x, i, w: gather(x, i + 1, mode="fill", fill_value=2.0) * 2,
    "narrow": lambda x, i, w: gather(x[:, 0], i) * 2,
    "apart": lambda x, i, w: gather(x.view(5, 2, 5, D), i.view(5, 6) % 5, 2, batch_dims=1) * 2,
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_our_kernel(name: str, device: torch.device) -> None:
    """What is not fused, or is so narrow that the check of its index would cost more."""
    function, (x, i, w) = LEFT[name], tensors(device)
    output, checks, calls = traced(function, x, i, w)
    assert (checks, calls) == (0, 1)
    torch.testing.assert_close(output, function(x, i, w))


def test_an_index_is_checked_once(device: torch.device) -> None:
    """By layers that share it, in the backward pass too."""

    def layers(x: Tensor, i: Tensor, w: Tensor) -> Tensor:
        return (gather(x, i) * w).sum(0) + gather(x.sin(), i).exp().sum(0)

    x, i, w = tensors(device)
    output, checks, calls = traced(layers, x, i, w)
    assert (checks, calls) == (1, 0)
    torch.testing.assert_close(output, layers(x, i, w))


def test_one_kernel(device: torch.device) -> None:
    """For the forward pass of the whole function, and one for the backward pass."""
    x, i, w = tensors(device)
    metrics.reset()
    with config.patch(fx_graph_cache=False), aot_config.patch(enable_autograd_cache=False):
        output = torch.compile(FUSED["product"], fullgraph=True)(x, i, w)
        assert metrics.generated_kernel_count == 1
        (gradient,) = torch.autograd.grad(output.sum(), x)
    assert metrics.generated_kernel_count == 2
    expected = FUSED["product"](x, i, w)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), x)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    x = (10 * torch.randn(N, D, device=device)).to(dtype)
    i = torch.randint(N, (E,), device=device)
    output, checks, _ = traced(lambda x, i: gather(x, i).float() + 1, x, i)
    assert checks == 1
    assert_same(output, x[i].float() + 1, "rows")


def test_complex_rows_are_left(device: torch.device) -> None:
    x = torch.randn(N, D, device=device, dtype=torch.complex64)
    i = torch.randint(N, (E,), device=device)
    output, _, calls = traced(lambda x, i: gather(x, i).real + 1, x, i)
    assert calls == 1
    assert_same(output, x[i].real + 1, "rows")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("product", r"gather: index\[3\] is 50"),
        ("softmax", r"embedding: input\[0, 3\] is 50"),
        ("index", r"index: entry \[3\] of the index for axis 0 is -51"),
    ],
)
def test_errors_are_those_of_the_op(name: str, text: str, device: torch.device) -> None:
    x, i, w = tensors(device)
    call = torch.compile(FUSED[name], backend=inductor_graph)
    call(x, i, w)
    bad = i.clone()
    bad[3] = -1 if name == "index" else N

    def call_bad() -> None:
        call(x, bad, w)
        torch_ops.check_errors()

    # That of an index that may count from the end names its axis too.
    with pytest.raises(IndexError, match=text + ", out of range for an axis of size 50"):
        call_bad()
    torch.testing.assert_close(call(x, i, w), FUSED[name](x, i, w))  # the context is usable


def test_an_empty_table(device: torch.device) -> None:
    empty = torch.randn(0, D, device=device)
    none = torch.randint(1, (0,), device=device)
    output, *_ = traced(lambda x, i: gather(x, i) * 2, empty, none)
    assert output.shape == (0, D)


def test_dynamic_sizes(device: torch.device) -> None:
    function = FUSED["product"]
    call = torch.compile(function, fullgraph=True, dynamic=True, backend=inductor_graph)
    for entries in (E, 17, 64):
        x, _, _ = tensors(device)
        x = torch.cat([x, x[:entries]])
        i = torch.randint(x.shape[0], (entries,), device=device)
        w = torch.randn(entries, D, device=device)
        torch.testing.assert_close(call(x, i, w), function(x, i, w))


def test_sizes_that_the_data_give(device: torch.device) -> None:
    """Of the table, which is then left to our kernel, and of the index."""

    def chosen(x: Tensor, i: Tensor) -> Tensor:
        table = x[x[:, 0] > 0]
        return gather(table, i.remainder(3)) * 2 + (gather(x, i[i < 20]) * 3).sum(0)

    x, i, _ = tensors(device)
    i[0] = 0
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        call = torch.compile(chosen, fullgraph=True, backend=inductor_graph)
        torch.testing.assert_close(call(x.detach(), i), chosen(x, i).detach())


@pytest.mark.parametrize("first", ["torch._inductor.decomposition", "torch_ops"])
def test_it_comes_with_inductor(first: str) -> None:
    """And not before; in either order."""
    code = f"""
import sys, {first}
import torch, torch_ops
print("torch_ops._inductor" in sys.modules)
from torch._inductor.decomposition import decompositions, select_decomp_table
op = torch.ops.torch_ops.gather.default
print("torch_ops._inductor" in sys.modules, op in decompositions, op in select_decomp_table())
"""
    done = run_with_torch("-c", code, cwd=ROOT)
    assert done.stdout.split() == [str(first != "torch_ops"), "True", "True", "True"], done.stdout


def test_any_and_all(device: torch.device) -> None:
    """Bools, which Inductor cannot view as bytes."""
    values, index = torch.tensor([True, False, False, True], device=device), [0, 0, 1, 3]

    def both(values: Tensor, index: Tensor) -> Tensor:
        return torch.stack([torch_ops.scatter(values, index, 4, reduce=r) for r in ("any", "all")])

    args = values, torch.tensor(index, device=device)
    assert torch.equal(torch.compile(both, fullgraph=True)(*args), both(*args))
