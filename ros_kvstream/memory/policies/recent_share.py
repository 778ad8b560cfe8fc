"""Which slots are recent: the newest whole frames inside a share of what is kept; they always stay."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots
from ros_kvstream.memory.policies.once_per_table import once_per_table


@dataclass(frozen=True)
class RecentSlots:
    """The slots of the newest frames."""

    mask: Tensor
    """bool [kv_heads, slots]."""
    most: int
    """How many they are in the head that has most of them."""
    older: int | None = None
    """In every head the first so many slots are not recent and all others are; None where slots lie otherwise."""


@once_per_table
def recent_slots(view: LayerSlots, keep: int, share: float) -> RecentSlots:
    """The newest whole frames whose slots fit into ``share`` of ``keep``.

    The newest frame is always recent (unless the share is 0), even where it alone is larger than the share; what of
    it does not fit into ``keep`` is for the caller to cut, newest first.
    """
    if share <= 0.0:
        return RecentSlots(torch.zeros_like(view.frames, dtype=torch.bool), 0)
    fits = min(int(share * keep), view.slots - 1)
    # All frames newer than the first slot that no longer fits are whole.
    first_out = view.frames.kthvalue(view.slots - fits, dim=-1, keepdim=True).values
    newest = view.frames.amax(-1, keepdim=True)
    mask = view.frames >= torch.minimum(first_out + 1, newest)
    most = int(mask.sum(-1).max())
    older = view.slots - most
    # Looked for only where many layers share the answer.
    behind = view.table is not None and bool(mask[:, older:].all()) and not bool(mask[:, :older].any())
    return RecentSlots(mask, most, older if behind else None)
