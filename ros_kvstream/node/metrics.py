# SPDX-License-Identifier: Apache-2.0
"""Metrics over the last minute: percentiles of times, and rates."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
"""Length of the window, also stated in KvStats.msg."""


@dataclass(frozen=True)
class Percentiles:
    """Median, 95th percentile and maximum of the values in the window; all 0 when there are none."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    maximum: float = 0.0
    newest: float = 0.0

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f}, p95 {self.p95:.2f}, max {self.maximum:.2f} ({self.count})"


class Metrics:
    """Named series of values over a window of time. Thread-safe; the number of values is bounded."""

    def __init__(self, seconds: float = WINDOW_SECONDS, values: int = 4096) -> None:
        """:param seconds: length of the window; :param values: largest number of values per series."""
        self._seconds = seconds
        self._values = values
        self._lock = threading.Lock()
        self._series: dict[str, deque[tuple[float, float]]] = {}

    def add(self, name: str, value: float) -> None:
        """Add a value to a series, at the current time."""
        with self._lock:
            series = self._series.setdefault(name, deque(maxlen=self._values))
            series.append((time.monotonic(), value))

    def percentiles(self, name: str) -> Percentiles:
        """Compute the percentiles of a series over the window."""
        values = [value for _, value in self._recent(name)]
        if not values:
            return Percentiles()
        ordered = sorted(values)
        last = len(ordered) - 1
        return Percentiles(len(ordered), ordered[last // 2], ordered[round(0.95 * last)], ordered[last], values[-1])

    def rate(self, name: str, seconds: float = 5.0) -> float:
        """Return the number of values per second over the last ``seconds``."""
        since = time.monotonic() - seconds
        return sum(1 for at, _ in self._recent(name) if at >= since) / seconds

    def _recent(self, name: str) -> list[tuple[float, float]]:
        since = time.monotonic() - self._seconds
        with self._lock:
            return [entry for entry in self._series.get(name, ()) if entry[0] >= since]
