"""What is known of each frame beside its slots: stamp, time span and camera. Bounded by what the arena still holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ros_kvstream.errors import FrameError

MAX_CAMERAS = 1 << 15
"""Camera ids are int16 in the slot table."""


@dataclass(frozen=True)
class FrameRecord:
    """One frame: when and from which camera."""

    frame_id: int
    stamp: float
    """Seconds of the header stamp."""
    stamp_end: float
    """Seconds of the last redundant frame that this one stands for."""
    camera: str
    tokens: int
    """Tokens that were prefilled for it, text around it included."""
    segment: int
    """Counts the jumps of the clock before this frame; frames of older segments are never "now"."""


class FrameIndex:
    """Frame ids in order of arrival, with their records."""

    def __init__(self, first_id: int = 0) -> None:
        self._records: dict[int, FrameRecord] = {}
        self._cameras: dict[str, int] = {}
        self._next = first_id

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, frame_id: int) -> bool:
        return frame_id in self._records

    def __getitem__(self, frame_id: int) -> FrameRecord:
        return self._records[frame_id]

    @property
    def next_id(self) -> int:
        """Id that the next frame gets; the number of frames that were ever added."""
        return self._next

    @property
    def cameras(self) -> dict[str, int]:
        """Number of every camera that was ever seen, by name."""
        return dict(self._cameras)

    def camera_id(self, camera: str) -> int:
        """Small number of a camera's name, given at first use."""
        if camera not in self._cameras and len(self._cameras) >= MAX_CAMERAS:
            raise FrameError(f"camera {camera!r}: there are {MAX_CAMERAS} cameras already. Use fewer names.")
        return self._cameras.setdefault(camera, len(self._cameras))

    def add(self, stamp: float, camera: str, tokens: int) -> FrameRecord:
        """Record a new frame."""
        record = FrameRecord(self._next, stamp, stamp, camera, tokens, 0)
        self._records[record.frame_id] = record
        self._next += 1
        return record

    def set_prefilled(self, frame_id: int, segment: int, tokens: int) -> None:
        """Tell a frame how often the clock had jumped before it, and how many tokens it has."""
        self._records[frame_id] = replace(self._records[frame_id], segment=segment, tokens=tokens)

    def extend(self, frame_id: int, stamp: float) -> None:
        """Let a frame stand for a redundant one that came later."""
        record = self._records[frame_id]
        self._records[frame_id] = replace(record, stamp_end=max(record.stamp_end, stamp))

    def newest(self) -> FrameRecord | None:
        """The last frame added, if it is still known."""
        return next(reversed(self._records.values()), None)

    def newest_stamp(self) -> float:
        """Stamp of the last frame seen since the clock jumped, redundant ones included, seconds; 0 when empty."""
        newest = self.newest()
        if newest is None:
            return 0.0
        return max(record.stamp_end for record in self._records.values() if record.segment == newest.segment)

    def retain(self, frame_ids: Iterable[int]) -> None:
        """Forget all frames but these."""
        wanted = set(frame_ids)
        self._records = {frame: record for frame, record in self._records.items() if frame in wanted}

    def forget(self, frame_ids: Iterable[int]) -> None:
        """Forget these frames, as if they had never come."""
        for frame in frame_ids:
            self._records.pop(frame, None)

    def matching(self, camera: str, since: float, until: float) -> list[int]:
        """Ids of known frames of a camera ('' = all) whose span meets [since, until] (0 = unbounded), seconds."""
        if not camera and since <= 0 and until <= 0:
            return list(self._records)
        return [
            frame
            for frame, record in self._records.items()
            if (not camera or record.camera == camera)
            and (since <= 0 or record.stamp_end >= since)
            and (until <= 0 or record.stamp <= until)
        ]

    def clear(self) -> None:
        """Forget all frames; ids and cameras go on counting, so that old evidence is never confused with new."""
        self._records = {}
