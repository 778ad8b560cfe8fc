# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of a piece of work, on the CPU or on a CUDA device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

Work = Callable[[], object]
WORK = "ros_kvstream.work"
"""Name of the work in the profiler's record."""


def milliseconds(work: Work, device: str) -> float:
    """Measure wall-clock time on the CPU; on a CUDA device the time between two events in its stream."""
    if not device.startswith("cuda"):
        started = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - started)
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


def median_ms(works: Sequence[Work], repeats: int, device: str, restore: Work | None = None) -> list[float]:
    """Median milliseconds of each piece of work; they run alternately, after one warm-up round.

    :param restore: runs before each round, untimed, where the works change their inputs.
    """
    times: list[list[float]] = [[] for _ in works]
    for round_number in range(repeats + 1):
        if restore is not None:
            restore()
        for work, record in zip(works, times, strict=True):
            taken = milliseconds(work, device)
            if round_number:
                record.append(taken)
    return [statistics.median(record) for record in times]


def copy_bandwidth(source: torch.Tensor, device: str) -> float:
    """Bytes read and written per second when a tensor larger than the caches is copied; best of five."""
    target = torch.empty_like(source)
    best = min(milliseconds(lambda: target.copy_(source), device) for _ in range(5))
    return 2e3 * source.numel() * source.element_size() / best


def peak_bytes(work: Work, device: str) -> int:
    """Largest increase of the bytes in live tensors on the device during the work."""
    if not device.startswith("cuda"):
        return peak_extra_bytes(lambda: None, work)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - before


def peak_extra_bytes(prepare: Work, work: Work) -> int:
    """Largest increase of the bytes in live CPU tensors during ``work``, from the profiler's allocation records.

    :param prepare: makes the inputs; recorded as well, so that tensors that ``work`` releases are counted.
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
