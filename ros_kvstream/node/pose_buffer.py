# SPDX-License-Identifier: Apache-2.0
"""Bounded buffer of received poses: the pose at a frame's stamp by interpolation, or why there is none."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from ros_kvstream.errors import PoseError
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import Pose, interpolate

MAX_SAMPLES = 4096
"""Poses that are kept: 20 s at 200 Hz."""
RESTART_SECONDS = 10.0
"""A stamp that is older than the newest by more than this begins a new series, as when a bag starts again."""
JUMP_TOLERANCE = 0.3
"""Metres beyond ``pose.max_speed`` times the time between two poses that are no jump, such as a correction by AMCL."""


class PoseGap(str, Enum):
    """Why the pose of a frame is unknown."""

    MISSING = "missing"
    """No pose was received."""
    AGE = "age"
    """The nearest poses are older or newer than the frame by more than ``pose.max_age_s``."""
    EXTRAPOLATION = "extrapolation"
    """There are poses only before the frame, or only after it."""
    COVARIANCE = "covariance"
    """The variance of x or y is above ``pose.max_covariance``."""
    JUMP = "jump"
    """The robot moved faster than ``pose.max_speed``, or the frame id changed, between the poses around the frame."""
    INVALID = "invalid"
    """A pose has values or a frame_id that cannot be used."""
    TRANSFORM = "transform"
    """tf does not connect the frames."""


@dataclass(frozen=True)
class PoseSample:
    """A received pose of the robot's base, or of what the topic describes."""

    stamp: float
    """Seconds."""
    frame_id: str
    pose: Pose | None
    """None where the values cannot be used."""
    variance: float = 0.0
    """The larger one of x and y, square metres; 0 where it is not given."""


def read_pose(message: Any, frame_id_bytes: int, received: float | None = None) -> tuple[PoseSample, str]:
    """Read a message of a type in POSE_TYPES; where its values cannot be used, the sample has no pose.

    :param received: takes the place of the header's stamp, seconds; None: the stamp counts.
    :returns: the sample, with the stamp 0 where the message has none; and what is wrong, empty where nothing is.
    """
    header, pose, variance = message.header, message.pose, 0.0
    if hasattr(pose, "covariance"):
        variance = float(np.maximum(pose.covariance[0], pose.covariance[7]))  # NaN where one is
        pose = pose.pose
    stamp = header.stamp.sec + header.stamp.nanosec / 1e9 if received is None else received
    sample = PoseSample(stamp, header.frame_id, None, variance)
    if not stamp:
        return sample, "its header has no stamp"
    if not header.frame_id:
        return sample, "the frame_id in its header is empty"
    if len(header.frame_id.encode()) > frame_id_bytes:
        return sample, f"its frame_id {header.frame_id[:40]!r}... is longer than {frame_id_bytes} bytes"
    try:
        return replace(sample, pose=Pose.from_message(pose.position, pose.orientation)), ""
    except PoseError as error:
        return sample, str(error)


class PoseBuffer:
    """Poses of one topic by stamp. Not thread-safe."""

    def __init__(self, settings: PoseSettings) -> None:
        self._settings = settings
        self._stamps: list[float] = []
        self._samples: list[PoseSample] = []

    @property
    def newest(self) -> PoseSample | None:
        """The sample with the highest stamp."""
        return self._samples[-1] if self._samples else None

    def add(self, sample: PoseSample) -> None:
        """Add a pose; one with an equal stamp is replaced, and the oldest is dropped when the buffer is full."""
        if self._stamps and sample.stamp < self._stamps[-1] - RESTART_SECONDS:
            self._stamps, self._samples = [], []
        index = bisect_left(self._stamps, sample.stamp)
        replaced = int(index < len(self._stamps) and self._stamps[index] == sample.stamp)
        self._stamps[index : index + replaced] = [sample.stamp]
        self._samples[index : index + replaced] = [sample]
        if len(self._stamps) > MAX_SAMPLES:
            del self._stamps[0], self._samples[0]

    def clear(self) -> None:
        """Remove all poses."""
        self._stamps, self._samples = [], []

    def at(self, stamp: float, *, final: bool = False) -> PoseSample | PoseGap | None:
        """Pose at a stamp, by interpolation between the samples around it.

        :param final: whether no further pose is expected; otherwise None is returned while one may still arrive.
        """
        index = bisect_left(self._stamps, stamp)
        if index < len(self._stamps) and self._stamps[index] == stamp:
            return self._between(self._samples[index], self._samples[index], stamp)
        if index == len(self._stamps):
            if not final:
                return None
            if not self._samples:
                return PoseGap.MISSING
            late = stamp - self._stamps[-1] > self._settings.max_age_s
            return PoseGap.AGE if late else PoseGap.EXTRAPOLATION
        if index == 0:
            early = self._stamps[0] - stamp > self._settings.max_age_s
            return PoseGap.AGE if early else PoseGap.EXTRAPOLATION
        return self._between(self._samples[index - 1], self._samples[index], stamp)

    def _between(self, before: PoseSample, after: PoseSample, stamp: float) -> PoseSample | PoseGap:
        settings, seconds = self._settings, after.stamp - before.stamp
        if max(stamp - before.stamp, after.stamp - stamp) > settings.max_age_s:
            return PoseGap.AGE
        if before.pose is None or after.pose is None:
            return PoseGap.INVALID
        if not (before.variance <= settings.max_covariance and after.variance <= settings.max_covariance):
            return PoseGap.COVARIANCE  # also for a NaN
        moved = before.pose.distance(after.pose)
        if before.frame_id != after.frame_id or moved > settings.max_speed * seconds + JUMP_TOLERANCE:
            return PoseGap.JUMP
        share = (stamp - before.stamp) / seconds if seconds else 0.0
        return PoseSample(stamp, before.frame_id, interpolate(before.pose, after.pose, share),
                          max(before.variance, after.variance))
