"""Frames that wait to be prefilled together, and which two of them share one temporal grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.errors import SettingsError
from ros_kvstream.models.base import Frame, VideoLanguageModel

LONGEST_PAIR_SECONDS = 2.0
"""Frames further apart than this never share a grid: they are no longer one moment, and the first would wait on."""


@dataclass
class PendingGrid:
    """One temporal grid that has not been prefilled yet: one frame, or two of the same camera and size."""

    frame_id: int
    """Its record's id; the second frame extends the record of the first."""
    camera: str
    grid: tuple[int, int]
    """Rows and columns of visual tokens."""
    stamp: float
    """Seconds of the first frame's header stamp."""
    frames: tuple[Frame, ...]
    seconds: tuple[float, ...]
    """Times of the stream when they were seen."""
    kept: Tensor | None
    """Patches to prefill, bool [rows * columns]; None for all."""

    @property
    def mean_seconds(self) -> float:
        """Time that is written beside the grid, as the families do: the mean of its frames' times."""
        return sum(self.seconds) / len(self.seconds)

    def join(self, frame: Frame, seconds: float, kept: Tensor | None) -> None:
        """Take a second frame in: a patch is prefilled where either frame wants it."""
        self.frames, self.seconds = (*self.frames, frame), (*self.seconds, seconds)
        self.kept = None if self.kept is None or kept is None else self.kept | kept


def check_grids(model: VideoLanguageModel, frames_per_grid: int) -> None:
    """Raise SettingsError where the model's grids do not hold so many real frames."""
    if frames_per_grid > model.frames_per_grid:
        raise SettingsError(
            f"memory.frames_per_grid = {frames_per_grid}: the family {model.family} has {model.frames_per_grid} frame "
            "a grid. Use 1."
        )


class FrameBlock:
    """At most ``limit`` grids, in order of arrival."""

    def __init__(self, limit: int, frames_per_grid: int) -> None:
        """:param limit: grids that are prefilled together; :param frames_per_grid: real frames in each."""
        self._limit = limit
        self._frames_per_grid = frames_per_grid
        self._grids: list[PendingGrid] = []

    def __len__(self) -> int:
        return len(self._grids)

    def __iter__(self) -> Iterator[PendingGrid]:
        return iter(self._grids)

    @property
    def frames(self) -> int:
        """Frames that wait."""
        return sum(len(grid.frames) for grid in self._grids)

    @property
    def crowded(self) -> bool:
        """Whether there is no room for one more grid."""
        return len(self._grids) >= self._limit

    @property
    def full(self) -> bool:
        """Whether no frame at all could be added any more."""
        return self.crowded and not any(self._open(grid) for grid in self._grids)

    def _open(self, grid: PendingGrid) -> bool:
        return len(grid.frames) < self._frames_per_grid

    def partner(self, camera: str, grid: tuple[int, int], stamp: float) -> PendingGrid | None:
        """The waiting grid that a frame joins: of its camera and size, and not long before it; else None."""
        for waiting in reversed(self._grids):
            if waiting.camera == camera:
                close = 0.0 <= stamp - waiting.stamp <= LONGEST_PAIR_SECONDS
                return waiting if self._open(waiting) and waiting.grid == grid and close else None
        return None

    def add(self, waiting: PendingGrid) -> None:
        """Open a grid with its first frame."""
        self._grids.append(waiting)

    def clear(self) -> None:
        """Empty the block."""
        self._grids.clear()
