from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from activations import (
    CROSSED_SHAPES,
    TORCHS_ERROR,
    ElementwiseChecks,
    crossed,
    elementwise_ops,
    every_16_bit_value,
    layer_inputs,
    memory_layouts,
    random,
    special,
    unary_samples,
)
from op_checks import FLOATS, Sample, assert_same
from support.layers import Layer
from torch import Tensor

import torch_ops


def backward_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for (x,) in (sample.args for sample in unary_samples(device, dtype)):
        gradient = random(tuple(x.shape), device, dtype).flip(0) if x.dim() else x + 1
        yield Sample((gradient, torch.sigmoid(x)))
    values = special(device, dtype)
    outputs = torch.tensor([0.0, 0.5, 1.0, torch.nan], device=device, dtype=dtype)
    yield Sample((values.repeat(len(outputs)), outputs.repeat_interleave(len(values))))


def reference(x: Tensor) -> Tensor:
    # float64's own sigmoid loses the lower tail: 1 / (1 + exp(-x)) gives 0 once exp overflows.
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, torch.ones_like(e)) / (1 + e)


def backward_reference(grad_output: Tensor, output: Tensor) -> Tensor:
    return grad_output * (1 - output) * output


def bad_samples(device: torch.device) -> Iterator[Sample]:
    yield Sample((torch.ones(3, device=device).to(torch.float8_e4m3fn),))


OPS = [
    *elementwise_ops(
        "sigmoid",
        saves="output",
        reference=reference,
        backward_samples=backward_samples,
        torchs=(torch.sigmoid, torch.sigmoid_),
        bad=bad_samples,
        exempt=TORCHS_ERROR,
    )
]


LAYERS = [
    Layer(
        torch_ops.Sigmoid,
        layer_inputs,
        (({}, True),),
        torch.nn.Sigmoid,
    )
]


class TestChecks(ElementwiseChecks):
    name = "sigmoid"


# ---- Distances from the exact result, in steps of the format -------------------------------------


def steps(actual: Tensor, exact: Tensor) -> float:
    """The largest; `exact` is in float64. NaN must be where it is in `exact`."""
    info = torch.finfo(actual.dtype)
    assert torch.equal(actual.isnan(), exact.isnan())
    there = ~exact.isnan()
    actual, exact = actual[there].double(), exact[there]
    spacing = info.eps * torch.exp2(torch.frexp(exact).exponent.double() - 1)
    error = (actual - exact).abs() / spacing.clamp(min=info.smallest_normal * info.eps)
    return error.max().item()


def every_exponent(mantissas: int) -> Tensor:
    """float32: this many numbers of each sign and exponent, the first and the last among them."""
    generator = torch.Generator().manual_seed(0)
    lower = torch.randint(2**23, (2**9, mantissas), generator=generator, dtype=torch.int32)
    lower[:, 0], lower[:, 1] = 0, 2**23 - 1
    # Sign and exponent are the upper 9 bits: all that there are.
    upper = torch.arange(-(2**8), 2**8, dtype=torch.int32) << 23
    return (upper[:, None] | lower).view(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_16_bit_values(device: torch.device, dtype: torch.dtype) -> None:
    """Every input there is: computed in float32 and rounded once."""
    x = every_16_bit_value(device, dtype)
    assert steps(torch_ops.sigmoid(x), reference(x.double())) <= 0.51


def test_every_exponent(device: torch.device) -> None:
    """float32: steps from the correctly rounded result."""
    x = every_exponent(2000 if device.type == "cpu" else 2**16).to(device)
    actual = torch_ops.sigmoid(x)
    expected = reference(x.double()).float()
    assert torch.equal(actual.isnan(), x.isnan())
    # As integers, neighbours among the floats from 0 to 1 differ by one.
    distance = (actual.view(torch.int32) - expected.view(torch.int32)).abs()
    assert distance[~x.isnan()].max() <= 1


def test_dense_float32(device: torch.device) -> None:
    """Every 97th float from 2^-13 to 105, of both signs: on the CPU less than one step off."""
    bits = torch.arange(0x39000000, 0x42D20000, 97, dtype=torch.int32)
    for sign in (1.0, -1.0):
        x = sign * bits.view(torch.float32).to(device)
        error = steps(torch_ops.sigmoid(x), reference(x.double()))
        assert error < (1 if device.type == "cpu" else 1.5), sign


def test_float64(device: torch.device) -> None:
    """At most 8 steps off, beside the 64 bits of the processor's extended format."""
    if np.finfo(np.longdouble).nmant < 60:
        pytest.skip("longdouble is no wider than float64 here")
    generator = torch.Generator().manual_seed(0)
    tails = torch.linspace(-745.1, 745.1, 100001, dtype=torch.float64)
    small = torch.randn(100000, generator=generator, dtype=torch.float64)
    x = torch.cat(
        [tails, small, 10 * small, small * 1e-8, special(torch.device("cpu"), torch.float64)]
    )
    actual = torch_ops.sigmoid(x.to(device)).cpu()
    finite = ~x.isnan()
    assert torch.equal(actual.isnan(), x.isnan())
    wide = x[finite].numpy().astype(np.longdouble)
    e = np.exp(-np.abs(wide))
    exact = np.where(wide < 0, e, 1) / (1 + e)
    spacing = np.spacing(exact.astype(np.float64))
    error = np.abs(actual[finite].numpy().astype(np.longdouble) - exact) / spacing
    assert error.max() <= 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_at_all_16_bit_values(device: torch.device, dtype: torch.dtype) -> None:
    """At each output that there is, with gradients from the least to the largest."""
    x = every_16_bit_value(device, dtype)
    y = torch_ops.sigmoid(x)
    for gradient in (1.0, -0.3, 1e-4, 100.0, torch.finfo(dtype).max, torch.finfo(dtype).tiny):
        g = torch.full_like(y, gradient)
        actual = torch.ops.torch_ops.sigmoid_backward(g, y)
        assert steps(actual, backward_reference(g.double(), y.double())) <= 2


def test_gradient_at_every_exponent(device: torch.device) -> None:
    x = every_exponent(500 if device.type == "cpu" else 2**14).to(device)
    y = torch_ops.sigmoid(x)
    generator = torch.Generator(device).manual_seed(0)
    for scale in (1e-30, 1.0, 1e30):
        g = scale * torch.randn(y.shape, generator=generator, device=device)
        actual = torch.ops.torch_ops.sigmoid_backward(g, y)
        assert steps(actual, backward_reference(g.double(), y.double())) <= 8


def test_lower_tail(device: torch.device) -> None:
    """Where torch gives 0 from -88.7 on, results go on to the least denormal number, 2^-149."""
    x = torch.linspace(-103.9, -80, 1000, device=device)
    actual = torch_ops.sigmoid(x)
    assert (actual > 0).all()
    assert steps(actual, reference(x.double())) <= 2
    least = torch_ops.sigmoid(torch.tensor([-103.9, -200, -torch.inf], device=device))
    assert least.tolist() == [2**-149, 0, 0]


# ---- As torch does ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_agrees_with_torch_in_any_memory(device: torch.device, dtype: torch.dtype) -> None:
    close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-7 if dtype == torch.float16 else 0}
    for layout, x in memory_layouts(random((2, 3, 4, 10), device, dtype)):
        ours, theirs = x.detach().requires_grad_(), x.detach().requires_grad_()
        y, expected = torch_ops.sigmoid(ours), torch.sigmoid(theirs)
        assert y.stride() == expected.stride(), layout
        torch.testing.assert_close(y, expected, **close)
        weights = random(tuple(x.shape), device, dtype)
        for grad_output in (weights, weights.to(memory_format=torch.channels_last)):
            ours.grad = theirs.grad = None
            y.backward(grad_output, retain_graph=True)
            expected.backward(grad_output, retain_graph=True)
            # The outputs may differ by 4 steps, and a step of y near 1 is many of 1 - y.
            atol = max(4 * torch.finfo(dtype).eps * weights.abs().max().item(), close["atol"])
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=close["rtol"], atol=atol)
        z = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=device).copy_(x)
        assert_same(torch_ops.sigmoid_(z), y, layout)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", CROSSED_SHAPES, ids=str)
def test_a_transposed_gradient(
    device: torch.device, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = random(shape, device, dtype).requires_grad_()
    gradient = crossed(shape, device, dtype)
    y = torch_ops.sigmoid(x)
    (expected,) = torch.autograd.grad(y, x, gradient.contiguous(), retain_graph=True)
    (found,) = torch.autograd.grad(y, x, gradient)
    assert_same(found, expected, "transposed")


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.complex128],
    ids=str,
)
def test_other_dtypes_are_torchs(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.tensor([-3, -1, 0, 1, 100], device=device).to(dtype)
    if dtype.is_complex:
        x = x + 0.5j
    assert_same(torch_ops.sigmoid(x), torch.sigmoid(x), "sigmoid")
    if dtype.is_complex:
        assert_same(torch_ops.sigmoid_(x.clone()), torch.sigmoid(x), "sigmoid_")
        for function in (torch_ops.sigmoid, lambda x: torch_ops.sigmoid_(x * 1)):
            z = (0.1 * x).to(torch.complex128).requires_grad_()
            assert torch.autograd.gradcheck(function, z, check_forward_ad=True)
            assert torch.autograd.gradgradcheck(function, z)
    else:
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            torch_ops.sigmoid_(x)


def test_derivatives_of_any_order(device: torch.device) -> None:
    x = torch.linspace(-3, 3, 7, device=device, dtype=torch.float64, requires_grad=True)
    ours, theirs = torch_ops.sigmoid(x), torch.sigmoid(x)
    for _ in range(5):
        (ours,) = torch.autograd.grad(ours.sum(), x, create_graph=True)
        (theirs,) = torch.autograd.grad(theirs.sum(), x, create_graph=True)
        torch.testing.assert_close(ours, theirs)


def test_an_output_that_was_overwritten(device: torch.device) -> None:
    y = torch.ones(3, device=device, requires_grad=True) * 1
    z = torch_ops.sigmoid_(y) * 2
    y.add_(1)  # what sigmoid_ has saved
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_memory_format_is_torchs(device: torch.device) -> None:
    x = random((2, 3, 4, 5), device, torch.float32)
    for other in (x, x.transpose(0, -1), x.to(memory_format=torch.channels_last), x[:, :, ::2]):
        assert torch_ops.sigmoid(other).stride() == torch.sigmoid(other).stride()


def test_module_takes_the_place_of_torchs(device: torch.device) -> None:
    x = random((4, 6), device, torch.float32)
    assert repr(torch_ops.Sigmoid()) == repr(torch.nn.Sigmoid())
    torch.testing.assert_close(torch_ops.Sigmoid()(x), torch.nn.Sigmoid()(x))
