# SPDX-License-Identifier: Apache-2.0
"""A frame reduced to the size at which frames are compared. OpenCV and numpy only."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[Any]
"""uint8 (OpenCV's own types are wider)."""
Floats = NDArray[Any]
"""float32."""

COARSE = 8
"""Side of the square of the small picture whose mean is one coarse pixel."""


class SmallFrame:
    """A reduced frame; parts are computed on first use. Holds at most four times the small picture's pixels."""

    def __init__(self, frame: Bytes, side: int) -> None:
        """Reduce a frame so that its longest side has ``side`` pixels; a smaller one keeps its size.

        :param frame: RGB uint8 [height, width, 3]; not kept by reference.
        """
        height, width = frame.shape[:2]
        ratio = min(1.0, side / max(height, width))
        self.shape = height, width
        """(height, width) of the original picture in pixels."""
        self.size = max(1, round(width * ratio)), max(1, round(height * ratio))
        """(width, height) of the small picture."""
        halved = _halve(np.ascontiguousarray(frame), self.size)
        self._halved = halved.copy() if np.may_share_memory(halved, frame) else halved

    @property
    def scale(self) -> tuple[float, float]:
        """Original pixels per small pixel, (x, y)."""
        return self.shape[1] / self.size[0], self.shape[0] / self.size[1]

    @cached_property
    def colour(self) -> Bytes:
        """RGB, [h, w, 3]."""
        if self._halved.shape[1::-1] == self.size:
            return self._halved
        return cv2.resize(self._halved, self.size, interpolation=cv2.INTER_AREA)

    @cached_property
    def grey(self) -> Bytes:
        """Luminance, [h, w]."""
        return cv2.cvtColor(self.colour, cv2.COLOR_RGB2GRAY)

    @cached_property
    def coarse(self) -> Bytes:
        """Means over COARSE x COARSE small pixels, for comparing exposure, [rows, columns, 3]."""
        return coarse(self._halved, self.size)

    @cached_property
    def noise(self) -> Floats:
        """Standard deviation of the sensor noise per channel, float32 [3], grey levels of the small picture, up to 63.

        The median response of a kernel that ignores gradients and straight edges. After J. Immerkaer, Fast noise
        variance estimation (1996), with the median instead of the mean, so that texture on less than half of the
        picture does not count.
        """
        kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
        response = cv2.filter2D(self.colour, cv2.CV_16S, kernel)[::2, ::2]
        return medians(cv2.convertScaleAbs(response)) / np.float32(0.6745 * 6.0)


def coarse(picture: Bytes, size: tuple[int, int] | None = None) -> Bytes:
    """Means over COARSE x COARSE pixels of the picture resized to ``size`` (width, height; None: not resized)."""
    width, height = size or picture.shape[1::-1]
    wanted = max(1, width // COARSE), max(1, height // COARSE)
    if size is not None and picture.shape[1::-1] != size:
        picture = _halve(picture, (4 * wanted[0], 4 * wanted[1]))
    return cv2.resize(picture, wanted, interpolation=cv2.INTER_AREA)


def _halve(picture: Bytes, size: tuple[int, int]) -> Bytes:
    """Halve a picture while it is at least of ``size``: equal to one step of averaging, and much faster."""
    while picture.shape[1] // 2 >= size[0] and picture.shape[0] // 2 >= size[1]:
        half = picture.shape[1] // 2, picture.shape[0] // 2
        picture = cv2.resize(picture, half, interpolation=cv2.INTER_AREA)
    return picture


def medians(values: Bytes) -> Floats:
    """Median per channel of uint8 [h, w, 3], interpolated within the rounding interval of its value."""
    counts = [cv2.calcHist([values], [channel], None, [256], [0, 256]) for channel in range(3)]
    below = np.concatenate(counts, axis=1).cumsum(axis=0, dtype=np.float32)
    middle = 0.5 * below[-1]
    at = (below < middle).sum(axis=0)
    channels = np.arange(3)
    before = np.where(at > 0, below[at - 1, channels], 0.0)
    median = at - 0.5 + (middle - before) / (below[at, channels] - before)
    return np.maximum(median, 0.0).astype(np.float32)
