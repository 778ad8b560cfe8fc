# SPDX-License-Identifier: Apache-2.0
"""The frame gate: rejects frames that show nothing new before anything is computed for them. OpenCV and numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ros_kvstream.settings import GateSettings
from ros_kvstream.vision.change import Change, Comparison, block_means, make_flow
from ros_kvstream.vision.frame_check import check_frame
from ros_kvstream.vision.small_frame import Bytes, Floats, SmallFrame

ADAPTATION = 0.2
"""adaptive: change of the thresholds' level by one frame, as natural logarithm."""


@dataclass(frozen=True)
class GateDecision:
    """The gate's decision on one frame."""

    kept: bool
    """Whether the frame is computed; otherwise only the last kept frame's time span grows."""
    reason: str
    """off | first | resized | time_reset | exposure | change | motion | appearance | silence, or redundant (not kept).

    change: larger than any motion below the threshold can cause, so that no flow was computed.
    """
    motion: float
    """Fastest displacement since the newest kept frame, original pixels per second; at least that for ``change``."""
    residual: float
    """Largest change that motion does not explain, grey levels beyond noise, averaged over a block."""


class FrameGate:
    """Compares each frame with the newest kept one. One instance per camera; not thread-safe.

    A frame passes when a block of it moved faster than ``motion``, when a block changed by more than ``residual``
    and no slower motion explains it, when the light changed more than exposure control does (``max_gain``), or
    after ``max_silence`` seconds. Exposure, white balance and sensor noise are compensated first (vision/change.py).
    """

    def __init__(self, settings: GateSettings) -> None:
        self.settings = settings
        self._flow = make_flow(settings.flow)
        self._kept: SmallFrame | None = None
        self._kept_stamp = -math.inf
        self._newest_stamp = -math.inf
        self._compared: Comparison | None = None
        self.level = 1.0
        """Current factor on both thresholds; 1 unless the mode is adaptive."""

    def decide(self, frame: Bytes, stamp: float) -> GateDecision:
        """Decide whether a frame is computed, and store it as the newest kept one if it is.

        :param frame: RGB, uint8 [height, width, 3]; not kept by reference.
        :param stamp: seconds of the frame's header stamp.
        :raises FrameError: see :func:`check_frame`.
        """
        check_frame(frame, stamp)
        if self.settings.mode == "off":
            return GateDecision(True, "off", 0.0, 0.0)
        small = SmallFrame(frame, self.settings.side)
        since = stamp - self._newest_stamp
        self._newest_stamp = stamp
        kept = self._kept
        if kept is None or small.shape != kept.shape or since < 0:
            self._keep(small, stamp)
            self._compared = None
            reason = "first" if kept is None else "resized" if small.shape != kept.shape else "time_reset"
            return GateDecision(True, reason, 0.0, 0.0)
        settings, elapsed = self.settings, self._time(stamp - self._kept_stamp)
        self._compared = Comparison(kept, small)
        change = self._compared.change(
            settings.block, settings.residual * self.level, settings.motion * self.level * elapsed, self._flow
        )
        decision = self._judge(change, stamp - self._kept_stamp)
        if self.settings.mode == "adaptive":
            self._adapt(decision.kept, since)
        if decision.kept:
            self._keep(small, stamp)
        return decision

    def changed_patches(self, grid_rows: int, grid_cols: int) -> Floats | None:
        """Change of the last decided frame against the one kept before it, on the model's patch grid.

        Returns float32 [grid_rows, grid_cols], the largest change within each patch in grey levels beyond noise, or
        None without a frame to compare with. With it, moving and new things are kept whatever their texture.
        """
        if self._compared is None:
            return None
        smooth = block_means(self._compared.changed, 3)
        rows = np.linspace(0, smooth.shape[0], grid_rows, endpoint=False).astype(int)
        columns = np.linspace(0, smooth.shape[1], grid_cols, endpoint=False).astype(int)
        return np.maximum.reduceat(np.maximum.reduceat(smooth, rows, axis=0), columns, axis=1).astype(np.float32)

    def _judge(self, change: Change, elapsed: float) -> GateDecision:
        """Decide on a change within ``elapsed`` seconds."""
        settings = self.settings
        motion = change.displacement / self._time(elapsed)
        reason = "redundant"
        if change.exposure > settings.max_gain:
            reason = "exposure"
        elif change.beyond:
            reason, motion = "change", settings.motion * self.level
        elif motion > settings.motion * self.level:
            reason = "motion"
        elif change.residual > settings.residual * self.level:
            reason = "appearance"
        elif elapsed >= settings.max_silence:
            reason = "silence"
        return GateDecision(reason != "redundant", reason, motion, change.residual)

    def _time(self, elapsed: float) -> float:
        """Seconds by which a displacement is divided."""
        return max(min(elapsed, self.settings.window), 1e-3)

    def _adapt(self, kept: bool, since: float) -> None:
        """Adapt the level so that on average no more frames pass than the target (a quantile tracker)."""
        settings = self.settings
        target = min(1.0, settings.target_rate * since) if settings.target_rate > 0 else settings.target_share
        level = self.level * math.exp(ADAPTATION * (float(kept) - target))
        self.level = min(max(level, 1.0), settings.adapt_range)

    def _keep(self, small: SmallFrame, stamp: float) -> None:
        self._kept, self._kept_stamp = small, stamp
