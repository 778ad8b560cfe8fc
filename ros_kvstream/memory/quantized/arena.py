"""The arena as a precision ladder: the best and the newest frame slots in the model's own type, the others packed.

Slots lie in the order prompt, 4-bit frames, 8-bit frames, frames in the model's own type, question: an append always
goes to the end and is exact. When the full-precision part is full, slots move down the ladder (``demote``); when all
is full, a compaction evicts and sorts what stays onto the ladder again, up or down (``compact``). One layer at a time
is decoded for attention, into one scratch that the plan counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from ros_kvstream.errors import CapacityError
from ros_kvstream.memory.arena import Arena, Chunk, _Layer
from ros_kvstream.memory.budget import BudgetPlan
from ros_kvstream.memory.compaction import kept_mask
from ros_kvstream.memory.policies.base import SelectionPolicy
from ros_kvstream.memory.quantized.codec import QuantizedCodec
from ros_kvstream.memory.quantized.packing import Packed, empty_packed
from ros_kvstream.memory.quantized.plan import QuantizedPlan
from ros_kvstream.memory.quantized.requantize import TIERS, Requantization, gather_rows
from ros_kvstream.memory.rotary import Rotary

TABLE = tuple(part.name for part in fields(_Layer) if part.name not in ("keys", "values"))
"""Names of the slot table's columns."""


@dataclass
class _QuantizedLayer(_Layer):
    """One layer: ``keys`` and ``values`` have the plan's full_slots rows, the slot table all slots."""

    packed_keys: dict[int, Packed] = field(default_factory=dict)
    """Bits -> raw keys off their key_mean, [kv_heads, slots of the tier, ...]."""
    packed_values: dict[int, Packed] = field(default_factory=dict)
    key_mean: Tensor = field(default_factory=lambda: torch.empty(0))
    """Mean raw key, float32 [kv_heads, 1, head_dim]; fixed when the first slots are packed."""
    saliency: Tensor | None = None
    """Saliency of each slot's patch, float16 [kv_heads, slots]; one more column of the slot table, or None."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        packed = [*self.packed_keys.values(), *self.packed_values.values()]
        parts = [tensor for tier in packed for tensor in (tier.codes, tier.scales, tier.zeros)]
        return (*super().tensors, *parts, self.key_mean, *(() if self.saliency is None else (self.saliency,)))


class QuantizedArena(Arena):
    """An :class:`Arena` of three precisions with the same interface; planned by :func:`plan_quantized`.

    What ``layer``, ``write`` and ``frame_slots`` return is valid until the next of these calls.
    """

    plan: QuantizedPlan
    _layers: list[_QuantizedLayer]  # type: ignore[assignment]

    def __init__(
        self, plan: QuantizedPlan, rotary: Rotary, device: torch.device | str = "cpu", order: str = "policy"
    ) -> None:
        """Allocate everything in ``plan``; ``order`` as in QuantizedSettings, where the plan is not for saliency."""
        self.order = "saliency" if plan.by_saliency else order
        self._columns = (*TABLE, "saliency") if plan.by_saliency else TABLE
        self._packed = dict.fromkeys(TIERS, 0)
        self._key_mean_known = False
        self._peak_bytes = 0
        super().__init__(plan, rotary, device)
        self._codec = QuantizedCodec(plan.shape.head_dim, plan.group, rotary, self.device)

    def _allocate_layer(self, plan: BudgetPlan) -> _QuantizedLayer:
        assert isinstance(plan, QuantizedPlan)
        shape = plan.shape
        plane = (shape.kv_heads, plan.full_slots, shape.head_dim)
        return _QuantizedLayer(
            keys=torch.zeros(plane, dtype=shape.dtype, device=self.device),
            values=torch.zeros(plane, dtype=shape.dtype, device=self.device),
            packed_keys={bits: self._empty(plan, bits) for bits in TIERS},
            packed_values={bits: self._empty(plan, bits) for bits in TIERS},
            key_mean=torch.zeros((shape.kv_heads, 1, shape.head_dim), dtype=torch.float32, device=self.device),
            saliency=torch.zeros(plane[0], plan.slots, dtype=torch.float16, device=self.device)
            if plan.by_saliency else None,
            **_Layer.table(plan, self.device),
        )  # fmt: skip

    def _empty(self, plan: QuantizedPlan, bits: int) -> Packed:
        leading = (plan.shape.kv_heads, plan.tier_slots(bits))
        return empty_packed(leading, plan.shape.head_dim, bits, plan.group, self.device)

    def _allocate_scratch(self, plan: BudgetPlan) -> Tensor:
        shape = (2, plan.shape.kv_heads, plan.slots, plan.shape.head_dim)
        self._decoded = torch.zeros(shape, dtype=plan.shape.dtype, device=self.device)
        return super()._allocate_scratch(plan)

    # -- what is in it --------------------------------------------------------------------------------------------

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all live tensors, read off the tensors themselves: packed planes, scales and scratch included."""
        extra = self._decoded.untyped_storage().nbytes() + self._codec.transform.untyped_storage().nbytes()
        return super().allocated_bytes + extra

    @property
    def tier_counts(self) -> dict[str, int]:
        """Frame slots in use of each precision."""
        full = self.frame_slots_used - self._packed_slots
        return {"full": full, "int8": self._packed[8], "int4": self._packed[4]}

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use, scales and slot table included."""
        return self.plan.bytes_in_use(self.used - self._packed_slots, self._packed[8], self._packed[4])

    @property
    def peak_bytes(self) -> int:
        """Highest ``used_bytes`` since the arena was made or cleared, questions included."""
        return self._peak_bytes

    @property
    def _packed_slots(self) -> int:
        return sum(self._packed.values())

    @property
    def full_slots_free(self) -> int:
        """Slots in the model's own type that frames may fill before ``demote`` must move some down."""
        return self.plan.full_frame_slots - (self.frame_slots_used - self._packed_slots)

    def _tiers(self) -> list[tuple[int, slice]]:
        """(bits, slots) of the packed tiers that hold something."""
        spans, start = [], self.pinned
        for bits in TIERS:
            spans.append((bits, slice(start, start + self._packed[bits])))
            start += self._packed[bits]
        return [(bits, span) for bits, span in spans if span.stop > span.start]

    def _planes(self, index: int, stop: int) -> tuple[Tensor, Tensor]:
        layer, packed = self._layers[index], self._packed_slots
        if not packed:
            return layer.keys[:, :stop], layer.values[:, :stop]
        keys, values = self._decoded[0], self._decoded[1]
        for out, plane in ((keys, layer.keys), (values, layer.values)):
            out[:, : self.pinned] = plane[:, : self.pinned]
            out[:, self.pinned + packed : stop] = plane[:, self.pinned : stop - packed]
        for bits, span in self._tiers():
            rows = slice(0, span.stop - span.start)
            positions = layer.positions[:, span]
            self._codec.decode(layer.packed_keys[bits].rows(rows), keys[:, span], layer.key_mean, positions)
            self._codec.decode(layer.packed_values[bits].rows(rows), values[:, span])
        return keys[:, :stop], values[:, :stop]

    # -- append ---------------------------------------------------------------------------------------------------

    def begin(self, chunk: Chunk, *, frames: bool) -> None:
        """As :meth:`Arena.begin`; frames must also fit into the full-precision part (call ``demote`` before)."""
        tokens = chunk.frames.shape[0]
        room = self.pinned + self.plan.full_frame_slots if frames else self.plan.full_slots
        if self.used - self._packed_slots + tokens > room:
            raise CapacityError(
                f"{tokens} tokens do not fit: {self.used - self._packed_slots} of {room} slots in the model's own "
                "type are in use. Let slots move down the ladder (demote), or raise memory.budget_mib."
            )
        super().begin(chunk, frames=frames)

    def _place(self, layer: _Layer, start: int, keys: Tensor, values: Tensor) -> None:
        super()._place(layer, start - self._packed_slots, keys, values)
        assert isinstance(layer, _QuantizedLayer) and self._pending is not None
        if layer.saliency is not None:
            saliency = self._pending.saliency
            layer.saliency[:, start : start + keys.shape[1]] = 0 if saliency is None else saliency

    def commit(self) -> None:
        """Make the written chunk part of the memory."""
        super().commit()
        self._peak_bytes = max(self._peak_bytes, self.used_bytes)

    def clear(self) -> None:
        """Forget everything, prompt and the keys' centres included."""
        super().clear()
        self._packed = dict.fromkeys(TIERS, 0)
        self._key_mean_known = False
        self._peak_bytes = 0

    # -- move on the ladder ---------------------------------------------------------------------------------------

    def demote(self, tokens: int) -> None:
        """Move slots down the ladder, evicting none, until ``tokens`` fit into the full-precision part.

        Within a tier the slots lie worst first, so those at the tier's beginning move down; frames appended since the
        last compaction move last, or by their saliency where that is the order. Costs what moves, not what is there.

        :raises CapacityError: when the arena as a whole has no room for them; compact first.
        """
        if tokens <= self.full_slots_free:
            return
        self._check_no_question()
        if tokens > min(self.frame_slots_free, self.plan.full_frame_slots):
            raise CapacityError(
                f"{tokens} tokens do not fit: {self.frame_slots_free} frame slots are free, and "
                f"{self.plan.full_frame_slots} are in the model's own type."
            )
        self._arrange(self._within_tiers(), self._counts(self.frame_slots_used, tokens))

    def compact(self, policy: SelectionPolicy, keep: int) -> None:
        """Keep ``keep`` frame slots per KV head as the policy chooses, the best of them with the most bits."""
        self._check_no_question()
        counts = self._counts(keep, 0)
        cuts = [keep]
        if self.order == "policy":
            full = keep - counts[8] - counts[4]
            cuts += [cut for cut in (full + counts[8], full) if 0 < cut < keep]
        # All layers are chosen before the first is touched: a policy that fails leaves the memory as it was.
        orders = []
        for index in range(len(self._layers)):
            view = self.frame_slots(index)
            rank = torch.zeros(view.frames.shape, dtype=torch.int16, device=self.device)
            for cut in cuts:
                # A policy's choices of different size need not be nested: what the largest leaves out stays out.
                rank += policy.select_mask(view, cut).to(torch.int16) * (4 if cut == keep else 1)
            orders.append(self._by_rank(index, rank, keep))
        self._arrange(orders, counts)
        self.compactions += 1

    def keep(self, kept: list[Tensor]) -> None:
        """Keep the given frame slots (indices or masks, as in :meth:`Arena.keep`), the newest with the most bits."""
        self._check_no_question()
        masks = [mask if mask.dtype == torch.bool else kept_mask(mask.long(), self.frame_slots_used) for mask in kept]
        keep = int(masks[0][0].sum())
        orders = [self._by_rank(index, mask.to(torch.int16), keep) for index, mask in enumerate(masks)]
        self._arrange(orders, self._counts(keep, 0))
        self.compactions += 1

    def _check_no_question(self) -> None:
        if self.used != self.frames_end:
            raise CapacityError("a question is still behind the frames: roll it back before a compaction")

    def _as_they_lie(self) -> Tensor:
        """Every frame slot in its present order, int64 [kv_heads, frame slots in use]."""
        slots = torch.arange(self.frame_slots_used, device=self.device)
        return slots.expand(self.plan.shape.kv_heads, -1)

    def _within_tiers(self) -> list[Tensor]:
        """Per layer the frame slots in the order in which they move down: as they lie, or by saliency in each tier."""
        if not self.plan.by_saliency:
            return [self._as_they_lie()] * len(self._layers)
        tier = torch.zeros(1, self.frame_slots_used, dtype=torch.int16, device=self.device)
        for step in (self._packed[4], self._packed[4] + self._packed[8]):
            tier[:, step:] += 1
        return [self._by_rank(index, tier, tier.shape[1]) for index in range(len(self._layers))]

    def _counts(self, keep: int, tokens: int) -> dict[int, int]:
        """Slots per packed tier (bits -> count) for ``keep`` slots: as many bits as fit.

        Half of the full-precision part, or room for ``tokens`` if that is more, is left for new frames.
        """
        plan = self.plan
        full = min(keep, plan.full_frame_slots - max(tokens, plan.full_frame_slots // 2))
        full = max(full, keep - plan.int8_slots - plan.int4_slots)
        int8 = min(keep - full, plan.int8_slots)
        return {4: keep - full - int8, 8: int8}

    def _by_rank(self, index: int, rank: Tensor, keep: int) -> Tensor:
        """Indices of the ``keep`` best frame slots, worst first, int64 [kv_heads, keep]; newer wins among equals.

        Of equal rank the more salient ones are better, where the plan is for saliency.
        """
        layer, slots = self._layers[index], slice(self.pinned, self.frames_end)
        rank = rank.long()
        if layer.saliency is not None:
            # As whole numbers, float16 that are not negative keep their order.
            rank = (rank << 16) + layer.saliency[:, slots].view(torch.int16)
        return ((rank << 32) + layer.frames[:, slots]).argsort(dim=1, stable=True)[:, -keep:]

    def _arrange(self, orders: list[Tensor], counts: dict[int, int]) -> None:
        """Lay the frame slots ``orders`` (per layer [kv_heads, keep], worst first) onto the ladder anew."""
        frames, keep = slice(self.pinned, self.frames_end), orders[0].shape[1]
        for layer, order in zip(self._layers, orders, strict=True):
            if not self._key_mean_known:
                self._take_key_mean(layer)
            move = Requantization(self._codec, self._packed, counts, order, layer.positions[:, frames])
            move.plane(layer.packed_keys, layer.keys[:, self.pinned :], layer.key_mean)
            move.plane(layer.packed_values, layer.values[:, self.pinned :], None)
            for name in self._columns:
                table: Tensor = getattr(layer, name)
                table[:, self.pinned : self.pinned + keep] = gather_rows(table[:, frames], order)
        self._key_mean_known = self._key_mean_known or sum(counts.values()) > 0
        self._packed = dict(counts)
        self.used = self.frames_end = self.pinned + keep
        self._generation += 1
        self._common_table = self._kept = None

    def _take_key_mean(self, layer: _QuantizedLayer) -> None:
        """Take the mean of the raw keys; nothing is packed yet."""
        frames = slice(self.pinned, self.frames_end)
        out = self._scratch[:, : self.frame_slots_used]
        raw = self.rotary.unrotate(layer.keys[:, frames], layer.positions[:, frames], out=out)
        layer.key_mean.copy_(raw.mean(1, keepdim=True))

    def replace_positions(self, new_t: Callable[[Tensor], Tensor]) -> None:
        """Give every frame slot a new temporal position; packed keys are un-rotated and need no change."""
        frames, packed = slice(self.pinned, self.frames_end), self._packed_slots
        for layer in self._layers:
            rows = layer.keys[:, self.pinned : self.frames_end - packed]
            old = layer.positions[:, frames]
            new = old.clone()
            new[..., 0] = new_t(old[..., 0])
            raw = self.rotary.unrotate(rows, old[:, packed:], out=self._scratch[:, : rows.shape[1]])
            rows.copy_(self.rotary.rotate(raw, new[:, packed:], out=raw))
            layer.positions[:, frames] = new
        self._common_table = None
        self._generation += 1

    def resize(self, plan: BudgetPlan) -> None:
        """Move to another plan of the same shape, one tensor at a time.

        :raises CapacityError: when the slots in use do not fit; compact first.
        """
        assert isinstance(plan, QuantizedPlan)
        used = self.frame_slots_used
        if used > plan.frame_slots:
            raise CapacityError(f"{used} frame slots in use do not fit into {plan.frame_slots}")
        counts = self._fitted(plan)
        if counts != self._packed:
            self._arrange([self._as_they_lie()] * len(self._layers), counts)
        self._scratch = self._decoded = torch.empty(0)
        for layer in self._layers:
            for name in ("keys", "values"):
                setattr(layer, name, _resized(getattr(layer, name), plan.full_slots))
            for name in self._columns:
                setattr(layer, name, _resized(getattr(layer, name), plan.slots))
            for tiers in (layer.packed_keys, layer.packed_values):
                for bits in TIERS:
                    tiers[bits] = _resized_packed(tiers[bits], plan.tier_slots(bits))
        self.plan = plan
        self._scratch = self._allocate_scratch(plan)
        self._generation += 1

    def _fitted(self, plan: QuantizedPlan) -> dict[int, int]:
        """Slots per packed tier under another plan: as now where they fit, else moved one tier down or up."""
        used = self.frame_slots_used
        int8, int4 = min(self._packed[8], plan.int8_slots), min(self._packed[4], plan.int4_slots)
        missing = used - int8 - int4 - plan.full_frame_slots
        if missing > 0:
            more = min(missing, plan.int8_slots - int8)
            int8, int4 = int8 + more, int4 + missing - more
        return {4: int4, 8: int8}


def make_arena(plan: BudgetPlan, rotary: Rotary, device: torch.device | str = "cpu", order: str = "policy") -> Arena:
    """The arena that a plan is for; ``order`` as in QuantizedSettings."""
    if isinstance(plan, QuantizedPlan):
        return QuantizedArena(plan, rotary, device, order)
    return Arena(plan, rotary, device)


def _resized(old: Tensor, slots: int) -> Tensor:
    new = old.new_zeros((old.shape[0], slots, *old.shape[2:]))
    rows = min(slots, old.shape[1])
    new[:, :rows] = old[:, :rows]
    return new


def _resized_packed(old: Packed, slots: int) -> Packed:
    return Packed(_resized(old.codes, slots), _resized(old.scales, slots), _resized(old.zeros, slots), old.bits)
