"""Adaptive Key Selection for the archive: of every frame the patches that the frames before did not hold.

After MemStream (arXiv 2602.18434), on un-rotated keys. A fixed share of every frame keeps noise of dull frames and
drops half of the telling ones; so the share here is one of the stream: patches pass a threshold that follows the
stream's own dissimilarities, and the patches around a telling one come with it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ros_kvstream.memory.archive.plan import THRESHOLD_PATCHES, ArchiveShape
from ros_kvstream.settings import ArchiveSettings

LEAST_DISSIMILARITY = 1e-3
"""Below this two keys are the same: the frames before are held in float16."""


def unit_keys(keys: Tensor) -> Tensor:
    """Un-rotated keys as unit vectors, patch by patch.

    :param keys: [layers, kv_heads, patches, head_dim]; :returns: float32 [patches, layers * kv_heads, head_dim].
    """
    return functional.normalize(keys.float(), dim=-1).permute(2, 0, 1, 3).flatten(1, 2)


def patch_dissimilarity(unit: Tensor, before: Tensor) -> Tensor:
    """1 - cosine to the same patch of each frame before, averaged over layers and heads; the least of them counts.

    :param unit: [patches, vectors, head_dim] from :func:`unit_keys`;
    :param before: [frames, patches, vectors, head_dim], frames >= 0.
    :returns: float32 [patches], 0 - 2; 1 where there is nothing before.
    """
    if before.shape[0] == 0:
        return torch.ones(unit.shape[0])
    cosines = torch.einsum("pvd,fpvd->fp", unit, before.float()) / unit.shape[1]
    return (1.0 - cosines).amin(0).clamp_min(0.0)


def archive_patches(keys: Tensor, keys_before: Tensor, keep_ratio: float) -> Tensor:
    """The published form: the ``keep_ratio`` least similar patches of one frame, at least one, ascending.

    :param keys: un-rotated keys of a frame, [layers, kv_heads, patches, head_dim];
    :param keys_before: those of the frame before, the same shape.
    :returns: int64 [kept]; ties go to the lower patch.
    """
    dissimilarity = patch_dissimilarity(unit_keys(keys), unit_keys(keys_before)[None])
    keep = max(1, round(keep_ratio * dissimilarity.shape[0]))
    return dissimilarity.argsort(descending=True, stable=True)[:keep].sort().values


class PatchSelector:
    """Follows a stream and chooses each frame's patches; its state is bounded and allocated once."""

    def __init__(self, shape: ArchiveShape, settings: ArchiveSettings) -> None:
        self._settings = settings
        vectors = len(shape.index_layers) * shape.kv_heads
        self._before = torch.zeros(
            shape.cameras, settings.compare_frames, shape.patches, vectors, shape.head_dim, dtype=torch.float16
        )
        self._seen = [0] * shape.cameras
        self._grids: list[tuple[int, int]] = [(0, 0)] * shape.cameras
        self._owners: list[object] = [None] * shape.cameras
        self._turn = 0
        self._history = torch.zeros(THRESHOLD_PATCHES)
        self._history_length = 0

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the state's tensors."""
        return self._before.untyped_storage().nbytes() + self._history.untyped_storage().nbytes()

    def clear(self) -> None:
        """Forget the stream."""
        self._seen = [0] * len(self._seen)
        self._owners = [None] * len(self._owners)
        self._history_length = 0

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
        place = self._place(camera, grid)
        unit = unit_keys(keys.cpu())
        numbers = torch.arange(grid[0] * grid[1]) if patches is None else patches
        before = self._before[place, : min(self._seen[place], self._settings.compare_frames)]
        dissimilarity = patch_dissimilarity(unit, before[:, numbers])
        newest = self._before[place, self._seen[place] % self._settings.compare_frames]
        newest.zero_()
        newest[numbers] = unit.to(newest.dtype)
        self._seen[place] += 1
        return self._pass(dissimilarity, grid, numbers), dissimilarity

    def _place(self, camera: object, grid: tuple[int, int]) -> int:
        """The camera's own row of the state; more cameras than planned take turns, and a new grid starts afresh."""
        if camera in self._owners:
            place = self._owners.index(camera)
        else:
            place = self._turn
            self._turn = (self._turn + 1) % len(self._owners)
            self._owners[place], self._seen[place] = camera, 0
        if self._grids[place] != grid:
            self._grids[place], self._seen[place] = grid, 0
        return place

    def _pass(self, dissimilarity: Tensor, grid: tuple[int, int], numbers: Tensor) -> Tensor:
        """Patches above the stream's threshold, guard included, or the one most telling patch."""
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
