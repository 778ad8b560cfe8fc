"""Which slots show the same patch: true (camera, h, w) as one number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots

DENSE_LIMIT = 4
"""Patches are numbered by plain arithmetic up to this many table entries per slot, by sorting beyond."""


@dataclass(frozen=True)
class Patches:
    """Patch numbers of one layer's slots; the same (camera, h, w) of different KV heads counts as different."""

    index: Tensor
    """int32 [kv_heads * slots], from 0 up to ``count`` - 1; not every number needs to occur."""
    count: int


def number_patches(view: LayerSlots) -> Patches:
    """Give slots of the same KV head, camera, h and w the same number."""
    heads, slots = view.frames.shape
    height, width, camera = view.positions[..., 1], view.positions[..., 2], view.cameras
    (top, rows), (left, columns), (first, cameras) = _extent(height), _extent(width), _extent(camera)
    per_head = rows * columns * cameras
    if per_head * heads >= 1 << 31:
        height, width = height.long(), width.long()
    index = torch.add(width, height, alpha=columns)
    if cameras > 1:
        index += (camera.to(index.dtype) - first) * (rows * columns)
    index += torch.arange(heads, device=index.device, dtype=index.dtype)[:, None] * per_head - (top * columns + left)
    if per_head > max(1024, DENSE_LIMIT * slots):
        found, index = torch.unique(index, return_inverse=True)
        return Patches(index.flatten().int(), found.numel())
    return Patches(index.flatten(), heads * per_head)


def _extent(values: Tensor) -> tuple[int, int]:
    """Lowest value and how many there are up to the highest."""
    low, high = torch.aminmax(values)
    return int(low), int(high) - int(low) + 1
