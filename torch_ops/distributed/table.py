"""gather, where each rank has an index of its own and a part of the table's rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributed.tensor import DTensor

from torch_ops.distributed._lookup import dim_of_rows, look_up, tell_of_error
from torch_ops.ops._arguments import Number, check_dense, given, mode_arguments

# Attributes of a ShardedTable's weight: the route to its rows, of _lookup.py, ...
ROUTE = "_torch_ops_route"
PEERS = "_torch_ops_peers"  # ... and the PeerTable by which rows are read directly, if they are


def check_call(
    name: str,
    table: DTensor,
    index: Tensor,
    mode: str,
    fill_value: Number | None,
) -> None:
    """Raises what placements, sizes and dtypes tell, before this rank waits for others."""
    if not isinstance(table, DTensor):
        raise TypeError(
            f"{name}: table must be a DTensor, but it is {given(table)}. For a tensor "
            "that each rank has there is torch_ops.gather."
        )
    if table.dim() == 0 or dim_of_rows(table.placements) < 0:
        raise ValueError(
            f"{name}: table must be Shard(0) on one dimension of its mesh and replicated on the "
            f"others, but its placements are {table.placements}."
        )
    check_dense(name, index=index)
    if isinstance(index, DTensor):
        raise TypeError(
            f"{name}: index must be this rank's own tensor, but it is a DTensor. "
            "torch_ops.gather takes one."
        )
    if not is_compiling() and torch._C._are_functorch_transforms_active():
        # Reader::look_up in C++ says the same of the direct route's indices.
        raise RuntimeError(
            f"{name}: torch.vmap and torch.func cannot transform a lookup. Make it outside of the "
            "function: index may have any shape."
        )
    if index.device.type != table.device.type:
        raise RuntimeError(
            f"{name}: table and index must be on one device, but table is on {table.device} and "
            f"index is on {index.device}."
        )
    options = mode_arguments(name, mode, fill_value)
    bare = torch.empty(table.shape, dtype=table.dtype, device="meta")
    torch.ops.torch_ops.gather(bare, index.to("meta"), 0, name=name, **options)


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
            Another rank has an error of the kinds below: with its number.
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
    peers = getattr(table, PEERS, None)
    if peers is not None and type(index) is Tensor and not is_compiling():
        rows: Tensor = peers.look_up(table, index, mode, fill_value, "distributed.gather")
        return rows
    name, route = "distributed.gather", getattr(table, ROUTE, "")
    try:
        check_call(name, table, index, mode, fill_value)
    except Exception as error:
        if peers is not None:
            peers.tell_of_error(table)
        elif not is_compiling():
            tell_of_error(table, route, name, error)
        raise
    return look_up(table, index, mode, fill_value, route, name)
