"""Bytes to slots for the precision ladder: every plane, scale, table entry and scratch is counted beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ros_kvstream.errors import BudgetError
from ros_kvstream.memory.budget import MIB, BudgetPlan, CacheShape
from ros_kvstream.memory.quantized.packing import packed_bytes
from ros_kvstream.settings import QuantizedSettings

FLOAT32_BYTES = 4
SALIENCY_BYTES = 2
"""A slot's saliency as float16, where the ladder sorts by it."""


@dataclass(frozen=True)
class QuantizedPlan(BudgetPlan):
    """A budget divided over three precisions; made by :func:`plan_quantized`, never by hand."""

    int4_slots: int
    """Frame slots in 4 bits."""
    int8_slots: int
    """Frame slots in 8 bits."""
    group: int
    """Channels that share a scale and a zero point; divides head_dim."""
    by_saliency: bool = False
    """Whether the slot table also holds each slot's saliency, by which the ladder is sorted."""

    @property
    def full_frame_slots(self) -> int:
        """Frame slots in the model's own type: the best and the newest."""
        return self.frame_slots - self.int4_slots - self.int8_slots

    @property
    def full_slots(self) -> int:
        """Rows of the planes in the model's own type: prompt, frames, question and answer."""
        return self.pinned_slots + self.full_frame_slots + self.reserve_slots

    def tier_slots(self, bits: int) -> int:
        """Slots of the tier with codes of this many bits."""
        return self.int4_slots if bits == 4 else self.int8_slots

    def packed_slot_bytes(self, bits: int) -> int:
        """Bytes of one packed slot's K and V in all layers and KV heads, scales included."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * packed_bytes(shape.head_dim, bits, self.group)

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales and zero points among the packed slots' bytes."""
        shape, codes = self.shape, {bits: self.shape.head_dim * bits // 8 for bits in (8, 4)}
        rows = 2 * shape.layers * shape.kv_heads
        return sum(self.tier_slots(bits) * (self.packed_slot_bytes(bits) - rows * codes[bits]) for bits in codes)

    @property
    def table_row_bytes(self) -> int:
        """Bytes of the slot table for one slot in all layers and KV heads."""
        saliency = SALIENCY_BYTES if self.by_saliency else 0
        return self.shape.table_row_bytes + self.shape.layers * self.shape.kv_heads * saliency

    @property
    def parts(self) -> dict[str, int]:
        """Bytes per part; their sum is what is allocated."""
        shape = self.shape
        return {
            "full": self.full_slots * shape.token_bytes,
            "int8": self.int8_slots * self.packed_slot_bytes(8),
            "int4": self.int4_slots * self.packed_slot_bytes(4),
            "slot table": self.slots * self.table_row_bytes,
            "centres": FLOAT32_BYTES * shape.head_dim * (shape.layers * shape.kv_heads + shape.head_dim),
            "scratch": self.frame_slots * shape.scratch_row_bytes,
            "decoded layer": 2 * self.slots * shape.plane_row_bytes,
        }

    def bytes_in_use(self, full: int, int8: int, int4: int) -> int:
        """Bytes taken by this many slots of each precision: K, V, scales and slot table."""
        slots = full + int8 + int4
        packed = int8 * self.packed_slot_bytes(8) + int4 * self.packed_slot_bytes(4)
        return full * self.shape.token_bytes + packed + slots * self.table_row_bytes


def smallest_quantized_budget(
    shape: CacheShape, settings: QuantizedSettings, *, pinned: int, reserve: int, frame_tokens: int
) -> int:
    """Bytes of the smallest budget that ``plan_quantized`` accepts."""
    return _divided(shape, 0, settings, pinned, reserve, frame_tokens, 2 * frame_tokens).allocated_bytes


def plan_quantized(
    shape: CacheShape, budget_bytes: int, settings: QuantizedSettings, *, pinned: int, reserve: int, frame_tokens: int
) -> QuantizedPlan:
    """Divide ``budget_bytes``; raise BudgetError that names the smallest budget which works.

    :param pinned: tokens of the prompt; :param reserve: tokens of the longest question, answer and retrieved context.
    :param frame_tokens: tokens of the largest block of frames that is appended at once: as many slots in the model's
        own type must be free after a compaction, so at least two blocks of them are planned.
    """

    def divided(frame_slots: int) -> QuantizedPlan:
        return _divided(shape, budget_bytes, settings, pinned, reserve, frame_tokens, frame_slots)

    needed = smallest_quantized_budget(shape, settings, pinned=pinned, reserve=reserve, frame_tokens=frame_tokens)
    if needed > budget_bytes:
        raise BudgetError(
            f"memory.budget_mib = {budget_bytes / MIB:g} is too small: {pinned} prompt slots, {reserve} slots for "
            f"questions and answers and 2 x {frame_tokens} frame slots need {needed} bytes. "
            f"Set memory.budget_mib to at least {-(-needed * 1000 // MIB) / 1000:g}."
        )
    low, high = 2 * frame_tokens, budget_bytes // max(1, shape.table_row_bytes) + 2 * frame_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if divided(middle).allocated_bytes <= budget_bytes else (low, middle - 1)
    return divided(low)


def _divided(
    shape: CacheShape, budget_bytes: int, settings: QuantizedSettings, pinned: int, reserve: int, frame_tokens: int,
    frame_slots: int,
) -> QuantizedPlan:  # fmt: skip
    """The plan with this many frame slots, two blocks of frames at least in the model's own type."""
    most = max(0, frame_slots - 2 * frame_tokens)
    int4 = min(int(settings.int4 * frame_slots), most)
    int8 = min(int(settings.int8 * frame_slots), most - int4)
    group = math.gcd(int(settings.group), shape.head_dim)
    by_saliency = settings.order == "saliency"
    return QuantizedPlan(shape, budget_bytes, pinned, frame_slots, reserve, int4, int8, group, by_saliency)
