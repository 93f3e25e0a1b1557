from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from activations import away_from_zero, random, special, unary_samples
from op_checks import Op, OpChecks, Sample
from torch import Tensor

import torch_ops


def backward_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for (x,) in (sample.args for sample in unary_samples(device, dtype)):
        gradient = random(tuple(x.shape), device, dtype).flip(0) if x.dim() else x + 1
        yield Sample((gradient, torch.sigmoid(x)))
    values = special(device, dtype)
    outputs = torch.tensor([0.0, 0.5, 1.0, torch.nan], device=device, dtype=dtype)
    yield Sample((values.repeat(len(outputs)), outputs.repeat_interleave(len(values))))


def smooth_backward_samples(device: torch.device) -> Iterator[Sample]:
    for (x,) in (sample.args for sample in away_from_zero(device)):
        yield Sample((x.flip(0) + 1 if x.dim() else x + 1, torch.sigmoid(x)))


def reference(x: Tensor) -> Tensor:
    # float64's own sigmoid loses the lower tail: 1 / (1 + exp(-x)) gives 0 once exp overflows.
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, torch.ones_like(e)) / (1 + e)


def backward_reference(grad_output: Tensor, output: Tensor) -> Tensor:
    return grad_output * (1 - output) * output


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Gives (rtol, atol).

    16 bits: the rounding of the result, once (half an ulp is eps / 2). Else four operations of at
    most one ulp each. Denormal results are off by one step of the format at most.
    """
    info = torch.finfo(dtype)
    ulps = 0.51 if info.bits == 16 else 4
    return ulps * info.eps, info.smallest_normal * info.eps


OPS = [
    Op(
        "sigmoid",
        torch_ops.sigmoid,
        reference,
        unary_samples,
        tolerance,
        smooth_samples=away_from_zero,
    ),
    Op(
        "sigmoid_backward",
        torch.ops.torch_ops.sigmoid_backward,
        backward_reference,
        backward_samples,
        tolerance,
        smooth_samples=smooth_backward_samples,
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_16_bit_values(device: torch.device, dtype: torch.dtype) -> None:
    """Every input there is: at most 0.51 of the distance to the next number from the true value."""
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    actual = torch_ops.sigmoid(x.to(device)).cpu()
    expected = reference(x.double())
    assert torch.equal(actual.isnan(), x.isnan())
    finite = ~x.isnan()
    spacing = torch.finfo(dtype).eps * torch.exp2(torch.floor(torch.log2(expected)))
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    error = (actual.double() - expected).abs() / spacing.clamp(min=least)
    assert error[finite].max() <= 0.51


def test_every_exponent(device: torch.device) -> None:
    """float32: steps from the correctly rounded result, at thousands of values of each exponent."""
    generator = torch.Generator().manual_seed(0)
    mantissas = torch.randint(2**23, (2**9, 2000), generator=generator, dtype=torch.int32)
    mantissas[:, 0], mantissas[:, 1] = 0, 2**23 - 1
    # Sign and exponent are the upper 9 bits: all that there are.
    x = ((torch.arange(-(2**8), 2**8, dtype=torch.int32) << 23)[:, None] | mantissas).view(
        torch.float32
    )
    actual = torch_ops.sigmoid(x.to(device)).cpu()
    expected = reference(x.double()).float()
    assert torch.equal(actual.isnan(), x.isnan())
    # As integers, neighbours among the floats from 0 to 1 differ by one.
    steps = (actual.view(torch.int32) - expected.view(torch.int32)).abs()
    assert steps[~x.isnan()].max() <= (2 if device.type == "cpu" else 4)


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_instruction_sets(capability: str) -> None:
    """The CPU's loops exist once for each; the tests above run the widest that there is."""
    tests = "cpu and (every_exponent or all_16_bit_values or lower_tail or agrees)"
    # A run of its own, which must not take itself for a worker of the run that it is started by.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k", tests, __file__],
        env={**environment, "ATEN_CPU_CAPABILITY": capability},
        check=True,
    )


def test_lower_tail(device: torch.device) -> None:
    """Where torch gives 0 from -88.7 on, results go on to the least denormal number, 2^-149."""
    x = torch.linspace(-103.9, -80, 1000, dtype=torch.float64)
    x = x.float().double()
    actual = torch_ops.sigmoid(x.float().to(device)).cpu().double()
    assert (actual > 0).all()
    expected = reference(x)
    error = (actual - expected).abs() / (expected * 2**-23).clamp(min=2**-149)
    assert error.max() <= 4


def test_memory_format_is_torchs(device: torch.device) -> None:
    x = random((2, 3, 4, 5), device, torch.float32)
    for other in (x, x.transpose(0, -1), x.to(memory_format=torch.channels_last), x[:, :, ::2]):
        assert torch_ops.sigmoid(other).stride() == torch.sigmoid(other).stride()


def test_module_takes_the_place_of_torchs(device: torch.device) -> None:
    x = random((4, 6), device, torch.float32)
    assert repr(torch_ops.Sigmoid()) == repr(torch.nn.Sigmoid())
    torch.testing.assert_close(torch_ops.Sigmoid()(x), torch.nn.Sigmoid()(x))


def test_function_class(device: torch.device) -> None:
    x = random((3, 4), device, torch.float64).requires_grad_()
    apply = torch_ops.SigmoidFunction.apply
    assert torch.autograd.gradcheck(apply, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(apply, x)
    batched = torch.vmap(apply, in_dims=1, out_dims=1)(x.detach())
    torch.testing.assert_close(batched, torch.sigmoid(x.detach()))


def test_wrong_dtype(device: torch.device) -> None:
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match=r"sigmoid: input must be float16.*but it is"):
            torch_ops.sigmoid(torch.ones(3, dtype=dtype, device=device))


def test_backward_arguments_must_match(device: torch.device) -> None:
    backward = torch.ops.torch_ops.sigmoid_backward
    x = torch.ones(3, device=device)
    with pytest.raises(
        ValueError, match=r"grad_output and output must have one shape.*\[2\].*\[3\]"
    ):
        backward(torch.ones(2, device=device), x)
    with pytest.raises(TypeError, match="grad_output and output must have one dtype"):
        backward(x.double(), x)


def test_direct_pair(device: torch.device) -> None:
    from torch_ops._ext import sigmoid

    x = random((33,), device, torch.float32)
    if device.type == "cpu":
        with pytest.raises(RuntimeError, match="input must be a CUDA tensor, but it is on cpu"):
            sigmoid.forward(x)
        return
    y = sigmoid.forward(x)
    torch.testing.assert_close(y, torch.sigmoid(x))
    torch.testing.assert_close(sigmoid.backward(x, y), x * y * (1 - y))
    with pytest.raises(ValueError, match="grad_output must be contiguous"):
        sigmoid.backward(x[::2], y[:17])


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for size in (1, 5, 33):
        for start in (0, 1):
            x = random((size + start,), device, torch.float32)[start:].requires_grad_()
            y = torch_ops.sigmoid(x)
            y.sum().backward()
            torch.testing.assert_close(x.grad, (y * (1 - y)).detach())
