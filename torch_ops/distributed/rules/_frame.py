"""What all rules for DTensors share: how a call is taken apart, distributed and put together.

A rule is a function with the arguments of a registered op. It looks at how the op's tensors are
placed and says, for each dimension of the device mesh on its own, how they must be placed for each
rank to compute its part, and how the result is placed then. This module redistributes what must be,
calls the op on the ranks' own parts, and makes a DTensor of the results.

Rules stand below autograd: the nodes of the ops see DTensors, and what they call is distributed by
rules again. So every derivative is, too.
"""

from __future__ import annotations

import contextlib
import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

Rule = TypeVar("Rule", bound=Callable[..., Any])

REPLICATE = Replicate()


def rule(*ops: torch._ops.OpOverload) -> Callable[[Rule], Rule]:
    """Makes a function what ``ops`` do with DTensors; it takes their arguments.

    ``register_sharding`` of torch would not do. It hands the ranks' parts to the op and all other
    arguments as they are; but who has a part of the rows must know which. It chooses between ways
    by a cost that it estimates, and where an index is longer than a table, it would gather the
    table on every rank. And it looks a call's way up by its integers alone, not by its ``mode``.
    """

    def register(function: Rule) -> Rule:
        def dispatch(
            cls: type, op: torch._ops.OpOverload, types: Any, args: Any, kwargs: Any
        ) -> Any:
            with torch.no_grad():  # autograd has seen the call already
                return function(*args, **(kwargs or {}))

        for op in ops:
            torch.library.register_torch_dispatch(op, DTensor, dispatch)
        return function

    return register


def shards_of(tensor: Tensor) -> list[int]:
    """For each dimension of the mesh, the axis that is sharded over it, or -1.

    Nothing of a tensor that is no DTensor. The derivatives in C++ ask.
    """
    if not isinstance(tensor, DTensor):
        return []
    return [shard_axis(placement) for placement in tensor.placements]


def shard_axis(placement: Placement) -> int:
    """The axis that is cut in pieces of one length (torch knows other ways of cutting), or -1."""
    # No other way is a subclass of Shard; and torch.compile of 2.12 cannot trace `type(...) is`.
    return placement.dim if isinstance(placement, Shard) else -1


def is_sum(placement: Placement) -> bool:
    """Whether the tensor is the sum of what the ranks have."""
    return type(placement) is Partial and placement.reduce_op == "sum"


def mesh_of(op: str, **tensors: Any) -> DeviceMesh:
    """The mesh of all these DTensors; an error for other tensors."""
    mesh: DeviceMesh | None = None
    of = ""
    for name, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            others = " and ".join(other for other in tensors if other != name)
            raise RuntimeError(
                f"{op}: {others} and {name} must all be DTensors if one is, but {name} is a plain "
                f"{'tensor' if isinstance(tensor, Tensor) else type(tensor).__name__}. "
                f"DTensor.from_local(tensor, mesh, placements) makes a DTensor of what each rank "
                f"has."
            )
        if mesh is None:
            mesh, of = tensor.device_mesh, name
        elif tensor.device_mesh != mesh:
            raise RuntimeError(
                f"{op}: {of} and {name} must be on one device mesh, but {of} is on {mesh} and "
                f"{name} on {tensor.device_mesh}."
            )
    assert mesh is not None
    return mesh


def meta_of(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an op returns, without data; and its errors for arguments that it does not take."""

    def bare(value: Any) -> Any:
        if isinstance(value, DTensor):
            return torch.empty(value.shape, dtype=value.dtype, device="meta")
        return [bare(each) for each in value] if isinstance(value, list | tuple) else value

    return op(*map(bare, args), **kwargs)


def choose(
    mesh: DeviceMesh, tensors: Sequence[DTensor], way: Callable[..., Sequence[Placement]]
) -> list[tuple[Placement, ...]]:
    """The placements of the tensors and the result, by ``way`` for each dimension of the mesh.

    ``way`` gets the number of the dimension and the tensors' placements there, and returns those
    that they are to have, with the result's in the end.
    """
    placements = [tensor.placements for tensor in tensors]
    columns = [way(d, *(of[d] for of in placements)) for d in range(mesh.ndim)]
    return list(zip(*columns, strict=True))


def place(tensor: DTensor, placements: tuple[Placement, ...]) -> Tensor:
    """This rank's part of a tensor when it is placed so; empty axes on a rank outside the mesh."""
    if tensor.placements != placements:
        # A tensor that requires a gradient would make torch call detach_, which DTensor lacks.
        detached: Any = tensor.detach()
        tensor = detached.redistribute(tensor.device_mesh, placements)
    part, mesh = tensor.to_local(), tensor.device_mesh
    if mesh.get_coordinate() is None:
        # torch's part has one axis, and is on the CPU after an op. A node of such an op does not
        # take a gradient on another device; others take one on the CPU.
        return part.new_empty((0,) * max(tensor.dim(), 1), device="cpu")
    return part


def part_of(
    size: int, mesh: DeviceMesh, placements: Sequence[Placement], axis: int
) -> tuple[int, int]:
    """Where this rank's part of an axis begins, and how long it is.

    DTensor cuts an axis as ``torch.chunk`` does, once for each dimension of the mesh over which it
    is sharded.
    """
    coordinate = mesh.get_coordinate()
    first, count = 0, size
    for d, placement in enumerate(placements):
        if shard_axis(placement) != axis or coordinate is None:
            continue
        length = -(-count // mesh.size(d))
        before = min(count, length * coordinate[d])
        first, count = first + before, min(length, count - before)
    return first, count


def is_first(mesh: DeviceMesh, placements: Sequence[Placement], axis: int) -> bool:
    """Whether this rank is the first of those among which an axis is shared out."""
    coordinate = mesh.get_coordinate()
    return coordinate is not None and all(
        coordinate[d] == 0
        for d, placement in enumerate(placements)
        if shard_axis(placement) == axis
    )


def wrap(
    part: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...], shape: Sequence[int]
) -> DTensor:
    """The DTensor of this shape of which this rank has this part, in row-major order.

    A part in another order is copied: its strides are those of one rank, and need not tell what all
    of the tensor would have.
    """
    stride = [math.prod([max(n, 1) for n in shape[axis + 1 :]]) for axis in range(len(shape))]
    output = DTensor.from_local(
        part.contiguous(),
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )
    if mesh.get_coordinate() is not None:
        return output
    # from_local moved the nothing that such a rank has from the CPU (see `place`) to a GPU.
    return wrap_as(part.new_empty(0), output)


def wrap_as(part: Tensor, other: DTensor) -> DTensor:
    """The DTensor of which this rank has this part, if it is as ``other`` is: no node of autograd.

    torch makes gradients of DTensors so, which costs the host a tenth of ``from_local``.
    """
    make: Any = DTensor  # what it takes is not public, and the same from torch 2.11 to 2.15
    made: DTensor = make(part, copy.copy(other._spec), requires_grad=False)
    return made


_ENTRY = re.compile(r"\[(\d+(?:, \d+)*)\]")


@contextlib.contextmanager
def positions(
    shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]
) -> Iterator[None]:
    """Names the entry of an index that an IndexError is about by its place in all of the index.

    Inside, the op sees this rank's part of it.
    """
    try:
        yield
    except IndexError as error:
        message = str(error)
        found = _ENTRY.search(message)
        entry = [int(number) for number in found[1].split(", ")] if found else []
        if found is None or len(entry) < len(shape):  # an error of sizes, or without a position
            raise
        for axis, size in enumerate(shape):
            entry[axis] += part_of(size, mesh, placements, axis)[0]
        place = ", ".join(map(str, entry))
        message = f"{message[: found.start(1)]}{place}{message[found.end(1) :]}"
        raise IndexError(message) from None
