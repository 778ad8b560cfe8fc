# SPDX-License-Identifier: Apache-2.0
"""The packed part of a mixed-precision arena: frame slots in 8 and in 4 bits.

Slots of such an arena lie in the order prompt, 4-bit frames, 8-bit frames, frames in native dtype, question: an append
always goes to the end and is exact. Frame slots have an order, worst first, by which they are divided over the tiers.
Only rows that change tier are decoded and quantized again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ros_kvstream.memory.budget import BudgetPlan
from ros_kvstream.memory.quantized.packing import Packed, QuantizedCodec, empty_packed
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.memory.slot_table import resized

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


@dataclass
class _PackedLayer:
    keys: dict[int, Packed]
    """Bits -> keys before rotation, minus ``key_mean``, [kv_heads, slots of the tier, ...]."""
    values: dict[int, Packed]
    key_mean: Tensor
    """Mean of the keys before rotation, float32 [kv_heads, 1, head_dim]; fixed when the first slots are packed."""


class PackedTiers:
    """Packed keys and values of all layers, and how many slots of each tier are in use."""

    def __init__(self, plan: BudgetPlan, rotary: Rotary, device: torch.device, order: str) -> None:
        """Allocate the packed slots of ``plan``; ``order`` as in QuantizedSettings."""
        shape = plan.shape

        def tiers() -> dict[int, Packed]:
            return {
                bits: empty_packed((shape.kv_heads, plan.tier_slots(bits)), shape.head_dim, bits, plan.group, device)
                for bits in TIERS
            }

        def key_mean() -> Tensor:
            return torch.zeros((shape.kv_heads, 1, shape.head_dim), dtype=torch.float32, device=device)

        self._order = order
        self._layers = [_PackedLayer(tiers(), tiers(), key_mean()) for _ in range(shape.layers)]
        self.codec = QuantizedCodec(shape.head_dim, plan.group, rotary, device)
        self.clear()

    def clear(self) -> None:
        """Empty all tiers; the key means are taken anew."""
        self.counts = dict.fromkeys(TIERS, 0)
        self._key_mean_known = False

    @property
    def slots(self) -> int:
        """Packed slots in use; they lie right behind the prompt."""
        return sum(self.counts.values())

    def tensors(self, index: int) -> dict[str, Tensor]:
        """One layer's tensors by name."""
        layer = self._layers[index]
        packed = {
            f"int{bits}.{kind}.{name}": tensor
            for kind, tiers in (("keys", layer.keys), ("values", layer.values))
            for bits, tier in tiers.items()
            for name, tensor in tier.tensors().items()
        }
        return packed | {"key_mean": layer.key_mean}

    def decode(self, index: int, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Write one layer's packed slots into ``keys`` and ``values``, [kv_heads, slots, head_dim].

        :param positions: of these slots, [kv_heads, slots, 3]; the keys are rotated to them.
        """
        layer, start = self._layers[index], 0
        for bits in TIERS:
            span, rows = slice(start, start + self.counts[bits]), slice(0, self.counts[bits])
            self.codec.decode(layer.keys[bits].rows(rows), keys[:, span], layer.key_mean, positions[:, span])
            self.codec.decode(layer.values[bits].rows(rows), values[:, span])
            start = span.stop

    def selection_sizes(self, plan: BudgetPlan, keep: int) -> list[int]:
        """Numbers of slots that a policy selects for ``keep`` of them to stay.

        By order "policy" these are also what gets 8 bits or more, and what stays in native dtype.
        """
        counts = self.divided(plan, keep, 0)
        full = keep - counts[8] - counts[4]
        finer = (full + counts[8], full) if self._order == "policy" else ()
        return [keep, *(size for size in finer if 0 < size < keep)]

    def divided(self, plan: BudgetPlan, keep: int, tokens: int) -> dict[int, int]:
        """Slots of each packed tier for ``keep`` frame slots: with as many bits as fit.

        Half of the native part, or ``tokens`` slots if that is more, is left for new frames.
        """
        full = min(keep, plan.full_frame_slots - max(tokens, plan.full_frame_slots // 2))
        full = max(full, keep - plan.int8_slots - plan.int4_slots)
        int8 = min(keep - full, plan.int8_slots)
        return {4: keep - full - int8, 8: int8}

    def fitted(self, plan: BudgetPlan, frame_slots: int) -> dict[int, int]:
        """Slots of each packed tier under another plan: as now where they fit, else moved one tier down or up."""
        int8, int4 = min(self.counts[8], plan.int8_slots), min(self.counts[4], plan.int4_slots)
        missing = frame_slots - int8 - int4 - plan.full_frame_slots
        if missing > 0:
            more = min(missing, plan.int8_slots - int8)
            int8, int4 = int8 + more, int4 + missing - more
        return {4: int4, 8: int8}

    def rearrange(
        self, index: int, native: tuple[Tensor, Tensor], positions: Tensor, order: Tensor, counts: dict[int, int],
        scratch: Tensor,
    ) -> None:  # fmt: skip
        """Keep one layer's frame slots ``order``, in this order; call ``set_counts`` after the last layer.

        :param native: keys and values in native dtype from the first frame on; :param positions: of all frame slots.
        :param order: int64 [kv_heads, keep], worst first; :param counts: bits -> slots of that tier afterwards.
        """
        layer, (keys, values) = self._layers[index], native
        if not self._key_mean_known:
            slots = positions.shape[1]
            raw = self.codec.rotary.unrotate(keys[:, :slots], positions, out=scratch[:, :slots])
            layer.key_mean.copy_(raw.mean(1, keepdim=True))
        FrameRows(self.codec, layer.keys, keys, layer.key_mean, positions, self.counts).rearrange(order, counts)
        FrameRows(self.codec, layer.values, values, None, positions, self.counts).rearrange(order, counts)

    def set_counts(self, counts: dict[int, int]) -> None:
        """Set the slots in use of each tier; the key means are fixed with the first."""
        self._key_mean_known = self._key_mean_known or sum(counts.values()) > 0
        self.counts = dict(counts)

    def resize(self, index: int, plan: BudgetPlan) -> None:
        """Give one layer the packed slots of another plan."""
        for tiers in (self._layers[index].keys, self._layers[index].values):
            for bits, tier in tiers.items():
                tiers[bits] = tier.map(partial(resized, slots=plan.tier_slots(bits)))

    def state_dict(self) -> dict[str, Any]:
        """The slots in use of each tier, and whether the key means are fixed."""
        return {"int4": self.counts[4], "int8": self.counts[8], "key_mean_known": self._key_mean_known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``; the tensors are copied by the caller."""
        self.counts = {4: state["int4"], 8: state["int8"]}
        self._key_mean_known = state["key_mean_known"]
