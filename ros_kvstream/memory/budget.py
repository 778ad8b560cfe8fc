"""Bytes to slots: everything the memory owns is counted here before any of it is allocated (DESIGN promise 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ros_kvstream.errors import BudgetError

MIB = 1 << 20

POSITION_BYTES = 3 * 4
"""(t, h, w) as int32."""
FRAME_BYTES = 4
"""Frame id as int32."""
CAMERA_BYTES = 2
"""Camera id as int16."""
NORM_BYTES = 2 * 4
"""L2 norms of the value and of the key as float32, taken once at the append."""
TABLE_BYTES = POSITION_BYTES + FRAME_BYTES + CAMERA_BYTES + NORM_BYTES
"""Slot table per slot, layer and KV head."""
SCRATCH_ITEM_BYTES = 4
"""Un-rotated keys are scored in float32."""


@dataclass(frozen=True)
class CacheShape:
    """Shape of a model's KV cache."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def plane_row_bytes(self) -> int:
        """Bytes of one slot in one layer's K plane (all KV heads)."""
        return self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes of K and V of one token in all layers; what a plain cache takes for it."""
        return 2 * self.layers * self.plane_row_bytes

    @property
    def table_row_bytes(self) -> int:
        """Bytes of the slot table for one slot in all layers and KV heads."""
        return self.layers * self.kv_heads * TABLE_BYTES

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in all layers: K, V and slot table."""
        return self.token_bytes + self.table_row_bytes

    @property
    def scratch_row_bytes(self) -> int:
        """Bytes of scratch per frame slot: one layer's keys in float32, shared by all layers."""
        return self.kv_heads * self.head_dim * SCRATCH_ITEM_BYTES


@dataclass(frozen=True)
class BudgetPlan:
    """How a byte budget is divided; made by :func:`plan_budget`, never by hand."""

    shape: CacheShape
    budget_bytes: int
    pinned_slots: int
    """Slots of the prompt before the frames; never evicted."""
    frame_slots: int
    """Slots that frames may fill; the policies work on these."""
    reserve_slots: int
    """Slots kept free for retrieved moments, the question and its answer."""

    @property
    def slots(self) -> int:
        """All slots per layer and KV head."""
        return self.pinned_slots + self.frame_slots + self.reserve_slots

    @property
    def parts(self) -> dict[str, int]:
        """Bytes per part; their sum is what is allocated."""
        planes = self.slots * self.shape.token_bytes // 2
        return {
            "keys": planes,
            "values": planes,
            "slot table": self.slots * self.shape.table_row_bytes,
            "scratch": self.frame_slots * self.shape.scratch_row_bytes,
        }

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors that are allocated; never above ``budget_bytes``."""
        return sum(self.parts.values())

    def used_bytes(self, slots: int) -> int:
        """Bytes taken by ``slots`` slots in use: K, V and slot table."""
        return slots * self.shape.slot_bytes


def smallest_budget(shape: CacheShape, pinned: int, reserve: int, frame_slots: int) -> int:
    """Bytes needed to hold ``frame_slots`` frame slots beside the pinned and the reserved ones."""
    return (pinned + frame_slots + reserve) * shape.slot_bytes + frame_slots * shape.scratch_row_bytes


def plan_budget(shape: CacheShape, budget_bytes: int, *, pinned: int, reserve: int, frame_tokens: int) -> BudgetPlan:
    """Divide ``budget_bytes``; raise BudgetError that names the smallest budget which works.

    :param pinned: tokens of the prompt before the frames.
    :param reserve: tokens of the longest question, answer and retrieved context together.
    :param frame_tokens: tokens of the largest block of frames that is appended at once; two of them must fit, or a
        compaction would have nothing to choose from.
    """
    fixed = smallest_budget(shape, pinned, reserve, 0)
    frame_slots = (budget_bytes - fixed) // (shape.slot_bytes + shape.scratch_row_bytes)
    needed = smallest_budget(shape, pinned, reserve, 2 * frame_tokens)
    if frame_slots < 2 * frame_tokens:
        raise BudgetError(
            f"memory.budget_mib = {budget_bytes / MIB:.4g} is too small: {pinned} prompt slots, {reserve} slots for "
            f"questions and answers and 2 x {frame_tokens} frame slots need {needed} bytes. "
            f"Set memory.budget_mib to at least {-(-needed * 1000 // MIB) / 1000:g}."
        )
    return BudgetPlan(shape, budget_bytes, pinned, int(frame_slots), reserve)
