"""Deterministic choice: the highest scores per KV head, ties to the newer slot, whatever the slots' order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots


def recency(view: LayerSlots) -> Tensor:
    """One number per slot that grows with time and then in raster order, int64 [kv_heads, slots].

    Frame id, camera, h and w packed into 31 + 8 + 12 + 12 bits: equal for no two slots of a head, so every order
    made from it is independent of where the slots lie in the arena.
    """
    height, width = view.positions[..., 1].long(), view.positions[..., 2].long()
    order = view.frames.long() << 32
    order |= (view.cameras.long() & 0xFF) << 24
    order |= (height & 0xFFF) << 12
    order |= width & 0xFFF
    return order


def top_mask(scores: Tensor, keep: int, view: LayerSlots | None = None) -> Tensor:
    """The ``keep`` highest scores per row as bool [rows, slots], exactly ``keep`` of them True in every row.

    :param scores: float or integer [rows, slots]; NaN ranks below everything.
    :param view: the slots that the scores belong to; of equal scores the newer wins. Without it the higher index wins.
    """
    slots = scores.shape[-1]
    if keep >= slots:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold, unique = _lowest_kept(scores, keep)
    mask = scores >= threshold
    if unique:
        return mask
    if scores.is_floating_point() and bool(scores.isnan().any()):
        return top_mask(torch.nan_to_num(scores, -torch.inf, torch.inf, -torch.inf), keep, view)
    above = scores > threshold
    missing = keep - above.sum(-1)
    return _add_first(above, mask & ~above, missing, view)


def _lowest_kept(scores: Tensor, keep: int) -> tuple[Tensor, bool]:
    """The ``keep``-th highest score of each row, [rows, 1], NaN above all; and whether exactly ``keep`` reach it."""
    place = scores.shape[-1] - keep
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.int64):
        # NumPy's partition compares many numbers at a time: half the time of torch's kthvalue or topk.
        parted = np.partition(scores.numpy(), place, axis=-1)
        threshold, below, highest = parted[:, place : place + 1], parted[:, :place].max(-1, keepdims=True), parted.max()
        return torch.from_numpy(threshold), bool((below < threshold).all() and highest == highest)
    lowest = scores.kthvalue(place + 1, dim=-1, keepdim=True).values
    return lowest, bool(((scores >= lowest).sum(-1) == keep).all())


def keep_top(scores: Tensor, keep: int, view: LayerSlots | None = None) -> Tensor:
    """Indices of ``top_mask``, ascending int64 [rows, keep]."""
    return indices_of(top_mask(scores, keep, view))


def indices_of(mask: Tensor) -> Tensor:
    """Where a mask [rows, slots] with equally many True in every row is True, ascending int64 [rows, n]."""
    return mask.nonzero()[:, 1].view(mask.shape[0], -1)


def _add_first(chosen: Tensor, tied: Tensor, missing: Tensor, view: LayerSlots | None) -> Tensor:
    """Add to ``chosen`` the ``missing`` [rows] first of the ``tied`` slots per row: the newer first, then by index.

    A handful are tied, as a rule: not worth a kernel for each step.
    """
    row, slot = np.nonzero(tied.cpu().numpy())
    keys = [slot]
    if view is not None:
        place = view.positions.cpu().numpy()[row, slot]
        keys += [place[:, 2], place[:, 1], *(table.cpu().numpy()[row, slot] for table in (view.cameras, view.frames))]
    order = np.lexsort([*(-key.astype(np.int64) for key in keys), row])
    row, slot = row[order], slot[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row)
    wanted = rank < missing.cpu().numpy()[row]
    chosen[torch.from_numpy(row[wanted]), torch.from_numpy(slot[wanted])] = True
    return chosen
