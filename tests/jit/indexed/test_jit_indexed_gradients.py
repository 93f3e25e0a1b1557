"""Gradients of IndexedKernel: any order, torch.func, torch.vmap, torch.compile, export."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from indexed_reference import composed, random, random_index, reduced
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import torch_ops
from torch_ops.jit import IndexedKernel, index_plan

N, M, E = 5, 4, 11

WAVE = IndexedKernel(
    "T x[src], T y[dst], T w", "T out[dst]", "out = w * sin(x) * y + x * x * w * w", "wave"
)
wave = composed(lambda x, y, w: w * x.sin() * y + x * x * w * w, {0: "src", 1: "dst"}, "dst")


def indices(device: torch.device, entries: int = E) -> tuple[Tensor, Tensor]:
    return random_index(entries, N, device), random_index(entries, M, device, "hot")


def wave_by(given: dict[str, Any]) -> Any:
    return lambda *inputs: WAVE(*inputs, **given)


@pytest.mark.slow
@pytest.mark.parametrize("with_plan", [False, True], ids=["indices", "plan"])
def test_third_derivative(with_plan: bool, device: torch.device) -> None:
    """Forces, their gradient by weights, and one more."""
    src, dst = indices(device)
    plan = index_plan(src=(src, N), dst=(dst, M))
    given = {"plan": plan} if with_plan else {"src": src, "dst": dst}
    x, y = random((N, 3), device).requires_grad_(), random((M, 3), device).requires_grad_()
    w = random((E, 1), device).requires_grad_()
    results = []
    for call in (
        lambda: WAVE(x, y, w, **given),
        lambda: wave(x, y, w, src=src, dst=dst, rows=M),
    ):
        (force,) = torch.autograd.grad((call() ** 2).sum(), x, create_graph=True)
        (by_w,) = torch.autograd.grad((force**2).sum(), w, create_graph=True)
        results.append(torch.autograd.grad((by_w**3).sum(), (x, y, w)))
    torch.testing.assert_close(*results)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [1, 3, 64])
def test_dtypes(dtype: torch.dtype, width: int, device: torch.device) -> None:
    """Beside float64, of many entries on one row: sums are rounded once."""
    src, dst = random_index(6000, N, device, "hot"), random_index(6000, M, device, "hot")
    kernel = IndexedKernel("T x[src], T y[dst], T w", "T out[dst]", "out = w * (x - y)", "diff")
    plain = composed(lambda x, y, w: w * (x - y), {0: "src", 1: "dst"}, "dst")
    inputs = [random((rows, width), device, dtype) for rows in (N, M)]
    inputs.append(random((6000, 1), device, dtype).abs())  # so that nothing cancels
    grad = random((M, width), device, dtype).abs()
    given = [value.clone().requires_grad_() for value in inputs]
    wide = [value.double().requires_grad_() for value in inputs]
    for plan in (None, index_plan(src=(src, N), dst=(dst, M))):
        out = kernel(*given, plan=plan) if plan else kernel(*given, src=src, dst=dst)
        mine = torch.autograd.grad(out, given, grad)
        theirs = torch.autograd.grad(plain(*wide, src=src, dst=dst, rows=M), wide, grad.double())
        for a, b in zip(mine, theirs, strict=True):
            assert a.dtype == dtype and a.shape == b.shape
            bound = max(4 * torch.finfo(dtype).eps, 1e-5)
            assert ((a.double() - b).abs() <= bound * (b.abs() + b.abs().mean())).all()


def test_mixed_dtypes(device: torch.device) -> None:
    src, dst = indices(device)
    x = random((N, 3), device, torch.float32).requires_grad_()
    w = random((E, 1), device, torch.float64).requires_grad_()
    scale = torch.tensor(0.5, requires_grad=True)  # on the CPU: a number
    kernel = IndexedKernel(
        "T x[src], T w, T s", "T out[dst], int32 n[dst]", "out = x * w * s; n = 1"
    )
    out, count = kernel(x, w, scale, src=src, dst=dst, sizes={"dst": M})
    assert out.dtype == torch.float64 and not count.requires_grad
    gx, gw, gs = torch.autograd.grad(out.sum(), (x, w, scale))
    assert (gx.dtype, gw.dtype, gs.dtype) == (torch.float32, torch.float64, torch.float32)
    assert gs.shape == () and gs.device.type == "cpu"
    total = (x[src].double() * w).sum()
    torch.testing.assert_close(gs.double().to(device), total.detach(), rtol=1e-6, atol=1e-6)


def test_ties_go_to_the_first_entry(device: torch.device) -> None:
    kernel = IndexedKernel("T x", "T out[dst]", "out = x", "largest", reduce="amax")
    dst = torch.tensor([1, 0, 1, 1, 0], device=device)
    x = torch.tensor([[2.0], [1.0], [2.0], [0.0], [1.0]], device=device, requires_grad=True)
    out = kernel(x, dst=dst, sizes={"dst": 3})
    assert out.tolist() == [[1], [2], [0]]
    assert torch.autograd.grad(out.sum(), x)[0].flatten().tolist() == [1, 1, 0, 0, 0]
    many = torch.ones(5000, 3, device=device, requires_grad=True)
    out = kernel(many, dst=torch.zeros(5000, dtype=torch.int64, device=device), sizes={"dst": 1})
    (grad,) = torch.autograd.grad(out.sum(), many)
    assert grad[0].tolist() == [1, 1, 1] and grad.sum() == 3


def test_only_what_is_asked_for(device: torch.device) -> None:
    src, dst = indices(device)
    x, y = random((N, 3), device).requires_grad_(), random((M, 3), device)
    WAVE(x, y, 0.5, src=src, dst=dst).sum().backward()
    assert y.grad is None and x.grad is not None
    kernel = IndexedKernel("T x[src]", "T a[dst], T b", "a = x * x; b = x", "two")
    a, b = kernel(x, src=src, dst=dst, sizes={"dst": M})
    (only,) = torch.autograd.grad(b.sum(), x, retain_graph=True)
    torch.testing.assert_close(
        only, torch.bincount(src, minlength=N).double()[:, None].expand(N, 3)
    )
    (only,) = torch.autograd.grad(a.sum(), x)
    assert only.shape == (N, 3)


def test_torch_func(device: torch.device) -> None:
    src, dst = indices(device)
    x, y, w = random((N, 3), device), random((M, 3), device), random((E, 1), device)

    def mine(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return WAVE(x, y, w, src=src, dst=dst)

    def theirs(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return wave(x, y, w, src=src, dst=dst, rows=M)

    def total(function: Any) -> Any:
        return lambda x, y, w: function(x, y, w).square().sum()

    for transform in (
        lambda f: torch.func.grad(total(f), argnums=(0, 1, 2)),
        lambda f: torch.func.hessian(total(f)),
        lambda f: torch.func.jacrev(f, argnums=1),
        lambda f: torch.func.jacfwd(f, argnums=2),
        lambda f: torch.func.grad(lambda x, y, w: torch.func.grad(total(f))(x, y, w).sum()),
    ):
        torch.testing.assert_close(transform(mine)(x, y, w), transform(theirs)(x, y, w))


@pytest.mark.slow
@pytest.mark.parametrize("with_plan", [False, True], ids=["indices", "plan"])
def test_vmap(with_plan: bool, device: torch.device) -> None:
    """Over inputs; gradients by samples; nested."""
    src, dst = indices(device)
    given = {"plan": index_plan(src=(src, N), dst=(dst, M))} if with_plan else {}
    given = given or {"src": src, "dst": dst}
    x, y, w = random((2, N, 3), device), random((M, 2, 3), device), random((E, 1), device)

    def mine(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return WAVE(x, y, w, **given)

    def theirs(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return wave(x, y, w, src=src, dst=dst, rows=M)

    for in_dims in ((0, 1, None), (0, None, None), (None, 1, None)):
        a = x if in_dims[0] == 0 else x[0]
        b = y if in_dims[1] == 1 else y[:, 0]
        torch.testing.assert_close(
            torch.vmap(mine, in_dims)(a, b, w), torch.vmap(theirs, in_dims)(a, b, w)
        )
    for shape, axis in (((E, 2, 1), 1), ((2, E, 3), 0), ((2, 3), 0), ((2,), 0), ((1, 3, 2), 2)):
        weights = random(shape, device)
        in_dims = (None, None, axis)
        expected = torch.vmap(theirs, in_dims)(x[0], y[:, 0], weights)
        torch.testing.assert_close(torch.vmap(mine, in_dims)(x[0], y[:, 0], weights), expected)
        gradients = [
            torch.vmap(torch.func.grad(lambda *v, f=f: f(*v).sin().sum(), (0, 1, 2)), in_dims)
            for f in (mine, theirs)
        ]
        torch.testing.assert_close(*(g(x[0], y[:, 0], weights) for g in gradients))
    nested = [
        torch.vmap(torch.vmap(f, (None, 1, None)), (0, None, None))(x, y, w) for f in (mine, theirs)
    ]
    torch.testing.assert_close(*nested)


def test_vmap_over_indices(device: torch.device) -> None:
    src = torch.stack([random_index(E, N, device, seed=s) for s in range(3)])
    dst = torch.stack([random_index(E, M, device, seed=s) for s in range(3)])
    x, y, w = random((3, N, 3), device), random((M, 3), device), random((E, 1), device)

    def mine(x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return WAVE(x, y, w, src=src, dst=dst)

    def theirs(x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return wave(x, y, w, src=src, dst=dst, rows=M)

    for in_dims in ((0, None, None, 0, 0), (None, None, None, 0, None), (0, None, None, None, 0)):
        args = [
            value if axis == 0 or value.dim() < 3 - (value.dtype == torch.int64) else value[0]
            for value, axis in zip((x, y, w, src, dst), in_dims, strict=True)
        ]
        expected = torch.stack(
            [
                theirs(*(v[s] if d == 0 else v for v, d in zip(args, in_dims, strict=True)))
                for s in range(3)
            ]
        )
        torch.testing.assert_close(torch.vmap(mine, in_dims)(*args), expected)
    best = IndexedKernel("T x[src]", "T out[dst]", "out = x * x", "best", reduce="amax")

    def grad(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.func.grad(lambda x: best(x, src=src, dst=dst, sizes={"dst": M}).sin().sum())(x)

    expected = torch.stack([grad(x[s], src[s], dst[s]) for s in range(3)])
    torch.testing.assert_close(torch.vmap(grad)(x, src, dst), expected)
    plan = index_plan(src=(src[0], N), dst=(dst[0], M))
    made = torch.vmap(lambda x: best(x, plan=plan))(x)
    torch.testing.assert_close(made[1], best(x[1], plan=plan))
    # What depends on the entry's number is computed sample by sample.
    counted = IndexedKernel("T x[src]", "T out[dst]", "out = x * i", "counted")
    made = torch.vmap(lambda x, s, d: counted(x, src=s, dst=d, sizes={"dst": M}))(x, src, dst)
    entry = torch.arange(E, device=device)[:, None]
    torch.testing.assert_close(made[2], reduced(x[2][src[2]] * entry, dst[2], M))
    size = IndexedKernel("T x[src]", "T y", "y = NN + 0 * x", preamble="#define NN _ind.size()")
    assert torch.all(torch.vmap(lambda x, s: size(x, src=s))(x, src) == E)


@pytest.mark.parametrize("in_dims", [(None, 0), (0, 0), (0, None)])
def test_vmap_over_raw_arrays(in_dims: tuple[int | None, ...], device: torch.device) -> None:
    raw = IndexedKernel("T x[src], raw T w", "T out[dst]", "out = x * w[0]", "raw_factor")
    src, dst = random_index(E, N, device), random_index(E, M, device)
    x, w = random((3, N, 2), device), random((3, 2), device)
    args = [v if d == 0 else v[0] for v, d in zip((x, w), in_dims, strict=True)]
    made = torch.vmap(lambda x, w: raw(x, w, src=src, dst=dst, sizes={"dst": M}), in_dims)(*args)
    factor = w[:, None, :1] if in_dims[1] == 0 else w[0, 0]
    values = (x if in_dims[0] == 0 else x[:1])[:, src] * factor
    expected = torch.stack([reduced(value, dst, M) for value in values])
    torch.testing.assert_close(made, expected)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_plan", [False, True], ids=["indices", "plan"])
def test_compile(with_plan: bool, dynamic: bool, device: torch.device) -> None:
    """fullgraph, forward and backward, with new sizes."""
    best = IndexedKernel("T x[src]", "T out[dst], T e", "out = x; e = x * x", "best", reduce="amax")

    def loss(x: Tensor, y: Tensor, w: Tensor, given: Any, scale: float) -> Tensor:
        arguments = {"plan": given} if with_plan else {"src": given[0], "dst": given[1]}
        out = WAVE(x, y, w, **arguments) * scale
        largest, each = best(x, **arguments, sizes={"dst": M})
        return out.square().sum() + largest.sum() + each.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for entries in (11, 23):
        src, dst = indices(device, entries)
        given: Any = index_plan(src=(src, N), dst=(dst, M)) if with_plan else (src, dst)
        results = []
        for function in (loss, compiled):
            x = random((N, 3), device).requires_grad_()
            y = random((M, 3), device).requires_grad_()
            w = random((entries, 1), device).requires_grad_()
            value = function(x, y, w, given, 2.0)
            results.append((value.detach(), *torch.autograd.grad(value, (x, y, w))))
        torch.testing.assert_close(*results)
    torch._dynamo.reset()


def test_compiled_autograd(device: torch.device) -> None:
    torch.compiler.reset()
    src, dst = indices(device)
    x, y = random((N, 3), device).requires_grad_(), random((M, 3), device).requires_grad_()
    mean = IndexedKernel("T x[src], T y[dst]", "T out[dst]", "out = x * y", "mean", reduce="mean")

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(mean(x, y, src=src, dst=dst).square().sum(), (x, y))

    expected = gradients()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        found = gradients()
    torch.testing.assert_close(found, expected)


class Model(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return WAVE(x, y, w, src=src, dst=dst)


def test_export(device: torch.device) -> None:
    src, dst = indices(device)
    args = (random((N, 3), device), random((M, 3), device), random((E, 1), device), src, dst)
    entries = torch.export.Dim("entries", min=2, max=10**6)
    shapes = {"x": None, "y": None, "w": {0: entries}, "src": {0: entries}, "dst": {0: entries}}
    program = torch.export.export(Model(), args, dynamic_shapes=shapes)
    src, dst = indices(device, 29)
    more = (*args[:2], random((29, 1), device), src, dst)
    torch.testing.assert_close(program.module()(*more), Model()(*more))


def test_opcheck(device: torch.device) -> None:
    src, dst = indices(device)
    x, w = random((N, 3), device).requires_grad_(), random((E, 1), device).requires_grad_()
    kernel = IndexedKernel(
        "T x[src], T w", "T out[dst], T e", "out = x * w; e = x", "checked", reduce="amax"
    )
    args = ([x, w], [], [], [src, dst], [], [], [N, M], 0, None, False)
    torch.library.opcheck(kernel._op, args)
    plan = index_plan(src=(src, N), dst=(dst, M))
    args = (
        [x, w],
        [],
        [],
        [src, dst],
        list(plan.parts),
        list(plan.longest),
        [N, M],
        0,
        None,
        False,
    )
    torch.library.opcheck(kernel._op, args)


def test_fake_tensors(device: torch.device) -> None:
    src, dst = indices(device)
    with FakeTensorMode() as mode:
        x, y, w = (mode.from_tensor(random(s, device)) for s in ((N, 3), (M, 3), (E, 1)))
        fake = {"src": mode.from_tensor(src), "dst": mode.from_tensor(dst)}
        out = WAVE(x, y, w, **fake)
        assert out.shape == (M, 3) and out.device.type == device.type
        with pytest.raises(ValueError, match=r"the number of axes of .* must be 2"):
            WAVE(x[0], y, w, **fake)


def test_other_ways_of_autograd(device: torch.device) -> None:
    """Checkpointing, hooks on saved tensors, a deep copy, inference mode."""
    src, dst = indices(device)
    x, y, w = (
        random((N, 3), device).requires_grad_(),
        random((M, 3), device),
        random((E, 1), device),
    )

    def call(x: Tensor) -> Tensor:
        return WAVE(x, y, w, src=src, dst=dst)

    (expected,) = torch.autograd.grad(call(x).sum(), x)
    kept = torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(kept.sum(), x)[0], expected)
    with torch.autograd.graph.save_on_cpu():
        out = call(x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], expected)
    with torch.inference_mode():
        torch.testing.assert_close(call(x), call(x.detach()))
    torch.testing.assert_close(copy.deepcopy(WAVE)(x, y, w, src=src, dst=dst), call(x))


def test_nothing_of_the_size_of_the_messages_is_made(device: torch.device) -> None:
    """Forward and backward, with a plan: the largest allocation is an input's gradient."""
    entries, width = 40000, 64
    src, dst = random_index(entries, 50, device), random_index(entries, 60, device)
    plan = index_plan(src=(src, 50), dst=(dst, 60))
    x, y = (random((rows, width), device, torch.float32).requires_grad_() for rows in (50, 60))
    w = random((entries, 1), device, torch.float32).requires_grad_()
    product = IndexedKernel("T x[src], T y[dst], T w", "T out[dst]", "out = w * x * x * y")

    def step() -> None:
        out = product(x, y, w, plan=plan)
        (gx,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        torch.autograd.grad(gx.square().sum(), (x, y, w))

    step()
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        step()
    # All allocations, of every thread. In profiler.events() those within an operator's time are
    # its own, and on CUDA so are those within an event of the tracer itself.
    kinds = {"cpu": DeviceType.CPU, "cuda": DeviceType.CUDA}
    sizes = [
        event.nbytes()
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == kinds[device.type]
    ]
    # [E, 1] gradients, and parts of long rows: far from [E, D].
    assert 4 * entries <= max(sizes) <= 16 * entries < 4 * entries * width / 4


def test_what_is_refused(device: torch.device) -> None:
    src, dst = indices(device)
    x = random((N, 3), device).requires_grad_()
    raw = IndexedKernel("raw T table, T x[src]", "T out[dst]", "out = x * table[0]", "raw_one")
    table = random((3,), device).requires_grad_()
    given = {"src": src, "dst": dst, "sizes": {"dst": M}}
    out = raw(table, x, **given)
    with pytest.raises(
        RuntimeError, match='"raw_one" has no gradient with respect to its raw parameter table'
    ):
        out.sum().backward()
    (grad,) = torch.autograd.grad(raw(table.detach(), x, **given).sum(), x)
    assert grad.shape == x.shape
    turn = IndexedKernel("T x[src]", "T out[dst]", "out = x * x", "turn")
    z = torch.complex(x.detach(), x.detach()).requires_grad_()
    with pytest.raises(RuntimeError, match='"turn" has no derivative on complex tensors'):
        turn(z, **given).abs().sum().backward()
    plan = index_plan(src=(src, N), dst=(dst, M))
    stacked = torch.stack((plan.parts[0], plan.parts[0]))
    plans = dataclasses.replace(plan, parts=(stacked, *plan.parts[1:]))
    with pytest.raises(RuntimeError, match=r"torch\.vmap cannot map over a plan"):
        torch.vmap(
            lambda part: turn(x, plan=dataclasses.replace(plans, parts=(part, *plan.parts[1:])))
        )(stacked)


def test_derivatives_that_do_not_compile(device: torch.device) -> None:
    """What would lose a derivative is refused, in the words of the kernel."""
    kernel = IndexedKernel("T x[src]", "T out[dst]", "float t = x * x; out = t", "narrow")
    src, dst = indices(device)
    x = random((N, 3), device).requires_grad_()
    out = kernel(x, src=src, dst=dst, sizes={"dst": M})
    with pytest.raises(torch_ops.jit.CompileError, match="write `auto`") as caught:
        out.sum().backward()
    assert 'IndexedKernel "narrow"' in str(caught.value)
    assert "backward=" not in str(caught.value)


def test_outputs_that_nobody_uses(device: torch.device) -> None:
    """Their slopes, which may be infinite, are not in the gradient."""
    kernel = IndexedKernel(
        "T x[src]", "T y[dst], T r[dst], bool m", "y = x * x; r = sqrt(x); m = x > 0", "unused"
    )
    x = torch.tensor([[0.0], [4.0]], dtype=torch.float64, device=device, requires_grad=True)
    index = torch.tensor([0, 1], device=device)
    outputs = kernel(x, src=index, dst=index, sizes={"dst": 2})
    assert torch.autograd.grad(outputs[0].sum(), x)[0].tolist() == [[0], [8]]
