# SPDX-License-Identifier: Apache-2.0
"""Stamp, time span, camera and pose of each remembered frame. Bounded by the frames that the arena holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import FrameError
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.records import Scope

MAX_CAMERAS = 1 << 15
"""Camera ids are int16 in the slot table."""


@dataclass(frozen=True)
class FrameRecord:
    """When, by which camera and where a frame was seen."""

    frame_id: int
    stamp: float
    """Seconds of the header stamp."""
    stamp_end: float
    """Seconds of the last redundant frame that this one represents."""
    camera: str
    tokens: int
    """Tokens that were prefilled for it, text around it included."""
    segment: int
    """Number of clock jumps before this frame; only frames of the newest segment count as "now"."""
    time: float
    """Seconds on the time axis of all cameras; see StreamClock."""
    pose: FramePose | None = None
    """Where it was taken; None where that is unknown."""
    base_end: Pose | None = None
    """Pose of the robot's base at ``stamp_end``; None without ``pose``."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FrameRecord:
        """Return the record that ``asdict`` made the values of."""
        pose, end = values["pose"], values["base_end"]
        if pose is not None:
            pose = FramePose(pose["map"], _pose_from(pose["base"]), _pose_from(pose["camera"]))
        end = end and _pose_from(end)
        return cls(**{**values, "pose": pose, "base_end": end})


class FrameIndex:
    """Records of the remembered frames, in order of arrival."""

    def __init__(self, first_id: int = 0) -> None:
        self._records: dict[int, FrameRecord] = {}
        self._cameras: dict[str, int] = {}
        self._next_id = first_id
        self.first_stamp = math.inf
        """Lowest stamp of all frames since the last clear, remembered or not, seconds; infinite before the first."""
        self.map = ""
        """Segment of the map of the newest pose; poses of other segments cannot be compared with it."""

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, frame_id: int) -> bool:
        return frame_id in self._records

    def __getitem__(self, frame_id: int) -> FrameRecord:
        return self._records[frame_id]

    @property
    def next_id(self) -> int:
        """Id of the next frame; the number of frames that were ever added."""
        return self._next_id

    @property
    def cameras(self) -> dict[str, int]:
        """Ids of all cameras seen so far, by name."""
        return dict(self._cameras)

    def cameras_remembered(self) -> set[str]:
        """Names of the cameras of the remembered frames."""
        return {record.camera for record in self._records.values()}

    def camera_id(self, camera: str) -> int:
        """The id of a camera, assigned at first use."""
        if camera not in self._cameras and len(self._cameras) >= MAX_CAMERAS:
            raise FrameError(f"camera {camera!r}: there are {MAX_CAMERAS} cameras already. Use fewer names.")
        return self._cameras.setdefault(camera, len(self._cameras))

    def add(self, stamp: float, camera: str, tokens: int, segment: int, time: float) -> FrameRecord:
        """Record a new frame."""
        record = FrameRecord(self._next_id, stamp, stamp, camera, tokens, segment, time)
        self._records[record.frame_id] = record
        self._next_id += 1
        self.first_stamp = min(self.first_stamp, stamp)
        return record

    def set_prefilled(self, frame_id: int, tokens: int) -> None:
        """Set the number of a frame's tokens."""
        self._records[frame_id] = replace(self._records[frame_id], tokens=tokens)

    def extend(self, frame_id: int, stamp: float) -> None:
        """Extend a frame's time span to a redundant frame."""
        record = self._records[frame_id]
        self._records[frame_id] = replace(record, stamp_end=max(record.stamp_end, stamp))

    def place(self, frame_id: int, stamp: float, pose: FramePose) -> FrameRecord | None:
        """Set the pose of a frame at a stamp of its time span; the span keeps its first and its last pose.

        :returns: the new record; None where the frame is not remembered, or the pose belongs to another map than the
            frame's first one.
        """
        self.map = pose.map
        record, pose = self._records.get(frame_id), pose.stored()
        if record is None or (record.pose is not None and record.pose.map != pose.map):
            return None
        if record.pose is None or stamp <= record.stamp:
            record = replace(record, pose=pose, base_end=record.base_end or pose.base)
        if stamp > record.stamp:
            record = replace(record, base_end=pose.base)
        self._records[frame_id] = record
        return record

    def maps(self) -> set[str]:
        """Segments of the maps that the poses of the frames refer to."""
        return {record.pose.map for record in self._records.values() if record.pose is not None}

    def newest(self) -> FrameRecord | None:
        """The last frame added that is still remembered."""
        return next(reversed(self._records.values()), None)

    def newest_stamp(self) -> float:
        """Stamp of the last frame since the clock jumped, redundant ones included, seconds; 0 when empty."""
        newest = self.newest()
        if newest is None:
            return 0.0
        return max(record.stamp_end for record in self._records.values() if record.segment == newest.segment)

    def retain(self, frame_ids: Iterable[int]) -> None:
        """Remove all frames but these."""
        wanted = set(frame_ids)
        self._records = {frame: record for frame, record in self._records.items() if frame in wanted}

    def remove(self, frame_ids: Iterable[int]) -> None:
        """Remove these frames."""
        for frame in frame_ids:
            self._records.pop(frame, None)

    def matching(self, scope: Scope) -> list[int]:
        """Ids of the frames in a scope."""
        return [
            frame
            for frame, record in self._records.items()
            if scope.camera in ("", record.camera)
            and scope.in_time(record.stamp, record.stamp_end)
            and (scope.near is None or _in_place(record, scope))
        ]

    def time_spans(self, frame_ids: Iterable[int]) -> NDArray[np.float64]:
        """First and last stamp of each of these frames, seconds [frames, 2]."""
        spans = [(self._records[frame].stamp, self._records[frame].stamp_end) for frame in frame_ids]
        return np.array(spans, dtype=np.float64).reshape(-1, 2)

    def clear(self) -> None:
        """Remove all frames; ids, cameras and the map continue, so that evidence of removed frames is unambiguous."""
        self._records = {}
        self.first_stamp = math.inf

    def state_dict(self) -> dict[str, Any]:
        """Records, cameras and the next id; values that JSON can hold."""
        records = [asdict(record) for record in self._records.values()]
        return {
            "records": records,
            "cameras": dict(self._cameras),
            "next_id": self._next_id,
            "map": self.map,
            "first_stamp": self.first_stamp if math.isfinite(self.first_stamp) else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``; an id that this index has given out is never given again."""
        self._records = {record["frame_id"]: FrameRecord.from_dict(record) for record in state["records"]}
        self._cameras = dict(state["cameras"])
        self._next_id = max(self._next_id, state["next_id"])
        self.map = state["map"]
        self.first_stamp = math.inf if state["first_stamp"] is None else state["first_stamp"]


def _in_place(record: FrameRecord, scope: Scope) -> bool:
    if record.pose is None or record.base_end is None or record.pose.map != scope.map:
        return False
    return bool(scope.in_place([record.pose.base.position, record.base_end.position]))


def _pose_from(values: dict[str, Any]) -> Pose:
    return Pose.from_numbers([*values["position"], *values["orientation"]])
