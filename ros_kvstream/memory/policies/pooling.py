"""Neighbourhood average pooling of per-slot scores on true (t, h, w), for ragged heads, mixed sizes and cameras.

Only slots that exist count: no padding, no missing patch ever pulls an average down.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ros_kvstream.memory.policies.base import LayerSlots

CELLS_PER_SLOT = 4
"""Grid cells that are pooled at a time, per slot of a head; more frames than that go in turns."""
SMALLEST_GRID = 1 << 15
"""Grid cells that are always pooled at once."""


@dataclass(frozen=True)
class Window:
    """Size of a pooling neighbourhood, odd numbers: frames of the same camera that are held, rows, columns."""

    frames: int
    rows: int
    columns: int

    @property
    def is_single(self) -> bool:
        """Whether nothing is pooled."""
        return self.frames == self.rows == self.columns == 1


NO_POOLING = Window(1, 1, 1)


def adaptive_window(scores: Tensor, thresholds: tuple[float, float, float]) -> Window:
    """The window of one layer by the coefficient of variation (standard deviation / mean) of its scores.

    :param scores: [kv_heads, slots]; :param thresholds: ascending. Below the first the scores are even: nothing is
        pooled; then 3, 5 and, from the third on, 7 neighbours along every axis: the more uneven the norms, the more
        single outliers have to be held down by their surroundings.
    """
    spread, mean = torch.std_mean(scores.double(), correction=0)
    variation = float(spread / mean.clamp_min(1e-12))
    size = 1 + 2 * sum(variation >= threshold for threshold in thresholds)
    return Window(size, size, size)


def pool(scores: Tensor, view: LayerSlots, window: Window) -> Tensor:
    """Mean score over the slots of the same head and camera inside the window around each slot.

    :param scores: float32 [kv_heads, slots]. Frames are neighbours in the order in which the head still holds them.
    """
    if window.is_single:
        return scores
    pooled = torch.empty_like(scores)
    for camera in torch.unique(view.cameras).tolist():
        for head in range(scores.shape[0]):
            mine = (view.cameras[head] == camera).nonzero()[:, 0]
            if mine.numel():
                pooled[head, mine] = _pool_one(scores[head, mine], view, head, mine, window)
    return pooled


def _pool_one(scores: Tensor, view: LayerSlots, head: int, mine: Tensor, window: Window) -> Tensor:
    """Pool the slots ``mine`` of one head and camera: scatter on a dense grid, filter sums and counts, gather."""
    _, frame = torch.unique(view.frames[head, mine], return_inverse=True)
    row, column = (view.positions[head, mine, axis].long() for axis in (1, 2))
    row, column = row - row.min(), column - column.min()
    rows, columns, frames = int(row.max()) + 1, int(column.max()) + 1, int(frame.max()) + 1
    cells = (frame * rows + row) * columns + column
    limit = max(SMALLEST_GRID, CELLS_PER_SLOT * mine.numel())
    turn = max(window.frames, limit // (rows * columns))
    reach = window.frames // 2
    pooled = torch.empty_like(scores)
    for start in range(0, frames, turn):
        first, last = max(0, start - reach), min(frames, start + turn + reach)
        inside = ((frame >= first) & (frame < last)).nonzero()[:, 0]
        grid = torch.zeros(2, (last - first) * rows * columns, dtype=scores.dtype, device=scores.device)
        at = cells[inside] - first * rows * columns
        grid[0, at] = scores[inside]
        grid[1, at] = 1.0
        sums, counts = _box_sums(grid.view(2, last - first, rows, columns), window).flatten(1)
        wanted = (frame[inside] >= start) & (frame[inside] < start + turn)
        pooled[inside[wanted]] = (sums[at] / counts[at])[wanted]
    return pooled


def _box_sums(grid: Tensor, window: Window) -> Tensor:
    """Sums over the window around every cell, zeros outside; [channels, frames, rows, columns], axis by axis."""
    for axis, size in ((1, window.frames), (2, window.rows), (3, window.columns)):
        if size == 1:
            continue
        lines = grid.movedim(axis, -1)
        shape = lines.shape
        means = functional.avg_pool1d(lines.reshape(-1, 1, shape[-1]), size, stride=1, padding=size // 2)
        grid = (means * size).view(shape).movedim(-1, axis)
    return grid
