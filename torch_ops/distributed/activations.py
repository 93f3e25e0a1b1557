"""The rules of the activations: each rank computes what it has, without communication.

Of an op that returns one tensor as long as its first argument torch makes the rule
(``register_sharding``): such a call does not leave C++ once its placements were seen. The ops with
a mask have rules of their own: a mask has a bit for each element that the rank has, in the order of
its memory, so that it is of use to this rank alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed._frame import (
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

Rows = list[tuple[list[Placement], list[Placement | None]]]


def _shards(*tensors: Any) -> set[int]:
    return {axis for tensor in tensors for axis in map(shard_axis, tensor.placements) if axis >= 0}


@register_sharding(
    [
        _ops.relu.default,
        _ops.relu_.default,
        _ops.leaky_relu.default,
        _ops.leaky_relu_.default,
        _ops.sigmoid.default,
        _ops.sigmoid_.default,
        torch.ops.aten.detach_.default,  # of a saved output; torch has no rule of its own
    ]
)
def _pointwise(input: Any, *parameters: Any, **options: Any) -> Rows:
    """As the input, if that is no sum."""
    rest = [None] * (len(parameters) + len(options))
    placements = [REPLICATE, *map(Shard, _shards(input))]
    return [([placement], [placement, *rest]) for placement in placements]


@register_sharding(
    [
        _ops.relu_backward.default,
        _ops.leaky_relu_backward.default,
        _ops.sigmoid_backward.default,
    ]
)
def _backward(grad_output: Any, saved: Any, *parameters: Any) -> Rows:
    """As what was saved; of a sum of gradients, their sum."""
    rest = [None] * len(parameters)
    placements = [REPLICATE, *map(Shard, _shards(grad_output, saved))]
    return [
        ([Partial()], [Partial(), REPLICATE, *rest]),
        *(([placement], [placement, placement, *rest]) for placement in placements),
    ]


# ---- With a mask --------------------------------------------------------------------------------


def _own_placements(_: int, input: Placement) -> tuple[Placement, Placement]:
    whole = REPLICATE if shard_axis(input) < 0 else input
    return whole, whole


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
    mesh = mesh_of("relu_", input=input)
    placements, _ = choose(mesh, [input], _own_placements)
    if placements != input.placements:
        raise RuntimeError(
            "relu_: input must be replicated or sharded, since it is overwritten where it is, but "
            f"its placements are {input.placements}. Use relu."
        )
    part = input.to_local()
    # The order in which the derivative takes the mask to go through the elements.
    order = sorted(range(input.dim()), key=lambda axis: -input.stride(axis))
    if input.is_contiguous():
        order = list(range(input.dim()))
    laid_out = part.permute(order).contiguous()
    mask = _ops._relu_mask_(laid_out, negative_slope)
    if laid_out.data_ptr() != part.data_ptr():
        part.copy_(laid_out.permute([order.index(axis) for axis in range(part.dim())]))
    return wrap(mask, mesh, placements, input.shape)


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
    return wrap(grad.contiguous(), mesh, of_output, grad_output.shape)
