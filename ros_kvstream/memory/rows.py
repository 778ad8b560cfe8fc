"""The rows of a plane as one flat list, so that all KV heads are read and written in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
"""NumPy's plain types by their bytes: faster than as items of that many bytes."""


def flat_rows(plane: Tensor) -> tuple[Tensor, int]:
    """A plane [kv_heads, slots, ...] as one list of rows without a copy: (rows [n, ...], rows from head to head).

    Slot ``s`` of head ``h`` is row ``h * rows_per_head + s``; between the heads lie rows of slots outside the view.
    """
    heads, slots = plane.shape[:2]
    if plane.is_contiguous():
        return plane.flatten(0, 1), slots
    if slots == 0 or plane.stride(1) == 0 or plane.stride(0) % plane.stride(1):
        return plane.reshape(heads * slots, *plane.shape[2:]), slots
    per_head = plane.stride(0) // plane.stride(1) if heads > 1 else slots
    if per_head < slots:
        return plane.reshape(heads * slots, *plane.shape[2:]), slots
    shape = ((heads - 1) * per_head + slots, *plane.shape[2:])
    return plane.as_strided(shape, plane.stride()[1:]), per_head


@dataclass(frozen=True)
class PlaneRows:
    """A plane [kv_heads, slots, ...] as one list of rows, ready to be moved in place."""

    rows: Tensor
    """[n, ...], see ``flat_rows``."""
    per_head: int
    items: NDArray[Any] | None
    """The same memory with each row as one item of that many bytes, which NumPy copies whole; None off the CPU."""

    @classmethod
    def of(cls, plane: Tensor) -> PlaneRows:
        """Raises ValueError for a plane whose rows are not one list in memory."""
        rows, per_head = flat_rows(plane)
        if rows.data_ptr() != plane.data_ptr():
            raise ValueError(f"a plane with strides {plane.stride()} cannot be compacted in place")
        items = None
        if rows.device.type == "cpu" and rows.is_contiguous() and rows.numel():
            row_bytes = rows.stride(0) * rows.element_size()
            items = rows.view(torch.uint8).numpy().reshape(-1).view(_WORDS.get(row_bytes) or f"V{row_bytes}")
        return cls(rows, per_head, items)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows from ``sources`` to ``targets`` (flat int64 row numbers, no row in both)."""
        if self.items is not None:
            self.items[targets.numpy()] = self.items.take(sources.numpy())
        else:
            self.rows.index_copy_(0, targets, self.rows.index_select(0, sources))


def count_true(mask: Tensor) -> int:
    """How many are True."""
    return int(np.count_nonzero(mask.numpy())) if mask.device.type == "cpu" else int(mask.sum())


def rows_where(mask: Tensor, per_head: int, first: int = 0) -> Tensor:
    """Flat row numbers of the True in a mask [kv_heads, n] whose column 0 is slot ``first``; int64, ascending."""
    if mask.device.type != "cpu":
        head, slot = mask.nonzero(as_tuple=True)
        return head * per_head + slot + first
    found = [np.flatnonzero(row) + (head * per_head + first) for head, row in enumerate(mask.numpy())]
    return torch.from_numpy(np.concatenate(found))
