"""What changed between two frames: how far things moved, and what no motion explains. OpenCV and numpy only.

Everything is absolute: displacements are pixels, changes are grey levels beyond sensor noise. Nothing is divided by
a frame's own maximum, so that a still camera's noise never turns into motion.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[Any]
"""uint8 (OpenCV's own types are wider)."""
Floats = NDArray[Any]
"""float32."""
Flow = Callable[[Bytes, Bytes], Floats]

NOISE_FACTOR = 2.0
"""Differences below this many standard deviations of the noise are no change (0.05 deviations remain on average)."""
SMALLEST_NOISE = 0.5
"""Noise of the small picture is taken as at least this many grey levels (rounding to bytes)."""
UNRESOLVED = 0.15
"""Displacement in small pixels that neither flow nor resampling resolves; the difference it makes is no change."""
RESOLVED = 0.25
"""Displacement in small pixels below which a block is taken as standing still."""
COARSE = 8
"""Side of the squares of the small picture that one coarse pixel is the mean of."""
OBVIOUS = 20.0
"""Grey levels by which a coarse pixel must differ more than a block so that noise and edges need not be looked at."""
LARGEST_NOISE = 25.0
"""Noise is taken as at most this many grey levels, so that a picture of pure texture cannot hide everything."""


@dataclass(frozen=True)
class SmallFrame:
    """A frame reduced to the size on which frames are compared."""

    colour: Bytes
    """RGB, [h, w, 3]."""
    grey: Bytes
    """Luminance, [h, w]."""
    coarse: Bytes
    """Means over COARSE x COARSE pixels, on which exposure is compared, [rows, columns, 3]."""
    shape: tuple[int, int]
    """(height, width) of the original picture in pixels."""

    @cached_property
    def noise(self) -> Floats:
        """Standard deviation of the sensor noise per channel, [3], grey levels of the small picture."""
        return spatial_noise(self.colour)

    @property
    def scale(self) -> tuple[float, float]:
        """Original pixels per small pixel, (x, y)."""
        return self.shape[1] / self.grey.shape[1], self.shape[0] / self.grey.shape[0]


@dataclass(frozen=True)
class Change:
    """What separates a new frame from the reference."""

    displacement: float
    """Largest displacement of a changed block, in pixels of the original picture."""
    residual: float
    """Largest change of a block that motion does not explain, in grey levels beyond noise."""
    exposure: float
    """Ratio of brightness or contrast, >= 1, whichever way it went."""
    changed: Floats | None
    """Change without any motion taken into account, per pixel of the small picture, grey levels beyond noise; None
    where the coarse picture alone told enough (change_map computes it)."""
    beyond: bool = False
    """True where no displacement that is allowed for explains the change; then no flow was computed."""


def shrink(frame: Bytes, side: int) -> SmallFrame:
    """Reduce a frame so that its longest side has ``side`` pixels; a smaller one keeps its size.

    :param frame: RGB uint8 [height, width, 3]; not kept by reference.
    """
    height, width = frame.shape[:2]
    ratio = min(1.0, side / max(height, width))
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    colour = np.ascontiguousarray(frame)
    while min(colour.shape[1] // 2 - size[0], colour.shape[0] // 2 - size[1]) >= 0:
        # Halving has a fast path; the averages are the same.
        half = colour.shape[1] // 2, colour.shape[0] // 2
        colour = cv2.resize(colour, half, interpolation=cv2.INTER_AREA)
    colour = frame.copy() if ratio == 1.0 else cv2.resize(colour, size, interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(colour, cv2.COLOR_RGB2GRAY)
    return SmallFrame(colour, grey, _coarse(colour), (height, width))


def _coarse(colour: Bytes) -> Bytes:
    size = max(1, colour.shape[1] // COARSE), max(1, colour.shape[0] // COARSE)
    coarse: Bytes = cv2.resize(colour, size, interpolation=cv2.INTER_AREA)
    return coarse


def spatial_noise(colour: Bytes) -> Floats:
    """Noise per channel from one picture: the median response of a kernel that ignores planes and straight edges.

    After J. Immerkaer, Fast noise variance estimation (1996), with the median instead of the mean, so that texture
    on less than half of the picture does not count. Returns float32 [3] standard deviations.
    """
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
    response = cv2.filter2D(colour, cv2.CV_16S, kernel)[::2, ::2].reshape(-1, 3)
    return _median(np.abs(response)) / np.float32(0.6745 * 6.0)


def _median(values: NDArray[np.generic]) -> Floats:
    """Median per column of whole numbers >= 0, finer than a whole number: each stands for its rounding interval."""
    medians = np.empty(values.shape[1], np.float32)
    for channel in range(values.shape[1]):
        below = np.cumsum(np.bincount(values[:, channel]))
        middle = 0.5 * below[-1]
        at = int(np.searchsorted(below, middle))
        before = below[at - 1] if at else 0
        medians[channel] = max(at - 0.5 + (middle - before) / (below[at] - before), 0.0)
    return medians


def make_flow(name: str) -> Flow:
    """Return a function (reference, new: uint8 [h, w]) -> displacement (x, y) in pixels, float32 [h, w, 2].

    :param name: dis_ultrafast, dis_fast, dis_medium (OpenCV's dense inverse search) or farneback (published setting).
    """
    if name == "farneback":
        return lambda reference, new: cv2.calcOpticalFlowFarneback(  # type: ignore[call-overload,no-any-return]
            reference, new, None, 0.5, 3, 15, 3, 5, 1.2, 0
        )
    presets = {
        "dis_ultrafast": cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST,
        "dis_fast": cv2.DISOPTICAL_FLOW_PRESET_FAST,
        "dis_medium": cv2.DISOPTICAL_FLOW_PRESET_MEDIUM,
    }
    search = cv2.DISOpticalFlow.create(presets[name])
    return lambda reference, new: search.calc(reference, new, None)  # type: ignore[call-overload,no-any-return]


def compare(
    reference: SmallFrame, new: SmallFrame, block: int, threshold: float, allowed: float, flow: Flow
) -> Change:
    """Compare two frames of the same size; costs flow only where a block changed and the answer needs it.

    :param block: side of the block over which a change is averaged, small pixels.
    :param threshold: change of a block, in grey levels beyond noise, from which it counts as changed.
    :param allowed: displacement in original pixels that is no news. A change that no displacement up to this one
        explains is returned at once as ``beyond``, without flow.
    """
    light = match_light(reference.coarse, new.coarse)
    reach = math.ceil(allowed / min(new.scale)) + 1
    obvious = _coarse_excess(light, reference, new, math.ceil(reach / COARSE)) - OBVIOUS
    if obvious > threshold:
        return Change(0.0, obvious, light.ratio, None, beyond=True)
    slack = _slack(reference)
    noise = _noise(light, reference.colour, reference, new)
    changed = _excess(light, reference.colour, reference.colour, new.colour, noise, slack)
    blocks = cv2.blur(changed, (block, block))
    if blocks.max() <= threshold:
        return Change(0.0, float(blocks.max()), light.ratio, changed)
    if reach <= block:
        window = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
        darkest, brightest = cv2.erode(reference.colour, window), cv2.dilate(reference.colour, window)
        beyond = cv2.blur(_excess(light, darkest, brightest, new.colour, noise, slack), (block, block)).max()
        if beyond > threshold:
            return Change(0.0, float(beyond), light.ratio, changed, beyond=True)
    # New to reference: the vector at a pixel of the new frame says where it came from, which is what remap needs.
    field = flow(new.grey, cv2.cvtColor(cv2.LUT(reference.colour, light.table(0.0)), cv2.COLOR_RGB2GRAY))
    grid: Floats = np.indices(new.grey.shape).astype(np.float32)
    rows, columns = grid[0], grid[1]
    map_x, map_y = columns + field[..., 0], rows + field[..., 1]
    warped = cv2.remap(reference.colour, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    light = match_light(_coarse(warped), new.coarse)
    noise = np.minimum(noise, _noise(light, warped, reference, new))
    unexplained = cv2.blur(_excess(light, warped, warped, new.colour, noise, slack), (block, block))
    inside = (map_x >= -1) & (map_y >= -1) & (map_x <= columns[0, -1] + 1) & (map_y <= rows[-1, 0] + 1)
    moved = (blocks > threshold) & inside & (unexplained < 0.5 * blocks)
    return Change(_largest_displacement(field, moved, block, new.scale), float(unexplained.max()), light.ratio, changed)


def change_map(reference: SmallFrame, new: SmallFrame) -> Floats:
    """Change without any motion taken into account, grey levels beyond noise, float32 [h, w] of the small picture."""
    light = match_light(reference.coarse, new.coarse)
    noise = _noise(light, reference.colour, reference, new)
    return _excess(light, reference.colour, reference.colour, new.colour, noise, _slack(reference))


def _slack(reference: SmallFrame) -> Bytes:
    """Difference that a displacement of UNRESOLVED pixels makes, uint8 [h, w, 3]."""
    slack: Bytes = cv2.convertScaleAbs(_gradient(reference.colour), alpha=UNRESOLVED)
    return slack


def _coarse_excess(light: Light, reference: SmallFrame, new: SmallFrame, reach: int) -> float:
    """Largest difference of a coarse pixel to all those within ``reach`` of its place in the reference, grey levels."""
    window = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
    table = light.table(0.0)
    low, high = table.copy(), table
    low[:, :3], high[:, 253:] = 0, 255
    above = cv2.subtract(new.coarse, cv2.LUT(cv2.dilate(reference.coarse, window), high))
    below = cv2.subtract(cv2.LUT(cv2.erode(reference.coarse, window), low), new.coarse)
    return float(max(above.max(), below.max()))


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
        levels = np.arange(256, dtype=np.float32)[:, None] * self.gain + self.offset + shift
        return np.clip(np.rint(levels), 0, 255).astype(np.uint8)[None]


def _largest_displacement(field: Floats, moved: NDArray[np.bool_], block: int, scale: tuple[float, float]) -> float:
    """Largest block-mean displacement among the blocks that moved, in original pixels."""
    if not moved.any():
        return 0.0
    mean: Floats = np.asarray(cv2.blur(field, (block, block)))[moved]
    lengths = np.hypot(mean[:, 0] * scale[0], mean[:, 1] * scale[1])
    return float(lengths[np.hypot(mean[:, 0], mean[:, 1]) >= RESOLVED].max(initial=0.0))


def _gradient(colour: Bytes) -> Bytes:
    """Steepest step within one pixel of each and per channel, grey levels, uint8 [h, w, 3]."""
    gradient: Bytes = cv2.morphologyEx(colour, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8))
    return gradient


def match_light(reference: Bytes, new: Bytes) -> Light:
    """Gain and offset per channel from one coarse picture to another of the same size, uint8 [h, w, 3].

    Fitted by reduced major axis regression (the gain is the ratio of the spreads, which motion
    leaves alone), twice more on the half that fits best (which an object leaves alone).
    """
    x, y = reference.reshape(-1, 3).astype(np.float32), new.reshape(-1, 3).astype(np.float32)
    usable = ((x > 4) & (x < 250) & (y > 4) & (y < 250)).all(1)
    if usable.sum() >= 16:
        x, y = x[usable], y[usable]
    gain, offset = _spread_fit(x, y)
    for _ in range(2):
        error = np.abs(x * gain + offset - y).sum(1)
        inside = error <= np.median(error)
        gain, offset = _spread_fit(x[inside], y[inside])
    before, after = x.mean(), (x * gain + offset).mean()
    brightness, contrast = max(after, 1.0) / max(before, 1.0), float(np.median(gain))
    return Light(gain, offset, float(max(brightness, 1 / brightness, contrast, 1 / contrast)))


def _spread_fit(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Gain and offset per channel, [3] each, with which x has the mean and the spread of y; a flat one has gain 1."""
    both = np.stack([x, y])
    means = both.mean(1)
    spreads = np.sqrt(np.maximum((both * both).mean(1) - means * means, 0.0))
    textured = (spreads > 4.0).all(0)
    gain = np.where(textured, spreads[1] / np.maximum(spreads[0], 1e-3), np.float32(1.0)).astype(np.float32)
    return gain, (means[1] - gain * means[0]).astype(np.float32)


def _noise(light: Light, picture: Bytes, reference: SmallFrame, new: SmallFrame) -> Floats:
    """Deviation per channel, [3], of the difference between a (warped) reference picture and the new frame.

    Motion inflates the difference in time, texture the estimate in space; noise is at most the smaller one.
    """
    expected = cv2.LUT(np.ascontiguousarray(picture[::2, ::2]), light.table(0.0))
    difference = cv2.absdiff(expected, np.ascontiguousarray(new.colour[::2, ::2]))
    in_time = _median(difference.reshape(-1, 3)) / 0.6745
    noise = np.minimum(in_time, np.hypot(reference.noise, new.noise))
    return np.clip(noise, SMALLEST_NOISE, LARGEST_NOISE).astype(np.float32)


def _excess(light: Light, darkest: Bytes, brightest: Bytes, new: Bytes, noise: Floats, slack: Bytes) -> Floats:
    """How far the new picture lies outside the reference's range, largest of the channels, float32 [h, w].

    Noise and unresolved displacement are taken off. ``darkest`` and ``brightest`` are the same picture where no
    motion is allowed for. A saturated pixel bounds its true value on one side only.
    """
    low, high = light.table(-NOISE_FACTOR * noise), light.table(NOISE_FACTOR * noise)
    low[:, :3], high[:, 253:] = 0, 255
    above = cv2.subtract(new, cv2.LUT(brightest, high))
    below = cv2.subtract(cv2.LUT(darkest, low), new)
    red, green, blue = cv2.split(cv2.subtract(cv2.max(above, below), slack))
    return np.asarray(cv2.max(cv2.max(red, green), blue), np.float32)
