# SPDX-License-Identifier: Apache-2.0
"""Pictures of the patrol world: rooms as panoramas, objects as masks, at any integer multiple of 56 pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

NATIVE_SIZE = 56
"""Pixels a side of the picture that the tiny model sees."""
QUADRANT = NATIVE_SIZE // 2
PANORAMA_WIDTH = 4 * NATIVE_SIZE
"""Width of a room's 360-degree panorama, native pixels; its left and right edges join."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 25, 30),
    "green": (20, 170, 50),
    "blue": (30, 60, 225),
    "yellow": (245, 225, 20),
    "orange": (250, 125, 10),
    "purple": (150, 35, 190),
    "white": (250, 250, 250),
    "black": (8, 8, 8),
}
SHAPES = ("cone", "ball", "box", "tyre", "cross", "star", "kite", "pipe")
PLACES = ("top left", "top right", "bottom left", "bottom right")
ROOMS = ("hall", "kitchen", "office", "lab", "garage", "garden", "library", "workshop")
NUMBERS = ("one", "two", "three")

_DETAIL = 4
"""Oversampling of native pictures, which are then averaged."""

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Sighting:
    """Objects of one kind, in view at one place of the picture from frame ``first`` to frame ``last`` inclusive."""

    shape: str
    colour: str
    place: str
    """Quadrant of the picture, one of PLACES."""
    number: int
    room: str
    first: int
    last: int
    shift: tuple[int, int]
    """Offset (x, y) from the centre of the quadrant, native pixels."""


def _paint(base: tuple[int, int, int], weight: Array) -> Array:
    """Muted base colour, brightened or darkened by up to 40 grey levels by a weight in -1 .. 1."""
    return np.asarray(base, np.float32) + 40.0 * weight[..., None]


_PAINTERS: dict[str, Callable[[Array, Array], Array]] = {
    "hall": lambda x, y: _paint((150, 135, 115), np.where(y > 38, -0.8, 0.3) + 0.5 * (np.mod(x, 28) < 5)),
    "kitchen": lambda x, y: _paint((125, 150, 150), np.where(np.mod(x // 7 + y // 7, 2) == 0, 0.6, -0.5)),
    "office": lambda x, y: _paint((120, 125, 155), np.sin(x * (2 * np.pi / 8))),
    "lab": lambda x, y: _paint((150, 160, 165), -1.0 * ((np.mod(x, 14) < 2) | (np.mod(y, 14) < 2)) + 0.4),
    "garage": lambda x, y: _paint((90, 90, 95), np.where(np.mod(x + y, 16) < 8, 0.6, -0.6)),
    "garden": lambda x, y: _paint(
        (100, 135, 95), np.where(y < 16, 0.9, 0.9 * (np.sin(x * (2 * np.pi / 16)) * np.sin(y * (2 * np.pi / 16))))
    ),
    "library": lambda x, y: _paint(
        (130, 100, 80), np.where(np.mod(y, 14) < 3, -0.9, np.where(np.mod(x * 7 // 4, 5) < 2, 0.5, 0.0))
    ),
    "workshop": lambda x, y: _paint(
        (160, 130, 125), np.where((np.mod(x, 28) - 14) ** 2 + (np.mod(y, 28) - 14) ** 2 < 70, -0.8, 0.3)
    ),
}
"""Wall of each room as a function of the native pixel coordinates."""


@lru_cache(maxsize=64)
def panorama(room: str, scale: int) -> NDArray[np.uint8]:
    """360-degree panorama of a room: uint8 [56 * scale, 224 * scale, 3]."""
    fine = scale if scale > 1 else _DETAIL
    y, x = np.mgrid[0 : NATIVE_SIZE * fine, 0 : PANORAMA_WIDTH * fine].astype(np.float32) / fine
    picture = np.clip(_PAINTERS[room](x, y), 0, 255).astype(np.uint8)
    if fine != scale:
        size = (PANORAMA_WIDTH * scale, NATIVE_SIZE * scale)
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.uint8)
    return picture


_BAR = np.array([(-0.3, -1), (0.3, -1), (0.3, 1), (-0.3, 1)])
_STAR_ANGLES = -np.pi / 2 + np.arange(10) * np.pi / 5
_STAR_RADII = np.where(np.arange(10) % 2 == 0, 1.05, 0.42)
_POLYGONS = {
    "cone": (np.array([(0, -1), (1, 1), (-1, 1)]),),
    "box": (np.array([(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),),
    "kite": (np.array([(0, -1), (0.75, 0), (0, 1), (-0.75, 0)]),),
    "pipe": (_BAR,),
    "cross": (_BAR[:, ::-1], _BAR),
    "star": (_STAR_RADII[:, None] * np.stack([np.cos(_STAR_ANGLES), np.sin(_STAR_ANGLES)], -1),),
}
"""Corners of each shape around its centre, for half the size 1."""


def _draw(canvas: NDArray[np.uint8], shape: str, centre: tuple[float, float], size: float) -> None:
    """Fill one shape of the given outer size around its centre; both in pixels of the canvas."""
    at, half = np.asarray(centre), size / 2
    for points in _POLYGONS.get(shape, ()):
        cv2.fillPoly(canvas, [np.round(at + half * points).astype(np.int32)], 255)
    if shape in ("ball", "tyre"):
        middle = (round(centre[0]), round(centre[1]))
        cv2.circle(canvas, middle, round(half), 255, -1)
        if shape == "tyre":
            cv2.circle(canvas, middle, round(half * 0.5), 0, -1)


_LAYOUTS: tuple[tuple[float, tuple[tuple[float, float], ...]], ...] = (
    (20.0, ((14.0, 14.0),)),
    (12.5, ((7.5, 9.0), (20.5, 19.0))),
    (11.0, ((7.5, 8.0), (20.5, 8.0), (14.0, 20.5))),
)
"""Size and centres of one, two and three objects, native pixels within a quadrant."""


@lru_cache(maxsize=256)
def object_mask(shape: str, number: int, scale: int) -> Array:
    """Coverage of each pixel of a quadrant by the objects: float32 [28 * scale, 28 * scale] in 0 .. 1."""
    fine = 8 * scale
    canvas = np.zeros((QUADRANT * fine, QUADRANT * fine), np.uint8)
    size, centres = _LAYOUTS[number - 1]
    for x, y in centres:
        _draw(canvas, shape, (x * fine, y * fine), size * fine)
    small = cv2.resize(canvas, (QUADRANT * scale, QUADRANT * scale), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32) / 255.0
