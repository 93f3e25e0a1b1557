"""What relu and leaky_relu keep for their backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from activations import CROSSED_SHAPES, crossed, memory_layouts, random
from op_checks import FLOATS, assert_same
from torch import Tensor, nn
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

import torch_ops

FUNCTIONS = {
    "relu": torch_ops.relu,
    "leaky_relu": torch_ops.leaky_relu,
    "relu_": lambda x, **kwargs: torch_ops.relu_(x * 1, **kwargs),
    "leaky_relu_": lambda x, **kwargs: torch_ops.leaky_relu_(x * 1, **kwargs),
    "ReLU": lambda x, **kwargs: torch_ops.ReLU(**kwargs)(x),
    "LeakyReLU": lambda x, **kwargs: torch_ops.LeakyReLU(**kwargs)(x),
}


@contextmanager
def saved_tensors() -> Iterator[list[Tensor]]:
    """What autograd saves meanwhile."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_bit_an_element_is_saved(device: torch.device, name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    for size in (0, 1, 7, 8, 9, 1000, 4096):
        x = random((size,), device, dtype).requires_grad_()
        with saved_tensors() as saved:
            function(x)
        (mask,) = (tensor for tensor in saved if tensor.dtype == torch.uint8)
        assert mask.numel() == (size + 7) // 8
        # The multiplication before in-place forms saves its scalar factor, and no more.
        assert all(tensor is mask or tensor.numel() == 0 for tensor in saved)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_output_is_saved_where_asked_for(device: torch.device, name: str) -> None:
    x = random((40,), device, torch.float32).requires_grad_()
    with saved_tensors() as saved:
        y = FUNCTIONS[name](x, save="output")
    assert [tensor.dtype for tensor in saved] == [torch.float32]
    assert torch.equal(saved[0], y)


def test_nothing_is_saved_without_a_gradient(device: torch.device) -> None:
    x = random((40,), device, torch.float32)
    with saved_tensors() as saved:
        torch_ops.relu(x)
        with torch.no_grad():
            torch_ops.relu(x.clone().requires_grad_())
        torch_ops.relu_(x)
    assert saved == []


def test_the_bits(device: torch.device) -> None:
    """Element i has bit i % 8 of byte i / 8; what is after the last element is 0."""
    for dtype in FLOATS:
        x = random((1001,), device, dtype)
        x[:3] = torch.tensor([torch.nan, -0.0, torch.inf])
        for slope, kept in ((None, ~(x <= 0)), (0.1, x > 0)):
            _, mask = torch.ops.torch_ops._relu_mask(x, slope)
            bits = (mask[:, None] >> torch.arange(8, device=device)) & 1
            assert torch.equal(bits.flatten()[:1001].bool(), kept)
            assert not bits.flatten()[1001:].any()


@pytest.mark.parametrize("save", ["relu", "", None])
def test_save_must_be_one_of_two(save: object) -> None:
    for call in (
        lambda: torch_ops.relu(torch.ones(2), save=save),
        lambda: torch_ops.relu_(torch.ones(2), save=save),
        lambda: torch_ops.leaky_relu(torch.ones(2), save=save),
        lambda: torch_ops.leaky_relu_(torch.ones(2), save=save),
        lambda: torch_ops.ReLU(save=save),
        lambda: torch_ops.LeakyReLU(save=save),
    ):
        message = f'(?i)^(leaky_?)?relu: save must be "mask" or "output", but it is {save!r}'
        with pytest.raises(ValueError, match=message):
            call()


def test_gradients_of_other_memory_than_the_output(device: torch.device) -> None:
    """The mask is in the order of the output; a gradient may be in any."""
    base = random((2, 3, 4, 10), device, torch.float32)
    for layout, x in memory_layouts(base):
        x = x.detach().requires_grad_()
        y = torch_ops.relu(x)
        for gradient_layout, weights in memory_layouts(random((2, 3, 4, 10), device, x.dtype)):
            if weights.shape != y.shape:
                continue
            (grad,) = torch.autograd.grad(y, x, weights, retain_graph=True)
            assert_same(grad, torch.where(x > 0, weights, 0), f"{layout}, {gradient_layout}")
        for weights in (torch.ones((), device=device), torch.ones(10, device=device)):
            expanded = weights[..., : y.shape[-1]].expand_as(y) if weights.dim() else weights
            (grad,) = torch.autograd.grad(y, x, expanded.expand_as(y), retain_graph=True)
            assert_same(grad, (x > 0).float(), layout)


@pytest.mark.parametrize("save", ["mask", "output"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", CROSSED_SHAPES, ids=str)
def test_a_transposed_gradient(
    device: torch.device, shape: tuple[int, ...], dtype: torch.dtype, save: str
) -> None:
    x = random(shape, device, dtype).requires_grad_()
    gradient = crossed(shape, device, dtype)
    for function in (torch_ops.relu, partial(torch_ops.leaky_relu, negative_slope=0.25)):
        y = function(x, save=save)
        (expected,) = torch.autograd.grad(y, x, gradient.contiguous(), retain_graph=True)
        (found,) = torch.autograd.grad(y, x, gradient)
        assert_same(found, expected, "transposed")


def test_the_output_may_be_overwritten(device: torch.device) -> None:
    """The mask does not need it; a saved output does."""
    for function in (torch_ops.relu, lambda x, **kwargs: torch_ops.relu_(x * 1, **kwargs)):
        x = torch.tensor([-1.0, 2.0, 3.0], device=device, requires_grad=True)
        (function(x).mul_(2)).sum().backward()
        assert x.grad.tolist() == [0, 2, 2]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (function(x, save="output").mul_(2)).sum().backward()


def test_second_derivative_is_zeros(device: torch.device) -> None:
    """Not an error: the gradient depends on the input, if only by zeros."""
    for function, torchs in ((torch_ops.relu, torch.relu), (torch_ops.leaky_relu, F.leaky_relu)):
        for save in ("mask", "output"):
            results = []
            for call in (partial(function, save=save), torchs):
                x = torch.tensor([-1.0, 0.5, 2.0], device=device, requires_grad=True)
                (grad,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
                assert grad.requires_grad
                (second,) = torch.autograd.grad(grad.sum(), x)
                results.append(second)
                assert torch.equal(
                    torch.autograd.functional.hessian(
                        lambda x, call=call: call(x).sum(), x.detach()
                    ),
                    torch.zeros(3, 3).to(x),
                )
            assert torch.equal(*results)


TRANSFORMS = (
    lambda f: grad(f),
    lambda f: vmap(grad(f)),
    lambda f: grad(lambda x: vmap(f)(x).sum()),
    lambda f: torch.func.hessian(f),
    lambda f: jacfwd(jacrev(f)),
    lambda f: lambda x: jvp(grad(f), (x,), (x + 1,)),
    lambda f: lambda x: torch.autograd.functional.jacobian(f, x, vectorize=True),
    lambda f: lambda x: torch.autograd.functional.hessian(f, x, vectorize=True),
)


def test_transforms(device: torch.device) -> None:
    """torch.func in its nestings, batched gradients and forward mode."""
    x = random((4, 5), device, torch.float64)

    def loss(x: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
        return (call(x * 2) ** 2).sum()

    for transform in TRANSFORMS:
        for function, torchs in (
            (torch_ops.relu, torch.relu),
            (torch_ops.leaky_relu, F.leaky_relu),
        ):
            ours = transform(partial(loss, call=function))(x)
            theirs = transform(partial(loss, call=torchs))(x)
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_many_gradients_of_one_mask(device: torch.device) -> None:
    x = random((2, 3, 4, 5), device, torch.float32).to(memory_format=torch.channels_last)
    x = x.requires_grad_()
    gradients = random((3, 2, 3, 4, 5), device, torch.float32)
    for function, off in ((torch_ops.relu, 0.0), (torch_ops.leaky_relu, gradients * 0.01)):
        for create_graph in (False, True):
            (grads,) = torch.autograd.grad(
                function(x), x, gradients, is_grads_batched=True, create_graph=create_graph
            )
            assert_same(grads, torch.where(x > 0, gradients, off), "batched")
        (second,) = torch.autograd.grad(grads.square().sum(), x)
        assert_same(second, torch.zeros_like(x), "second")


def test_opcheck(device: torch.device) -> None:
    """The ops behind `save`: schema, fake kernels, registration, AOTAutograd."""
    ops = torch.ops.torch_ops
    for shape in ((), (0, 3), (3, 5), (2, 3, 4, 5)):
        x = random(shape, device, torch.float32)
        x = x.to(memory_format=torch.channels_last) if len(shape) == 4 else x
        for slope in (None, 0.5):
            _, mask = ops._relu_mask(x, slope)
            torch.library.opcheck(ops._relu_mask.default, (x, slope))
            torch.library.opcheck(ops._relu_mask_.default, (x.clone(), slope))
            order = [0, 2, 3, 1] if len(shape) == 4 else []
            for gradient in (x, x.clone().requires_grad_()):
                torch.library.opcheck(
                    ops._relu_mask_backward.default, (gradient, mask, order, slope)
                )


def test_mask_of_another_length(device: torch.device) -> None:
    mask = torch.zeros(2, dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match=r"shape.*17.*another length than 2"):
        torch.ops.torch_ops._relu_mask_backward(torch.ones(17, device=device), mask, [], None)


@pytest.mark.parametrize("inplace", [False, True])
def test_compiled(device: torch.device, inplace: bool) -> None:
    """A mask is saved by the graph too, and the layout of the gradient may differ."""

    def net(x: Tensor) -> Tensor:
        return torch_ops.relu(x * 2, inplace).mean(-1)

    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for x in (random((4, 64, 8), device, torch.float32), random((5, 64, 6), device, torch.float32)):
        x = x.transpose(0, 1).requires_grad_()
        with saved_tensors() as saved:
            y = compiled(x)
        assert max(t.numel() * t.element_size() for t in saved) <= x.numel() // 8 + 1
        weights = random(tuple(y.shape), device, torch.float32)
        y.backward(weights)
        assert_same(y, net(x), "compiled")
        (expected,) = torch.autograd.grad(net(x), x, weights)
        assert_same(x.grad, expected, "compiled")


def test_checkpointing_and_hooks(device: torch.device) -> None:
    x = random((33,), device, torch.float32).requires_grad_()
    for reentrant in (False, True):
        x.grad = None
        checkpoint(torch_ops.relu, x, use_reentrant=reentrant).sum().backward()
        assert torch.equal(x.grad, (x > 0).float())
    with torch.autograd.graph.save_on_cpu():
        y = torch_ops.relu(x)
    x.grad = None
    y.sum().backward()
    assert torch.equal(x.grad, (x > 0).float())


# ---- Memory on CUDA -----------------------------------------------------------------------------


class Layer(nn.Module):
    """A ReLU whose output nobody keeps."""

    def __init__(self, relu: nn.Module, after: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.relu = relu
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x, self.relu(x))


AFTER = {
    "sum over neighbours": lambda x, y: torch.roll(y, 1, 0) + torch.roll(y, -1, 0),
    "residual add": lambda x, y: x + y,
    "mean": lambda x, y: y - y.mean(-1, keepdim=True),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch counts its memory on CUDA alone")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("after", AFTER)
def test_memory(after: str, dtype: torch.dtype) -> None:
    """What a chain of layers keeps, and its peak in a training step, beside torch's."""
    depth, elements = 8, 2**22
    activation = elements * dtype.itemsize

    def measure(relu: nn.Module) -> tuple[int, int]:
        x = torch.randn(2**12, 2**10, dtype=dtype, device="cuda", requires_grad=True)
        net = nn.Sequential(*(Layer(relu, AFTER[after]) for _ in range(depth)))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = net(x)
        kept = torch.cuda.memory_allocated() - before - activation  # y's own
        y.sum().backward()
        return kept, torch.cuda.max_memory_allocated() - before

    kept, peak = measure(torch_ops.ReLU())
    theirs, their_peak = measure(nn.ReLU())
    kept_output, _ = measure(torch_ops.ReLU(save="output"))
    assert theirs >= depth * activation
    assert kept_output >= depth * activation
    assert kept <= depth * elements // 8 + 4096  # blocks are multiples of 512 bytes
    assert their_peak - peak >= (depth - 2) * activation - depth * elements // 8
    assert measure(torch_ops.LeakyReLU())[0] == kept
