# SPDX-License-Identifier: Apache-2.0
"""Adaptive Key Selection for the archive: the patches of a frame that differ from the previous frames.

After MemStream (arXiv 2602.18434), on un-rotated keys. The published form keeps a fixed share of every frame, which
keeps noise of uniform frames and drops patches of distinctive ones. Here the share applies to the stream: a patch is
kept when its dissimilarity passes a threshold that follows the stream, together with the patches around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ros_kvstream.memory.archive.plan import THRESHOLD_PATCHES, ArchiveShape
from ros_kvstream.settings import ArchiveSettings

LEAST_DISSIMILARITY = 1e-3
"""Two keys with a smaller dissimilarity count as equal, since the previous frames are held in float16."""


def unit_keys(keys: Tensor) -> Tensor:
    """Un-rotated keys as unit vectors, patch by patch.

    :param keys: [layers, kv_heads, patches, head_dim]; :returns: float32 [patches, layers * kv_heads, head_dim].
    """
    return functional.normalize(keys.float(), dim=-1).permute(2, 0, 1, 3).flatten(1, 2)


def patch_dissimilarity(unit: Tensor, previous: Tensor) -> Tensor:
    """Smallest 1 - cosine to the same patch of each previous frame, averaged over layers and heads.

    :param unit: [patches, vectors, head_dim] from :func:`unit_keys`;
    :param previous: [frames, patches, vectors, head_dim], frames >= 0.
    :returns: float32 [patches], 0 - 2; 1 without a previous frame.
    """
    if previous.shape[0] == 0:
        return torch.ones(unit.shape[0])
    cosines = torch.einsum("pvd,fpvd->fp", unit, previous.float()) / unit.shape[1]
    return (1.0 - cosines).amin(0).clamp_min(0.0)


class PatchSelector:
    """Chooses the patches of each frame of a stream; its state is bounded and allocated once."""

    def __init__(self, shape: ArchiveShape, settings: ArchiveSettings) -> None:
        self._settings = settings
        vectors = len(shape.index_layers) * shape.kv_heads
        self._previous = torch.zeros(
            shape.cameras, settings.compare_frames, shape.patches, vectors, shape.head_dim, dtype=torch.float16
        )
        self._seen = [0] * shape.cameras
        self._grids: list[tuple[int, int]] = [(0, 0)] * shape.cameras
        self._owners: list[object] = [None] * shape.cameras
        self._next_row = 0
        self._history = torch.zeros(THRESHOLD_PATCHES)
        self._history_length = 0

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the state's tensors."""
        return self._previous.untyped_storage().nbytes() + self._history.untyped_storage().nbytes()

    def clear(self) -> None:
        """Start a new stream."""
        self._seen = [0] * len(self._seen)
        self._owners = [None] * len(self._owners)
        self._history_length = 0

    def state_dict(self) -> dict[str, Any]:
        """Plain values of a checkpoint; the tensors are those of :meth:`tensors`."""
        return {
            "frames_seen": self._seen,
            "grids": self._grids,
            "cameras": self._owners,
            "next_row": self._next_row,
            "history_length": self._history_length,
        }

    def tensors(self) -> dict[str, Tensor]:
        """The state's storage, by name."""
        return {"previous_keys": self._previous, "dissimilarities": self._history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the plain values of a state whose tensors have been copied into :meth:`tensors`."""
        self._seen, self._owners = list(state["frames_seen"]), list(state["cameras"])
        self._grids = [(rows, columns) for rows, columns in state["grids"]]
        self._next_row, self._history_length = state["next_row"], state["history_length"]

    def choose(
        self, camera: object, keys: Tensor, grid: tuple[int, int], patches: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose the next frame's patches.

        :param camera: which camera, anything hashable; :param keys: un-rotated keys of the compared layers,
            [layers, kv_heads, patches, head_dim]; :param grid: (rows, columns);
        :param patches: numbers in the grid of the patches given, None = all.
        :returns: kept ones among the patches given, int64 ascending, at least one; and the dissimilarity of each
            patch given, float32 [patches].
        """
        row = self._row(camera, grid)
        unit = unit_keys(keys.cpu())
        numbers = torch.arange(grid[0] * grid[1]) if patches is None else patches
        previous = self._previous[row, : min(self._seen[row], self._settings.compare_frames)]
        dissimilarity = patch_dissimilarity(unit, previous[:, numbers])
        newest = self._previous[row, self._seen[row] % self._settings.compare_frames]
        newest.zero_()
        newest[numbers] = unit.to(newest.dtype)
        self._seen[row] += 1
        return self._pass(dissimilarity, grid, numbers), dissimilarity

    def _row(self, camera: object, grid: tuple[int, int]) -> int:
        """Row of a camera in the state; cameras beyond the planned number share rows, and a new grid restarts a row."""
        if camera in self._owners:
            row = self._owners.index(camera)
        else:
            row = self._next_row
            self._next_row = (self._next_row + 1) % len(self._owners)
            self._owners[row], self._seen[row] = camera, 0
        if self._grids[row] != grid:
            self._grids[row], self._seen[row] = grid, 0
        return row

    def _pass(self, dissimilarity: Tensor, grid: tuple[int, int], numbers: Tensor) -> Tensor:
        """Patches above the stream's threshold with the patches around them, or else the most distinctive patch."""
        if self._settings.keep_ratio >= 1.0:
            return torch.arange(dissimilarity.shape[0])
        guard = 2 * self._settings.guard + 1
        whole = torch.zeros(grid[0] * grid[1])
        whole[numbers] = dissimilarity
        guarded = functional.max_pool2d(whole.view(1, 1, *grid), guard, 1, guard // 2).flatten()[numbers]
        newest = guarded[-THRESHOLD_PATCHES:]
        self._history[(self._history_length + torch.arange(len(newest))) % THRESHOLD_PATCHES] = newest
        self._history_length += len(newest)
        history = self._history[: min(self._history_length, THRESHOLD_PATCHES)]
        threshold = max(float(history.quantile(1.0 - self._settings.keep_ratio)), LEAST_DISSIMILARITY)
        kept = torch.nonzero(guarded >= threshold).flatten()
        return kept if kept.numel() else dissimilarity.argmax().reshape(1)
