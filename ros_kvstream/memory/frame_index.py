# SPDX-License-Identifier: Apache-2.0
"""Stamp, time span and camera of each remembered frame. Bounded by the frames that the arena holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ros_kvstream.errors import FrameError
from ros_kvstream.records import frame_matches

MAX_CAMERAS = 1 << 15
"""Camera ids are int16 in the slot table."""


@dataclass(frozen=True)
class FrameRecord:
    """When and by which camera a frame was seen."""

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


class FrameIndex:
    """Records of the remembered frames, in order of arrival."""

    def __init__(self, first_id: int = 0) -> None:
        self._records: dict[int, FrameRecord] = {}
        self._cameras: dict[str, int] = {}
        self._next_id = first_id

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
        return record

    def set_prefilled(self, frame_id: int, tokens: int) -> None:
        """Set the number of a frame's tokens."""
        self._records[frame_id] = replace(self._records[frame_id], tokens=tokens)

    def extend(self, frame_id: int, stamp: float) -> None:
        """Extend a frame's time span to a redundant frame."""
        record = self._records[frame_id]
        self._records[frame_id] = replace(record, stamp_end=max(record.stamp_end, stamp))

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

    def matching(self, camera: str, since: float, until: float) -> list[int]:
        """Ids of the frames of a camera ('' = all) whose span overlaps [since, until] (0 = unbounded), seconds."""
        return [
            frame
            for frame, record in self._records.items()
            if frame_matches(camera in ("", record.camera), record.stamp, record.stamp_end, since, until)
        ]

    def clear(self) -> None:
        """Remove all frames; ids and cameras continue, so that evidence of removed frames stays unambiguous."""
        self._records = {}

    def state_dict(self) -> dict[str, Any]:
        """Records, cameras and the next id; values that JSON can hold."""
        records = [asdict(record) for record in self._records.values()]
        return {"records": records, "cameras": dict(self._cameras), "next_id": self._next_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``; an id that this index has given out is never given again."""
        self._records = {record["frame_id"]: FrameRecord(**record) for record in state["records"]}
        self._cameras = dict(state["cameras"])
        self._next_id = max(self._next_id, state["next_id"])
