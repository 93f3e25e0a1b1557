"""ElementwiseKernel: the parameter language, types, shapes, memory."""

from __future__ import annotations

import functools
import math
import operator
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from op_checks import assert_same, layouts_of
from torch import Tensor

from torch_ops.jit import CompileError, ElementwiseKernel, IndexedKernel, ReductionKernel

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip

ADD = ElementwiseKernel("T x, T y", "T z", "z = x + y", "add")
AXPY = ElementwiseKernel("T a, T x, T y", "T z", "z = a * x + y", "axpy")


def random(shape: tuple[int, ...], device: torch.device, dtype=torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    values = torch.randn(shape, generator=generator)
    return (values * 10 if not dtype.is_floating_point else values).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype, device: torch.device) -> None:
    """As torch adds; 16-bit floats are rounded once."""
    for size in (0, 1, 5, 67):
        x, y = random((size,), device, dtype), random((size,), device, dtype).flip(0)
        assert_same(ADD(x, y), torch.add(x, y), str(size))


def test_result_types(device: torch.device) -> None:
    """Each placeholder is torch.result_type of its arguments."""
    values = [
        random((3,), device, torch.int32), random((3,), device, torch.bfloat16),
        random((3,), device, torch.float64), random((), device, torch.float64),
        torch.tensor(2, dtype=torch.int64), torch.tensor(1.5, dtype=torch.float64), 2, 0.5, True,
    ]  # fmt: skip
    for x in values:
        for y in values:
            if not isinstance(x, Tensor) and not isinstance(y, Tensor):
                continue
            actual = ADD(x, y)
            assert actual.dtype == torch.result_type(x, y), (x, y)
            # Added in float32 at least, also where one of them is rounded to 16 bits by torch.
            wide = sum(torch.as_tensor(v).to(device, torch.float64) for v in (x, y))
            torch.testing.assert_close(actual, wide.to(actual))


def test_bools_of_any_byte(device: torch.device) -> None:
    """Whatever is not 0 is true, as for torch, wherever in a vector it stands."""
    keep = (torch.arange(67, device=device) % 3).to(torch.uint8).view(torch.bool)
    x = random((67,), device)
    mask = ElementwiseKernel("T x, bool keep", "T y, bool k", "y = keep * x; k = keep", "mask")
    y, kept = mask(x, keep)
    assert_same(y, x * keep, "y")
    assert kept.view(torch.uint8).tolist() == [int(byte > 0) for byte in keep.view(torch.uint8)]
    total = ReductionKernel("T x, bool keep", "T y", "keep ? x : 0", "a + b", "y = a", 0, "total")
    assert_same(total(x.double(), keep).float(), torch.where(keep, x, 0).double().sum().float(), "")


def test_macros_of_cmath(device: torch.device) -> None:
    texts = {"INFINITY": math.inf, "NAN": math.nan, "-HUGE_VAL": -math.inf, "M_PI": math.pi,
             "M_SQRT1_2": math.sqrt(0.5), "M_2_SQRTPI": 2 / math.sqrt(math.pi)}  # fmt: skip
    text = "; ".join(f"y{k} = {text} + x" for k, text in enumerate(texts))
    outputs = ", ".join(f"T y{k}" for k in range(len(texts)))
    values = ElementwiseKernel("T x", outputs, text)(torch.zeros(1, 1, device=device).double())
    expected = torch.tensor([*texts.values()], dtype=torch.float64, device=device)
    assert_same(torch.cat(values).flatten(), expected, "")


def test_two_placeholders_and_fixed_types(device: torch.device) -> None:
    kernel = ElementwiseKernel("T x, U y, float32 s, int64 k", "U z, float64 w, T t",
                               "z = y * s; w = x + k; t = x")  # fmt: skip
    x, y = random((4,), device, torch.int16), random((4,), device, torch.float16)
    z, w, t = kernel(x, y, 0.5, 3)
    assert (z.dtype, w.dtype, t.dtype) == (torch.float16, torch.float64, torch.int16)
    assert_same(z, (y.float() * 0.5).half(), "z")
    assert_same(w, (x + 3).double(), "w")
    assert_same(t, x, "t")
    # float64 to float32 is cast, as torch.can_cast allows.
    assert kernel(x, y, random((4,), device, torch.float64), 3)[0].dtype == torch.float16
    with pytest.raises(TypeError, match=r"k is declared int64, .*torch\.float32 is not cast"):
        kernel(x, y, 0.5, random((4,), device))
    with pytest.raises(TypeError, match=r"k is declared int64, to which torch\.float64"):
        kernel(x, y, 0.5, 2.5)
    with pytest.raises(TypeError, match=r"y must be a tensor or a number, .* numpy\.ndarray"):
        kernel(x, np.ones(4), 0.5, 3)


SHAPES = [
    ((3, 4), (4,)), ((3, 1), (1, 5)), ((), (2, 3)), ((2, 0, 3), (3,)), ((1,), (7,)),
    ((64, 8), (8,)), ((64, 8), (64, 1)), ((2, 3, 4, 5), (3, 1, 5)), ((2, 1, 3, 1, 2), (2, 1, 4, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_broadcasting(dtype: torch.dtype, device: torch.device) -> None:
    for first, second in SHAPES:
        x, y = random(first, device, dtype), random(second, device, dtype)
        for a, b in ((x, y), (y, x)):
            actual, expected = ADD(a, b), torch.add(a, b)
            assert_same(actual, expected, f"{first} {second}")
            assert actual.stride() == expected.stride()


@pytest.mark.parametrize("shape", [(5,), (6, 7), (33, 16), (2, 3, 4, 8)])
def test_strides_and_memory_formats(shape: tuple[int, ...], device: torch.device) -> None:
    for dtype in (torch.float32, torch.float16):
        x, y = random(shape, device, dtype), random(shape, device, dtype).flip(0)
        for name, view in layouts_of(x):
            for other in (y, view):
                actual, expected = ADD(view, other), torch.add(view, other)
                assert_same(actual, expected, name)
                assert actual.stride() == expected.stride(), name


def test_outputs(device: torch.device) -> None:
    x, y = random((4, 6), device), random((6,), device)
    expected = x + y
    for out in (torch.empty_like(x), torch.empty(6, 4, device=device).T,
                torch.empty(4, 12, device=device)[:, ::2]):  # fmt: skip
        version = out._version
        assert ADD(x, y, out=out) is out or torch.equal(out, expected)
        assert torch.equal(out, expected)
        assert out._version > version
    assert torch.equal(ADD(x, y, torch.empty_like(x)), expected)
    double = ADD(x, y, out=torch.empty(4, 6, dtype=torch.float64, device=device))
    assert_same(double, expected.double(), "wider out")
    inplace = x.clone()
    ADD(inplace, y, out=inplace)
    assert torch.equal(inplace, expected)
    two = ElementwiseKernel("T x", "T y, int32 z", "y = -x; z = x > 0")
    outs = (torch.empty_like(x), torch.empty(4, 6, dtype=torch.int32, device=device))
    for result in (two(x, out=outs), two(x, *outs), two(x)):
        assert torch.equal(result[0], -x) and torch.equal(result[1], (x > 0).int())


def test_wrong_outputs(device: torch.device) -> None:
    x = random((4, 6), device)
    with pytest.raises(ValueError, match=r"output z has shape \[6\], but the result has \[4, 6\]"):
        ADD(x, x, out=torch.empty(6, device=device))
    with pytest.raises(ValueError, match="never resized"):
        ADD(x, x, out=torch.empty(0, device=device))
    with pytest.raises(ValueError, match="output z has shape"):
        ADD(x[:1], x[:1], out=x)
    with pytest.raises(TypeError, match=r"z is computed in torch\.float32, .*to torch\.int32"):
        ADD(x, x, out=torch.empty(4, 6, dtype=torch.int32, device=device))
    with pytest.raises(RuntimeError, match="unsupported operation"):
        ADD(x.view(-1)[1:], 1, out=x.view(-1)[:-1])
    with pytest.raises(RuntimeError, match=r"more than one element|single memory location"):
        ADD(x, x, out=torch.empty(1, device=device).expand(4, 6))
    with pytest.raises(TypeError, match="output z must be a tensor, but it is list"):
        ADD(x, x, [1])
    with pytest.raises(RuntimeError, match="out= and automatic differentiation"):
        ADD(x.clone().requires_grad_(), x, out=torch.empty_like(x))
    with torch.no_grad():
        ADD(x.clone().requires_grad_(), x, out=torch.empty_like(x))


def test_wrong_arguments(device: torch.device) -> None:
    x = random((4,), device)
    with pytest.raises(TypeError, match=r"add: .* must be 2 \(x, y\).* outputs \(z\).* is 1"):
        ADD(x)
    with pytest.raises(TypeError, match="but it is 4"):
        ADD(x, x, x, x)
    with pytest.raises(TypeError, match="y must be a tensor or a number, but it is str"):
        ADD(x, "1")
    with pytest.raises(TypeError, match=r"x is torch\.float8_e5m2; kernels compute on bool"):
        ADD(*[x.to(torch.float8_e5m2)] * 2)
    with pytest.raises(ValueError, match="does not broadcast with"):
        ADD(x, random((3,), device))
    with pytest.raises(RuntimeError, match=r"one device.*meta"):
        ADD(x, x.to("meta"))
    if device.type == "cuda":
        with pytest.raises(RuntimeError, match=r"one device.*is on cpu"):
            ADD(x, x.cpu())
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(
            ValueError, match=rf"^add: y must be from -2\^63 .*, but it is {number}"
        ):
            ADD(x, number)
    with pytest.raises(TypeError, match="add: y must be a strided tensor, but it is Sparse"):
        ADD(x, x.to_sparse())
    for out in (x.to("meta"), torch.empty(4, device=device, requires_grad=True)):
        with pytest.raises(RuntimeError, match=r"out= .*(on meta|automatic differentiation)"):
            ADD(x, x, out=out)
    fill = ElementwiseKernel("raw T w", "T y", "y = w[i]", "fill")
    for size in (3.5, "3", [1.0], None):
        with pytest.raises((TypeError, ValueError), match=r"^fill: (size must be None|.*size=)"):
            fill(x, size=size)
    with pytest.raises(
        ValueError, match="size must fit in 64 bits, but it is 1180591620717411303424"
    ):
        fill(x, size=2**70)


def test_numbers(device: torch.device) -> None:
    x = random((5,), device)
    for number in (2, 2.5, True, np.float32(1.5), np.int64(3), torch.tensor(2.5), -(2**40)):
        torch.testing.assert_close(AXPY(number, x, 1), number * x + 1)
    i = torch.arange(5, device=device)
    assert torch.equal(AXPY(2**40, i, -1), 2**40 * i - 1)
    assert AXPY(2.0, 3, 4).item() == 10
    assert AXPY(2.0, 3, 4).shape == ()


def test_numbers_of_numpy(device: torch.device) -> None:
    x = random((3,), device, torch.complex64)
    for number in (np.complex64(1 + 2j), np.complex128(1 + 2j)):
        torch.testing.assert_close(ADD(x, number), x + (1 + 2j))
    i = torch.arange(3, device=device)
    assert ADD(i, np.bool_(True)).dtype == torch.int64
    for number in (np.float16(2.5), np.float64(2.5), np.longdouble(2.5), Fraction(5, 2)):
        assert torch.equal(ADD(i, number), i + 2.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_arguments_are_rounded_to_16_bits(dtype: torch.dtype, device: torch.device) -> None:
    name = str(dtype).removeprefix("torch.")
    double = ElementwiseKernel(f"{name} k", "float32 y", "y = 2 * k", f"double_{name}")
    read = ElementwiseKernel(f"raw {name} w", "float32 y", "y = 2 * w[i]", f"read_{name}")
    total = ReductionKernel(f"{name} k", "float32 y", "k", "a + b", "y = a", 0, f"total_{name}")
    values = torch.tensor([0.1, 1e9, -3.0, math.nan, 2049.0], device=device)
    for given in (values, values.double(), values[2:], values[::2], torch.tensor([300, 2049])):
        k = given.to(device)
        expected = 2 * k.to(dtype).float()
        assert torch.equal(double(k).nan_to_num(7), expected.nan_to_num(7))
        assert torch.equal(read(k, size=len(k)).nan_to_num(7), expected.nan_to_num(7))
        # Up to five additions in float32, in any order.
        summed = k.to(dtype).double().sum()
        torch.testing.assert_close(
            total(k).double(), summed, rtol=5 * 2**-24, atol=0, equal_nan=True
        )
    for number in (0.1, 1e9, 2049, True, torch.tensor(0.1)):
        assert double(number).item() == 2 * torch.as_tensor(number).to(dtype).item()
    assert math.isnan(double(math.nan).item())
    x = torch.tensor([0.1, 3.0], device=device, requires_grad=True)
    square = ElementwiseKernel(f"{name} x", "float32 y", "y = x * x", f"square_{name}")
    (grad,) = torch.autograd.grad(square(x).sum(), x)
    torch.testing.assert_close(grad, 2 * x.detach().to(dtype).float(), rtol=0.01, atol=0)
    with pytest.raises(TypeError, match=r"k is declared"):
        double(1j)


def test_index_is_row_major(device: torch.device) -> None:
    kernel = ElementwiseKernel("T x", "int64 y", "y = i + 0 * x", "index")
    for shape in ((), (7,), (4, 6), (2, 3, 4, 5), (33, 40)):
        x = random(shape, device)
        expected = torch.arange(x.numel(), device=device).view(shape)
        views = [x, x.to(torch.float64), *(view for _, view in layouts_of(x))]
        if x.dim() > 1:
            views += [x[:1].expand(shape), x[..., :1].expand(shape)]
        for view in views:
            assert torch.equal(kernel(view), expected), (shape, view.stride())
    out = torch.empty(6, 4, dtype=torch.int64, device=device).T
    assert torch.equal(
        kernel(random((4, 6), device), out=out), torch.arange(24, device=device).view(4, 6)
    )


def test_raw_arrays(device: torch.device) -> None:
    """Row-major and multi-indices, whatever the strides; size() of array and kernel."""
    table = random((5, 3), device)
    index = torch.tensor([4, 0, 2, 2], device=device)
    take = ElementwiseKernel("raw T w, int64 k", "T y", "y = w[3 * k + 1]")
    pair = ElementwiseKernel("raw T w, int64 k", "T y", "ptrdiff_t at[] = {k, 1}; y = w[at]")
    for kernel in (take, pair):
        for view in (table, table.T.contiguous().T, random((10, 3), device)[::2],
                     table.half(), table.double()):  # fmt: skip
            assert_same(kernel(view, index), view[index, 1], str(view.stride()))
    sizes = ElementwiseKernel(
        "raw T w", "int64 y", "y = i == 0 ? w.size() : i == 1 ? w.shape()[1] : _ind.size()"
    )
    assert sizes(table, size=3).tolist() == [15, 3, 3]
    assert sizes(table, size=(3, 1)).shape == (3, 1)
    assert sizes(table, size=0).shape == (0,)
    flipped = ElementwiseKernel("raw T w", "T y", "y = w[_ind.size() - 1 - i]", "flip")
    x = random((6,), device)
    assert torch.equal(flipped(x, size=6), x.flip(0))
    assert torch.equal(flipped(x, out=torch.empty_like(x)), x.flip(0))
    with pytest.raises(ValueError, match="Pass size="):
        flipped(x)
    with pytest.raises(ValueError, match="size= is for calls"):
        ADD(x, x, size=6)
    with pytest.raises(ValueError, match="must not be negative"):
        flipped(x, size=-1)
    with pytest.raises(TypeError, match="w is a raw parameter"):
        flipped(2.0, size=3)


def test_raw_alone(device: torch.device) -> None:
    """size= is the number of elements, whether outputs are given or not; nothing else tells it."""
    x = random((6,), device)
    copy = ElementwiseKernel("raw T x", "raw T y", "y[i] = x[i]", "copy")
    scale = ElementwiseKernel("T a, raw T x", "raw T y", "y[i] = a * x[i]", "scale")
    for size in (6, (2, 3), 4, 0):
        count = math.prod(size) if isinstance(size, tuple) else size
        expected = torch.cat([x[:count], torch.zeros_like(x[count:])])
        for y, kernel, args in (
            (torch.zeros_like(x), copy, (x,)),
            (torch.zeros_like(x), scale, (1.0, x)),
        ):
            kernel(*args, size=size, out=y)
            assert torch.equal(y, expected)
            assert torch.equal(kernel(*args, y.zero_(), size=size), expected)
            with pytest.raises(ValueError, match=r"only raw parameters are given.*Pass size="):
                kernel(*args, out=y)
    with pytest.raises(ValueError, match="size= is for calls"):
        FILL_BESIDE(x, size=6, out=(x, x))


def test_a_tensor_without_axes_beside_a_raw_array(device: torch.device) -> None:
    """It tells the shape, as without the array, and on every way."""
    kernel = ElementwiseKernel("T x, raw T w", "T y", "y = x + w[1]", "beside")
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    x = torch.tensor(0.5, device=device, requires_grad=True)
    y = kernel(x, w[0])
    assert y.shape == () and y.item() == 2.5 and torch.autograd.grad(y, x)[0].item() == 1
    assert kernel(x.detach().to("meta"), w[0].to("meta")).shape == ()
    y = kernel(x, w[0], size=5)
    assert y.tolist() == [2.5] * 5 and torch.autograd.grad(y.sum(), x)[0].item() == 5
    y = kernel(x, w[0], size=(2, 3))
    assert y.tolist() == [[2.5] * 3] * 2 and torch.autograd.grad(y.sum(), x)[0].item() == 6
    assert torch.vmap(kernel)(w[0], w).tolist() == [3, 6]
    with pytest.raises(ValueError, match=r"numbers, which tell no shape\. Pass size="):
        kernel(0.5, w)


FILL_BESIDE = ElementwiseKernel("raw T x", "raw T y, T z", "y[i] = x[i]; z = 1", "fill_beside")


def test_raw_alone_without_an_index(device: torch.device) -> None:
    x, y = torch.tensor([1.0, 2.0], device=device), torch.zeros(3, device=device)
    ElementwiseKernel("raw T x", "raw T y", "y[0] = x[0] + x[1]")(x, y, size=1)
    assert y.tolist() == [3.0, 0.0, 0.0]


def test_raw_outputs(device: torch.device) -> None:
    scatter = ElementwiseKernel("T x, int64 k", "raw T y", "y[k] = x")
    x = random((3,), device)
    for dtype in (torch.float32, torch.bfloat16):
        y = torch.zeros(6, dtype=dtype, device=device)
        scatter(x.to(dtype), torch.tensor([5, 0, 3], device=device), out=y)
        expected = torch.zeros(6, dtype=dtype, device=device)
        expected[[5, 0, 3]] = x.to(dtype)
        assert torch.equal(y, expected)
    with pytest.raises(ValueError, match="raw output y has no shape of its own"):
        scatter(x, torch.tensor([5, 0, 3], device=device))
    histogram = ElementwiseKernel("int64 k", "raw int32 y", "atomicAdd(&y[k], 1)")
    y = torch.zeros(4, dtype=torch.int32, device=device)
    histogram(torch.arange(100_000, device=device) % 4, out=y)
    assert y.tolist() == [25_000] * 4


def test_atomics(device: torch.device) -> None:
    joins = {"Add": operator.add, "Sub": operator.sub, "Min": min, "Max": max,
             "And": operator.and_, "Or": operator.or_, "Xor": operator.xor}  # fmt: skip
    text = "".join(f"atomic{name}(&{name}_[i % 3], v);" for name in joins)
    text += "if (atomicCAS(&claimed[i % 3], 0, 1) == 0) atomicExch(&claimers[i % 3], int(i) + 1)"
    outputs = ", ".join(
        f"raw int32 {name}" for name in [*map("{}_".format, joins), "claimed", "claimers"]
    )
    v = torch.randint(-1000, 1000, (30_000,), dtype=torch.int32)
    made = [torch.zeros(3, dtype=torch.int32, device=device) for _ in range(len(joins) + 2)]
    ElementwiseKernel("int32 v", outputs, text)(v.to(device), *made)
    for join, actual in zip(joins.values(), made, strict=False):
        wanted = [functools.reduce(join, v[start::3].tolist(), 0) for start in range(3)]
        assert actual.tolist() == wanted
    *_, claimed, claimers = made
    assert claimed.tolist() == [1] * 3
    assert ((claimers - 1) % 3).tolist() == [0, 1, 2]


def test_functions_of_several_types(device: torch.device) -> None:
    """Of a float and a double in double, as in C++."""
    names = ("fmin", "fmax", "pow", "atan2", "hypot", "fmod", "remainder", "fdim")
    text = "".join(f"{name}_ = {name}(x, 0.7); {name}_2 = {name}(0.7, x);" for name in names)
    outputs = ", ".join(f"float64 {name}_, float64 {name}_2" for name in names)
    x = random((300,), device).abs()
    actual = ElementwiseKernel("float32 x", outputs, text)(x)
    wide = ElementwiseKernel("float64 x", outputs, text)(x.double())
    for mine, theirs in zip(actual, wide, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=1e-14)
    clamped = ElementwiseKernel("T x", "T y", "y = min(max(x, -1), 1) + max(0, min(2, x))")(x - 1)
    torch.testing.assert_close(clamped, (x - 1).clamp(-1, 1) + (x - 1).clamp(0, 2))


def test_minimum_and_maximum(device: torch.device) -> None:
    """Of a number and a NaN the number; by the names of the C++ library too, on the CPU."""
    inf, nan = float("inf"), float("nan")
    points = torch.tensor([-0.0, 0.0, 1.0, -2.0, nan, inf, -inf, 0.1], device=device)
    x, y = torch.meshgrid(points, points, indexing="ij")
    text = "a = fmin(x, y); b = fmaxf(x, y); c = fmin(x, 0.1); d = fmax(2, x)"
    names = ["a", "b", "c", "d"]
    tenth = torch.tensor(0.1, dtype=torch.float64, device=device)
    expected = [
        torch.fmin(x, y), torch.fmax(x, y),
        torch.fmin(x.double(), tenth), torch.fmax(x.double(), torch.full_like(tenth, 2)),
    ]  # fmt: skip
    preamble = ""
    if device.type == "cpu":
        text += "; e = std::fmin(x, y) + ::fmax(y, x); f = of_library(x, y)"
        preamble = (
            "#include <math.h>\n#include <algorithm>\n#include <complex>\n#include <random>\n"
            "template <class A> A of_library(A a, A b) { return std::fmaxf(a, b) + ::fmin(a, b); }"
        )
        names += ["e", "f"]
        expected += [torch.fmin(x, y) + torch.fmax(x, y)] * 2
    outputs = ", ".join(f"float64 {name}" for name in names)
    results = ElementwiseKernel("T x, T y", outputs, text, preamble=preamble)(x, y)
    for name, result, value in zip(names, results, expected, strict=True):
        assert torch.equal(result.nan_to_num(7e77), value.double().nan_to_num(7e77)), name


@pytest.mark.parametrize(
    ("operation", "preamble", "options"),
    [
        ("y = std::cyl_bessel_j(0, x)", "", ()),
        ("y = -std::cyl_bessel_j(0, x) * -1", "", ()),  # no option such as -std
        ("y = bessel(x)", "double bessel(double x) { return std::cyl_bessel_j(0, x); }", ()),
        ("y = cyl_bessel_j(0, x)", "#include <math.h>\nusing namespace std;", ()),
        ("y = BESSEL(0, x)", "", ("-DBESSEL=std::cyl_bessel_j",)),
    ],
)
def test_special_functions_of_the_library(
    operation: str, preamble: str, options: tuple[str, ...]
) -> None:
    """Whose headers are left out where no text names them."""
    x = torch.linspace(0, 5, 11, dtype=torch.float64)
    kernel = ElementwiseKernel("T x", "T y", operation, preamble=preamble, options=options)
    torch.testing.assert_close(kernel(x), torch.special.bessel_j0(x))


def test_noinline(device: torch.device) -> None:
    """CUDA's word, and on the CPU the attribute, which newer C++ libraries write so."""
    preamble = "__device__ __noinline__ float once(float a) { return a + 1; }\n"
    text = "y = once(x)"
    if device.type == "cpu":
        preamble += "__attribute__((__noinline__)) float twice(float a) { return a + a; }"
        text = "y = once(twice(x))"
    x = torch.arange(3.0, device=device)
    expected = (2 * x if device.type == "cpu" else x) + 1
    assert torch.equal(ElementwiseKernel("T x", "T y", text, preamble=preamble)(x), expected)


def test_preamble_and_options(device: torch.device) -> None:
    kernel = ElementwiseKernel(
        "T x", "T y", "y = scale(x) + EXTRA",
        preamble="#define SCALE 3\n__device__ float scale(float a) { return a * SCALE; }",
        options=("-DEXTRA=2",),
    )  # fmt: skip
    x = random((4,), device)
    torch.testing.assert_close(kernel(x), 3 * x + 2)


@pytest.mark.parametrize("how", ["options", "preamble"])
def test_macros_with_names_of_the_headers(how: str, device: torch.device) -> None:
    names = ("N", "D", "d", "n", "S", "size", "count", "data")
    defines = "\n".join(f"#define {name} 2" for name in names)
    more = {how: defines if how == "preamble" else [f"-D{name}=2" for name in names]}
    x = torch.ones(3, 1, device=device, requires_grad=True)
    y = ElementwiseKernel("T x", "T y", "y = x * x * N * d", **more)(x)
    y = IndexedKernel("T x[s]", "T y[s]", "y = x * S", **more)(y, s=torch.arange(3, device=device))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[16]] * 3
    total = ReductionKernel("T x", "T y", "x * N", "a + b", "y = a * d", 0, **more)
    assert total(x.detach()).item() == 12
    wrong = ElementwiseKernel("T x", "T y", "y = x", options=("-DN", "-D2=N"))
    with pytest.raises(CompileError, match="options, line 2"):
        wrong(x)


def test_output_type_that_nothing_tells(device: torch.device) -> None:
    kernel = ElementwiseKernel("T x", "U y", "y = x")
    x = random((3,), device)
    with pytest.raises(TypeError, match="type U of output y cannot be inferred from the arg"):
        kernel(x)
    assert kernel(x, out=torch.empty(3, dtype=torch.float64, device=device)).dtype == torch.float64


def test_same_source_is_one_op() -> None:
    """A notebook's cell that runs again."""
    first, second = (ElementwiseKernel("T x", "T y", "y = 3 * x", "again") for _ in range(2))
    other = ElementwiseKernel("T x", "T y", "y = 4 * x", "again")
    assert first._op is second._op is not other._op
    assert second(torch.ones(2)).tolist() == [3, 3] and other(torch.ones(2)).tolist() == [4, 4]


def test_threads(device: torch.device) -> None:
    kernel = ElementwiseKernel("T x", "T y", "y = 5 * x", "threads")
    x = random((1000,), device)
    failures = []

    def work() -> None:
        for _ in range(50):
            if not torch.equal(kernel(x), 5 * x):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_inference_and_negated_tensors(device: torch.device) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j], device=device)
    assert ADD(x.conj().imag, 0).tolist() == [-2, 4]
    with torch.inference_mode():
        assert ADD(torch.ones(2, device=device), 1).tolist() == [2, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="32 GB of memory: on a GPU alone")
def test_more_than_2_31_elements() -> None:
    size = 2**31 + 4099
    x = torch.zeros(size, dtype=torch.uint8, device="cuda")
    x[-5:] = 7
    y = ElementwiseKernel("T x", "T y", "y = x + 1")(x)
    assert y[0] == 1 and y[2**31 - 1] == 1 and y[-5:].tolist() == [8] * 5 and y[-6] == 1
    del y
    index = ElementwiseKernel("T x", "bool y", "y = i == 2147483648 + 4098 || i == 7")(x)
    assert index.nonzero().flatten().tolist() == [7, size - 1]
    del index
    strided = x.expand(2, size).T  # walked in parts
    sums = ElementwiseKernel("T x", "T y", "y = x + 1")(strided[:, :1])
    assert sums[-1, 0] == 8 and sums[-6, 0] == 1


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    index = ElementwiseKernel("T x, raw T w", "T y", "y = x + w[i]")
    for size in (1, 5, 33):
        for start in (0, 1):
            x = random((size + start,), device)[start:]
            assert torch.equal(ADD(x, x), 2 * x)
            assert torch.equal(index(x, x), 2 * x)
            wide = random((size, 8 + start), device)[:, start:]
            assert torch.equal(ADD(wide, wide[0]), wide + wide[0])
            assert torch.equal(ADD(wide.T, 1), wide.T + 1)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_results_in_complex_memory(device: torch.device) -> None:
    """Which a real one is cast to, but not the other way round."""
    x = torch.ones(2, device=device)
    out = torch.full((2,), 5j, device=device)
    written = ElementwiseKernel("T x", "T y", "y = 2 * x", "written")
    assert written(x, out=out).tolist() == [2, 2]
    added = ElementwiseKernel("T x", "T y", "y += 2 * x", "added")
    with pytest.raises(TypeError, match=r"output y is read and computed in torch\.float32"):
        added(x, out=out)
    with pytest.raises(TypeError, match=r"x is torch\.complex32; kernels compute on"):
        written(x.to(torch.complex32))
    product = ElementwiseKernel("T x, T z", "T y", "y = x * z", "product")
    with pytest.raises(TypeError, match=r"T is torch\.complex32; kernels compute on"):
        product(x.half(), 1j)


def test_comments_that_go_on(device: torch.device) -> None:
    """A comment whose line ends in a backslash goes on in the next: it assigns nothing."""
    kernel = ElementwiseKernel("T x", "T y", "// note \\\ny = 1;\ny += x", "noted")
    x, out = torch.ones(2, device=device), torch.full((2,), 7.0, device=device)
    assert kernel(x, out=out).tolist() == [8, 8]


def test_more_axes_than_a_launch_has(device: torch.device) -> None:
    """26 axes that no common stride joins: an error on a GPU, where torch has that limit too."""
    if device.type == "cpu":
        pytest.skip("the host has no such limit")
    x = torch.randint(100, [2] * 26, dtype=torch.int8, device=device)
    kernel = ElementwiseKernel("T x, T y", "T z", "z = x - y", "difference")
    turned = x.permute(*reversed(range(26)))
    with pytest.raises(RuntimeError, match=r"difference: .* must not have more than 25 axes"):
        kernel(x, turned)
    assert not kernel(turned, turned).any()


def test_views_to_be_conjugated_beside_an_output(device: torch.device) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], device=device)
    doubled = ElementwiseKernel("T x", "T y", "y = 2 * x", "doubled")
    for view in (x.conj(), x.conj().imag):
        out = torch.empty_like(view.resolve_conj().resolve_neg())
        assert doubled(view, out=out) is out
        assert torch.equal(out, 2 * view)
    total = ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0")
    assert total(x.conj(), out=torch.zeros((), dtype=x.dtype, device=device)).item() == 4 - 1j
