"""How one frame's exposure and white balance turn into another's. OpenCV and numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from ros_kvstream.vision.small_frame import Bytes, Floats

LEVELS = np.repeat(np.arange(256, dtype=np.float32)[None, :, None], 3, axis=2)
"""All grey levels of three channels, [1, 256, 3]."""
SUM = np.ones((1, 3), np.float32)
"""Adds three channels (cv2.transform)."""
DARKEST, BRIGHTEST = 5, 249
"""Pixels beyond these may be saturated; they tell nothing about exposure where there are others."""
LEAST_PIXELS = 16
"""Coarse pixels that a fit needs at least."""
TEXTURED = 4.0
"""Spread in grey levels from which a channel's gain can be told."""


@dataclass(frozen=True)
class Light:
    """How one frame's exposure and white balance turn into another's, per channel."""

    gain: Floats
    """[3]."""
    offset: Floats
    """[3], grey levels."""
    ratio: float
    """Ratio of brightness or contrast, >= 1, whichever way it went."""

    def table(self, shift: Floats | float) -> Bytes:
        """Look-up table of the reference's grey levels as the new frame would show them, plus a shift, [1, 256, 3]."""
        levels = LEVELS * self.gain + (self.offset + shift).astype(np.float32)
        return np.rint(levels.clip(0, 255, out=levels), out=levels).astype(np.uint8)


def match_light(reference: Bytes, new: Bytes) -> Light:
    """Gain and offset per channel from one coarse picture to another of the same size, uint8 [h, w, 3].

    Fitted by reduced major axis regression (the gain is the ratio of the spreads, which motion
    leaves alone), twice more on the half that fits best (which an object leaves alone).
    """
    within = (DARKEST,) * 3, (BRIGHTEST,) * 3
    usable = cv2.bitwise_and(cv2.inRange(reference, *within), cv2.inRange(new, *within))
    if cv2.countNonZero(usable) < LEAST_PIXELS:
        usable = np.full(usable.shape, 255, np.uint8)
    mean, gain, offset = _spread_fit(reference, new, usable)
    found = new.astype(np.float32)
    for _ in range(2):
        expected = cv2.LUT(reference, (LEVELS * gain + offset).astype(np.float32))
        error = cv2.transform(cv2.absdiff(expected, found), SUM)
        among = np.sort(error[usable > 0])
        median = 0.5 * (among[(len(among) - 1) // 2] + among[len(among) // 2])
        _, gain, offset = _spread_fit(reference, new, usable & ((error <= median) * np.uint8(255)))
    before, after = float(mean.mean()), float((mean * gain + offset).mean())
    brightness, contrast = max(after, 1.0) / max(before, 1.0), float(np.sort(gain)[1])
    ratio = max(brightness, 1 / brightness, contrast, 1 / contrast)
    return Light(gain.astype(np.float32), offset.astype(np.float32), ratio)


def _spread_fit(reference: Bytes, new: Bytes, where: Bytes) -> tuple[Floats, Floats, Floats]:
    """The reference's mean, and the gain and offset per channel with which it has the new picture's mean and spread.

    float64 [3] each, over the pixels where the mask is not zero; a flat channel has gain 1.
    """
    (mean, spread), (new_mean, new_spread) = (cv2.meanStdDev(picture, mask=where) for picture in (reference, new))
    textured = (spread > TEXTURED) & (new_spread > TEXTURED)
    gain = np.where(textured, new_spread / np.maximum(spread, 1e-3), 1.0)
    return mean[:, 0], gain[:, 0], (new_mean - gain * mean)[:, 0]
