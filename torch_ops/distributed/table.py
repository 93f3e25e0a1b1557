"""gather, where each rank has an index of its own and a part of the table's rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.placement_types import Placement

from torch_ops.distributed._exchange import gather_rows, sum_rows
from torch_ops.distributed._frame import part_of, place, shard_axis, wrap
from torch_ops.ops._arguments import Number, check_tensors, mode_arguments

Placements = tuple[Placement, ...]


def _dim_of_rows(placements: Placements) -> int:
    """The dimension of the mesh over which rows alone are shared out; -1 if there is none."""
    dims = [d for d, placement in enumerate(placements) if shard_axis(placement) == 0]
    others = [placement for d, placement in enumerate(placements) if d not in dims]
    alone = len(dims) == 1 and all(placement.is_replicate() for placement in others)
    return dims[0] if alone else -1


class _Rows(torch.autograd.Function):
    """The rows of a table that this rank asks for."""

    @staticmethod
    def forward(
        ctx: Any,
        table: DTensor,
        index: Tensor,
        placements: Placements,
        mode: str,
        fill_value: Number | None,
    ) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size, ctx.mesh, ctx.placements = table.shape[0], table.device_mesh, placements
        ctx.mode = mode
        group = ctx.mesh.get_group(_dim_of_rows(placements))
        return gather_rows(place(table, placements), index, ctx.size, mode, fill_value, None, group)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        grad = _Sums.apply(grad_output, index, ctx.size, ctx.mesh, ctx.placements, ctx.mode)
        return grad, None, None, None, None


class _Sums(torch.autograd.Function):
    """Its transpose: what all ranks add to the rows of a table."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        index: Tensor,
        size: int,
        mesh: DeviceMesh,
        placements: Placements,
        mode: str,
    ) -> DTensor:
        ctx.save_for_backward(index)
        ctx.placements, ctx.mode = placements, mode
        dim = _dim_of_rows(placements)
        _, count = part_of(size, mesh, placements, 0)
        sums = sum_rows(values, index, size, count, mode, mesh.get_group(dim))
        # Ranks that have the same rows have other indices.
        whole = tuple(each if d == dim else Partial() for d, each in enumerate(placements))
        return wrap(sums, mesh, whole, (size, *values.shape[index.dim() :]))

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        nothing = 0 if ctx.mode == "fill" else None
        rows = _Rows.apply(grad, index, ctx.placements, ctx.mode, nothing)
        return rows, None, None, None, None, None


def gather(
    table: DTensor, index: Tensor, *, mode: str = "raise", fill_value: Number | None = None
) -> Tensor:
    """Returns the rows of a sharded table that this rank's own index picks.

    ``output[i..., d...] = table[index[i...], d...]`` with an ``index`` that differs from rank to
    rank, in its shape too. All ranks of the table's group must call it, as often as each other: a
    rank asks the owners of its rows for them, each distinct row once, by three
    ``all_to_all_single``.

    Args:
        table: A DTensor of shape ``[M, d...]`` that is ``Shard(0)`` on one dimension of its mesh
            and ``Replicate()`` on the others.
        index: A tensor of any shape on the table's device; uint8, int8, int16, int32 or int64. No
            DTensor: for these there is :func:`torch_ops.gather`.
        mode: What an entry out of range is, as for :func:`torch_ops.gather`.
        fill_value: As for :func:`torch_ops.gather`.

    Returns:
        A tensor of the shape ``index.shape + table.shape[1:]``, not a DTensor.

    Gradient:
        That of ``table`` is sharded as the table is; each rank sums its own duplicates before it
        sends them. Sums of 16-bit floats are taken in float32 and rounded once. On dimensions of
        the mesh where the table is replicated the gradient is ``Partial()``. Differentiable any
        number of times.

    Memory:
        Per rank, beside the output: its distinct rows, and the rows that others ask for. The
        gradient takes that of the rank's own rows, and both of these in float32.

    Deterministic, the gradient too. The host waits once for the device, to know how much to send.

    Raises:
        IndexError: An entry is out of range: on its rank with its position, on the others with the
            number of that rank; no rank waits for ever. On CUDA as for :func:`torch_ops.gather`.
        TypeError: ``table`` is not a DTensor, or ``index`` is one.
        ValueError: The table is placed otherwise; ``mode`` is none; or ``fill_value`` does not fit.

    Example:
        >>> import torch, torch.distributed as dist, torch_ops
        >>> from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> mesh = init_device_mesh("cpu", (1,))
        >>> table = distribute_tensor(torch.arange(6.0).view(3, 2), mesh, [Shard(0)])
        >>> torch_ops.distributed.gather(table, torch.tensor([2, 0]))
        tensor([[4., 5.],
                [0., 1.]])
        >>> dist.destroy_process_group()
    """
    if not isinstance(table, DTensor):
        raise TypeError(
            "distributed.gather: table must be a DTensor, but it is a "
            f"{type(table).__name__}. For a tensor that each rank has there is torch_ops.gather."
        )
    check_tensors("distributed.gather", index=index)
    if isinstance(index, DTensor):
        raise TypeError(
            "distributed.gather: index must be this rank's own tensor, but it is a DTensor. "
            "torch_ops.gather takes one."
        )
    if table.dim() == 0 or _dim_of_rows(table.placements) < 0:
        raise ValueError(
            "distributed.gather: table must be Shard(0) on one dimension of its mesh and "
            f"replicated on the others, but its placements are {table.placements}."
        )
    options = mode_arguments("distributed.gather", mode, fill_value)
    # What sizes and dtypes alone tell is an error on all ranks, before they wait for each other.
    bare = torch.empty(table.shape, dtype=table.dtype, device="meta")
    torch.ops.torch_ops.gather(bare, index.to("meta"), 0, **options)
    return _Rows.apply(table, index, table.placements, mode, fill_value)
