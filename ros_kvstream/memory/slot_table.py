# SPDX-License-Identifier: Apache-2.0
"""The slot table: what each slot of a layer holds, per KV head."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
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
