# SPDX-License-Identifier: Apache-2.0
"""The bounded queue between the image callbacks and the worker: newest wins, nothing is dropped uncounted."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from ros_kvstream.node.frame_counters import DropCause, FrameCounters


@dataclass(frozen=True)
class QueuedFrame:
    """An image message as it arrived, not yet converted."""

    camera: str
    message: Any
    """sensor_msgs Image or CompressedImage; converted by the worker, so that dropped frames cost nothing."""
    stamp: float
    """Header stamp, seconds."""
    arrived: float
    """Seconds of a monotonic clock."""


class FrameQueue:
    """A few waiting frames per camera; a full camera loses its oldest one.

    Called from any thread; no call blocks. Cameras take turns, so that a fast one cannot starve a slow one.
    """

    def __init__(self, capacity: int, counters: FrameCounters) -> None:
        """:param capacity: frames that wait at most per camera, from 1; :param counters: where drops are counted."""
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: must be 1 or more.")
        self.capacity = capacity
        self._counters = counters
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[QueuedFrame]] = {}

    def put(self, frame: QueuedFrame) -> None:
        """Store a frame; when its camera is full, its oldest waiting frame is dropped and counted."""
        with self._lock:
            waiting = self._waiting.setdefault(frame.camera, deque())
            if len(waiting) >= self.capacity:
                waiting.popleft()
                self._counters.dropped(frame.camera, DropCause.QUEUE)
            waiting.append(frame)

    def take(self) -> QueuedFrame | None:
        """Take the oldest frame of the camera whose turn it is; None when nothing waits."""
        with self._lock:
            for camera, waiting in self._waiting.items():
                if waiting:
                    # Moving the camera to the end of the dictionary gives the others their turn first.
                    self._waiting[camera] = self._waiting.pop(camera)
                    return waiting.popleft()
        return None

    def drain(self, cause: DropCause, camera: str | None = None) -> int:
        """Drop all waiting frames (of one camera), count them under a cause, and return how many there were."""
        with self._lock:
            frames = [frame for name, waiting in self._waiting.items() if camera in (None, name) for frame in waiting]
            for frame in frames:
                self._waiting[frame.camera].clear()
                self._counters.dropped(frame.camera, cause)
        return len(frames)

    def __len__(self) -> int:
        with self._lock:
            return sum(len(waiting) for waiting in self._waiting.values())
