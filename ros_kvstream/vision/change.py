# SPDX-License-Identifier: Apache-2.0
"""What changed between two frames: displacement, changes that motion does not explain, light. OpenCV and numpy only.

All values are absolute: displacements in pixels, changes in grey levels beyond sensor noise. Nothing is divided by a
frame's own maximum, so that the noise of a still camera is never taken for motion.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from ros_kvstream.vision.small_frame import COARSE, Bytes, Floats, SmallFrame, coarse, medians

Flow = Callable[[Bytes, Bytes], Floats]

NOISE_FACTOR = 2.0
"""Differences below this many standard deviations of the noise do not count (0.05 deviations remain on average)."""
SMALLEST_NOISE = 0.5
"""Noise of the small picture is taken as at least this many grey levels (rounding to bytes)."""
UNRESOLVED = 0.15
"""Displacement in small pixels that neither flow nor resampling resolves; the difference it makes does not count."""
RESOLVED = 0.25
"""Displacement in small pixels below which a block counts as still."""
OBVIOUS = 12.0
"""Grey levels by which a coarse pixel must differ more than a block for noise and edges to be irrelevant."""
LARGEST_NOISE = 25.0
"""Noise is taken as at most this many grey levels, so that pure texture cannot hide every change."""
LEVELS = np.repeat(np.arange(256, dtype=np.float32)[None, :, None], 3, axis=2)
"""All grey levels of three channels, [1, 256, 3]."""
DARKEST, BRIGHTEST = 5, 249
"""Pixels beyond these may be saturated and are ignored where there are others."""
LEAST_PIXELS = 16
"""Minimum number of coarse pixels for a fit."""
TEXTURED = 4.0
"""Standard deviation in grey levels from which a channel's gain can be fitted."""


@dataclass(frozen=True)
class Change:
    """Difference of a new frame from the reference."""

    displacement: float
    """Largest displacement of a changed block, in pixels of the original picture."""
    residual: float
    """Largest change of a block that motion does not explain, in grey levels beyond noise."""
    exposure: float
    """Ratio of brightness or contrast, always >= 1."""
    beyond: bool = False
    """True where no allowed displacement explains the change; then no flow was computed."""


def make_flow(name: str) -> Flow:
    """Return a function (reference, new: uint8 [h, w]) -> displacement (x, y) in pixels, float32 [h, w, 2].

    :param name: dis_ultrafast, dis_fast, dis_medium (OpenCV's dense inverse search) or farneback (published setting).
    """
    if name == "farneback":
        return lambda reference, new: cv2.calcOpticalFlowFarneback(  # type: ignore[call-overload,no-any-return]
            reference, new, None, 0.5, 3, 15, 3, 5, 1.2, 0
        )
    preset = getattr(cv2, f"DISOPTICAL_FLOW_PRESET_{name.removeprefix('dis_').upper()}")
    search = cv2.DISOpticalFlow.create(preset)
    return lambda reference, new: search.calc(reference, new, None)  # type: ignore[call-overload,no-any-return]


class Comparison:
    """A new frame and the newest kept one, of the same size; each part is computed once, on first use."""

    def __init__(self, reference: SmallFrame, new: SmallFrame) -> None:
        self.reference = reference
        self.new = new

    @cached_property
    def light(self) -> Light:
        """Change of light from the reference to the new frame."""
        return match_light(self.reference.coarse, self.new.coarse)

    @cached_property
    def noise(self) -> Floats:
        """Standard deviation per channel of the difference without any change, [3], grey levels."""
        return _noise(self.light, self.reference.colour, self.reference, self.new)

    @cached_property
    def slack(self) -> Bytes:
        """Difference that a displacement of UNRESOLVED pixels makes, uint8 [h, w, 3]."""
        return cv2.convertScaleAbs(_gradient(self.reference.colour), alpha=UNRESOLVED)

    @cached_property
    def changed(self) -> Bytes:
        """Change without motion compensation, grey levels beyond noise, uint8 [h, w]."""
        still = self.reference.colour
        return _excess(self.light, still, still, self.new.colour, self.noise, self.slack)

    def coarse_excess(self, reach: int) -> float:
        """Largest difference of a coarse pixel to all within ``reach`` of it in the reference, grey levels."""
        window = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
        reference, new = self.reference.coarse, self.new.coarse
        table = self.light.table(0.0)
        low, high = table.copy(), table
        low[:, :3], high[:, 253:] = 0, 255
        above = cv2.subtract(new, cv2.LUT(cv2.dilate(reference, window), high))
        below = cv2.subtract(cv2.LUT(cv2.erode(reference, window), low), new)
        return float(cv2.max(above, below).max())

    def excess_beyond(self, reach: int, block: int) -> float:
        """Largest change of a block that no displacement up to ``reach`` small pixels explains."""
        window = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
        darkest, brightest = cv2.erode(self.reference.colour, window), cv2.dilate(self.reference.colour, window)
        excess = _excess(self.light, darkest, brightest, self.new.colour, self.noise, self.slack)
        return float(block_means(excess, block).max())

    def warped(self, flow: Flow) -> tuple[Floats, Bytes, NDArray[np.bool_]]:
        """The flow, [h, w, 2], what it leaves unexplained, uint8 [h, w], and where its vectors stay in the picture."""
        reference, new = self.reference, self.new
        # From new to reference: the vector at a pixel of the new frame points to its origin, as remap needs it.
        field = flow(new.grey, cv2.cvtColor(cv2.LUT(reference.colour, self.light.table(0.0)), cv2.COLOR_RGB2GRAY))
        grid: Floats = np.indices(new.grey.shape).astype(np.float32)
        rows, columns = grid[0], grid[1]
        map_x, map_y = columns + field[..., 0], rows + field[..., 1]
        moved = cv2.remap(reference.colour, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        light = match_light(coarse(moved), new.coarse)
        noise = np.minimum(self.noise, _noise(light, moved, reference, new))
        inside = (map_x >= -1) & (map_y >= -1) & (map_x <= columns[0, -1] + 1) & (map_y <= rows[-1, 0] + 1)
        return field, _excess(light, moved, moved, new.colour, noise, self.slack), inside

    def change(self, block: int, threshold: float, allowed: float, flow: Flow) -> Change:
        """Compare the two frames; flow is computed only where a block changed and the result depends on it.

        :param block: side of the block over which a change is averaged, small pixels.
        :param threshold: change of a block, in grey levels beyond noise, from which it counts as changed.
        :param allowed: displacement in original pixels that is not novel. A change that no displacement up to this one
            explains is returned as ``beyond``, without flow.
        """
        reach = math.ceil(allowed / min(self.new.scale)) + 1
        coarse_excess = self.coarse_excess(math.ceil(reach / COARSE))
        if coarse_excess - OBVIOUS > threshold:
            return Change(0.0, coarse_excess - OBVIOUS, self.light.ratio, beyond=True)
        near = reach <= block
        likely = near and coarse_excess > threshold  # beyond is tried first; whatever is beyond is also a change
        if likely and (beyond := self.excess_beyond(reach, block)) > threshold:
            return Change(0.0, beyond, self.light.ratio, beyond=True)
        blocks = block_means(self.changed, block)
        if blocks.max() <= threshold:
            return Change(0.0, float(blocks.max()), self.light.ratio)
        if near and not likely and (beyond := self.excess_beyond(reach, block)) > threshold:
            return Change(0.0, beyond, self.light.ratio, beyond=True)
        field, unexplained, inside = self.warped(flow)
        rest = block_means(unexplained, block)
        moved = (blocks > threshold) & inside & (rest < 0.5 * blocks)
        displacement = _largest_displacement(field, moved, block, self.new.scale)
        return Change(displacement, float(rest.max()), self.light.ratio)


def block_means(values: Bytes, block: int) -> Floats:
    """Means over squares of ``block`` pixels around each pixel, float32, of uint8 [h, w]."""
    return cv2.boxFilter(values, cv2.CV_32F, (block, block))


def _largest_displacement(field: Floats, moved: NDArray[np.bool_], block: int, scale: tuple[float, float]) -> float:
    """Largest block-mean displacement among the blocks that moved, in original pixels."""
    if not moved.any():
        return 0.0
    mean: Floats = np.asarray(cv2.blur(field, (block, block)))[moved]
    lengths = np.hypot(mean[:, 0] * scale[0], mean[:, 1] * scale[1])
    return float(lengths[np.hypot(mean[:, 0], mean[:, 1]) >= RESOLVED].max(initial=0.0))


def _gradient(colour: Bytes) -> Bytes:
    """Largest difference among neighbouring pixels per channel, grey levels, uint8 [h, w, 3]."""
    return cv2.morphologyEx(colour, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8))


def _noise(light: Light, picture: Bytes, reference: SmallFrame, new: SmallFrame) -> Floats:
    """Deviation per channel, [3], of the difference between a (warped) reference picture and the new frame.

    Motion increases the difference in time, texture the estimate in space; noise is at most the smaller one.
    """
    expected = cv2.LUT(np.ascontiguousarray(picture[::2, ::2]), light.table(0.0))
    difference = cv2.absdiff(expected, np.ascontiguousarray(new.colour[::2, ::2]))
    in_time = medians(difference) / np.float32(0.6745)
    if in_time.max() <= SMALLEST_NOISE:
        return np.full(3, SMALLEST_NOISE, np.float32)
    noise = np.minimum(in_time, np.hypot(reference.noise, new.noise))
    return np.clip(noise, SMALLEST_NOISE, LARGEST_NOISE).astype(np.float32)


def _excess(light: Light, darkest: Bytes, brightest: Bytes, new: Bytes, noise: Floats, slack: Bytes) -> Bytes:
    """Distance of the new picture from the reference's range, largest of the channels, uint8 [h, w].

    Noise and unresolved displacement are subtracted. ``darkest`` and ``brightest`` are the same picture where no
    motion is allowed. A saturated pixel bounds its true value on one side only.
    """
    low, high = light.table(-NOISE_FACTOR * noise), light.table(NOISE_FACTOR * noise)
    low[:, :3], high[:, 253:] = 0, 255
    above = cv2.subtract(new, cv2.LUT(brightest, high))
    below = cv2.subtract(cv2.LUT(darkest, low), new)
    red, green, blue = cv2.split(cv2.subtract(cv2.max(above, below), slack))
    return cv2.max(cv2.max(red, green), blue)


# -- light ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Light:
    """Change of exposure and white balance between two frames, per channel."""

    gain: Floats
    offset: Floats
    """[3], grey levels, as the gain."""
    ratio: float
    """Ratio of brightness or contrast, always >= 1."""

    def table(self, shift: Floats | float) -> Bytes:
        """Look-up table from grey levels of the reference to the new frame's, plus a shift, [1, 256, 3]."""
        levels = LEVELS * self.gain + (self.offset + shift).astype(np.float32)
        return np.rint(levels.clip(0, 255, out=levels), out=levels).astype(np.uint8)


def match_light(reference: Bytes, new: Bytes) -> Light:
    """Fit gain and offset per channel from one coarse picture to another of the same size, uint8 [h, w, 3].

    Reduced major axis regression (the gain is the ratio of the deviations, which motion does not affect), repeated
    twice on the half of the pixels that fits best, which excludes objects.
    """
    within = (DARKEST,) * 3, (BRIGHTEST,) * 3
    usable = cv2.bitwise_and(cv2.inRange(reference, *within), cv2.inRange(new, *within))
    if cv2.countNonZero(usable) < LEAST_PIXELS:
        usable = np.full(usable.shape, 255, np.uint8)
    mean, gain, offset = _fit_light(reference, new, usable)
    found = new.astype(np.float32)
    for _ in range(2):
        expected = cv2.LUT(reference, (LEVELS * gain + offset).astype(np.float32))
        error = cv2.transform(cv2.absdiff(expected, found), np.ones((1, 3), np.float32))  # sum of channels
        among = np.sort(error[usable > 0])
        median = 0.5 * (among[(len(among) - 1) // 2] + among[len(among) // 2])
        _, gain, offset = _fit_light(reference, new, usable & ((error <= median) * np.uint8(255)))
    before, after = float(mean.mean()), float((mean * gain + offset).mean())
    brightness, contrast = max(after, 1.0) / max(before, 1.0), float(np.sort(gain)[1])
    ratio = max(brightness, 1 / brightness, contrast, 1 / contrast)
    return Light(gain.astype(np.float32), offset.astype(np.float32), ratio)


def _fit_light(reference: Bytes, new: Bytes, where: Bytes) -> tuple[Floats, Floats, Floats]:
    """The reference's mean, and gain and offset per channel that map its mean and deviation to the new picture's.

    float64 [3] each, over the pixels where the mask is not zero; a flat channel has gain 1.
    """
    (mean, spread), (new_mean, new_spread) = (cv2.meanStdDev(picture, mask=where) for picture in (reference, new))
    textured = (spread > TEXTURED) & (new_spread > TEXTURED)
    gain = np.where(textured, new_spread / np.maximum(spread, 1e-3), 1.0)
    return mean[:, 0], gain[:, 0], (new_mean - gain * mean)[:, 0]
