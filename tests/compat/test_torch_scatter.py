"""torch_ops.compat.torch_scatter against plain Python."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from op_checks import assert_same
from torch import Tensor

from torch_ops.compat import torch_scatter as ts

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
REDUCTIONS = ("sum", "add", "mean", "mul", "min", "max")
SEGMENT_REDUCTIONS = ("sum", "add", "mean", "min", "max")

# The shapes of src and of the index, the axis, and the largest entry: in each way to broadcast.
BROADCASTS = [
    ((7,), (7,), -1, 4),
    ((7, 3), (7,), 0, 4),
    ((3, 7), (7,), -1, 4),
    ((2, 7, 3), (7,), 1, 4),
    ((2, 7, 3), (1, 7), 1, 4),
    ((2, 7, 3), (1, 7, 1), 1, 4),
    ((2, 7, 3), (2, 7), 1, 4),
    ((2, 7, 3), (2, 7, 1), 1, 4),
    ((2, 7, 3), (2, 7, 3), 1, 4),
    ((2, 7, 3), (1, 7, 3), -2, 4),
    ((2, 3, 7), (2, 1, 7), 2, 4),
    ((7, 3), (7, 1), 0, 4),
    ((7, 3), (7, 3), 0, 4),
    ((2, 3), (2, 1), 1, 4),  # one entry for an axis
    ((2, 3), (2,), 0, 4),
    ((5, 1), (5, 1), 0, 9),  # places that no entry names
    ((0, 3), (0,), 0, 4),
    ((4, 0), (4,), 0, 4),
    ((4, 0), (4, 0), 0, 4),
]
CASES = pytest.mark.parametrize(
    ("shape", "index_shape", "dim", "places"), BROADCASTS, ids=lambda v: str(v).replace(" ", "")
)


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Small integers without 0, some alike, so that sums and products are exact in any dtype."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1, 4, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.5, -drawn, drawn).to(dtype)


def entries(shape: tuple[int, ...], places: int, seed: int = 1) -> Tensor:
    return torch.randint(places, shape, generator=torch.Generator().manual_seed(seed))


def aligned(index: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    """Broadcast as torch_scatter's documentation says, by torch's own means."""
    if index.dim() == 1:
        index = index.view(*[1] * (dim % len(shape)), -1)
    return index.view(*index.shape, *[1] * (len(shape) - index.dim())).expand(shape)


def groups(src: Tensor, index: Tensor, dim: int) -> dict[tuple[int, ...], list[tuple[int, Any]]]:
    """For each element of the result, what goes there: positions on dim, and values."""
    full = aligned(index, tuple(src.shape), dim)
    found = defaultdict(list)
    for place in itertools.product(*map(range, src.shape)):
        goes_to = list(place)
        goes_to[dim] = int(full[place])
        found[tuple(goes_to)].append((place[dim], src[place].item()))
    return found


def expected(
    src: Tensor, index: Tensor, dim: int, size: int, reduce: Callable[[list[Any]], Any], empty: Any
) -> Tensor:
    """The reduction in Python's numbers."""
    shape = list(src.shape)
    shape[dim] = size
    result = torch.full(shape, empty, dtype=src.dtype)
    for place, values in groups(src, index, dim).items():
        result[place] = reduce([value for _, value in values])
    return result


def mean_of(dtype: torch.dtype, round_down: Callable[[float], int]) -> Callable[[list[Any]], Any]:
    if dtype.is_floating_point:
        return lambda values: sum(values) / len(values)
    return lambda values: round_down(sum(values) / len(values))


def reducer(reduce: str, dtype: torch.dtype, round_down: Callable[[float], int]) -> Any:
    return {
        "sum": sum,
        "add": sum,
        "mean": mean_of(dtype, round_down),
        "mul": math.prod,
        "min": min,
        "max": max,
    }[reduce]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@CASES
def test_scatter(
    shape: tuple[int, ...],
    index_shape: tuple[int, ...],
    dim: int,
    places: int,
    reduce: str,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    src, index = numbers(shape, dtype), entries(index_shape, places)
    given = src.to(device), index.to(device)
    empty = 1 if reduce == "mul" and src.numel() else 0
    wanted = expected(src, index, dim, places, reducer(reduce, dtype, math.floor), empty)
    assert_same(ts.scatter(*given, dim, dim_size=places, reduce=reduce), wanted, "dim_size")

    # Without a size the result ends with the largest entry.
    least = int(index.max()) + 1 if index.numel() else 0
    function = getattr(ts, f"scatter_{reduce}")
    result = function(*given, dim)
    if reduce in ("min", "max"):
        result, arg = result
        position = {}
        for place, values in groups(src, index, dim).items():
            best = reducer(reduce, dtype, math.floor)([value for _, value in values])
            position[place] = next(where for where, value in values if value == best)
        assert arg.dtype == torch.int64 and arg.shape == result.shape
        for place in itertools.product(*map(range, arg.shape)):
            assert arg[place] == position.get(place, shape[dim])
    assert_same(result, wanted.narrow(dim, 0, least), "from the index")


@CASES
def test_sums_of_bools(
    shape: tuple[int, ...],
    index_shape: tuple[int, ...],
    dim: int,
    places: int,
    device: torch.device,
) -> None:
    """Whether one of them is True, as torch adds them."""
    src, index = numbers(shape) > 0, entries(index_shape, places)
    wanted = expected(src, index, dim, places, any, False)
    result = ts.scatter(src.to(device), index.to(device), dim, dim_size=places)
    assert_same(result, wanted, "bools")


@CASES
def test_an_expanded_index_is_one_that_broadcasts(
    shape: tuple[int, ...], index_shape: tuple[int, ...], dim: int, places: int
) -> None:
    """So `index.unsqueeze(-1).expand_as(src)` moves whole rows too."""
    src, index = numbers(shape), entries(index_shape, places)
    expanded = ts.utils.broadcast(index, src, dim)
    assert torch.equal(expanded, aligned(index, shape, dim))
    for reduce in REDUCTIONS:
        wanted = ts.scatter(src, index, dim, dim_size=places, reduce=reduce)
        for given in (expanded, expanded.contiguous(), index.to(torch.uint8)):
            assert_same(ts.scatter(src, given, dim, None, places, reduce), wanted, reduce)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@CASES
def test_scatter_onto_out(
    shape: tuple[int, ...],
    index_shape: tuple[int, ...],
    dim: int,
    places: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    src, index = numbers(shape, dtype), entries(index_shape, places)
    size = list(shape)
    size[dim] = places
    before = numbers(tuple(size), dtype, seed=2)
    found = groups(src, index, dim)
    for reduce in REDUCTIONS:
        wanted, where = before.clone(), torch.full(size, shape[dim])
        for place, pairs in found.items():
            values = [value for _, value in pairs]
            was = before[place].item()
            if reduce in ("sum", "add"):
                wanted[place] = was + sum(values)
            elif reduce == "mul":
                wanted[place] = was * math.prod(values)
            elif reduce == "mean":
                total = torch.tensor(was + sum(values), dtype=dtype)
                how = None if dtype.is_floating_point else "floor"
                wanted[place] = torch.div(total, len(values), rounding_mode=how)
            else:
                best = min(values) if reduce == "min" else max(values)
                if best < was if reduce == "min" else best > was:
                    wanted[place] = best
                    where[place] = next(at for at, value in pairs if value == best)
        out = before.to(device, copy=True)
        result = getattr(ts, f"scatter_{reduce}")(src.to(device), index.to(device), dim, out)
        if reduce in ("min", "max"):
            result, arg = result
            assert torch.equal(arg.cpu(), where)
        assert result is out or result.data_ptr() == out.data_ptr()
        assert_same(out, wanted, reduce)
        out = before.to(device, copy=True)
        ts.scatter(src.to(device), index.to(device), dim, out, reduce=reduce)
        assert_same(out, wanted, reduce)


def test_products_of_no_values(device: torch.device) -> None:
    """Zeros, as torch_scatter has it, and not 1 as where no entry goes; out stays as it is."""
    src = torch.ones(0, 2, device=device)
    index = torch.empty(0, dtype=torch.int64, device=device)
    assert ts.scatter_mul(src, index, 0, dim_size=2).tolist() == [[0, 0], [0, 0]]
    assert ts.scatter(src, index, 0, dim_size=1, reduce="mul").tolist() == [[0, 0]]
    out = torch.full((2, 2), 3.0, device=device)
    assert ts.scatter_mul(src, index, 0, out) is out
    assert out.tolist() == [[3, 3], [3, 3]]


# Shapes of src, and of the sorted index or the ends, whose last axis is the one that is reduced.
SORTED = [
    ((7,), ()),
    ((7, 3), ()),
    ((2, 7), (2,)),
    ((2, 7), (1,)),
    ((2, 7, 3), (2,)),
    ((2, 3, 7, 2), (2, 3)),
    ((2, 3, 7, 2), (1, 3)),
    ((0, 3), ()),
    ((2, 0), (2,)),
    ((4, 0), ()),
]
SORTED_CASES = pytest.mark.parametrize(
    ("shape", "leading"), SORTED, ids=lambda v: str(v).replace(" ", "")
)


def sorted_entries(shape: tuple[int, ...], leading: tuple[int, ...], places: int) -> Tensor:
    return entries((*leading, shape[len(leading)]), places).sort().values


def ends_of(index: Tensor, places: int) -> Tensor:
    bounds = torch.arange(places + 1).expand(*index.shape[:-1], places + 1).contiguous()
    return torch.searchsorted(index.contiguous(), bounds)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@SORTED_CASES
def test_segments(
    shape: tuple[int, ...], leading: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    places, dim = 5, len(leading)
    src, index = numbers(shape, dtype), sorted_entries(shape, leading, places)
    indptr = ends_of(index, places)
    given = src.to(device)
    found = groups(src, index, dim)
    for reduce in SEGMENT_REDUCTIONS:
        wanted = expected(src, index, dim, places, reducer(reduce, dtype, math.trunc), 0)
        csr, coo = getattr(ts, f"segment_{reduce}_csr"), getattr(ts, f"segment_{reduce}_coo")
        by_ends = csr(given, indptr.to(device))
        by_index = coo(given, index.to(device), dim_size=places)
        if reduce in ("min", "max"):
            where = torch.full(wanted.shape, shape[dim])
            for place, pairs in found.items():
                where[place] = next(at for at, value in pairs if value == wanted[place])
            for result in (by_ends, by_index):
                assert torch.equal(result[1].cpu(), where)
            by_ends, by_index = by_ends[0], by_index[0]
        assert_same(by_ends, wanted, f"{reduce} by ends")
        assert_same(by_index, wanted, f"{reduce} by index")
        assert_same(ts.segment_csr(given, indptr.to(device), reduce=reduce), wanted, reduce)
        least = int(index.max()) + 1 if index.numel() else 0
        least_wanted = wanted.narrow(dim, 0, least)
        assert_same(ts.segment_coo(given, index.to(device), reduce=reduce), least_wanted, reduce)

        # Segments are written onto out, an index reduces onto it.
        before = numbers(tuple(wanted.shape), dtype, seed=2)
        out = before.to(device, copy=True)
        assert ts.segment_csr(given, indptr.to(device), out, reduce).data_ptr() == out.data_ptr()
        assert_same(out, wanted, f"{reduce} onto out")
        for place, pairs in found.items():
            values, was = [value for _, value in pairs], before[place].item()
            if reduce in ("sum", "add"):
                before[place] = was + sum(values)
            elif reduce == "mean":
                total = torch.tensor(was + sum(values), dtype=dtype)
                how = None if dtype.is_floating_point else "trunc"
                before[place] = torch.div(total, len(values), rounding_mode=how)
            else:
                before[place] = reducer(reduce, dtype, math.trunc)([was, *values])
        out = numbers(tuple(wanted.shape), dtype, seed=2).to(device)
        ts.segment_coo(given, index.to(device), out, reduce=reduce)
        assert_same(out, before, f"{reduce} onto out by index")


@SORTED_CASES
def test_gathers(shape: tuple[int, ...], leading: tuple[int, ...], device: torch.device) -> None:
    places, dim = 5, len(leading)
    index = sorted_entries(shape, leading, places)
    indptr = ends_of(index, places)
    size = list(shape)
    size[dim] = places
    for dtype in (*DTYPES, torch.bool):
        src = numbers(tuple(size), dtype).to(device)
        full = index.view(*index.shape, *[1] * (len(shape) - index.dim())).expand(shape)
        wanted = src.cpu().gather(dim, full)
        assert_same(ts.gather_coo(src, index.to(device)), wanted, "coo")
        out = torch.empty(shape, dtype=dtype, device=device)
        assert ts.gather_coo(src, index.to(device), out).data_ptr() == out.data_ptr()
        assert_same(out, wanted, "coo")
        out = torch.empty(shape, dtype=dtype, device=device)
        assert ts.gather_csr(src, indptr.to(device), out).data_ptr() == out.data_ptr()
        assert_same(out, wanted, "csr")
        if src.numel():
            assert_same(ts.gather_csr(src, indptr.to(device)), wanted, "csr")


def test_values_that_lie_in_no_segment(device: torch.device) -> None:
    src = torch.tensor([8.0, 1.0, 2.0, 4.0, 8.0], device=device, requires_grad=True)
    indptr = torch.tensor([1, 3, 3, 4], device=device)
    for reduce, gives in (("sum", [3, 0, 4]), ("mean", [1.5, 0, 4]), ("max", [2, 0, 4])):
        result = ts.segment_csr(src, indptr, reduce=reduce)
        assert result.tolist() == gives
    (grad,) = torch.autograd.grad(result.sum(), src)
    assert grad.tolist() == [0, 0, 1, 1, 0]
    assert ts.segment_max_csr(src, indptr)[1].tolist() == [2, 5, 3]
    out = torch.full((5,), -1.0, device=device)
    ts.gather_csr(torch.tensor([5.0, 6.0, 7.0], device=device), indptr, out)
    assert out.tolist() == [-1, 5, 5, 7, -1]


def test_rows_without_values(device: torch.device) -> None:
    indptr = torch.tensor([0, 2, 2, 5], device=device)
    assert ts.gather_csr(torch.ones(3, 0, device=device), indptr).shape == (5, 0)
    assert ts.gather_csr(torch.ones(0, 3, device=device), indptr[None]).shape == (0, 5)
    assert ts.gather_csr(torch.ones(0, 3, device=device), indptr[None][:0]).shape == (0, 0)


# ---- softmax and others -------------------------------------------------------------------------


def of_each_group(
    src: Tensor, index: Tensor, dim: int, function: Callable[[Tensor], Tensor]
) -> Any:
    """function of the values of each place, as a tensor of one axis; differentiable."""
    src, full = src.movedim(dim, -1), aligned(index, tuple(src.shape), dim).movedim(dim, -1)
    for row in itertools.product(*map(range, src.shape[:-1])):
        for place in full[row].unique().tolist():
            chosen = full[row] == place
            yield row, place, chosen, function(src[row][chosen])


def composites() -> Iterator[tuple[str, Callable[[Tensor], Tensor], dict[str, Any], bool]]:
    """Name, the same of the values of one place, arguments, and whether it keeps src's shape."""
    yield "scatter_softmax", lambda v: v.softmax(0), {}, True
    yield "scatter_log_softmax", lambda v: v.log_softmax(0), {}, True
    yield "scatter_logsumexp", lambda v: v.logsumexp(0), {}, False
    yield "scatter_std", lambda v: v.std() if len(v) > 1 else v.sum() * 0, {}, False
    yield "scatter_std", lambda v: v.std(correction=0), {"unbiased": False}, False


@pytest.mark.parametrize(
    ("name", "function", "options", "same_shape"),
    [pytest.param(*each, id=f"{each[0]}-{i}") for i, each in enumerate(composites())],
)
@CASES
def test_composites(
    shape: tuple[int, ...],
    index_shape: tuple[int, ...],
    dim: int,
    places: int,
    name: str,
    function: Callable[[Tensor], Tensor],
    options: dict[str, Any],
    same_shape: bool,
    device: torch.device,
) -> None:
    generator = torch.Generator().manual_seed(3)
    src = torch.randn(shape, generator=generator, dtype=torch.float64)
    index = entries(index_shape, places)
    size = list(shape)
    size[dim] = shape[dim] if same_shape else places
    wanted = torch.zeros(size, dtype=torch.float64)
    rows = wanted.movedim(dim, -1)
    for row, place, chosen, value in of_each_group(src, index, dim, function):
        if same_shape:
            rows[row][chosen] = value
        else:
            rows[(*row, place)] = value
    call = getattr(ts, name)
    result = call(src.to(device), index.to(device), dim, dim_size=places, **options)
    # 1e-6 is added to the divisor of a deviation.
    close = (
        {"rtol": 1e-6, "atol": 1e-12} if name == "scatter_std" else {"rtol": 1e-11, "atol": 2e-12}
    )
    torch.testing.assert_close(result.cpu(), wanted, **close)
    if index.numel():
        least = int(index.max()) + 1
        wanted = wanted if same_shape else wanted.narrow(dim, 0, least)
        shorter = call(src.to(device), index.to(device), dim, **options)
        torch.testing.assert_close(shorter.cpu(), wanted, **close)
    single = call(src.float().to(device), index.to(device), dim, dim_size=places, **options)
    torch.testing.assert_close(single.cpu(), result.cpu().float(), rtol=1e-5, atol=1e-5)


def test_logsumexp_onto_out(device: torch.device) -> None:
    index = torch.tensor([0, 0, 2, 3, 3], device=device)
    infinite = -torch.inf
    src = torch.tensor([-1.0, -50.0, infinite, 1.0, 2.0], device=device)
    out = torch.tensor([-10.0, -10.0, -10.0, infinite], device=device)
    wanted = [math.log(math.exp(-1) + math.exp(-10)), -10, -10, math.log(math.e + math.e**2)]
    result = ts.scatter_logsumexp(src, index, out=out)
    assert result.data_ptr() == out.data_ptr()
    torch.testing.assert_close(out.cpu(), torch.tensor(wanted))


def test_logsumexp_of_special_values(device: torch.device) -> None:
    src = torch.tensor([-torch.inf, -torch.inf, torch.inf, 1.0, torch.nan, 0.0], device=device)
    index = torch.tensor([0, 0, 2, 2, 3, 3], device=device)
    result = ts.scatter_logsumexp(src, index).tolist()
    assert result[:3] == [0, 0, torch.inf] and math.isnan(result[3])


def test_eps(device: torch.device) -> None:
    src, index = torch.zeros(2, device=device), torch.tensor([0, 0], device=device)
    torch.testing.assert_close(
        ts.scatter_logsumexp(src, index, eps=1.0).cpu(), torch.tensor([3.0]).log()
    )
    torch.testing.assert_close(
        ts.scatter_log_softmax(src, index, eps=1.0).cpu(), -torch.tensor([3.0, 3.0]).log()
    )


def test_std_onto_out(device: torch.device) -> None:
    src, index = torch.tensor([1.0, 3.0], device=device), torch.tensor([0, 0], device=device)
    out = torch.tensor([2.0, 8.0], device=device)
    result = ts.scatter_std(src, index, out=out)
    assert out.tolist() == [4, 8]  # the sums of squares
    torch.testing.assert_close(result.cpu(), torch.tensor([2.0, 8**0.5]), rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_integers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"scatter_{name}: src must be of a floating dtype"):
        getattr(ts, f"scatter_{name}")(torch.tensor([1, 2]), torch.tensor([0, 0]))
