"""Temporal redundancy: how much a patch's key resembles keys of the same patch in other frames.

Keys of one patch differ in their rotation by time only (the same h and w turn them alike), so only the dimensions that
turn with time are turned back, in float32 and in blocks. The mean over r recent frames of cos(k, k') is ONE dot product
with the mean of the r unit keys k': memory grows with the number of patches, not with recent x past x patches.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ros_kvstream.memory.rows import flat_rows
from ros_kvstream.memory.selection.base import LayerSlots
from ros_kvstream.memory.selection.patches import Patches, number_patches
from ros_kvstream.memory.selection.ranking import recency

BLOCK_ROWS = 1024
"""Keys turned and compared at a time; their float32 copies are the extra memory."""
STEPS = 1 << 14
"""Similarities are rounded to 1 / STEPS: finer differences are rounding noise of the keys, and count as ties."""
TINY = 1e-30
"""Guards the norm of a key that is zero; its similarity to everything is 0."""


def similarity_to_recent(view: LayerSlots, recent: Tensor) -> Tensor:
    """Mean cosine of every slot's key with the recent keys of its patch, float32 [kv_heads, slots].

    :param recent: bool [kv_heads, slots]; these slots get 0. A patch without a recent key cannot be compared: its
        slots get the mean of those of their head that can (0 if none), neither an advantage nor a fault.
    """
    patches = number_patches(view)
    keys = _KeyRows(view)
    means, counts = _mean_recent_units(view, keys, patches, recent)
    past = (~recent).flatten().nonzero()[:, 0]
    patch_of = patches.index.flatten()
    result = torch.zeros(recent.numel(), dtype=torch.float32, device=recent.device)
    reference = torch.empty(min(BLOCK_ROWS, past.numel()), means.shape[1], device=recent.device)
    for start in range(0, past.numel(), BLOCK_ROWS):
        slots = past[start : start + BLOCK_ROWS]
        rows = keys.load(slots)
        norms = torch.linalg.vector_norm(rows, dim=-1).clamp_min_(TINY)
        dots = torch.index_select(means, 0, patch_of[slots], out=reference[: slots.numel()]).mul_(rows).sum(-1)
        result.index_copy_(0, slots, dots.div_(norms))
    result = result.view_as(recent)
    known = counts.index_select(0, patch_of).view_as(recent) > 0
    return _round(_fill_unknown(result, known & ~recent, ~known))


def similarity_to_previous(view: LayerSlots) -> Tensor:
    """Cosine of every slot's key with that of its patch in the frame before, float32 [kv_heads, slots].

    The frame before is the newest older one of the same camera that still holds the patch in that head. A patch's
    oldest slot has none: it gets -1, as unlike as can be.
    """
    patches = number_patches(view)
    keys = _KeyRows(view)
    by_time = recency(view).flatten().argsort(stable=True)
    order = by_time[patches.index.flatten()[by_time].argsort(stable=True)]
    patch = patches.index.flatten()[order]
    result = torch.full((order.numel(),), -1.0, dtype=torch.float32, device=order.device)
    for start in range(1, order.numel(), BLOCK_ROWS - 1):
        slots = order[start - 1 : start - 1 + BLOCK_ROWS]
        rows = keys.load(slots)
        norms = torch.linalg.vector_norm(rows, dim=-1).clamp_min_(TINY)
        cosines = (rows[1:] * rows[:-1]).sum(-1).div_(norms[1:]).div_(norms[:-1])
        stop = start + cosines.numel()
        same = patch[start:stop] == patch[start - 1 : stop - 1]
        result.index_copy_(0, slots[1:], cosines.masked_fill_(~same, -1.0))
    return _round(result.view(view.frames.shape))


def _mean_recent_units(view: LayerSlots, keys: _KeyRows, patches: Patches, recent: Tensor) -> tuple[Tensor, Tensor]:
    """Mean unit key per patch over its recent slots, float32 [patches, head_dim], and how many they are, [patches]."""
    newest = recent.flatten().nonzero()[:, 0]
    # In order of time, so that the sum is the same to the last bit however the slots lie.
    newest = newest[recency(view).flatten()[newest].argsort(stable=True)]
    patch = patches.index.flatten()[newest]
    sums = torch.zeros(patches.count, view.keys.shape[-1], dtype=torch.float32, device=recent.device)
    for start in range(0, newest.numel(), BLOCK_ROWS):
        rows = keys.load(newest[start : start + BLOCK_ROWS])
        rows /= torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min_(TINY)
        _add_rows(sums, patch[start : start + BLOCK_ROWS], rows)
    counts = torch.bincount(patch, minlength=patches.count)
    sums /= counts.clamp_min(1)[:, None]
    return sums, counts


def _add_rows(sums: Tensor, index: Tensor, rows: Tensor) -> None:
    """sums[index] += rows; deterministic on CPU and, through the sorting form of index_put_, on CUDA."""
    if sums.device.type == "cpu":
        sums.index_add_(0, index, rows)
    else:
        sums.index_put_((index,), rows, accumulate=True)


def _fill_unknown(similarity: Tensor, compared: Tensor, unknown: Tensor) -> Tensor:
    """Give ``unknown`` slots the mean similarity of the ``compared`` ones of their head."""
    if not bool(unknown.any()):
        return similarity
    mean = (similarity * compared).double().sum(-1, keepdim=True) / compared.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(unknown, mean.float(), similarity)


def _round(similarity: Tensor) -> Tensor:
    return similarity.mul_(STEPS).round_().div_(STEPS)


class _KeyRows:
    """Loads keys by flat slot number as float32 rows that are turned back in time; one reused buffer."""

    def __init__(self, view: LayerSlots) -> None:
        self._slots = view.slots
        source = view.keys if view.rotary is not None else view.unrotated_keys
        self._rows, self._per_head = flat_rows(source)
        self._times = view.positions[..., 0].flatten()
        self._turns = list(_time_turns(view)) if view.rotary is not None else []
        dim, rows = view.keys.shape[-1], min(BLOCK_ROWS, view.keys.shape[0] * view.slots)
        self._buffer = torch.empty(rows, dim, dtype=torch.float32, device=view.keys.device)

    def load(self, slots: Tensor) -> Tensor:
        """Keys of flat slots (head * slots + slot), int64 [n <= BLOCK_ROWS]; float32 [n, head_dim], until next load."""
        rows = self._buffer[: slots.numel()]
        gap = self._per_head - self._slots
        source = slots + (slots // self._slots) * gap if gap else slots
        if self._rows.dtype == torch.float32:
            torch.index_select(self._rows, 0, source, out=rows)
        else:
            rows.copy_(self._rows.index_select(0, source))
        time = self._times[slots, None].float()
        for first_pairs, second_pairs, frequencies in self._turns:
            angles = time * frequencies
            cos, sin = angles.cos(), angles.sin_()
            first, second = rows[:, first_pairs], rows[:, second_pairs]
            turned = (first * cos).addcmul_(second, sin)
            second.mul_(cos).addcmul_(first, sin, value=-1)
            first.copy_(turned)
        return rows


def _time_turns(view: LayerSlots) -> Iterator[tuple[slice, slice, Tensor]]:
    """The dimensions that turn with time as few slices: (first halves, second halves, radians per step)."""
    assert view.rotary is not None
    half = view.keys.shape[-1] // 2
    pairs = (view.rotary.axes == 0).nonzero()[:, 0].tolist()
    while pairs:
        step = pairs[1] - pairs[0] if len(pairs) > 1 else 1
        length = next((i for i in range(1, len(pairs)) if pairs[i] - pairs[i - 1] != step), len(pairs))
        low, stop = pairs[0], pairs[length - 1] + 1
        frequencies = view.rotary.inverse_frequencies[low:stop:step].float()
        yield slice(low, stop, step), slice(half + low, half + stop, step), frequencies
        pairs = pairs[length:]
