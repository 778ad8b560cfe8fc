# SPDX-License-Identifier: Apache-2.0
"""What became of every frame: published = seen + dropped by cause + waiting; seen = kept + gated."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from ros_kvstream.records import Observation


class DropCause(str, Enum):
    """Why a published frame never reached the memory."""

    QUEUE = "queue"
    """A newer frame came before the worker was free."""
    SEQUENCE_GAP = "sequence_gap"
    """Lost between publisher and node: the publisher's numbering has a gap."""
    ENCODING = "encoding"
    """Not a picture that can be converted: unknown encoding, wrong sizes, cut short."""
    REJECTED = "rejected"
    """The memory refused the frame, for its stamp or its shape."""
    FAULT = "fault"
    """An error while the frame was being stored; the memory went back to its state before."""
    INACTIVE = "inactive"
    """Still waiting when the node was deactivated."""


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
        """Frames that the camera is known to have sent."""
        return self.received + self.dropped[DropCause.SEQUENCE_GAP.value]

    @property
    def waiting(self) -> int:
        """Frames that are in the queue or being stored now."""
        return self.published - self.seen - sum(self.dropped.values())

    def plus(self, other: CameraCount) -> CameraCount:
        """Sum of two counts."""
        return CameraCount(self.received + other.received, self.seen + other.seen, self.kept + other.kept,
                           self.gated + other.gated, self.dropped + other.dropped)


class FrameCounters:
    """Counts frames per camera from configure on. Called from any thread; never blocks for long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cameras: dict[str, CameraCount] = {}

    def received(self, camera: str, lost_before: int = 0) -> None:
        """Count one arrived message and the ones that the publisher's numbering says were lost before it."""
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
            total = CameraCount()
            for count in self._cameras.values():
                total = total.plus(count)
        return total


class SequenceTracker:
    """Finds frames lost in transport from the publishers' running numbers on one topic.

    Messages do not say which publisher they are from, so each is taken to continue the series with the highest
    last number below its own; a number below all series starts a new one (a publisher that was restarted).
    """

    LARGE_GAP = 300
    """A jump by more than this is a further publisher rather than a loss, while one has not been heard yet."""

    def __init__(self) -> None:
        self._last: list[int] = []
        """Last number of each series, the most recently heard at the end."""

    def lost_before(self, number: int, publishers: int = 1) -> int:
        """Return how many messages are missing right before this one; 0 for the first of a series.

        :param number: publication sequence number; :param publishers: publishers on the topic now.
        """
        below = [last for last in self._last if last < number]
        previous = max(below, default=number - 1)
        lost = number - previous - 1
        unheard = len(self._last) < publishers
        if not below or (lost > self.LARGE_GAP and unheard):
            self._last = [*self._last[-max(publishers, 1):], number]
            return 0
        self._last.remove(previous)
        self._last.append(number)
        return lost
