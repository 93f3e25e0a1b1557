"""Derivatives by dual numbers: every function, operators, branches, what is refused."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from programs import ROOT
from torch import Tensor

from torch_ops.jit import CompileError, ElementwiseKernel

# Each is differentiated by x and y at points in (0.1, 0.9).
FUNCTIONS = {
    "sqrt": "sqrt(x)",
    "rsqrt": "rsqrt(x)",
    "cbrt": "cbrt(-x)",
    "rcbrt": "rcbrt(x)",
    "exp": "exp(x)",
    "exp2": "exp2(-x)",
    "exp10": "exp10(x)",
    "expm1": "expm1(x)",
    "log": "log(x)",
    "log2": "log2(x)",
    "log10": "log10(x)",
    "log1p": "log1p(-x)",
    "sin": "sin(3 * x)",
    "cos": "cos(3 * x)",
    "tan": "tan(x)",
    "asin": "asin(-x)",
    "acos": "acos(x)",
    "atan": "atan(2 * x)",
    "sinh": "sinh(x)",
    "cosh": "cosh(-x)",
    "tanh": "tanh(x)",
    "asinh": "asinh(-x)",
    "acosh": "acosh(x + 1.25)",
    "atanh": "atanh(x)",
    "sinpi": "sinpi(x)",
    "cospi": "cospi(x)",
    "erf": "erf(x)",
    "erfc": "erfc(x)",
    "normcdf": "normcdf(-x)",
    "lgamma": "lgamma(x)",
    "lgamma_large": "lgamma(x + 20)",
    "lgamma_negative": "lgamma(-x)",
    "tgamma": "tgamma(x)",
    "tgamma_negative": "tgamma(-x)",
    "fabs": "fabs(-x) * x",
    "abs": "abs(x - 0.5) * x",
    "floor": "floor(4 * x) * x",
    "ceil": "ceil(4 * x) * x",
    "trunc": "trunc(-4 * x) * x",
    "round": "round(4 * x) * x",
    "rint": "rint(4 * x) * x",
    "nearbyint": "nearbyint(4 * x) * x",
    "logb": "logb(x) * x",
    "pow": "pow(x, y)",
    "pow_number": "pow(x, 3) + pow(x, 2.5) + pow(2, y)",
    "pow_negative": "pow(-x, 3.0)",
    "atan2": "atan2(x, -y)",
    "atan2_number": "atan2(x, 2.0) + atan2(2.0, y)",
    "hypot": "hypot(x, 2 * y)",
    "rhypot": "rhypot(x, y)",
    "fmod": "fmod(4 * x, y)",
    "remainder": "remainder(-4 * x, y)",
    "fdim": "fdim(x, y) * x",
    "fmin": "fmin(x, 2 * y) * x",
    "fmax": "fmax(x, y * y) * y",
    "min": "min(x, y) * min(x, 0.5)",
    "max": "max(x, y) * max(0.5, y)",
    "copysign": "copysign(x * x, -y)",
    "ldexp": "ldexp(x * x, 3)",
    "scalbn": "scalbn(x * y, -2)",
    "modf": "x; T whole, part = modf(-7 * x * y, &whole); {out} = part * part + whole * x",
    "frexp": "x; int e; T part = frexp(5 * x * y, &e); {out} = part * y + e * x",
    "remquo": "x; int q; T rest = remquo(9 * x, y, &q); {out} = rest * y + (q & 7) * x",
    "fma": "fma(x, y, x)",
    "fma_number": "fma(x, 2.0, y * y) + fma(2.0, y, 1.0)",
    "sincos": "x; T s, c; sincos(x, &s, &c); {out} = s * c * y",
    "divide": "x / y + 1 / x + y / 3",
    "operators": "-x * +y - (2 - x) * (y - 1) + (3 + x) / (y + 2)",
    "compound": "x; T t = y; t *= x; t += 2; t -= y; t /= x + 1; ++t; {out} = t",
    "ternary": "x > y ? x * y : x < 0.25 ? 0.5 * x : 2 * y * x",
    "if_else": "y; if (x >= y && !(x == 0)) {out} = x * x; else if (y != 1) {out} = x * y * y",
    "loop": "x; for (int k = 0; k < 4; ++k) {{ if (k == 2) continue; {out} = {out} * y + x; }}",
    "array": "0; T a[2] = {{x, y}}; {out} = a[0] * a[0] * a[1]",
    "primal": "primal(x) * y",
}


def combined(names: list[str]) -> ElementwiseKernel:
    """One kernel with an output each: a compilation for them all."""
    lines = []
    for name in names:
        text = FUNCTIONS[name]
        line = text.format(out=f"{name}_") if "{" in text else text
        lines.append(f"{{ {name}_ = {line}; }}")
    outputs = ", ".join(f"T {name}_" for name in names)
    return ElementwiseKernel("T x, T y", outputs, "\n".join(lines), "functions")


def groups(count: int = 6) -> list[list[str]]:
    names = [name for name in FUNCTIONS if name != "primal"]
    return [names[number::count] for number in range(count)]


def points(device: torch.device) -> tuple[Tensor, Tensor]:
    """Away from the kinks of all of them."""
    x = torch.tensor([0.171, 0.283, 0.391, 0.562, 0.681, 0.833], dtype=torch.float64)
    y = torch.tensor([0.617, 0.231, 0.729, 0.139, 0.441, 0.857], dtype=torch.float64)
    return x.to(device), y.to(device)


def differences(function, inputs: tuple[Tensor, ...], number: int, step: float) -> list[Tensor]:
    """Central finite differences of fourth order."""

    def at(factor: float) -> tuple[Tensor, ...]:
        moved = list(inputs)
        moved[number] = moved[number] + factor * step
        return function(*moved)

    return [
        (8 * (b - c) - (a - d)) / (12 * step)
        for a, b, c, d in zip(at(2), at(1), at(-1), at(-2), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0])
def test_functions(names: list[str], device: torch.device) -> None:
    """Tangents and gradients of each function beside finite differences of its values."""
    kernel = combined(names)
    inputs = points(device)
    gradients = [torch.zeros_like(inputs[0]) for _ in inputs]
    weights = torch.linspace(0.5, 1.5, len(names), dtype=torch.float64).tolist()
    for number in range(2):
        expected = differences(kernel, inputs, number, 1e-4)
        tangents = tuple(
            torch.ones_like(x) if k == number else torch.zeros_like(x) for k, x in enumerate(inputs)
        )
        _, actual = torch.func.jvp(kernel, inputs, tangents)
        for name, mine, theirs, weight in zip(names, actual, expected, weights, strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=2e-8, atol=2e-8, msg=lambda t, name=name: f"{name}: {t}"
            )
            gradients[number] += weight * mine
    inputs = tuple(x.requires_grad_() for x in inputs)
    outputs = kernel(*inputs)
    loss = sum((w * out).sum() for w, out in zip(weights, outputs, strict=True))
    for mine, theirs in zip(torch.autograd.grad(loss, inputs), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0])
def test_second_derivatives(names: list[str], device: torch.device) -> None:
    """Tangents of tangents beside finite differences of tangents."""
    kernel = combined(names)
    inputs = points(device)

    def tangent(*inputs: Tensor) -> tuple[Tensor, ...]:
        direction = tuple(torch.full_like(x, 1 - 0.4 * k) for k, x in enumerate(inputs))
        return torch.func.jvp(kernel, inputs, direction)[1]

    for number in range(2):
        expected = differences(tangent, inputs, number, 1e-4)
        direction = tuple(torch.full_like(x, float(k == number)) for k, x in enumerate(inputs))
        _, actual = torch.func.jvp(tangent, inputs, direction)
        for name, mine, theirs in zip(names, actual, expected, strict=True):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-6, atol=1e-6, msg=lambda t, name=name: f"{name}: {t}"
            )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA's library alone has them")
def test_functions_that_only_cuda_has() -> None:
    """Values beside torch's or by what they are the inverse of, derivatives beside differences."""
    device = torch.device("cuda")
    text = "a = erfcx(2 * x); b = erfinv(x); c = erfcinv(x + y); d = normcdfinv(x); e = rcbrt(x)"
    kernel = ElementwiseKernel("T x, T y", "T a, T b, T c, T d, T e", text, "of_cuda")
    inputs = points(device)
    x, y = inputs
    a, b, c, d, e = kernel(x, y)
    torch.testing.assert_close(a, torch.special.erfcx(2 * x))
    torch.testing.assert_close(b, torch.erfinv(x))
    torch.testing.assert_close(torch.erfc(c), x + y)
    torch.testing.assert_close(torch.special.ndtr(d), x)
    torch.testing.assert_close(e**-3, x)
    for number in range(2):
        direction = tuple(torch.full_like(v, float(k == number)) for k, v in enumerate(inputs))

        def tangents(*values: Tensor, direction=direction) -> tuple[Tensor, ...]:
            return torch.func.jvp(kernel, values, direction)[1]

        for function in (kernel, tangents):
            _, actual = torch.func.jvp(function, inputs, direction)
            expected = differences(function, inputs, number, 1e-4)
            for mine, theirs in zip(actual, expected, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_functions_are_those_of_the_docs() -> None:
    """Each one that the table lists is differentiated here."""
    text = (ROOT / "docs" / "jit.md").read_text()
    table = text.partition("### Functions with a derivative")[2].partition("Each also works by")[0]
    listed = set(re.findall(r"`(\w+)`", table))
    used = (
        " ".join(FUNCTIONS.values())
        + " erfcx erfinv erfcinv normcdfinv isnan isinf isfinite signbit"
    )
    assert len(listed) >= 60
    assert {name for name in listed if not re.search(rf"\b{name}\b", used)} == set()


FLOAT_NAMES = (
    "expf(x) + sqrtf(y) + powf(x, y) + fmaxf(x, y) + fmaf(x, y, 1.0f) + atan2f(y, x) + erff(x)"
    " + rsqrtf(x) + fabsf(x) + hypotf(x, 2.0f) + sinpif(x) + tanhf(y) + fminf(x, 0.5f)"
)


def test_names_of_float_functions(device: torch.device) -> None:
    """expf and its kind, on float32."""
    x, y = (value.float().requires_grad_() for value in points(device))
    actual = ElementwiseKernel("T x, T y", "T z", f"z = {FLOAT_NAMES}")(x, y)
    expected = (
        x.exp() + y.sqrt() + x**y + torch.maximum(x, y) + x * y + 1 + torch.atan2(y, x)
        + torch.erf(x) + x.rsqrt() + x.abs() + torch.hypot(x, torch.full_like(x, 2))
        + torch.sin(math.pi * x) + torch.tanh(y) + torch.clamp(x, max=0.5)
    )  # fmt: skip
    torch.testing.assert_close(actual, expected)
    for mine, theirs in zip(
        torch.autograd.grad(actual.sum(), (x, y)),
        torch.autograd.grad(expected.sum(), (x, y)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


# What mixes types: float * double is double, a branch takes the wider type, assignment narrows.
MIXED = """
T a = 0.1 * x;
auto b = x > 0 ? x : 0.3 * y;
auto c = (b * 0.7 + a / 3) * x;
if (c > 0.1 && fma(x, y, a) > 0.3f) { a = c * 1e-3; a += x * 0.1; }
{ T s = a; for (int k = 0; k < 3; ++k) s = s * s + 0.25 * y - k; z = s + (b - 1) / (c + 2.5); }
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_primal_is_the_plain_kernels(dtype: torch.dtype, device: torch.device) -> None:
    """To the last bit: what the dual numbers carry as value is the value of the plain kernel.

    The derivative of a sum with a constant in it that is the value: d/dt (primal(z) * t).
    """
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(4096, generator=generator).to(dtype).to(device) for _ in range(2))
    plain = ElementwiseKernel("T x, T y", "T z", MIXED)
    carried = ElementwiseKernel(
        "T x, T y, float64 t", "float64 w", "T z;" + MIXED + "w = primal(z) * t + 0 * x * y"
    )
    t = torch.ones(4096, dtype=torch.float64, device=device, requires_grad=True)
    inputs = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    value = carried(*inputs, t)
    value_of_dual = torch.autograd.grad(value.sum(), [t, *inputs])[0].to(dtype)
    expected = plain(x, y)
    assert torch.equal(value_of_dual, expected), (value_of_dual - expected).abs().max()


def test_nan_and_infinities(device: torch.device) -> None:
    """As torch's own derivatives have them."""
    inf, nan = math.inf, math.nan
    values = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan]
    cases = {
        "exp(x)": torch.exp,
        "sqrt(x)": torch.sqrt,
        "log(x)": torch.log,
        "1 / x": lambda x: 1 / x,
        "tanh(x)": torch.tanh,
        # But for the sign of NaN, which torch has as 0.
        "fabs(x)": lambda x: torch.where(x.isnan(), x * nan, torch.abs(x)),
        "x > 0 ? x : T(0.1) * x": lambda x: torch.nn.functional.leaky_relu(x, 0.1),
        "x * x": lambda x: x * x,
        "erf(x)": torch.erf,
        "floor(x)": torch.floor,
    }
    lines = "\n".join(f"{{ y{k} = {text}; }}" for k, text in enumerate(cases))
    kernel = ElementwiseKernel("T x", ", ".join(f"T y{k}" for k in range(len(cases))), lines)
    x = torch.tensor(values, dtype=torch.float64, device=device)
    outputs, tangents = torch.func.jvp(kernel, (x,), (torch.ones_like(x),))
    for text, output, tangent in zip(cases, outputs, tangents, strict=True):
        expected = torch.func.jvp(cases[text], (x,), (torch.ones_like(x),))
        for mine, theirs in zip((output, tangent), expected, strict=True):
            torch.testing.assert_close(
                mine, theirs, equal_nan=True, msg=lambda t, text=text: f"{text}: {t}"
            )


def test_infinite_slope_stays_with_its_input(device: torch.device) -> None:
    """d(x + sqrt(y))/dx is 1, also where the slope by y is infinite or NaN."""
    x = torch.ones(3, device=device, requires_grad=True)
    y = torch.tensor([0.0, -1.0, 4.0], device=device, requires_grad=True)
    z = ElementwiseKernel("T x, T y", "T z", "z = x + sqrt(y)")(x, y)
    gx, gy = torch.autograd.grad(z.sum(), (x, y))
    assert gx.tolist() == [1, 1, 1]
    assert gy[0] == math.inf and gy[1].isnan() and gy[2] == 0.25


REFUSED = {
    "local_float": ("y = x;\nfloat t = x * x;\ny = t", 2, "write `auto`"),
    "local_double": ("double t = 0;\nt = x;\ny = t", 2, "class|auto"),
    "cast": ("y = x * (float)x", 1, "cast"),
    "lambda": ("auto f = [](float a) { return a; }; y = f(x)", 1, "write `auto` or `T` for types"),
    "static_cast": ("y = static_cast<int>(x)", 1, "cast"),
    "int": ("int k = x; y = k", 1, "write `auto`"),
    "cell": ("int k = int(floor(x)); y = x - k", 1, r"primal\(value\)"),
    "no_rule": ("y = x;\n\ny = nextafter(x, y)", 3, "rule"),
    "rounding_to_int": ("y = lround(x)", 1, "rule"),
    "own_function": ("y = twice(x)", 1, "rule"),
    "array": ("float a[2] = {x, x}; y = a[0]", 1, "write `auto`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_lost_derivatives_do_not_compile(case: str, device: torch.device) -> None:
    """And say so when the derivative is compiled, not before; the line is the snippet's."""
    operation, line, advice = REFUSED[case]
    kernel = ElementwiseKernel(
        "T x", "T y", operation, case,
        preamble="__device__ float twice(float x) { return 2 * x; }",
    )  # fmt: skip
    x = torch.tensor([1.25, 2.5], device=device)
    kernel(x)
    y = kernel(x.requires_grad_())
    with pytest.raises(CompileError, match=advice) as caught:
        y.sum().backward()
    assert (caught.value.name, caught.value.line) == ("operation", line)
    assert f"line {line}: {operation.splitlines()[line - 1]}" in str(caught.value)
    assert 'backward="..."' in str(caught.value)
    assert caught.value.log


def test_a_branch_takes_the_rounded_value(device: torch.device) -> None:
    """t is rounded to T; beside a double it is that value as a double, not the one before."""
    operation = "T t = x * 0.123; y = ((t > 0 ? t : 1.0) == t) ? x * x : x"
    kernel = ElementwiseKernel("T x", "T y", operation, "rounded_branch")
    x = torch.tensor([0.7, 1.5, 0.3], device=device, requires_grad=True)
    y = kernel(x)
    assert torch.equal(y, x * x)
    y.sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_constants_of_fixed_types_are_no_loss(device: torch.device) -> None:
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = ElementwiseKernel("T x", "T y", "const float half = 0.5f; int two = 2; y = x * half * two")(
        x
    )
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1, 1]


def test_template_functions_of_the_preamble(device: torch.device) -> None:
    preamble = "template <class A> __device__ A cube(A a) { return a * a * a; }"
    kernel = ElementwiseKernel("T x", "T y", "y = cube(x)", preamble=preamble)
    x = torch.tensor([2.0, 3.0], device=device, requires_grad=True)
    assert torch.autograd.grad(kernel(x).sum(), x)[0].tolist() == [12, 27]


def test_loop_variables_carry_derivatives(device: torch.device) -> None:
    """T in loop_prep and preamble is the type of the snippet, in derivatives too."""
    kernel = ElementwiseKernel(
        "T x, T y", "T z", "scale = x; z = scale * shifted(y)", loop_prep="T scale = 1;",
        preamble="__device__ T shifted(T a) { return a + T(1); }",
    )  # fmt: skip
    x = torch.tensor([2.0], device=device, requires_grad=True)
    y = torch.tensor([3.0], device=device, requires_grad=True)
    assert [g.item() for g in torch.autograd.grad(kernel(x, y), (x, y))] == [4, 2]


def test_many_inputs_and_outputs(device: torch.device) -> None:
    count = 5
    names = [f"x{k}" for k in range(count)]
    kernel = ElementwiseKernel(
        ", ".join(f"T {name}" for name in names), "T p, T s",
        f"p = {' * '.join(names)}; s = {' + '.join(names)}",
    )  # fmt: skip
    inputs = [torch.rand(7, dtype=torch.float64, device=device) + 0.5 for _ in names]
    for used in itertools.islice(itertools.combinations(range(count), 2), 3):
        given = [x.clone().requires_grad_(k in used) for k, x in enumerate(inputs)]
        p, s = kernel(*given)
        weighted = (2 * p + s).sum()
        grads = torch.autograd.grad(weighted, [given[k] for k in used])
        for k, grad in zip(used, grads, strict=True):
            torch.testing.assert_close(grad, 2 * p.detach() / inputs[k] + 1)


# Each beside a float x: a literal of type double makes the plain snippet's branch a double.
TERNARIES = {
    "literal": "z = (x > y ? x : 0.1) * 3 + y",
    "literal_first": "z = (x > y ? 0.1 : x * y) / 7",
    "integer": "z = (x > y ? x : 1) * (x > 0 ? 2 : y) + (x < y ? 0 : x)",
    "float_literal": "z = (x > y ? x : 0.1f) * 3",
    "negative": "z = (x > y ? x : -1e-1) * y",
    "two_literals": "double k = x > y ? 0.1 : 0.3; z = k * x * y",
    "nested": "z = (x > 0.5 ? x : y > 0 ? 0.7 : x < -1 ? y * x : 0.9) * 0.3",
    "nested_in_the_middle": "z = (x > 0 ? y > 0 ? 0.7 : x : y) * y",
    "double_constant": "const double k = 0.1; z = (x > y ? x : k) * 3",
    "arithmetic_of_constants": "z = (x > y ? y : 2 * 0.1 + 1) * x",
    "assigned": "T a = x > y ? x : 0.1; a = y > 0 ? a : 0.3; z = a * a",
    "auto": "auto a = x > 0 ? x : 0.1; auto b = y > 0 ? 0.2 : y; z = a * b",
    "arguments": "z = fma(x > 0 ? x : 0.1, y, y > 0 ? 0.3 : y) + pow(x > 0 ? x : 0.2, 2)",
    "lines": "z = (x > y\n  ? x  // the larger one\n  : 0.1 /* or none */\n) * 3",
    "macro": "#define TENTH 0.1\nz = (x > y ? x : TENTH) * 3",
    "preamble": "z = at_least_tenth(x) * 3 + at_least_tenth(y)",
    "variables": "z = (x > y ? x : y) * (x > 0 ? x * x : y)",
    "declared_before": "z = (x > y ? x : third) * 3",
    "function_before": "z = at_least_third(x) * 3 + y",
    "minimum": "z = fmin(x, 0.1) * 3 + fmax(0.3, y) + min(x, 0.7) * max(y, 0.1)",
    "minimum_of_float": "z = fmin(x, 0.1f) * 3 + fmax(y, 0.3f) + min(x, y) * max(x, 0.5f)",
    "sizes": "float a[true ? 2 : 3] = {1};\nconstexpr int k = sizeof(a) > 4 ? 0 : 1; z = x * a[k]",
}
BEFORE = "const double third = 1. / 3; auto at_least_third = [&](T a) { return a > 0 ? a : .3; }"
TENTH = "template <class A> __device__ A at_least_tenth(A a) { return a > 0.1 ? a : 0.1 * 1; }"


def of_ternaries(outputs: str, last: str, inputs: str = "T x, T y") -> ElementwiseKernel:
    """All of them in one kernel: what `last` makes of each z."""
    text = "\n".join(
        f"{{ T z;\n{case};\n{last.format(out=f'z_{name}')}; }}" for name, case in TERNARIES.items()
    )
    declared = ", ".join(f"{outputs} z_{name}" for name in TERNARIES)
    return ElementwiseKernel(inputs, declared, text, "ternaries", preamble=TENTH, loop_prep=BEFORE)


def test_branches_of_several_types(device: torch.device) -> None:
    """The value beside a derivative is the plain kernel's to the last bit."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(500, generator=generator).to(device) for _ in range(2))
    plain = of_ternaries("T", "{out} = z")
    carried = of_ternaries("float64", "{out} = primal(z) * t + 0 * x * y", "T x, T y, float64 t")
    t = torch.ones(500, dtype=torch.float64, device=device)
    _, values = torch.func.jvp(
        carried, (x, y, t), (torch.zeros_like(x), torch.zeros_like(y), torch.ones_like(t))
    )
    for name, value, expected in zip(TERNARIES, values, plain(x, y), strict=True):
        assert torch.equal(value.float(), expected), name


def test_derivatives_of_branches(device: torch.device) -> None:
    """In float64 beside finite differences, and in float32 beside float64."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(500, generator=generator, dtype=torch.float64) for _ in range(2))
    x, y = x.to(device), y.to(device)
    kernel = of_ternaries("T", "{out} = z")
    direction = (torch.ones_like(x), torch.full_like(y, -0.5))
    _, tangents = torch.func.jvp(kernel, (x, y), direction)
    _, single = torch.func.jvp(kernel, (x.float(), y.float()), tuple(d.float() for d in direction))
    step = 1e-6
    before, after = (kernel(x + s * step, y - s * 0.5 * step) for s in (-1, 1))
    for name, wide, narrow, a, b in zip(TERNARIES, tangents, single, before, after, strict=True):
        bound = 1 + wide.abs()
        # All but where a branch changes within the step, or by rounding.
        assert ((wide - (b - a) / (2 * step)).abs() <= 1e-6 * bound).sum() >= 497, name
        assert ((narrow - wide).abs() <= 1e-4 * bound).sum() >= 497, name


def test_a_branch_that_is_no_number_any_more_is_refused(device: torch.device) -> None:
    """A variable of a fixed type cannot hold what a literal and a value with a derivative make."""
    kernel = ElementwiseKernel("T x", "T y", "y = x;\nfloat t = x > 0 ? x : 0.1;\ny = t")
    x = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(CompileError, match="write `auto`") as caught:
        kernel(x).sum().backward()
    assert (caught.value.name, caught.value.line) == ("operation", 2)
    assert "2 | float t = x > 0 ? x : 0.1;" in str(caught.value)


# Names of helpers of ours, each with a function of the user.
NAMESAKES = {
    "is_zero": ("bool", "fabs(a) < T(1e-3)", "is_zero(x) ? 5 * x : x * x"),
    "wrapped": ("T", "a - T(6) * floor(a / T(6))", "wrapped(x) * x"),
    "narrowed": ("T", "a * a", "narrowed(x)"),
    "digamma": ("T", "a * a * a", "digamma(x)"),
}


@pytest.mark.parametrize("name", NAMESAKES)
def test_functions_of_the_preamble_named_as_ours(name: str, device: torch.device) -> None:
    """A derivative calls them too, and gives what it gives of functions of other names."""
    result, body, text = NAMESAKES[name]
    x = torch.tensor([1e-4, 2.0, 7.5], dtype=torch.float64, device=device, requires_grad=True)
    derivatives = []
    for called in (name, "mine"):
        preamble = f"template <class T> __device__ {result} {called}(T a) {{ return {body}; }}"
        kernel = ElementwiseKernel(
            "T x", "T y", f"y = {text.replace(name, called)}", "namesake", preamble=preamble
        )
        (slope,) = torch.autograd.grad(kernel(x).sum(), x, create_graph=True)
        (curve,) = torch.autograd.grad((slope * x).sum(), x)
        derivatives.append(torch.stack([slope.detach(), curve]))
    assert torch.equal(*derivatives)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("constexpr T c = 2;\ny = c * x", "write `const`, such as `const T`"),
        ("y = std::exp(x)", "leave out `std::`"),
    ],
)
def test_advice(text: str, advice: str, device: torch.device) -> None:
    if device.type == "cuda" and "std::" in text:
        text = text.replace("std", "")  # NVRTC has no namespace std
    kernel = ElementwiseKernel("T x", "T y", text, "advised")
    x = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(CompileError, match=advice):
        kernel(x).sum().backward()
