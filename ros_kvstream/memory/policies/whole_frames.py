"""Redundancy where all heads still hold the same whole frames in order: the same scores, without looking slots up.

That is the state before the first compaction. Broadcasts take the place of the gathers that ragged heads need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots
from ros_kvstream.memory.policies.key_rows import TINY, dot_rows
from ros_kvstream.memory.policies.once_per_table import once_per_table
from ros_kvstream.memory.rotary import Rotary

BLOCK_ROWS = 3400
"""Keys that are turned and compared at a time (at least one frame of all heads)."""


@dataclass(frozen=True)
class Block:
    """A few neighbouring frames."""

    start: int
    count: int
    angles: list[tuple[Tensor, Tensor]]
    """Cosines and sines of each frame's time, see Rotary.time_angles; [frames, 1, pairs]."""


@dataclass(frozen=True)
class WholeFrames:
    """How a regular layer is laid out: slot = frame * patches + patch in every head."""

    frames: int
    patches: int
    rotary: Rotary
    times: Tensor
    """t per frame, [frames]."""

    def blocks(self, start: int, stop: int, most: int) -> list[Block]:
        """Frames [start, stop) in blocks of at most ``most``."""
        found = []
        for at in range(start, stop, most):
            count = min(most, stop - at)
            angles = self.rotary.time_angles(self.times[at : at + count])
            found.append(Block(at, count, [(cos[:, None], sin[:, None]) for cos, sin in angles]))
        return found


@once_per_table
def whole_frames(view: LayerSlots) -> WholeFrames | None:
    """The layout, or None if any head lacks a patch, frames differ in size or camera, or slots lie out of order."""
    if view.rotary is None:
        return None
    slots = view.slots
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
    return WholeFrames(*shape, view.rotary, positions[0, :, 0, 0].clone())


@once_per_table
def _split(view: LayerSlots, past: int) -> tuple[list[Block], list[Block]]:
    """Blocks of the first ``past`` frames and of those after them."""
    layout = whole_frames(view)
    assert layout is not None
    most = max(1, BLOCK_ROWS // (view.keys.shape[0] * layout.patches))
    return layout.blocks(0, past, most), layout.blocks(past, layout.frames, most)


def frame_similarity_to_recent(view: LayerSlots, layout: WholeFrames, past: int, unit: float = 1.0) -> Tensor:
    """Mean cosine of the keys in the first ``past`` frames with those of their patch in the frames after them.

    float32 [kv_heads, past * patches], in multiples of ``unit``.
    """
    older, newer = _split(view, past)
    inverse = _norms(view).clamp_min(TINY).reciprocal_().unflatten(1, (layout.frames, layout.patches))
    keys = _FrameKeys(view, layout, max(block.count for block in older + newer))
    sums: Tensor | None = None
    for block in newer:
        units = keys.load(block).mul_(inverse.narrow(1, block.start, block.count).unsqueeze(-1)).sum(1, keepdim=True)
        sums = units if sums is None else sums.add_(units)
    assert sums is not None
    means = sums.mul_(1.0 / ((layout.frames - past) * unit))
    result = torch.empty(len(inverse), past, layout.patches, dtype=torch.float32, device=inverse.device)
    for block in older:
        dot_rows(keys.load(block), means, out=result.narrow(1, block.start, block.count))
    return result.mul_(inverse[:, :past]).flatten(1)


def _norms(view: LayerSlots) -> Tensor:
    if view.key_norms is not None:
        return view.key_norms
    return torch.linalg.vector_norm(view.keys, dim=-1, dtype=torch.float32)


class _FrameKeys:
    """Loads a block of frames of all heads as float32, turned back in time, into one reused buffer."""

    def __init__(self, view: LayerSlots, layout: WholeFrames, most: int) -> None:
        self._rotary = layout.rotary
        self._keys = view.keys.unflatten(1, (layout.frames, layout.patches))
        self._buffer = view.room(view.keys.shape[0], most, layout.patches, view.keys.shape[-1])
        self._views: dict[int, tuple[Tensor, list[tuple[Tensor, Tensor]]]] = {}

    def load(self, block: Block) -> Tensor:
        """float32 [kv_heads, frames, patches, head_dim], valid until the next load."""
        if block.count not in self._views:
            rows = self._buffer.narrow(1, 0, block.count)
            self._views[block.count] = rows, self._rotary.time_halves(rows)
        rows, halves = self._views[block.count]
        rows.copy_(self._keys.narrow(1, block.start, block.count))
        self._rotary.unrotate_time(halves, block.angles)
        return rows
