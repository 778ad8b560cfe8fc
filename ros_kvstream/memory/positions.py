# SPDX-License-Identifier: Apache-2.0
"""Positions along the first axis, re-based before they leave the range that the model reads well.

Families whose positions are times use TimestampPositions; families whose positions count tokens or frames use
SequentialPositions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.stream_clock import JITTER_SECONDS

EARLY = 0.25
"""Share of a position by which a frame may be early: times are rounded down after it is added."""
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
    """Temporal position of each frame: its stream time x tokens per second from an anchor, rounded down."""

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
        self.rebases = 0
        self._anchor_time: float | None = None
        self._anchor_position = start

    @property
    def limit(self) -> int:
        """First position that no frame takes."""
        return self.start + self._usable

    @property
    def largest_span(self) -> int:
        """Most positions that one frame may take, so that it fits behind the newest after a re-basing."""
        return self._usable // 2 - 1

    @property
    def longest_step(self) -> float:
        """Seconds between two frames from which on the positions between them would take half of the range."""
        return self._usable // 2 / self.tokens_per_second

    def due(self, time: float, span: int = 1) -> bool:
        """Whether a re-basing is due before a frame with this stream time, seconds.

        :param span: positions that the frame takes, at most ``largest_span``.
        """
        return self._next(time) + span - 1 >= self.limit

    def rebase(self, time: float, span: int, slots: Tensor) -> Rebase:
        """The re-basing that makes room for a frame; apply it to all positions in use, then call ``advance``.

        :param time, span: as for ``due``; :param slots: slots held at each position from 0 to ``newest``, int64 [n].
        """
        needed = self._next(time) + span - 1 - self.newest
        newest = self.start + min(int(FILLED * self._usable), self._usable - 1 - needed)
        exact = max(span, int(EXACT * self._usable), math.ceil(JITTER_SECONDS * self.tokens_per_second))
        shift, recent = self.newest - newest, self.newest - min(exact, (newest - self.start) // 2)
        old = slots[:recent].nonzero()[:, 0]
        new = draw_together(old, slots[old], recent, self.start, recent - shift, int(slots.sum()))
        self._anchor_position -= shift
        self.newest = newest
        self.rebases += 1
        return Rebase(recent, shift, old, new)

    def advance(self, time: float, span: int = 1) -> int:
        """Assign the next frame's ``span`` positions and return the first."""
        t = self._next(time)
        if self._anchor_time is None:
            self._anchor_time, self._anchor_position = time, t
        self.newest = max(self.newest, t + span - 1)
        return t

    def locate(self, time: float) -> int:
        """The position of a past time, clamped to [start, newest]."""
        return min(max(self._position(time), self.start), self.newest)

    def state_dict(self) -> dict[str, Any]:
        """Everything that does not follow from the settings; values that JSON can hold."""
        return {
            "newest": self.newest,
            "rebases": self.rebases,
            "anchor_time": self._anchor_time,
            "anchor_position": self._anchor_position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``."""
        self.newest, self.rebases = state["newest"], state["rebases"]
        self._anchor_time, self._anchor_position = state["anchor_time"], state["anchor_position"]

    def _position(self, time: float) -> int:
        elapsed = time - (self._anchor_time or 0.0)
        return self._anchor_position + math.floor(elapsed * self.tokens_per_second + EARLY)

    def _next(self, time: float) -> int:
        """The position of the next frame."""
        return self.newest if self._anchor_time is None else max(self.start, self._position(time))


class SequentialPositions(TimestampPositions):
    """Positions in order of arrival: a frame starts right behind the newest position, whatever its stamp."""

    def __init__(self, start: int, limit: int, headroom: int = 0) -> None:
        """Parameters as for TimestampPositions."""
        super().__init__(start, 0.0, limit, headroom)
        self.newest = start - 1

    def locate(self, time: float) -> int:
        """Not available: these positions do not depend on time.

        :raises SettingsError: always.
        """
        raise SettingsError("this model's positions do not come from stamps: set retrieval.positions to consecutive")

    @property
    def longest_step(self) -> float:
        """Unlimited: a pause takes no positions."""
        return math.inf

    def _next(self, time: float) -> int:
        """Right behind the newest."""
        return self.newest + 1


def make_positions(start: int, tokens_per_second: float, limit: int, headroom: int = 0) -> TimestampPositions:
    """Timestamp positions, or sequential positions where the model's ``tokens_per_second`` is 0."""
    if tokens_per_second:
        return TimestampPositions(start, tokens_per_second, limit, headroom)
    return SequentialPositions(start, limit, headroom)
