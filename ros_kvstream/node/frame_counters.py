# SPDX-License-Identifier: Apache-2.0
"""Frame counters: published = seen + dropped by cause + waiting; seen = kept + gated."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce

from ros_kvstream.records import Observation


class DropCause(str, Enum):
    """Why a published frame did not reach the memory."""

    QUEUE = "queue"
    """A newer frame arrived before the worker was free."""
    SEQUENCE_GAP = "sequence_gap"
    """Lost between publisher and node: there is a gap in the publication sequence numbers."""
    ENCODING = "encoding"
    """The image cannot be converted: unknown encoding, inconsistent size or truncated data."""
    REJECTED = "rejected"
    """The memory rejected the frame because of its stamp or shape."""
    FAULT = "fault"
    """An error while the frame was being stored; the memory was rolled back."""
    INACTIVE = "inactive"
    """The frame was still waiting when the node was deactivated."""


@dataclass
class CameraCount:
    """Frame counters of one camera."""

    received: int = 0
    """Messages that reached the node."""
    seen: int = 0
    kept: int = 0
    gated: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Frames dropped, by the value of a DropCause."""

    @property
    def published(self) -> int:
        """Frames that the camera has sent, including frames lost in transport."""
        return self.received + self.dropped[DropCause.SEQUENCE_GAP.value]

    @property
    def waiting(self) -> int:
        """Frames in the queue or being stored now."""
        return self.published - self.seen - sum(self.dropped.values())

    def plus(self, other: CameraCount) -> CameraCount:
        """Return the sum of two counts."""
        return CameraCount(self.received + other.received, self.seen + other.seen, self.kept + other.kept,
                           self.gated + other.gated, self.dropped + other.dropped)


@dataclass
class PoseCount:
    """Frames in the memory by what is known of their poses, apart from those that wait for one."""

    with_pose: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """Frames without a pose, by the value of a PoseGap."""

    @property
    def total(self) -> int:
        """Frames with a pose and without one."""
        return self.with_pose + sum(self.missing.values())

    def since(self, before: PoseCount) -> PoseCount:
        """Return what was counted after an earlier count."""
        return PoseCount(self.with_pose - before.with_pose, self.missing - before.missing)


class FrameCounters:
    """Counts frames per camera since configure. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cameras: dict[str, CameraCount] = {}

    def received(self, camera: str, lost_before: int = 0) -> None:
        """Count one received message and the messages lost before it."""
        with self._lock:
            count = self._cameras.setdefault(camera, CameraCount())
            count.received += 1
            if lost_before:
                count.dropped[DropCause.SEQUENCE_GAP.value] += lost_before

    def dropped(self, camera: str, cause: DropCause, frames: int = 1) -> None:
        """Count frames that will not reach the memory."""
        with self._lock:
            self._cameras.setdefault(camera, CameraCount()).dropped[cause.value] += frames

    def observed(self, camera: str, observation: Observation) -> None:
        """Count a frame that the memory took."""
        with self._lock:
            count = self._cameras.setdefault(camera, CameraCount())
            count.seen += 1
            count.kept += observation.kept
            count.gated += not observation.kept

    def camera(self, name: str) -> CameraCount:
        """Return a copy of one camera's counters (all zero for an unknown one)."""
        with self._lock:
            return self._cameras.get(name, CameraCount()).plus(CameraCount())

    def total(self) -> CameraCount:
        """Return the sum over all cameras."""
        with self._lock:
            return reduce(CameraCount.plus, self._cameras.values(), CameraCount())


class SequenceTracker:
    """Counts frames lost in transport, from the publication sequence numbers on one topic.

    A message does not identify its publisher. It is therefore assigned to the series with the highest last number below
    its own; a number below the last numbers of all series starts a new series (a restarted publisher).
    """

    LARGE_GAP = 300
    """A larger gap indicates another publisher, not a loss, as long as not every publisher has a series."""

    def __init__(self) -> None:
        self._last: list[int] = []
        """Last number of each series, the most recently updated at the end."""

    def lost_before(self, number: int, publishers: int = 1) -> int:
        """Return how many messages were lost directly before this one; 0 for the first of a series.

        :param number: publication sequence number; :param publishers: current number of publishers on the topic.
        """
        below = [last for last in self._last if last < number]
        previous = max(below, default=number - 1)
        lost = number - previous - 1
        missing = len(self._last) < publishers
        if not below or (lost > self.LARGE_GAP and missing):
            self._last = [*self._last[-max(publishers, 1):], number]
            return 0
        self._last.remove(previous)
        self._last.append(number)
        return lost
