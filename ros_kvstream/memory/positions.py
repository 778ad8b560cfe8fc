"""From header stamps to positions along the first axis, re-based before they leave the trained range (promise 3).

Families whose positions are times get them from stamps (TimestampPositions), families whose positions count tokens or frames
from the order of arrival (SequentialPositions).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.errors import SettingsError

JITTER_SECONDS = 1.0
"""Stamps may run backward by this much (several cameras, one queue) without opening a new segment."""

SMALLEST_RANGE = 16
"""Temporal positions that must be left beside the room for text, or every frame would re-base."""


@dataclass(frozen=True)
class Rebase:
    """A change of all temporal positions: an exact shift, and older moments drawn together where it does not suffice.

    Positions from ``pivot`` on move by ``-shift``; those before it, which the shift would push below ``start``, are
    spread evenly and in order over [start, pivot - shift).
    """

    start: int
    pivot: int
    shift: int

    def __call__(self, t: Tensor) -> Tensor:
        """Old t -> new t, elementwise; keeps the order of moments."""
        older = t.clamp(max=self.pivot) - self.start
        room, length = self.pivot - self.shift - self.start, max(self.pivot - self.start, 1)
        drawn = self.start + (older.long() * room).div(length, rounding_mode="floor")
        return (t - self.shift).where(t >= self.pivot, drawn.to(t.dtype))


class TimestampPositions:
    """Temporal position of each stamp: seconds x tokens per second from an anchor, rounded.

    A jump backward (a looping bag) or far forward (a clock that was set) opens a new segment that starts one second
    after the newest position, so that order is kept and the range is not left.
    """

    def __init__(self, start: int, tokens_per_second: float, limit: int, room: int = 0) -> None:
        """Positions of frames run from ``start`` to below ``limit - room``.

        :param room: positions kept free behind the newest frame, for the question and its answer.
        :raises SettingsError: when next to nothing is left for frames.
        """
        self._usable = limit - start - room
        if self._usable < SMALLEST_RANGE:
            raise SettingsError(
                f"position limit = {limit}: {start} prompt positions and {room} for question and answer leave "
                f"{self._usable} for frames, at least {SMALLEST_RANGE} are needed. "
                "Lower memory.max_question_tokens or memory.max_answer_tokens."
            )
        self.start = start
        self.tokens_per_second = tokens_per_second
        self.newest = start
        self.segment = 0
        self.rebases = 0
        self._anchor_stamp: float | None = None
        self._anchor_t = start
        self._newest_stamp = 0.0
        self._zero_stamp: float | None = None
        self._seconds = 0.0

    @property
    def largest_span(self) -> int:
        """Most positions that one frame may take: after a re-basing it must fit behind the newest."""
        return self._usable // 2 - 1

    def seconds(self, stamp: float) -> float:
        """Seconds of the stream at this stamp, for texts that tell the time; call it once a frame, in order.

        Where the clock jumps backward the count goes on one second after the newest frame.
        """
        if self._zero_stamp is None:
            self._zero_stamp = stamp
        elif stamp - self._zero_stamp < self._seconds - JITTER_SECONDS:
            self._zero_stamp = stamp - self._seconds - 1.0
        elapsed = max(0.0, stamp - self._zero_stamp)
        self._seconds = max(self._seconds, elapsed)
        return elapsed

    def rebase(self, stamp: float, span: int = 1) -> Rebase | None:
        """The re-basing that is due before a frame with this stamp, or None; rare: once every half range.

        The caller applies it to all positions in use before it calls ``advance``.

        :param span: positions that the frame takes, at most ``largest_span``.
        """
        if self._next(stamp)[0] + span - 1 < self.start + self._usable:
            return None
        middle = self.start + self._usable // 2
        shift = self.newest - middle
        exact = middle - (middle - self.start) // 2
        self._anchor_t -= shift
        self.newest = middle
        self.rebases += 1
        return Rebase(self.start, exact + shift, shift)

    def advance(self, stamp: float, span: int = 1) -> int:
        """The first of the ``span`` positions of a frame with this stamp; remembers it as a moment of the stream."""
        t, jumped = self._next(stamp)
        if self._anchor_stamp is None or jumped:
            self.segment += int(jumped)
            self._anchor_stamp, self._anchor_t, self._newest_stamp = stamp, t, stamp
        self._newest_stamp = max(self._newest_stamp, stamp)
        self.newest = max(self.newest, t + span - 1)
        return t

    def locate(self, stamp: float) -> int:
        """Where a moment of the past would stand now; before the first anchor and after the newest it is clamped."""
        t = self._anchor_t + round((stamp - (self._anchor_stamp or 0.0)) * self.tokens_per_second)
        return min(max(t, self.start), self.newest)

    def _next(self, stamp: float) -> tuple[int, bool]:
        """Position that this stamp would get, and whether it would open a new segment."""
        if self._anchor_stamp is None:
            return self.newest, False
        t = max(self.start, self._anchor_t + round((stamp - self._anchor_stamp) * self.tokens_per_second))
        backward = stamp < self._newest_stamp - JITTER_SECONDS
        if backward or t - self.newest >= self._usable // 2:
            return self.newest + max(1, min(round(self.tokens_per_second), self._usable // 2 - 1)), True
        return t, False


class SequentialPositions(TimestampPositions):
    """Positions in order of arrival: a frame starts right behind the newest position, whenever it was seen."""

    def __init__(self, start: int, limit: int, room: int = 0) -> None:
        """Parameters as for TimestampPositions."""
        super().__init__(start, 0.0, limit, room)
        self.newest = start - 1

    def locate(self, stamp: float) -> int:
        """Stamps are not kept in these positions.

        :raises SettingsError: always; the settings that need it are refused when the memory is made.
        """
        raise SettingsError("this model's positions do not come from stamps: set retrieval.positions to consecutive")

    def _next(self, stamp: float) -> tuple[int, bool]:
        """Only a jump backward opens a new segment: a pause takes no positions."""
        jumped = self._anchor_stamp is not None and stamp < self._newest_stamp - JITTER_SECONDS
        return self.newest + 1, jumped


def make_positions(start: int, tokens_per_second: float, limit: int, room: int = 0) -> TimestampPositions:
    """The clock of a model: from stamps, or running where ``tokens_per_second`` is 0."""
    if tokens_per_second:
        return TimestampPositions(start, tokens_per_second, limit, room)
    return SequentialPositions(start, limit, room)
