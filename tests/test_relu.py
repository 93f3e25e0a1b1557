from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from activations import away_from_zero, random, special, unary_samples
from op_checks import Op, OpChecks, Sample
from torch import Tensor

import torch_ops


def backward_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for (x,) in (sample.args for sample in unary_samples(device, dtype)):
        yield Sample((random(tuple(x.shape), device, dtype).flip(0) if x.dim() else x + 1, x))
    # Every special gradient at every special output.
    values = special(device, dtype)
    yield Sample((values.repeat(len(values)), values.repeat_interleave(len(values))))


def smooth_backward_samples(device: torch.device) -> Iterator[Sample]:
    for (x,) in (sample.args for sample in away_from_zero(device)):
        yield Sample((x.flip(0) + 1 if x.dim() else x + 1, x))


def reference(x: Tensor) -> Tensor:
    return torch.where(x <= 0, 0.0, x)


def backward_reference(grad_output: Tensor, output: Tensor) -> Tensor:
    return torch.where(output <= 0, 0.0, grad_output)


# relu only picks one of its arguments: the result is exact.
OPS = [
    Op("relu", torch_ops.relu, reference, unary_samples, smooth_samples=away_from_zero),
    Op(
        "relu_",
        lambda x: torch_ops.relu(x, inplace=True),
        reference,
        unary_samples,
        smooth_samples=away_from_zero,
        inplace=True,
    ),
    Op(
        "relu_backward",
        torch.ops.torch_ops.relu_backward,
        backward_reference,
        backward_samples,
        smooth_samples=smooth_backward_samples,
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4, 5)])
def test_agrees_with_torch_everywhere(device: torch.device, shape: tuple[int, ...]) -> None:
    """Values, gradients, memory format; NaN and signed zeros included."""
    base = random(shape, device, torch.float32)
    base.view(-1)[:2] = torch.tensor([torch.nan, 0.0])
    inputs = [base, base.transpose(0, -1)]
    if len(shape) == 4:
        inputs += [base.to(memory_format=torch.channels_last), base[:, :, ::2]]
    for x in inputs:
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = torch_ops.relu(ours), torch.relu(theirs)
        assert y.stride() == expected.stride()
        torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
        weights = random(tuple(x.shape), device, torch.float32)
        y.backward(weights)
        expected.backward(weights)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_16_bit_values(device: torch.device, dtype: torch.dtype) -> None:
    """Every value there is: the CPU decides by its bits."""
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(device)
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(torch_ops.relu(x), reference(x), **exactly)
    torch.testing.assert_close(torch_ops.relu(x.clone(), inplace=True), reference(x), **exactly)
    ones = torch.ones_like(x)
    gradient = torch.ops.torch_ops.relu_backward(ones, x)
    torch.testing.assert_close(gradient, backward_reference(ones, x), **exactly)


def test_module_takes_the_place_of_torchs(device: torch.device) -> None:
    x = random((4, 6), device, torch.float32)
    for inplace in (False, True):
        ours, theirs = torch_ops.ReLU(inplace), torch.nn.ReLU(inplace)
        assert repr(ours) == repr(theirs)
        torch.testing.assert_close(ours(x.clone()), theirs(x.clone()))


def test_inplace_keeps_torchs_rules(device: torch.device) -> None:
    leaf = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        torch_ops.relu(leaf, inplace=True)
    with pytest.raises(RuntimeError, match="more than one element"):
        torch_ops.relu(torch.ones(1, device=device).expand(3), inplace=True)

    # A value that an earlier op saved, overwritten.
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 1
    z = y * y
    torch_ops.relu(y, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()

    # A view of a tensor with history: the base's gradient goes through relu too.
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0], device=device, requires_grad=True)
    y = x * 2
    torch_ops.relu(y[1:], inplace=True)
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 0, 2]


def test_function_class(device: torch.device) -> None:
    x = random((3, 4), device, torch.float64).requires_grad_()
    apply = torch_ops.ReLUFunction.apply
    assert torch.autograd.gradcheck(apply, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(apply, x)
    batched = torch.vmap(apply, in_dims=1, out_dims=1)(x.detach())
    assert torch.equal(batched, torch.relu(x.detach()))


def test_wrong_dtype(device: torch.device) -> None:
    for dtype in (torch.int64, torch.bool, torch.complex64):
        x = torch.ones(3, dtype=dtype, device=device)
        for inplace in (False, True):
            with pytest.raises(TypeError, match=r"input must be float16.*but it is"):
                torch_ops.relu(x, inplace)


def test_backward_arguments_must_match(device: torch.device) -> None:
    backward = torch.ops.torch_ops.relu_backward
    x = torch.ones(3, device=device)
    with pytest.raises(
        ValueError, match=r"grad_output and output must have one shape.*\[2\].*\[3\]"
    ):
        backward(torch.ones(2, device=device), x)
    with pytest.raises(TypeError, match="grad_output and output must have one dtype"):
        backward(x.double(), x)


def test_direct_pair(device: torch.device) -> None:
    from torch_ops._ext import relu

    x = random((33,), device, torch.float32)
    if device.type == "cpu":
        with pytest.raises(RuntimeError, match="input must be a CUDA tensor, but it is on cpu"):
            relu.forward(x)
        return
    y = relu.forward(x)
    assert torch.equal(y, torch.relu(x))
    assert torch.equal(relu.backward(x, y), torch.where(y > 0, x, 0))
    with pytest.raises(ValueError, match=r"input must be contiguous.*strides"):
        relu.forward(x[::2])


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for size in (1, 5, 33):
        for start in (0, 1):
            x = random((size + start,), device, torch.float32)[start:].requires_grad_()
            torch_ops.relu(x).sum().backward()
            assert torch.equal(x.grad, (x > 0).float())
