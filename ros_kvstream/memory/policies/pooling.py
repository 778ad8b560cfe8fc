# SPDX-License-Identifier: Apache-2.0
"""Value norms as a score, and their average over neighbouring patches by true (t, h, w).

Only slots that exist are averaged, so that heads may hold any slots, frames may differ in size, and borders and missing
patches do not lower an average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ros_kvstream.memory.policies.base import LayerSlots, RecentFirst
from ros_kvstream.settings import Change, require, require_finite, setting

CELLS_PER_SLOT = 4
"""Grid cells that are pooled at a time, per slot of a head; more frames than that are pooled in several steps."""
SMALLEST_GRID = 1 << 15
"""Grid cells that are always pooled at once."""


@dataclass(frozen=True)
class ValueNormPolicy(RecentFirst):
    """A policy that goes by value norms."""

    pooling: str = setting(
        "none",
        "Pooling of value norms over the neighbours of a patch in frames, rows and columns: none, or adaptive (the "
        "window grows with the layer's coefficient of variation, so that single outliers count less).",
        choices=("none", "adaptive"), change=Change.RUNNING,
    )  # fmt: skip
    pooling_thresholds: tuple[float, float, float] = setting(
        (0.1, 0.2, 0.4),
        "With pooling = adaptive: coefficients of variation from which 3, 5 and 7 neighbours along each axis are "
        "averaged, ascending.",
        change=Change.RUNNING,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        name, steps = f"memory.{self.name}.pooling_thresholds", self.pooling_thresholds
        require(isinstance(steps, (tuple, list)) and len(steps) == 3, name, steps, "three numbers")
        for step in steps:
            require_finite(name, step, 0.0, 1e6)
        require(list(steps) == sorted(steps), name, steps, "ascending")
        object.__setattr__(self, "pooling_thresholds", tuple(steps))

    def value_norms(self, slots: LayerSlots) -> Tensor:
        """Value norms, pooled as set, float32 [kv_heads, slots]."""
        if self.pooling == "none":
            return slots.value_norms
        norms = torch.nan_to_num(slots.value_norms, nan=0.0, posinf=torch.finfo(torch.float32).max)
        return pool(norms, slots, adaptive_window(norms, self.pooling_thresholds))


def adaptive_window(scores: Tensor, thresholds: tuple[float, float, float]) -> int:
    """Return the window of one layer, 1, 3, 5 or 7, by the coefficient of variation of its scores.

    :param scores: [kv_heads, slots]; :param thresholds: ascending; each that is reached adds 2 to the window.
    """
    deviation, mean = torch.std_mean(scores.double(), correction=0)
    variation = float(deviation / mean.clamp_min(1e-12))
    return 1 + 2 * sum(variation >= threshold for threshold in thresholds)


def pool(scores: Tensor, slots: LayerSlots, window: int) -> Tensor:
    """Mean score of the slots of the same head and camera in a window around each slot.

    :param scores: float32 [kv_heads, slots]; :param window: odd, along frames, rows and columns. Frames are neighbours
        in the order in which the head holds them.
    """
    if window == 1:
        return scores
    pooled = torch.empty_like(scores)
    for camera in torch.unique(slots.cameras).tolist():
        for head in range(scores.shape[0]):
            mine = (slots.cameras[head] == camera).nonzero()[:, 0]
            if mine.numel():
                pooled[head, mine] = _pool_one(scores[head, mine], slots, head, mine, window)
    return pooled


def _pool_one(scores: Tensor, slots: LayerSlots, head: int, mine: Tensor, window: int) -> Tensor:
    """Pool the slots ``mine`` of one head and camera: scatter on a dense grid, filter sums and counts, gather."""
    _, frame = torch.unique(slots.frames[head, mine], return_inverse=True)
    row, column = (slots.positions[head, mine, axis].long() for axis in (1, 2))
    row, column = row - row.min(), column - column.min()
    rows, columns, frames = int(row.max()) + 1, int(column.max()) + 1, int(frame.max()) + 1
    cells = (frame * rows + row) * columns + column
    limit = max(SMALLEST_GRID, CELLS_PER_SLOT * mine.numel())
    step = max(window, limit // (rows * columns))
    reach = window // 2
    pooled = torch.empty_like(scores)
    for start in range(0, frames, step):
        first, last = max(0, start - reach), min(frames, start + step + reach)
        inside = ((frame >= first) & (frame < last)).nonzero()[:, 0]
        grid = torch.zeros(2, (last - first) * rows * columns, dtype=scores.dtype, device=scores.device)
        at = cells[inside] - first * rows * columns
        grid[0, at] = scores[inside]
        grid[1, at] = 1.0
        sums, counts = _box_sums(grid.view(2, last - first, rows, columns), window).flatten(1)
        wanted = (frame[inside] >= start) & (frame[inside] < start + step)
        pooled[inside[wanted]] = (sums[at] / counts[at])[wanted]
    return pooled


def _box_sums(grid: Tensor, window: int) -> Tensor:
    """Sums over the window around every cell, zeros outside; [channels, frames, rows, columns], axis by axis."""
    for axis in (1, 2, 3):
        lines = grid.movedim(axis, -1)
        shape = lines.shape
        means = functional.avg_pool1d(lines.reshape(-1, 1, shape[-1]), window, stride=1, padding=window // 2)
        grid = (means * window).view(shape).movedim(-1, axis)
    return grid
