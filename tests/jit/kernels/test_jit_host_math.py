"""exp, log, log1p and tanh of kernels on the CPU, and float16, which is converted in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torch_ops.jit import ElementwiseKernel, ReductionKernel

FUNCTIONS = ("exp", "log", "log1p", "tanh")
INF = float("inf")
SPECIAL = [0.0, -0.0, INF, -INF, float("nan"), 1e-40, -1e-40, -1.0, 90.0, -105.0, 750.0, -800.0]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    spread = torch.randn(5000, dtype=torch.float64) * 30
    return torch.cat([spread, spread / 100, torch.tensor(SPECIAL, dtype=torch.float64)]).to(dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_accuracy(name: str, dtype: torch.dtype) -> None:
    x = numbers(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.numpy().astype(np.longdouble))
        rounded = expected.astype(x.numpy().dtype)
    step = np.spacing(np.abs(rounded))
    finite = np.isfinite(step)
    # The names are looked up alike for all functions.
    every_way = dtype == torch.float32 or name == FUNCTIONS[0]
    for prefix in ("", "std::", "::")[: 3 if every_way else 1]:
        kernel = ElementwiseKernel("T x", "T y", f"y = {prefix}{name}(x)", f"of_{name}")
        actual = kernel(x).numpy()
        error = np.abs(actual[finite].astype(np.longdouble) - expected[finite]) / step[finite]
        assert error.max() < 1.1
        np.testing.assert_array_equal(actual[~finite], rounded[~finite])
        assert np.array_equal(np.signbit(actual)[x == 0], np.signbit(expected)[x == 0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_place_of_an_element_does_not_matter(name: str) -> None:
    kernel = ElementwiseKernel("T x", "T y", f"y = {name}(x)", f"placed_{name}")
    x = numbers(torch.float32).abs()
    alone = torch.cat([kernel(each[None]) for each in x[:200]])
    for length in (1, 7, 16, 31, 200):
        assert torch.equal(kernel(x[:length]), alone[:length])
    assert torch.equal(kernel(x[:200].expand(3, 200).t())[:, 1], alone)


def test_other_types_and_names() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    for text in ("expf(x)", "float(exp((long double)x))", "float(exp(int(x)))", "exp(double(x))"):
        kernel = ElementwiseKernel("float32 x", "float32 y", f"y = {text}", "others")
        torch.testing.assert_close(kernel(x), x.exp())
    whole = ElementwiseKernel("int64 n", "float64 y", "y = log1p(n)", "of_ints")
    torch.testing.assert_close(whole(x.long()), x.double().log1p())
    named = ElementwiseKernel("T log, T exp", "T tanh", "tanh = log * exp", "variables")
    assert torch.equal(named(x, x), x * x)
    preamble = "#include <complex>\n#include <random>\n#include <valarray>\n"
    included = ElementwiseKernel(
        "T x",
        "T y",
        "y = std::exp(std::complex<T>(0, x)).real() + std::exp(std::valarray<T>(x, 1))[0]",
        "included",
        preamble=preamble,
    )
    torch.testing.assert_close(included(x), x.cos() + x.exp())
    total = ReductionKernel("T x", "T y", "exp(x)", "a + b", "y = log(a)", 0, "log_of_sum")
    torch.testing.assert_close(total(x), x.logsumexp(0))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 127, 128, 129, 300, 70000])
def test_blocks_of_float16(size: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(size).half(), torch.randn(size)
    expected = (x.float() * y).half()
    kernel = ElementwiseKernel("float16 x, float32 y", "float16 z", "z = x * y", "mixed")
    assert torch.equal(kernel(x, y), expected)
    grown = ElementwiseKernel("float16 x", "float16 z", "z += x", "grown")
    z = y.half()
    assert torch.equal(grown(x, z), (x.float() + y.half().float()).half())
    counted = ElementwiseKernel("float16 x", "float16 z", "z = x + i % 5", "counted")
    assert torch.equal(counted(x), (x.float() + torch.arange(size) % 5).half())
    assert torch.equal(kernel(x, y, x), expected)  # in place


def test_every_float16() -> None:
    bits: Any = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    x = bits.view(torch.float16)
    same = ElementwiseKernel("float16 x", "float16 y", "y = x", "same_halves")
    wide = ElementwiseKernel("float16 x", "float32 y", "y = x", "wide_halves")
    torch.testing.assert_close(same(x), x, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(wide(x), x.float(), rtol=0, atol=0, equal_nan=True)
    between = torch.cat([x.float() * 1.0003, x.float() * 0.9998, numbers(torch.float32)])
    narrow = ElementwiseKernel("float32 x", "float16 y", "y = x", "narrow_halves")
    torch.testing.assert_close(narrow(between), between.half(), rtol=0, atol=0, equal_nan=True)
