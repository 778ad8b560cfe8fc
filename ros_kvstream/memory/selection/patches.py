"""Which slots show the same patch: true (camera, h, w) as one number, and the rows of a plane as one flat list."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.selection.base import LayerSlots

DENSE_LIMIT = 4
"""Patches are numbered by plain arithmetic up to this many table entries per slot, by sorting beyond."""


@dataclass(frozen=True)
class Patches:
    """Patch numbers of one layer's slots; the same (camera, h, w) of different KV heads counts as different."""

    index: Tensor
    """int64 [kv_heads, slots], from 0 up to ``count`` - 1; not every number needs to occur."""
    count: int


def number_patches(view: LayerSlots) -> Patches:
    """Give slots of the same KV head, camera, h and w the same number."""
    heads, slots = view.frames.shape
    height, width, camera = view.positions[..., 1], view.positions[..., 2], view.cameras
    lowest, extent = [], []
    for axis in (height, width, camera):
        low, high = torch.aminmax(axis)
        lowest.append(int(low))
        extent.append(int(high) - int(low) + 1)
    per_head = extent[0] * extent[1] * extent[2]
    index = (height - lowest[0]).long()
    index *= extent[1]
    index += width - lowest[1]
    if extent[2] > 1:
        index += (camera.long() - lowest[2]) * (extent[0] * extent[1])
    index += torch.arange(heads, device=index.device)[:, None] * per_head
    if per_head > max(1024, DENSE_LIMIT * slots):
        found, index = torch.unique(index, return_inverse=True)
        return Patches(index, found.numel())
    return Patches(index, heads * per_head)
