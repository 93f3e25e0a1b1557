"""How a test module describes its ops, and what their values must pass.

A test module describes its ops and inherits the checks of values:

    OPS = [Op("relu", torch_ops.relu, reference=..., samples=..., ...)]

    class TestChecks(OpChecks):
        pass

Ops of other modules' kind, which return several tensors or integers, say, stand in `OTHER_OPS`:
these checks do not fit them. tests/framework/test_support.py finds both, and runs what PyTorch
offers around an op on each of them. It fails for a registered op that no module describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Sample:
    """Arguments of one call. Tensors may stand anywhere in ``args``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def map(self, change: Callable[[Tensor], Tensor]) -> Sample:
        return replace(self, args=pytree.tree_map_only(Tensor, change, self.args))

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(self.args) if isinstance(leaf, Tensor)]

    def shapes(self) -> str:
        shown = pytree.tree_map_only(Tensor, lambda t: f"{t.dtype}{list(t.shape)}", self.args)
        return f"{shown} {self.kwargs}"


@dataclass(frozen=True)
class Op:
    """An op and what it is compared with.

    ``name`` is the registered op's, with its overload: ``"gather"`` or ``"gather.plan"``.
    ``function`` is the public function or, for an op that has none, the registered op.
    ``reference`` takes the same arguments, on the CPU, with floats in float64 (complex in
    complex128).
    ``samples(device, dtype)`` gives small inputs of every kind that the op distinguishes: ranks,
    empties, 0-d, sizes around every vector width, values at which it changes course.
    ``tolerance(dtype)`` is (rtol, atol).
    """

    name: str
    function: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    samples: Callable[[torch.device, torch.dtype], Iterable[Sample]]
    tolerance: Callable[[torch.dtype], tuple[float, float]] = lambda dtype: (0.0, 0.0)
    dtypes: tuple[torch.dtype, ...] = FLOATS
    # Adds up: on CUDA in any order, so that two calls may differ in the last bits.
    sums: bool = False
    # Overwrites its first argument, which it returns.
    inplace: bool = False
    # Where gradients are compared with finite differences: away from kinks, few elements.
    smooth_samples: Callable[[torch.device], Iterable[Sample]] | None = None

    # ---- for tests/framework/test_support.py
    # A call of which some sizes follow from n, 2 or more: for dynamic shapes.
    sized: Callable[[torch.device, int], Sample] | None = None
    # One that writes several values to one place, where that is not defined.
    colliding: Callable[[torch.device], Sample] | None = None
    # Calls that raise.
    bad: Callable[[torch.device], Iterable[Sample]] | None = None
    # The sample as the registered op takes it, or None where it cannot.
    registered: Callable[[Sample], Sample | None] = lambda sample: sample
    # Of the tensors, in order: those that torch.vmap must not map over ...
    shared: tuple[int, ...] = ()
    # ... and those that the derivative needs, and so keeps.
    kept: tuple[int, ...] = ()
    # Those that hold integers which do not decrease.
    offsets: tuple[int, ...] = ()
    # The call of torch whose dtypes under autocast ours must have, where torch has one.
    torchs: Callable[..., Tensor] | None = None
    # What the node of its derivative is called; an op that is a composition has another op's.
    node: str = ""
    # The registered op that the function calls in the first place, where that is another one.
    calls: str = ""
    # Checks that cannot hold for the op, each with the reason.
    exempt: dict[str, str] = field(default_factory=dict)

    def functional(self, *args: Any, **kwargs: Any) -> Tensor:
        """Calls the function; in-place ones on a copy, which is no leaf."""
        if self.inplace:
            args = (args[0].clone(), *args[1:])
        return self.function(*args, **kwargs)

    @property
    def overload(self) -> Any:
        name, _, overload = self.name.partition(".")
        return getattr(getattr(torch.ops.torch_ops, name), overload or "default")

    def __str__(self) -> str:
        return self.name


def is_differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def requiring_grad(sample: Sample, wanted: bool = True) -> Sample:
    return sample.map(lambda t: t.detach().clone().requires_grad_(wanted and is_differentiable(t)))


def in_high_precision(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def assert_same(actual: Tensor, expected: Tensor, what: str) -> None:
    """Equal to the last bit, the zeros' signs included; a NaN equals any NaN."""
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    as_bytes = []
    for tensor in (actual, expected):
        parts = tensor.detach().cpu().resolve_conj()
        parts = torch.view_as_real(parts) if parts.is_complex() else parts
        if parts.is_floating_point():
            parts = torch.where(parts.isnan(), torch.nan, parts)
        as_bytes.append(parts.contiguous().reshape(-1).view(torch.uint8))
    assert torch.equal(*as_bytes), what


def assert_repeated(op: Op, actual: Tensor, expected: Tensor, what: str) -> None:
    """Two results of one op on the same values."""
    if op.sums and actual.is_cuda:
        rtol, atol = op.tolerance(actual.dtype)
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, msg=lambda t: what + t)
    else:
        assert_same(actual, expected, what)


def layouts_of(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The same values in other memory."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.clone(memory_format=torch.contiguous_format)

    size, rank = tensor.numel(), tensor.dim()
    offset = torch.empty(size + 1, dtype=tensor.dtype, device=tensor.device)
    offset[1:] = tensor.reshape(-1)
    yield "unaligned start", offset[1:].view(tensor.shape)
    if rank > 0:
        gaps = torch.empty(*tensor.shape, 2, dtype=tensor.dtype, device=tensor.device)
        gaps[..., 1] = tensor
        yield "every second element", gaps[..., 1]
        wide = torch.empty(*tensor.shape[:-1], tensor.shape[-1] + 3, dtype=tensor.dtype)
        wide = wide.to(tensor.device)
        wide[..., 1:-2] = tensor
        yield "sliced rows", wide[..., 1:-2]
    if rank > 1:
        yield "transposed", copied(tensor.transpose(0, -1)).transpose(0, -1)
        yield "rolled axes", copied(tensor.movedim(0, -1)).movedim(-1, 0)
    if rank == 4:
        yield "channels last", tensor.clone(memory_format=torch.channels_last)


class OpChecks:
    """The checks; conftest.py runs each for every op of the module."""

    def test_values(self, op: Op, dtype: torch.dtype, device: torch.device) -> None:
        rtol, atol = op.tolerance(dtype)
        count = 0
        for sample in op.samples(device, dtype):
            expected = op.reference(*sample.map(in_high_precision).args, **sample.kwargs)
            actual = op.function(*sample.map(Tensor.clone).args, **sample.kwargs)
            assert actual.device.type == device.type, sample.shapes()
            assert actual.dtype == dtype, sample.shapes()
            assert actual.shape == expected.shape, sample.shapes()
            if rtol == atol == 0:
                assert_same(actual, expected.to(dtype), sample.shapes())
            else:
                torch.testing.assert_close(
                    in_high_precision(actual),
                    in_high_precision(expected),
                    rtol=rtol,
                    atol=atol,
                    equal_nan=True,
                    msg=lambda text, sample=sample: f"{sample.shapes()}: {text}",
                )
            count += 1
        assert count > 0

    def test_layouts(self, op: Op, device: torch.device) -> None:
        for sample in op.samples(device, torch.float32):
            expected = op.function(*sample.map(Tensor.clone).args, **sample.kwargs)
            for position, argument in enumerate(sample.args):
                if not isinstance(argument, Tensor):
                    continue
                for layout, other in layouts_of(argument):
                    args = [
                        other if at == position else (a.clone() if isinstance(a, Tensor) else a)
                        for at, a in enumerate(sample.args)
                    ]
                    assert torch.equal(other, argument) or argument.isnan().any()
                    actual = op.function(*args, **sample.kwargs)
                    what = f"argument {position}, {layout}: {sample.shapes()}"
                    assert_repeated(op, actual, expected, what)
                    if op.inplace:
                        assert actual is args[0], what

    def test_expanded(self, op: Op, device: torch.device) -> None:
        """Arguments whose rows share memory; not for ops that write to them."""
        if op.inplace:
            return
        for sample in op.samples(device, torch.float32):
            for position, argument in enumerate(sample.args):
                if not isinstance(argument, Tensor) or argument.numel() == 0:
                    continue
                if argument.dim() == 0:
                    continue
                first = argument[:1]
                args = list(sample.args)
                args[position] = first.expand(argument.shape)
                actual = op.function(*args, **sample.kwargs)
                args[position] = first.expand(argument.shape).contiguous()
                expected = op.function(*args, **sample.kwargs)
                assert_repeated(op, actual, expected, sample.shapes())


def volume(sample: Sample) -> int:
    return sum(t.numel() for t in sample.tensors())


def few(samples: Iterable[Sample], count: int = 6) -> list[Sample]:
    """Samples of different ranks first, then others, `count` at most."""
    by_rank: dict[Any, Sample] = {}
    others = []
    for sample in samples:
        key = tuple((t.dim(), t.numel() == 0) for t in sample.tensors())
        if key in by_rank:
            others.append(sample)
        else:
            by_rank[key] = sample
    return [*by_rank.values(), *others][:count]
