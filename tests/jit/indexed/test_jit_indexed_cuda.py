"""What IndexedKernel does on a GPU alone: lanes, long rows, graphs, late errors, streams."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from indexed_reference import composed, random, random_index, reduced
from memory import peak_memory
from torch import Tensor

import torch_ops
from torch_ops.jit import IndexedKernel, IndexPlan, index_plan
from torch_ops.jit.generation.indexed import PassForm, cuda_source
from torch_ops.jit.generation.indexed_tuning import IndexedTuning
from torch_ops.jit.language.program import Program

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="lanes, graphs, streams")

CUDA = torch.device("cuda")
DIFFERENCE = IndexedKernel(
    "T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y)", "difference"
)
difference = composed(lambda x, y, w: w * (x - y), {0: "src", 1: "dst"}, "dst")
N, M = 300, 200


@pytest.mark.parametrize("kind", ["uniform", "hot", "some"])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 12, 31, 64, 100, 128, 513, 4096])
@pytest.mark.parametrize("entries", [1, 257, 5000, 70000])
def test_every_number_of_lanes(entries: int, width: int, kind: str) -> None:
    """Beside the CPU in float64, forward and backward; entries shared by lanes, and features."""
    if entries * width > 2**25:
        entries = 2**25 // width
    src, dst = (random_index(entries, rows, CUDA, kind) for rows in (N, M))
    plan = index_plan(src=(src, N), dst=(dst, M))
    inputs = [random((rows, width), CUDA, torch.float32) for rows in (N, M)]
    inputs.append(random((entries, 1), CUDA, torch.float32))
    given = [value.clone().requires_grad_() for value in inputs]
    wide = [value.double().requires_grad_() for value in inputs]
    grad = random((M, width), CUDA)
    exact = difference(*wide, src=src, dst=dst, rows=M)
    theirs = torch.autograd.grad(exact, wide, grad)
    for call in ({"plan": plan}, {"src": src, "dst": dst}):
        out = DIFFERENCE(*given, **call)
        mine = torch.autograd.grad(out, given, grad.float())
        for a, b in zip((out, *mine), (exact, *theirs), strict=True):
            assert (a.double() - b).abs().max() <= 1e-4 * (1 + b.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 3, 16, 33, 48, 64, 256, 512])
def test_sums_over_features_on_the_way(
    width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient by w: in the pass that makes another gradient, and by itself."""
    walks: list[str] = []

    def noted(program: Program, form: PassForm, numbers: IndexedTuning) -> Any:
        walks.append(form.walk)
        return cuda_source(program, form, numbers)

    monkeypatch.setattr("torch_ops.jit.indexed.cuda_source", noted)
    per_word = 16 // dtype.itemsize
    vector = width if width <= per_word else math.gcd(width, per_word)
    vectors = [vector, 2 * vector, 3 * vector]  # that a lane may have
    words = [width / size for size in vectors if size <= 16 or width >= 4 * size]
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float64: 1e-11}[dtype]
    # One for each way to call: passes of narrow rows have the same code, which is compiled once.
    kernels = [
        IndexedKernel(
            "T x[src], T y[dst], T w",
            "T out[dst]",
            "out = w * (x - y)",
            f"folded_{way}_{width}_{dtype.itemsize}",
        )
        for way in ("plan", "indices")
    ]
    for kind in ("uniform", "hot"):
        src, dst = (random_index(5003, rows, CUDA, kind) for rows in (N, M))
        plan = index_plan(src=(src, N), dst=(dst, M))
        given = [random((rows, width), CUDA, dtype) for rows in (N, M)]
        given = [value.requires_grad_() for value in (*given, random((5003, 1), CUDA, dtype))]
        wide = [value.detach().double().requires_grad_() for value in given]
        grad = random((M, width), CUDA, dtype)
        exact = difference(*wide, src=src, dst=dst, rows=M)
        theirs = torch.autograd.grad(exact, wide, grad.double())
        for kernel, call in zip(kernels, ({"plan": plan}, {"src": src, "dst": dst}), strict=True):
            out = kernel(*given, **call)
            walks.clear()
            together = torch.autograd.grad(out, given, grad, retain_graph=True)
            again = torch.autograd.grad(out, given, grad, retain_graph=True)
            is_folded = "plan" in call and any(count in (1, 2, 4, 8, 16, 32) for count in words)
            assert kind == "hot" or ("e" in walks) != is_folded
            (alone,) = torch.autograd.grad(out, given[2], grad)
            for a, b, c in zip(together, again, theirs, strict=True):
                assert torch.equal(a, b)
                assert (a.double() - c).abs().max() <= tolerance * (1 + c.abs().max())
            torch.testing.assert_close(together[2], alone, rtol=tolerance, atol=tolerance)


def test_outputs_summed_over_all_features_on_the_way() -> None:
    """A row's sum and, for each entry, that over two axes of features; derivatives of both."""
    kernel = IndexedKernel(
        "T x[src], T y[dst]", "T out[dst], T s", "out = x * y; s = x * y * y", "both",
        features=(-2, -1),
    )  # fmt: skip
    src, dst = random_index(5003, N, CUDA, "hot"), random_index(5003, M, CUDA, "hot")
    plan = index_plan(src=(src, N), dst=(dst, M))
    x, y = (random((rows, 4, 8), CUDA).requires_grad_() for rows in (N, M))
    found, expected = [], []
    for results, (out, s) in (
        (found, kernel(x, y, plan=plan)),
        (expected, (reduced(x[src] * y[dst], dst, M), (x[src] * y[dst] ** 2).sum((-2, -1)))),
    ):
        first = torch.autograd.grad(out.sin().sum() + s.sin().sum(), (x, y), create_graph=True)
        second = torch.autograd.grad(first[0].sin().sum() + first[1].sin().sum(), (x, y))
        results += [out, s, *first, *second]
    torch.testing.assert_close(found[:4], expected[:4], rtol=1e-8, atol=1e-8)
    # Sums of thousands are in the sines, whose derivatives lose as many digits once more.
    for actual, exact in zip(found[4:], expected[4:], strict=True):
        torch.testing.assert_close(actual, exact, rtol=1e-4, atol=1e-6 * float(exact.abs().max()))


def test_cuda_graph() -> None:
    """Forward and backward, with a plan and without; compiled before or inside the capture."""
    src, dst = random_index(5000, N, CUDA, "hot"), random_index(5000, M, CUDA, "hot")
    plan = index_plan(src=(src, N), dst=(dst, M))
    x = random((N, 24), CUDA, torch.float32).requires_grad_()
    y, w = random((M, 24), CUDA, torch.float32), random((5000, 1), CUDA, torch.float32)
    kernel = IndexedKernel(
        "T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y) * 2", "captured"
    )
    for call in ({"plan": plan}, {"src": src, "dst": dst}):
        expected = torch.autograd.grad(DIFFERENCE(x, y, w, **call).square().sum(), x)[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = kernel(x, y, w, **call)
            (grad,) = torch.autograd.grad((out / 2).square().sum(), x)
        out = out.detach()  # a node of x that is kept alive stays on the stream of the capture
        again = kernel(x, y, w, **call)
        (again_grad,) = torch.autograd.grad((again / 2).square().sum(), x)
        again = again.detach()
        for _ in range(2):
            grad.zero_()
            graph.replay()
            assert torch.equal(grad, again_grad)
        assert torch.equal(out, again)
        # Other text, so other roundings: the sums of a row have thousands of terms.
        assert (grad - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_errors_come_later() -> None:
    """A bad entry gives nothing to any row, and zeros where a row belongs to it."""
    x, good = random((N, 5), CUDA), random_index(1000, N, CUDA)
    bad = good.clone()
    bad[17] = N
    rows = IndexedKernel("T x[src]", "T e", "e = x", "rows")
    total = IndexedKernel("T x[src]", "T out[dst]", "out = x", "total")
    made = rows(x, src=bad)
    with pytest.raises(IndexError, match=rf"rows: src\[17\] is {N}.*by an earlier call"):
        torch_ops.check_errors()
    assert made[17].tolist() == [0] * 5
    keep = torch.arange(1000, device="cuda") != 17
    for call in ({"src": bad, "dst": good}, {"src": good, "dst": bad}):
        made = total(x, **call, sizes={"dst": N})
        with pytest.raises(IndexError, match=r"total: (src|dst)\[17\] is 300"):
            torch_ops.check_errors()
        torch.testing.assert_close(made, reduced(x[good[keep]], good[keep], N))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = rows(x, src=bad)
    graph.replay()
    with pytest.raises(IndexError, match=r"rows: src\[17\] is 300"):
        torch_ops.check_errors()


def test_streams() -> None:
    src, dst = random_index(50000, N, CUDA, "hot"), random_index(50000, M, CUDA, "hot")
    x, y = random((N, 64), CUDA, torch.float32), random((M, 64), CUDA, torch.float32)
    w = random((50000, 1), CUDA, torch.float32)
    expected = DIFFERENCE(x, y, w, src=src, dst=dst)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made = [DIFFERENCE(x, y, w, src=src, dst=dst) for _ in range(20)]
    stream.synchronize()
    assert all(torch.equal(each, expected) for each in made)


def step(given: list[Tensor], plan: IndexPlan, grad: Tensor) -> tuple[Tensor, ...]:
    out = DIFFERENCE(*given, plan=plan)
    return (out, *torch.autograd.grad(out, given, grad))


def test_scratch_memory() -> None:
    """Beyond inputs, outputs and their gradients 16 bytes an entry at most, with a plan."""
    entries, width = 2**19, 128
    for kind in ("uniform", "hot"):
        src, dst = (random_index(entries, entries // 8, CUDA, kind) for _ in range(2))
        plan = index_plan(src=(src, entries // 8), dst=(dst, entries // 8))
        x, y = (random((entries // 8, width), CUDA, torch.float32) for _ in range(2))
        given = [x.requires_grad_(), y.requires_grad_()]
        given.append(random((entries, 1), CUDA, torch.float32).requires_grad_())
        grad = torch.ones(entries // 8, width, device="cuda")

        call = partial(step, given, plan, grad)
        results = sum(result.nbytes for result in call())
        assert peak_memory(grad.device, call) - results <= 16 * entries


@pytest.mark.parametrize("width", [256, 300])
def test_a_table_beyond_the_cache(width: int) -> None:
    """Its columns are read in parts, forward and, of the gradient's table, backward."""
    rows = int(1.5 * torch.cuda.get_device_properties(CUDA).L2_cache_size) // (4 * width)
    entries = 2 * rows
    src, dst = (random_index(entries, rows, CUDA, "uniform") for _ in range(2))
    plan = index_plan(src=(src, rows), dst=(dst, rows))
    kernel = IndexedKernel("T x[src], T w", "T out[dst]", "out = w * x", "product")
    x, w = random((rows, width), CUDA), random((entries, 1), CUDA)
    given = [value.float().requires_grad_() for value in (x, w)]
    grad = random((rows, width), CUDA)
    out = kernel(*given, plan=plan)
    mine = torch.autograd.grad(out, given, grad.float())
    exact = torch.zeros_like(x).index_add_(0, dst, w * x[src])
    of_x = torch.zeros_like(x).index_add_(0, src, w * grad[dst])
    of_w = (grad[dst] * x[src]).sum(1, keepdim=True)
    for a, b in zip((out, *mine), (exact, of_x, of_w), strict=True):
        assert (a.double() - b).abs().max() <= 1e-4 * (1 + b.abs().max())
