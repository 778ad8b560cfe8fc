"""Where the frames of an evaluation come from, and a store that gives every cell of a grid the same ones."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import KvStreamError

if TYPE_CHECKING:
    from ros_kvstream.patrol.patrol import PatrolSettings

MIB = 1 << 20


@dataclass(frozen=True)
class StreamFrame:
    """One picture of a stream."""

    stamp: float
    """Seconds of the header stamp."""
    camera: str
    picture: NDArray[np.uint8]
    """RGB [height, width, 3]."""


class FrameSource(Protocol):
    """A stream of pictures that can be read any number of times, also in another process."""

    @property
    def name(self) -> str:
        """Name in results."""

    def data(self) -> dict[str, Any]:
        """What it is, as plain data: equal data, equal frames."""

    def count(self) -> int:
        """About how many frames there are, for progress; 0 where nobody knows."""

    def first_stamp(self) -> float:
        """Stamp at which the questions' clock begins, seconds."""

    def frames(self, note: Callable[[str], None]) -> Iterator[StreamFrame]:
        """Every frame in order; ``note`` is told what could not be read."""


@dataclass(frozen=True)
class PatrolSource:
    """A stream of the patrol world, drawn frame by frame."""

    settings: PatrolSettings

    @property
    def name(self) -> str:
        """Seed and length."""
        return f"patrol-{self.settings.seed}-{self.settings.frames}"

    def data(self) -> dict[str, Any]:
        """The settings."""
        import dataclasses

        return {"patrol": dataclasses.asdict(self.settings)}

    def count(self) -> int:
        """The number of frames."""
        return self.settings.frames

    def first_stamp(self) -> float:
        """Stamp of the first frame."""
        from ros_kvstream.patrol.patrol import PatrolWorld

        return PatrolWorld(self.settings).stamp(0)

    def frames(self, note: Callable[[str], None]) -> Iterator[StreamFrame]:
        """Draw them."""
        from ros_kvstream.patrol.patrol import PatrolWorld

        for frame in PatrolWorld(self.settings):
            yield StreamFrame(frame.stamp, "camera", frame.picture)


@dataclass
class _Stored:
    """What is known of a source after it was read once."""

    digest: int
    frames: int
    sizes: Counter[tuple[int, int]]
    """How many frames there are of each (height, width)."""
    notes: list[str]
    kept: list[StreamFrame] | None
    """The frames, where they fit."""


@dataclass
class FrameStore:
    """Decodes a source once where its frames fit into a limit, again where not, and proves that they are the same."""

    limit_mib: float = 512.0
    _stored: dict[str, _Stored] = field(default_factory=dict)

    def frames(self, source: FrameSource) -> Iterator[StreamFrame]:
        """Every frame of the source.

        :raises KvStreamError: where it gives other frames than the first time.
        """
        key = repr(source)
        stored = self._stored.get(key)
        if stored is not None and stored.kept is not None:
            yield from stored.kept
            return
        digest, sizes, room = 0, Counter[tuple[int, int]](), self.limit_mib * MIB
        notes: list[str] = []
        kept: list[StreamFrame] | None = [] if stored is None else None
        for frame in source.frames(notes.append):
            digest = _digest(digest, frame)
            sizes[(frame.picture.shape[0], frame.picture.shape[1])] += 1
            if kept is not None:
                room -= frame.picture.nbytes
                if room >= 0:
                    kept.append(frame)
                else:
                    kept = None
            yield frame
        if stored is None:
            self._make_room(source, kept)
            self._stored[key] = _Stored(digest, sum(sizes.values()), sizes, notes, kept)
        elif stored.digest != digest:
            raise KvStreamError(f"{source.name} gave other frames than before: has it changed meanwhile?")

    def _make_room(self, source: FrameSource, kept: list[StreamFrame] | None) -> None:
        """Drop the frames of other sources where all together pass the limit; what is known of them stays."""
        if kept is None:
            return
        needed = sum(frame.picture.nbytes for frame in kept)
        held = {key: stored for key, stored in self._stored.items() if stored.kept is not None}
        total = needed + sum(frame.picture.nbytes for stored in held.values() for frame in stored.kept or ())
        for stored in held.values():
            if total <= self.limit_mib * MIB:
                return
            total -= sum(frame.picture.nbytes for frame in stored.kept or ())
            stored.kept = None

    def measure(self, source: FrameSource) -> tuple[int, Counter[tuple[int, int]]]:
        """Number of frames and how many there are of each (height, width); reads the source where nobody did."""
        if repr(source) not in self._stored:
            for _ in self.frames(source):
                pass
        stored = self._stored[repr(source)]
        return stored.frames, stored.sizes

    def digest(self, source: FrameSource) -> str:
        """Digest of all frames of a source that was read."""
        return f"{self._stored[repr(source)].digest:08x}"

    def notes(self, source: FrameSource) -> list[str]:
        """What could not be read of a source that was read."""
        return self._stored[repr(source)].notes


def _digest(digest: int, frame: StreamFrame) -> int:
    """Running checksum over stamps, cameras, sizes and pixels."""
    head = struct.pack("<dII", frame.stamp, *frame.picture.shape[:2]) + frame.camera.encode()
    return zlib.crc32(np.ascontiguousarray(frame.picture).data, zlib.crc32(head, digest))
