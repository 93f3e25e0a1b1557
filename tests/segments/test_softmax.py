"""softmax, log_softmax and logsumexp over segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gathering import Case, bad_index, index_for, values_for
from op_checks import Op, OpChecks, Sample
from torch import Tensor

import torch_ops

FUNCTIONS = {
    "softmax": (torch_ops.softmax, torch.softmax),
    "log_softmax": (torch_ops.log_softmax, torch.log_softmax),
    "logsumexp": (torch_ops.logsumexp, torch.logsumexp),
}
CASES = [
    Case((4,), (9,)),
    Case((4, 3), (9,)),
    Case((2, 5), (2, 9), batch_dims=1),
    Case((2, 5, 4), (2, 9), batch_dims=1),
    Case((2, 5, 4), (2, 3, 4), batch_dims=1),
    Case((3, 5, 8), (12,), dim=1),
    Case((2, 3, 5, 2), (2, 9), dim=2, batch_dims=1),
    *[Case((6, row), (40,)) for row in (1, 4, 8, 17, 64, 200)],
    Case((3, 1100), (9,)),
    Case((70, 8), (3000,)),
    # Empties.
    Case((4, 3), (0,)),
    Case((4, 0), (9,)),
    Case((0, 4), (0, 9), batch_dims=1),
]


def reference(function: Callable[..., Tensor], reduces: bool) -> Callable[..., Tensor]:
    """torch's function of the entries of each segment by themselves."""

    def call(
        values: Tensor,
        index: Tensor | None = None,
        dim_size: int | None = None,
        dim: int | None = None,
        *,
        offsets: Tensor | None = None,
        batch_dims: int = 0,
    ) -> Tensor:
        if offsets is not None:
            offsets = offsets.cpu()
            dim_size = offsets.shape[-1] - 1
            entries = torch.arange(values.shape[batch_dims if dim is None else dim])
            entries = entries.expand(*offsets.shape[:-1], -1).contiguous()
            index = torch.searchsorted(offsets.contiguous(), entries, right=True) - 1
        picked = index.dim() - batch_dims
        rank = values.dim() - picked + 1
        axis = (batch_dims if dim is None else dim) % rank
        rows = values.flatten(axis, axis + picked - 1) if picked else values.unsqueeze(axis)
        names = index.long().flatten(batch_dims) if picked else index.long().unsqueeze(-1)
        shape = list(rows.shape)
        if reduces:
            shape[axis] = dim_size
        result = rows.new_full(shape, -torch.inf if reduces else 0)
        at_axis = (slice(None),) * (axis - batch_dims)
        for batch in np.ndindex(*index.shape[:batch_dims]):
            for s in range(dim_size):
                picks = (names[batch] == s).nonzero().flatten()
                if len(picks) == 0:
                    continue
                part = function(
                    rows[batch].index_select(axis - batch_dims, picks), axis - batch_dims
                )
                result[(*batch, *at_axis, s if reduces else picks)] = part
        return result if reduces else result.reshape(values.shape)

    return call


def offsets_for(case: Case, device: torch.device) -> Tensor:
    """Some entries at the ends are in no segment, and some segments are empty."""
    generator = torch.Generator().manual_seed(len(case.output))
    count = case.output[case.axis]
    shape = (*case.source[: case.batch_dims], case.source[case.axis] + 1)
    return torch.randint(count + 1, shape, generator=generator).sort(-1).values.to(device)


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        values = values_for(case.output, device, dtype)
        yield Sample((values, index_for(case, device), case.source[case.axis]), case.kwargs)
        if len(case.index) == case.batch_dims + 1:
            offsets = offsets_for(case, device)
            yield Sample((values,), {**case.kwargs, "offsets": offsets})


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for case in (Case((3,), (8,)), Case((2, 3, 2), (2, 6), batch_dims=1), Case((2, 3), (6,), 1)):
        values = values_for(case.output, device, torch.float64)
        # Each segment has an entry: logsumexp of none is -inf, which has no difference.
        index = torch.arange(values.shape[case.axis], device=device) % 3
        index = index.expand(case.index).contiguous()
        yield Sample((values, index, case.source[case.axis]), case.kwargs)


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, 4, 3), (size, size + 2), batch_dims=1)
    values = values_for(case.output, device, torch.float32)
    return Sample((values, index_for(case, device), 4), case.kwargs)


def bad(device: torch.device) -> Iterator[Sample]:
    values = values_for((5, 3), device, torch.float32)
    for index in bad_index(torch.tensor([0, 3, 1, 0, 2], device=device), 4):
        yield Sample((values, index, 4), {})
    yield Sample((values, torch.tensor([0, 1], device=device), 4), {})
    yield Sample((values.long(), torch.tensor([0, 1, 0, 0, 0], device=device), 4), {})


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """A few roundings of numbers that exponentials make relative to the largest; then one."""
    eps = torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).eps
    rounding = 0.51 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0
    return rounding + 50 * eps, 50 * eps


OPS = [
    Op(
        name,
        ours,
        reference(theirs, name == "logsumexp"),
        samples,
        tolerance,
        sums=True,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="SoftmaxBackward",
        calls="_softmax",
        kept=(0,) if name == "logsumexp" else (),
    )
    for name, (ours, theirs) in FUNCTIONS.items()
]


class TestChecks(OpChecks):
    pass


def calls(values: Tensor, index: Tensor, size: int) -> Iterator[dict[str, Any]]:
    """The three ways to say where entries go, of an index in order."""
    yield {"index": index, "dim_size": size}
    yield {"index": torch_ops.gather_plan(index, size)}
    rows = torch.arange(size + 1, device=index.device)
    yield {"offsets": torch.searchsorted(index, rows)}
    yield {"index": index} if index.numel() and index[-1] == size - 1 else {}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_ways_agree(device: torch.device, dtype: torch.dtype, name: str) -> None:
    """With gradients, first and second, and tangents."""
    ours, theirs = FUNCTIONS[name]
    index = torch.randint(20, (500,), generator=torch.Generator().manual_seed(3)).sort().values
    index[-1] = 19
    index = index.to(device)
    values = values_for((500, 4), device, dtype).requires_grad_()
    expected = reference(theirs, name == "logsumexp")(values.double().cpu(), index.cpu(), 20)
    weights = values_for(tuple(expected.shape), device, torch.float64, seed=1)
    (wanted,) = torch.autograd.grad((expected * weights.cpu()).sum(), values, create_graph=True)
    (wanted_second,) = torch.autograd.grad(wanted.double().square().sum(), values)
    eps = torch.finfo(dtype).eps
    for given in calls(values, index, 20):
        if not given:
            continue
        output = ours(values, **given)
        torch.testing.assert_close(output.double().cpu(), expected, rtol=2 * eps, atol=8 * eps)
        grads = torch.autograd.grad(
            (output * weights).sum(), values, create_graph=True, retain_graph=True
        )
        (plain,) = torch.autograd.grad((output * weights).sum(), values, retain_graph=True)
        for grad in (*grads, plain):
            torch.testing.assert_close(grad, wanted.to(device), rtol=8 * eps, atol=16 * eps)
        (second,) = torch.autograd.grad(grads[0].double().square().sum(), values)
        torch.testing.assert_close(second, wanted_second.to(device), rtol=64 * eps, atol=64 * eps)
        _, tangent = torch.func.jvp(
            lambda v, given=given: ours(v, **given), (values.detach(),), (torch.ones_like(values),)
        )
        whole = torch.zeros if name != "logsumexp" else torch.ones
        shape = tuple(expected.shape)
        torch.testing.assert_close(
            tangent, whole(shape, dtype=dtype, device=device), rtol=0.0, atol=64 * eps
        )


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_long_segment(device: torch.device, name: str, width: int) -> None:
    """Whose parts are joined, and whose largest value keeps rising; beside short and empty ones."""
    ours, theirs = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(20, (20_000,), generator=generator)
    index = index.where(torch.rand(20_000, generator=generator) < 0.1, 7).sort().values.to(device)
    rising = torch.linspace(-90, 90, 20_000, device=device)[:, None]
    values = (rising + values_for((20_000, width), device, torch.float32)).requires_grad_()
    expected = reference(theirs, name == "logsumexp")(values.double().cpu(), index.cpu(), 20)
    weights = values_for(tuple(expected.shape), device, torch.float64, seed=1)
    (wanted,) = torch.autograd.grad((expected * weights.cpu()).sum(), values)
    for given in calls(values, index, 20):
        if given:
            output = ours(values, **given)
            torch.testing.assert_close(output.double().cpu(), expected, rtol=1e-5, atol=1e-6)
            (grad,) = torch.autograd.grad((output * weights).sum(), values)
            torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_nothing(device: torch.device, name: str) -> None:
    """Rows without entries, by a plan and by offsets, also where there are several batches."""
    ours, _ = FUNCTIONS[name]
    for shape, batch_dims in (((0,), 0), ((2, 0), 1)):
        index = torch.empty(shape, dtype=torch.int64, device=device)
        values = torch.empty(*shape, 3, device=device, requires_grad=True)
        offsets = torch.zeros(*shape[:-1], 6, dtype=torch.int64, device=device)
        plan = torch_ops.gather_plan(index, 5, batch_dims=batch_dims)
        for given in ({"index": plan}, {"offsets": offsets, "batch_dims": batch_dims}):
            output = ours(values, **given)
            if name == "logsumexp":
                assert torch.equal(output, torch.full_like(output, -torch.inf))
                assert output.shape == (*shape[:-1], 5, 3)
            else:
                assert output.shape == values.shape
            (grad,) = torch.autograd.grad(output.sum(), values)
            assert grad.shape == values.shape


@pytest.mark.parametrize("name", FUNCTIONS)
def test_large_numbers(device: torch.device, name: str) -> None:
    """Nothing overflows, also where the largest value is far below zero; infinities as in torch."""
    ours, theirs = FUNCTIONS[name]
    pairs = [[1e4, 1e4 - 1], [-1e4, -1e4 - 2], [-torch.inf, 0], [torch.inf, 0], [torch.inf] * 2]
    values = torch.tensor(pairs, device=device).flatten()
    index = torch.arange(5, device=device).repeat_interleave(2)
    for given in calls(values, index, 5):
        if given:
            expected = theirs(values.view(5, 2), 1).flatten()
            torch.testing.assert_close(ours(values, **given), expected, equal_nan=True)
    nothing = torch.full((2,), -torch.inf, device=device)
    result = ours(nothing, offsets=torch.tensor([0, 2, 2], device=device))
    if name == "logsumexp":
        assert result.tolist() == [-torch.inf, -torch.inf]
    else:
        assert result.isnan().all()


def test_arguments() -> None:
    values, index = torch.zeros(3), torch.tensor([0, 0, 1])
    with pytest.raises(TypeError, match="either index or offsets must be given, but neither was"):
        torch_ops.softmax(values)
    with pytest.raises(TypeError, match="either index or offsets must be given, but both were"):
        torch_ops.softmax(values, index, offsets=index)
    with pytest.raises(ValueError, match="dim_size must be the number of segments, 2"):
        torch_ops.logsumexp(values, dim_size=3, offsets=torch.tensor([0, 1, 3]))
    assert torch_ops.logsumexp(values, index).shape == (2,)
    with pytest.raises(TypeError, match=r"softmax: index must be uint8.*but it is torch.uint16"):
        torch_ops.softmax(values, index.to(torch.uint16))


def test_mapped_without_a_size() -> None:
    """An index that samples share has one size; of several the largest entry is no number."""
    values, index = torch.rand(2, 3), torch.tensor([[0, 0, 1], [2, 0, 0]])
    for name, (function, _) in FUNCTIONS.items():
        shared = torch.vmap(function, (0, None))(values, index[0])
        assert torch.equal(shared, function(values, index[0], dim=1))
        message = f"{name}: dim_size must be given under torch.vmap"
        with pytest.raises(RuntimeError, match=message):
            torch.vmap(torch.func.jacrev(function))(values, index)
    with pytest.raises(RuntimeError, match="gather_csr: output_size must be given under torch"):
        torch.vmap(torch.vmap(torch_ops.gather_csr), (None, 1))(values, index[:, None])


def test_exported_without_a_size() -> None:
    """It is read from the index, or from the offsets, of each call."""

    class Layer(torch.nn.Module):
        def forward(self, values: Tensor, index: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
            return torch_ops.softmax(values, index), torch_ops.gather_csr(values, offsets)

    given = torch.rand(3, 2), torch.tensor([0, 1, 2]), torch.tensor([0, 1, 1, 4])
    program = torch.export.export(Layer(), given).module()
    for index, offsets in (given[1:], (torch.tensor([0, 4, 4]), torch.tensor([0, 0, 2, 9]))):
        for mine, expected in zip(
            program(given[0], index, offsets), Layer()(given[0], index, offsets), strict=True
        ):
            assert torch.equal(mine, expected)


@pytest.mark.sanitizer
def test_small_for_the_sanitizer(device: torch.device) -> None:
    for sample in samples(device, torch.float32):
        for function, _ in FUNCTIONS.values():
            leaf = sample.args[0].clone().requires_grad_()
            function(leaf, *sample.args[1:], **sample.kwargs).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradient_of_logsumexp_at_infinities(device: torch.device, dtype: torch.dtype) -> None:
    """exp(x - y), as torch's, whichever way it is taken."""
    offsets = torch.tensor([0, 2, 3], device=device)
    inf = float("inf")

    def ours(x: Tensor) -> Tensor:
        return torch_ops.logsumexp(x, offsets=offsets).sum()

    for numbers in ([inf, 1, 2], [1, -inf, 2], [-inf, -inf, 1], [inf, inf, -inf], [inf, -inf, 0]):
        x = torch.tensor(numbers, dtype=dtype, device=device, requires_grad=True)
        theirs = torch.stack([x[:2].logsumexp(0), x[2:].logsumexp(0)]).sum()
        (expected,) = torch.autograd.grad(theirs, x)
        for create_graph in (False, True):
            (grad,) = torch.autograd.grad(ours(x), x, create_graph=create_graph)
            torch.testing.assert_close(grad, expected, equal_nan=True)
        torch.testing.assert_close(torch.func.grad(ours)(x.detach()), expected, equal_nan=True)
