# SPDX-License-Identifier: Apache-2.0
"""One time axis for the frames of all cameras, whose header stamps may be of different clocks."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)

JITTER_SECONDS = 1.0
"""Stamps may go backward by this much (several cameras in one queue) without counting as a jump."""


class StreamClock:
    """Stream time of each frame: its header stamp plus an offset of its camera.

    Jumps are judged per camera. A jump backward (a looping bag) or far forward (a clock that was set) opens a new
    segment that starts one second after the newest frame: the order of arrival is kept. A camera whose first stamp does
    not fit those of the others is of another clock: it starts at the newest frame's time, and a warning names it.
    """

    def __init__(self, longest_step: float) -> None:
        """:param longest_step: seconds without a frame that count as a jump forward."""
        self.segment = 0
        """Number of jumps so far."""
        self._longest_step = longest_step
        self._offsets: dict[str, float] = {}
        self._stamps: dict[str, float] = {}
        self._zero: float | None = None
        self._newest = 0.0

    def time(self, stamp: float, camera: str) -> float:
        """Seconds of a frame on the time axis, which starts at the first frame's stamp; call it once per frame.

        :param stamp: header stamp, seconds.
        """
        if self._zero is None:
            self._zero = self._newest = stamp
        offset = self._offset(stamp, camera)
        known = self._offsets.pop(camera, offset) == offset
        self._offsets[camera] = offset  # at the end: the latest clock is tried first
        self._stamps[camera] = max(stamp, self._stamps.get(camera, stamp)) if known else stamp
        self._newest = max(self._newest, stamp + offset)
        return stamp + offset

    def seconds(self, time: float) -> float:
        """Seconds since the first frame, for prompts that contain the time."""
        return max(0.0, time - (self._zero or 0.0))

    def past(self, stamp: float, camera: str) -> float:
        """Time of a past stamp in the present segment of its camera."""
        return stamp + self._offsets.get(camera, 0.0)

    def _offset(self, stamp: float, camera: str) -> float:
        own = self._offsets.get(camera)
        if own is not None and stamp >= self._stamps[camera] - JITTER_SECONDS and self._is_near(stamp + own):
            return own
        for other in [*reversed(self._offsets.values())] or [0.0]:
            if stamp + other >= self._newest - JITTER_SECONDS and self._is_near(stamp + other):
                return other
        if own is None:
            first = next(iter(self._offsets))
            log.warning(
                "The clocks that stamp the cameras %r and %r differ by %.1f s: frames of %r count as seen when they "
                "arrive. Questions with since and until compare header stamps. Synchronize the clocks.",
                first, camera, abs(stamp - self._newest), camera,
            )  # fmt: skip
            return self._newest - stamp
        self.segment += 1
        return self._newest + min(1.0, self._longest_step / 2) - stamp

    def _is_near(self, time: float) -> bool:
        return time - self._newest < self._longest_step

    def state_dict(self) -> dict[str, Any]:
        """Everything that does not follow from the settings; values that JSON can hold."""
        cameras = {camera: [offset, self._stamps[camera]] for camera, offset in self._offsets.items()}
        return {"segment": self.segment, "cameras": cameras, "zero": self._zero, "newest": self._newest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``."""
        self.segment, self._zero, self._newest = state["segment"], state["zero"], state["newest"]
        self._offsets = {camera: offset for camera, (offset, _) in state["cameras"].items()}
        self._stamps = {camera: stamp for camera, (_, stamp) in state["cameras"].items()}
