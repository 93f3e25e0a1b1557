"""Processes that run a function together, as the ranks of a group, on the CPU or on GPUs.

They are made once for each number of ranks, when a test first asks for them, and run one function
after another, for to start them takes longer than most tests.

Each rank has a GPU of its own, and NCCL, where there are as many. Else ranks share GPUs, and gloo
moves what they send: their kernels run in turns, and everything but the link is as on several GPUs.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._pytree import tree_map_only

import torch_ops

TIMEOUT = 120  # seconds that a function may take

# What functions of tests import, which each rank would take seconds for.
PRELOADED = [
    *("torch", "torch_ops", "torch.distributed.tensor", "torch.distributed.checkpoint"),
    *("torch.distributed.fsdp", "torch.distributed.tensor.parallel"),
    *("torch.distributed.tensor.debug", "torch._dynamo", "torch._dynamo.backends.debugging"),
]

# Of the ranks that a test runs on; in a rank, of that rank.
device_type = "cpu"
_staging: torch.library.Library | None = None


def mesh(sizes: tuple[int, ...] | None = None, **options: Any) -> DeviceMesh:
    """A mesh of the ranks' devices, by default of all in one dimension."""
    return init_device_mesh(device_type, sizes or (dist.get_world_size(),), **options)


def message_of(call: Callable[[], Any]) -> str:
    """The error that it raises, with its kind, or nothing."""
    try:
        call()
    except (IndexError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def generator(seed: int) -> torch.Generator:
    """On the rank's device."""
    return torch.Generator(device_type).manual_seed(seed)


def _stage_through_the_host() -> torch.library.Library:
    """Makes torch's functional collectives send CUDA tensors through the host's memory.

    Given the tensors themselves, gloo ends the process. It holds as long as the library lives.
    """
    library = torch.library.Library("_c10d_functional", "IMPL")
    ops = torch.ops._c10d_functional

    def staged(op: Any) -> Callable[..., Tensor]:
        def call(tensor: Tensor, *rest: Any) -> Tensor:
            return ops.wait_tensor(op(tensor.cpu(), *rest)).to(tensor.device)

        return call

    for name in (
        "all_gather_into_tensor",
        "all_reduce",
        "all_to_all_single",
        "broadcast",
        "reduce_scatter_tensor",
    ):
        library.impl(name, staged(getattr(ops, name).default), "CUDA")
    return library


def _use_gpu(rank: int, world: int) -> str:
    """Makes a GPU the default device of this rank; returns the backend of the group."""
    global device_type, _staging
    device_type = "cuda"
    count = torch.cuda.device_count()
    torch.cuda.set_device(rank % count)
    torch.set_default_device("cuda")
    if world <= count:
        return "cpu:gloo,cuda:nccl"
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    _staging = _stage_through_the_host()
    return "cpu:gloo,cuda:gloo"  # for "gloo" a DeviceMesh would make groups of NCCL


def _serve(rank: int, world: int, store: str, calls: Connection, device: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        _use_gpu(rank, world) if device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    while True:
        try:
            call = calls.recv()
        except EOFError:
            return
        if call is None:
            dist.destroy_process_group()
            return
        function, args, kwargs, error_mode = call
        try:
            torch.manual_seed(0)
            torch_ops.set_error_mode(error_mode)
            torch._dynamo.reset()
            result = function(*args, **kwargs)
            answer = (True, tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), result))
        except BaseException:
            answer = (False, traceback.format_exc())
        calls.send(answer)


class Ranks:
    """The ranks of one group."""

    def __init__(self, world: int, device: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        folder = tempfile.mkdtemp(prefix="torch_ops-ranks-")
        self.calls: list[Connection] = []
        self.processes = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, world, os.path.join(folder, "store"), theirs, device)
            )
            process.start()
            theirs.close()
            self.calls.append(ours)
            self.processes.append(process)

    def run(
        self, function: Callable[..., Any], args: Any, kwargs: Any, error_mode: str
    ) -> list[Any]:
        for calls in self.calls:
            calls.send((function, args, kwargs, error_mode))
        end = time.monotonic() + TIMEOUT
        results, failed = [], []
        for rank, calls in enumerate(self.calls):
            # Who waits for a rank that has failed waits in vain.
            left = 5 if failed else end - time.monotonic()
            if not calls.poll(max(left, 0)):
                failed.append(f"rank {rank} gave no answer")
                continue
            try:
                good, result = calls.recv()
            except EOFError:
                good, result = False, "ended"
            if good:
                results.append(result)
            else:
                failed.append(f"rank {rank}: {result}")
        if failed:
            raise AssertionError("\n".join(failed))
        return results

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(10)


_running: dict[tuple[int, str], Ranks] = {}


@atexit.register
def _stop() -> None:
    while _running:
        _running.popitem()[1].stop()


def run(
    world: int,
    function: Callable[..., Any],
    *args: Any,
    error_mode: str = "sync",
    **kwargs: Any,
) -> list[Any]:
    """What ``function(*args, **kwargs)`` returns on each of ``world`` ranks.

    It must be a function of a module, and its arguments and results such that they can be pickled.
    On CUDA a bad entry is raised at once, as on the CPU, unless ``error_mode`` is "async".
    """
    key = (world, device_type)
    if key not in _running:
        _running[key] = Ranks(world, device_type)
    try:
        return _running[key].run(function, args, kwargs, error_mode)
    except AssertionError:
        _running.pop(key).stop()  # they may be at different places
        raise
