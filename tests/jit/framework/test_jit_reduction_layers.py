"""ReductionKernel under torch's layers: fake tensors, transforms, graphs; and no derivative."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

from torch_ops.jit import ReductionKernel, op

NORM = ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", 0, "norm_of_layers")
DOT = ReductionKernel("T x, T y", "T z", "x * y", "a + b", "z = a", 0, "dot_of_layers")
LARGEST = ReductionKernel("T x", "T y", "x", "a > b ? a : b", "y = a", None, "largest_of_layers")
MEAN = ReductionKernel("T x", "T y", "x", "a + b", "y = a / _in_ind.size()", 0, "mean_of_layers")
PICKED = ReductionKernel("T x, raw T w", "T y", "x * w[1]", "a + b", "y = a", 0, "picked")

named_norm = op("jit_tests::norm_of_layers")(NORM)
named_largest = op("jit_tests::largest_of_layers")(LARGEST)
BOTH = pytest.mark.parametrize("norm", [NORM, named_norm], ids=["kernel", "op"])


def random(shape: tuple[int, ...], device: torch.device, dtype=torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)


@BOTH
def test_tensors_without_memory(norm: Callable[..., Tensor], device: torch.device) -> None:
    x = random((3, 4), device)
    with FakeTensorMode() as mode:
        fake = norm(mode.from_tensor(x), dim=-1)
        assert fake.shape == (3,) and fake.device == x.device and fake.dtype == x.dtype
    meta = norm(x.to("meta").half(), dim=0, keepdim=True)
    assert meta.is_meta and meta.shape == (1, 4) and meta.dtype == torch.float16
    doubled = torch.func.functionalize(lambda x: norm(x * 2, dim=-1))(x)
    torch.testing.assert_close(doubled, 2 * x.norm(dim=-1))
    of_two = norm(TwoTensor(x, x + 1), dim=1)
    torch.testing.assert_close(of_two.a, x.norm(dim=1))
    torch.testing.assert_close(of_two.b, (x + 1).norm(dim=1))


@BOTH
def test_graphs(norm: Callable[..., Tensor], device: torch.device) -> None:
    x, y = random((3, 4), device), random((5, 4), device)

    def function(x: Tensor) -> Tensor:
        return norm(x * 2, dim=-1) + norm(x, dim=0, keepdim=True).sum() + norm(x)

    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(function, tracing_mode=mode)(x)
        torch.testing.assert_close(graph(y[:3]), function(y[:3]))
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for value in (x, y):
        torch.testing.assert_close(compiled(value), function(value))

    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Layer(), (x,), dynamic_shapes=({0: rows},))
    torch.testing.assert_close(program.module()(y), function(y))


def test_exported_programs_are_saved(device: torch.device) -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return named_norm(x, dim=0)

    x = random((3, 4), device)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Layer(), (x,)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), x.norm(dim=0))


def test_inductor(device: torch.device) -> None:
    torch.compiler.reset()
    x = random((3, 4), device)
    compiled = torch.compile(lambda x: NORM(x * 2, dim=1) + DOT(x, 0.5, dim=1), fullgraph=True)
    torch.testing.assert_close(compiled(x), 2 * x.norm(dim=1) + 0.5 * x.sum(1))


def test_opcheck(device: torch.device) -> None:
    x, y = random((3, 4), device), random((4,), device)
    torch.library.opcheck(NORM._op, ([x], [], [], [0], True))
    torch.library.opcheck(DOT._op, ([x, y], [], [], None, False))
    torch.library.opcheck(DOT._op, ([x], [2.5], [1], [-1], False))
    torch.library.opcheck(named_norm.overload, (x, [0]), {"keepdim": True})


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 1), (-1, 0), ()], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_vmap(dim: object, keepdim: bool, device: torch.device) -> None:
    x, y = random((2, 3, 4), device), random((2, 4), device)
    for kernel in (NORM, MEAN, named_norm):
        one = functools.partial(kernel, dim=dim, keepdim=keepdim)
        if kernel is not MEAN:  # which needs the number of elements
            assert (
                torch.vmap(one)(x[:0]).shape[0] == 0
            )  # a loop over samples has none to begin with
        expected = torch.stack([one(sample) for sample in x])
        for axis in range(3):
            actual = torch.vmap(one, axis)(x.movedim(0, axis))
            torch.testing.assert_close(actual, expected)
    dot = functools.partial(DOT, dim=dim, keepdim=keepdim)
    torch.testing.assert_close(torch.vmap(dot)(x, y), torch.stack(list(map(dot, x, y))))
    torch.testing.assert_close(
        torch.vmap(dot, (None, 0))(x[0], y), torch.stack([dot(x[0], sample) for sample in y])
    )
    nested = torch.vmap(torch.vmap(functools.partial(NORM, dim=0)))(x)
    torch.testing.assert_close(nested, x.norm(dim=-1))


def test_vmap_of_numbers_and_raw_arrays(device: torch.device) -> None:
    x, y = random((2, 3), device), random((2, 4), device)
    torch.testing.assert_close(torch.vmap(NORM)(x[:, 0]), x[:, 0].abs())
    torch.testing.assert_close(torch.vmap(lambda x: DOT(x, 2.0))(x), 2 * x.sum(1))
    # A 0-d tensor gives way to others in type promotion, in a sample as without vmap.
    mixed = torch.vmap(DOT)(x.half(), random((2,), device, torch.float64))
    assert mixed.dtype == torch.float16
    torch.testing.assert_close(torch.vmap(PICKED)(x, y), x.sum(1) * y[:, 1])
    torch.testing.assert_close(torch.vmap(PICKED, (0, None))(x, y[0]), x.sum(1) * y[0, 1])
    for more in ({"preamble": "#define NN _in_ind.size()"}, {"options": ("-DNN=_in_ind.size()",)}):
        mean = ReductionKernel("T x", "T y", "x", "a + b", "y = a / NN", 0, "mean", **more)
        torch.testing.assert_close(torch.vmap(mean)(x), x.mean(1))
    with pytest.raises(IndexError, match="dim must be between -1 and 0, but it is 1"):
        torch.vmap(functools.partial(NORM, dim=1))(x)
    with pytest.raises(ValueError, match="no identity"):
        torch.vmap(LARGEST)(x[:, :0])


@BOTH
def test_the_backward_pass_says_that_there_is_none(
    norm: Callable[..., Tensor], device: torch.device
) -> None:
    says = r'ReductionKernel "norm_of_layers" has no gradient\. Detach its inputs'
    x = random((3,), device).requires_grad_()
    with pytest.raises(RuntimeError, match=says):
        (norm(x * 2) + x.sum()).backward()
    for function in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(RuntimeError, match=says):
            function(norm)(x.detach())
    with pytest.raises(RuntimeError, match=says):
        torch.func.grad(lambda x: torch.vmap(norm)(x).sum())(random((2, 3), device))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: norm(x * 2), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match=says):
        compiled(x)
    detached = torch.compile(
        lambda x: norm(x.detach()) * x.sum(), fullgraph=True, backend="aot_eager"
    )
    detached(x).backward()
    torch.testing.assert_close(x.grad, x.detach().norm().expand(3))


@BOTH
def test_there_is_no_forward_mode(norm: Callable[..., Tensor], device: torch.device) -> None:
    says = r'ReductionKernel "norm_of_layers" has no forward-mode derivative'
    x = random((3,), device)
    with pytest.raises(NotImplementedError, match=says):
        torch.func.jvp(norm, (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match=says):
        norm(torch.autograd.forward_ad.make_dual(x, x))


def test_out(device: torch.device) -> None:
    x = random((3, 4), device)
    result = torch.empty(3, device=device)
    leaf = torch.empty(3, device=device, requires_grad=True)
    for values, out in ((x.clone().requires_grad_(), result), (x, leaf)):
        with pytest.raises(RuntimeError, match=r"out= and automatic differentiation exclude"):
            NORM(values, dim=1, out=out)
        with torch.no_grad():
            assert NORM(values, dim=1, out=out) is out
        torch.testing.assert_close(out.detach(), x.norm(dim=1))
    before = result._version
    NORM(x, dim=1, out=result)
    assert result._version == before + 1
    with pytest.raises(RuntimeError, match=r"out= cannot be given.*on meta"):
        NORM(x, dim=1, out=result.to("meta"))


def test_out_in_a_graph(device: torch.device) -> None:
    torch.compiler.reset()
    x, result = random((3, 4), device), torch.empty(6, device=device)[::2]

    def into(x: Tensor, out: Tensor) -> Tensor:
        return NORM(x, dim=1, out=out)

    torch.compile(into, fullgraph=True, backend="aot_eager")(x, result)
    torch.testing.assert_close(result, x.norm(dim=1))
    compiled = torch.compile(into, backend="aot_eager")
    with pytest.raises(ValueError, match=r"out has shape \[4\], but the result has \[3\]"):
        compiled(x, torch.empty(4, device=device))
    with pytest.raises(TypeError, match=r"is computed in .*, which is not cast to"):
        compiled(x, torch.empty(3, device=device, dtype=torch.int32))


def test_layouts_that_are_refused(device: torch.device) -> None:
    x = random((3, 4), device)
    with pytest.raises(TypeError, match="x must be a strided tensor, but it is Sparse"):
        NORM(x.to_sparse())
    with pytest.raises(TypeError, match="x must be a strided tensor, but it is nested"):
        NORM(torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged))
    with pytest.raises(TypeError, match=r"x is torch\.qint8; kernels compute on"):
        NORM(torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8))


BAD = {
    "dim": (NORM, (3, 4), 5, IndexError, "dim must be between -2 and 1, but it is 5"),
    "twice": (NORM, (3, 4), (0, -2), ValueError, "dim 0 is named twice"),
    "empty": (LARGEST, (3, 0), 1, ValueError, "no element to reduce"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_without_memory(case: str, device: torch.device) -> None:
    """The same as with it."""
    kernel, shape, dim, error, message = BAD[case]
    named = named_norm if kernel is NORM else named_largest
    for call in (kernel, named):
        for where in (device, "meta"):
            with pytest.raises(error, match=message):
                call(torch.ones(shape, device=where), dim=dim)
    assert LARGEST(torch.ones(0, 3, device="meta"), dim=1).shape == (0,)
