"""How long work takes, and how much memory it takes at most, on the CPU or on a CUDA device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.allocation_peak import peak_extra_bytes

Work = Callable[[], object]


def milliseconds(work: Work, device: str) -> float:
    """Wall-clock time on the CPU; on a CUDA device the time between two events in its own stream."""
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
    """Median milliseconds of each, run turn about after one warm-up each.

    :param restore: run before each round, untimed, where the works change what they work on.
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
    """By how many bytes torch's live tensors at most exceed those before, on the device."""
    if not device.startswith("cuda"):
        return peak_extra_bytes(lambda: None, work)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - before
