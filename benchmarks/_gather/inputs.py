"""Random sources, gradients and indices of a case."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks._gather.cases import DTYPES, Case


def make_source(case: Case, device: torch.device) -> Tensor:
    shape, dtype = (case.batch, case.rows, *case.tail), DTYPES[case.dtype]
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device=device)
    return torch.randint(256, shape, dtype=dtype, device=device)


def make_gradient(case: Case, device: torch.device) -> Tensor:
    shape = (case.batch, case.picks, *case.tail)
    gradient = torch.randn(shape, dtype=DTYPES[case.dtype], device=device)
    # The sum of 131072 absolute values must not be infinite in float16.
    return gradient.mul_(0.25) if case.dtype == "f16" else gradient


def make_index(case: Case, device: torch.device) -> Tensor:
    shape, rows, dtype = (case.batch, case.picks), case.rows, DTYPES[case.index]

    def uniform(*shape: int) -> Tensor:
        return torch.randint(rows, shape, dtype=dtype, device=device)

    if case.distribution == "uniform":
        return uniform(*shape)
    if case.distribution == "permutation":
        return torch.rand(shape, device=device).argsort(dim=1).to(dtype)
    if case.distribution == "sorted":
        return uniform(*shape).sort(dim=1).values
    if case.distribution == "zipf":
        # The row of rank k is picked as often as k^-1.1 says; which row has which rank is random.
        ranks = torch.arange(1, rows + 1, dtype=torch.float64, device=device)
        cumulative = ranks.pow_(-1.1).cumsum(0)
        picked = torch.rand(shape, dtype=torch.float64, device=device) * cumulative[-1]
        rank = torch.searchsorted(cumulative, picked).clamp_(max=rows - 1)
        return torch.randperm(rows, device=device)[rank].to(dtype)
    if case.distribution == "hot":
        return uniform(*shape).where(torch.rand(shape, device=device) > 0.9, uniform(case.batch, 1))
    if case.distribution == "one":
        return uniform(case.batch, 1).expand(shape).contiguous()
    raise ValueError(case.distribution)


def flattened(case: Case, index: Tensor) -> Tensor:
    """The index into all batches' rows, one after the other."""
    offsets = torch.arange(case.batch, device=index.device).unsqueeze(1) * case.rows
    return (index + offsets).flatten()
