"""torch.func, torch.vmap and forward mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
from op_checks import Op, requiring_grad
from torch import Tensor
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from support import Call, assert_close, calls, functional_name, raised, weighted


@contextmanager
def no_fallback() -> Iterator[None]:
    """An op without a batching rule is an error, not a loop over the samples."""
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)


def varied(call: Call, at: int, count: int = 3) -> list[Tensor]:
    """The same values in other places; so that an index stays within its bounds."""
    tensor = call.tensors[at]
    if at in call.op.offsets and not tensor.is_floating_point():  # what decreases names no segments
        largest = tensor.flatten()
        return [tensor.clamp(max=largest[max(-1 - step, -len(largest))]) for step in range(count)]
    if tensor.dim() == 0:
        return [tensor + step if tensor.is_floating_point() else tensor for step in range(count)]
    return [tensor.roll(step, 0) for step in range(count)]


def mapped_tensors(call: Call) -> list[tuple[int, ...]]:
    """Which of the tensors vmap maps over: each choice there is, or of many each and all."""
    may = [at for at in range(len(call.tensors)) if at not in call.op.shared]
    sizes = range(1, len(may) + 1) if len(may) <= 3 else (1, len(may))
    chosen = [choice for size in sizes for choice in combinations(may, size)]
    # What samples share cannot be overwritten for each of them.
    return [choice for choice in chosen if not call.op.inplace or 0 in choice]


def in_batches(call: Call, mapped: tuple[int, ...], turn: int = 0) -> tuple[list[Tensor], list]:
    """The tensors with an axis for the samples at all kinds of places, and where it is."""
    tensors, in_dims = call.tensors, [None] * len(call.tensors)
    for at in mapped:
        rank = tensors[at].dim() + 1
        in_dims[at] = (turn + at) % rank - (rank if (turn + at) % 2 else 0)
        tensors[at] = torch.stack(varied(call, at), in_dims[at])
    return tensors, in_dims


def sample_of(tensors: list[Tensor], in_dims: list, at: int) -> list[Tensor]:
    return [
        tensor if dim is None else tensor.select(dim, at)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]


class TransformChecks:
    def test_vmap(self, op: Op, device: torch.device) -> None:
        """Each tensor mapped or shared, the samples' axis anywhere, in and out."""
        with no_fallback():
            for call in calls(op, device):
                for turn, mapped in enumerate(mapped_tensors(call)):
                    tensors, in_dims = in_batches(call, mapped, turn)
                    each = [call(*sample_of(tensors, in_dims, at)) for at in range(3)]
                    out_dim = turn % (each[0].dim() + 1)
                    out_dim -= (each[0].dim() + 1) if turn % 2 else 0
                    what = f"{call.shapes()} {in_dims} -> {out_dim}"
                    batched = vmap(call, in_dims=tuple(in_dims), out_dims=out_dim)(*tensors)
                    assert_close(batched, torch.stack(each, out_dim), what)
                    # in_dims as a tree; a part of the samples at a time.
                    by_name = vmap(
                        lambda given, call=call: call(*given["tensors"]),
                        in_dims=({"tensors": in_dims},),
                        chunk_size=2,
                    )({"tensors": tensors})
                    assert_close(by_name, torch.stack(each), what)

    def test_nested_vmap(self, op: Op, device: torch.device) -> None:
        """Both maps over the same tensors, or the inner one over the first alone."""
        with no_fallback():
            for call in calls(op, device):
                outer = [at for at in range(len(call.tensors)) if at not in op.shared]
                # The inner one maps over the same tensors, or over the first of them alone.
                for inner in (outer, outer[:1]):
                    tensors, inner_dims = in_batches(call, tuple(inner))
                    outer_dims = [None] * len(tensors)
                    for at in outer:
                        two = [tensors[at], tensors[at].flip(inner_dims[at] or 0)]
                        if inner_dims[at] is None:
                            two[1] = varied(call, at, 2)[1]
                        tensors[at] = torch.stack(two, -1)
                        outer_dims[at] = -1
                    twice = vmap(vmap(call, tuple(inner_dims)), tuple(outer_dims))(*tensors)
                    expected = []
                    for i in range(2):
                        row = sample_of(tensors, outer_dims, i)
                        each = [call(*sample_of(row, inner_dims, j)) for j in range(3)]
                        expected.append(torch.stack(each))
                    assert_close(twice, torch.stack(expected), call.shapes())

    def test_vmap_and_grad(self, op: Op, device: torch.device) -> None:
        """A gradient for each sample, and the gradient of a batch."""
        with no_fallback():
            for call in calls(op, device):
                gradient = grad(call.loss, argnums=call.inputs)
                choices = mapped_tensors(call)
                for turn, mapped in enumerate({choices[0], choices[-1]}):
                    tensors, in_dims = in_batches(call, mapped, turn)
                    dims = tuple(in_dims)
                    each = [gradient(*sample_of(tensors, in_dims, at)) for at in range(3)]
                    expected = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
                    assert_close(vmap(gradient, dims)(*tensors), expected, call.shapes())

                    def whole(*given: Tensor, dims: tuple = dims, call: Call = call) -> Tensor:
                        return vmap(call.loss, dims)(*given).sum()

                    of_batch = grad(whole, argnums=call.inputs)(*tensors)
                    for at, actual, stacked in zip(call.inputs, of_batch, expected, strict=True):
                        dim = in_dims[at]
                        wanted = stacked.sum(0) if dim is None else stacked.movedim(0, dim)
                        assert_close(actual, wanted, f"{call.shapes()} {dims}")
                    (pulled,) = vmap(partial(pulled_back, call), dims)(*tensors)
                    assert_close(pulled, expected[0], call.shapes())

    def test_jacobians(self, op: Op, device: torch.device) -> None:
        """jvp, vjp, jacrev, jacfwd and hessian agree with each other and with plain autograd."""
        with no_fallback():
            for call in calls(op, device):
                inputs = tuple(call.tensors[at] for at in call.inputs)
                argnums = tuple(range(len(inputs)))
                tangents = tuple(torch.cos(given) for given in inputs)
                rows, columns = (
                    jac(call.of_inputs, argnums=argnums)(*inputs) for jac in (jacrev, jacfwd)
                )
                assert_close(rows, columns, call.shapes())
                plain = torch.autograd.functional.jacobian(call.of_inputs, inputs)
                assert_close(rows, plain, call.shapes())
                output, moved = jvp(call.of_inputs, inputs, tangents)
                assert_close(output, call.of_inputs(*inputs))
                pushed = sum(
                    torch.tensordot(part, tangent, tangent.dim())
                    for part, tangent in zip(rows, tangents, strict=True)
                )
                assert_close(moved, pushed, call.shapes())
                weights = torch.sin(output + 1)
                pulled = vjp(call.of_inputs, *inputs)[1](weights)
                expected = tuple(torch.tensordot(weights, part, weights.dim()) for part in rows)
                assert_close(pulled, expected, call.shapes())

            loss = compose(weighted_sine, call.of_inputs)
            second = hessian(loss, argnums=argnums)(*inputs)
            plain = torch.autograd.functional.hessian(loss, inputs)
            assert_close(second, plain, call.shapes())

    def test_forward_ad(self, op: Op, device: torch.device) -> None:
        """Dual numbers, in each input alone and in all; through a gradient too."""
        for call in calls(op, device):
            inputs = [call.tensors[at] for at in call.inputs]
            columns = jacfwd(call.of_inputs, argnums=tuple(range(len(inputs))))(*inputs)
            alone = [(at,) for at in range(len(inputs))]
            for chosen in {*alone, tuple(range(len(inputs)))}:
                tangents = {at: torch.cos(inputs[at]) for at in chosen}
                with fwd.dual_level():
                    duals = [
                        fwd.make_dual(given, tangents[at]) if at in chosen else given
                        for at, given in enumerate(inputs)
                    ]
                    output, tangent = fwd.unpack_dual(call.of_inputs(*duals))
                expected = sum(
                    torch.tensordot(columns[at], tangents[at], tangents[at].dim()) for at in chosen
                )
                assert_close(output, call.of_inputs(*inputs), call.shapes())
                assert_close(tangent, expected, call.shapes())
            # Forward over reverse: a Hessian times a vector.
            leaves = call.leaves()
            with fwd.dual_level():
                duals = [fwd.make_dual(leaf, torch.cos(leaf.detach())) for leaf in leaves]
                gradients = torch.autograd.grad(
                    weighted_sine(call.of_inputs(*duals)), leaves, create_graph=True
                )
                seconds = [fwd.unpack_dual(gradient).tangent for gradient in gradients]
            vectors = tuple(torch.cos(leaf.detach()) for leaf in leaves)
            _, expected = torch.autograd.functional.hvp(
                compose(weighted_sine, call.of_inputs),
                tuple(leaf.detach() for leaf in leaves),
                vectors,
            )
            for actual, wanted in zip(seconds, expected, strict=True):
                assert_close(torch.zeros_like(wanted) if actual is None else actual, wanted)

    @pytest.mark.slow
    def test_gradcheck(self, op: Op, device: torch.device) -> None:
        """First and second derivatives, backward and forward mode, batched too (torch.vmap)."""
        if op.smooth_samples is None:
            pytest.fail(f"{op} has no smooth samples")
        for sample in op.smooth_samples(device):
            call = Call(op, requiring_grad(sample))
            inputs = [call.tensors[at] for at in call.inputs]
            assert inputs
            options = {"check_forward_ad": True, "check_batched_grad": True}
            # Sums on the GPU may be taken in any order.
            slack = 0.0 if device.type == "cpu" else 1e-12
            assert torch.autograd.gradcheck(
                call.of_inputs,
                inputs,
                nondet_tol=slack,
                check_batched_forward_grad=True,
                **options,
            ), sample.shapes()
            assert torch.autograd.gradgradcheck(
                call.of_inputs,
                inputs,
                nondet_tol=slack,
                check_fwd_over_rev=True,
                check_batched_grad=True,
            ), sample.shapes()

    def test_errors(self, op: Op, device: torch.device) -> None:
        """A bad call raises inside transforms what it raises outside."""
        if op.bad is None:
            pytest.fail(f"{op} has no `bad` calls")
        for sample in op.bad(device):
            call = Call(op, sample)
            plain = raised(partial(call, *call.tensors))
            for transform, function in ways_to_call(call):
                error = raised(function)
                what = f"{transform} of {call.shapes()}: {error!r}, but {plain!r}"
                assert type(error) is type(plain), what
                lines = (functional_name(op, first_line(each)) for each in (error, plain))
                assert len(set(lines)) == 1, what


def ways_to_call(call: Call) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The call inside of each transform."""
    dims = tuple(None if at in call.op.shared else 0 for at in range(len(call.tensors)))

    def stacked(tensors: list[Tensor]) -> list[Tensor]:
        pairs = zip(tensors, dims, strict=True)
        return [tensor if dim is None else torch.stack([tensor] * 2) for tensor, dim in pairs]

    if any(dim == 0 for dim in dims):
        once = stacked(call.tensors)
        yield "vmap", partial(vmap(call, dims), *once)
        yield "vmap(vmap)", partial(vmap(vmap(call, dims), dims), *stacked(once))
    yield "functionalize", partial(functionalize(call), *call.tensors)
    inputs = tuple(call.tensors[at] for at in call.inputs)
    if not inputs or "gradcheck" in call.op.exempt:
        return
    argnums = tuple(range(len(inputs)))
    loss = compose(weighted, call.of_inputs)
    yield "backward", partial(call.of_inputs, *call.leaves())
    yield "grad", partial(grad(loss, argnums=argnums), *inputs)
    yield "grad(grad)", partial(grad(compose(total, grad(loss)), argnums=argnums), *inputs)
    yield "jvp", partial(jvp, call.of_inputs, inputs, inputs)
    if not any(given.is_complex() for given in inputs):
        yield "jacfwd", partial(jacfwd(call.of_inputs), *inputs)


def compose(outer: Callable[..., Tensor], inner: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: outer(inner(*given))


def total(output: Tensor) -> Tensor:
    return output.sum()


def pulled_back(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the first input, by vjp."""
    first = call.inputs[0]

    def loss(given: Tensor) -> Tensor:
        return call.loss(*tensors[:first], given, *tensors[first + 1 :])

    value, pull = vjp(loss, tensors[first])
    return pull(torch.ones_like(value))


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def weighted_sine(output: Tensor) -> Tensor:
    return (output.sin() * output).sum()
