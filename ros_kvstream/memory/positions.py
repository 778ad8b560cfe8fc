# SPDX-License-Identifier: Apache-2.0
"""Positions along the first axis, re-based before they leave the range that the model reads well.

Families whose positions are times use TimestampPositions; families whose positions count tokens or frames use
SequentialPositions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ros_kvstream.errors import SettingsError

JITTER_SECONDS = 1.0
"""Stamps may go backward by this much (several cameras in one queue) without opening a new segment."""

SMALLEST_RANGE = 16
"""Fewest temporal positions for frames; with fewer, almost every frame would cause a re-basing."""


FILLED, EXACT = 0.95, 0.05
"""Shares of the range: what a re-basing leaves in use, and the newest part of it, which keeps its distances."""


@dataclass(frozen=True)
class Rebase:
    """A change of all temporal positions: recent ones are shifted, older ones drawn together."""

    pivot: int
    """Positions from here on move by ``-shift``."""
    shift: int
    old: Tensor
    """Older positions in use, int64 [n], rising."""
    new: Tensor
    """Where they move to, int64 [n], never larger and in the same order."""

    def __call__(self, t: Tensor) -> Tensor:
        """Old t -> new t, elementwise; t is in use or recent."""
        if not len(self.old):
            return t - self.shift
        index = torch.searchsorted(self.old.to(t.device), t.long().clamp(max=self.pivot - 1), right=True) - 1
        drawn = self.new.to(t.device)[index.clamp_(min=0)].to(t.dtype)
        return torch.where(t >= self.pivot, t - self.shift, drawn)


def draw_together(old: Tensor, slots: Tensor, recent: int, start: int, end: int, total: int) -> Tensor:
    """The rule for older moments: new positions in [start, end), in order, for those in use.

    Each moment keeps a distance to the next one in proportion to the slots held of it, at most the present one: as the
    policy thins out a moment with its age, it takes less room. A moment moves only where newer ones need its room, and
    only away from them, so that its keys are rotated rarely however long the stream.

    :param old: positions in use from ``start`` to below ``recent``, int64 [n], rising; :param slots: slots held at
        each; :param total: slots of all moments, recent ones included.
    """
    gaps = torch.diff(old, append=old.new_tensor([recent])).double()
    steps = torch.minimum(gaps, slots.double() * ((end - start) / max(1, total)))
    to_end = steps.flip(0).cumsum(0).flip(0)
    pushed = (old + to_end).flip(0).cummin(0).values.flip(0).clamp(max=float(end)) - to_end
    return (pushed + 1e-6).floor().long().clamp(start, end - 1)


class TimestampPositions:
    """Temporal position of each stamp: seconds x tokens per second from an anchor, rounded.

    A jump backward (a looping bag) or far forward (a clock that was set) opens a new segment that starts one second
    after the newest position: the order of arrival is kept, and positions stay in range.
    """

    def __init__(self, start: int, tokens_per_second: float, limit: int, headroom: int = 0) -> None:
        """Positions of frames run from ``start`` to below ``limit - headroom``.

        :param headroom: positions kept free behind the newest frame, for the question and its answer.
        :raises SettingsError: when fewer than SMALLEST_RANGE positions are left for frames.
        """
        self._usable = limit - start - headroom
        if self._usable < SMALLEST_RANGE:
            raise SettingsError(
                f"position limit = {limit}: {start} prompt positions and {headroom} for question and answer leave "
                f"{self._usable} for frames, at least {SMALLEST_RANGE} are needed. "
                "Lower memory.max_question_tokens or memory.max_answer_tokens."
            )
        self.start = start
        self.tokens_per_second = tokens_per_second
        self.newest = start
        self.segment = 0
        self.rebases = 0
        self._anchor_stamp: float | None = None
        self._anchor_position = start
        self._newest_stamp = 0.0
        self._zero_stamp: float | None = None
        self._seconds = 0.0

    @property
    def limit(self) -> int:
        """First position that no frame takes."""
        return self.start + self._usable

    @property
    def largest_span(self) -> int:
        """Most positions that one frame may take, so that it fits behind the newest after a re-basing."""
        return self._usable // 2 - 1

    def seconds(self, stamp: float) -> float:
        """Seconds since the start of the stream, for prompts that contain the time; call it once per frame, in order.

        After a jump backward the count continues one second after the newest frame.
        """
        if self._zero_stamp is None:
            self._zero_stamp = stamp
        elif stamp - self._zero_stamp < self._seconds - JITTER_SECONDS:
            self._zero_stamp = stamp - self._seconds - 1.0
        elapsed = max(0.0, stamp - self._zero_stamp)
        self._seconds = max(self._seconds, elapsed)
        return elapsed

    def due(self, stamp: float, span: int = 1) -> bool:
        """Whether a re-basing is due before a frame with this stamp.

        :param span: positions that the frame takes, at most ``largest_span``.
        """
        return self._next(stamp)[0] + span - 1 >= self.limit

    def rebase(self, stamp: float, span: int, slots: Tensor) -> Rebase:
        """The re-basing that makes room for a frame; apply it to all positions in use, then call ``advance``.

        :param stamp, span: as for ``due``; :param slots: slots held at each position from 0 to ``newest``, int64 [n].
        """
        needed = self._next(stamp)[0] + span - 1 - self.newest
        newest = self.start + min(int(FILLED * self._usable), self._usable - 1 - needed)
        exact = max(span, int(EXACT * self._usable), round(JITTER_SECONDS * self.tokens_per_second))
        shift, recent = self.newest - newest, self.newest - min(exact, (newest - self.start) // 2)
        old = slots[:recent].nonzero()[:, 0]
        new = draw_together(old, slots[old], recent, self.start, recent - shift, int(slots.sum()))
        self._anchor_position -= shift
        self.newest = newest
        self.rebases += 1
        return Rebase(recent, shift, old, new)

    def advance(self, stamp: float, span: int = 1) -> int:
        """Assign the next frame's ``span`` positions and return the first."""
        t, jumped = self._next(stamp)
        if self._anchor_stamp is None or jumped:
            self.segment += int(jumped)
            self._anchor_stamp, self._anchor_position, self._newest_stamp = stamp, t, stamp
        self._newest_stamp = max(self._newest_stamp, stamp)
        self.newest = max(self.newest, t + span - 1)
        return t

    def locate(self, stamp: float) -> int:
        """The position of a past stamp in the present segment, clamped to [start, newest]."""
        t = self._anchor_position + round((stamp - (self._anchor_stamp or 0.0)) * self.tokens_per_second)
        return min(max(t, self.start), self.newest)

    def state_dict(self) -> dict[str, Any]:
        """Everything that does not follow from the settings; values that JSON can hold."""
        return {
            "newest": self.newest,
            "segment": self.segment,
            "rebases": self.rebases,
            "anchor_stamp": self._anchor_stamp,
            "anchor_position": self._anchor_position,
            "newest_stamp": self._newest_stamp,
            "zero_stamp": self._zero_stamp,
            "seconds": self._seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``."""
        self.newest, self.segment, self.rebases = state["newest"], state["segment"], state["rebases"]
        self._anchor_stamp, self._anchor_position = state["anchor_stamp"], state["anchor_position"]
        self._newest_stamp, self._zero_stamp = state["newest_stamp"], state["zero_stamp"]
        self._seconds = state["seconds"]

    def _next(self, stamp: float) -> tuple[int, bool]:
        """The position of a frame with this stamp, and whether it opens a new segment."""
        if self._anchor_stamp is None:
            return self.newest, False
        t = max(self.start, self._anchor_position + round((stamp - self._anchor_stamp) * self.tokens_per_second))
        backward = stamp < self._newest_stamp - JITTER_SECONDS
        if backward or t - self.newest >= self._usable // 2:
            return self.newest + max(1, min(round(self.tokens_per_second), self._usable // 2 - 1)), True
        return t, False


class SequentialPositions(TimestampPositions):
    """Positions in order of arrival: a frame starts right behind the newest position, whatever its stamp."""

    def __init__(self, start: int, limit: int, headroom: int = 0) -> None:
        """Parameters as for TimestampPositions."""
        super().__init__(start, 0.0, limit, headroom)
        self.newest = start - 1

    def locate(self, stamp: float) -> int:
        """Not available: these positions do not depend on stamps.

        :raises SettingsError: always.
        """
        raise SettingsError("this model's positions do not come from stamps: set retrieval.positions to consecutive")

    def _next(self, stamp: float) -> tuple[int, bool]:
        """Only a jump backward opens a new segment; a pause takes no positions."""
        jumped = self._anchor_stamp is not None and stamp < self._newest_stamp - JITTER_SECONDS
        return self.newest + 1, jumped


def make_positions(start: int, tokens_per_second: float, limit: int, headroom: int = 0) -> TimestampPositions:
    """Timestamp positions, or sequential positions where the model's ``tokens_per_second`` is 0."""
    if tokens_per_second:
        return TimestampPositions(start, tokens_per_second, limit, headroom)
    return SequentialPositions(start, limit, headroom)
