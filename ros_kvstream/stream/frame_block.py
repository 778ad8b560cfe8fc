# SPDX-License-Identifier: Apache-2.0
"""Frames that wait to be prefilled together, and which two of them share one temporal grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.models.base import Frame

LONGEST_PAIR_SECONDS = 2.0
"""Frames further apart never share a grid: the first would wait too long for its partner."""


@dataclass
class PendingGrid:
    """One temporal grid that has not been prefilled: one frame, or two of the same camera and size."""

    frame_id: int
    """Id of its frame record; the second frame extends the record of the first."""
    camera: str
    grid: tuple[int, int]
    """Rows and columns of visual tokens."""
    stamp: float
    """Seconds of the first frame's header stamp."""
    frames: tuple[Frame, ...]
    seconds: tuple[float, ...]
    """Stream time of each frame, seconds."""
    kept: Tensor | None
    """Patches to prefill, bool [rows * columns]; None for all."""

    @property
    def mean_seconds(self) -> float:
        """Mean stream time of the frames, which the model families write beside a grid."""
        return sum(self.seconds) / len(self.seconds)

    @property
    def patches_kept(self) -> int:
        """Number of patches to prefill."""
        return self.grid[0] * self.grid[1] if self.kept is None else int(self.kept.sum())

    def join(self, frame: Frame, seconds: float, kept: Tensor | None) -> None:
        """Add a second frame; a patch is prefilled where either frame keeps it."""
        self.frames, self.seconds = (*self.frames, frame), (*self.seconds, seconds)
        self.kept = None if self.kept is None or kept is None else self.kept | kept


class FrameBlock:
    """At most ``limit`` grids, in order of arrival."""

    def __init__(self, limit: int, frames_per_grid: int) -> None:
        """:param limit: grids that are prefilled together; :param frames_per_grid: frames in each, at most."""
        self._limit = limit
        self._frames_per_grid = frames_per_grid
        self._grids: list[PendingGrid] = []

    def __len__(self) -> int:
        return len(self._grids)

    def __iter__(self) -> Iterator[PendingGrid]:
        return iter(self._grids)

    @property
    def frames(self) -> int:
        """Number of waiting frames."""
        return sum(len(grid.frames) for grid in self._grids)

    @property
    def patches(self) -> tuple[int, int]:
        """Patches of the waiting grids: to prefill, and left out."""
        kept = sum(grid.patches_kept for grid in self._grids)
        return kept, sum(grid.grid[0] * grid.grid[1] for grid in self._grids) - kept

    @property
    def crowded(self) -> bool:
        """Whether no further grid can be added."""
        return len(self._grids) >= self._limit

    @property
    def full(self) -> bool:
        """Whether no further frame can be added, neither as a grid nor as the second frame of one."""
        return self.crowded and not any(self._open(grid) for grid in self._grids)

    def _open(self, grid: PendingGrid) -> bool:
        return len(grid.frames) < self._frames_per_grid

    def partner(self, camera: str, grid: tuple[int, int], stamp: float) -> PendingGrid | None:
        """The grid that a frame can join: the newest of its camera, if size and time fit; else None."""
        for waiting in reversed(self._grids):
            if waiting.camera == camera:
                close = 0.0 <= stamp - waiting.stamp <= LONGEST_PAIR_SECONDS
                return waiting if self._open(waiting) and waiting.grid == grid and close else None
        return None

    def add(self, waiting: PendingGrid) -> None:
        """Add a grid with its first frame."""
        self._grids.append(waiting)

    def clear(self) -> None:
        """Remove all grids."""
        self._grids.clear()
