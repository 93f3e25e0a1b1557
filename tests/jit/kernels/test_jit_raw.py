"""RawModule and RawKernel: what is checked without a GPU. test_jit_launch.py launches."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import struct
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jit_tools import needs_cuda_core
from programs import ROOT

from torch_ops.jit import CompileError, RawKernel, RawModule
from torch_ops.jit.building.signature import find_kernels, make_param, split

pytestmark = needs_cuda_core

MANY = """
struct Pair { int a; double b; };
enum Mode : int { kOne };
typedef long long Size;
#define INPUT const float* __restrict__

__global__ void many(INPUT x, double* y, int n, unsigned int u, Size size, bool flag, short s,
                     unsigned char byte, float f, double d, float2 z) {
  if (n == 0) y[0] = x[0] + u + size + flag + s + byte + f + d + z.x;
}
extern "C" __global__ void in_c(INPUT x, signed char c, unsigned long long u, Size size) {}
__global__ void with_struct(Pair pair, const Pair* pairs, void* any, float** rows, Mode mode) {}
namespace inner { __global__ void __launch_bounds__(128) nested(int* x) { x[threadIdx.x] = 1; } }
"""


@pytest.fixture(scope="module")
def many() -> RawModule:
    return RawModule(MANY)


def launches_nothing(kernel: RawKernel, *args: Any) -> None:
    """Calls with an empty grid: all is checked, and no GPU is asked for."""
    assert kernel(0, 1, args) is None


# ---- signatures


def test_params_are_what_the_compiler_says(many: RawModule) -> None:
    """Behind macros, typedefs and extern "C"."""
    texts = [param[0] for param in many._params("many")]
    assert texts == [
        "const float* x", "double* y", "int n", "unsigned int u", "long long size", "bool flag",
        "short s", "unsigned char byte", "float f", "double d", "float2 z",
    ]  # fmt: skip
    writes = [param[6] for param in many._params("many")]
    assert writes == [False, True] + [False] * 9
    texts = [param[0] for param in many._params("in_c")]
    assert texts == ["const float* x", "signed char c", "unsigned long long u", "long long size"]
    assert [param[0] for param in many._params("inner::nested")] == ["int* x"]


def test_params_of_templates() -> None:
    module = RawModule(
        """
        #include <cuda_bf16.h>
        template <class T, int N> struct Holder { using type = T; };
        template <class T, int N, class... More>
        __global__ void f(const typename Holder<T, N>::type* in, T out[], More... more) {}
        """,
        name_expressions=("f<__nv_bfloat16, 4>", "f<double,2,int,float const*>"),
    )
    params = module._params("f<__nv_bfloat16, 4>")
    assert [p[0] for p in params] == ["const __nv_bfloat16*", "__nv_bfloat16*"]
    assert [p[3] for p in params] == [[torch.bfloat16]] * 2
    params = module._params("f<double,2,int,float const*>")
    assert [p[3] for p in params] == [[torch.float64], [torch.float64], [], [torch.float32]]
    assert [p[6] for p in params] == [False, True, False, False]


@pytest.mark.parametrize(
    ("type", "dtypes", "alignment"),
    [
        ("float*", [torch.float32], 1),
        ("unsigned char const*", [torch.uint8, torch.bool], 1),
        ("char*", [torch.int8, torch.uint8], 1),
        ("long*", [torch.int64], 1),
        ("unsigned long long*", [torch.uint64], 1),
        ("__half const*", [torch.float16], 1),
        ("__nv_bfloat162*", [torch.bfloat16], 4),
        ("__nv_fp8_e4m3*", [torch.float8_e4m3fn], 1),
        ("float4 const*", [torch.float32], 16),
        ("float3*", [torch.float32], 4),
        ("float2*", [torch.float32, torch.complex64], 8),
        ("double4*", [torch.float64], 16),
        ("uchar4*", [torch.uint8, torch.bool], 4),
        ("longlong2*", [torch.int64], 16),
        ("cuda::std::__4::complex<float>*", [torch.complex64], 1),
        ("thrust::complex<double> const*", [torch.complex128], 1),
        ("float**", [torch.int64, torch.uint64], 1),
        ("float const* const*", [torch.int64, torch.uint64], 1),
        ("void*", [], 1),
        ("Pair*", [], 1),
    ],
)
def test_what_a_pointer_may_point_to(type: str, dtypes: list[torch.dtype], alignment: int) -> None:
    param = make_param(type, "p")
    assert param[3] == dtypes
    assert param[5] == alignment
    assert param[6] == ("const*" not in type.replace("const* const*", "const*"))


def test_kernels_are_found_in_text() -> None:
    found = find_kernels(
        r"""
        // __global__ void in_a_comment(int x) {
        /* __global__ void in_another(int x) { */
        const char* text = "__global__ void in_a_string(int x) {";
        const char* raw = R"x(__global__ void in_a_raw_string(int x) {)x";
        #define MACRO __global__ void \
          in_a_macro(int x)
        struct S { int x; };
        extern "C" __global__ void first(const float *x, int (*t)[3], int n = (1, 2)) { if (1) {} }
        namespace a { namespace b::c {
        __global__ __launch_bounds__(256, 2) void second() {}
        template <class T, class U = Pair<T, 2>> __global__ void third(Map<T, U> map, T*) {}
        } }
        extern "C" { __global__ void fourth(int x[3]); }
        static __global__ void __attribute__((used)) fifth(unsigned) { }
        """
    )
    names = [(kernel.name, kernel.is_template, kernel.parameters) for kernel in found]
    assert names[1:] == [
        ("a::b::c::second", False, ("",)),
        ("a::b::c::third", True, ("map", "")),
        ("fourth", False, ("x",)),
        ("fifth", False, ("",)),
    ]
    assert names[0][:2] == ("first", False) and names[0][2][0] == "x" and names[0][2][2] == "n"
    assert split("a<b, c>, d(e, f)") == ["a<b, c>", " d(e, f)"]


def test_kernels_that_the_text_only_seems_to_have() -> None:
    module = RawModule(
        """
        #if 0
        __global__ void gone(int x) {}
        #endif
        #define MAKE(name) __global__ void name(float* x) { x[0] = 1; }
        MAKE(made)
        extern "C" __global__ void kept(float* x, int n) { x[0] = n; }
        """
    )
    assert [param[0] for param in module._params("kept")] == ["float* x", "int n"]
    assert [param[0] for param in module._params("made")] == ["float*"]
    with pytest.raises(ValueError, match=r'no kernel "gone" in the module; it has: kept, _Z4made'):
        module.get_function("gone")


# ---- arguments

GOOD = (None, None, 0, 2**32 - 1, -(2**63), True, -32768, 255, 1, 1.5, 1 + 2j)


def test_good_arguments(many: RawModule) -> None:
    kernel = many.get_function("many")
    launches_nothing(kernel, *GOOD)
    assert kernel((0,), (1,), list(GOOD)) is None
    assert kernel((3, 0), (1, 2, 3), GOOD, shared_mem=np.int64(7)) is None
    numpy = (
        None, None, np.int64(5), np.uint8(3), np.int32(-1), np.bool_(True), np.int16(4),
        np.uint64(9), np.float64(0.5), np.float16(2), np.complex64(1j),
    )  # fmt: skip
    launches_nothing(kernel, *numpy)
    launches_nothing(kernel, *GOOD[:8], np.int32(2), np.float32(2), 3)


@pytest.mark.parametrize(
    ("index", "value", "error", "match"),
    [
        (0, 12345678, TypeError, r"argument 0 \(const float\* x\) is a pointer: pass a tensor or "
         "None, not the int 12345678"),
        (0, np.uint64(4096), TypeError, "is a pointer: .* not the numpy.uint64 4096"),
        (0, True, TypeError, "is a pointer: .* not the bool True"),
        (0, 1.5, TypeError, "is a pointer"),
        (0, "x", TypeError, "is a pointer: .* not a str"),
        (0, [1.0], TypeError, "is a pointer: .* not a list"),
        (0, torch.ones(3, dtype=torch.float64), TypeError,
         r"argument 0 \(const float\* x\) must be a tensor of float32, but it is torch.float64"),
        (1, torch.ones(3), TypeError, "must be a tensor of float64, but it is torch.float32"),
        (0, torch.ones(3), RuntimeError, "must be on a CUDA device, but it is on cpu"),
        (0, torch.ones(3, device="meta"), RuntimeError, "on a CUDA device, but it is on meta"),
        (0, torch.ones(3, 4).t(), ValueError,
         r"must be contiguous, but it has shape \[4, 3\] and strides \[1, 4\].*strided=True"),
        (0, torch.ones(3).to_sparse(), ValueError, "must be a dense tensor"),
        (0, np.ones(3, np.float32), RuntimeError, "on a CUDA device, but it is on cpu"),
        (0, np.ones(3), TypeError, "must be a tensor of float32, but it is torch.float64"),
        (2, 2**31, ValueError, r"argument 2 \(int n\) does not hold 2147483648"),
        (2, -(2**31) - 1, ValueError, "does not hold"),
        (2, 2**64, ValueError, "does not hold 18446744073709551616"),
        (2, np.int64(2**31), ValueError, "does not hold"),
        (2, 1.0, TypeError, r"argument 2 \(int n\) must be an integer, but it is the float 1.0"),
        (2, np.float32(1), TypeError, "must be an integer"),
        (2, None, TypeError, "must be an integer, but it is None"),
        (2, torch.tensor(3), TypeError,
         r"is not a pointer, but a torch.int64 tensor of shape \[\] on cpu is given.*\.item\(\)"),
        (3, -1, ValueError, r"argument 3 \(unsigned int u\) does not hold -1"),
        (3, 2**32, ValueError, "does not hold"),
        (4, 2**63, ValueError, "does not hold"),
        (5, 1, TypeError, "must be a bool, but it is the int 1"),
        (6, 32768, ValueError, r"argument 6 \(short s\) does not hold 32768"),
        (7, 256, ValueError, "does not hold 256"),
        (7, -1, ValueError, "does not hold -1"),
        (8, "1", TypeError, "must be a number, but it is a str"),
        (8, 1j, TypeError, "must be a number, but it is the complex 1j"),
        (9, None, TypeError, "must be a number, but it is None"),
        (10, "1", TypeError, "must be a complex number"),
    ],
)  # fmt: skip
def test_bad_arguments(
    many: RawModule, index: int, value: Any, error: type[Exception], match: str
) -> None:
    kernel = many.get_function("many")
    args = list(GOOD)
    args[index] = value
    with pytest.raises(error, match=match) as found:
        launches_nothing(kernel, *args)
    assert str(found.value).startswith('RawKernel "many": ')


def test_extreme_integers(many: RawModule) -> None:
    kernel = many.get_function("in_c")
    launches_nothing(kernel, None, -128, 2**64 - 1, 2**63 - 1)
    launches_nothing(kernel, None, 127, np.uint64(2**64 - 1), -(2**63))
    for args in ((None, 128, 0, 0), (None, 0, 2**64, 0), (None, 0, -1, 0), (None, 0, 0, 2**63)):
        with pytest.raises(ValueError, match="does not hold"):
            launches_nothing(kernel, *args)


def test_number_of_arguments(many: RawModule) -> None:
    kernel = many.get_function("in_c")
    signature = r"const float\* x, signed char c, unsigned long long u, long long size"
    for args in ((), (None, 1, 2), (None, 1, 2, 3, 4)):
        match = rf'RawKernel "in_c": .* must be 4 \({signature}\), but it is {len(args)}\.'
        with pytest.raises(TypeError, match=match):
            launches_nothing(kernel, *args)
    for args in (None, 3, "abcd", torch.ones(4)):
        with pytest.raises(TypeError, match="args must be a tuple or a list"):
            kernel(0, 1, args)  # type: ignore[arg-type]


def test_views_that_are_not_what_memory_holds(many: RawModule) -> None:
    module = RawModule("__global__ void f(const float2* x) {}")
    conjugated = torch.ones(3, dtype=torch.complex64).conj()
    with pytest.raises(ValueError, match="has not been carried out"):
        launches_nothing(module.get_function("f"), conjugated)


def test_strided_is_said(many: RawModule) -> None:
    kernel = many.get_function("inner::nested")
    x = torch.ones(4, 3, dtype=torch.int32).t()
    with pytest.raises(ValueError, match="must be contiguous"):
        kernel(0, 1, (x,))
    with pytest.raises(RuntimeError, match="on a CUDA device"):  # one check further
        kernel(0, 1, (x,), strided=True)


@pytest.mark.parametrize(
    ("what", "value", "error", "match"),
    [
        ("grid", -1, ValueError, "grid x must be 0 to 2147483647, but it is -1"),
        ("grid", (1, 65536), ValueError, "grid y must be 0 to 65535, but it is 65536"),
        ("grid", (1, 1, 65536), ValueError, "grid z must be 0 to 65535"),
        ("grid", 2**31, ValueError, "grid x must be"),
        ("grid", 2**100, ValueError, "grid x must be"),
        ("grid", (), ValueError, r"must be an int or a tuple of one to three, but it is \(\)"),
        ("grid", (1, 1, 1, 1), ValueError, "tuple of one to three"),
        ("grid", 1.0, TypeError, "grid must be made of integers, but it is 1.0"),
        ("grid", "1", TypeError, "grid must be made of integers"),
        ("grid", None, TypeError, "grid must be made of integers"),
        ("block", 0, ValueError, "block x must be 1 to 1024, but it is 0"),
        ("block", (1, 1025), ValueError, "block y must be 1 to 1024, but it is 1025"),
        ("block", (1, 1, 65), ValueError, "block z must be 1 to 64"),
        ("shared_mem", -1, ValueError, "shared_mem must not be negative, but it is -1"),
        ("shared_mem", 1.5, TypeError, "shared_mem must be made of integers"),
        ("strided", "yes", TypeError, "strided must be a bool, but it is 'yes'"),
    ],
)
def test_bad_shapes(
    many: RawModule, what: str, value: Any, error: type[Exception], match: str
) -> None:
    given = {"grid": 0, "block": 1, "args": (None,)} | {what: value}
    with pytest.raises(error, match=match):
        many.get_function("inner::nested")(**given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no GPU")
def test_without_a_gpu(many: RawModule) -> None:
    kernel = many.get_function("inner::nested")
    match = r'RawKernel "inner::nested" runs on a CUDA GPU, and torch finds none here'
    for use in (
        lambda: kernel(1, 1, (None,)),
        lambda: kernel.num_regs,
        lambda: kernel.max_threads_per_block,
        lambda: kernel.suggest_block(),
        lambda: many.get_function("with_struct")(1, 1, (b"", None, None, None, b"")),
    ):
        with pytest.raises(RuntimeError, match=match.replace("inner::nested", ".*")):
            use()


# ---- modules


def test_functions_of_a_module() -> None:
    module = RawModule(
        "template <class T> __global__ void one(T* x) { *x = 1; }"
        "__global__ void two(int* x) {}"
        'extern "C" __global__ void three(int* x) {}',
        name_expressions=("one<float>", "one<short>"),
    )
    for name in ("one<float>", "one<short>", "two", "three", "_Z3twoPi", "one< short >"):
        kernel = module.get_function(name)
        assert kernel.name == name and kernel.module is module
        assert repr(kernel) == f"RawKernel({name!r})"
    has = r"it has: one<float>, one<short>, two, three\. Instances of templates must be named"
    for name in ("one<int>", "one", "four", ""):
        with pytest.raises(ValueError, match=rf'There is no kernel "{name}" in the module; {has}'):
            module.get_function(name)
    with pytest.raises(ValueError, match='There is no kernel "four"'):
        RawKernel("__global__ void five() {}", "four")(1, 1)
    with pytest.raises(TypeError, match="name must be a str, but it is a int"):
        module.get_function(3)  # type: ignore[arg-type]


def test_kernels_are_not_kept_alive() -> None:
    module = RawModule("__global__ void f(int* x) {}")
    kernel = module.get_function("f")
    launches_nothing(kernel, None)
    assert module.get_function("f") is kernel
    gone = weakref.ref(kernel), weakref.ref(module)
    del kernel, module
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_template_by_name() -> None:
    kernel = RawKernel("template <class T> __global__ void one(T* x) {}", "one<double>")
    launches_nothing(kernel, None)
    with pytest.raises(TypeError, match="must be a tensor of float64"):
        launches_nothing(kernel, torch.ones(3))


def test_ptx_cubin_and_log() -> None:
    module = RawModule("__global__ void f(int* x) { int unused = 3; *x = 1; }")
    assert ".visible .entry _Z1fPi(" in module.ptx
    assert "torch_ops" not in module.ptx
    assert module.cubin.startswith(b"\x7fELF")
    assert 'variable "unused" was declared but never referenced' in module.log
    assert "code(1)" in module.log
    quiet = RawModule("__global__ void f(int* x) { *x = 1; }")
    assert quiet.log == ""


def test_options() -> None:
    code = "__global__ void f(float* x) { x[0] = x[0] / x[1]; }"
    assert "div.rn.f32" in RawModule(code).ptx
    assert "div.approx.ftz.f32" in RawModule(code, options=("--use_fast_math",)).ptx
    assert ".target sm_80" in RawModule(code, options=["-arch=sm_80"]).ptx
    with pytest.raises(CompileError, match="unrecognized option"):
        RawModule(code, options=("--no-such-option",)).cubin  # noqa: B018
    with pytest.raises(
        TypeError, match="options must be a tuple of strings, but it is '-lineinfo'"
    ):
        RawModule(code, options="-lineinfo")
    with pytest.raises(ValueError, match="backend must be"):
        RawModule(code, backend="nvcc")
    with pytest.raises(TypeError, match="code must be a str"):
        RawModule(b"__global__")  # type: ignore[arg-type]


def test_virtual_architecture_stays_ptx() -> None:
    module = RawModule("__global__ void f(const float* x) {}", options=("-arch=compute_80",))
    assert ".target sm_80" in module.ptx
    with pytest.raises(ValueError, match="the module is PTX"):
        module.cubin  # noqa: B018
    launches_nothing(module.get_function("f"), None)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    module = RawModule(
        'extern "C" __global__ void in_c(const float* x, double d, int n, long long m, bool b) {}'
        "__global__ void in_cpp(const float* x, int n) {}"
        "struct S { int a; double b; }; __global__ void by_value(S s) {}"
    )
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "module.ptx").write_text(module.ptx)
    (folder / "module.cubin").write_bytes(module.cubin)
    return {"folder": folder, "ptx": module.ptx, "cubin": module.cubin}


@pytest.mark.parametrize("form", ["text", "bytes", "str path", "path"])
def test_from_ptx(compiled: dict[str, Any], form: str) -> None:
    path = compiled["folder"] / "module.ptx"
    given = {
        "text": compiled["ptx"],
        "bytes": compiled["ptx"].encode(),
        "str path": str(path),
        "path": path,
    }[form]
    module = RawModule.from_ptx(given)
    assert module.ptx == compiled["ptx"]
    with pytest.raises(ValueError, match="the module is PTX"):
        module.cubin  # noqa: B018
    in_c = module.get_function("in_c")

    launches_nothing(in_c, None, 0.5, -(2**31), np.int64(3), 1)
    for index, value, match in (
        (0, 4096, "has no type in the compiled code: pass a NumPy scalar"),
        (1, "x", "must be a number"),
        (2, 2**32, "does not hold"),
        (3, np.int32(3), r"takes 8 bytes, but the numpy.int32 3 has 4"),
        (4, 256, "does not hold"),
    ):
        args: list[Any] = [None, 0.5, 1, np.int64(3), 1]
        args[index] = value
        with pytest.raises((TypeError, ValueError), match=match):
            launches_nothing(in_c, *args)
    # A mangled name has the types.
    in_cpp = module.get_function("in_cpp")
    with pytest.raises(
        TypeError, match=r"argument 0 \(const float\*\) must be a tensor of float32"
    ):
        launches_nothing(in_cpp, torch.ones(3, dtype=torch.float64), 1)
    with pytest.raises(ValueError, match="it has: in_c, _Z6in_cpp"):
        module.get_function("other")


@pytest.mark.parametrize("form", ["bytes", "str path", "path"])
def test_from_cubin(compiled: dict[str, Any], form: str) -> None:
    path = compiled["folder"] / "module.cubin"
    given = {"bytes": compiled["cubin"], "str path": str(path), "path": path}[form]
    module = RawModule.from_cubin(given)
    assert module.cubin == compiled["cubin"]
    with pytest.raises(ValueError, match="made of a cubin, which holds no PTX"):
        module.ptx  # noqa: B018
    launches_nothing(module.get_function("in_cpp"), None, 3)
    with pytest.raises(TypeError, match="must be an integer"):
        launches_nothing(module.get_function("in_cpp"), None, 1.5)
    with pytest.raises(ValueError, match='There is no kernel "other"'):
        module.get_function("other")


def test_structs_in_ptx(compiled: dict[str, Any]) -> None:
    by_value = RawModule.from_ptx(compiled["ptx"].replace("_Z8by_value1S", "plain"))
    kernel = by_value.get_function("plain")
    launches_nothing(kernel, struct.pack("i4xd", 1, 2.0))
    record = np.array((1, 2.0), np.dtype([("a", "i4"), ("b", "f8")], align=True))[()]
    launches_nothing(kernel, record)
    with pytest.raises(ValueError, match="takes 16 bytes, but 12 are given"):
        launches_nothing(kernel, struct.pack("=id", 1, 2.0))
    with pytest.raises(TypeError, match="is passed by value: give its bytes"):
        launches_nothing(kernel, 5)


def test_no_such_file_or_no_code(tmp_path: Path) -> None:
    for make in (RawModule.from_ptx, RawModule.from_cubin):
        with pytest.raises(FileNotFoundError):
            make(tmp_path / "none")
        with pytest.raises(FileNotFoundError):
            make(str(tmp_path / "none"))
        (tmp_path / "some").write_bytes(b"text")
        with pytest.raises(ValueError, match="this is not"):
            make(tmp_path / "some")
        with pytest.raises(ValueError, match="this is not"):
            make(b"")
        with pytest.raises(TypeError, match=r"from_\w+: \w+ must be bytes or a path, but .* int"):
            make(3)


def test_pickled(compiled: dict[str, Any]) -> None:
    """As DataLoader and multiprocessing do with what they hand to processes; used or not."""
    kernel = RawKernel("__global__ void f(T* x) {}", "f", constants={"T": torch.int32})
    launches_nothing(pickle.loads(pickle.dumps(kernel)), None)
    launches_nothing(kernel, None)
    again = pickle.loads(pickle.dumps(kernel))
    with pytest.raises(TypeError, match="must be a tensor of int32"):
        launches_nothing(again, torch.ones(3))
    module = pickle.loads(pickle.dumps(RawModule.from_ptx(compiled["ptx"])))
    launches_nothing(module.get_function("in_cpp"), None, 3)


# ---- constants


def test_constants_are_baked_in() -> None:
    code = """
    __global__ void f(T* x) {
    #if UNROLL > 4
      x[0] = 1;
    #endif
    #pragma unroll UNROLL
      for (int i = 0; i < 1 << 20; ++i) x[i] = FLAG ? x[i] * FACTOR : OTHER;
    }
    """
    common = {"T": torch.float32, "FLAG": True, "FACTOR": 0.3, "OTHER": "T(7)"}
    for unroll in (2, 8):
        ptx = RawModule(code, constants={"UNROLL": unroll, **common}).ptx
        assert ptx.count("ld.global.f32") == unroll
        assert ptx.count("st.global") == unroll + (unroll > 4)
        assert "0d3FD3333333333333" in ptx  # 0.3 is a double, as written in C++


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (5, "int"), (-5, "int"), (2**31, "long long"), (-(2**40), "long long"),
        (2**63, "unsigned long long"), (True, "bool"), (1.5, "double"), (-0.0, "double"),
        (float("inf"), "double"), (float("-inf"), "double"), (1e300, "double"),
        (np.int32(3), "int"), (np.float32(0.5), "double"),
        (torch.float16, "__half"), (torch.bfloat16, "__nv_bfloat16"), (torch.float64, "double"),
        (torch.int64, "long long"), (torch.uint8, "unsigned char"), (torch.bool, "bool"),
        (torch.complex64, "float2"), (torch.float8_e4m3fn, "__nv_fp8_e4m3"),
    ],
)  # fmt: skip
def test_constants_have_their_type(value: Any, type: str) -> None:
    text = "C" if isinstance(value, torch.dtype) else "decltype(C)"
    code = f"""
    template <class A, class B> struct same {{ static constexpr bool value = false; }};
    template <class A> struct same<A, A> {{ static constexpr bool value = true; }};
    static_assert(same<{text}, {type}>::value);
    __global__ void f() {{}}
    """
    if isinstance(value, int | float) and abs(value) < 1e301:
        code += f"static_assert(C == {value!r}{'ull' if value == 2**63 else ''});".replace(
            "True", "true"
        )
    RawModule(code, constants={"C": value}).get_function("f")


@pytest.mark.parametrize(
    ("name", "value", "error", "match"),
    [
        ("A B", 1, ValueError, "a name must be one of C"),
        ("1A", 1, ValueError, "a name must be one of C"),
        ("A", None, TypeError, "A must be an int, a float, a bool, a str or a torch.dtype, but"),
        ("A", torch.ones(1), TypeError, "but it is a Tensor"),
        ("A", 2**64, ValueError, "A is 18446744073709551616, which no integer"),
        ("A", "1\n2", ValueError, "must be one line"),
        ("A", torch.complex32, TypeError, "torch.complex32, which CUDA has no type for"),
    ],
)
def test_bad_constants(name: str, value: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        RawModule("", constants={name: value})


# ---- examples that need no GPU to be compiled

EXAMPLES = ROOT / "examples" / "jit"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("relu_from_ptx", "to the last bit"),
        ("unroll_factors", "unrolled by 16: 16 loads"),
        ("piecewise_scale", "piecewise<__half, 8>"),
        ("shared_buffers", ""),
    ],
)
def test_example_runs(example: str, says: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{example}.py")]
    if example == "unroll_factors":
        command += ["--out", str(tmp_path / "plot.png"), "--elements", "1000003"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parents[1]), *sys.path])}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env=environ, check=False
    )
    assert run.returncode == 0, run.stderr
    if torch.cuda.is_available():
        assert says in run.stdout
        assert example != "unroll_factors" or (tmp_path / "plot.png").stat().st_size > 1000
    else:
        assert "There is no GPU" in run.stdout


def test_c_void_p_is_an_address(many: RawModule) -> None:
    """Said in so many words, an address is taken."""
    kernel = many.get_function("inner::nested")
    for address in (ctypes.c_void_p(4096), ctypes.c_void_p()):
        launches_nothing(kernel, address)
