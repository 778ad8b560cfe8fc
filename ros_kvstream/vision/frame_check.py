# SPDX-License-Identifier: Apache-2.0
"""Validation of frames: everything that is not a usable RGB picture is rejected."""

from __future__ import annotations

import math

import numpy as np

from ros_kvstream.errors import FrameError

MAX_FRAME_SIDE = 16384
"""Longest side of a frame in pixels."""
MAX_ASPECT = 200
"""Longest side over shortest; the processors of the Qwen families reject more."""


def check_frame(frame: object, stamp: float = 0.0) -> None:
    """Raise FrameError unless this is RGB uint8 [height, width, 3] of usable size with a finite stamp in seconds."""
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        found = f"shape {getattr(frame, 'shape', None)}, type {getattr(frame, 'dtype', type(frame).__name__)}"
        raise FrameError(f"frame of {found}: must be RGB uint8 [height, width, 3]")
    height, width = frame.shape[:2]
    if not (1 <= height <= MAX_FRAME_SIDE and 1 <= width <= MAX_FRAME_SIDE):
        raise FrameError(f"frame of {width} x {height} pixels: each side must be 1 to {MAX_FRAME_SIDE}")
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise FrameError(f"frame of {width} x {height} pixels: sides may differ by a factor of {MAX_ASPECT} at most")
    if not math.isfinite(stamp):
        raise FrameError(f"stamp {stamp}: must be a finite number of seconds")
