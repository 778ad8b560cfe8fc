"""In-place compaction: kept rows from the tail move into the holes below ``keep``; nothing else moves.

Slots carry their own positions, so their order is free: only as many rows move as there are holes, instead of a gather
of everything that stays into a second copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ros_kvstream.memory.rows import PlaneRows, count_true, rows_where


def kept_mask(kept: Tensor, slots: int) -> Tensor:
    """Kept indices int64 [kv_heads, keep] as bool [kv_heads, slots]: a byte a slot, to hold for all layers at once."""
    mask = torch.zeros(kept.shape[0], slots, dtype=torch.bool, device=kept.device)
    return mask.scatter_(1, kept, True)


def fill_holes(planes: Sequence[PlaneRows], kept: Tensor, first: int = 0) -> None:
    """Move every kept row into the first ``keep`` rows from ``first`` on, in place; those behind are free afterwards.

    :param planes: of one layer: keys, values, slot table. Rows before ``first`` and behind the mask are left alone.
    :param kept: bool [kv_heads, slots], slot ``s`` being row ``first + s``, with as many True in every head.
        The extra memory is that of the rows that move, of one plane at a time.
    """
    keep = count_true(kept[0])
    is_hole = kept[:, :keep].logical_not()
    moves: dict[int, tuple[Tensor, Tensor]] = {}
    for plane in planes:
        stride = plane.per_head
        if stride not in moves:
            moves[stride] = rows_where(kept[:, keep:], stride, first + keep), rows_where(is_hole, stride, first)
        sources, holes = moves[stride]
        if sources.numel() != holes.numel():
            raise ValueError("every KV head must keep the same number of distinct slots")
        if sources.numel():
            plane.move(sources, holes)
