"""Memory that each rank of a group has, and all map."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class Memory(NamedTuple):
    """Of this rank, and where that of each rank is."""

    own: Tensor  # uint8, zeros at first
    addresses: Tensor  # int64 [ranks], on the device: of this process
    of: list[Tensor]  # that of each rank, as tensors; they keep what is mapped


class CannotMap(RuntimeError):
    """Why the ranks cannot map each other's memory; raised on all of them."""


def agree(group: ProcessGroup, said: Any) -> list[Any]:
    """What each rank of the group says."""
    answers: list[Any] = [None] * group.size()
    dist.all_gather_object(answers, said, group=group)
    return answers


def host() -> str:
    """The same for all processes of a host, and for no others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def allocate(nbytes: int, device: torch.device, group: ProcessGroup) -> Memory:
    """``nbytes`` on each rank. All ranks call it.

    Raises:
        CannotMap: Some rank cannot map the memory of another.
    """
    if group.size() == 1:
        own = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=device)
        return Memory(own, torch.tensor([own.data_ptr()], device=device), [own])
    if device.type == "cuda":
        from torch_ops.distributed.peers import _symmetric

        return _symmetric.allocate(nbytes, device, group)
    from torch_ops.distributed.peers import _shared

    return _shared.allocate(nbytes, group)
