"""The memory that a call takes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch


def peak_memory(device: torch.device, call: Callable[[], object]) -> int:
    """The most bytes that torch was asked for at a time, beyond those in use before.

    The blocks that it gave are larger: a large block that was freed before is given whole, unless
    a megabyte of it would be left.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_stats(device)["requested_bytes.all.current"]
        result = call()  # kept: what it holds counts too
        peak = torch.cuda.memory_stats(device)["requested_bytes.all.peak"]
        del result
        return peak - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as profile:
        call()
    events = profile.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in changes), initial=0))
