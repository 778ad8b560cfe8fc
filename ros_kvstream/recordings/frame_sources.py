# SPDX-License-Identifier: Apache-2.0
"""Streams of frames, and a store that gives every run of an evaluation the same decoded frames."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import RecordingError
from ros_kvstream.poses import FramePose

MIB = 1 << 20


@dataclass(frozen=True)
class StreamFrame:
    """One frame of a stream."""

    stamp: float
    """Header stamp, seconds."""
    camera: str
    picture: NDArray[np.uint8]
    """RGB [height, width, 3]."""
    pose: FramePose | None = None
    """Where it was taken; None where that is unknown."""


class FrameSource(Protocol):
    """A stream of frames that can be read any number of times, also in another process."""

    @property
    def name(self) -> str:
        """Name in results."""

    def data(self) -> dict[str, Any]:
        """Plain data that identifies the stream: equal data, equal frames."""

    def count(self) -> int:
        """Approximate number of frames, for progress; 0 where it is unknown."""

    def first_stamp(self) -> float:
        """Stamp of the first frame, seconds. Question times count from here."""

    def frames(self, note: Callable[[str], None]) -> Iterator[StreamFrame]:
        """Yield every frame in order; ``note`` is called with what cannot be read."""


@dataclass
class _Stored:
    """What is known of a source after its first reading."""

    digest: int
    sizes: Counter[tuple[int, int]]
    """Number of frames of each (height, width)."""
    notes: list[str]
    kept: list[StreamFrame] | None
    """The decoded frames, where they fit."""

    @property
    def kept_bytes(self) -> int:
        return sum(frame.picture.nbytes for frame in self.kept or ())


@dataclass
class FrameStore:
    """Keeps decoded frames up to a limit; a source beyond it is decoded again and checked against its digest."""

    limit_mib: float = 512.0
    _stored: dict[str, _Stored] = field(default_factory=dict)

    def frames(self, source: FrameSource) -> Iterator[StreamFrame]:
        """Yield every frame of the source.

        :raises RecordingError: where the frames differ from those of the first reading.
        """
        stored = self._stored.get(repr(source))
        if stored is not None and stored.kept is not None:
            yield from stored.kept
            return
        new = _Stored(0, Counter(), [], [] if stored is None else None)
        free = self.limit_mib * MIB
        for frame in source.frames(new.notes.append):
            new.digest = _digest(new.digest, frame)
            new.sizes[(frame.picture.shape[0], frame.picture.shape[1])] += 1
            free -= frame.picture.nbytes
            if free < 0:
                new.kept = None
            if new.kept is not None:
                new.kept.append(frame)
            yield frame
        if stored is None:
            self._evict(new.kept_bytes)
            self._stored[repr(source)] = new
        elif stored.digest != new.digest:
            raise RecordingError(f"{source.name} gave other frames than before: was the file changed meanwhile?")

    def _evict(self, needed: int) -> None:
        """Drop decoded frames of other sources, oldest first, until ``needed`` more bytes fit."""
        total = needed + sum(stored.kept_bytes for stored in self._stored.values())
        for stored in self._stored.values():
            if needed and total > self.limit_mib * MIB:
                total -= stored.kept_bytes
                stored.kept = None

    def sizes(self, source: FrameSource) -> Counter[tuple[int, int]]:
        """Number of frames of each (height, width); reads the source unless it was read before."""
        if repr(source) not in self._stored:
            for _ in self.frames(source):
                pass
        return self._stored[repr(source)].sizes

    def digest(self, source: FrameSource) -> str:
        """Digest of all frames of a source that was read."""
        return f"{self._stored[repr(source)].digest:08x}"

    def notes(self, source: FrameSource) -> list[str]:
        """What could not be read of a source that was read."""
        return self._stored[repr(source)].notes


def _digest(digest: int, frame: StreamFrame) -> int:
    """Update a checksum with the stamp, camera, size and pixels of a frame."""
    head = struct.pack("<dII", frame.stamp, *frame.picture.shape[:2]) + frame.camera.encode()
    return zlib.crc32(np.ascontiguousarray(frame.picture).data, zlib.crc32(head, digest))
