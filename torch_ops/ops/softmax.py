"""softmax, log_softmax and logsumexp over the entries that an index sends to one place."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from torch_ops.ops.gather import gather
from torch_ops.ops.plan import GatherPlan
from torch_ops.ops.scatter import scatter_add
from torch_ops.ops.scatter_reduce import scatter
from torch_ops.ops.segments import gather_csr, segment_reduce

Index = Tensor | GatherPlan | None


def _steps(
    values: Tensor,
    index: Index,
    dim_size: int | None,
    dim: int | None,
    offsets: Tensor | None,
    batch_dims: int,
) -> tuple[Callable[[Tensor, str], Tensor], Callable[[Tensor], Tensor]]:
    if offsets is not None:
        if dim_size is None:
            dim_size = offsets.shape[-1] - 1
        size = values.shape[batch_dims if dim is None else dim]
        return (
            lambda x, how: segment_reduce(x, offsets, how, dim, batch_dims=batch_dims),
            lambda x: gather_csr(x, offsets, dim, batch_dims=batch_dims, output_size=size),
        )
    assert index is not None
    if isinstance(index, GatherPlan):
        plan = index
        return lambda x, how: scatter(x, plan, reduce=how), lambda x: gather(x, plan)
    picks = index
    if dim_size is None:
        dim_size = int(picks.max()) + 1 if picks.numel() else 0
    rows = dim_size

    def reduce(x: Tensor, how: str) -> Tensor:
        if how == "sum":
            return scatter_add(x, picks, rows, dim, batch_dims=batch_dims)
        return scatter(x, picks, rows, dim, batch_dims=batch_dims, reduce=how)

    return reduce, lambda x: gather(x, picks, dim, batch_dims=batch_dims)


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype.itemsize == 2 else values


def softmax(
    values: Tensor,
    index: Index = None,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    offsets: Tensor | None = None,
    batch_dims: int = 0,
) -> Tensor:
    reduce, back = _steps(values, index, dim_size, dim, offsets, batch_dims)
    wide = _wide(values)
    exps = (wide - back(reduce(wide.detach(), "amax"))).exp()
    return (exps / back(reduce(exps, "sum"))).to(values.dtype)


def log_softmax(
    values: Tensor,
    index: Index = None,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    offsets: Tensor | None = None,
    batch_dims: int = 0,
) -> Tensor:
    reduce, back = _steps(values, index, dim_size, dim, offsets, batch_dims)
    wide = _wide(values)
    shifted = wide - back(reduce(wide.detach(), "amax"))
    return (shifted - back(reduce(shifted.exp(), "sum").log())).to(values.dtype)


def logsumexp(
    values: Tensor,
    index: Index = None,
    dim_size: int | None = None,
    dim: int | None = None,
    *,
    offsets: Tensor | None = None,
    batch_dims: int = 0,
) -> Tensor:
    reduce, back = _steps(values, index, dim_size, dim, offsets, batch_dims)
    wide = _wide(values)
    largest = reduce(wide.detach(), "amax")
    sums = reduce((wide - back(largest)).exp(), "sum")
    return (sums.log() + largest).to(values.dtype)
