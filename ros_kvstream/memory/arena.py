"""The preallocated K/V planes and their slot table: append, compact in place, roll back (DESIGN promises 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ros_kvstream.errors import BudgetError, CapacityError
from ros_kvstream.memory.budget import BudgetPlan
from ros_kvstream.memory.compaction import fill_holes, kept_mask
from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.memory.rows import PlaneRows, count_true

NO_FRAME = -1
"""Frame id of slots that hold text."""


@dataclass(frozen=True)
class Mark:
    """A state of the arena to roll back to; cheap, since an append never touches slots in use."""

    used: int
    frames_end: int
    generation: int


@dataclass
class _Layer:
    """One layer's planes and slot table."""

    keys: Tensor
    """[kv_heads, slots, head_dim], rotated."""
    values: Tensor
    """[kv_heads, slots, head_dim]."""
    norms: Tensor
    """L2 norms of the values, float32 [kv_heads, slots]."""
    key_norms: Tensor
    """L2 norms of the keys, float32 [kv_heads, slots]."""
    positions: Tensor
    """(t, h, w), int32 [kv_heads, slots, 3]."""
    frames: Tensor
    """Frame id, int32 [kv_heads, slots]; NO_FRAME for text."""
    cameras: Tensor
    """Camera id, int16 [kv_heads, slots]."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.keys, self.values, self.norms, self.key_norms, self.positions, self.frames, self.cameras)

    @cached_property
    def rows(self) -> list[PlaneRows]:
        """The tensors as lists of rows; views, to be evicted when a tensor is replaced."""
        return [PlaneRows.of(tensor) for tensor in self.tensors]

    @classmethod
    def allocate(cls, plan: BudgetPlan, device: torch.device) -> _Layer:
        plane = (plan.shape.kv_heads, plan.slots, plan.shape.head_dim)
        return cls(
            keys=torch.zeros(plane, dtype=plan.shape.dtype, device=device),
            values=torch.zeros(plane, dtype=plan.shape.dtype, device=device),
            **cls.table(plan, device),
        )

    @staticmethod
    def table(plan: BudgetPlan, device: torch.device) -> dict[str, Tensor]:
        """An empty slot table by field name."""
        rows = (plan.shape.kv_heads, plan.slots)
        return {
            "norms": torch.zeros(rows, dtype=torch.float32, device=device),
            "key_norms": torch.zeros(rows, dtype=torch.float32, device=device),
            "positions": torch.zeros((*rows, 3), dtype=torch.int32, device=device),
            "frames": torch.full(rows, NO_FRAME, dtype=torch.int32, device=device),
            "cameras": torch.zeros(rows, dtype=torch.int16, device=device),
        }


@dataclass(frozen=True)
class Chunk:
    """What an append is about to write; the same for every layer and KV head."""

    positions: Tensor
    """(t, h, w), int32 [tokens, 3]."""
    frames: Tensor
    """int32 [tokens]."""
    cameras: Tensor
    """int16 [tokens]."""
    saliency: Tensor | None = None
    """Saliency of the patches, float16 [tokens], for a ladder that sorts by it; None counts as 0."""

    @classmethod
    def of_text(cls, positions: Tensor) -> Chunk:
        """Tokens that belong to no frame, at int32 [tokens, 3]."""
        count = len(positions)
        return cls(positions, torch.full((count,), NO_FRAME, dtype=torch.int32), torch.zeros(count, dtype=torch.int16))


class Arena:
    """All K/V of a stream inside one plan: slots in use first, free slots behind them.

    Slots [0, pinned) hold the prompt, [pinned, used) hold frames in no particular order (each slot carries its own
    position), and a question with its answer is appended behind them and rolled back. Not thread-safe.
    """

    def __init__(self, plan: BudgetPlan, rotary: Rotary, device: torch.device | str = "cpu") -> None:
        """Allocate everything in ``plan``; raises BudgetError, with nothing kept, when the device has no room."""
        self.plan = plan
        self.rotary = rotary
        self.device = torch.device(device)
        self.used = 0
        self.pinned = 0
        self.frames_end = 0
        self.peak = 0
        self.compactions = 0
        self._generation = 0
        self._pending: Chunk | None = None
        self._pending_frames = False
        self._common_table: object | None = object()
        self._kept: tuple[dict[int, float]] | None = None
        self._layers: list[_Layer] = []
        self._scratch = torch.empty(0)
        try:
            self._layers = [self._allocate_layer(plan) for _ in range(plan.shape.layers)]
            self._scratch = self._allocate_scratch(plan)
        except (RuntimeError, MemoryError) as error:
            self._layers = []
            raise BudgetError(
                f"memory.budget_mib = {plan.budget_bytes / 2**20:g}: {plan.allocated_bytes} bytes could not be "
                f"allocated on {self.device} ({error}). Lower memory.budget_mib or free memory there."
            ) from error

    def _allocate_layer(self, plan: BudgetPlan) -> _Layer:
        return _Layer.allocate(plan, self.device)

    def _allocate_scratch(self, plan: BudgetPlan) -> Tensor:
        shape = (plan.shape.kv_heads, plan.frame_slots, plan.shape.head_dim)
        return torch.zeros(shape, dtype=torch.float32, device=self.device)

    # -- what is in it --------------------------------------------------------------------------------------------

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all live tensors of the arena, read off the tensors themselves."""
        tensors = [tensor for layer in self._layers for tensor in layer.tensors]
        return sum(tensor.untyped_storage().nbytes() for tensor in [*tensors, self._scratch])

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use."""
        return self.plan.used_bytes(self.used)

    @property
    def peak_bytes(self) -> int:
        """Highest ``used_bytes`` since the arena was made or cleared, questions included."""
        return self.plan.used_bytes(self.peak)

    @property
    def frame_slots_used(self) -> int:
        """Slots per layer and KV head that frames fill now; a question behind them does not count."""
        return self.frames_end - self.pinned

    @property
    def frame_slots_free(self) -> int:
        """Slots per layer and KV head that frames may still fill."""
        return self.plan.frame_slots - self.frame_slots_used

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the slots in use, views [kv_heads, used, head_dim]."""
        return self._planes(index, self.used)

    def _planes(self, index: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's first ``stop`` slots, [kv_heads, stop, head_dim]."""
        layer = self._layers[index]
        return layer.keys[:, :stop], layer.values[:, :stop]

    def frame_slots(self, index: int) -> LayerSlots:
        """The frame slots of one layer as the policies see them (views, no copy).

        Un-rotated keys are made in the arena's one scratch: they are valid until the next layer's are asked for.
        """
        layer, frames = self._layers[index], slice(self.pinned, self.frames_end)
        keys, values = self._planes(index, self.frames_end)

        def into_scratch(keys: Tensor, positions: Tensor) -> Tensor:
            return self.rotary.unrotate(keys, positions, out=self._scratch[:, : keys.shape[1]])

        return LayerSlots(
            layer=index,
            layers=self.plan.shape.layers,
            keys=keys[:, frames],
            values=values[:, frames],
            value_norms=layer.norms[:, frames],
            positions=layer.positions[:, frames],
            frames=layer.frames[:, frames],
            cameras=layer.cameras[:, frames],
            unrotate=into_scratch,
            rotary=self.rotary,
            key_norms=layer.key_norms[:, frames],
            table=self._common_table,
            scratch=self._scratch,
        )

    def frames_kept(self) -> dict[int, float]:
        """Frame ids in the arena with the share of the slots' layers and heads that hold them, in slots."""
        if self._kept is None:  # counted once for all who ask until the next change
            frames = slice(self.pinned, self.frames_end)
            held = torch.cat([layer.frames[:, frames].flatten() for layer in self._layers])
            ids, numbers = torch.unique(held, return_counts=True)
            rows = self.plan.shape.layers * self.plan.shape.kv_heads
            self._kept = (dict(zip(ids.tolist(), (numbers.double() / rows).tolist(), strict=True)),)
            self._kept[0].pop(NO_FRAME, None)
        return dict(self._kept[0])

    def cameras_kept(self) -> dict[int, int]:
        """Slots per layer and KV head that each camera's frames fill, by camera id."""
        ids, numbers = torch.unique(self._layers[0].cameras[0, self.pinned : self.frames_end], return_counts=True)
        return dict(zip(ids.tolist(), numbers.tolist(), strict=True))

    # -- append ---------------------------------------------------------------------------------------------------

    def begin(self, chunk: Chunk, *, frames: bool) -> None:
        """Announce an append of ``chunk``; every layer then writes it, and ``commit`` makes it part of the memory.

        :param frames: True for frames (they must fit into the frame slots), False for text.
        :raises CapacityError: when it does not fit; nothing has changed then.
        """
        tokens = chunk.frames.shape[0]
        if frames and self.used != self.frames_end:
            raise CapacityError("frames cannot be appended behind a question: roll it back first")
        limit = self.pinned + self.plan.frame_slots if frames else self.plan.slots
        if self.used + tokens > limit:
            raise CapacityError(
                f"{tokens} tokens do not fit: {self.used} of {limit} slots are in use. "
                "Shorten the question or the answer, or raise memory.budget_mib."
            )
        self._pending, self._pending_frames = chunk, frames

    def write(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the announced chunk's keys and values into one layer, behind the slots in use.

        :param keys: rotated, [kv_heads, tokens, head_dim]; :param values: the same shape.
        :returns: views over all slots that the chunk may attend to, [kv_heads, used + tokens, head_dim].
        """
        chunk = self._pending
        if chunk is None or keys.shape[1] != chunk.frames.shape[0]:
            raise CapacityError("write without a matching begin: the chunk's slots have not been reserved")
        if self._common_table is not None:
            self._common_table = object()
        layer, rows = self._layers[index], slice(self.used, self.used + keys.shape[1])
        self._place(layer, rows.start, keys, values)
        layer.norms[:, rows] = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32)
        layer.key_norms[:, rows] = torch.linalg.vector_norm(keys, dim=-1, dtype=torch.float32)
        layer.positions[:, rows] = chunk.positions
        layer.frames[:, rows] = chunk.frames
        layer.cameras[:, rows] = chunk.cameras
        return self._planes(index, rows.stop)

    def _place(self, layer: _Layer, start: int, keys: Tensor, values: Tensor) -> None:
        """Write a chunk's keys and values into the planes, from slot ``start`` on."""
        rows = slice(start, start + keys.shape[1])
        layer.keys[:, rows] = keys
        layer.values[:, rows] = values

    def commit(self) -> None:
        """Make the written chunk part of the memory."""
        if self._pending is not None:
            self.used += self._pending.frames.shape[0]
            self._kept = None if self._pending_frames else self._kept
            self.frames_end = self.used if self._pending_frames else self.frames_end
            self.peak = max(self.peak, self.used)
            self._pending = None

    def abort(self) -> None:
        """Forget the announced chunk; the slots in use are untouched."""
        self._pending = None

    def pin(self) -> None:
        """Declare all slots in use as the prompt: never shown to a policy, never evicted."""
        self.pinned = self.frames_end = self.used
        self._kept = None

    def visible(self, frame_ids: list[int]) -> list[Tensor]:
        """Per layer bool [kv_heads, used]: True for text and for slots of these frames."""
        wanted = torch.tensor([NO_FRAME, *frame_ids], dtype=torch.int32, device=self.device)
        return [torch.isin(layer.frames[:, : self.used], wanted) for layer in self._layers]

    def clear(self) -> None:
        """Forget everything, prompt included."""
        self.used = self.pinned = self.frames_end = self.peak = self.compactions = 0
        self._generation += 1
        self._pending = self._kept = None
        self._common_table = object()

    # -- roll back ------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """The state to come back to after a question."""
        return Mark(self.used, self.frames_end, self._generation)

    def roll_back(self, mark: Mark) -> None:
        """Return to ``mark`` bit for bit: appends only ever wrote behind it.

        :raises CapacityError: when a compaction, clear or resize came between (slots have moved).
        """
        if mark.generation != self._generation:
            raise CapacityError("roll back across a compaction: the marked slots have moved")
        self._pending = None
        self._kept = None if self.frames_end != mark.frames_end else self._kept
        self.used, self.frames_end = mark.used, mark.frames_end

    # -- make room ------------------------------------------------------------------------------------------------

    def keep(self, kept: list[Tensor]) -> None:
        """Keep only the given frame slots, in place: kept rows from behind fill the holes in front.

        :param kept: per layer int [kv_heads, keep], indices into the frame slots, or bool [kv_heads, frame slots].
        """
        if self.used != self.frames_end:
            raise CapacityError("a question is still behind the frames: roll it back before a compaction")
        masks = [mask if mask.dtype == torch.bool else kept_mask(mask, self.frame_slots_used) for mask in kept]
        keep = count_true(masks[0][0])
        # The last layers were scored last: their keys may still be in the processor's cache.
        for layer, mask in reversed(list(zip(self._layers, masks, strict=True))):
            fill_holes(layer.rows, mask, self.pinned)
        self._common_table = self._kept = None
        self.used = self.frames_end = self.pinned + keep
        self.compactions += 1
        self._generation += 1

    def demote(self, tokens: int) -> None:
        """Prepare for an append of ``tokens`` that fits into the free frame slots; nothing to do in a plain arena."""

    def compact(self, policy: SelectionPolicy, keep: int) -> None:
        """Let the policy choose ``keep`` frame slots per KV head in every layer, then keep those in place.

        All layers are chosen before the first is touched, so a policy that fails leaves the memory as it was; between
        the two a layer's choice takes one byte a slot.
        """
        masks = []
        for index in range(len(self._layers)):
            masks.append(policy.select_mask(self.frame_slots(index), keep))
        self.keep(masks)

    def replace_positions(self, new_t: Callable[[Tensor], Tensor]) -> None:
        """Give every frame slot a new temporal position and rotate its key there, once, in float32.

        :param new_t: old t -> new t, elementwise on int32 tensors.
        """
        rows = slice(self.pinned, self.frames_end)
        for layer in self._layers:
            old = layer.positions[:, rows]
            raw = self.rotary.unrotate(layer.keys[:, rows], old, out=self._scratch[:, : old.shape[1]])
            new = old.clone()
            new[..., 0] = new_t(old[..., 0])
            layer.keys[:, rows] = self.rotary.rotate(raw, new, out=raw)
            layer.positions[:, rows] = new
        if self._common_table is not None:
            self._common_table = object()
        self._generation += 1

    def resize(self, plan: BudgetPlan) -> None:
        """Move to another plan of the same shape, one tensor at a time: the scratch goes first and comes back last,
        so that the larger of both budgets is never passed.

        :raises CapacityError: when the slots in use do not fit; compact first.
        """
        if self.frame_slots_used > plan.frame_slots:
            raise CapacityError(f"{self.frame_slots_used} frame slots in use do not fit into {plan.frame_slots}")
        self._scratch = torch.empty(0)
        for layer in self._layers:
            layer.__dict__.pop("rows", None)
            for name in ("keys", "values", "norms", "key_norms", "positions", "frames", "cameras"):
                old: Tensor = getattr(layer, name)
                new = old.new_zeros((old.shape[0], plan.slots, *old.shape[2:]))
                new[:, : self.used] = old[:, : self.used]
                setattr(layer, name, new)
        self.plan = plan
        self._scratch = self._allocate_scratch(plan)
        self._generation += 1
