# SPDX-License-Identifier: Apache-2.0
"""The arena: preallocated keys, values and slot table of a stream, with append, compaction in place and roll back.

Checkpoint contract. ``state_dict()`` returns plain values that JSON can hold and, under "tensors", every tensor whose
content must be saved, by name ("layers.0.keys", "layers.0.positions", ...). These are the live tensors, not copies: a
writer streams them to a file one by one. To restore, make an arena of the same plan, copy the saved tensors in place
into those of its ``state_dict()["tensors"]``, then call ``load_state_dict`` with the plain values. Names, shapes and
dtypes follow from the plan alone: a reader compares the plans before it copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.errors import BudgetError, CapacityError
from ros_kvstream.memory.budget import MIB, BudgetPlan
from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.quantized.tiers import PackedTiers
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.memory.slot_table import (
    NO_FRAME,
    Chunk,
    SlotTable,
    TensorRows,
    count_true,
    fill_holes,
    kept_mask,
    resized,
)

__all__ = ["NO_FRAME", "Arena", "Chunk", "Mark"]


@dataclass(frozen=True)
class Mark:
    """A state of the arena to roll back to; nothing is copied, since an append never touches slots in use."""

    used: int
    frames_end: int
    generation: int


class Arena:
    """All keys and values of a stream within one plan: slots in use first, free slots behind them.

    Slots [0, pinned) hold the prompt, [pinned, frames_end) hold frames in no particular order (each slot has its own
    position), and a question with its answer is appended behind them and rolled back. A quantized arena keeps some of
    the frames in 4 and 8 bits, right behind the prompt (quantized/tiers.py). Not thread-safe.
    """

    def __init__(
        self, plan: BudgetPlan, rotary: Rotary, device: torch.device | str = "cpu", order: str = "policy"
    ) -> None:
        """Allocate everything in ``plan``.

        :param order: which slots of a quantized arena keep the most bits, as in QuantizedSettings.
        :raises BudgetError: when the device has too little memory; nothing stays allocated then.
        """
        self.plan = plan
        self.rotary = rotary
        self.device = torch.device(device)
        self.pinned = self.frames_end = self.used = 0
        self.peak_bytes = 0
        """Highest ``used_bytes`` since the arena was made or cleared, questions included."""
        self.compactions = 0
        self._generation = 0
        self._pending: Chunk | None = None
        self._pending_frames = False
        self._frames_kept: dict[int, float] | None = None
        self._tiers: PackedTiers | None = None
        shape = plan.shape
        size = (shape.kv_heads, plan.full_slots, shape.head_dim)
        try:
            self._keys = [torch.zeros(size, dtype=shape.dtype, device=self.device) for _ in range(shape.layers)]
            self._values = [torch.zeros_like(keys) for keys in self._keys]
            self.table = [SlotTable.allocate(shape.kv_heads, plan.slots, self.device) for _ in range(shape.layers)]
            if plan.quantized:
                self._tiers = PackedTiers(plan, rotary, self.device, order)
            self._allocate_buffers()
        except (RuntimeError, MemoryError) as error:
            raise BudgetError(
                f"memory.budget_mib = {plan.budget_bytes / MIB:g}: {plan.allocated_bytes} bytes could not be "
                f"allocated on {self.device} ({error}). Lower memory.budget_mib or free memory there."
            ) from error

    def _allocate_buffers(self) -> None:
        """Allocate what is overwritten by every use: one layer's keys before rotation, and one decoded layer."""
        shape, device = self.plan.shape, self.device
        size = (shape.kv_heads, self.plan.frame_slots, shape.head_dim)
        self._scratch = torch.zeros(size, dtype=torch.float32, device=device)
        decoded = (2, shape.kv_heads, self.plan.slots if self.plan.quantized else 0, shape.head_dim)
        self._decoded = torch.zeros(decoded, dtype=shape.dtype, device=device)

    # -- what is in it --------------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors with content, by name."""
        found: dict[str, Tensor] = {}
        for index, table in enumerate(self.table):
            layer = {"keys": self._keys[index], "values": self._values[index]} | table.tensors()
            layer |= self._tiers.tensors(index) if self._tiers is not None else {}
            found |= {f"layers.{index}.{name}": tensor for name, tensor in layer.items()}
        return found

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all live tensors of the arena, read off the tensors themselves."""
        tensors = [*self._tensors().values(), self._scratch, self._decoded]
        tensors += [self._tiers.codec.transform] if self._tiers is not None else []
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    @property
    def _packed_slots(self) -> int:
        return self._tiers.slots if self._tiers is not None else 0

    @property
    def tier_counts(self) -> dict[str, int]:
        """Frame slots in use of each precision."""
        packed = self._tiers.counts if self._tiers is not None else {4: 0, 8: 0}
        return {"full": self.frame_slots_used - self._packed_slots, "int8": packed[8], "int4": packed[4]}

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use: keys, values, scales and slot table."""
        counts = self.tier_counts
        return self.plan.used_bytes(self.used - self._packed_slots, counts["int8"], counts["int4"])

    @property
    def frame_slots_used(self) -> int:
        """Slots per layer and KV head that hold frames; a question behind them does not count."""
        return self.frames_end - self.pinned

    @property
    def frame_slots_free(self) -> int:
        """Slots per layer and KV head that are free for frames."""
        return self.plan.frame_slots - self.frame_slots_used

    @property
    def full_slots_free(self) -> int:
        """Frame slots in native dtype that are free before ``demote`` must move some to fewer bits."""
        return self.plan.full_frame_slots - (self.frame_slots_used - self._packed_slots)

    @property
    def _frames(self) -> slice:
        return slice(self.pinned, self.frames_end)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the slots in use, [kv_heads, used, head_dim].

        Views in a native arena; in a quantized one valid until the next ``layer``, ``write`` or ``frame_slots``.
        """
        return self._read(index, self.used)

    def _read(self, index: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's first ``stop`` slots; decoded where some are packed."""
        native = self._keys[index], self._values[index]
        if self._tiers is None or not self._tiers.slots:
            return native[0][:, :stop], native[1][:, :stop]
        packed = slice(self.pinned, self.pinned + self._tiers.slots)
        for out, exact in zip(self._decoded, native, strict=True):
            out[:, : packed.start] = exact[:, : packed.start]
            out[:, packed.stop : stop] = exact[:, packed.start : stop - self._tiers.slots]
        keys, values = self._decoded[0], self._decoded[1]
        self._tiers.decode(index, keys[:, packed], values[:, packed], self.table[index].positions[:, packed])
        return keys[:, :stop], values[:, :stop]

    def frame_slots(self, index: int) -> LayerSlots:
        """The frame slots of one layer as the policies see them; valid as those of ``layer``.

        All layers share one scratch: keys before rotation are valid until it is used again.
        """
        table, frames = self.table[index], self._frames
        keys, values = self._read(index, self.frames_end)
        return LayerSlots(
            layer=index,
            layers=self.plan.shape.layers,
            keys=keys[:, frames],
            values=values[:, frames],
            **{name: column[:, frames] for name, column in table.tensors().items()},
            rotary=self.rotary,
            scratch=self._scratch,
        )

    def frames_kept(self) -> dict[int, float]:
        """Slots that hold each frame, by frame id: the mean over layers and KV heads."""
        if self._frames_kept is None:
            held = torch.cat([table.frames[:, self._frames].flatten() for table in self.table])
            ids, counts = torch.unique(held, return_counts=True)
            mean = counts.double() / (self.plan.shape.layers * self.plan.shape.kv_heads)
            self._frames_kept = dict(zip(ids.tolist(), mean.tolist(), strict=True))
            self._frames_kept.pop(NO_FRAME, None)
        return dict(self._frames_kept)

    def cameras_kept(self) -> dict[int, int]:
        """Slots of each camera's frames per layer and KV head, by camera id."""
        ids, counts = torch.unique(self.table[0].cameras[0, self._frames], return_counts=True)
        return dict(zip(ids.tolist(), counts.tolist(), strict=True))

    def patches_kept(self, frame_ids: Iterable[int], origin: int) -> dict[int, NDArray[np.float32]]:
        """Share of layers and KV heads that hold each patch, float32 [rows, columns], by id of the frames in the arena.

        :param origin: h and w of a frame's first patch; the grid ends at the last patch that any layer holds.
        """
        frames = torch.stack([table.frames[:, : self.frames_end] for table in self.table])
        coordinates = torch.stack([table.positions[:, : self.frames_end, 1:] for table in self.table]).long() - origin
        found = {}
        for frame_id in dict.fromkeys(frame_ids):
            rows, columns = coordinates[(frames == frame_id) & (coordinates[..., 0] >= 0)].cpu().T
            if len(rows):
                grid = torch.zeros(int(rows.max()) + 1, int(columns.max()) + 1)
                grid.index_put_((rows, columns), torch.ones(len(rows)), accumulate=True)
                found[frame_id] = (grid / (frames.shape[0] * frames.shape[1])).numpy()
        return found

    def visible(self, frame_ids: list[int]) -> list[Tensor]:
        """Per layer bool [kv_heads, used]: True for text and for slots of these frames."""
        wanted = torch.tensor([NO_FRAME, *frame_ids], dtype=torch.int32, device=self.device)
        return [torch.isin(table.frames[:, : self.used], wanted) for table in self.table]

    # -- append ---------------------------------------------------------------------------------------------------

    def begin(self, chunk: Chunk, *, frames: bool) -> None:
        """Announce an append of ``chunk``; every layer then writes it, and ``commit`` makes it part of the memory.

        :param frames: True for frames, which may fill the frame slots; False for text.
        :raises CapacityError: when it does not fit (see ``compact`` and ``demote``); nothing has changed then.
        """
        if frames and self.used != self.frames_end:
            raise CapacityError("frames cannot be appended behind a question: roll it back first")
        tokens, native = len(chunk.frames), self.used - self._packed_slots
        limit = self.pinned + self.plan.full_frame_slots if frames else self.plan.full_slots
        if native + tokens > limit:
            remedy = "Compact or demote before the append" if frames else "Shorten the question or the answer"
            raise CapacityError(
                f"{tokens} tokens do not fit: {native} of {limit} slots are in use. {remedy}, "
                "or raise memory.budget_mib."
            )
        self._pending, self._pending_frames = chunk, frames

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the announced chunk's keys and values into one layer, behind the slots in use.

        :param keys: rotated, [kv_heads, tokens, head_dim]; :param values: the same shape.
        :returns: all slots that the chunk may attend to, [kv_heads, used + tokens, head_dim]; valid as ``layer``'s.
        """
        chunk, tokens = self._pending, keys.shape[1]
        if chunk is None or tokens != len(chunk.frames):
            raise CapacityError("write without a matching begin: the chunk's slots have not been reserved")
        start = self.used - self._packed_slots
        self._keys[index][:, start : start + tokens] = keys
        self._values[index][:, start : start + tokens] = values
        self.table[index].write(self.used, chunk, keys, values)
        return self._read(index, self.used + tokens)

    def commit(self) -> None:
        """Make the written chunk part of the memory."""
        if self._pending is not None:
            self.used += len(self._pending.frames)
            if self._pending_frames:
                self.frames_end, self._frames_kept = self.used, None
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            self._pending = None

    def abort(self) -> None:
        """Drop the announced chunk; the slots in use are untouched."""
        self._pending = None

    def pin(self) -> None:
        """Declare all slots in use as the prompt: never shown to a policy, never evicted."""
        self.pinned = self.frames_end = self.used
        self._frames_kept = None

    def clear(self) -> None:
        """Empty the arena, prompt included."""
        self.used = self.pinned = self.frames_end = self.peak_bytes = self.compactions = 0
        if self._tiers is not None:
            self._tiers.clear()
        self._moved()

    def _moved(self) -> None:
        """Invalidate what was noted about the slots: they hold something else now."""
        self._generation += 1
        self._pending = self._frames_kept = None

    # -- roll back ------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """The state to return to after a question."""
        return Mark(self.used, self.frames_end, self._generation)

    def roll_back(self, mark: Mark) -> None:
        """Return to ``mark`` bit for bit: appends have only written behind it.

        :raises CapacityError: when slots have moved since (compaction, clear, resize, new positions).
        """
        if mark.generation != self._generation:
            raise CapacityError("roll back across a compaction: the marked slots have moved")
        self._pending = None
        self._frames_kept = None if self.frames_end != mark.frames_end else self._frames_kept
        self.used, self.frames_end = mark.used, mark.frames_end

    # -- compact and move -----------------------------------------------------------------------------------------

    def compact(self, policy: SelectionPolicy, keep: int) -> None:
        """Let the policy choose ``keep`` frame slots per KV head in every layer, then keep those.

        All layers are chosen before the first is touched, so a policy that fails leaves the memory as it was; between
        the two a layer's choice takes one byte a slot.
        """
        self._require_no_question()
        sizes = [keep] if self._tiers is None else self._tiers.selection_sizes(self.plan, keep)
        ranks = []
        for index in range(self.plan.shape.layers):
            view = self.frame_slots(index)
            kept = policy.select(view, keep)
            rank = kept.to(torch.int8)
            for size in sizes[1:]:
                rank += policy.select(view, size) & kept  # selections of different size need not be nested
            ranks.append(rank)
        self._keep(ranks)

    def keep(self, kept: list[Tensor]) -> None:
        """Keep only the given frame slots.

        :param kept: per layer int [kv_heads, keep], indices into the frame slots, or bool [kv_heads, frame slots].
        """
        self._require_no_question()
        slots = self.frame_slots_used
        masks = [mask if mask.dtype == torch.bool else kept_mask(mask.long(), slots) for mask in kept]
        self._keep([mask.to(torch.int8) for mask in masks])

    def _require_no_question(self) -> None:
        if self.used != self.frames_end:
            raise CapacityError("a question is still behind the frames: roll it back before a compaction")

    def _keep(self, ranks: list[Tensor]) -> None:
        """Keep the frame slots with a rank above 0.

        :param ranks: per layer int8 [kv_heads, frame slots]; in a quantized arena the slots with the highest ranks,
            then those of the newest frames, get the most bits.
        """
        keep, frames = count_true(ranks[0][0] > 0), self._frames

        def by_rank(index: int) -> Tensor:
            worth = (ranks[index].long() << 32) + self.table[index].frames[:, frames]
            return worth.argsort(dim=1, stable=True)[:, -keep:]

        if self._tiers is not None:
            self._rearrange(self._tiers, by_rank, self._tiers.divided(self.plan, keep, 0))
        else:
            # The last layers were scored last: their keys may still be in the processor's cache.
            for index in reversed(range(len(ranks))):
                tensors = [self._keys[index], self._values[index], *self.table[index].tensors().values()]
                fill_holes([TensorRows.of(tensor) for tensor in tensors], ranks[index] > 0, self.pinned)
        self.used = self.frames_end = self.pinned + keep
        self.compactions += 1
        self._moved()

    def demote(self, tokens: int) -> None:
        """Move frame slots of a quantized arena to fewer bits, evicting none, until ``tokens`` fit in native dtype.

        Within a tier the slots lie worst first, so those at its beginning move; frames appended since the last
        compaction move last. Costs what moves, not what is there.

        :raises CapacityError: when the arena as a whole has too few free slots; compact first.
        """
        if self._tiers is None or tokens <= self.full_slots_free:
            return
        self._require_no_question()
        if tokens > min(self.frame_slots_free, self.plan.full_frame_slots):
            raise CapacityError(
                f"{tokens} tokens do not fit: {self.frame_slots_free} frame slots are free, and "
                f"{self.plan.full_frame_slots} are in native dtype. Compact first, or raise memory.budget_mib."
            )
        counts = self._tiers.divided(self.plan, self.frame_slots_used, tokens)
        self._rearrange(self._tiers, self._present_order, counts)
        self._moved()

    def _present_order(self, index: int) -> Tensor:
        slots = torch.arange(self.frame_slots_used, device=self.device)
        return slots.expand(self.plan.shape.kv_heads, -1)

    def _rearrange(self, tiers: PackedTiers, order_of: Callable[[int], Tensor], counts: dict[int, int]) -> None:
        """Divide frame slots over the tiers anew.

        :param order_of: layer -> int64 [kv_heads, keep], the frame slots that stay, worst first.
        :param counts: bits -> slots of that tier afterwards.
        """
        for index, table in enumerate(self.table):
            order = order_of(index)
            native = self._keys[index][:, self.pinned :], self._values[index][:, self.pinned :]
            tiers.rearrange(index, native, table.positions[:, self._frames], order, counts, self._scratch)
            heads = torch.arange(len(order), device=self.device)[:, None]
            for column in table.tensors().values():
                column[:, self.pinned : self.pinned + order.shape[1]] = column[:, self._frames][heads, order]
        tiers.set_counts(counts)

    def slots_by_position(self, newest: int, pending: Sequence[Tensor] = ()) -> Tensor:
        """Frame slots of all layers and KV heads at each temporal position from 0 to ``newest``, int64 [newest + 1].

        :param pending: (t, h, w) of tokens that are about to be appended, int [tokens, 3] each.
        """
        found = torch.zeros(newest + 1, dtype=torch.int64, device=self.device)
        for table in self.table:
            found += torch.bincount(table.positions[:, self._frames, 0].flatten(), minlength=newest + 1)
        for positions in pending:
            copies = self.plan.shape.layers * self.plan.shape.kv_heads
            found += copies * torch.bincount(positions[:, 0], minlength=newest + 1).to(self.device)
        return found.cpu()

    def replace_positions(self, new_t: Callable[[Tensor], Tensor]) -> None:
        """Give every frame slot a new temporal position; keys whose position changes are rotated there, in float32.

        Each rotation rounds a key once. Packed keys are stored before rotation and need no change.

        :param new_t: old t -> new t, elementwise on int32 tensors.
        """
        packed = self._packed_slots
        for index, table in enumerate(self.table):
            old = table.positions[:, self._frames]
            new = old.clone()
            new[..., 0] = new_t(old[..., 0])
            for head, moved in enumerate((new != old)[:, packed:, 0]):
                rows = moved.nonzero()[:, 0]
                keys = self._keys[index][head, self.pinned : self.frames_end - packed]
                raw = self._scratch[head, : len(rows)]
                self.rotary.unrotate(keys[rows], old[head, packed:][rows], out=raw)
                keys[rows] = self.rotary.rotate(raw, new[head, packed:][rows], out=raw).to(keys.dtype)
            old.copy_(new)
        self._moved()

    def resize(self, plan: BudgetPlan) -> None:
        """Move to another plan of the same kind and shape, one tensor at a time.

        The buffers are freed first and allocated last, so that the larger of both budgets is never exceeded.

        :raises CapacityError: when the frame slots in use do not fit; compact first.
        """
        if self.frame_slots_used > plan.frame_slots:
            raise CapacityError(f"{self.frame_slots_used} frame slots in use do not fit into {plan.frame_slots}")
        if self._tiers is not None:
            counts = self._tiers.fitted(plan, self.frame_slots_used)
            if counts != self._tiers.counts:
                self._rearrange(self._tiers, self._present_order, counts)
        self._scratch = self._decoded = torch.empty(0)
        for index, table in enumerate(self.table):
            self._keys[index] = resized(self._keys[index], plan.full_slots)
            self._values[index] = resized(self._values[index], plan.full_slots)
            table.resize(plan.slots)
            if self._tiers is not None:
                self._tiers.resize(index, plan)
        self.plan = plan
        self._allocate_buffers()
        self._moved()

    # -- checkpoint -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Counters and live tensors; see the module's docstring."""
        return {
            "pinned": self.pinned,
            "frames_end": self.frames_end,
            "used": self.used,
            "peak_bytes": self.peak_bytes,
            "compactions": self.compactions,
            "tiers": self._tiers.state_dict() if self._tiers is not None else None,
            "tensors": self._tensors(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the plain values of ``state_dict()``, after its tensors have been copied into this arena's."""
        self.pinned, self.frames_end, self.used = state["pinned"], state["frames_end"], state["used"]
        self.peak_bytes, self.compactions = state["peak_bytes"], state["compactions"]
        if self._tiers is not None:
            self._tiers.load_state_dict(state["tiers"])
        self._moved()
