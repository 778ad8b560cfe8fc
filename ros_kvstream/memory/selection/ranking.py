"""Deterministic choice: the highest scores per KV head, ties to the newer slot, whatever the slots' order."""

from __future__ import annotations

import torch
from torch import Tensor

from ros_kvstream.memory.selection.base import LayerSlots


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
    threshold = scores.kthvalue(slots - keep + 1, dim=-1, keepdim=True).values
    mask = scores >= threshold
    if mask.sum(-1).tolist() == [keep] * len(mask):
        return mask
    if scores.is_floating_point() and bool(scores.isnan().any()):
        return top_mask(torch.nan_to_num(scores, -torch.inf, torch.inf, -torch.inf), keep, view)
    above = scores > threshold
    missing = keep - above.sum(-1, keepdim=True)
    return above | _first_of(mask & ~above, missing, None if view is None else recency(view))


def keep_top(scores: Tensor, keep: int, view: LayerSlots | None = None) -> Tensor:
    """Indices of ``top_mask``, ascending int64 [rows, keep]."""
    return indices_of(top_mask(scores, keep, view))


def indices_of(mask: Tensor) -> Tensor:
    """Where a mask [rows, slots] with equally many True in every row is True, ascending int64 [rows, n]."""
    return mask.nonzero()[:, 1].view(mask.shape[0], -1)


def _first_of(tied: Tensor, missing: Tensor, tie_order: Tensor | None) -> Tensor:
    """Leave the ``missing`` first of the ``tied`` slots per row: higher tie order first, then higher index."""
    slots = tied.shape[-1]
    order = torch.arange(slots - 1, -1, -1, device=tied.device).expand_as(tied)
    if tie_order is not None:
        order = order.gather(-1, tie_order.gather(-1, order).argsort(dim=-1, descending=True, stable=True))
    chosen = tied.gather(-1, order)
    chosen &= chosen.cumsum(-1) <= missing
    return torch.zeros_like(tied).scatter_(-1, order, chosen)
