"""What a snippet asks about its types: in a derivative the answer is the plain snippet's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jit_tools import needs_cuda_core
from test_jit_cuda_text import form, program

from torch_ops.jit import CompileError, ElementwiseKernel
from torch_ops.jit.building import toolchain
from torch_ops.jit.building.compilation import compile_cuda
from torch_ops.jit.generation.elementwise import cuda_source
from torch_ops.jit.generation.text import CUDA_OPTIONS

SQUARE = "y = x * x; else y = x"
NOT_SQUARE = "y = x; else y = x * x"
# Each is the square of x in float32; {std} is std, or CUDA's cuda::std.
QUESTIONS = {
    "max": "y = fmin(x * x, {std}::numeric_limits<T>::max())",
    "infinity": "y = x < {std}::numeric_limits<const T>::infinity() ? x * x : T(0)",
    "lowest": "y = x > {std}::numeric_limits<T>::lowest() ? x * x : T(0)",
    "epsilon": f"if ({{std}}::numeric_limits<T>::epsilon() > 1e-8) {SQUARE}",
    "digits": f"if constexpr ({{std}}::numeric_limits<T>::digits == 24) {SQUARE}",
    "floating": f"if constexpr ({{std}}::is_floating_point<T>::value) {SQUARE}",
    "floating_v": f"if constexpr ({{std}}::is_floating_point_v<const T>) {SQUARE}",
    "arithmetic": f"if constexpr ({{std}}::is_arithmetic<T>{{}}) {SQUARE}",
    "integral": f"if constexpr ({{std}}::is_integral_v<T>) {NOT_SQUARE}",
    "signed": f"if constexpr ({{std}}::is_signed_v<T> && {{std}}::is_scalar<T>()) {SQUARE}",
    "class": f"if constexpr ({{std}}::is_class<T>::value) {NOT_SQUARE}",
    "fundamental": f"if constexpr ({{std}}::is_fundamental_v<T>) {SQUARE}",
    "same": f"if constexpr ({{std}}::is_same<T, float>::value) {SQUARE}",
    "same_v": f"if constexpr ({{std}}::is_same_v<float, T>) {SQUARE}",
    "other": f"if constexpr ({{std}}::is_same_v<T, double>) {NOT_SQUARE}",
    "itself": f"if constexpr ({{std}}::is_same_v<const T, const T>) {SQUARE}",
    "template": "y = squared(x)",
}
SQUARED = """
template <class A> __device__ A squared(A a) {{
  if constexpr ({std}::is_same<A, float>::value) return a * a;
  return a;
}}"""


def texts(std: str) -> tuple[str, str, str]:
    """One kernel with an output each."""
    names = list(QUESTIONS)
    lines = [
        f"{{ T y; {QUESTIONS[name].replace('{std}', std).replace('{{}}', '{}')}; y_{name} = y; }}"
        for name in names
    ]
    return ", ".join(f"T y_{name}" for name in names), "\n".join(lines), SQUARED.format(std=std)


def test_questions_on_the_cpu() -> None:
    outputs, operation, preamble = texts("std")
    kernel = ElementwiseKernel("T x", outputs, operation, "questions", preamble=preamble)
    x = torch.tensor([0.5, 2.0])
    values, slopes = torch.func.jvp(kernel, (x,), (torch.ones(2),))
    for name, value, slope in zip(QUESTIONS, values, slopes, strict=True):
        assert value.tolist() == [0.25, 4.0], name
        assert slope.tolist() == [1.0, 4.0], name

    def slope_of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.func.jvp(kernel, (x,), (torch.ones(2),))[1]

    _, curvatures = torch.func.jvp(slope_of, (x,), (torch.ones(2),))
    for name, curvature in zip(QUESTIONS, curvatures, strict=True):
        assert curvature.tolist() == [2.0, 2.0], name


@needs_cuda_core
def test_questions_on_cuda() -> None:
    """CUDA's own library answers alike."""
    homes = [f"{home}/include/cccl" for home in toolchain._toolkits()]
    folders = [*toolchain.find_nvrtc().include, *homes]
    folder = next((name for name in folders if Path(name, "cuda/std/limits").is_file()), None)
    if folder is None:
        pytest.skip("CUDA's standard library (CCCL) is not installed")
    outputs, operation, preamble = texts("cuda::std")
    preamble = f"#include <cuda/std/limits>\n#include <cuda/std/type_traits>\n{preamble}"
    operation += """
static_assert(cuda::std::is_floating_point_v<T>, "");
static_assert(cuda::std::numeric_limits<T>::digits == 24, "");
static_assert(cuda::std::is_same<T, float>::value && cuda::std::is_same_v<T, T>, "");"""
    derived = program("T x", outputs, operation, preamble=preamble).jvp([True])
    count = len(QUESTIONS) + 2
    source, _, _ = cuda_source(derived, form(*[torch.float32] * count, modes="c" * count))
    code = compile_cuda("kernel", source, options=(*CUDA_OPTIONS, f"-I{folder}"))
    assert len(code.data) > 1000


REFUSED = {
    "const": ("y = std::is_same_v<decltype(x * 2.0), double> ? x : x * x", "", "not const"),
    "specialised": (
        "y = factor<T>() * x",
        "template <class A> A factor() { return 1; }\n"
        "template <> float factor<float>() { return 5; }",
        "line 2.*specialisation",
    ),
    "specialised_class": (
        "y = Factor<T>::value * x",
        "template <class A> struct Factor { static constexpr int value = 1; };\n\n"
        "template <> struct Factor<float> { static constexpr int value = 5; };",
        "line 3.*specialisation",
    ),
    "overloaded": (
        "y = f(x)",
        "template <class A> struct Some {};\n"
        "template <class A, class = Some<A>> A f(A a) { return a; }\n"
        "inline float f(float a) { return a * a; }",
        "line 3.*f, a template too",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_another_function_is_refused(name: str) -> None:
    operation, preamble, reason = REFUSED[name]
    kernel = ElementwiseKernel("T x", "T y", operation, "refused", preamble=preamble)
    x = torch.ones(2, requires_grad=True)
    y = kernel(x)
    with pytest.raises(CompileError, match=rf"(?s)derivative of .*{reason}.*backward=None"):
        y.sum().backward()
    with pytest.raises(CompileError, match=rf"(?s)derivative of .*{reason}"):
        torch.func.jvp(kernel, (x,), (x,))
    by_hand = ElementwiseKernel(
        "T x", "T y", operation, "given", preamble=preamble, backward="grad_x = 2 * grad_y"
    )
    assert torch.autograd.grad(by_hand(x).sum(), x)[0].tolist() == [2.0, 2.0]


def test_other_functions_are_not_refused() -> None:
    """A specialisation by a number, an overload with more parameters; and long double."""
    preamble = """
template <int K> float scaled(float a) { return a; }
template <> float scaled<2>(float a) { return 2 * a; }
template <class A> A square(A a) { return a * a; }
float square(float a, int n) { return n * a; }"""
    operation = "y = square(x) * scaled<2>(w[0]) * square(w[0], 3) * (float)fmin(2.0L, 1.0L)"
    kernel = ElementwiseKernel("T x, raw float32 w", "T y", operation, preamble=preamble)
    x = torch.tensor([3.0], requires_grad=True)
    assert torch.autograd.grad(kernel(x, torch.ones(1)).sum(), x)[0].tolist() == [36.0]


def test_derivatives_in_older_cxx() -> None:
    kernel = ElementwiseKernel("T x", "T y", "y = x * x", "older", options=("-std=c++14",))
    x = torch.tensor([3.0], requires_grad=True)
    assert torch.autograd.grad(kernel(x).sum(), x)[0].tolist() == [6.0]


def test_what_is_no_float_is_not_refused() -> None:
    preamble = """
template <class A> struct Size { static constexpr int value = 4; };
template <> struct Size<int> { static constexpr int value = 2; };
template <> struct Size<char> { static constexpr float value = 1; };  // of float none
template <class A> A f(A a) { return a * a; }
inline int f(int a) { return a; }
float g(float a) { return a; }
"""
    operation = "y = f(x) * (Size<int>::value + f(1) + g(0))"
    kernel = ElementwiseKernel("T x", "T y", operation, "allowed", preamble=preamble)
    x = torch.ones(2, requires_grad=True)
    assert torch.autograd.grad(kernel(x).sum(), x)[0].tolist() == [6.0, 6.0]
