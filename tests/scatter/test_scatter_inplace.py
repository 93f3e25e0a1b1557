"""scatter_: reductions into a tensor that is there already."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from gathering import Case, bad_index, index_for, values_for
from modes import CASES
from op_checks import Op, OpChecks, Sample
from torch import Tensor

import torch_ops

REDUCES = ("sum", "mean", "amax", "amin", "prod")


def samples(device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    for case in CASES:
        out = values_for(case.source, device, dtype, seed=17)
        values = values_for(case.output, device, dtype)
        for reduce in REDUCES:
            for include in (True, False):
                options = {"reduce": reduce, "include_self": include, **case.kwargs}
                yield Sample((out, values, index_for(case, device)), options)


def smooth_samples(device: torch.device) -> Iterator[Sample]:
    for case in (Case((4,), (6,)), Case((2, 3, 2), (2, 2, 2), batch_dims=1), Case((2, 3), (4,), 1)):
        out = values_for(case.source, device, torch.float64, seed=17)
        values = values_for(case.output, device, torch.float64)
        for reduce in REDUCES:
            for include in (True, False):
                options = {"reduce": reduce, "include_self": include, **case.kwargs}
                yield Sample((out, values, index_for(case, device)), options)


def sized(device: torch.device, size: int) -> Sample:
    case = Case((size, size + 1, 3), (size, size + 2), batch_dims=1)
    out = values_for(case.source, device, torch.float32, seed=17)
    values = values_for(case.output, device, torch.float32)
    return Sample((out, values, index_for(case, device)), {"reduce": "mean", **case.kwargs})


def bad(device: torch.device) -> Iterator[Sample]:
    out, values = (values_for((n, 3), device, torch.float32) for n in (4, 5))
    index = torch.tensor([0, 3, 1, 0, 2], device=device)
    for reduce in REDUCES:
        for wrong in bad_index(index, 4):
            yield Sample((out, values, wrong), {"reduce": reduce})
        yield Sample((out, values.double(), index), {"reduce": reduce})
        yield Sample((out, values[:, :2], index), {"reduce": reduce})
    yield Sample((out, values, index), {"reduce": "std"})


def reference(
    out: Tensor,
    values: Tensor,
    index: Tensor,
    *,
    dim: int | None,
    batch_dims: int,
    reduce: str,
    include_self: bool,
) -> Tensor:
    """torch's, whose index names a place for each value."""
    axis = (batch_dims if dim is None else dim) % out.dim()
    picked = index.dim() - batch_dims
    flat = values.unsqueeze(axis) if picked == 0 else values.flatten(axis, axis + picked - 1)
    shape = [*index.shape[:batch_dims], *[1] * (axis - batch_dims), -1]
    if index.numel() == 0:
        return out
    wide = index.reshape([*shape, *[1] * (flat.dim() - len(shape))]).expand_as(flat)
    name = {"sum": "sum", "prod": "prod"}.get(reduce, reduce)
    return out.scatter_reduce(axis, wide, flat, name, include_self=include_self)


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """Sums as those of scatter, rounded twice at most; and 40 roundings of a product."""
    info = torch.finfo(dtype)
    wide = torch.finfo(torch.float32) if info.bits == 16 else info
    return 40 * wide.eps + (1.1 * info.eps if info.bits == 16 else 0), 400 * wide.eps + (
        8 * info.eps if info.bits == 16 else 0
    )


OPS = [
    Op(
        "scatter_",
        torch_ops.scatter_,
        reference,
        samples,
        tolerance,
        sums=True,
        inplace=True,
        smooth_samples=smooth_samples,
        sized=sized,
        bad=bad,
        node="ScatterAddInplaceBackward",
    ),
]


class TestChecks(OpChecks):
    pass


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_integers(device: torch.device, dtype: torch.dtype, include_self: bool) -> None:
    for case in CASES:
        out = values_for(case.source, device, dtype, seed=17) % 5
        values = values_for(case.output, device, dtype) % 5
        for reduce in REDUCES:
            options: dict[str, Any] = {
                "reduce": reduce,
                "include_self": include_self,
                **case.kwargs,
            }
            index = index_for(case, device)
            actual = torch_ops.scatter_(out.clone(), values, index, **options)
            expected = reference(out.cpu(), values.cpu(), index.cpu(), **options)
            assert torch.equal(actual.cpu(), expected), (case, options)


def test_nan_and_ties(device: torch.device) -> None:
    """NaN wins wherever it is; of values that are alike, that of `out` has the gradient."""
    nan = float("nan")
    start = torch.tensor([nan, 1.0, 2.0, 3.0], device=device)
    values = torch.tensor([5.0, nan, 2.0], device=device)
    index = torch.tensor([0, 1, 2], device=device)
    for reduce in ("max", "min"):
        result = torch_ops.scatter_(start.clone(), values, index, reduce=reduce)
        assert result[:2].isnan().all()
        assert result[2:].tolist() == [2, 3]
        out, leaf = start.clone().requires_grad_(), values.clone().requires_grad_()
        torch_ops.scatter_(out.clone(), leaf, index, reduce=reduce)[2:].sum().backward()
        assert out.grad is not None and leaf.grad is not None
        assert out.grad.tolist() == [0, 0, 1, 1]
        assert leaf.grad.tolist() == [0, 0, 0]


def test_views_and_leaves(device: torch.device) -> None:
    base = torch.zeros(2, 4, device=device)
    index, values = torch.tensor([1, 1], device=device), torch.ones(2, device=device)
    for reduce in ("sum", "mean"):
        view = base.clone()
        version = view._version
        torch_ops.scatter_(view[:, 2], values, index, reduce=reduce)
        assert view._version > version
        assert view[1, 2].item() == pytest.approx(2 if reduce == "sum" else 2 / 3)
        assert view.count_nonzero() == 1
        with pytest.raises(RuntimeError, match="leaf Variable"):
            torch_ops.scatter_(base.clone().requires_grad_()[0], values, index, reduce=reduce)
        with pytest.raises(RuntimeError):
            torch_ops.scatter_(base[0, :1].expand(4), values, index, reduce=reduce)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_many_entries(device: torch.device, dtype: torch.dtype) -> None:
    """For several threads. Some rows have hundreds of entries, and most have none."""
    torch.manual_seed(0)
    index = torch.cat([torch.randint(9, (2000,)), torch.randint(20_000, (9500,))]).to(device)
    for columns in (1, 3, 8, 37):
        out = torch.randn(20_000, columns, dtype=dtype, device=device)
        values = torch.randn(11_500, columns, dtype=dtype, device=device)
        for reduce in REDUCES:
            start, given = out, values
            if reduce == "prod":  # neither 0 nor infinity
                start, given = ((t.sign() + (t == 0)) * 1.0 for t in (out, values))
            for include in (True, False):
                actual = torch_ops.scatter_(
                    start.clone(), given, index, reduce=reduce, include_self=include
                )
                wide = index[:, None].expand_as(given)
                expected = start.double().scatter_reduce(
                    0, wide, given.double(), reduce, include_self=include
                )
                if reduce == "sum" and include and dtype.itemsize == 2 and out.is_cuda:
                    # Rounded twice there: what is added, and the result.
                    sums = torch.zeros_like(expected).scatter_add(0, wide, given.double())
                    expected = start.double() + sums.to(dtype)
                if reduce in ("sum", "mean"):  # 300 roundings of float32, of sums below 100
                    torch.testing.assert_close(actual, expected.to(dtype), rtol=8e-3, atol=4e-3)
                else:
                    assert torch.equal(actual.double(), expected), (columns, reduce, include)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8], ids=str)
def test_few_entries_to_many_rows(device: torch.device, dtype: torch.dtype) -> None:
    """Largest values of short numbers: CUDA touches only the rows that entries name."""
    rows = 8000
    for width in (1, 3, 40):
        index = torch.randint(rows, (2, 500), device=device)
        index[:, :200] = 7
        out = values_for((2, rows, width), device, dtype)
        values = values_for((2, 500, width), device, dtype, seed=1)
        if dtype.is_floating_point:
            out[:, 3], out[:, 7], values[1, 0] = float("nan"), float("inf"), float("nan")
        wide = index[:, :, None].expand_as(values)
        for reduce in ("amax", "amin"):
            for include in (True, False):
                options: dict[str, Any] = {"reduce": reduce, "include_self": include}
                actual = torch_ops.scatter_(out.clone(), values, index, batch_dims=1, **options)
                expected = out.float().scatter_reduce(1, wide, values.float(), **options).to(dtype)
                torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
            new = torch_ops.scatter(values, index, rows, batch_dims=1, reduce=reduce)
            start = torch.zeros(out.shape, device=device)
            expected = start.scatter_reduce(1, wide, values.float(), reduce, include_self=False)
            torch.testing.assert_close(new, expected.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_shared_memory(device: torch.device) -> None:
    """Values and index may be parts of `out`; they are read before it is written."""
    for reduce in ("sum", "mean", "amax", "prod"):
        out = torch.tensor([3, 0, 2, 1], device=device)
        expected = reference(
            out,
            out[:2].clone(),
            out[2:].clone(),
            dim=0,
            batch_dims=0,
            reduce=reduce,
            include_self=True,
        )
        torch_ops.scatter_(out, out[:2], out[2:], reduce=reduce)
        assert out.tolist() == expected.tolist(), reduce


def test_bad_arguments(device: torch.device) -> None:
    out = torch.zeros(4, device=device)
    index = torch.zeros(2, dtype=torch.int64, device=device)
    expanded = out[:1].expand(4)
    for reduce in ("sum", "mean", "amax"):
        with pytest.raises(RuntimeError, match=r"^scatter_: elements of out must not share"):
            torch_ops.scatter_(expanded, out[:2].clone(), index, reduce=reduce)
    five = r'"sum", "mean", "amax", "amin" or "prod" \(or "add", "max", "min", "mul"\)'
    for reduce in ("any", "set"):
        message = f'^scatter_: reduce must be {five}, but it is "{reduce}"'
        with pytest.raises(ValueError, match=message):
            torch_ops.scatter_(out, out[:2], index, reduce=reduce)
    for dtype, reduce in [(torch.bool, "amax"), (torch.uint16, "amin"), (torch.complex64, "prod")]:
        message = rf"^scatter_: values must be uint8, .* for this reduction, but it is {dtype}"
        with pytest.raises(TypeError, match=message):
            torch_ops.scatter_(out.to(dtype), out[:2].to(dtype), index, reduce=reduce)
    with pytest.raises(TypeError, match="scatter_: include_self must be a bool, but a str was"):
        torch_ops.scatter_(out, out[:2], index, reduce="sum", include_self="no")
    with pytest.raises(TypeError, match="scatter_: reduce must be a string, but it is None"):
        torch_ops.scatter_(out, out[:2], index, reduce=None)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_gradient_where_both_are_nan(device: torch.device, reduce: str) -> None:
    """As of other equal values, it is for what was in ``out``."""
    nan = float("nan")
    out = torch.tensor([nan, 1.0, nan], device=device, requires_grad=True)
    values = torch.tensor([nan, nan, 2.0], device=device, requires_grad=True)
    index = torch.arange(3, device=device)
    torch_ops.scatter_(out.clone(), values, index, reduce=reduce).sum().backward()
    assert out.grad.tolist() == [1, 0, 1]
    assert values.grad.tolist() == [0, 1, 0]


def test_products_under_vmap(device: torch.device) -> None:
    """The gradient needs the former ``out``, which the product overwrites."""
    out = torch.rand(3, 4, dtype=torch.float64, device=device) + 0.5
    values = (torch.rand(3, 4, dtype=torch.float64, device=device) + 0.5).requires_grad_()
    index = torch.tensor([0, 1, 0, 1], device=device)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch_ops.scatter_(a * 1, b, index, reduce="prod")

    (actual,) = torch.autograd.grad(torch.vmap(product)(out, values).sum(), values)
    each = torch.stack([product(a, b) for a, b in zip(out, values, strict=True)])
    torch.testing.assert_close(actual, torch.autograd.grad(each.sum(), values)[0])
    mixed = torch.func.jacrev(torch.func.jacfwd(product, argnums=1), argnums=1)
    torch.testing.assert_close(
        mixed(out[0], values[0]), torch.func.hessian(product, argnums=1)(out[0], values[0])
    )


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "prod"])
@pytest.mark.parametrize("mapped", [0, 1])
def test_one_out_for_all_samples(device: torch.device, reduce: str, mapped: int) -> None:
    """torch.vmap refuses it. What the message suggests gives each sample its own."""
    out = torch.tensor([2.0, 3.0, 5.0], device=device)
    given = [
        torch.tensor([[4.0, 1.0], [7.0, 9.0]], device=device),
        torch.tensor([[0, 2], [1, 1]], device=device),
    ]
    given[1 - mapped] = given[1 - mapped][0]

    for include_self in (True, False):
        scatter_ = partial(torch_ops.scatter_, reduce=reduce, include_self=include_self)
        in_dims = (0, None) if mapped == 0 else (None, 0)
        with pytest.raises(RuntimeError, match=r"^scatter_: torch\.vmap cannot map over") as error:
            torch.vmap(partial(scatter_, out), in_dims)(*given)
        suggested = re.findall(r"\w+\.new_empty\(.*?\)\.copy_\(out\)", str(error.value))[mapped]

        def call(values: Tensor, index: Tensor, scatter_=scatter_, suggested=suggested) -> Tensor:
            own = eval(suggested, {"out": out, "values": values, "index": index})
            return scatter_(own, values, index)

        for n, actual in enumerate(torch.vmap(call, in_dims)(*given)):
            values, index = (t[n] if i == mapped else t for i, t in enumerate(given))
            torch.testing.assert_close(actual, scatter_(out.clone(), values, index))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers(device: torch.device, dtype: torch.dtype) -> None:
    out, values = (torch.tensor(n, device=device).to(dtype) for n in ([7, 8, 9], [1, 2, 3]))
    index = torch.tensor([0, 2, 2], device=device)
    result = torch_ops.scatter_(out.clone(), values, index, reduce="sum", include_self=False)
    assert result.tolist() == [1, 8, 5]
    mask = torch.tensor([True, False, True], device=device)
    assert torch_ops.masked_scatter(values, mask, out=out).tolist() == [1, 8, 2]
    with pytest.raises(TypeError, match=rf"scatter_: values must not be uint16.*{dtype}"):
        torch_ops.scatter_(out, values, index, reduce="mean")


def test_names_in_errors(device: torch.device) -> None:
    index = torch.tensor([0, 1], device=device)
    shared = torch.zeros(2, device=device)
    with pytest.raises(TypeError, match=r"^scatter_add: dim_size is missing"):
        torch_ops.scatter_add(shared, index, dtype=torch.float32)
    for call in (torch_ops.scatter, torch_ops.scatter_add):
        with pytest.raises(
            TypeError, match=rf"^{call.__name__}: dtype must be a torch\.dtype or None, but a str"
        ):
            call(shared, index, 2, dtype="float32")
