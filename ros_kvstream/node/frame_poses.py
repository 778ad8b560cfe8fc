# SPDX-License-Identifier: Apache-2.0
"""Gives remembered frames their poses: a frame whose pose has not arrived yet waits for it, for a limited time."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from ros_kvstream.node.frame_counters import PoseCount
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.messages import NANOSECONDS
from ros_kvstream.node.pose_source import NoPose, PoseQuery, PoseSource
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import FramePose, map_segment, segment_name

MAX_WAITING = 1024
"""Frames that may wait for their poses; with more, the oldest is given up."""
GRACE_SECONDS = 0.5
"""How much longer than ``pose.max_age_s`` after its arrival a frame waits for its pose."""

LOOK_SECONDS = 0.002
"""Looking for the poses of all waiting frames may take this long at any time; after longer looks there is a pause."""
LOOK_SHARE = 0.1
"""Largest share of the worker's time that looks longer than LOOK_SECONDS take, as for frames unknown to tf."""


class PlacedMemory(Protocol):
    """What is needed of a VideoMemory."""

    def place(self, frame_id: int, stamp: float, pose: FramePose) -> None:
        """Remember where a frame was taken."""

    def maps(self) -> set[str]:
        """Segments of the maps that its poses refer to."""


@dataclass(frozen=True)
class _WaitingFrame:
    """A frame in the memory whose pose is not known yet."""

    frame_id: int
    """Number of the frame in the memory; for a redundant one, that of the frame it was merged into."""
    query: PoseQuery
    given_up: float
    """When its pose is no longer waited for, seconds of a monotonic clock."""


class FramePoses:
    """The frames that wait, and what became of the others. The worker's thread owns it, except where stated."""

    def __init__(self, source: PoseSource, settings: PoseSettings) -> None:
        self.source = source
        self.settings = settings
        self.other_map = ""
        """Segment of poses in the memory that are never compared with new ones; empty where none is known."""
        self._waiting: deque[_WaitingFrame] = deque()
        self._lock = threading.Lock()
        self._count = PoseCount()
        self._noted: tuple[float, str] | None = None
        self._compared = False
        """Whether the maps in the memory were compared with the present segment."""
        self._next_look = 0.0
        """When the waiting frames are looked for again, seconds of a monotonic clock."""
        self._begin_segment()

    # -- from any thread --------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of frames that wait."""
        return len(self._waiting)

    @property
    def count(self) -> PoseCount:
        """A copy of the counters since configure."""
        with self._lock:
            return PoseCount(self._count.with_pose, self._count.missing.copy())

    @property
    def noted(self) -> tuple[float, str] | None:
        """When (seconds of a monotonic clock) and why a frame last got no pose, as far as the source can tell."""
        return self._noted

    # -- in the worker's thread -------------------------------------------------------------------------------------

    def add(self, frame: QueuedFrame, frame_id: int) -> None:
        """Let a frame that the memory took wait for its pose."""
        header = frame.message.header
        exact = header.stamp.sec * NANOSECONDS + header.stamp.nanosec
        query = PoseQuery(frame.camera, frame.stamp, exact or round(frame.stamp * NANOSECONDS), header.frame_id)
        until = frame.arrived + self.settings.max_age_s + GRACE_SECONDS
        self._waiting.append(_WaitingFrame(frame_id, query, until))

    def resolve(self, memory: PlacedMemory) -> None:
        """Place every frame whose pose is known now; give those up that have waited too long.

        When the memory raises an error, the remaining frames keep waiting. Does nothing shortly after a look at many
        frames in vain, which would take most of the worker's time.
        """
        now = time.monotonic()
        while len(self._waiting) > MAX_WAITING:
            self._settle(memory, final=True)
        if now < self._next_look:
            return
        for _ in range(len(self._waiting)):
            self._settle(memory, final=self._waiting[0].given_up <= now)
        end = time.monotonic()
        self._next_look = end + (end - now) * (1 / LOOK_SHARE - 1) if end - now > LOOK_SECONDS else 0.0

    def _settle(self, memory: PlacedMemory, final: bool) -> None:
        """Place the frame that has waited longest, or let it wait again; ``final``: give it up instead."""
        frame = self._waiting.popleft()
        pose = self._decide(frame, final)
        if pose is not None:
            memory.place(frame.frame_id, frame.query.stamp, pose)
            if not self._compared:  # an archive is opened with the first frame
                self._compared = True
                self.compare_maps(memory)

    def _decide(self, frame: _WaitingFrame, final: bool) -> FramePose | None:
        """Return the pose of a frame, count it or why there is none, or let the frame wait again."""
        found = self.source.at(frame.query, final=final)
        if found is None:
            self._waiting.append(frame)
            return None
        with self._lock:
            if isinstance(found, NoPose):
                self._count.missing[found.cause.value] += 1
                if found.reason:
                    self._noted = (time.monotonic(), found.reason)
                return None
            self._count.with_pose += 1
        return FramePose(map_segment(found.frame_id, self._name), found.base, found.camera)

    def replaced(self, memory: PlacedMemory) -> None:
        """Give up all waiting frames: a file has replaced the memory that they were in."""
        self._give_up()
        self.compare_maps(memory)

    def cleared(self) -> None:
        """Give up all waiting frames, and begin a new segment of the map unless the map has a name."""
        self._give_up()
        self._begin_segment()

    def compare_maps(self, memory: PlacedMemory) -> None:
        """Find poses in the memory that are never compared with new ones."""
        others = sorted(segment for segment in memory.maps() if segment_name(segment) != self._name)
        self.other_map = others[0] if others else ""

    def _give_up(self) -> None:
        while self._waiting:
            self._decide(self._waiting.popleft(), final=True)

    def _begin_segment(self) -> None:
        self._name = self.settings.map_name or secrets.token_hex(4)
        self.other_map, self._compared = "", False
