"""Samples for elementwise ops."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from op_checks import Op, OpChecks, Sample
from torch import Tensor

import torch_ops
from torch_ops.decompositions import activations

# Around the widths of a vector of 16 bytes in each dtype (2 to 8 values), a warp, a block of
# threads, and a block's words.
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 257, 1023, 1025, 2049, 4099]
SHAPES = [(), (0, 3), (3, 5), (2, 3, 4), (2, 3, 4, 5), (1, 1, 1, 1, 7)]


def random(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(device, dtype)


def special(device: torch.device, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    values = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, info.max, info.min]
    values += [info.tiny, -info.tiny, info.smallest_normal / 4, -info.smallest_normal / 4]
    return torch.tensor(values, dtype=torch.float64).to(device, dtype)


def unary_samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for size in SIZES:
        yield Sample((random((size,), device, dtype),))
    for shape in SHAPES:
        yield Sample((random(shape, device, dtype),))
    yield Sample((special(device, dtype),))


TORCHS_ERROR = {
    "errors_when_compiled": "torch's kernel alone rejects dtypes that it does not support, and "
    "tracing does not run that kernel"
}

NOT_TORCHS = {"sequential": "torch has no such layer"}


def sized_unary(device: torch.device, size: int) -> Sample:
    return Sample((random((size, 3), device, torch.float32),))


def sized_binary(device: torch.device, size: int) -> Sample:
    x = random((size, 3), device, torch.float32)
    return Sample((x.flip(0), x))


def layer_inputs(device: torch.device) -> tuple[Tensor]:
    return (random((4, 3), device, torch.float32),)


def bad_unary(device: torch.device) -> Iterator[Sample]:
    for dtype in (torch.bool, torch.complex64):
        yield Sample((torch.ones(3, dtype=dtype, device=device),))


def bad_binary(device: torch.device) -> Iterator[Sample]:
    x = torch.ones(3, device=device)
    yield Sample((torch.ones(2, device=device), x))
    yield Sample((x.double(), x))


def every_16_bit_value(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).to(device)


def memory_layouts(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A tensor of rank 4, and others of its memory: dense ones first, then with gaps."""
    yield "contiguous", x
    yield "transposed", x.transpose(0, -1)
    yield "channels last", x.to(memory_format=torch.channels_last)
    yield "every second row", x[:, :, ::2]
    yield "every second element", x[..., ::2]
    yield "unaligned rows", x[..., 1:]
    yield "transposed, with gaps", x[:, 1:].transpose(1, 3)


# Of several tiles and pieces of the CPU's, and parts of them; the last one of several threads.
CROSSED_SHAPES = [
    (70, 1200), (1200, 70), (33, 520), (40, 513), (3, 70, 1032), (3, 1032, 70), (600, 517),
]  # fmt: skip


def crossed(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Contiguous but for its last two axes, which have changed places in memory."""
    return random((*shape[:-2], shape[-1], shape[-2]), device, dtype).mT


def away_from_zero(device: torch.device) -> Iterator[Sample]:
    for shape in [(), (5,), (2, 3), (0,)]:
        x = random(shape, device, torch.float64)
        yield Sample((x + 0.1 * x.sign(),))


# ---- Ops of one tensor, without options ---------------------------------------------------------


def few_roundings(dtype: torch.dtype) -> tuple[float, float]:
    """Gives (rtol, atol).

    16 bits: the rounding of the result, once (half an ulp is eps / 2). Else four operations of at
    most one ulp each. Denormal results are off by one step of the format at most.
    """
    info = torch.finfo(dtype)
    ulps = 0.51 if info.bits == 16 else 4
    return ulps * info.eps, info.smallest_normal * info.eps


def elementwise_ops(
    name: str,
    saves: str,
    reference: Callable[..., Tensor] | None = None,
    tolerance: Callable[[torch.dtype], tuple[float, float]] = few_roundings,
    backward_samples: Callable[[torch.device, torch.dtype], Iterable[Sample]] | None = None,
    torchs: tuple[Any, Any] = (None, None),
    **options: Any,
) -> list[Op]:
    """The descriptions of an op, its in-place form and its gradient.

    `reference` and the gradient's are the op's decompositions unless something better is given.
    `saves` says what the gradient takes, "output" or "input". `torchs` are the functions that torch
    has of the first two. `options` go to their descriptions.
    """
    ops = torch.ops.torch_ops
    reference = reference or activations[getattr(ops, name).default]

    def saved(x: Tensor) -> Tensor:
        return x if saves == "input" else reference(x.double()).to(x.dtype)

    def gradients(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
        for (x,) in (sample.args for sample in unary_samples(device, dtype)):
            yield Sample(
                (random(tuple(x.shape), device, dtype).flip(0) if x.dim() else x, saved(x))
            )

    def smooth_gradients(device: torch.device) -> Iterator[Sample]:
        for (x,) in (sample.args for sample in away_from_zero(device)):
            yield Sample((x.flip(0) + 1 if x.dim() else x + 1, saved(x)))

    cls = "".join(word.capitalize() for word in name.split("_"))
    forward = [
        Op(
            each,
            getattr(torch_ops, each),
            reference,
            unary_samples,
            tolerance,
            smooth_samples=away_from_zero,
            inplace=each != name,
            sized=sized_unary,
            kept=(0,) if saves == "input" and each == name else (),
            torchs=of_torch,
            node=f"{cls}Backward",
            **({"bad": bad_unary} | options),
        )
        for each, of_torch in zip((name, f"{name}_"), torchs, strict=True)
    ]
    backward = Op(
        f"{name}_backward",
        getattr(ops, f"{name}_backward"),
        activations[getattr(ops, f"{name}_backward").default],
        backward_samples or gradients,
        tolerance,
        smooth_samples=smooth_gradients,
        sized=sized_binary,
        bad=bad_binary,
        kept=(0, 1),
        node=f"{cls}BackwardBackward",
    )
    return [*forward, backward]


class ElementwiseChecks(OpChecks):
    """The checks of the ops that elementwise_ops describes."""

    name: str

    def gradient(self, grad_output: Tensor, x: Tensor) -> Tensor:
        """By autograd."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(getattr(torch_ops, self.name)(x), x, grad_output)[0]

    def test_function_class(self, device: torch.device) -> None:
        x = random((3, 4), device, torch.float64).requires_grad_()
        cls = "".join(word.capitalize() for word in self.name.split("_"))
        apply = getattr(torch_ops, f"{cls}Function").apply
        assert torch.autograd.gradcheck(apply, x, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(apply, x)
        batched = torch.vmap(apply, in_dims=1, out_dims=1)(x.detach())
        torch.testing.assert_close(batched, getattr(torch_ops, self.name)(x.detach()))

    def test_backward_arguments_must_match(self, device: torch.device) -> None:
        backward = getattr(torch.ops.torch_ops, f"{self.name}_backward")
        x = torch.ones(3, device=device)
        with pytest.raises(
            ValueError, match=r"grad_output and \w+ must have one shape.*\[2\].*\[3\]"
        ):
            backward(torch.ones(2, device=device), x)
        with pytest.raises(TypeError, match=r"grad_output and \w+ must have one dtype"):
            backward(x.double(), x)

    def test_inplace_keeps_torchs_rules(self, device: torch.device) -> None:
        inplace = getattr(torch_ops, f"{self.name}_")
        leaf = torch.ones(3, device=device, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            inplace(leaf)
        with pytest.raises(RuntimeError, match=rf"^{self.name}_: elements of input must not"):
            inplace(torch.ones(1, device=device).expand(3))
        y = leaf * 1
        z = y * y
        inplace(y)  # what the product has saved
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()

    def test_reverse_over_forward_in_place(self, device: torch.device) -> None:
        x = random((5,), device, torch.float64)
        of_inplace = torch.func.jacfwd(lambda x: getattr(torch_ops, f"{self.name}_")(x * 2))
        reference = torch.func.jacrev(
            torch.func.jacrev(lambda x: getattr(torch_ops, self.name)(x * 2))
        )
        torch.testing.assert_close(torch.func.jacrev(of_inplace)(x), reference(x))

    def test_direct_pair(self, device: torch.device) -> None:
        pair = importlib.import_module(f"torch_ops._ext.{self.name}")
        x = random((33,), device, torch.float32)
        if device.type == "cpu":
            with pytest.raises(RuntimeError, match="input must be a CUDA tensor, but it is on cpu"):
                pair.forward(x)
            return
        y = pair.forward(x)
        assert torch.equal(y, getattr(torch_ops, self.name)(x))
        backward = getattr(torch.ops.torch_ops, f"{self.name}_backward")
        saved = y if backward.default._schema.arguments[1].name == "output" else x
        assert torch.equal(pair.backward(x, saved), self.gradient(x, x))
        with pytest.raises(ValueError, match="grad_output must be contiguous"):
            pair.backward(x[::2], saved[:17])

    @pytest.mark.sanitizer
    def test_small_for_the_sanitizer(self, device: torch.device) -> None:
        for size in (1, 5, 33):
            for start in (0, 1):
                x = random((size + start,), device, torch.float32)[start:]
                ones = torch.ones_like(x)
                torch.testing.assert_close(
                    self.gradient(ones, x), self.gradient(ones.double(), x.double()).float()
                )
