"""Memory that all ranks map, on the CPU: a file for each rank, which is removed once all map it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from torch_ops.distributed.peers._memory import CannotMap, Memory, agree

SHARED_MEMORY = "/dev/shm"


def _make(path: str, nbytes: int) -> str:
    """Makes a file of zeros; returns why it cannot, or nothing."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            # What is written to a mapped file without room for it ends the process.
            os.posix_fallocate(file, 0, nbytes)
        finally:
            os.close(file)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _map(paths: list[str], nbytes: int) -> tuple[list[Tensor], str]:
    mapped: list[Tensor] = []
    for path in paths:
        if not os.path.exists(path):  # torch would make it
            return mapped, f"{path}: not seen by another rank"
        try:
            storage: Any = torch.UntypedStorage.from_file(path, shared=True, nbytes=nbytes)
        except RuntimeError as error:
            return mapped, str(error).splitlines()[0]
        mapped.append(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage))
    return mapped, ""


def allocate(nbytes: int, group: ProcessGroup) -> Memory:
    """See ``_memory.allocate``. In /dev/shm, or in the folder of temporary files."""
    nbytes = max(nbytes, 1)
    name = agree(group, uuid.uuid4().hex)[0]
    complaints: list[str] = []
    for folder in agree(group, (SHARED_MEMORY, tempfile.gettempdir()))[0]:
        paths = [os.path.join(folder, f"torch_ops-{name}-{rank}") for rank in range(group.size())]
        own = paths[group.rank()]
        mapped: list[Tensor] = []
        try:
            complaints = agree(group, _make(own, nbytes))
            if not any(complaints):
                mapped, complaint = _map(paths, nbytes)
                complaints = agree(group, complaint)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(own)
        if not any(complaints):
            addresses = torch.tensor([each.data_ptr() for each in mapped], device="cpu")
            return Memory(mapped[group.rank()], addresses, mapped)
    raise CannotMap(next(filter(None, complaints)))
