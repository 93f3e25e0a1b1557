"""The headers of generated kernels: each compiles alone, without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from jit_tools import needs_cuda_core

import torch_ops.jit
from torch_ops.jit.building.compilation import compile_cuda
from torch_ops.jit.building.source import Source
from torch_ops.jit.building.toolchain import find_host_compiler
from torch_ops.jit.generation.text import HOST_OPTIONS

FOLDER = Path(torch_ops.jit.__file__).parent / "headers"
STANDARDS = ("c++14", "c++17", "c++20")
# Macros name a type for the formulas that need it.
UNUSED = "-Wno-unused-local-typedefs"

OPERANDS = """
using X = torch_ops::Operand<1, float, float>;
using Y = torch_ops::Operand<0, torch_ops::Half, float>;
"""
ELEMENTWISE = OPERANDS + "struct Plan {{ int64_t size, total; char* data[2]; {} }};"
REDUCTION = (
    OPERANDS
    + """
struct Plan {{
  int64_t outputs, elements, part, parts;
  float* partials;
  char* data[2];
  int64_t {};
  torch_ops::Axis<2> kept[1], reduced[2];
}};
struct Sum {{
  using torch_ops_Result = float;
  TORCH_OPS_FUNCTION float torch_ops_map(float x) const {{ return x; }}
  TORCH_OPS_FUNCTION float torch_ops_combine(float a, float b) const {{ return a + b; }}
  TORCH_OPS_FUNCTION void torch_ops_post_map(float& y, float a) const {{ y = a; }}
  TORCH_OPS_FUNCTION float torch_ops_empty() const {{ return 0; }}
}};
"""
)
ADD = "[](float x, float& y, ptrdiff_t i) { y = x + i; }"

# What uses each header: for the CPU, and for CUDA. A text of "" includes it alone.
CPU = {
    "scalar.h": "",
    "operands.h": "",
    "cpu.h": "float f(float x) { return rsqrt(x) + normcdf(x); }",
    "complex.h": "auto f(torch_ops::complex<float> z) { return z * z / 2; }",
    "dual/dual.h": "auto f(torch_ops::Dual<float, 2> x) { return x * x + 0.5; }",
    "dual/functions.h": "auto f(torch_ops::Dual<float, 2> x) { return exp(x); }",
    "dual/traits.h": "bool f() { return std::is_class<torch_ops::Dual<float, 1>>::value; }",
    "reduce/reduce.h": "",
    "rows.h": "",
    "vector_math.h": "float f(float x) { return torch_ops::math::tanh(x); }",
    "elementwise/blocks.h": "",
    "elementwise/cpu.h": ELEMENTWISE.format("")
    + f"""
void run(const Plan& plan, int64_t begin, int64_t end) {{
  torch_ops::for_each_element<false, true, -1>(
      plan, begin, end, {ADD}, torch_ops::Operands<X>(), torch_ops::Operands<Y>());
}}""",
    "reduce/cpu.h": REDUCTION.format("width")
    + """
using Loops = torch_ops::HostReduction<Sum, 1, 2, Y, X>;
void run(const Plan& plan) {
  Loops::rows(plan, 0, plan.outputs * plan.parts, Sum());
  Loops::columns(plan, 0, plan.outputs * plan.parts, Sum());
  Loops::finish(plan, 0, plan.outputs, Sum());
}""",
}
CUDA = {
    **{name: text.replace("auto f", "__device__ auto f") for name, text in CPU.items()},
    "cuda.h": "__device__ double f(float x) { return fmin(x, 0.5) + min(x, 2); }",
    "vectors.h": "__device__ void f(torch_ops::Vector<float, 8>& v, char* from) { v.load(from); }",
    "elementwise/cuda.h": ELEMENTWISE.format("torch_ops::Walk<2, 2> walk;")
    + "".join(
        f"""
__global__ void run{axes}(const __grid_constant__ Plan plan) {{
  torch_ops::for_each_element<128, 4, {4 - axes}, false, -1>(
      plan, {walk}, {ADD}, torch_ops::Operands<X>(), torch_ops::Operands<Y>());
}}"""
        for axes, walk in ((0, "torch_ops::Walk<0, 2>()"), (2, "plan.walk"))
    ),
    "reduce/cuda.h": REDUCTION.format("across, lanes, half, finish_lanes")
    + "using Loops = torch_ops::CudaReduction<4, Sum, 1, 2, Y, X>;"
    + "".join(
        f"""
__global__ void {loop}(const __grid_constant__ Plan plan) {{ Loops::{loop}(plan, Sum()); }}"""
        for loop in ("rows", "finish_rows", "columns", "finish_columns")
    ),
}
HOST_ONLY = ("cpu.h", "rows.h", "vector_math.h", "elementwise/blocks.h", "elementwise/cpu.h")
for host_only in (*HOST_ONLY, "reduce/cpu.h", "dual/traits.h"):
    del CUDA[host_only]


def test_every_header_is_compiled() -> None:
    found = {str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*.h")}
    # tests/jit/indexed has those of messages.
    assert {*CPU, *CUDA} == {name for name in found if not name.startswith("indexed/")}


def source(name: str, processor: str, use: str) -> str:
    before = ""
    if name in ("complex.h", "dual/functions.h"):  # functions on floats
        before = f'#include "{processor}.h"\n'
    if name == "vector_math.h":
        before = '#include "scalar.h"\n'
    if name == "dual/traits.h":
        before = '#include "dual/dual.h"\n#include <limits>\n#include <type_traits>\n'
        before += "#define TORCH_OPS_LIBRARY std\n"
    return f'{before}#include "{name}"\n{use}\n'


@pytest.mark.parametrize("name", CPU)
def test_on_the_cpu(name: str) -> None:
    for standard in STANDARDS:
        command = [*find_host_compiler().command, f"-std={standard}", "-Wall", "-Werror", UNUSED]
        run = subprocess.run(
            [*command, *HOST_OPTIONS, f"-I{FOLDER}", "-fsyntax-only", "-x", "c++", "-"],
            input=source(name, "cpu", CPU[name]),
            capture_output=True,
            text=True,
            check=False,
        )
        assert not run.stderr, f"{standard}:\n{run.stderr}"


@needs_cuda_core
@pytest.mark.parametrize("name", CUDA)
def test_on_cuda(name: str) -> None:
    for standard in STANDARDS:
        text = Source.of(source(name, "cuda", CUDA[name]))
        options = (f"-std={standard}", f"-I{FOLDER}")
        assert not compile_cuda(name, text, options=options).facts["log"], standard
