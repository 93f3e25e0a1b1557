"""ElementwiseKernel in what torch traces: torch.compile, exported programs, fake tensors."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from jit_tools import LEAKY, SCALED, SMOOTH, SOFTPLUS, TWO, random, run_python
from torch import Tensor
from torch._dynamo import compiled_autograd

from torch_ops.jit import ElementwiseKernel, IndexedKernel, op
from torch_ops.jit._registered import _kind
from torch_ops.jit.language.params import DTYPES


def function_of_kernels(x: Tensor, y: Tensor) -> Tensor:
    return SMOOTH(LEAKY(x, 0.1), y) * 2 + SOFTPLUS(x) * SCALED(x, 0.5)[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool, device: torch.device) -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        function_of_kernels, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for shape in ((3, 4), (5, 4)):
        results = []
        for call in (function_of_kernels, compiled):
            x = random(shape, device).T.requires_grad_()
            y = random((shape[0],), device).requires_grad_()
            z = call(x, y)
            results.append((z, *torch.autograd.grad(z.sum(), (x, y))))
        torch.testing.assert_close(results[0], results[1])
        assert results[0][0].stride() == results[1][0].stride()


def test_compile_with_out_and_size(device: torch.device) -> None:
    torch.compiler.reset()
    flip = ElementwiseKernel("raw T w", "T y", "y = w[_ind.size() - 1 - i]", "flip")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(x: Tensor, out: Tensor) -> Tensor:
        LEAKY(x, 0.5, out=out)
        return flip(x, size=(5,))

    x, out = random((5,), device), torch.empty(5, dtype=torch.float64, device=device)
    assert torch.equal(call(x, out), x.flip(0))
    torch.testing.assert_close(out, torch.nn.functional.leaky_relu(x, 0.5))


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (torch.zeros(3, 4, dtype=torch.int32), TypeError, "output y is computed in .*not cast to"),
        (torch.zeros(2, 3, 4), ValueError, r"output y has shape \[2, 3, 4\].*never resized"),
        (torch.zeros(3, 1), ValueError, r"output y has shape \[3, 1\].*never resized"),
        (torch.zeros(1, 4).expand(3, 4), RuntimeError, "more than one element"),
        (torch.zeros(3, 4).requires_grad_(), RuntimeError, "exclude each other"),
        ((torch.zeros(3, 4),) * 2, TypeError, "number of tensors in out= must be 1"),
        (3, TypeError, "output y must be a tensor, but it is int"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_compile_refuses_the_outputs_that_eager_refuses(
    fullgraph: bool, out: Any, error: type[Exception], message: str, device: torch.device
) -> None:
    torch.compiler.reset()
    x = random((3, 4), device)
    given = out.detach().to(device) if isinstance(out, Tensor) else out
    if isinstance(out, Tensor) and out.stride(0) == 0:
        given = given[:1].expand(3, 4)
    if isinstance(out, Tensor) and out.requires_grad:
        given.requires_grad_()

    def call(x: Tensor, out: Any) -> Any:
        return LEAKY(x, 0.5, out=out)

    with pytest.raises(error, match=message):
        call(x, given)
    compiled = torch.compile(call, fullgraph=fullgraph, backend="aot_eager")
    # With fullgraph=True what is raised inside is told by an error of torch.compile's own.
    with pytest.raises((error, torch._dynamo.exc.TorchDynamoException), match=f"(?s){message}"):
        compiled(x, given)


@pytest.mark.parametrize("output", ["raw T y", "T y"])
def test_compile_with_outputs_that_are_kept(output: str, device: torch.device) -> None:
    """torch.compile goes on without a graph; fullgraph=True takes them in a registered function."""
    text = "y[i] = x" if "raw" in output else "y += x"
    kernel = ElementwiseKernel("T x", output, text, "kept")

    @op("jit_tests::kept", mutates_args="y")
    def registered(x: Tensor, y: Tensor) -> None:
        kernel(x, out=y)

    def call(x: Tensor, y: Tensor) -> Tensor:
        kernel(x, out=y)
        return y + 1

    def call_registered(x: Tensor, y: Tensor) -> Tensor:
        registered(x, y)
        return y + 1

    x = random((3,), device)
    for function, fullgraph in ((call, False), (call_registered, True)):
        torch.compiler.reset()
        compiled = torch.compile(function, fullgraph=fullgraph, backend="aot_eager")
        y = torch.zeros_like(x)
        assert torch.equal(compiled(x, y), x + 1) and torch.equal(y, x)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"a raw one, .*registers with mutates"):
        torch.compile(call, fullgraph=True, backend="eager")(x, y)


def test_casts_that_torch_compile_cannot_ask_torch_about() -> None:
    for made, given in itertools.product(DTYPES.values(), repeat=2):
        assert (_kind(made) <= _kind(given)) == torch.can_cast(made, given), (made, given)


@pytest.mark.timeout(600)
def test_inductor(device: torch.device) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function_of_kernels, fullgraph=True)
    x, y = random((3, 4), device).requires_grad_(), random((4,), device).requires_grad_()
    expected = torch.autograd.grad(function_of_kernels(x, y).sum(), (x, y))
    torch.testing.assert_close(torch.autograd.grad(compiled(x, y).sum(), (x, y)), expected)


GRADIENTS = """
import torch
from torch._dynamo.utils import counters
from torch_ops.jit import ElementwiseKernel, IndexedKernel, op

cube = op("jit_tests::cube")(ElementwiseKernel("T x", "T y", "y = x * x * x"))
message = IndexedKernel("T x[src]", "T y[dst]", "y = x * x", "message")


@torch.compile(fullgraph=True)
def function(x, src, dst):
    return message(cube(x), src=src, dst=dst, sizes={"dst": 2})


x = torch.tensor([[1.0], [2.0]], requires_grad=True)
function(x, torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])).backward(torch.ones(2, 1))
print(counters["aot_autograd"]["autograd_cache_hit"], x.grad.tolist())
"""


def test_compiled_gradients_in_another_process(tmp_path: Path) -> None:
    """It finds the compiled backward pass on disk, so no trace of it makes the ops."""
    for hits in (0, 1):
        printed = run_python(GRADIENTS, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
        assert printed.splitlines()[-1] == f"{hits} [[6.0], [384.0]]"


def test_derivatives_are_found_by_their_names() -> None:
    """As torch.export.load looks them up, before or without a gradient in this process."""
    kernel = ElementwiseKernel("T x, T s", "T y", "y = x * x * s", "by_name")
    name = f"{kernel._kernel.op_name}_vjp_10_00_1"
    assert not hasattr(torch.ops.torch_ops_jit, name + "_vjp_2")
    by_name = getattr(torch.ops.torch_ops_jit, name + "_vjp_110_000_1").default
    x = torch.empty(3, device="meta", requires_grad=True)
    assert len(by_name([x, x, x], [0.5], [3])) == 2
    (slope,) = torch.autograd.grad(kernel(x, 0.5).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    assert second.shape == (3,)

    indexed = IndexedKernel("T x[src]", "T y[dst]", "y = x * x", "by_name")
    assert hasattr(torch.ops.torch_ops_jit, f"{indexed._kernel.op_name}_vjp_1_1_jvp_11_")


def test_compiled_autograd(device: torch.device) -> None:
    torch.compiler.reset()
    x, y = random((3, 4), device).requires_grad_(), random((4,), device).requires_grad_()
    loss = (TWO(x, y)[0] + LEAKY(x, 0.25) + SOFTPLUS(x) * SCALED(y, x)[0]).sum()
    expected = torch.autograd.grad(loss, (x, y), retain_graph=True)
    with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    torch.testing.assert_close((x.grad, y.grad), expected)


def test_opcheck(device: torch.device) -> None:
    x = random((3, 4), device, torch.float32)
    for args in (
        ([x, x[0]], [], []),
        ([x.T.requires_grad_()], [0.5], [1]),
        ([x.clone().requires_grad_(), x[:1].clone().requires_grad_()], [], []),
    ):
        torch.library.opcheck(SMOOTH._op, args)
    torch.library.opcheck(SOFTPLUS._op, ([x.requires_grad_()], [], []))


def test_export(device: torch.device) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return LEAKY(x, 0.125)

    x = random((3, 4), device)
    program = torch.export.export(Layer(), (x,))
    assert LEAKY._kernel.op_name in str(program.graph)
    torch.testing.assert_close(program.module()(x), LEAKY(x, 0.125))


def test_fake_tensors_have_the_layout_of_real_ones(device: torch.device) -> None:
    x = random((2, 3, 4, 5), device)
    for args in (
        (x, x),
        (x.transpose(1, 3), x.transpose(1, 3)),
        (x.to(memory_format=torch.channels_last), 2.0),
        (x[:, :1], x[..., ::2].repeat_interleave(2, -1)[..., :5]),
        (x[0, 0, 0], x),
        (x.expand(2, 3, 4, 5)[:1], x.movedim(0, -1).movedim(-1, 0)),
    ):
        real = SMOOTH(*args)
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
            fake = SMOOTH(*fakes)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_outputs_that_nobody_uses(device: torch.device) -> None:
    """Their slopes, which may be infinite, are not in the gradient, at any order."""
    x = torch.tensor([0.0, 4.0], dtype=torch.float64, device=device, requires_grad=True)
    kernel = ElementwiseKernel("T x", "T y, T r, bool m", "y = x * x; r = sqrt(x); m = x > 0", "k")

    def used(x: Tensor) -> Tensor:
        return kernel(x)[0].sum()

    for call in (used, torch.compile(used, fullgraph=True, backend="aot_eager")):
        assert torch.autograd.grad(call(x), x)[0].tolist() == [0, 8]
    assert torch.func.grad(used)(x).tolist() == [0, 8]
    assert torch.autograd.grad(kernel(x)[1].sum(), x)[0].tolist() == [torch.inf, 0.25]
    torch._dynamo.reset()

    both = ElementwiseKernel("T x, T w", "T y", "y = x * x * x + sqrt(w)", "both")
    w = x.detach().requires_grad_()
    of_x, _ = torch.autograd.grad(both(x, w).sum(), (x, w), create_graph=True)
    grads = torch.autograd.grad(of_x.sum(), (x, w), materialize_grads=True)
    assert [grad.tolist() for grad in grads] == [[0, 24], [0, 0]]
