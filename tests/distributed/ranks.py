"""Processes that run a function together, as the ranks of a gloo group.

They are made once for each number of ranks, when a test first asks for them, and run one function
after another, for to start them takes longer than most tests.
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

TIMEOUT = 120  # seconds that a function may take


def _serve(rank: int, world: int, store: str, calls: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
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
        function, args, kwargs = call
        try:
            torch.manual_seed(0)
            torch._dynamo.reset()
            answer = (True, function(*args, **kwargs))
        except BaseException:
            answer = (False, traceback.format_exc())
        calls.send(answer)


class Ranks:
    """The ranks of one group."""

    def __init__(self, world: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch_ops", "torch.distributed.tensor"])
        folder = tempfile.mkdtemp(prefix="torch_ops-ranks-")
        self.calls: list[Connection] = []
        self.processes = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, world, os.path.join(folder, "store"), theirs)
            )
            process.start()
            theirs.close()
            self.calls.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        for calls in self.calls:
            calls.send((function, args, kwargs))
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


_running: dict[int, Ranks] = {}


@atexit.register
def _stop() -> None:
    while _running:
        _running.popitem()[1].stop()


def run(world: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """What ``function(*args, **kwargs)`` returns on each of ``world`` ranks.

    It must be a function of a module, and its arguments and results such that they can be pickled.
    """
    if world not in _running:
        _running[world] = Ranks(world)
    try:
        return _running[world].run(function, *args, **kwargs)
    except AssertionError:
        _running.pop(world).stop()  # they may be at different places
        raise
