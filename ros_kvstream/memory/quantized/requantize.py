# SPDX-License-Identifier: Apache-2.0
"""Moving slots between tiers: only rows that change tier are decoded and quantized again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.quantized.codec import QuantizedCodec
from ros_kvstream.memory.quantized.packing import Packed, empty_packed

TIERS = (4, 8)
"""Bits of the packed tiers in the order in which they lie; the slots in native dtype lie behind them."""
NATIVE = 0
"""Stands for the native dtype."""


@dataclass(frozen=True)
class FrameRows:
    """One layer's frame keys, or frame values, in three precisions."""

    codec: QuantizedCodec
    packed: dict[int, Packed]
    """Bits -> rows of that tier."""
    native: Tensor
    """Rows in native dtype from the first frame on, [kv_heads, rows, head_dim]."""
    key_mean: Tensor | None
    """Float32 [kv_heads, 1, head_dim] for keys, None for values."""
    positions: Tensor
    """Of all frame slots, int [kv_heads, slots, 3]."""
    counts: dict[int, int]
    """Bits -> slots in use of that tier; all others are in native dtype."""

    def rearrange(self, order: Tensor, counts: dict[int, int]) -> None:
        """Keep the frame slots ``order``, int64 [kv_heads, keep], in this order, divided over the tiers anew."""
        spans = _spans(counts, order.shape[1])
        packed = {bits: self._packed(bits, order[:, spans[bits]]) for bits in TIERS}
        native = self._native(order[:, spans[NATIVE]])
        for bits, made in packed.items():
            for name, tensor in self.packed[bits].rows(slice(0, made.codes.shape[1])).tensors().items():
                tensor.copy_(made.tensors()[name])
        self.native[:, : native.shape[1]] = native

    def _packed(self, bits: int, slots: Tensor) -> Packed:
        made = empty_packed(tuple(slots.shape), self.native.shape[-1], bits, self.codec.group, self.native.device)
        for tier, heads, columns, rows in self._by_tier(slots):
            if tier == bits:
                moved = {name: tensor[heads, rows] for name, tensor in self.packed[bits].tensors().items()}
            else:
                mean = None if self.key_mean is None else self.key_mean[heads, 0]
                moved = self.codec.encode(self._raw(tier, heads, rows), bits, mean).tensors()
            for name, tensor in made.tensors().items():
                tensor[heads, columns] = moved[name]
        return made

    def _native(self, slots: Tensor) -> Tensor:
        made = self.native.new_empty((*slots.shape, self.native.shape[-1]))
        for tier, heads, columns, rows in self._by_tier(slots):
            if tier == NATIVE:
                made[heads, columns] = self.native[heads, rows]
                continue
            raw = self._raw(tier, heads, rows)
            if self.key_mean is not None:
                positions = self.positions[heads, slots[heads, columns]]
                raw = self.codec.rotary.rotate(raw[None], positions[None], out=raw[None])[0]
            made[heads, columns] = raw.to(made.dtype)
        return made

    def _by_tier(self, slots: Tensor) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Per tier that holds some of ``slots`` [kv_heads, n]: KV heads, columns of ``slots``, rows within the tier."""
        for tier, span in _spans(self.counts, self.positions.shape[1]).items():
            heads, columns = ((slots >= span.start) & (slots < span.stop)).nonzero(as_tuple=True)
            if len(heads):
                yield tier, heads, columns, slots[heads, columns] - span.start

    def _raw(self, tier: int, heads: Tensor, rows: Tensor) -> Tensor:
        """Values, or keys before rotation, float32 [n, head_dim]."""
        out = torch.empty((1, len(rows), self.native.shape[-1]), dtype=torch.float32, device=self.native.device)
        if tier == NATIVE:
            picked = self.native[heads, rows][None]
            if self.key_mean is None:
                return out.copy_(picked)[0]
            positions = self.positions[heads, rows + sum(self.counts.values())]
            return self.codec.rotary.unrotate(picked, positions[None], out=out)[0]
        packed = self.packed[tier].map(lambda tensor: tensor[heads, rows][None])
        self.codec.decode(packed, out, None if self.key_mean is None else self.key_mean[heads, 0][None])
        return out[0]


def _spans(counts: dict[int, int], slots: int) -> dict[int, slice]:
    """Tier -> its frame slots."""
    first, packed = counts[4], counts[4] + counts[8]
    return {4: slice(0, first), 8: slice(first, packed), NATIVE: slice(packed, slots)}
