"""Gradients of ElementwiseKernel through torch: broadcasting, torch.func."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jit_tools import LEAKY, SCALED, SMOOTH, SOFTPLUS, TWO, random
from programs import ROOT
from torch import Tensor

from torch_ops.jit import CompileError, ElementwiseKernel, IndexedKernel


def reference(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.sin(y) + x * x * y


SHAPES = [((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 2)), ((2, 3), ()), ((1,), (4,))]


@pytest.mark.slow
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradcheck(shapes: tuple[tuple[int, ...], ...], device: torch.device) -> None:
    """First and second derivatives, backward and forward mode, batched."""
    inputs = [random(shape, device).requires_grad_() for shape in shapes]
    options = {"check_batched_grad": True}
    assert torch.autograd.gradcheck(
        SMOOTH, inputs, check_forward_ad=True, check_batched_forward_grad=True, **options
    )
    assert torch.autograd.gradgradcheck(SMOOTH, inputs, check_fwd_over_rev=True, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    """Beside float64; a broadcast gradient is summed before it is rounded."""
    x, y = random((300, 40), device, dtype), random((40,), device, dtype)
    grad = random((300, 40), device, dtype)
    given = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    wide = [x.double().requires_grad_(), y.double().requires_grad_()]
    mine = torch.autograd.grad(SMOOTH(*given), given, grad)
    theirs = torch.autograd.grad(reference(*wide), wide, grad.double())
    bound = 2 * torch.finfo(dtype).eps
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == dtype
        assert ((a.double() - b).abs() <= bound * (b.abs() + b.abs().mean())).all()


def test_mixed_dtypes_and_integers(device: torch.device) -> None:
    kernel = ElementwiseKernel("T x, U k, float32 s", "T y", "y = x * k + s")
    x = random((4,), device, torch.float64).requires_grad_()
    k = torch.arange(4, device=device)
    s = random((), device, torch.float64).requires_grad_()
    y = kernel(x, k, s)
    gx, gs = torch.autograd.grad(y.sum(), (x, s))
    assert gx.tolist() == [0, 1, 2, 3] and gx.dtype == torch.float64
    assert gs.item() == 4 and gs.dtype == torch.float64
    x32 = random((4,), device, torch.float32).requires_grad_()
    y = SMOOTH(x32, random((4,), device))
    assert y.dtype == torch.float64
    assert torch.autograd.grad(y.sum(), x32)[0].dtype == torch.float32


def test_several_outputs(device: torch.device) -> None:
    x, y = (random((5,), device).requires_grad_() for _ in range(2))
    p, s, k = TWO(x, y)
    assert not k.requires_grad and p.requires_grad
    gp = torch.autograd.grad(p.sum(), (x, y), retain_graph=True)
    torch.testing.assert_close(gp, (y.detach(), x.detach()))
    gs = torch.autograd.grad(s.sum(), (x, y), retain_graph=True)
    torch.testing.assert_close(gs[0], x.detach().exp())
    assert gs[1].tolist() == [0] * 5
    both = torch.autograd.grad((p + 2 * s).sum(), x)[0]
    torch.testing.assert_close(both, y.detach() + 2 * x.detach().exp())


def test_only_what_is_asked_for(device: torch.device) -> None:
    x, y = random((4,), device).requires_grad_(), random((4,), device)
    z = SMOOTH(x, y)
    z.sum().backward()
    assert y.grad is None
    torch.testing.assert_close(x.grad, torch.sin(y) + 2 * x.detach() * y)


@pytest.mark.parametrize("shapes", [((5000, 3500), (3500,)), ((5000, 3500), (5000, 1)),
                                    ((64, 600, 500), (600, 1)), ((2, 9_000_000), (2, 1))],
                         ids=str)  # fmt: skip
def test_large_broadcast_gradients_are_summed_where_they_are_computed(
    shapes: tuple[tuple[int, ...], ...], device: torch.device
) -> None:
    """Full size they would take more than 64 MB. The peak of memory is measured on CUDA."""
    x = torch.ones(shapes[0], device=device)
    y = torch.rand(shapes[1], device=device).requires_grad_()
    kernel = ElementwiseKernel("T x, T y", "T z", "z = (x + 2) * y * y", "large")
    z = kernel(x, y)
    grad = torch.ones((), device=device).expand(z.shape)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    (mine,) = torch.autograd.grad(z, y, grad)
    if device.type == "cuda":
        assert torch.cuda.max_memory_allocated() - before < 2 * (64 << 20) + 2 * 4 * y.numel()
    count = x.numel() // y.numel()
    torch.testing.assert_close(mine, 6 * count * y.detach(), rtol=1e-5, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_broadcast_gradients_of_any_input(dtype: torch.dtype, device: torch.device) -> None:
    """Beside float64: a row, a column, both, and one number, of gradients that differ."""
    kernel = ElementwiseKernel("T x, T y", "T z", "z = x * sin(y) + y", "wave")
    x, grad = (random((9001, 2000), device, dtype) for _ in range(2))
    shapes: list[tuple[int, ...]] = [(2000,), (9001, 1)]
    shapes += [(1, 1), ()] if dtype == torch.float32 else []
    for shape in shapes:
        y = random(shape, device, dtype).requires_grad_()
        (mine,) = torch.autograd.grad(kernel(x, y), y, grad)
        wide = y.detach().double()
        theirs = (grad.double() * (x.double() * torch.cos(wide) + 1)).sum_to_size(shape)
        tolerance = 100 * torch.finfo(dtype).eps * (1 if dtype == torch.float32 else 0.1)
        # Beside the sum of absolute values, to which a sum's error is in proportion.
        scale = grad.double().abs().sum_to_size(shape).sqrt() * 10
        assert ((mine.double() - theirs).abs() <= tolerance * (theirs.abs() + scale)).all()


@pytest.mark.sanitizer
def test_gradients_for_the_sanitizer(device: torch.device) -> None:
    """Of broadcast inputs too, by the kernel that sums what it computes."""
    for shapes in (((5, 33), (33,)), ((64, 24), (24,)), ((7, 40), (7, 1)), ((3, 3), ())):
        x, y = (random(shape, device).requires_grad_() for shape in shapes)
        gx, gy = torch.autograd.grad(SMOOTH(x, y).sum(), (x, y))
        x, y = x.detach(), y.detach()
        torch.testing.assert_close(gx, (torch.sin(y) + 2 * x * y))
        torch.testing.assert_close(gy, (x * torch.cos(y) + x * x).sum_to_size(y.shape))
    x = torch.full((8200, 2048), -1.0, device=device)
    y = torch.ones(2048, device=device, requires_grad=True)
    (gy,) = torch.autograd.grad(LEAKY(x, y).sum(), y)
    assert bool((gy == -8200).all())


def test_second_derivatives_of_broadcast_gradients(device: torch.device) -> None:
    x = random((3, 4), device).requires_grad_()
    y = random((4,), device).requires_grad_()
    kernel = ElementwiseKernel("T x, T y", "T z", "z = x * x * y * y * y", "cubic")
    results = []
    for function in (kernel, lambda x, y: x * x * y * y * y):
        (gy,) = torch.autograd.grad(function(x, y).sum(), y, create_graph=True)
        (gx,) = torch.autograd.grad((gy * gy).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gx.sum(), (x, y)))
    torch.testing.assert_close(*results)


def test_torch_func(device: torch.device) -> None:
    x, y = random((4,), device), random((4,), device)

    def total(function):
        return lambda x, y: function(x, y).sum()

    for transform in (
        lambda f: torch.func.grad(total(f), argnums=(0, 1)),
        lambda f: torch.func.hessian(total(f)),
        lambda f: torch.func.jacrev(f, argnums=1),
        lambda f: torch.func.jacfwd(f),
        lambda f: torch.vmap(f, in_dims=(0, None)),
        lambda f: torch.vmap(torch.func.grad(lambda a, b: f(a, b))),
        lambda f: torch.func.grad(lambda x, y: torch.vmap(f, (0, None))(x, y).sum()),
    ):
        torch.testing.assert_close(transform(SMOOTH)(x, y), transform(reference)(x, y))


def test_vmap(device: torch.device) -> None:
    x, y = random((3, 4, 5), device, torch.float32), random((4, 3), device, torch.float32)
    for in_dims in ((0, 1), (1, 0), (2, None), (None, 0)):
        a, b = (x, y[..., None] if in_dims == (1, 0) else y)
        if in_dims == (0, 1):
            b = y[:, :, None].movedim(1, 1)
        try:
            expected = torch.vmap(reference, in_dims)(a, b)
        except RuntimeError:
            continue
        torch.testing.assert_close(torch.vmap(SMOOTH, in_dims)(a, b), expected)
    # A 0-d sample gives way to others in type promotion, as without vmap.
    scales = torch.rand(6, dtype=torch.float64, device=device)
    made = torch.vmap(SMOOTH, in_dims=(0, None))(scales, y[:, 0])
    assert made.dtype == torch.float32 and made.shape == (6, 4)
    # Where an element stands is counted in its sample.
    index = ElementwiseKernel("T x", "T y", "y = x * i + _ind.size()", "index")
    assert torch.vmap(index)(torch.ones(2, 3, device=device)).tolist() == [[3, 4, 5]] * 2
    for more in ({"preamble": "#define NN _ind.size()"}, {"options": ("-DNN=_ind.size()",)}):
        index = ElementwiseKernel("T x", "T y", "y = x * NN", "index", **more)
        assert torch.vmap(index)(torch.ones(2, 3, device=device)).tolist() == [[3] * 3] * 2
    raw = ElementwiseKernel("raw T w, int64 k", "T y", "y = w[k]")
    w, k = random((2, 5), device), torch.tensor([3, 1], device=device)
    torch.testing.assert_close(torch.vmap(raw, (0, None))(w, k), w[:, k])
    torch.testing.assert_close(torch.vmap(raw, (None, 0))(w[0], k), w[0][k])


def test_backward_by_code(device: torch.device) -> None:
    kernel = ElementwiseKernel(
        "T x, T y", "T z, T w", "z = x * y; w = x", "product",
        backward="grad_x = 2 * grad_z * y + grad_w; grad_y = 3 * grad_z * x",
    )  # fmt: skip
    x, y = random((3, 4), device).requires_grad_(), random((4,), device).requires_grad_()
    z, w = kernel(x, y)
    gx, gy = torch.autograd.grad(z.sum() + 5 * w.sum(), (x, y), create_graph=True)
    torch.testing.assert_close(gx.detach(), 2 * y.detach().expand(3, 4) + 5)
    torch.testing.assert_close(gy.detach(), 3 * x.detach().sum(0))
    # The snippet is differentiated in its turn.
    torch.testing.assert_close(torch.autograd.grad(gx.sum(), y)[0], torch.full_like(y, 6).detach())
    (only,) = torch.autograd.grad(kernel(x, y.detach())[0].sum(), x)
    torch.testing.assert_close(only, 2 * y.detach().expand(3, 4))


def saved_by(call: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    """What a call returns, and the tensors that are saved for its backward pass."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return call(), saved


def test_backward_by_code_from_outputs(device: torch.device) -> None:
    options = {"check_batched_grad": True}
    x = random((3, 4), device).requires_grad_()
    torch.autograd.gradcheck(SOFTPLUS, (x,), **options)
    torch.autograd.gradgradcheck(SOFTPLUS, (x,), **options)
    for shape in ((3, 4), (4,), ()):
        s = random(shape, device).abs().requires_grad_()
        for function in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            function(lambda x, s: SCALED(x, s)[0], (x, s), **options)
    torch.testing.assert_close(SOFTPLUS(x), torch.nn.functional.softplus(x))


def test_backward_by_code_saves_what_it_reads(device: torch.device) -> None:
    x = random((64, 8), device).requires_grad_()
    y, saved = saved_by(lambda: SOFTPLUS(x))
    assert [tensor.data_ptr() for tensor in saved] == [y.data_ptr()]
    y = SOFTPLUS(x)
    alive = weakref.ref(y)
    del y
    assert alive() is None  # its node does not keep it
    s = random((8,), device).requires_grad_()
    (y, k), saved = saved_by(lambda: SCALED(x, s))
    assert {tensor.data_ptr() for tensor in saved} == {t.data_ptr() for t in (x, s, y, k)}
    # Nor does the backward pass save anything of an input that it does not read.
    _, saved = saved_by(
        lambda: torch.autograd.grad(SOFTPLUS(x), x, torch.ones_like(x), create_graph=True)
    )
    assert sum(tensor.untyped_storage().nbytes() for tensor in saved) == 3 * x.nbytes
    # Of an input that is not saved, the gradient has the shape and the dtype nevertheless.
    kernel = ElementwiseKernel(
        "T x, T y", "float32 z", "z = x * y", "odd", backward="grad_x = 0.5 * grad_z; grad_y = 2.5"
    )
    a = random((1100, 1000), device).requires_grad_()
    b = random((1000,), device, torch.float32).requires_grad_()
    z, saved = saved_by(lambda: kernel(a, b))
    assert not saved
    ga, gb = torch.autograd.grad(z.sum(), (a, b))
    assert ga.dtype == torch.float64 and torch.equal(ga, torch.full_like(a, 0.5))
    assert gb.dtype == torch.float32 and torch.equal(gb, torch.full_like(b, 2750))


@pytest.mark.parametrize(
    ("backward", "saves"),
    [
        ("T y = exp(x); grad_x = grad_y * y", "xy"),  # its own variable hides the output
        ("grad_x = grad_y * OF_X", "x"),
        ("grad_x = grad_y * of_y", "y"),
        ("grad_x = grad_y /* not x */ * 1", ""),
    ],
)
def test_names_in_backward_by_code(backward: str, saves: str, device: torch.device) -> None:
    kernel = ElementwiseKernel(
        "T x", "T y", "y = exp(x)", "names", backward=backward,
        preamble="#define OF_X exp(x)\n#define of_y \\\n y\n",
    )  # fmt: skip
    x = random((4,), device).requires_grad_()
    y, saved = saved_by(lambda: kernel(x))
    assert {t.data_ptr() for t in saved} == {{"x": x, "y": y}[name].data_ptr() for name in saves}
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, torch.exp(x).detach() if saves else torch.ones_like(grad))


def test_backward_by_code_refuses() -> None:
    for params in (("T x, T grad_y", "T y"), ("T x", "T y, T grad_x")):
        with pytest.raises(ValueError, match="two meanings: a parameter, and the gradient of"):
            ElementwiseKernel(*params, "y = x", backward="grad_x = grad_y")
    writes = ElementwiseKernel("T x", "T y", "y = x", backward="y = 1; grad_x = grad_y")
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(CompileError, match="backward, line 1"):
        writes(x).sum().backward()
    y = SOFTPLUS(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = SOFTPLUS(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_backward_by_code_from_outputs_under_transforms(device: torch.device) -> None:
    x = random((3, 4), device)
    softplus = torch.nn.functional.softplus
    for transform in (
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        lambda f: torch.func.jacrev(torch.func.jacrev(lambda x: f(x).sum())),
        lambda f: torch.vmap(torch.func.grad(lambda x: f(x).square().sum())),
        lambda f: torch.func.grad(lambda x: torch.vmap(f)(x).square().sum()),
        lambda f: torch.vmap(torch.func.grad(f), in_dims=0)(x[0]).mul,
    ):
        torch.testing.assert_close(transform(SOFTPLUS)(x), transform(softplus)(x))


def test_raw_inputs(device: torch.device) -> None:
    """Gradients of the others; its own by a snippet alone."""
    operation = "y = w[k] * s"
    auto = ElementwiseKernel("raw T w, int64 k, T s", "T y", operation, "pick")
    w = random((5,), device, torch.float32).requires_grad_()
    k = torch.tensor([4, 1, 1], device=device)
    s = random((3,), device, torch.float32).requires_grad_()
    y = auto(w.detach(), k, s)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), s)[0], w.detach()[k])
    with pytest.raises(
        RuntimeError, match='"pick" has no automatic gradient with respect to its raw parameter w'
    ):
        auto(w, k, s).sum().backward()
    code = ElementwiseKernel(
        "raw T w, int64 k, T s", "T y", operation, "pick",
        backward="atomicAdd(&grad_w[k], grad_y * s); grad_s = grad_y * w[k]",
    )  # fmt: skip
    gw, gs = torch.autograd.grad(code(w, k, s).sum(), (w, s))
    expected = torch.zeros(5, device=device).index_add(0, k, s.detach())
    torch.testing.assert_close(gw, expected)
    torch.testing.assert_close(gs, w.detach()[k])


class Untouched(torch.autograd.Function):
    """A function with an undefined gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


def test_undefined_gradients(device: torch.device) -> None:
    """They stay undefined, though only raw parameters and numbers are left, without a shape."""
    raw = ElementwiseKernel(
        "raw T w, T s", "T y", "y = w[i] * s", "raw", backward="grad_w[i] = grad_y * s"
    )
    indexed = IndexedKernel("T x[src]", "T y[dst]", "y = x * x", "indexed")
    w = random((3,), device).requires_grad_()
    index = torch.tensor([0, 2], device=device)
    for y in (raw(w, 0.5, size=3), indexed(w, src=index, dst=index, sizes={"dst": 3})):
        grads = torch.autograd.grad(Untouched.apply(y).sum(), w, allow_unused=True)
        assert grads == (None,)
    assert torch.autograd.gradcheck(lambda w: raw(w, 0.5, size=3), w)


def test_batched_gradients(device: torch.device) -> None:
    """By torch.vmap's rule, also where an element does not stand for itself."""
    x = random((3,), device).requires_grad_()
    w = random((5,), device)
    k = torch.tensor([4, 1, 1], device=device)
    scaled = ElementwiseKernel("T x, raw T w, int64 k", "T y", "y = x * x * w[k] + i * x", "scaled")
    dot = ElementwiseKernel("T x, raw T w, int64 k", "T y", "y = x * x * w[k]", "at_k")
    directions = random((4, 3), device)
    for kernel, by_place in ((scaled, torch.arange(3, device=device)), (dot, 0)):
        y = kernel(x, w, k)
        (grads,) = torch.autograd.grad(y, x, directions, is_grads_batched=True)
        torch.testing.assert_close(grads, directions * (2 * x * w[k] + by_place))
    hessian = torch.autograd.functional.hessian(lambda x: SMOOTH(x, w[:3]).sum(), x, vectorize=True)
    torch.testing.assert_close(hessian, torch.diag(2 * w[:3]))


def test_refused_gradients(device: torch.device) -> None:
    x = random((3,), device).requires_grad_()
    kernel = ElementwiseKernel("T x", "T y", "y = x", "plain", backward=None)
    y = kernel(x)
    with pytest.raises(
        RuntimeError, match='"plain" has no gradient: it was made with backward=None'
    ):
        y.sum().backward()
    kernel = ElementwiseKernel("T x, T y", "T z", "z = x", "half", backward="grad_x = grad_z")
    with pytest.raises(RuntimeError, match="does not write grad_y, but y requires"):
        kernel(x, x).sum().backward()
    with pytest.raises(RuntimeError, match="no forward-mode derivative"):
        torch.func.jvp(lambda a: kernel(a, 1.0), (x.detach(),), (x.detach(),))


def test_saved_tensors_are_guarded(device: torch.device) -> None:
    x = random((3,), device).requires_grad_()
    y = x * 1
    z = SMOOTH(y, 2.0)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    z = SMOOTH(x, 2.0)
    z.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        z.sum().backward()


def test_index_in_derivatives(device: torch.device) -> None:
    kernel = ElementwiseKernel("T x, T y", "T z", "z = x * i + y * y * _ind.size()", "indexed")
    x, y = random((3, 4), device).T.requires_grad_(), random((1, 3), device).requires_grad_()
    gx, gy = torch.autograd.grad(kernel(x, y).sum(), (x, y))
    assert torch.equal(gx, torch.arange(12.0, device=device, dtype=torch.float64).view(4, 3))
    torch.testing.assert_close(gy, 4 * 12 * 2 * y.detach())
    # A sum that is large enough to be a kernel of its own otherwise.
    x, y = torch.ones(1000, 1100, device=device), torch.zeros(1000, 1, device=device)
    y.requires_grad_()
    for backward in ("grad_y = grad_z * (i % 1100)", "OF_Y = grad_z * (AT % 1100)"):
        kernel = ElementwiseKernel(
            "T x, T y", "T z", "z = x + y", "counted", backward=backward,
            preamble="#define OF_Y grad_y", options=("-DAT=i",),
        )  # fmt: skip
        (gy,) = torch.autograd.grad(kernel(x, y).sum(), y)
        assert bool((gy == 1099 * 1100 / 2).all())
    kernel = ElementwiseKernel(
        "T x, T y", "T z", "z = y * NN", options=("-DNN=(_ind.size() / 550000)",)
    )
    (gy,) = torch.autograd.grad(kernel(x, y).sum(), y)
    assert bool((gy == 2 * 1100).all())


def test_parameters_named_as_derivatives_are(device: torch.device) -> None:
    """The names of gradients and tangents are made such as no parameter has, at every level."""
    kernel = ElementwiseKernel("T grad_y, T x", "T y", "y = grad_y * grad_y * x * x * x")
    inputs = tuple(random((1,), device).requires_grad_() for _ in range(2))
    torch.autograd.gradgradcheck(kernel, inputs)
    kernel = ElementwiseKernel("T tangent_y, T x", "T y", "y = tangent_y * x * x")
    y, x = random((1,), device), random((2,), device)
    slopes = torch.func.jvp(
        lambda x: torch.func.jvp(lambda x: kernel(y, x), (x,), (x,))[1], (x,), (x,)
    )
    torch.testing.assert_close(slopes, (2 * y * x * x, 4 * y * x * x))


def test_example_runs() -> None:
    """examples/jit/leaky_relu.py: trained in a small network."""
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "jit" / "leaky_relu.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "torch's own, on broadcast and transposed input" in run.stdout
    assert "step 300: loss 0.0" in run.stdout
