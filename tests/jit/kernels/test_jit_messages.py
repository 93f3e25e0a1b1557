"""What is said of arguments that no source can be made of, and of texts that do not compile."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jit_tools import needs_cuda_core

from torch_ops.jit import (
    CompileError,
    ElementwiseKernel,
    IndexedKernel,
    RawKernel,
    RawModule,
    ReductionKernel,
)


def elementwise(**texts: Any) -> Any:
    return ElementwiseKernel(**{"in_params": "T x", "out_params": "T y", "operation": "", **texts})


def reduction(**texts: Any) -> Any:
    given = {"map_expr": "x", "reduce_expr": "a + b", "post_map_expr": "y = a", "identity": 0}
    return ReductionKernel(**{"in_params": "T x", "out_params": "T y", **given, **texts})


def kernel(**given: Any) -> Any:
    return RawKernel(**{"code": "__global__ void f() {}", "name": "f", **given})


@pytest.mark.parametrize(
    ("make", "given", "error", "message"),
    [
        (
            elementwise,
            {"operation": "y = x; // \ud800"},
            ValueError,
            "operation must be text",
        ),
        (elementwise, {"preamble": "\udfff"}, ValueError, "preamble .*character 0 .*'\\udfff'"),
        (elementwise, {"backward": "\ud800"}, ValueError, "backward must be text"),
        (elementwise, {"options": ("-DA", "\ud800")}, ValueError, "options must be text"),
        (kernel, {"options": ("-DA", "\ud800")}, ValueError, "RawKernel: options must be text"),
        (reduction, {"map_expr": "\ud800"}, ValueError, "map_expr must be text"),
        (reduction, {"preamble": 3}, TypeError, "preamble must be a string, but it is int"),
        (
            elementwise,
            {"in_params": "float *x"},
            ValueError,
            r"'float \*x' must be without",
        ),
        (elementwise, {"in_params": "float x"}, TypeError, "no type 'float'. Write float32. A"),
        (elementwise, {"in_params": "tl.int8_t x"}, TypeError, "'tl.int8_t'. Write int8. A type"),
        (elementwise, {"in_params": "size_t x"}, TypeError, "no type 'size_t'. A type is one"),
        (reduction, {"out_params": "T a"}, ValueError, "out_params: .* cannot be named 'a'"),
        (kernel, {"code": "\ud800"}, ValueError, "RawKernel: code must be text"),
        (kernel, {"code": 3}, TypeError, "RawKernel: code must be a str"),
        (
            kernel,
            {"options": None},
            TypeError,
            "RawKernel: options must be .*but it is None",
        ),
        (kernel, {"options": "-DA"}, TypeError, "RawKernel: options must be a tuple of strings"),
        (kernel, {"backend": "nvcc"}, ValueError, 'RawKernel: backend must be "nvrtc"'),
        (RawModule, {"code": "", "options": 3}, TypeError, "RawModule: options must be a tuple"),
        (RawModule, {"code": "", "name_expressions": None}, TypeError, "name_expressions must be"),
        (RawModule, {"code": "", "name_expressions": [3]}, TypeError, "name_expressions must be"),
        (kernel, {"constants": [1]}, TypeError, "constants must be a dict .*but it is list"),
        (kernel, {"constants": {"T": np.float32}}, TypeError, "T must be an int.*but it is a type"),
        (
            kernel,
            {"constants": {"A": -(2**63) - 1}},
            ValueError,
            "A is -9223372036854775809",
        ),
    ],
)
def test_bad_texts(
    make: Callable[..., Any], given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("\\u", r"\\u")):
        make(**given)


@needs_cuda_core
def test_smallest_integer_is_a_constant() -> None:
    code = 'static_assert(A < 0 && A + 1 == -0x7fffffffffffffffll, "");\n__global__ void f() {}'
    assert re.search(r"\.entry", RawModule(code, constants={"A": -(2**63)}).ptx)


def test_inputs_may_be_named_as_combined_values() -> None:
    total = ReductionKernel("T a, T b", "T y", "a * b", "a + b", "y = a", 0, "dot")
    assert total(torch.ones(3), 2).item() == 6


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2,), (3,), (3,)), "mass with shape [3] does not broadcast with pos with shape [2]."),
        (((2, 1), (3,), (4,)), "z with shape [4] does not broadcast with mass with shape [3]."),
        (((1, 2), (2,), (3, 5, 3)), "z with shape [3, 5, 3] does not broadcast with pos with sh"),
    ],
)
def test_shapes_that_do_not_broadcast(
    device: torch.device, shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    inputs = [torch.ones(shape, device=device) for shape in shapes]
    product = elementwise(in_params="T pos, T mass, T z", operation="y = pos * mass * z", name="p")
    total = reduction(in_params="T pos, T mass, T z", map_expr="pos * mass * z", name="p")
    for made in (product, total):
        for first in (inputs[0], inputs[0].clone().requires_grad_()):
            with pytest.raises(ValueError, match=f"^p: {re.escape(message)}"):
                made(first, *inputs[1:])


def test_arguments_that_are_promoted_to_what_no_kernel_computes(device: torch.device) -> None:
    add = ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")
    with pytest.raises(TypeError, match=r"^add: T is torch\.complex32; kernels compute on"):
        add(torch.ones(2, dtype=torch.float16, device=device), 2j)


# ---- Texts in the idiom of other tools ----------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "advice"),
    [
        (elementwise(operation="y[i] = 2 * x[i]"), "A parameter is one element, without an index"),
        (elementwise(operation="x *= 2; y = x"), "An input can only be read"),
        (elementwise(in_params="T x, raw T w", operation="w[i] += 1; y = x"), "can only be read"),
        (reduction(map_expr="x[i] * x[i]"), "In a reduction a parameter is one element"),
    ],
)
def test_advice(made: Callable[..., Any], advice: str, device: torch.device) -> None:
    with pytest.raises(CompileError, match=advice):
        made(*[torch.ones(2, device=device)] * len(made.inputs))


def test_atomic_on_an_input() -> None:
    with pytest.raises(CompileError, match="this array must be a raw output"):
        elementwise(in_params="T x, raw T w", operation="y = atomicAdd(&w[i], x)")(
            torch.ones(2), torch.ones(2)
        )


@pytest.mark.parametrize(
    "text", ["y = x; __syncthreads()", "__shared__ int s; y = s = threadIdx.x"]
)
def test_advice_on_blocks(text: str) -> None:
    with pytest.raises(CompileError, match="blocks and shared memory are a RawKernel's"):
        elementwise(operation=text)(torch.ones(2))


@pytest.mark.parametrize("text", ["y = __expf(x)", "y = __popc(int(x))"])
def test_advice_on_what_only_cuda_has(text: str) -> None:
    with pytest.raises(CompileError, match=r"Only CUDA has it: .*`#ifdef __CUDA_ARCH__`"):
        elementwise(operation=text)(torch.ones(2))
    both = f"\n#ifdef __CUDA_ARCH__\n{text};\n#else\ny = 1 / x;\n#endif\n"
    assert elementwise(operation=both)(torch.tensor(4.0)) == 0.25


@needs_cuda_core
@pytest.mark.parametrize("header", ["cstdint", "stdint.h", "torch/extension.h"])
def test_advice_on_headers(header: str) -> None:
    with pytest.raises(CompileError, match=r"such as <cuda/std/cstdint>"):
        assert RawModule(f"#include <{header}>").ptx


# ---- Integers divided by zero -------------------------------------------------------------------

DIVISIONS = {
    "elementwise": ElementwiseKernel("T x, T y", "T z", "z = x / y", "quotient"),
    "indexed": lambda x, y: IndexedKernel("T x[s], T y[s]", "T z", "z = x % y", "rest")(
        x[:, None], y[:, None], s=torch.arange(len(x))
    ).flatten(),
    "reduction": lambda x, y: ReductionKernel("T x, T y", "T z", "x / y", "a + b", "z = a", "0")(
        x, y
    ),
}


@pytest.mark.parametrize("kind", DIVISIONS)
def test_division_by_zero(kind: str) -> None:
    """On the CPU, where the process would end. A GPU goes on with any number."""
    divide = DIVISIONS[kind]
    x = torch.arange(100_000, dtype=torch.int32)
    y = torch.ones_like(x)
    before = divide(x, y)
    for bad in (0, -1):
        x[70_000], y[70_000] = -(2**31), bad
        with pytest.raises(
            RuntimeError, match=r": an integer was divided by zero, or the smallest"
        ):
            divide(x, y)
    x[70_000], y[70_000] = 70_000, 1
    assert torch.equal(divide(x, y), before)
    assert (torch.arange(4) // 2).tolist() == [0, 0, 1, 1]


@pytest.mark.skipif("clang" in os.environ.get("CXX", ""), reason="clang++ leaves these out")
@pytest.mark.parametrize("text", ["x == 0 ? 5 / x : x", "x / N", "1 / x", "x / x"])
def test_division_by_zero_that_the_compiler_sees(text: str) -> None:
    kernel = ElementwiseKernel("T x", "T y", f"y = {text}", "quotient", options=("-DN=0",))
    with pytest.raises(RuntimeError, match=r"^quotient: an integer was divided by zero"):
        kernel(torch.arange(3))


def test_declarations() -> None:
    with pytest.raises(ValueError, match=r"in_params: 'T' must be a type and a name"):
        ElementwiseKernel("T", "T y", "y = 0")
    with pytest.raises(TypeError, match=r"there is no type 'float128'.*bfloat16"):
        ElementwiseKernel("float128 x", "T y", "y = 0")
    with pytest.raises(TypeError, match=r"there is no type 'i'\. A type is one letter but i"):
        ElementwiseKernel("i x", "T y", "y = 0")
    for name in ("i", "new", "or", "NAN", "M_PI", "torch_ops_x", "2x", "ptrdiff_t", "_Complex"):
        with pytest.raises(ValueError, match=f"'{name}' cannot be the name"):
            ElementwiseKernel(f"T {name}", "T y", "y = 0")
    with pytest.raises(ValueError, match="x has the name of another"):
        ElementwiseKernel("T x", "T x", "x = 0")
    with pytest.raises(ValueError, match="two parameters are named 'x'"):
        ElementwiseKernel("T x, T x", "T y", "y = 0")
    with pytest.raises(ValueError, match="output at least"):
        ElementwiseKernel("T x", "", "")
    with pytest.raises(ValueError, match="name must be an identifier"):
        ElementwiseKernel("T x", "T y", "y = x", "a b")
    with pytest.raises(TypeError, match="operation must be a string"):
        ElementwiseKernel("T x", "T y", None)
    with pytest.raises(TypeError, match="options must be a tuple of strings"):
        ElementwiseKernel("T x", "T y", "y = x", options="-DX")
    with pytest.raises(TypeError, match='backward must be "auto"'):
        ElementwiseKernel("T x", "T y", "y = x", backward=True)
    with pytest.raises(TypeError, match="in_params must be a string"):
        ElementwiseKernel(["T x"], "T y", "y = x")


def test_compile_errors_name_string_and_line(device: torch.device) -> None:
    x = torch.randn(3, device=device)
    with pytest.raises(CompileError) as caught:
        ElementwiseKernel("T x", "T y", "y = x;\ny = undefined_name;", "bad")(x)
    assert (caught.value.name, caught.value.line) == ("operation", 2)
    assert 'ElementwiseKernel "bad" does not compile: operation, line 2' in str(caught.value)
    with pytest.raises(CompileError) as caught:
        ElementwiseKernel("T x", "T y", "y = x", preamble="\n\nint f( { }")(x)
    assert (caught.value.name, caught.value.line) == ("preamble", 3)
    with pytest.raises(CompileError) as caught:
        ElementwiseKernel("T x", "T y", "y = x", loop_prep="nonsense nonsense;")(x)
    assert caught.value.name == "loop_prep"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel = ElementwiseKernel("T x", "T y", "y = x + 1234", "uncompiled")
    with pytest.raises(RuntimeError, match=r"there is no 'no-such-compiler'\. Install it"):
        kernel(torch.ones(2))
    monkeypatch.delenv("CXX")
    assert kernel(torch.ones(2)).tolist() == [1235, 1235]


@pytest.mark.parametrize(
    ("text", "line"), [("T a = x;\ny = a *", 2), ("y =", 1), ("if (x > 0) {\n  y = x;", 2)]
)
def test_unfinished_texts(text: str, line: int, device: torch.device) -> None:
    with pytest.raises(CompileError) as found:
        ElementwiseKernel("T x", "T y", text, "unfinished")(torch.ones(2, device=device))
    assert (found.value.name, found.value.line) == ("operation", line)


@pytest.mark.parametrize("before", ["", "template <class T> ", "namespace mine { "])
def test_functions_without_a_definition(before: str) -> None:
    """Such as CUDA's own, which the host's headers may declare."""
    inside = before.startswith("namespace")
    declared = f"{before}__device__ float missing({'T' if 'T' in before else 'float'});"
    preamble = f"// ours\n{declared}{' }' if inside else ''}"
    call = "mine::missing(x)" if inside else "missing(x)"
    kernel = ElementwiseKernel("T x", "T y", f"y = {call}", "undefined", preamble=preamble)
    with pytest.raises(CompileError, match=r"undefined reference to .*missing") as found:
        kernel(torch.ones(2))
    assert (found.value.name, found.value.line) == ("preamble", 2)
