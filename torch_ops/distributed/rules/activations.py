"""The rules of the activations: each rank computes what it has, without communication.

A mask has a bit for each element that the rank has, in the order of its memory, so that it is of
use to this rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed.rules._frame import (
    REPLICATE,
    choose,
    is_sum,
    mesh_of,
    place,
    rule,
    shard_axis,
    wrap,
)

_ops = torch.ops.torch_ops


def _own_placements(_: int, input: Placement) -> tuple[Placement, Placement]:
    whole = REPLICATE if shard_axis(input) < 0 else input
    return whole, whole


def _pointwise(op: Callable[..., Tensor], input: DTensor, *args: Any, **options: Any) -> DTensor:
    """As the input is placed, or on each rank where that is a sum."""
    mesh = mesh_of(op.__name__, input=input)
    placements, _ = choose(mesh, [input], _own_placements)
    return wrap(op(place(input, placements), *args, **options), mesh, placements, input.shape)


def _inplace(op: Callable[..., Tensor], input: DTensor, *args: Any, **options: Any) -> DTensor:
    check_inplace(op.__name__, input)
    op(input.to_local(), *args, **options)
    return input


def check_inplace(op: str, input: DTensor) -> DeviceMesh:
    """Raises an error for a tensor that would have to be placed otherwise."""
    mesh = mesh_of(op, input=input)
    placements, _ = choose(mesh, [input], _own_placements)
    if placements != input.placements:
        raise RuntimeError(
            f"{op}: input is overwritten where it is, so it must be replicated or sharded, but its "
            f"placements are {input.placements}. Use the op that is not in place."
        )
    return mesh


def _backward_way(_: int, grad_output: Placement, saved: Placement) -> tuple[Placement, ...]:
    if shard_axis(saved) >= 0:
        return saved, saved, saved
    if is_sum(grad_output):
        return grad_output, REPLICATE, grad_output
    own = _own_placements(0, grad_output)[0]
    return own, own, own


def _backward(
    op: Callable[..., Tensor], grad_output: DTensor, saved: DTensor, *args: Any
) -> DTensor:
    """As what was saved; of a sum of gradients, their sum."""
    mesh = mesh_of(op.__name__, grad_output=grad_output, saved=saved)
    of_grad, of_saved, of_output = choose(mesh, [grad_output, saved], _backward_way)
    grad = op(place(grad_output, of_grad), place(saved, of_saved), *args)
    return wrap(grad, mesh, of_output, saved.shape)


for _op in (_ops.relu, _ops.leaky_relu, _ops.sigmoid):
    rule(_op.default)(partial(_pointwise, _op))
for _op in (_ops.relu_, _ops.leaky_relu_, _ops.sigmoid_):
    rule(_op.default)(partial(_inplace, _op))
for _op in (_ops.relu_backward, _ops.leaky_relu_backward, _ops.sigmoid_backward):
    rule(_op.default)(partial(_backward, _op))


# ---- With a mask --------------------------------------------------------------------------------


@rule(_ops._relu_mask.default)
def relu_mask(input: DTensor, negative_slope: float | None) -> tuple[DTensor, DTensor]:
    """The mask is a DTensor placed as the input, whose parts have bits in place of elements."""
    mesh = mesh_of("relu", input=input)
    placements, _ = choose(mesh, [input], _own_placements)
    output, mask = _ops._relu_mask(place(input, placements).contiguous(), negative_slope)
    return tuple(wrap(part, mesh, placements, input.shape) for part in (output, mask))  # type: ignore[return-value]


@rule(_ops._relu_mask_.default)
def relu_mask_(input: DTensor, negative_slope: float | None) -> DTensor:
    """Writes to the parts, which must be what they stay."""
    mesh = check_inplace("relu_", input)
    part = place(input, input.placements)
    # The order in which the derivative takes the mask to go through the elements.
    order = sorted(range(input.dim()), key=lambda axis: -input.stride()[axis])
    if input.is_contiguous():
        order = list(range(input.dim()))
    in_order = part.permute(order)
    if in_order.is_contiguous():
        mask = _ops._relu_mask_(in_order, negative_slope)
    else:
        output, mask = _ops._relu_mask(in_order.contiguous(), negative_slope)
        in_order.copy_(output)
    return wrap(mask, mesh, input.placements, input.shape)


def _mask_way(_: int, grad_output: Placement, mask: Placement) -> tuple[Placement, ...]:
    if shard_axis(mask) < 0 and is_sum(grad_output):
        return grad_output, mask, grad_output
    return mask, mask, mask


@rule(_ops._relu_mask_backward.default)
def relu_mask_backward(
    grad_output: DTensor, mask: DTensor, order: Sequence[int], negative_slope: float | None
) -> DTensor:
    """As the input was; of a sum of gradients, their sum."""
    mesh = mesh_of("relu", grad_output=grad_output, mask=mask)
    of_grad, _, of_output = choose(mesh, [grad_output, mask], _mask_way)
    bits = mask.to_local()
    grad = _ops._relu_mask_backward(place(grad_output, of_grad), bits, order, negative_slope)
    return wrap(grad, mesh, of_output, grad_output.shape)
