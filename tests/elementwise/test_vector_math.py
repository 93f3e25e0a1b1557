"""exp, expm1, log, log1p, tanh and erf of vector_math.h, in each instruction set."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from programs import ROOT, needs, output_of

SOURCE = """
#include "common/elementwise/elementwise.h"
#include "common/elementwise/vector_math.h"

#define FUNCTION(name)                                                     \\
  struct name##_of {                                                       \\
    template <class T>                                                     \\
    TORCH_OPS_HOST_DEVICE T operator()(T x) const {                        \\
      return torch_ops::math::name(x);                                     \\
    }                                                                      \\
  };                                                                       \\
  extern "C" void name##_32(int simd, int64_t n, float* y, float* x) {     \\
    map_range(static_cast<torch_ops::Simd>(simd), name##_of(), 0, n, y,    \\
              const_cast<const float*>(x));                                \\
  }                                                                        \\
  extern "C" void name##_64(int simd, int64_t n, double* y, double* x) {   \\
    map_range(static_cast<torch_ops::Simd>(simd), name##_of(), 0, n, y,    \\
              const_cast<const double*>(x));                               \\
  }
using torch_ops::map_range;
FUNCTION(exp)
FUNCTION(log)
FUNCTION(log1p)
FUNCTION(tanh)
FUNCTION(expm1)
FUNCTION(erf)

extern "C" void exact_erf(int64_t n, long double* y, const long double* x) {
  for (int64_t i = 0; i < n; ++i) y[i] = std::erf(x[i]);
}

extern "C" int widest() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return 1;
#endif
  return 0;
}
"""
Array = NDArray[np.floating]
FUNCTIONS: dict[str, Callable[[Array], Array] | None] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "expm1": np.expm1,
    "erf": None,  # NumPy has none
}
# The largest errors in steps of the format, as vector_math.h has them. Below 1.5 a result is the
# correctly rounded one or its neighbour.
BOUNDS = {"exp": 1.1, "log": 0.9, "log1p": 0.9, "tanh": 1.1, "expm1": 1.5, "erf": 1.5}
SIMD = {"baseline": 0, "avx2": 1, "avx512": 2}

pytestmark = needs("c++")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("vector_math")
    (folder / "functions.cpp").write_text(SOURCE)
    flags = ["-std=c++17", "-O3", "-fno-trapping-math", "-shared", "-fPIC", f"-I{ROOT / 'src'}"]
    output_of("c++", *flags, folder / "functions.cpp", "-o", folder / "functions.so")
    return ctypes.CDLL(str(folder / "functions.so"))


@pytest.fixture(params=SIMD)
def simd(request: pytest.FixtureRequest, library: ctypes.CDLL) -> int:
    number = SIMD[request.param]
    if number > library.widest():
        pytest.skip("this CPU has none")
    return number


def apply(library: ctypes.CDLL, simd: int, name: str, x: Array) -> Array:
    x = np.ascontiguousarray(x)
    y = np.empty_like(x)
    function = getattr(library, f"{name}_{8 * x.itemsize}")
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (y, x)]
    function(simd, ctypes.c_int64(x.size), *pointers)
    return y


def exact(library: ctypes.CDLL, name: str, x: Array, wide: type[np.floating]) -> Array:
    function = FUNCTIONS[name]
    if function is not None:
        return function(x.astype(wide))
    x = x.astype(np.longdouble)
    y = np.empty_like(x)
    library.exact_erf(ctypes.c_int64(x.size), *(ctypes.c_void_p(a.ctypes.data) for a in (y, x)))
    return y


def steps(actual: Array, exact: Array) -> float:
    """The largest distance from the exact result, in steps of the format there."""
    info = np.finfo(actual.dtype)
    rounded = exact.astype(actual.dtype)
    # Where the exact result rounds to an infinity, a zero or NaN, nothing else is right.
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(actual[special], rounded[special])
    assert np.isfinite(actual[~special]).all()
    assert (np.signbit(actual) == np.signbit(rounded))[~np.isnan(rounded)].all()
    spacing = np.maximum(np.spacing(np.abs(rounded[~special])), info.smallest_subnormal)
    error = np.abs(actual[~special].astype(exact.dtype) - exact[~special]) / spacing
    return float(error.max())


def of_floats() -> Array:
    """Every 997th float of either sign, the infinities and the least of all among them."""
    bits = np.arange(0, 2**31, 997, dtype=np.int64)
    bits = np.concatenate([bits, [0x7F800000, 1, 0x007FFFFF, 0x00800000]])
    return np.concatenate([bits, bits + 2**31]).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero)")
def test_float(library: ctypes.CDLL, simd: int, name: str) -> None:
    x = of_floats()
    expected = exact(library, name, x, np.float64)
    assert steps(apply(library, simd, name, x), expected) <= BOUNDS[name]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero)")
def test_double(library: ctypes.CDLL, simd: int, name: str) -> None:
    """Beside the 64 bits of the processor's extended format."""
    if np.finfo(np.longdouble).nmant < 60:
        pytest.skip("longdouble is no wider than float64 here")
    random = np.random.default_rng(0)
    any_bits = random.integers(0, 2**64, 200_000, dtype=np.uint64).view(np.float64)
    usual = [random.normal(size=100_000) * scale for scale in (1e-8, 0.1, 1, 10, 300)]
    tails = [np.linspace(-746, 710, 200_001), np.linspace(-1, 1, 100_001), [np.inf, -np.inf, -0.0]]
    x = np.concatenate([any_bits, *usual, *tails])
    expected = exact(library, name, x, np.longdouble)
    assert steps(apply(library, simd, name, x), expected) <= BOUNDS[name]
