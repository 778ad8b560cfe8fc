# SPDX-License-Identifier: Apache-2.0
"""The slot table, and how kept slots move in place.

The table says what each slot of a layer holds, per KV head. Slots carry their own positions, so their order is free: in
a compaction, kept rows behind ``keep`` move into the holes in front of it and nothing else moves, where a gather would
copy everything that stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NO_FRAME = -1
"""Frame id of slots that hold text."""


@dataclass(frozen=True)
class Chunk:
    """Tokens to append, the same for every layer and KV head."""

    positions: Tensor
    """(t, h, w), int32 [tokens, 3]."""
    frames: Tensor
    """int32 [tokens]."""
    cameras: Tensor
    """int16 [tokens]."""

    @classmethod
    def of_text(cls, positions: Tensor) -> Chunk:
        """Tokens that belong to no frame, at int32 [tokens, 3]."""
        count = len(positions)
        return cls(positions, torch.full((count,), NO_FRAME, dtype=torch.int32), torch.zeros(count, dtype=torch.int16))


@dataclass
class SlotTable:
    """One layer's slot table."""

    positions: Tensor
    """(t, h, w), int32 [kv_heads, slots, 3]."""
    frames: Tensor
    """Frame id, int32 [kv_heads, slots]; NO_FRAME for text."""
    cameras: Tensor
    """Camera id, int16 [kv_heads, slots]."""
    value_norms: Tensor
    """L2 norms of the values when they were appended, float32 [kv_heads, slots]."""
    key_norms: Tensor
    """L2 norms of the keys when they were appended, float32 [kv_heads, slots]."""

    @classmethod
    def allocate(cls, kv_heads: int, slots: int, device: torch.device) -> SlotTable:
        """Empty slots."""
        rows = (kv_heads, slots)
        return cls(
            positions=torch.zeros((*rows, 3), dtype=torch.int32, device=device),
            frames=torch.full(rows, NO_FRAME, dtype=torch.int32, device=device),
            cameras=torch.zeros(rows, dtype=torch.int16, device=device),
            value_norms=torch.zeros(rows, dtype=torch.float32, device=device),
            key_norms=torch.zeros(rows, dtype=torch.float32, device=device),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The columns by name."""
        return {column.name: getattr(self, column.name) for column in fields(self)}

    def write(self, start: int, chunk: Chunk, keys: Tensor, values: Tensor) -> None:
        """Describe a chunk with these keys and values, [kv_heads, tokens, head_dim], from slot ``start`` on."""
        rows = slice(start, start + keys.shape[1])
        self.positions[:, rows] = chunk.positions
        self.frames[:, rows] = chunk.frames
        self.cameras[:, rows] = chunk.cameras
        self.value_norms[:, rows] = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32)
        self.key_norms[:, rows] = torch.linalg.vector_norm(keys, dim=-1, dtype=torch.float32)

    def resize(self, slots: int) -> None:
        """Allocate another number of slots, one column at a time."""
        for name, column in self.tensors().items():
            setattr(self, name, resized(column, slots))


def resized(old: Tensor, slots: int) -> Tensor:
    """A copy of [kv_heads, slots, ...] with another number of slots, new ones zero."""
    new = old.new_zeros((old.shape[0], slots, *old.shape[2:]))
    rows = min(slots, old.shape[1])
    new[:, :rows] = old[:, :rows]
    return new


_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
"""NumPy's integer types by their bytes, which it copies faster than items of as many bytes."""


def flat_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a tensor [kv_heads, slots, ...] as a list of rows without a copy: (rows [n, ...], rows per head).

    Slot ``s`` of head ``h`` is row ``h * rows_per_head + s``; the rows between two heads are slots outside the tensor.
    """
    heads, slots = tensor.shape[:2]
    if tensor.is_contiguous():
        return tensor.flatten(0, 1), slots
    if slots == 0 or tensor.stride(1) == 0 or tensor.stride(0) % tensor.stride(1):
        return tensor.reshape(heads * slots, *tensor.shape[2:]), slots
    per_head = tensor.stride(0) // tensor.stride(1) if heads > 1 else slots
    if per_head < slots:
        return tensor.reshape(heads * slots, *tensor.shape[2:]), slots
    shape = ((heads - 1) * per_head + slots, *tensor.shape[2:])
    return tensor.as_strided(shape, tensor.stride()[1:]), per_head


@dataclass(frozen=True)
class TensorRows:
    """A tensor [kv_heads, slots, ...] as a list of rows that can be moved in place."""

    rows: Tensor
    """[n, ...], see ``flat_rows``."""
    per_head: int
    items: NDArray[Any] | None
    """The same memory with each row as one item, which NumPy copies whole; None off the CPU."""

    @classmethod
    def of(cls, tensor: Tensor) -> TensorRows:
        """Raises ValueError for a tensor whose rows cannot be listed without a copy."""
        rows, per_head = flat_rows(tensor)
        if rows.data_ptr() != tensor.data_ptr():
            raise ValueError(f"a tensor with strides {tensor.stride()} cannot be compacted in place")
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


def kept_mask(kept: Tensor, slots: int) -> Tensor:
    """Return kept indices int64 [kv_heads, keep] as bool [kv_heads, slots], one byte a slot."""
    mask = torch.zeros(kept.shape[0], slots, dtype=torch.bool, device=kept.device)
    return mask.scatter_(1, kept, True)


def count_true(mask: Tensor) -> int:
    """Return how many elements are True."""
    return int(np.count_nonzero(mask.numpy())) if mask.device.type == "cpu" else int(mask.sum())


def fill_holes(tensors: Sequence[TensorRows], kept: Tensor, first: int = 0) -> None:
    """Move every kept row into the first ``keep`` rows from ``first`` on, in place; the rows behind are free then.

    :param tensors: those of one layer (keys, values, slot table); rows before ``first`` and behind the mask stay.
    :param kept: bool [kv_heads, slots], slot ``s`` is row ``first + s``; every head has the same number of True.
        The extra memory is that of the rows that move, of one tensor at a time.
    """
    keep = count_true(kept[0])
    is_hole = kept[:, :keep].logical_not()
    moves: dict[int, tuple[Tensor, Tensor]] = {}
    for tensor in tensors:
        stride = tensor.per_head
        if stride not in moves:
            moves[stride] = _rows_where(kept[:, keep:], stride, first + keep), _rows_where(is_hole, stride, first)
        sources, holes = moves[stride]
        if sources.numel() != holes.numel():
            raise ValueError("every KV head must keep the same number of distinct slots")
        if sources.numel():
            tensor.move(sources, holes)


def _rows_where(mask: Tensor, per_head: int, first: int) -> Tensor:
    """Flat row numbers of the True in a mask [kv_heads, n] whose column 0 is slot ``first``; int64, ascending."""
    if mask.device.type != "cpu":
        head, slot = mask.nonzero(as_tuple=True)
        return head * per_head + slot + first
    found = [np.flatnonzero(row) + (head * per_head + first) for head, row in enumerate(mask.numpy())]
    return torch.from_numpy(np.concatenate(found))
