"""What a call takes, on CUDA and on the CPU, and what a plain copy moves."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

COPY_BYTES = 2**30
FLUSH_BYTES = 2**28  # several times the L2 of any GPU so far
LEAST_AHEAD, MOST_AHEAD = 9, 288  # flushes for the CPU's head start: some 0.5 to 20 ms


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median and the 10th and 90th percentile of the repeats."""

    median: float
    p10: float
    p90: float
    repeats: int

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        if len(seconds) == 1:
            return Timing(seconds[0], seconds[0], seconds[0], 1)
        deciles = statistics.quantiles(seconds, n=10, method="inclusive")
        return Timing(statistics.median(seconds), deciles[0], deciles[-1], len(seconds))


@dataclass(frozen=True)
class Once:
    """One call: its output, its time, and the memory it took beyond inputs and output."""

    output: Tensor
    seconds: float
    scratch_bytes: int | None


Call = Callable[[], Tensor]


def turns(repeats: Sequence[int]) -> Iterator[int]:
    """Whose turn it is, of calls that are repeated that often, all spread over the whole time.

    Whatever else changes meanwhile, as clocks, memory and neighbours do, then befalls all alike.
    Each round has an order of its own, for a call may depend on the one before it.
    """
    order, rounds = random.Random(0), max(repeats)
    for number in range(rounds):
        now = [
            which
            for which, count in enumerate(repeats)
            if number * count // rounds < (number + 1) * count // rounds
        ]
        order.shuffle(now)
        yield from now


class Timer(Protocol):
    device: torch.device
    most_rounds: int

    def once(self, call: Call) -> Once: ...

    def in_turn(
        self, calls: Sequence[Call], repeats: Sequence[int], reads_only: bool = False
    ) -> list[tuple[Timing, str]]:
        """Returns each call's times and a note, empty when there is nothing to say of them.

        Each output is freed before the next call, so that all find memory as the others do.
        ``reads_only``: the calls write next to nothing.
        """

    def recover(self) -> None:
        """Frees what a failed call held; raises RuntimeError when the device is lost."""


class CudaTimer:
    """CUDA events around each call, all of them queued before any is read."""

    most_rounds = 50

    def __init__(self) -> None:
        self.device = torch.device("cuda")
        self._flush_buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

    def _flush(self, reads_only: bool = False) -> None:
        # By writes: a call then starts with an L2 full of lines that must be written back, as it
        # leaves one behind, so that no write is counted twice or not at all. What reads only leaves
        # none behind: it would be charged for 10 us of others' writes.
        self._flush_buffer.zero_()
        if reads_only:
            self._flush_buffer.view(torch.int64).amax()

    def _events(self, count: int) -> list[torch.cuda.Event]:
        return [torch.cuda.Event(enable_timing=True) for _ in range(count)]

    def once(self, call: Call) -> Once:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start, end = self._events(2)
        start.record()
        output = call()
        end.record()
        torch.cuda.synchronize()
        scratch = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        return Once(output, start.elapsed_time(end) * 1e-3, scratch)

    def in_turn(
        self, calls: Sequence[Call], repeats: Sequence[int], reads_only: bool = False
    ) -> list[tuple[Timing, str]]:
        events: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in calls]
        waits = [0] * len(calls)
        waited, start_ahead = True, [LEAST_AHEAD] * len(calls)
        for which in turns(repeats):
            # Each flush takes the GPU longer than a launch takes the CPU, and some more of them
            # give the CPU a head start: it runs ahead, and the events time the GPU alone. A step of
            # a model takes the CPU milliseconds, and so needs a longer one each time.
            ahead = start_ahead[which]
            for _ in range(ahead if waited or ahead > LEAST_AHEAD else 1):
                self._flush(reads_only)
            start, end = self._events(2)
            start.record()
            calls[which]()
            end.record()
            waited = start.query()  # the GPU had nothing left to do while the CPU issued this call
            waits[which] += waited
            if waited:
                start_ahead[which] = min(2 * ahead, MOST_AHEAD)
            events[which].append((start, end))
        torch.cuda.synchronize()
        seconds = [[start.elapsed_time(end) * 1e-3 for start, end in each] for each in events]
        return [
            (Timing.of(each), "the GPU waited for the CPU" if 2 * count > len(each) else "")
            for each, count in zip(seconds, waits, strict=True)
        ]

    def recover(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class WallTimer:
    """The wall clock. What a call reads may be in a cache; others' work on the machine counts."""

    most_rounds = 200

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def once(self, call: Call) -> Once:
        start = time.perf_counter()
        output = call()
        return Once(output, time.perf_counter() - start, None)

    def in_turn(
        self, calls: Sequence[Call], repeats: Sequence[int], reads_only: bool = False
    ) -> list[tuple[Timing, str]]:
        seconds: list[list[float]] = [[] for _ in calls]
        for which in turns(repeats):
            seconds[which].append(self.once(calls[which]).seconds)
        return [(Timing.of(each), "") for each in seconds]

    def recover(self) -> None:
        pass


def host_scratch(call: Call) -> int:
    """The memory that a call takes on the CPU at its peak, beyond inputs and output."""
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        output = call()
    events = profiler.profiler.kineto_results.events()
    now = peak = 0
    for record in sorted(events, key=lambda event: event.start_ns()):
        if record.name() == "[memory]":
            now += record.nbytes()
            peak = max(peak, now)
    del output
    return peak - now


def copy_ceiling(timer: Timer) -> float:
    """The bytes a second, read and written, of a copy within the device's memory."""
    nbytes = COPY_BYTES if timer.device.type == "cuda" else COPY_BYTES >> 5
    source = torch.randint(256, (nbytes,), dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    # An idle GPU takes a moment to raise its clocks.
    ready = time.perf_counter() + 0.3
    while time.perf_counter() < ready:
        timer.once(lambda: target.copy_(source))
    ((timing, _),) = timer.in_turn([lambda: target.copy_(source)], [30])
    if not torch.equal(source, target):
        raise RuntimeError("the copy differs from what was copied")
    return 2 * nbytes / timing.median
