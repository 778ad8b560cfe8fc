# SPDX-License-Identifier: Apache-2.0
"""Seeded pictures for the vision tests: a textured scene, sensor noise, a thing in it, a shift."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
PATCH = 28
"""Side of a merged patch of a 448 x 336 picture, pixels."""


def scene(seed: int = 0, height: int = 336, width: int = 448) -> Bytes:
    """A wall with some texture, boxes and lines, uint8 [height, width, 3]."""
    random = np.random.default_rng(seed)
    coarse = random.uniform(60, 180, (height // 16, width // 16, 3)).astype(np.float32)
    picture = cv2.GaussianBlur(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), (9, 9), 0)
    for _ in range(12):
        x, y = int(random.integers(0, width - 60)), int(random.integers(0, height - 60))
        size = random.integers(10, 60, 2)
        colour = tuple(float(value) for value in random.uniform(20, 230, 3))
        cv2.rectangle(picture, (x, y), (x + int(size[0]), y + int(size[1])), colour, -1)
    return np.clip(picture, 0, 255).astype(np.uint8)


def with_noise(picture: NDArray[np.generic], deviation: float, seed: int) -> Bytes:
    """The picture with Gaussian sensor noise of this deviation in grey levels."""
    random = np.random.default_rng(seed)
    return np.clip(np.rint(picture + random.normal(0, deviation, picture.shape)), 0, 255).astype(np.uint8)


def shifted(picture: Bytes, right: float, down: float = 0.0) -> Bytes:
    """The picture moved by a fraction of pixels, its border mirrored."""
    matrix = np.array([[1, 0, right], [0, 1, down]], np.float32)
    size = picture.shape[1], picture.shape[0]
    return cv2.warpAffine(picture, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)


def with_thing(picture: Bytes, left: int, top: int, width: int, height: int, colour: tuple[int, int, int]) -> Bytes:
    """The picture with a plain rectangle in it, cut at the border."""
    out = picture.copy()
    out[max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)] = colour
    return out
