# SPDX-License-Identifier: Apache-2.0
"""Saliency of patches: edges and local colour variance on the model's own patch grid.

The map is absolute (grey levels, comparable between frames and cameras), never divided by the frame's own maximum: a
blank wall has no salient patch, even when it fills the picture. OpenCV and numpy only.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import FrameError
from ros_kvstream.settings import SaliencySettings
from ros_kvstream.vision.frame_check import check_frame
from ros_kvstream.vision.small_frame import Bytes, Floats

Mask = NDArray[np.bool_]


def saliency_map(frame: Bytes, grid_rows: int, grid_cols: int, resized_hw: tuple[int, int]) -> Floats:
    """Saliency of each merged patch: mean edge strength plus deviation of the LAB colour within the patch.

    :param frame: RGB uint8 [height, width, 3].
    :param resized_hw: (height, width) in pixels to which the model resizes the frame before it cuts patches; must be
        divisible by the grid.
    :raises FrameError: for an unusable frame, or a size that the grid does not divide.

    Returns float32 [grid_rows, grid_cols] in grey levels. Both parts are computed on a picture smoothed over
    3 x 3 pixels, on which sensor noise of deviation s adds about 0.4 s.
    """
    check_frame(frame)
    height, width = resized_hw
    if min(grid_rows, grid_cols) < 1 or height % grid_rows or width % grid_cols or min(height, width) < 1:
        raise FrameError(f"resized size {resized_hw} is not divisible into {grid_rows} x {grid_cols} patches.")
    picture = np.ascontiguousarray(frame)
    if picture.shape[:2] != (height, width):
        shrinks = height * width < picture.shape[0] * picture.shape[1]
        picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    lab = cv2.cvtColor(cv2.blur(picture, (3, 3)), cv2.COLOR_RGB2LAB)
    return _patch_mean(_edges(lab[..., 0]), grid_rows, grid_cols) + _deviation(lab, grid_rows, grid_cols)


def salient_patches(saliency: Floats, settings: SaliencySettings, changed: Floats | None = None) -> Mask:
    """Select patches: the salient ones, their neighbours, and those that changed (``novel``: only the last).

    :param saliency: float32 [rows, cols] of saliency_map.
    :param changed: change of each patch since the newest kept frame, float32 [rows, cols] in grey levels beyond noise
        (FrameGate.changed_patches); a changed patch counts as salient, so that a moving thing keeps its patches
        whatever its texture; None without an earlier frame.

    Returns bool [rows, cols], True where a patch is kept; at least one is.
    """
    if settings.mode == "off" or (settings.mode == "novel" and changed is None):
        return np.ones(saliency.shape, bool)
    salient = saliency >= settings.threshold
    if changed is not None:
        moved = changed >= settings.threshold
        salient = moved if settings.mode == "novel" else salient | moved
    kept = _guarded(salient, settings)
    missing = _fewest_kept(kept.size, settings) - int(kept.sum())
    if missing > 0:
        # Stable: of equally salient patches the first in raster order are added.
        order = np.argsort(np.where(kept, -np.inf, saliency).reshape(-1) * -1, kind="stable")
        kept.reshape(-1)[order[:missing]] = True
    return kept


def novel_patches(changed: Floats, settings: SaliencySettings) -> Mask | None:
    """Select as ``salient_patches`` in mode ``novel``, without the map; None where the map is needed.

    The map only decides which patches are added when too few are kept.
    """
    kept = _guarded(changed >= settings.threshold, settings)
    return kept if kept.sum() >= _fewest_kept(kept.size, settings) else None


def _guarded(salient: Mask, settings: SaliencySettings) -> Mask:
    """The salient patches and their neighbours."""
    side = 2 * settings.guard + 1
    return cv2.dilate(salient.astype(np.uint8), np.ones((side, side), np.uint8)) > 0


def _fewest_kept(patches: int, settings: SaliencySettings) -> int:
    return patches - min(int(settings.max_pruned * patches), patches - 1)


def write_overlay(
    picture: Bytes, path: str | Path, settings: SaliencySettings, grid: tuple[int, int], resized_hw: tuple[int, int]
) -> dict[str, float]:
    """Draw the saliency on a picture: patches that are left out are darkened, each with its value.

    :param picture: BGR uint8 [height, width, 3]; :param path: picture to write; the suffix sets the format.
    :param grid: (rows, columns) of merged patches; :param resized_hw: (height, width) after the model's resize.
    :raises FrameError: when the picture cannot be written.

    Returns rows, columns, kept_share, and the least and greatest value.
    """
    saliency = saliency_map(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), *grid, resized_hw)
    kept = salient_patches(saliency, settings)
    if not cv2.imwrite(str(path), _draw(picture, saliency, kept)):
        raise FrameError(f"{path}: cannot be written; check the folder and the suffix.")
    return {
        "rows": float(grid[0]), "columns": float(grid[1]), "kept_share": float(kept.mean()),
        "least": float(saliency.min()), "greatest": float(saliency.max()),
    }


def _draw(picture: Bytes, saliency: Floats, kept: Mask) -> Bytes:
    """The picture with pruned patches darkened, a grid, and each patch's saliency as a number."""
    rows, columns = saliency.shape
    cell = max(44, round(picture.shape[1] / columns))
    canvas = cv2.resize(picture, (columns * cell, rows * cell), interpolation=cv2.INTER_CUBIC)
    shade = cv2.resize(kept.astype(np.uint8), (columns * cell, rows * cell), interpolation=cv2.INTER_NEAREST)
    canvas[shade == 0] = canvas[shade == 0] // 4
    canvas[::cell], canvas[:, ::cell] = 90, 90
    for row in range(rows):
        for column in range(columns):
            at = column * cell + 4, row * cell + cell - 6
            colour = (80, 255, 255) if kept[row, column] else (160, 160, 255)
            text = f"{saliency[row, column]:.0f}" if saliency[row, column] >= 10 else f"{saliency[row, column]:.1f}"
            cv2.putText(canvas, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 3, cv2.LINE_AA)
            cv2.putText(canvas, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.42, colour, 1, cv2.LINE_AA)
    return canvas


def _edges(lightness: Bytes) -> Floats:
    """Steepness of the lightness per pixel, grey levels per pixel, float32 [h, w] (Scharr, both directions)."""
    lightness = np.ascontiguousarray(lightness)
    across = cv2.Scharr(lightness, cv2.CV_32F, 1, 0, scale=1 / 32)
    down = cv2.Scharr(lightness, cv2.CV_32F, 0, 1, scale=1 / 32)
    return np.asarray(cv2.magnitude(across, down), np.float32)


def _patch_mean(values: Floats, rows: int, cols: int) -> Floats:
    """Mean of each patch, [rows, cols, ...]; exact because the grid divides the picture."""
    return np.asarray(cv2.resize(values, (cols, rows), interpolation=cv2.INTER_AREA), np.float32)


def _deviation(lab: Bytes, rows: int, cols: int) -> Floats:
    """Square root of the summed variances of L, a and b within each patch, [rows, cols]."""
    values = lab.astype(np.float32)
    mean = _patch_mean(values, rows, cols)
    variance = _patch_mean(values * values, rows, cols) - mean * mean
    return np.asarray(np.sqrt(np.maximum(variance, 0.0).sum(-1)), np.float32)
