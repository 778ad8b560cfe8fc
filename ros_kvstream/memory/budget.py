# SPDX-License-Identifier: Apache-2.0
"""Bytes to slots: counts everything that the arena allocates before any of it is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ros_kvstream.errors import BudgetError
from ros_kvstream.memory.quantized.packing import packed_bytes
from ros_kvstream.settings import QuantizedSettings

MIB = 1 << 20

TABLE_BYTES = 3 * 4 + 4 + 2 + 2 * 4
"""Slot table per slot, layer and KV head: position (3 x int32), frame (int32), camera (int16), 2 norms (float32)."""
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class CacheShape:
    """Shape of a model's KV cache."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def key_bytes(self) -> int:
        """Bytes of one slot's keys in one layer (all KV heads); its values take as many."""
        return self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers, as a plain cache stores them."""
        return 2 * self.layers * self.key_bytes

    @property
    def table_row_bytes(self) -> int:
        """Bytes of one slot's row of the slot table in all layers and KV heads."""
        return self.layers * self.kv_heads * TABLE_BYTES

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in all layers: keys, values and slot table."""
        return self.token_bytes + self.table_row_bytes

    @property
    def scratch_row_bytes(self) -> int:
        """Bytes of scratch per frame slot: one layer's keys in float32, shared by all layers."""
        return self.kv_heads * self.head_dim * FLOAT32_BYTES


@dataclass(frozen=True)
class BudgetPlan:
    """How a byte budget is divided into slots; made by :func:`plan_budget`."""

    shape: CacheShape
    budget_bytes: int
    pinned_slots: int
    """Slots of the prompt before the frames; never evicted."""
    frame_slots: int
    """Slots for frames; the policies choose among these."""
    reserve_slots: int
    """Slots kept free for retrieved frames, the question and its answer."""
    int4_slots: int = 0
    """Frame slots in 4 bits."""
    int8_slots: int = 0
    """Frame slots in 8 bits."""
    group: int = 0
    """Channels that share a scale and a zero point in a quantized arena; divides head_dim. 0: a native arena."""

    @property
    def quantized(self) -> bool:
        """Whether the plan is for a quantized (mixed-precision) arena."""
        return self.group > 0

    @property
    def slots(self) -> int:
        """All slots per layer and KV head."""
        return self.pinned_slots + self.frame_slots + self.reserve_slots

    @property
    def full_frame_slots(self) -> int:
        """Frame slots in the model's native dtype."""
        return self.frame_slots - self.int4_slots - self.int8_slots

    @property
    def full_slots(self) -> int:
        """Slots in the model's native dtype: prompt, frames, question and answer."""
        return self.pinned_slots + self.full_frame_slots + self.reserve_slots

    def tier_slots(self, bits: int) -> int:
        """Slots of the tier with codes of 4 or 8 bits."""
        return self.int4_slots if bits == 4 else self.int8_slots

    def packed_slot_bytes(self, bits: int) -> int:
        """Bytes of one packed slot's keys and values in all layers and KV heads, scales included."""
        rows = 2 * self.shape.layers * self.shape.kv_heads
        return rows * packed_bytes(self.shape.head_dim, bits, self.group)

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales and zero points of all packed slots."""
        codes = 2 * self.shape.layers * self.shape.kv_heads * self.shape.head_dim
        return sum(self.tier_slots(bits) * (self.packed_slot_bytes(bits) - codes * bits // 8) for bits in (8, 4))

    @property
    def parts(self) -> dict[str, int]:
        """Bytes per allocated part."""
        shape, native = self.shape, self.full_slots * self.shape.token_bytes
        table = self.slots * shape.table_row_bytes
        scratch = self.frame_slots * shape.scratch_row_bytes
        if not self.quantized:
            return {"keys": native // 2, "values": native // 2, "slot table": table, "scratch": scratch}
        return {
            "full": native,
            "int8": self.int8_slots * self.packed_slot_bytes(8),
            "int4": self.int4_slots * self.packed_slot_bytes(4),
            "slot table": table,
            "key means": shape.layers * shape.kv_heads * shape.head_dim * FLOAT32_BYTES,
            "transform": shape.head_dim**2 * FLOAT32_BYTES,
            "scratch": scratch,
            "decoded layer": 2 * self.slots * shape.key_bytes,
        }

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors that are allocated; never above ``budget_bytes``."""
        return sum(self.parts.values())

    def used_bytes(self, full: int, int8: int = 0, int4: int = 0) -> int:
        """Bytes of this many slots of each precision: keys, values, scales and slot table."""
        packed = sum(count * self.packed_slot_bytes(bits) for bits, count in ((8, int8), (4, int4)) if count)
        return full * self.shape.token_bytes + packed + (full + int8 + int4) * self.shape.table_row_bytes


def smallest_budget(
    shape: CacheShape, pinned: int, reserve: int, frame_slots: int, quantized: QuantizedSettings | None = None
) -> int:
    """Bytes of an arena with ``frame_slots`` frame slots in the model's native dtype.

    :param quantized: counts the scratch of a quantized arena where its mode is "on".
    """
    return BudgetPlan(shape, 0, pinned, frame_slots, reserve, group=_group(shape, quantized)).allocated_bytes


def plan_budget(
    shape: CacheShape, budget_bytes: int, quantized: QuantizedSettings | None = None, *, pinned: int, reserve: int,
    frame_tokens: int,
) -> BudgetPlan:  # fmt: skip
    """Divide ``budget_bytes`` into the largest number of slots.

    :param quantized: shares of the precisions; None or mode "off" for an arena in the model's native dtype.
    :param pinned: tokens of the prompt before the frames.
    :param reserve: tokens of the longest question, answer and retrieved context together.
    :param frame_tokens: tokens of the largest block of frames that is appended at once. Two blocks must fit in the
        model's native dtype: one that a compaction keeps, and one that is appended.
    :raises BudgetError: when the budget is too small; the message names the minimum.
    """

    def divided(frame_slots: int) -> BudgetPlan:
        """The plan with this many frame slots, of which two blocks of frames stay in the native dtype."""
        int4 = int8 = 0
        if quantized is not None and group:
            packable = max(0, frame_slots - 2 * frame_tokens)
            int4 = min(int(quantized.int4 * frame_slots), packable)
            int8 = min(int(quantized.int8 * frame_slots), packable - int4)
        return BudgetPlan(shape, budget_bytes, pinned, frame_slots, reserve, int4, int8, group)

    group = _group(shape, quantized)
    needed = smallest_budget(shape, pinned, reserve, 2 * frame_tokens, quantized)
    if needed > budget_bytes:
        raise BudgetError(
            f"memory.budget_mib = {budget_bytes / MIB:.4g} is too small: {pinned} prompt slots, {reserve} slots for "
            f"questions and answers and 2 x {frame_tokens} frame slots need {needed} bytes. "
            f"Set memory.budget_mib to at least {-(-needed * 1000 // MIB) / 1000:g}."
        )
    low, high = 2 * frame_tokens, 2 * frame_tokens + budget_bytes // shape.table_row_bytes
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if divided(middle).allocated_bytes <= budget_bytes else (low, middle - 1)
    return divided(low)


def _group(shape: CacheShape, quantized: QuantizedSettings | None) -> int:
    """Channels that share a scale: the configured number, reduced to a divisor of head_dim; 0 for a native arena."""
    return math.gcd(int(quantized.group), shape.head_dim) if quantized is not None and quantized.mode == "on" else 0
