"""Redundancy against everything newer: how much a patch's key resembles all later keys of the same patch.

Every patch's slots are walked from the newest to the oldest with a running sum of unit keys: the mean of the cosines to
all newer keys is one dot product with that sum. Slots are ordered so that the patches which still have a slot at a step
are a prefix of all patches: whole rows are read and added, nothing is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots
from ros_kvstream.memory.policies.key_rows import KeyRows, dot_rows
from ros_kvstream.memory.policies.once_per_table import once_per_table
from ros_kvstream.memory.policies.patches import number_patches


@dataclass(frozen=True)
class Walk:
    """All slots of a layer, by how many newer slots their patch has, then by patch (those with most slots first)."""

    slots: Tensor
    """Flat slot numbers, int64 [kv_heads * slots]."""
    newer: Tensor
    """How many newer slots the patch of each has, int64 [kv_heads * slots], ascending."""
    steps: list[int]
    """How many patches have a slot at each step."""


@once_per_table
def walk(view: LayerSlots) -> Walk:
    """Order a layer's slots for ``similarity_to_newer``."""
    patches = number_patches(view)
    frames = view.frames.flatten()
    oldest, newest = (int(end) for end in torch.aminmax(frames))
    # By patch, the newest first; a frame shows a patch once. A sort of short numbers takes half the time.
    span = newest - oldest + 1
    number = patches.index if patches.count * span < 1 << 31 else patches.index.long()
    slots = (number * span + (newest - frames)).argsort(stable=True)
    patch = patches.index.index_select(0, slots).long()
    counts = torch.bincount(patch, minlength=patches.count)
    newer = torch.arange(len(slots), device=slots.device) - (counts.cumsum(0) - counts)[patch]
    lane = torch.empty_like(counts)
    lane[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts), device=counts.device)
    order = (newer * len(counts) + lane[patch]).argsort(stable=True)
    return Walk(slots[order], newer[order], torch.bincount(newer).tolist())


def similarity_to_newer(view: LayerSlots) -> Tensor:
    """Mean cosine of every slot's key with all newer keys of its patch, float32 [kv_heads, slots]; 0 for the newest."""
    path = walk(view)
    total = torch.zeros(path.steps[0], view.keys.shape[-1], dtype=torch.float32, device=view.keys.device)
    cosines = torch.empty(len(path.slots), dtype=torch.float32, device=view.keys.device)
    step, lane = 0, 0
    for part, rows, norms in KeyRows(view).blocks(path.slots):
        rows /= norms[:, None]
        at = part.start
        while at < part.stop:
            count = min(path.steps[step] - lane, part.stop - at)
            units, sums = rows[at - part.start : at - part.start + count], total[lane : lane + count]
            dot_rows(units, sums, out=cosines[at : at + count])
            sums += units
            at, lane = at + count, lane + count
            if lane == path.steps[step]:
                step, lane = step + 1, 0
    cosines /= path.newer.clamp_min(1)
    return torch.empty_like(cosines).index_copy_(0, path.slots, cosines).view(view.frames.shape)
