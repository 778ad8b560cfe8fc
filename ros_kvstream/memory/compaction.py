"""In-place compaction: kept rows from the tail move into the holes below ``keep``; nothing else moves.

Slots carry their own positions, so their order is free: only as many rows move as there are holes, instead of a gather
of everything that stays into a second copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def holes_and_sources(kept: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Which rows move where: (sources, holes), flat int64 row numbers over [kv_heads * slots], equally long.

    :param kept: int64 [kv_heads, keep], per head distinct slots below ``slots``.
    Sources are the kept slots at or above ``keep``, holes the slots below ``keep`` that are not kept, both ascending
    per head; each head has as many of the one as of the other.
    """
    heads, keep = kept.shape
    stays = torch.zeros(heads, slots, dtype=torch.bool, device=kept.device)
    stays.scatter_(1, kept, True)
    row_start = torch.arange(heads, device=kept.device) * slots
    tail_head, tail_slot = stays[:, keep:].nonzero(as_tuple=True)
    hole_head, hole_slot = stays[:, :keep].logical_not_().nonzero(as_tuple=True)
    return row_start[tail_head] + tail_slot + keep, row_start[hole_head] + hole_slot


def fill_holes(planes: Sequence[Tensor], kept: Tensor) -> None:
    """Move every kept row into the first ``keep`` rows, in place; rows from ``keep`` on are free afterwards.

    :param planes: tensors [kv_heads, slots, ...] of one layer (keys, values, slot table), rows contiguous; a plane
        may be a view of a larger one ([kv_heads, :slots] of more slots) as long as its last axes are contiguous.
    :param kept: int64 [kv_heads, keep], per head distinct. The extra memory is that of the rows that move, of one
        plane at a time.
    """
    if not planes:
        return
    heads, keep = kept.shape
    slots = planes[0].shape[1]
    if keep >= slots:
        return
    sources, holes = holes_and_sources(kept, slots)
    if sources.numel() == 0:
        return
    for plane in planes:
        if plane.shape[:2] != (heads, slots):
            raise ValueError(f"a plane has shape {tuple(plane.shape)}; the first axes must be {(heads, slots)}")
        if plane.is_contiguous():
            rows = plane.flatten(0, 1)
            rows.index_copy_(0, holes, rows.index_select(0, sources))
        else:
            from_head, from_slot = sources // slots, sources % slots
            to_head, to_slot = holes // slots, holes % slots
            plane[to_head, to_slot] = plane[from_head, from_slot]
