# SPDX-License-Identifier: Apache-2.0
"""Temporal redundancy: how similar a patch's key is to other keys of the same patch, on un-rotated keys in float32.

The mean over n keys k' of cos(k, k') is one dot product with the mean of the n unit keys: the memory needed grows with
the number of patches, not with the number of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots
from ros_kvstream.memory.slot_table import flat_rows

STEPS = 1 << 14
"""Novelty is a whole number of 1 / STEPS: smaller differences are rounding noise of stored keys and count as ties."""
COMPARISONS = ("newer", "recent")
"""What a key is compared with: all newer keys of its patch, or those of the recent frames."""
BLOCK_ROWS = 2048
"""Keys that are unrotated and compared at a time; their float32 copies are the extra memory."""
TINY = 1e-30
"""Lower limit of a norm, so that a key of zeros has a similarity of 0 to everything."""
TABLE_STEPS = 2048
"""Cosines and sines are looked up by time step when the slots span fewer steps, else computed per slot."""
DENSE_LIMIT = 4
"""Patches are numbered by arithmetic up to this many possible patches per slot, by sorting beyond."""


def novelty(slots: LayerSlots, recent: Tensor, compare_with: str) -> Tensor:
    """Return minus the mean cosine of every slot's key with other keys of its patch, float32 [kv_heads, slots].

    :param recent: bool [kv_heads, slots], the slots of the newest frames; their novelty is infinite.
    :param compare_with: one of COMPARISONS; the result is in steps, see STEPS.
    """
    similarity = similarity_to_newer(slots) if compare_with == "newer" else similarity_to_recent(slots, recent)
    return in_steps(similarity).masked_fill_(recent, torch.inf)


def in_steps(similarity: Tensor) -> Tensor:
    """Turn similarity into novelty, in whole steps (see STEPS) and in place."""
    return similarity.mul_(-STEPS).round_()


def similarity_to_newer(slots: LayerSlots) -> Tensor:
    """Mean cosine of every slot's key with all newer keys of its patch, float32 [kv_heads, slots]; 0 for the newest.

    Every patch is walked from its newest slot to its oldest with a running sum of unit keys.
    """
    order, newer, patches_at = _walk(slots)
    total = torch.zeros(patches_at[0], slots.keys.shape[-1], dtype=torch.float32, device=slots.keys.device)
    cosines = torch.empty(len(order), dtype=torch.float32, device=slots.keys.device)
    step, patch = 0, 0
    for part, rows, norms in KeyRows(slots).blocks(order):
        rows /= norms[:, None]
        at = part.start
        while at < part.stop:
            count = min(patches_at[step] - patch, part.stop - at)
            units, sums = rows[at - part.start : at - part.start + count], total[patch : patch + count]
            dot_rows(units, sums, out=cosines[at : at + count])
            sums += units
            at, patch = at + count, patch + count
            if patch == patches_at[step]:
                step, patch = step + 1, 0
    cosines /= newer.clamp_min(1)
    return torch.empty_like(cosines).index_copy_(0, order, cosines).view(slots.frames.shape)


def _walk(slots: LayerSlots) -> tuple[Tensor, Tensor, list[int]]:
    """Order all slots by how many newer slots their patch has, then by patch, the patches with most slots first.

    The patches that have a slot at a step then are a prefix of those at the step before.

    :returns: flat slot numbers and how many newer slots the patch of each has, both int64 [kv_heads * slots]; and how
        many patches have a slot at each step.
    """
    index, patches = number_patches(slots)
    frames = slots.frames.flatten()
    oldest, newest = (int(end) for end in torch.aminmax(frames))
    # By patch, the newest first; a frame shows a patch once. Sorting int32 takes half the time of int64.
    span = newest - oldest + 1
    number = index if patches * span < 1 << 31 else index.long()
    order = (number * span + (newest - frames)).argsort(stable=True)
    patch = index.index_select(0, order).long()
    counts = torch.bincount(patch, minlength=patches)
    newer = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[patch]
    rank = torch.empty_like(counts)
    rank[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts), device=counts.device)
    by_step = (newer * len(counts) + rank[patch]).argsort(stable=True)
    return order[by_step], newer[by_step], torch.bincount(newer).tolist()


def similarity_to_recent(slots: LayerSlots, recent: Tensor) -> Tensor:
    """Mean cosine of every slot's key with the keys of its patch in the recent frames, float32 [kv_heads, slots].

    Slots of a patch that the recent frames do not show get the mean of their head's other slots, 0 if there is none.
    """
    index, patches = number_patches(slots)
    keys = KeyRows(slots)
    means, counts = _mean_recent_units(slots, keys, index, patches, recent)
    past = recent.logical_not().view(-1).nonzero()[:, 0]
    patch = index.index_select(0, past)
    cosines = torch.empty(past.numel(), dtype=torch.float32, device=recent.device)
    for part, rows, norms in keys.blocks(past):
        mean_rows = torch.index_select(means, 0, patch[part], out=keys.spare[: len(rows)])
        dot_rows(rows, mean_rows, out=cosines[part])
        cosines[part].div_(norms)
    similarity = torch.zeros(recent.numel(), dtype=torch.float32, device=recent.device)
    similarity = similarity.index_copy_(0, past, cosines).view_as(recent)
    if bool(counts.all()):
        return similarity
    known = counts.index_select(0, index).view_as(recent) > 0
    compared = known & ~recent
    mean = (similarity * compared).double().sum(-1, keepdim=True) / compared.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(known, similarity, mean.float())


def _mean_recent_units(
    slots: LayerSlots, keys: KeyRows, index: Tensor, patches: int, recent: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean unit key per patch over its recent slots, float32 [patches, head_dim], and how many they are, [patches]."""
    newest = recent.view(-1).nonzero()[:, 0]
    # In order of time, so that the sum is the same to the bit wherever the slots are; a frame shows a patch once.
    newest = newest[slots.frames.flatten()[newest].argsort(stable=True)]
    patch = index[newest]
    sums = torch.zeros(patches, slots.keys.shape[-1], dtype=torch.float32, device=recent.device)
    for part, rows, norms in keys.blocks(newest):
        units = rows.div_(norms[:, None])
        if sums.device.type == "cpu":
            sums.index_add_(0, patch[part].long(), units)
        else:  # index_add_ is not deterministic on CUDA
            sums.index_put_((patch[part].long(),), units, accumulate=True)
    counts = torch.bincount(patch, minlength=patches)
    sums /= counts.clamp_min(1)[:, None]
    return sums, counts


def number_patches(slots: LayerSlots) -> tuple[Tensor, int]:
    """Number the patches: slots of the same KV head, camera, h and w have the same number.

    :returns: int32 [kv_heads * slots] from 0, and the limit of the numbers; not every number below it need occur.
    """
    heads, count = slots.frames.shape
    height, width, camera = slots.positions[..., 1], slots.positions[..., 2], slots.cameras
    (top, rows), (left, columns), (first, cameras) = _extent(height), _extent(width), _extent(camera)
    per_head = rows * columns * cameras
    if per_head * heads >= 1 << 31:
        height, width = height.long(), width.long()
    index = torch.add(width, height, alpha=columns)
    if cameras > 1:
        index += (camera.to(index.dtype) - first) * (rows * columns)
    index += torch.arange(heads, device=index.device, dtype=index.dtype)[:, None] * per_head - (top * columns + left)
    if per_head > max(1024, DENSE_LIMIT * count):
        found, index = torch.unique(index, return_inverse=True)
        return index.flatten().int(), found.numel()
    return index.flatten(), heads * per_head


def _extent(values: Tensor) -> tuple[int, int]:
    """Lowest value, and the number of values from it to the highest."""
    low, high = torch.aminmax(values)
    return int(low), int(high) - int(low) + 1


class KeyRows:
    """A layer's keys by flat slot number (head * slots + slot), read in blocks through a reused buffer.

    Only the rotation by t is undone: two keys of one patch are rotated alike by h and w, so their cosine is that of the
    un-rotated keys. ``spare`` is a second buffer of the same size, float32 [rows, head_dim], for the caller.
    """

    def __init__(self, slots: LayerSlots) -> None:
        self._slots = slots
        self._rows, self._per_head = flat_rows(slots.keys)
        self._norms = slots.key_norms.flatten().clamp_min(TINY)
        self._times = slots.positions[..., 0].flatten()
        # Half of the scratch at most, and two rows for an overlap of one.
        block = max(2, min(BLOCK_ROWS, slots.frames.numel() // 2))
        self._buffer, self.spare = slots.scratch_view(2, block, self._rows.shape[-1])
        self._table: list[tuple[Tensor, Tensor]] | None = None
        low, high = torch.aminmax(self._times)
        if high - low < TABLE_STEPS:
            self._table = slots.rotary.time_angles(torch.arange(int(low), int(high) + 1, device=self._times.device))
            self._times = self._times - low

    def blocks(self, numbers: Tensor, overlap: int = 0) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield the keys of slot ``numbers``: (part of ``numbers``, float32 [rows, head_dim], their norms [rows]).

        The rows are valid until the next block. A block begins with the last ``overlap`` rows of the one before.
        """
        gap = self._per_head - self._slots.count
        source = numbers + numbers.div(self._slots.count, rounding_mode="floor") * gap if gap else numbers
        times, norms = self._times.index_select(0, numbers), self._norms.index_select(0, numbers)
        block = len(self._buffer)
        for start in range(0, numbers.numel() - overlap, block - overlap):
            part = slice(start, min(start + block, numbers.numel()))
            rows = self._buffer[: part.stop - start]
            if self._rows.dtype == torch.float32:
                torch.index_select(self._rows, 0, source[part], out=rows)
            else:
                rows.copy_(self._rows.index_select(0, source[part]))
            self._slots.rotary.unrotate_time(rows, self._angles(times[part]))
            yield part, rows, norms[part]

    def _angles(self, times: Tensor) -> list[tuple[Tensor, Tensor]]:
        if self._table is None:
            return self._slots.rotary.time_angles(times)
        return [(cos.index_select(0, times), sin.index_select(0, times)) for cos, sin in self._table]


def dot_rows(rows: Tensor, others: Tensor, out: Tensor) -> None:
    """Write the dot products of float32 rows [n, head_dim] and ``others`` of the same shape to ``out`` [n]."""
    vecdot = getattr(np, "vecdot", None)  # NumPy 2: sums while it multiplies, where torch writes the products first
    if vecdot is None or rows.device.type != "cpu":
        torch.sum(rows * others, -1, out=out)
        return
    with np.errstate(all="ignore"):  # keys that are not finite give scores that are not
        vecdot(rows.numpy(), others.numpy(), out=out.numpy())
