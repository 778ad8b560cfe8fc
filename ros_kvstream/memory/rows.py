"""The rows of a plane as one flat list, so that all KV heads are read and written in one call."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def flat_rows(plane: Tensor) -> tuple[Tensor, int]:
    """A plane [kv_heads, slots, ...] as one list of rows without a copy: (rows [n, ...], rows from head to head).

    Slot ``s`` of head ``h`` is row ``h * rows_per_head + s``; between the heads lie rows of slots outside the view.
    """
    heads, slots = plane.shape[:2]
    if slots == 0 or plane.stride(1) == 0 or plane.stride(0) % plane.stride(1):
        return plane.reshape(heads * slots, *plane.shape[2:]), slots
    per_head = plane.stride(0) // plane.stride(1) if heads > 1 else slots
    if per_head < slots:
        return plane.reshape(heads * slots, *plane.shape[2:]), slots
    shape = ((heads - 1) * per_head + slots, *plane.shape[2:])
    return plane.as_strided(shape, plane.stride()[1:]), per_head


def rows_where(mask: Tensor, per_head: int, first: int = 0) -> Tensor:
    """Flat row numbers of the True in a mask [kv_heads, n] whose column 0 is slot ``first``; int64, ascending."""
    if mask.device.type != "cpu":
        head, slot = mask.nonzero(as_tuple=True)
        return head * per_head + slot + first
    found = [np.flatnonzero(row) + (head * per_head + first) for head, row in enumerate(mask.numpy())]
    return torch.from_numpy(np.concatenate(found))


def move_rows(rows: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy rows [n, ...] from ``sources`` to ``targets`` (flat int64 row numbers, no row in both), in place."""
    wide = rows.dim() > 1 and rows.device.type == "cpu"
    row_bytes = rows.stride(0) * rows.element_size()
    if wide and rows.is_contiguous() and row_bytes > 16:
        # NumPy copies a row as one item of that many bytes, torch element by element.
        items = rows.view(torch.uint8).numpy().reshape(len(rows), row_bytes).view(f"V{row_bytes}")[:, 0]
        items[targets.numpy()] = items.take(sources.numpy())
    else:
        rows.index_copy_(0, targets, rows.index_select(0, sources))
