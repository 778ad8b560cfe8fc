"""Peak of the extra memory that a piece of torch work allocates on the CPU, read from the allocator's own records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

WORK = "ros_kvstream.work"


def peak_extra_bytes(prepare: Callable[[], Any], work: Callable[[], Any]) -> int:
    """By how many bytes the live tensors at most exceed those at the start of ``work``.

    :param prepare: makes what ``work`` needs; recorded too, so that ``work`` releasing it is seen.
    Every allocation and release of torch's CPU allocator is recorded by the profiler with its time; the peak is the
    highest value of their running sum from the start of ``work`` on. Python objects are not counted.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        prepare()
        with record_function(WORK):
            work()
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    start = next(event.start_ns() for event in events if event.name() == WORK)
    live = peak = 0
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        if event.start_ns() >= start:
            live += event.nbytes()
            peak = max(peak, live)
    return peak
