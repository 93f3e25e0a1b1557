"""Memory that all ranks map, on CUDA: torch's symmetric memory. Nothing else here imports it.

Its module is private to torch: ``empty`` and ``rendezvous`` are the calls meant for use. Multicast
is not used, and none of its barriers.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed._symmetric_memory as symmetric_memory
from torch.distributed import ProcessGroup

from torch_ops.distributed.peers._memory import CannotMap, Memory, agree


def _complaint(devices: list[int], own: torch.device) -> str:
    """Why this rank's GPU cannot read the others'; nothing where it can, or cannot be asked."""
    shared = os.environ.get("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES") == "1"  # torch reads it too
    if len(set(devices)) < len(devices) and not shared:
        return (
            "two ranks name their GPU by one number: let each process see all GPUs "
            "(CUDA_VISIBLE_DEVICES), and use its own"
        )
    if max(devices) < torch.cuda.device_count():
        for device in devices:
            if device != own.index and not torch.cuda.can_device_access_peer(own.index, device):
                return f"cuda:{own.index} cannot access the memory of cuda:{device}"
    return ""


def _raise_any(complaints: list[str]) -> None:
    for complaint in filter(None, complaints):
        raise CannotMap(complaint)


def allocate(nbytes: int, device: torch.device, group: ProcessGroup) -> Memory:
    """See ``_memory.allocate``."""
    devices = agree(group, device.index)
    _raise_any(agree(group, _complaint(devices, device)))
    complaint, nbytes = "", max(nbytes, 1)
    try:
        memory = symmetric_memory.empty(nbytes, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        complaint = str(error).splitlines()[0]
    _raise_any(agree(group, complaint))  # before the others wait for this rank in rendezvous
    try:
        handle: Any = symmetric_memory.rendezvous(memory, group)
        if handle.buffer_ptrs[group.rank()] + handle.offset != memory.data_ptr():
            raise RuntimeError("torch's symmetric memory gave the address of other memory")
        memory.zero_()
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        complaint = str(error).splitlines()[0]
    _raise_any(agree(group, complaint))  # also: nobody writes before all have their zeros
    # The tensor is a piece of what was mapped.
    addresses = torch.tensor([each + handle.offset for each in handle.buffer_ptrs], device=device)
    mapped = [handle.get_buffer(rank, (nbytes,), torch.uint8) for rank in range(group.size())]
    return Memory(memory, addresses, mapped)
