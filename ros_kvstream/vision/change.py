"""What changed between two frames: how far things moved, and what no motion explains. OpenCV and numpy only.

Everything is absolute: displacements are pixels, changes are grey levels beyond sensor noise. Nothing is divided by
a frame's own maximum, so that a still camera's noise never turns into motion.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from ros_kvstream.vision.light import Light, match_light
from ros_kvstream.vision.small_frame import COARSE, Bytes, Floats, SmallFrame, coarse, medians

Flow = Callable[[Bytes, Bytes], Floats]

NOISE_FACTOR = 2.0
"""Differences below this many standard deviations of the noise are no change (0.05 deviations remain on average)."""
SMALLEST_NOISE = 0.5
"""Noise of the small picture is taken as at least this many grey levels (rounding to bytes)."""
UNRESOLVED = 0.15
"""Displacement in small pixels that neither flow nor resampling resolves; the difference it makes is no change."""
RESOLVED = 0.25
"""Displacement in small pixels below which a block is taken as standing still."""
OBVIOUS = 12.0
"""Grey levels by which a coarse pixel must differ more than a block so that noise and edges need not be looked at."""
LARGEST_NOISE = 25.0
"""Noise is taken as at most this many grey levels, so that a picture of pure texture cannot hide everything."""


@dataclass(frozen=True)
class Change:
    """What separates a new frame from the reference."""

    displacement: float
    """Largest displacement of a changed block, in pixels of the original picture."""
    residual: float
    """Largest change of a block that motion does not explain, in grey levels beyond noise."""
    exposure: float
    """Ratio of brightness or contrast, >= 1, whichever way it went."""
    beyond: bool = False
    """True where no displacement that is allowed for explains the change; then no flow was computed."""


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


class Comparison:
    """A new frame beside the reference, both of the same size; each part is computed once, when asked for."""

    def __init__(self, reference: SmallFrame, new: SmallFrame) -> None:
        """:param reference: the newest kept frame."""
        self.reference = reference
        self.new = new

    @cached_property
    def light(self) -> Light:
        """How the reference's light turns into the new frame's."""
        return match_light(self.reference.coarse, self.new.coarse)

    @cached_property
    def noise(self) -> Floats:
        """Deviation per channel of what differs without any change, [3], grey levels."""
        return _noise(self.light, self.reference.colour, self.reference, self.new)

    @cached_property
    def slack(self) -> Bytes:
        """Difference that a displacement of UNRESOLVED pixels makes, uint8 [h, w, 3]."""
        return cv2.convertScaleAbs(_gradient(self.reference.colour), alpha=UNRESOLVED)

    @cached_property
    def changed(self) -> Bytes:
        """Change without any motion taken into account, grey levels beyond noise, uint8 [h, w]."""
        still = self.reference.colour
        return _excess(self.light, still, still, self.new.colour, self.noise, self.slack)

    def coarse_excess(self, reach: int) -> float:
        """Largest difference of a coarse pixel to all within ``reach`` of its place in the reference, grey levels."""
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
        # New to reference: the vector at a pixel of the new frame says where it came from, which is what remap needs.
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
        """What separates the two; costs flow only where a block changed and the answer needs it.

        :param block: side of the block over which a change is averaged, small pixels.
        :param threshold: change of a block, in grey levels beyond noise, from which it counts as changed.
        :param allowed: displacement in original pixels that is no news. A change that no displacement up to this one
            explains is returned at once as ``beyond``, without flow.
        """
        reach = math.ceil(allowed / min(self.new.scale)) + 1
        coarse_excess = self.coarse_excess(math.ceil(reach / COARSE))
        if coarse_excess - OBVIOUS > threshold:
            return Change(0.0, coarse_excess - OBVIOUS, self.light.ratio, beyond=True)
        tried = False
        if reach <= block and coarse_excess > threshold:  # likely beyond; what is beyond has also changed
            tried, beyond = True, self.excess_beyond(reach, block)
            if beyond > threshold:
                return Change(0.0, beyond, self.light.ratio, beyond=True)
        blocks = block_means(self.changed, block)
        if blocks.max() <= threshold:
            return Change(0.0, float(blocks.max()), self.light.ratio)
        if reach <= block and not tried:
            beyond = self.excess_beyond(reach, block)
            if beyond > threshold:
                return Change(0.0, beyond, self.light.ratio, beyond=True)
        field, unexplained, inside = self.warped(flow)
        rest = block_means(unexplained, block)
        moved = (blocks > threshold) & inside & (rest < 0.5 * blocks)
        displacement = _largest_displacement(field, moved, block, self.new.scale)
        return Change(displacement, float(rest.max()), self.light.ratio)


def block_means(values: Bytes, block: int) -> Floats:
    """Means over squares of ``block`` pixels around each pixel, float32, of uint8 [h, w]."""
    means: Floats = cv2.boxFilter(values, cv2.CV_32F, (block, block))
    return means


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


def _noise(light: Light, picture: Bytes, reference: SmallFrame, new: SmallFrame) -> Floats:
    """Deviation per channel, [3], of the difference between a (warped) reference picture and the new frame.

    Motion inflates the difference in time, texture the estimate in space; noise is at most the smaller one.
    """
    expected = cv2.LUT(np.ascontiguousarray(picture[::2, ::2]), light.table(0.0))
    difference = cv2.absdiff(expected, np.ascontiguousarray(new.colour[::2, ::2]))
    in_time = medians(difference) / np.float32(0.6745)
    if in_time.max() <= SMALLEST_NOISE:
        return np.full(3, SMALLEST_NOISE, np.float32)
    noise = np.minimum(in_time, np.hypot(reference.noise, new.noise))
    return np.clip(noise, SMALLEST_NOISE, LARGEST_NOISE).astype(np.float32)


def _excess(light: Light, darkest: Bytes, brightest: Bytes, new: Bytes, noise: Floats, slack: Bytes) -> Bytes:
    """How far the new picture lies outside the reference's range, largest of the channels, uint8 [h, w].

    Noise and unresolved displacement are taken off. ``darkest`` and ``brightest`` are the same picture where no
    motion is allowed for. A saturated pixel bounds its true value on one side only.
    """
    low, high = light.table(-NOISE_FACTOR * noise), light.table(NOISE_FACTOR * noise)
    low[:, :3], high[:, 253:] = 0, 255
    above = cv2.subtract(new, cv2.LUT(brightest, high))
    below = cv2.subtract(cv2.LUT(darkest, low), new)
    red, green, blue = cv2.split(cv2.subtract(cv2.max(above, below), slack))
    return cv2.max(cv2.max(red, green), blue)
