"""The rows of a plane as one flat list, so that all KV heads are read and written in one call."""

from __future__ import annotations

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


def widest(rows: Tensor) -> Tensor:
    """Rows [n, dim] seen as 16-byte numbers where that is possible: row copies then take a fraction of the steps."""
    wide = torch.complex128
    if rows.dim() != 2 or rows.stride(-1) != 1 or rows.stride(0) != rows.shape[1]:
        return rows
    if rows.shape[1] * rows.element_size() % wide.itemsize or rows.data_ptr() % wide.itemsize:
        return rows
    if rows.storage_offset() * rows.element_size() % wide.itemsize:
        return rows
    return rows.view(wide)
