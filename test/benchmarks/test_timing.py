# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of a piece of work, on the CPU and on a CUDA device that is stood in for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from benchmarks.timing import median_ms, milliseconds, peak_bytes, peak_extra_bytes

MIB = 1 << 20


def test_work_on_the_cpu_takes_the_memory_of_its_largest_moment() -> None:
    def work() -> object:
        first = torch.zeros(2 * MIB, dtype=torch.uint8)
        del first
        return torch.zeros(MIB, dtype=torch.uint8)

    assert 2 * MIB <= peak_bytes(work, "cpu") < 2.5 * MIB


def test_the_peak_counts_what_lives_at_once_and_not_what_was_made_before() -> None:
    kept: list[torch.Tensor] = []

    def prepare() -> None:
        kept.append(torch.zeros(1 << 20))

    def work() -> None:
        first = torch.zeros(1 << 18)
        del first
        second = torch.zeros(1 << 19)
        kept.clear()
        del second

    peak = peak_extra_bytes(prepare, work)
    assert 4 << 19 <= peak < (4 << 19) + (4 << 17)


def test_the_median_leaves_the_warm_up_out_and_runs_turn_about() -> None:
    order: list[str] = []
    times = median_ms([lambda: order.append("a"), lambda: order.append("b")], 2, "cpu")
    assert order == ["a", "b"] * 3
    assert len(times) == 2 and min(times) >= 0


class Device:
    """As much of torch.cuda as the clock uses; each piece of work takes 5 ms and 3 MiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                device.calls.append("record")

            def synchronize(self) -> None:
                device.calls.append("synchronize")

            def elapsed_time(self, other: Event) -> float:
                return 5.0

        known: dict[str, Any] = {
            "Event": Event, "device": lambda name: nullcontext(), "synchronize": lambda name: self.calls.append("wait"),
            "reset_peak_memory_stats": lambda name: self.calls.append("reset"),
            "memory_allocated": lambda name: MIB, "max_memory_allocated": lambda name: 4 * MIB,
        }  # fmt: skip
        for name, value in known.items():
            monkeypatch.setattr(torch.cuda, name, value)


def test_work_on_a_cuda_device_is_timed_by_events_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    assert milliseconds(lambda: device.calls.append("work"), "cuda:0") == 5.0
    assert device.calls == ["record", "work", "record", "synchronize"]
    device.calls.clear()
    assert peak_bytes(lambda: device.calls.append("work"), "cuda:0") == 3 * MIB
    assert device.calls == ["wait", "reset", "work", "wait"]
