# SPDX-License-Identifier: Apache-2.0
"""Bounded queue between the image callbacks and the worker: the oldest frame is dropped, and every drop is counted."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from ros_kvstream.node.frame_counters import DropCause, FrameCounters


@dataclass(frozen=True)
class QueuedFrame:
    """An image message as received, not yet converted."""

    camera: str
    message: Any
    """sensor_msgs Image or CompressedImage. The worker converts it, so that dropped frames cost nothing."""
    stamp: float
    """Header stamp, seconds."""
    arrived: float
    """Seconds of a monotonic clock."""


class FrameQueue:
    """A bounded number of waiting frames per camera; when a camera's queue is full, its oldest frame is dropped.

    Thread-safe; no call blocks. Cameras take turns, so that a fast camera cannot starve a slow one.
    """

    def __init__(self, capacity: int, counters: FrameCounters) -> None:
        """:param capacity: largest number of waiting frames per camera, from 1; :param counters: counts the drops."""
        self.capacity = capacity
        self._counters = counters
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[QueuedFrame]] = {}

    def put(self, frame: QueuedFrame) -> None:
        """Add a frame; when its camera's queue is full, drop and count the oldest frame of that camera."""
        with self._lock:
            waiting = self._waiting.setdefault(frame.camera, deque())
            if len(waiting) >= self.capacity:
                waiting.popleft()
                self._counters.dropped(frame.camera, DropCause.QUEUE)
            waiting.append(frame)

    def take(self) -> QueuedFrame | None:
        """Take the oldest frame of the camera whose turn it is; None when no frame waits."""
        with self._lock:
            for camera, waiting in self._waiting.items():
                if waiting:
                    # Moving the camera to the end of the dictionary gives the others their turn first.
                    self._waiting[camera] = self._waiting.pop(camera)
                    return waiting.popleft()
        return None

    def drain(self, cause: DropCause) -> None:
        """Drop all waiting frames and count them under a cause."""
        with self._lock:
            for camera, waiting in self._waiting.items():
                self._counters.dropped(camera, cause, len(waiting))
                waiting.clear()

    def __len__(self) -> int:
        with self._lock:
            return sum(len(waiting) for waiting in self._waiting.values())
