"""Complex numbers in kernels: arithmetic, functions, memory, reductions, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from op_checks import layouts_of
from torch import Tensor

from torch_ops.jit import ElementwiseKernel, ReductionKernel

DTYPES = [torch.complex64, torch.complex128]
ADD = ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")

FUNCTIONS = {
    "exp": "exp(x)",
    "log": "log(x)",
    "log10": "log10(x)",
    "sqrt": "sqrt(x)",
    "sin": "sin(x)",
    "cos": "cos(x)",
    "tan": "tan(x)",
    "sinh": "sinh(x)",
    "cosh": "cosh(x)",
    "tanh": "tanh(x)",
    "conj_physical": "conj(x)",
    "square": "pow(x, 2)",
    "reciprocal": "1 / x",
    "neg": "-x",
}


def random(shape: tuple[int, ...], device: torch.device, dtype=torch.complex128) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic(dtype: torch.dtype, device: torch.device) -> None:
    kernel = ElementwiseKernel(
        "T x, T y", "T z",
        "z = (x * y - y / x + 2) * T(0.5, -1) + x * 3 - 1 / y; z += x; z *= y; z -= 1; z /= x;"
        "if (x == y || x != x) z = 7;",
    )  # fmt: skip
    x, y = random((65,), device, dtype), random((9, 65), device, dtype)
    for a, b in ((x, y), (y, x), (x, x), (x, 2 - 1j), (1.5, x), (x, 3), (x, y.real.contiguous())):
        z = (a * b - b / a + 2) * (0.5 - 1j) + a * 3 - 1 / b
        z = ((z + a) * b - 1) / a
        wanted = torch.full_like(z, 7) if a is b else z
        actual = kernel(a, b)
        assert actual.dtype == dtype
        torch.testing.assert_close(
            actual, wanted, rtol=1e-4 if dtype == DTYPES[0] else 1e-12, atol=1e-4
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions(dtype: torch.dtype, device: torch.device) -> None:
    text = "".join(f"{name}_ = {call};" for name, call in FUNCTIONS.items())
    outputs = ", ".join(f"T {name}_" for name in FUNCTIONS)
    x = 2 * random((400,), device, dtype)
    x[:4] = torch.tensor([0.5, -0.5, 0.25j, -3j])
    for name, actual in zip(FUNCTIONS, ElementwiseKernel("T x", outputs, text)(x), strict=True):
        torch.testing.assert_close(
            actual, getattr(torch, name)(x), msg=lambda t, name=name: f"{name}: {t}"
        )
    parts = ElementwiseKernel(
        "T x, U y", "U a, U b, U c, U d, U e, T f, bool g",
        "a = abs(x); b = arg(x); c = norm(x); d = x.real(); e = imag(x); f = polar(y, b);"
        "g = isfinite(x) && !isnan(x)",
    )  # fmt: skip
    size, angle, norm, real, imag, made, finite = parts(x, x.abs())
    torch.testing.assert_close(size, x.abs())
    torch.testing.assert_close(angle, x.angle())
    torch.testing.assert_close(norm, x.abs() ** 2)
    assert torch.equal(real, x.real) and torch.equal(imag, x.imag) and bool(finite.all())
    torch.testing.assert_close(made, x)
    large = torch.tensor([300 + 1j, -300 - 2j], dtype=dtype, device=device)
    torch.testing.assert_close(ElementwiseKernel("T x", "T y", "y = tanh(x)")(large), large.tanh())
    power = ElementwiseKernel("T x, T y", "T z", "z = pow(x, y)")
    torch.testing.assert_close(power(x, x.flip(0)), x ** x.flip(0), rtol=1e-4, atol=1e-4)
    assert power(torch.zeros_like(x), 2).abs().max() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_limits_of_functions(dtype: torch.dtype, device: torch.device) -> None:
    """Signs at branch cuts, infinities, and values near overflow, as the C library has them."""
    calls = {name: FUNCTIONS[name] for name in ("sqrt", "exp", "sinh", "cosh", "sin", "cos")}
    text = "".join(f"{name}_ = {call};" for name, call in calls.items())
    kernel = ElementwiseKernel("T x", ", ".join(f"T {name}_" for name in calls), text)
    parts = torch.tensor([20.5, 88.3, 89.1, 90, 200, 709.5, 709.9, 710.6, 1e3, torch.inf])
    parts = torch.cat([torch.tensor([0.0, -0.0, 1, -4]), parts, -parts]).double()
    others = torch.tensor([0.0, -0.0, 0.7, -0.7, 3, 1e-30, torch.inf]).double()
    x = torch.complex(*torch.meshgrid(parts, others, indexing="ij")).flatten()
    x = torch.cat([x, torch.complex(x.imag, x.real)]).to(dtype)
    for name, actual in zip(calls, kernel(x.to(device)), strict=True):
        # The C library leaves open some of what they are of an infinite angle.
        angle = x.real if name in ("sin", "cos") else x.imag
        chosen = torch.ones_like(angle.isinf()) if name == "sqrt" else ~angle.isinf()
        for part in (torch.real, torch.imag):  # torch compares the infinite ones as a whole
            ours, wanted = (part(z.cpu()[chosen]) for z in (actual, getattr(torch, name)(x)))
            torch.testing.assert_close(
                ours, wanted, equal_nan=True, msg=lambda t, n=name: f"{n}: {t}"
            )
            signs = ours.signbit() == wanted.signbit()
            assert bool((signs | wanted.isnan()).all()), name


def test_types(device: torch.device) -> None:
    """As torch promotes them; a complex argument is cast to no real parameter."""
    x = random((5,), device, torch.complex64)
    for y in (torch.ones(5, device=device), torch.ones(5, device=device, dtype=torch.float64),
              torch.ones(5, device=device, dtype=torch.int32), random((5,), device), 1j, 2.0,
              torch.tensor(1j, dtype=torch.complex128)):  # fmt: skip
        actual = ADD(x, y)
        assert actual.dtype == torch.result_type(x, y)
        torch.testing.assert_close(actual, (x + y).to(actual))
    assert ADD(torch.ones(3, device=device), 1j).dtype == torch.complex64
    fixed = ElementwiseKernel("complex64 x, float32 y", "complex128 z", "z = x * y")
    assert fixed(torch.ones(2, device=device), 2).tolist() == [2, 2]
    with pytest.raises(TypeError, match=r"y is declared float32, .*torch\.complex64 is not cast"):
        fixed(x, x)
    with pytest.raises(TypeError, match=r"torch\.complex64, which is not cast to torch\.float32"):
        ADD(x, x, out=torch.empty(5, device=device))


def test_memory(device: torch.device) -> None:
    """Strides, broadcasting, views that are not conjugated yet, raw arrays."""
    for shape in ((33,), (6, 7), (2, 3, 4, 8)):
        for dtype in DTYPES:
            x = random(shape, device, dtype)
            for _, view in layouts_of(x):
                assert torch.equal(ADD(view, x), view + x)
                assert torch.equal(ADD(view.conj(), x), view.conj() + x)
                assert torch.equal(ADD(view, x[..., :1]), view + x[..., :1])
    reverse = ElementwiseKernel("raw T w", "T y", "y = w[_ind.size() - 1 - i]")
    x = random((9,), device, torch.complex64)
    assert torch.equal(reverse(x, size=9), x.flip(0))
    assert torch.equal(reverse(x.conj(), size=9), x.conj().flip(0))


def test_reductions(device: torch.device) -> None:
    total = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, "total")
    norm = ReductionKernel("T x", "float64 y", "norm(x)", "a + b", "y = sqrt(a)", 0, "norm")
    for dtype in DTYPES:
        for shape in ((7,), (300, 5), (5, 3000), (900, 64), (40_000, 2)):
            x = random(shape, device, dtype)
            for dim in (None, 0, -1):
                torch.testing.assert_close(total(x, dim=dim), x.sum(dim), rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(
                norm(x).item(), x.abs().double().norm().item(), rtol=1e-5, atol=0
            )
            torch.testing.assert_close(
                total(x.conj(), dim=0), x.conj().sum(0), rtol=1e-4, atol=1e-3
            )
            imaginary = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0)
            torch.testing.assert_close(
                imaginary(x.conj().imag, dim=0), x.conj().imag.sum(0), rtol=1e-4, atol=1e-3
            )
    with pytest.raises(RuntimeError, match="conjugation or negation has not been carried out"):
        total(x[0], out=torch.empty((), dtype=x.dtype, device=device).conj())


def test_identity(device: torch.device) -> None:
    product = ReductionKernel("T x", "T y", "x", "a * b", "y = a", 1j - 2)
    assert product(torch.empty(0, dtype=torch.complex64, device=device)).item() == 1j - 2
    x = random((5, 3), device)
    torch.testing.assert_close(product(x, dim=0), x.prod(0))


def test_no_derivative(device: torch.device) -> None:
    """Said in the backward pass; not lost without a word."""
    x = random((4,), device).requires_grad_()
    real = torch.ones(4, device=device, requires_grad=True)
    size = ElementwiseKernel("T x", "float64 y", "y = abs(x)", "size")
    message = r"has no derivative on complex tensors\. Detach"
    for made in (ADD(x, 1), ADD(real, 1j), size(x)):
        assert made.requires_grad
        with pytest.raises(RuntimeError, match=message):
            made.abs().sum().backward()
    with pytest.raises(RuntimeError, match=message):
        torch.func.jvp(lambda a: ADD(a, 1), (x.detach(),), (x.detach(),))
    total = ReductionKernel("T x", "T y", "x", "a + b", "y = a", 0, "total")
    with pytest.raises(RuntimeError, match='"total" has no gradient'):
        total(x).abs().backward()
    assert not ADD(x.detach(), 1).requires_grad


def test_compiled(device: torch.device) -> None:
    torch.compiler.reset()
    x = random((4,), device)
    compiled = torch.compile(lambda a: ADD(a, 2j) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), (x + 2j) * 2)
    assert torch.vmap(ADD, (0, None))(x, x).shape == (4, 4)
    assert math.isclose(abs(compiled(x)[0].item()), abs(2 * (x[0].item() + 2j)))
