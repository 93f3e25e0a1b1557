"""The CUDA text of generated kernels, compiled by NVRTC; no GPU is needed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from jit_tools import needs_cuda_core
from test_jit_complex import FUNCTIONS as COMPLEX_FUNCTIONS
from test_jit_dual import BEFORE, FLOAT_NAMES, FUNCTIONS, REFUSED, TENTH, TERNARIES, groups

from torch_ops.jit import CompileError, ElementwiseKernel
from torch_ops.jit.building.compilation import compile_cuda
from torch_ops.jit.elementwise import _by_code
from torch_ops.jit.generation import reduction as reduction_codegen
from torch_ops.jit.generation.elementwise import Form, cuda_source
from torch_ops.jit.generation.text import CUDA_OPTIONS, with_macros
from torch_ops.jit.language.params import _OF_CPP, parse_params
from torch_ops.jit.language.program import Program, Snippet

pytestmark = needs_cuda_core

F32, BF16, F16, F64, I32 = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32
)  # fmt: skip


def program(inputs: str, outputs: str, operation: str, **texts: str) -> Program:
    return Program(
        "kernel",
        parse_params(inputs, "in_params"),
        parse_params(outputs, "out_params"),
        Snippet(operation, **texts),
    )


def form(*dtypes: torch.dtype | None, **facts: object) -> Form:
    """Of a call with these dtypes of outputs and inputs; computed in their kind."""
    computed = tuple(F32 if dtype is None else dtype for dtype in dtypes)
    defaults = {"raw": (), "modes": "c" * len(dtypes), "dims": 1, "vector": 4, "index": "n"}
    return Form(stored=dtypes, computed=computed, **{**defaults, "load_outputs": False, **facts})


def compile_form(kernel: Program, call: Form, arch: str = "sm_90", target: str = "ptx") -> str:
    source, _, _ = cuda_source(kernel, call)
    code = compile_cuda("kernel", source, arch=arch, options=CUDA_OPTIONS, target=target)
    return code.data.decode(errors="replace")


LEAKY = program("T x, T slope", "T y", "y = x > 0 ? x : slope * x")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_architectures(arch: str) -> None:
    for dtype in (F16, BF16, F32):
        call = form(dtype, dtype, None, modes="cc", vector=16 // dtype.itemsize)
        assert len(compile_form(LEAKY, call, arch, "cubin")) > 1000


@pytest.mark.parametrize("dtype", [BF16, F32, F64], ids=str)
def test_a_vector_is_one_word(dtype: torch.dtype) -> None:
    """16 bytes a load and a store: what the contiguous kernel's speed hangs on."""
    ptx = compile_form(LEAKY, form(dtype, dtype, None, modes="cc", vector=16 // dtype.itemsize))
    for access in ("ld", "st"):
        (width, bits) = re.findall(rf"{access}\.global\.v(\d)\.[a-z](\d+)", ptx)[0]
        assert int(width) * int(bits) == 128
    # Besides, the elements after the last whole vector.
    assert ptx.count("ld.global.") == 2 and ptx.count("st.global.") == 2


def test_macros_of_options() -> None:
    kernel = program("T x", "T y", "y = x * x * N * F(d)").vjp([True], [False])
    options = ("-DN=2", "-D", "d=3", "--define-macro=F(D)=D+1", "-UQ", "--std=c++20")
    source, others = with_macros(cuda_source(kernel, form(F32, F32, F32))[0], options)
    assert others == ["-std=c++20"]
    compile_cuda("kernel", source, options=(*CUDA_OPTIONS, *others))


def test_what_a_backward_snippet_does_not_read_costs_no_load() -> None:
    """Of the input there is but one element, and vectors are as wide as without it."""
    softplus = program("T x", "T y", "y = log1p(exp(x))")
    by_code = _by_code(softplus, "grad_x = -grad_y * expm1(-y)", [True], [False], softplus.outputs)
    ptx = compile_form(by_code, form(F32, F32, F32, F32, modes="ccbc"))
    # Of grad_y and y, in vectors and after the last one.
    assert ptx.count("ld.global.v4.f32") == 2 and ptx.count("ld.global.") == 4


@pytest.mark.parametrize(
    "facts",
    [
        {"modes": "ccb", "dims": 2},
        {"modes": "ccb", "dims": 1},
        {"modes": "sss", "dims": 3, "vector": 1},
        {"modes": "sss", "dims": 25, "vector": 1},
        {"modes": "ssss", "dims": 2, "vector": 1, "index": "o"},
        {"modes": "cccc", "dims": 1, "index": "o"},
        {"index": "l"},
        {"index": "l", "vector": 1},
        {"load_outputs": True},
        {"modes": "sss", "dims": 4, "vector": 1, "load_outputs": True},
    ],
    ids=str,
)
def test_forms(facts: dict[str, object]) -> None:
    for stored in ((F32, F32, F32), (BF16, BF16, BF16), (F32, I32, F16)):
        index = " + i" if "index" in facts else ""
        kernel = program("T x, U y", "T z", f"if (x > 0) z = x + y{index}")
        assert "ld.global" in compile_form(kernel, form(*stored, **facts))


def test_a_value_is_not_returned() -> None:
    compile_form(program("T x", "T y", "y = 0; if (x < 0) return; y = x"), form(F32, F32))
    with pytest.raises(CompileError, match="operation, line 1: return value"):
        compile_form(program("T x", "T y", "return x;"), form(F32, F32))


def test_raw_parameters() -> None:
    kernel = program(
        "raw T x, raw T w, T s",
        "raw T y, T z",
        "ptrdiff_t at[] = {i, 0}; z = x[at] + w[i] + s; atomicAdd(&y[i], z); y[i] += _ind.size()",
        loop_prep="int count = 0;",
        after_loop='if (count) printf("%d", count);',
    )
    call = form(
        F32, F32, F32, F32, None, modes="c", index="l",
        raw=((1, True), (2, False), (1, True)),
    )  # fmt: skip
    assert "atom" in compile_form(kernel, call) or "red." in compile_form(kernel, call)


@pytest.mark.parametrize("names", groups(), ids=lambda names: names[0])
def test_derivatives_of_functions(names: list[str]) -> None:
    lines = []
    for name in names:
        text = FUNCTIONS[name]
        lines.append(f"{{ {name}_ = {text.format(out=name + '_') if '{' in text else text}; }}")
    kernel = program("T x, T y", ", ".join(f"T {name}_" for name in names), "\n".join(lines))
    gradient = kernel.vjp([True, True], [False, True])
    stored = [F64] * (2 + len(names) + 2)
    compile_form(gradient, form(*stored, vector=1))


def test_functions_that_only_cuda_has() -> None:
    operation = "y = erfcx(x) + erfinv(x) + erfcinv(x) + normcdfinv(x) + rcbrt(x)"
    gradient = program("T x", "T y", operation).vjp([True], [False])
    compile_form(gradient, form(F64, F64, F64, vector=2))
    compile_form(gradient.jvp([True, True]), form(*[F64] * 5, vector=1))


def test_second_derivatives() -> None:
    gradient = program("T x, T y", "T z", f"z = {FLOAT_NAMES} + pow(x, y)").vjp(
        [True] * 2, [False] * 2
    )
    compile_form(gradient.vjp([True] * 3, [False] * 3), form(*[F32] * 8, vector=1))


def test_branches_of_several_types() -> None:
    lines = [f"{{ T z;\n{text};\nz_{name} = z; }}" for name, text in TERNARIES.items()]
    outputs = ", ".join(f"T z_{name}" for name in TERNARIES)
    kernel = program("T x, T y", outputs, "\n".join(lines), preamble=TENTH, loop_prep=BEFORE)
    gradient = kernel.vjp([True, True], [False, False])
    stored = [F32] * (2 + len(TERNARIES) + 2)
    compile_form(gradient, form(*stored, vector=1))
    count = len(gradient.inputs)
    compile_form(gradient.jvp([True] * count), form(*[F32] * (2 + 2 * count), vector=1))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype: torch.dtype) -> None:
    calls = " + ".join([*COMPLEX_FUNCTIONS.values(), "pow(x, x)", "polar(abs(x), arg(x))"])
    kernel = program("T x, T s, raw T w", "T y", f"y = ({calls}) * s / 3 + 0.5 * conj(w[0])")
    call = form(
        dtype, dtype, None, dtype, modes="cc", vector=16 // dtype.itemsize, raw=((1, True),)
    )
    call = replace(call, computed=(dtype,) * 4)
    for arch in ("sm_75", "sm_120"):
        compile_form(kernel, call, arch, "cubin")
    assert "ld.global.v" in compile_form(kernel, call)
    for facts in ((1, 1), (1, 1, 16 // dtype.itemsize, "ccC")):
        summed = reduction_codegen.ReductionForm((dtype,) * 3, (dtype,) * 3, (), *facts)
        compile_cuda(
            "norm", reduction_codegen.cuda_source(reduction("T x, T y"), summed),
            options=CUDA_OPTIONS,
        )  # fmt: skip


def test_functions_of_several_types() -> None:
    """A float and a double are computed in double, as in C++; NVRTC alone finds no overload."""
    calls = [
        *(f"{name}({args})" for name in ("fmin", "fmax", "pow", "atan2", "hypot", "fmod",
          "remainder", "fdim", "nextafter") for args in ("x, 0.5", "0.5, x")),
        *(f"fma({args})" for args in ("x, 0.5, x", "2, x, 0.5", "0.5, 0.5, x", "0.5, x, 2")),
        "min(x, 0.5)", "max(0.5, x)", "min(0.5, 2)",
    ]  # fmt: skip
    floats = ["fmin(x, 0.5f)", "pow(x, x)", "min(x, 2)", "max(2, x)", "fma(x, x, 0.5f)"]
    checks = [f"static_assert(sizeof({call}) == 8);" for call in calls]
    checks += [f"static_assert(sizeof({call}) == 4);" for call in floats]
    kernel = program("T x", "T y", "\n".join(checks) + f"y = {' + '.join(calls + floats)};")
    compile_form(kernel, form(F32, F32))
    differentiable = [call for call in calls + floats if "nextafter" not in call]
    kernel = program("T x", "T y", f"y = {' + '.join(differentiable)};")
    compile_form(kernel.vjp([True], [False]), form(F32, F32, F32))


def test_macros_of_cmath() -> None:
    """As on the CPU, where they are those of the C library."""
    names = re.findall(r"HUGE_VALF?|INFINITY|M_\w+", _OF_CPP.pattern)
    checks = "".join(f"constexpr double c_{name} = {name};\n" for name in names)
    text = f"y = x > 0 ? fmin(x, {' + '.join(names)}) : isnan(x) ? NAN : -INFINITY;"
    kernel = program("T x", "T y", checks + text)
    assert "div" not in compile_form(kernel, form(F32, F32))
    compile_form(kernel.vjp([True], [False]), form(F32, F32, F32))
    call = reduction_codegen.ReductionForm((F32,) * 3, (F32,) * 3, (), 1, 1)
    source = reduction_codegen.cuda_source(reduction("T x, T y", "-INFINITY"), call)
    compile_cuda("most", source, options=CUDA_OPTIONS)


def test_macros_of_cstdint() -> None:
    """As on the CPU: an identity of a reduction is one of them."""
    checks = []
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        facts, most = torch.iinfo(getattr(torch, name)), f"{name.upper()}_MAX"
        checks.append(f"static_assert({most} == {facts.max}ULL);")
        if facts.min:
            checks.append(f"static_assert({name.upper()}_MIN == -{most} - 1);")
    text = "\n".join([*checks, "y = x"])
    compile_form(program("T x", "T y", text), form(F32, F32))
    ElementwiseKernel("T x", "T y", text)(torch.ones(1))


@pytest.mark.parametrize("case", REFUSED)
def test_lost_derivatives_do_not_compile(case: str) -> None:
    operation, line, _ = REFUSED[case]
    kernel = program(
        "T x", "T y", operation, preamble="__device__ float twice(float x) { return 2 * x; }"
    )
    compile_form(kernel, form(F32, F32))
    with pytest.raises(CompileError) as caught:
        compile_form(kernel.vjp([True], [False]), form(F32, F32, F32))
    assert (caught.value.name, caught.value.line) == ("operation", line)


def reduction(inputs: str, identity: str | None = "0") -> reduction_codegen.Reduction:
    return reduction_codegen.Reduction(
        "norm", parse_params(inputs, "in_params"), parse_params("T z", "out_params")[0],
        "x * y", "a + b", "z = sqrt(a)", identity, "",
    )  # fmt: skip


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (2, 2)])
def test_reductions(axes: tuple[int, int]) -> None:
    # The types that an architecture has differ most in those of 16 bits.
    for stored, archs in (
        ((F32, F32, None), ("sm_75",)),
        ((BF16, BF16, F32), ("sm_75", "sm_120")),
        ((F64, F64, F64), ("sm_120",)),
    ):
        computed = tuple(stored[0] for _ in stored)
        call = reduction_codegen.ReductionForm(stored, computed, (), *axes)
        source = reduction_codegen.cuda_source(reduction("T x, T y"), call)
        for arch in archs:
            code = compile_cuda("norm", source, arch=arch, options=CUDA_OPTIONS)
            assert len(code.data) > 1000


@pytest.mark.parametrize(
    ("stored", "axes", "modes"),
    [
        ((F32, F32, F32), (1, 1), "ccc"),
        ((BF16, BF16, F32), (2, 2), "ccc"),
        ((F32, F32, None), (0, 1), "sc"),
        ((F64, F64, F32), (1, 1), "scs"),
        ((BF16, torch.uint8, BF16), (2, 1), "sbc"),
    ],
    ids=str,
)
def test_rows_in_words(
    stored: tuple[torch.dtype | None, ...], axes: tuple[int, int], modes: str
) -> None:
    computed = tuple(stored[0] for _ in stored)
    call = reduction_codegen.ReductionForm(stored, computed, (), *axes, 0, modes)
    for identity, arch in (("0", "sm_75"), (None, "sm_120")):
        source = reduction_codegen.cuda_source(reduction("T x, T y", identity), call)
        compile_cuda("norm", source, arch=arch, options=CUDA_OPTIONS)
    ptx = compile_cuda("norm", source, options=CUDA_OPTIONS, target="ptx").data.decode()
    assert re.search(r"ld\.global\.v[24]", ptx)


@pytest.mark.parametrize(
    ("stored", "axes", "vector", "modes"),
    [
        ((F32, F32, F32), (1, 1), 4, "ccC"),
        ((BF16, BF16, F32), (1, 1), 8, "scb"),
        ((F64, F64, F64), (2, 1), 2, "cBc"),
        ((F32, F16, None), (1, 2), 8, "cc"),
        ((BF16, BF16, BF16), (1, 0), 1, "cCC"),
    ],
    ids=str,
)
def test_columns(
    stored: tuple[torch.dtype | None, ...], axes: tuple[int, int], vector: int, modes: str
) -> None:
    computed = tuple(stored[0] for _ in stored)
    call = reduction_codegen.ReductionForm(stored, computed, (), *axes, vector, modes)
    for identity, arch in (("0", "sm_75"), (None, "sm_120")):
        source = reduction_codegen.cuda_source(reduction("T x, T y", identity), call)
        compile_cuda("norm", source, arch=arch, options=CUDA_OPTIONS)


@pytest.mark.parametrize("reduce_type", [F64, torch.complex128, "T"], ids=str)
def test_reduce_types(reduce_type: torch.dtype | str) -> None:
    combined = replace(
        reduction("T x"), map_expr="x", reduce_type=reduce_type,
        post_map_expr="z = a.real()" if reduce_type == torch.complex128 else "z = a",
    )  # fmt: skip
    for stored, vector in (((F32, F32), 4), ((torch.uint8, torch.uint8), 8)):
        for facts in ((1, 1), (1, 1, vector, "cc")):
            call = reduction_codegen.ReductionForm(stored, stored, (), *facts)
            compile_cuda("sum", reduction_codegen.cuda_source(combined, call), options=CUDA_OPTIONS)


def test_summed_gradients() -> None:
    """A broadcast input's gradient, summed where it is computed, by words of 16 bytes."""
    gradient = program("T x, T b", "T z", "z = x * sin(b)").vjp([False, True], [False, True])
    summed = reduction_codegen.Reduction.sum_of(gradient)
    stored, computed = (F32, BF16, BF16, BF16), (F32, *[BF16] * 3)
    for facts in ((1, 1, 0, "cccc"), (1, 1, 8, "cccC")):
        call = reduction_codegen.ReductionForm(stored, computed, (), *facts)
        source = reduction_codegen.cuda_source(summed, call)
        ptx = compile_cuda("kernel", source, options=CUDA_OPTIONS, target="ptx").data.decode()
        assert "ld.global.v4" in ptx
