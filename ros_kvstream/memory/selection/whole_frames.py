"""Redundancy where all heads still hold the same whole frames in order: the same scores, without looking slots up.

That is the state before the first compaction. Broadcasts take the place of the gathers that ragged heads need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.selection.base import LayerSlots
from ros_kvstream.memory.selection.key_rows import TINY
from ros_kvstream.memory.selection.once_per_table import once_per_table

BLOCK_ROWS = 1700
"""Keys that are turned and compared at a time (at least one frame of all heads)."""


@dataclass(frozen=True)
class WholeFrames:
    """How a regular layer is laid out: slot = frame * patches + patch in every head."""

    frames: int
    patches: int
    angles: Tensor
    """Cosines and sines of each frame's time, float32 [frames, 1, 2 * pairs]."""


@once_per_table
def whole_frames(view: LayerSlots) -> WholeFrames | None:
    """The layout, or None if any head lacks a patch, frames differ in size or camera, or slots lie out of order."""
    if view.rotary is None:
        return None
    heads, slots = view.frames.shape
    patches = int((view.frames[0] == view.frames[0, 0]).sum())
    if slots % patches:
        return None
    shape = (slots // patches, patches)
    frames = view.frames.unflatten(1, shape)
    first = frames[0, :, :1]
    if not bool((frames == first).all()) or not bool((first[1:] > first[:-1]).all()):
        return None
    positions = view.positions.unflatten(1, shape)
    same_patches = bool((positions[..., 1:] == positions[0, 0, :, 1:]).all())
    same_times = same_patches and bool((positions[..., 0] == positions[0, :, :1, 0]).all())
    if not same_times or not bool((view.cameras == view.cameras[0, 0]).all()):
        return None
    return WholeFrames(*shape, view.rotary.time_angles(positions[0, :, 0, 0])[:, None])


def frame_similarity_to_recent(view: LayerSlots, layout: WholeFrames, past: int) -> Tensor:
    """Mean cosine of the keys in the first ``past`` frames with those of their patch in the frames after them.

    float32 [kv_heads, past * patches].
    """
    blocks = _FrameBlocks(view, layout)
    shape = (view.keys.shape[0], 1, layout.patches, view.keys.shape[-1])
    means = torch.zeros(shape, dtype=torch.float32, device=view.keys.device)
    for start, stop in blocks.ranges(past, layout.frames):
        rows, norms = blocks.load(start, stop)
        means += rows.div_(norms[..., None]).sum(1, keepdim=True)
    means /= layout.frames - past
    result = torch.empty(view.keys.shape[0], past, layout.patches, dtype=torch.float32, device=view.keys.device)
    for start, stop in blocks.ranges(0, past):
        rows, norms = blocks.load(start, stop)
        torch.sum(rows.mul_(means), -1, out=result[:, start:stop]).div_(norms)
    return result.flatten(1)


class _FrameBlocks:
    """Loads a few frames of all heads at a time as float32, turned back in time; one reused buffer."""

    def __init__(self, view: LayerSlots, layout: WholeFrames) -> None:
        assert view.rotary is not None
        self._rotary = view.rotary
        heads, _, dim = view.keys.shape
        self._keys = view.keys.unflatten(1, (layout.frames, layout.patches))
        self._per_block = min(layout.frames, max(1, BLOCK_ROWS // (heads * layout.patches)))
        size = (heads, self._per_block, layout.patches, dim)
        self._buffer = torch.empty(size, dtype=torch.float32, device=view.keys.device)
        self._angles = layout.angles
        norms = view.key_norms
        self._norms = None if norms is None else norms.unflatten(1, (layout.frames, layout.patches)).clamp_min(TINY)

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(first, last + 1) frames of every block from ``start`` to ``stop``."""
        return [(at, min(at + self._per_block, stop)) for at in range(start, stop, self._per_block)]

    def load(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys of frames [start, stop), [kv_heads, frames, patches, head_dim], valid until the next load, and norms."""
        rows = self._buffer[:, : stop - start].copy_(self._keys[:, start:stop])
        self._rotary.turn_back_in_time(rows, self._angles[start:stop])
        if self._norms is None:
            return rows, torch.linalg.vector_norm(rows, dim=-1).clamp_min_(TINY)
        return rows, self._norms[:, start:stop]
