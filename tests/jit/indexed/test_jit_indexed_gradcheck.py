"""Gradients of IndexedKernel beside finite differences: both modes, orders 1 and 2, batched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from indexed_reference import random, random_index
from test_jit_indexed_gradients import E, M, N, indices, wave_by
from torch import Tensor

from torch_ops.jit import IndexedKernel, index_plan

# What takes the time is the compilation: of some seventy kernels where second derivatives are
# checked.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("by", ["indices", "plan"])]


def given_by(by: str, device: torch.device) -> dict[str, Any]:
    src, dst = indices(device)
    if by == "plan":
        return {"plan": index_plan(src=(src, N), dst=(dst, M))}
    return {"src": src, "dst": dst}


OUTER = ((N, 1, 2), (M, 2, 1), (E, 1, 1))
SHAPES = [
    ((N, 1), (M, 3), (1, 3)),
    ((N, 3), (M, 3), (E, 3)),
    ((N, 3), (M, 1), (3,)),
    ((N, 2), (M, 2), ()),
    ((N,), (M,), (E,)),
    ((N, 3), (M, 3), (E, 1)),
    OUTER,
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradcheck(shapes: tuple[tuple[int, ...], ...], by: str, device: torch.device) -> None:
    """First and second derivatives, backward and forward mode, batched."""
    inputs = [random(shape, device, seed=k).requires_grad_() for k, shape in enumerate(shapes)]
    call = wave_by(given_by(by, device))
    assert torch.autograd.gradcheck(
        call, inputs, check_forward_ad=True, check_batched_grad=True,
        check_batched_forward_grad=True,
    )  # fmt: skip
    assert torch.autograd.gradgradcheck(
        call, inputs, check_fwd_over_rev=True, check_batched_grad=True
    )


@pytest.mark.parametrize("reduce", ["mean", "amax", "amin"])
def test_gradcheck_of_reductions(reduce: str, by: str, device: torch.device) -> None:
    kernel = IndexedKernel(
        "T x[src], T w", "T out[dst], T e", "out = x * x * w; e = x * w", "reduced", reduce=reduce
    )
    x, w = random((N, 3), device).requires_grad_(), random((E, 1), device).requires_grad_()
    given = given_by(by, device) | ({} if by == "plan" else {"sizes": {"dst": M}})

    def call(x: Tensor, w: Tensor) -> Any:
        return kernel(x, w, **given)

    assert torch.autograd.gradcheck(call, (x, w), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (x, w), check_fwd_over_rev=True)


def test_gradcheck_of_features(by: str, device: torch.device) -> None:
    kernel = IndexedKernel(
        "T k[src], T a", "T s, T out[dst]", "s = k * k * a; out = a * a * k", "logit",
        features="sum",
    )  # fmt: skip
    given = given_by(by, device) | ({} if by == "plan" else {"sizes": {"dst": M}})
    inputs = [random(shape, device).requires_grad_() for shape in ((N, 2, 3), (E, 2, 1))]

    def call(*inputs: Tensor) -> Any:
        return kernel(*inputs, **given)

    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, inputs, check_fwd_over_rev=True)


def batches(by: str, device: torch.device) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Rows of two batches, and indices of each."""
    src = torch.stack([indices(device)[0], random_index(E, N, device, seed=5)])
    dst = torch.stack([indices(device)[1], random_index(E, M, device, seed=5)])
    x, y = random((2, N, 3), device).requires_grad_(), random((2, M, 3), device).requires_grad_()
    if by == "plan":
        return x, y, {"plan": index_plan(src=(src, N), dst=(dst, M), batch_dims=1)}
    return x, y, {"src": src, "dst": dst, "batch_dims": 1}


WEIGHTS = [(2, E, 1), (E, 3), (2, 1, 3), (3,), (1, E, 1), ()]


@pytest.mark.parametrize("shape", WEIGHTS, ids=str)
def test_gradcheck_of_batches(shape: tuple[int, ...], by: str, device: torch.device) -> None:
    x, y, given = batches(by, device)
    w = random(shape, device).requires_grad_()
    assert torch.autograd.gradcheck(wave_by(given), (x, y, w), check_forward_ad=True)


def test_gradgradcheck_of_batches(by: str, device: torch.device) -> None:
    x, y, given = batches(by, device)
    w = random((), device).requires_grad_()
    assert torch.autograd.gradgradcheck(wave_by(given), (x, y, w))


def test_gradcheck_of_two_batch_axes(by: str, device: torch.device) -> None:
    """Some inputs have but one of them."""
    x, y, given = batches("indices", device)
    four = [t.detach().expand(2, *t.shape).clone().requires_grad_() for t in (x, y)]
    w = random((2, 1, E, 1), device).requires_grad_()
    src, dst = (given[name].expand(2, 2, E) for name in ("src", "dst"))
    given = {"src": src, "dst": dst, "batch_dims": 2}
    if by == "plan":
        given = {"plan": index_plan(src=(src, N), dst=(dst, M), batch_dims=2)}
    assert torch.autograd.gradcheck(wave_by(given), (*four, w))
