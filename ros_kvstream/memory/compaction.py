"""In-place compaction: kept rows from the tail move into the holes below ``keep``; nothing else moves.

Slots carry their own positions, so their order is free: only as many rows move as there are holes, instead of a gather
of everything that stays into a second copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ros_kvstream.memory.rows import flat_rows, move_rows, rows_where


def kept_mask(kept: Tensor, slots: int) -> Tensor:
    """Kept indices int64 [kv_heads, keep] as bool [kv_heads, slots]: a byte a slot, to hold for all layers at once."""
    mask = torch.zeros(kept.shape[0], slots, dtype=torch.bool, device=kept.device)
    return mask.scatter_(1, kept, True)


def fill_holes(planes: Sequence[Tensor], kept: Tensor) -> None:
    """Move every kept row into the first ``keep`` rows, in place; rows from ``keep`` on are free afterwards.

    :param planes: tensors [kv_heads, slots, ...] of one layer (keys, values, slot table); each may be a view of the
        first two axes of a larger one.
    :param kept: int64 [kv_heads, keep] of distinct slots per head, or bool [kv_heads, slots] with as many per head.
        The extra memory is that of the rows that move, of one plane at a time.
    """
    if not planes:
        return
    heads, slots = planes[0].shape[:2]
    for plane in planes:
        if plane.shape[:2] != (heads, slots):
            raise ValueError(f"a plane has shape {tuple(plane.shape)}; its first axes must be {(heads, slots)}")
    mask = kept if kept.dtype == torch.bool else kept_mask(kept, slots)
    keep = int(mask[0].sum()) if kept.dtype == torch.bool else kept.shape[1]
    per_head, sources, holes = -1, mask, mask
    is_hole = mask[:, :keep].logical_not()
    for plane in planes:
        rows, stride = flat_rows(plane)
        if rows.data_ptr() != plane.data_ptr():
            raise ValueError(f"a plane with strides {plane.stride()} cannot be compacted in place")
        if stride != per_head:
            per_head = stride
            sources, holes = rows_where(mask[:, keep:], stride, keep), rows_where(is_hole, stride)
            if sources.numel() != holes.numel():
                raise ValueError("every KV head must keep the same number of distinct slots")
        if sources.numel():
            move_rows(rows, sources, holes)
