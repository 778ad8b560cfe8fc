"""From header stamps to temporal positions, and re-basing them before they leave the trained range (DESIGN promise 3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

JITTER_SECONDS = 1.0
"""Stamps may run backward by this much (several cameras, one queue) without opening a new segment."""


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


class PositionClock:
    """Temporal position of each stamp: seconds x tokens per second from an anchor, rounded.

    A jump backward (a looping bag) or forward beyond half of the range opens a new segment that starts one second
    after the newest position, so that positions never run backward and order is kept.
    """

    def __init__(self, start: int, tokens_per_second: float, limit: int) -> None:
        """:param start: position of the first frame; :param limit: first position that must not be reached."""
        self.start = start
        self.tokens_per_second = tokens_per_second
        self.limit = limit
        self.newest = start
        self.segment = 0
        self.rebases = 0
        self._anchor_stamp: float | None = None
        self._anchor_t = start
        self._newest_stamp = 0.0

    def advance(self, stamp: float) -> int:
        """The temporal position of a frame with this stamp; remembers it as the newest moment."""
        if self._anchor_stamp is None:
            self._anchor(stamp, self.newest)
        elif self._jumped(stamp):
            self._anchor(stamp, self.newest + max(1, round(self.tokens_per_second)))
            self.segment += 1
        t = max(self.start, self._position(stamp))
        self.newest = max(self.newest, t)
        self._newest_stamp = max(self._newest_stamp, stamp) if t >= self.newest else self._newest_stamp
        return t

    def _anchor(self, stamp: float, t: int) -> None:
        self._anchor_stamp, self._anchor_t, self._newest_stamp = stamp, t, stamp

    def _position(self, stamp: float) -> int:
        assert self._anchor_stamp is not None
        return self._anchor_t + round((stamp - self._anchor_stamp) * self.tokens_per_second)

    def _jumped(self, stamp: float) -> bool:
        backward = stamp < self._newest_stamp - JITTER_SECONDS
        return backward or self._position(stamp) - self.newest > (self.limit - self.start) // 2

    def rebase(self, room: int) -> Rebase | None:
        """The re-basing that is due before ``room`` more positions can be used, or None while they fit.

        Newest goes to the middle of the range, so that it is rare: once in every half range.
        """
        if self.newest + room < self.limit:
            return None
        middle = self.start + (self.limit - self.start) // 2
        shift = self.newest - middle
        exact = middle - (middle - self.start) // 2
        change = Rebase(self.start, exact + shift, shift)
        self._anchor_t -= shift
        self.newest = middle
        self.rebases += 1
        return change
