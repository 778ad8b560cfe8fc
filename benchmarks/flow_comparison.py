"""Which optical flow the frame gate uses, by measured quality and cost: known displacements on given pictures."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ros_kvstream.vision.change import make_flow
from ros_kvstream.vision.small_frame import SmallFrame

Picture = NDArray[np.uint8]

FLOWS = ("dis_ultrafast", "dis_fast", "dis_medium", "farneback")
NOISE = 6.0
"""Standard deviation of the sensor noise that is added, grey levels."""
SHIFT = 4.0
"""Displacement of the whole picture or of the object, small pixels."""
MARGIN = 12
"""Border of the small picture that is not measured, where the displaced picture has no counterpart, pixels."""


def compare_flows(pictures: Sequence[Picture], side: int = 160, seed: int = 0) -> dict[str, dict[str, float]]:
    """Endpoint errors and time of each flow.

    :param pictures: RGB uint8 [height, width, 3]; each is displaced as a whole, and a thing of two patches (an eighth
        by a twelfth of the picture, cut from another one) is moved over it.
    :param side: longest side of the small picture, pixels.

    Returns flow -> ``pan_error`` and ``object_error`` (median endpoint error in small pixels, averaged over the
    pictures) and ``ms`` (median time of one pair on one core).
    """
    random = np.random.default_rng(seed)
    pans = [_pan(picture, index, side, random) for index, picture in enumerate(pictures)]
    others = [*pictures[1:], pictures[0]]
    things = [_thing(*pair, side, random) for pair in zip(pictures, others, strict=True)]
    results = {}
    for name in FLOWS:
        flow = make_flow(name)
        flow(*pans[0][:2])
        pan_errors: list[float] = []
        object_errors: list[float] = []
        times: list[float] = []
        for first, second, way in pans:
            started = time.process_time()
            field = flow(first, second)
            times.append(time.process_time() - started)
            error = np.hypot(field[..., 0] - way[0], field[..., 1] - way[1])
            pan_errors.append(float(np.median(error[MARGIN:-MARGIN, MARGIN:-MARGIN])))
        for first, second, right, (top, left, height, width) in things:
            field = flow(first, second)[top : top + height, left : left + width]
            object_errors.append(float(np.median(np.hypot(field[..., 0] - right, field[..., 1]))))
        results[name] = {
            "pan_error": statistics.fmean(pan_errors),
            "object_error": statistics.fmean(object_errors),
            "ms": 1e3 * statistics.median(times),
        }
    return results


def _small(picture: NDArray[Any], side: int, random: np.random.Generator) -> NDArray[Any]:
    noisy = np.clip(picture + random.normal(0, NOISE, picture.shape), 0, 255).astype(np.uint8)
    return SmallFrame(noisy, side).grey


def _pan(
    picture: Picture, index: int, side: int, random: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any], tuple[float, float]]:
    """The picture and itself displaced by SHIFT small pixels, in another direction each time."""
    height, width = picture.shape[:2]
    scale = max(1.0, max(height, width) / side)
    way = SHIFT * np.cos(2.4 * index), SHIFT * np.sin(2.4 * index)
    matrix = np.array([[1, 0, way[0] * scale], [0, 1, way[1] * scale]], np.float32)
    moved = cv2.warpAffine(picture, matrix, (width, height), borderMode=cv2.BORDER_REFLECT)
    return _small(picture, side, random), _small(moved, side, random), (float(way[0]), float(way[1]))


def _thing(
    picture: Picture, other: Picture, side: int, random: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any], float, tuple[int, int, int, int]]:
    """A thing of two patches that moves right by SHIFT small pixels over the still picture; (.., its small place)."""
    height, width = picture.shape[:2]
    scale = max(1.0, max(height, width) / side)
    tall, wide = height // 12, width // 8
    piece = cv2.resize(other, (width, height))[height // 3 : height // 3 + tall, width // 8 : width // 8 + wide]
    top, left, way = height // 2, width // 3, round(SHIFT * scale)
    first, second = picture.copy(), picture.copy()
    first[top : top + tall, left : left + wide] = piece
    second[top : top + tall, left + way : left + way + wide] = piece
    # The part that the thing covers both times, off its edges.
    place = [round(value / scale) for value in (top, left + way, tall, wide - way)]
    inner = place[0] + 1, place[1] + 1, max(1, place[2] - 2), max(1, place[3] - 2)
    return _small(first, side, random), _small(second, side, random), way / scale, inner
