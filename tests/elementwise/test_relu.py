from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from activations import (
    TORCHS_ERROR,
    away_from_zero,
    bad_binary,
    bad_unary,
    every_16_bit_value,
    layer_inputs,
    memory_layouts,
    random,
    sized_binary,
    sized_unary,
    special,
    unary_samples,
)
from op_checks import FLOATS, Op, OpChecks, Sample, assert_same
from programs import ROOT, run_with_torch
from support.layers import Layer
from torch import Tensor

import torch_ops

EXACTLY = {"rtol": 0, "atol": 0, "equal_nan": True}


def backward_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for (x,) in (sample.args for sample in unary_samples(device, dtype)):
        yield Sample((random(tuple(x.shape), device, dtype).flip(0) if x.dim() else x + 1, x))
    # Every special gradient at every special output.
    values = special(device, dtype)
    yield Sample((values.repeat(len(values)), values.repeat_interleave(len(values))))


def smooth_backward_samples(device: torch.device) -> Iterator[Sample]:
    for (x,) in (sample.args for sample in away_from_zero(device)):
        yield Sample((x.flip(0) + 1 if x.dim() else x + 1, x))


Samples = Callable[..., Iterator[Sample]]


def with_slopes(samples: Samples) -> Samples:
    """Powers of two, so that the product in float64 rounds to the same as the one in any format."""

    def sloped(*args: object) -> Iterator[Sample]:
        for position, sample in enumerate(samples(*args)):
            yield Sample((*sample.args, (0.25, -0.5, 0.0)[position % 3]))

    return sloped


def with_slope(sized: Callable[..., Sample]) -> Callable[..., Sample]:
    return lambda *args: Sample((*sized(*args).args, 0.25))


def reference(x: Tensor) -> Tensor:
    return torch.where(x <= 0, 0.0, x)


def backward_reference(grad_output: Tensor, output: Tensor) -> Tensor:
    return torch.where(output <= 0, 0.0, grad_output)


def leaky_reference(x: Tensor, slope: float) -> Tensor:
    return torch.where(x > 0, x, x * slope)


def leaky_backward_reference(grad_output: Tensor, output: Tensor, slope: float) -> Tensor:
    return torch.where(output > 0, grad_output, grad_output * slope)


def equal(dtype: torch.dtype) -> tuple[float, float]:
    """The sign of relu's zeros is torch's, another one on each device: it is compared below."""
    return 0.0, math.ulp(0.0)


# Each picks one of its arguments, or scales it by a power of two: the result is exact.
OPS = [
    Op(
        "relu",
        torch_ops.relu,
        reference,
        unary_samples,
        equal,
        smooth_samples=away_from_zero,
        sized=sized_unary,
        bad=bad_unary,
        torchs=torch.relu,
        node="ReluMaskBackward",
    ),
    Op(
        "relu_",
        torch_ops.relu_,
        reference,
        unary_samples,
        equal,
        smooth_samples=away_from_zero,
        inplace=True,
        sized=sized_unary,
        bad=bad_unary,
        torchs=torch.relu_,
        node="ReluMaskBackward",
    ),
    Op(
        "relu_backward",
        torch.ops.torch_ops.relu_backward,
        backward_reference,
        backward_samples,
        smooth_samples=smooth_backward_samples,
        sized=sized_binary,
        bad=bad_binary,
        kept=(1,),
        node="ReluBackwardBackward",
    ),
    Op(
        "leaky_relu",
        torch_ops.leaky_relu,
        leaky_reference,
        with_slopes(unary_samples),
        smooth_samples=with_slopes(away_from_zero),
        sized=with_slope(sized_unary),
        bad=with_slopes(bad_unary),
        torchs=F.leaky_relu,
        node="ReluMaskBackward",
        exempt=TORCHS_ERROR,
    ),
    Op(
        "leaky_relu_",
        torch_ops.leaky_relu_,
        leaky_reference,
        with_slopes(unary_samples),
        smooth_samples=with_slopes(away_from_zero),
        inplace=True,
        sized=with_slope(sized_unary),
        bad=with_slopes(bad_unary),
        torchs=F.leaky_relu_,
        node="ReluMaskBackward",
        exempt=TORCHS_ERROR,
    ),
    Op(
        "leaky_relu_backward",
        torch.ops.torch_ops.leaky_relu_backward,
        leaky_backward_reference,
        with_slopes(backward_samples),
        smooth_samples=with_slopes(smooth_backward_samples),
        sized=with_slope(sized_binary),
        bad=with_slopes(bad_binary),
        kept=(1,),
        node="ReluBackwardBackward",
    ),
]


LAYERS = [
    Layer(
        torch_ops.ReLU,
        layer_inputs,
        (({}, True), ({"inplace": True}, True), ({"save": "output"}, False)),
        torch.nn.ReLU,
    ),
    Layer(
        torch_ops.LeakyReLU,
        layer_inputs,
        (
            ({}, True),
            ({"negative_slope": 0.3, "inplace": True}, True),
            ({"negative_slope": -1.0, "save": "output"}, False),
        ),
        torch.nn.LeakyReLU,
    ),
]


class TestChecks(OpChecks):
    pass


PAIRS = {
    "relu": (torch_ops.relu, torch.relu),
    "leaky_relu": (torch_ops.leaky_relu, F.leaky_relu),
    "leaky_relu of 0.3": (
        partial(torch_ops.leaky_relu, negative_slope=0.3),
        partial(F.leaky_relu, negative_slope=0.3),
    ),
    "leaky_relu of -2": (
        partial(torch_ops.leaky_relu, negative_slope=-2.0),
        partial(F.leaky_relu, negative_slope=-2.0),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_agrees_with_torch_everywhere(device: torch.device, pair: str, dtype: torch.dtype) -> None:
    """Values, gradients, memory format; any memory, either `save`; NaN, infinities, zeros."""
    function, torchs = PAIRS[pair]
    base = random((2, 3, 4, 10), device, dtype)
    base.view(-1)[: 2 * len(special(device, dtype))] = special(device, dtype).repeat(2)
    for layout, x in memory_layouts(base):
        weights = random(tuple(x.shape), device, dtype)
        weights.view(-1)[:4] = torch.tensor([torch.nan, torch.inf, -0.0, 1.0], dtype=dtype)
        theirs = x.detach().requires_grad_()
        expected = torchs(theirs)
        expected.backward(weights)
        for save in ("mask", "output"):
            what = f"{layout}, {save}"
            ours = x.detach().requires_grad_()
            y = function(ours, save=save)
            assert y.stride() == expected.stride(), what
            assert_same(y, expected, what)
            for grad_output in (weights, weights.to(memory_format=torch.channels_last)):
                ours.grad = None
                y.backward(grad_output, retain_graph=True)
                assert_same(ours.grad, theirs.grad, what)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_16_bit_values(device: torch.device, dtype: torch.dtype) -> None:
    """Every value there is: the CPU decides by its bits."""
    x = every_16_bit_value(device, dtype)
    torch.testing.assert_close(torch_ops.relu(x), reference(x), **EXACTLY)
    torch.testing.assert_close(torch_ops.relu_(x.clone()), reference(x), **EXACTLY)
    torch.testing.assert_close(torch_ops.leaky_relu(x, 0.3), F.leaky_relu(x, 0.3), **EXACTLY)
    ones = torch.ones_like(x)
    gradient = torch.ops.torch_ops.relu_backward(ones, x)
    torch.testing.assert_close(gradient, backward_reference(ones, x), **EXACTLY)
    for function, torchs in PAIRS.values():
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        function(ours).backward(ones)
        torchs(theirs).backward(ones)
        torch.testing.assert_close(ours.grad, theirs.grad, **EXACTLY)


def test_many_axes(device: torch.device) -> None:
    """Ten that cannot be joined: each has a gap, and their order is reversed."""
    x = random((3,) * 10, device, torch.float32)[(slice(1, None),) * 10]
    x = x.permute(*reversed(range(10))).requires_grad_()
    weights = random(tuple(x.shape), device, torch.float32)
    y = torch_ops.relu(x)
    y.backward(weights)
    assert torch.equal(y, torch.relu(x))
    assert torch.equal(x.grad, torch.where(x > 0, weights, 0.0))


def test_modules_take_the_place_of_torchs(device: torch.device) -> None:
    x = random((4, 6), device, torch.float32)
    for inplace in (False, True):
        for ours, theirs in (
            (torch_ops.ReLU(inplace), torch.nn.ReLU(inplace)),
            (torch_ops.LeakyReLU(0.2, inplace), torch.nn.LeakyReLU(0.2, inplace)),
        ):
            assert repr(ours) == repr(theirs)
            torch.testing.assert_close(ours(x.clone()), theirs(x.clone()))
    assert repr(torch_ops.ReLU(save="output")) == "ReLU(save='output')"
    assert repr(torch_ops.LeakyReLU(save="output")) == (
        "LeakyReLU(negative_slope=0.01, save='output')"
    )


@pytest.mark.parametrize("save", ["mask", "output"])
@pytest.mark.parametrize("function", [torch_ops.relu_, torch_ops.leaky_relu_])
def test_inplace_keeps_torchs_rules(
    device: torch.device, function: Callable[..., Tensor], save: str
) -> None:
    function = partial(function, save=save)
    leaf = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        function(leaf)
    with pytest.raises(RuntimeError, match="relu_: elements of input must not share"):
        function(torch.ones(1, device=device).expand(3))

    # A value that an earlier op saved, overwritten.
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 1
    z = y * y
    function(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()

    # A view of a tensor with history: the base's gradient goes through the activation too.
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0], device=device, requires_grad=True)
    y = x * 2
    function(y[1:])
    y.sum().backward()
    slope = 0.01 if function.func is torch_ops.leaky_relu_ else 0
    torch.testing.assert_close(x.grad, torch.tensor([2.0, 2.0, 2 * slope, 2.0], device=device))


@pytest.mark.parametrize("save", ["mask", "output"])
@pytest.mark.parametrize("slope", [0.3, -0.3])
def test_inplace_gradients_in_any_memory(device: torch.device, save: str, slope: float) -> None:
    base = random((2, 3, 4, 10), device, torch.float32)
    for layout, x in memory_layouts(base):
        weights = random(tuple(x.shape), device, torch.float32)
        expected = torch.where(x > 0, weights, weights * slope)
        ours = x.detach().requires_grad_()
        y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device).copy_(ours)
        assert torch_ops.leaky_relu_(y, slope, save=save) is y
        y.backward(weights)
        assert_same(y, leaky_reference(x, slope), layout)
        assert_same(ours.grad, expected, layout)


def test_function_class(device: torch.device) -> None:
    x = random((3, 4), device, torch.float64).requires_grad_()
    apply = torch_ops.ReLUFunction.apply
    assert torch.autograd.gradcheck(apply, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(apply, x)
    batched = torch.vmap(apply, in_dims=1, out_dims=1)(x.detach())
    assert torch.equal(batched, torch.relu(x.detach()))


FUNCTIONS = {
    "relu": (torch_ops.relu, torch.relu),
    "relu_": (torch_ops.relu_, torch.relu_),
    "leaky_relu": (torch_ops.leaky_relu, F.leaky_relu),
    "leaky_relu_": (torch_ops.leaky_relu_, F.leaky_relu_),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64],
    ids=str,
)
def test_other_dtypes_are_torchs(device: torch.device, name: str, dtype: torch.dtype) -> None:
    """Integers through relu; else torch's own error, whether or not a gradient is wanted."""
    function, torchs = FUNCTIONS[name]
    x = torch.tensor([-3, -1, 0, 1, 100], device=device).to(dtype)
    if name in ("relu", "relu_") and dtype != torch.bool and not dtype.is_complex:
        assert_same(function(x.clone()), torchs(x.clone()), name)
        return
    for grad in {False, dtype.is_complex}:
        x.requires_grad_(grad)
        with pytest.raises((RuntimeError, NotImplementedError)) as theirs:
            torchs(x.clone())
        with pytest.raises(theirs.type) as ours:
            function(x.clone())
        assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


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


@pytest.mark.slow
def test_more_than_2_to_31_elements(device: torch.device) -> None:
    """Strided, so that positions are divided; the mask's too."""
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of GPU memory")
    rows, width = (2**16, 2**15 + 8) if device.type == "cuda" else (2**4, 2**8)
    x = torch.zeros(rows, width + 1, dtype=torch.bfloat16, device=device)
    x[-1, -5:] = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0])
    x = x[:, 1:].requires_grad_()
    y = torch_ops.relu(x)
    assert y[-1, -5:].tolist() == [1, 0, 2, 0, 3]
    (grad,) = torch.autograd.grad(y, x, torch.ones((), dtype=x.dtype, device=device).expand_as(y))
    assert grad[-1, -5:].tolist() == [1, 0, 1, 0, 1]
    assert grad.sum(dtype=torch.float64).item() == 3


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for function in (torch_ops.relu, torch_ops.leaky_relu):
        for size in (1, 5, 33):
            for start in (0, 1):
                for step in (1, 2):
                    for save in ("mask", "output"):
                        x = random((step * size + start,), device, torch.float32)[start::step]
                        x.requires_grad_()
                        function(x, save=save).sum().backward()
                        off = 0 if function is torch_ops.relu else 0.01
                        assert torch.equal(x.grad, torch.where(x > 0, 1.0, off))


# ---- Memory of large results on the CPU ---------------------------------------------------------

HUGE_PAGES = """
import torch, torch_ops
x = torch.ones(3 << 22)
y = torch_ops.relu(x)
for line in open("/proc/self/smaps"):
    first = line.split()[0]
    if "-" in first and not first.endswith(":"):
        begin, end = (int(part, 16) for part in first.split("-"))
    elif first == "VmFlags:" and begin <= y.data_ptr() + y.nbytes // 2 < end:
        print("hg" in line.split())
assert torch.equal(y, x)
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists(), reason="not on this system"
)
@pytest.mark.parametrize("setting", ["", "0"])
def test_huge_pages_are_asked_for(setting: str) -> None:
    result = run_with_torch("-c", HUGE_PAGES, cwd=ROOT, TORCH_OPS_HUGE_PAGES=setting)
    assert result.stdout.split() == [str(setting != "0")]
