"""The archive's table in memory: which frame holds which slot and patches, and the keys that experts search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.memory.archive.eviction import choose_evicted, eviction_costs
from ros_kvstream.memory.archive.plan import CAMERA_NAME_BYTES, FRAME, ArchivePlan


@dataclass(frozen=True)
class Claim:
    """The slot and the patch rows that a new frame got."""

    slot: int
    rows: NDArray[np.int32]
    sequence: int
    evicted: tuple[int, ...] = ()
    """Slots that were given up for it."""


class FrameTable:
    """Slots, patch rows and look-up planes; preallocated, never grows."""

    def __init__(self, plan: ArchivePlan) -> None:
        shape = plan.shape
        self.plan = plan
        self.frames = np.zeros(plan.frames, dtype=FRAME)
        self.rows = np.full((plan.frames, shape.patches), -1, dtype=np.int32)
        self.index_keys = torch.zeros(
            len(shape.index_layers), plan.frames, plan.index_count, shape.index_width, dtype=torch.float16
        )
        self.embeddings = torch.zeros(plan.frames, shape.embedding, dtype=torch.float16)
        self.camera_names: list[str] = []
        self.evicted = 0
        self._free_slots = np.zeros(plan.frames, dtype=np.int32)
        self._free_rows = np.zeros(plan.rows, dtype=np.int32)
        self._next_sequence = 1
        self.clear()

    def clear(self) -> None:
        """Release every frame."""
        self.frames["live"] = False
        self._free_slots[:] = np.arange(self.plan.frames - 1, -1, -1)
        self._free_rows[:] = np.arange(self.plan.rows - 1, -1, -1)
        self._slots_free, self._rows_free = self.plan.frames, self.plan.rows

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.frames, self.rows, self._free_slots, self._free_rows)
        tensors = (self.index_keys, self.embeddings)
        return sum(array.nbytes for array in arrays) + sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    @property
    def count(self) -> int:
        """Frames held."""
        return self.plan.frames - self._slots_free

    @property
    def rows_used(self) -> int:
        """Patches held."""
        return self.plan.rows - self._rows_free

    def camera_index(self, name: str) -> int:
        """Number of a camera name, made on first use."""
        name = name.encode()[:CAMERA_NAME_BYTES].decode(errors="ignore")
        if name not in self.camera_names:
            self.camera_names.append(name)
        return self.camera_names.index(name)

    # -- claim and release ----------------------------------------------------------------------------------------

    def claim(self, patches: int) -> Claim:
        """Take a free slot and ``patches`` rows; forgets other frames by the stated rule when there are none.

        :param patches: 1 <= patches <= the plan's rows.
        """
        evicted: list[int] = []
        while self._slots_free == 0 or self._rows_free < patches:
            evicted += self._forget()
        self._slots_free -= 1
        slot = int(self._free_slots[self._slots_free])
        rows = np.sort(self._free_rows[self._rows_free - patches : self._rows_free])
        self._rows_free -= patches
        self.rows[slot, :patches] = rows
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        return Claim(slot, rows, sequence, tuple(evicted))

    def release(self, slot: int) -> None:
        """Give a slot and its rows back."""
        entry = self.frames[slot]
        patches = int(entry["patches"])
        entry["live"] = False
        self._free_rows[self._rows_free : self._rows_free + patches] = self.rows[slot, :patches][::-1]
        self._rows_free += patches
        self._free_slots[self._slots_free] = slot
        self._slots_free += 1

    def _forget(self) -> list[int]:
        """Release the frames whose absence leaves the smallest gap for their age, a small batch at a time."""
        slots = np.flatnonzero(self.frames["live"])
        entries, settings = self.frames[slots], self.plan.settings
        costs = eviction_costs(
            entries["stamp"], entries["camera"], entries["novelty"], settings.age_weight, settings.novelty_weight
        )
        batch = max(1, self.plan.frames // 64)
        given_up = [int(slot) for slot in slots[choose_evicted(costs, entries["stamp"], min(batch, len(slots)))]]
        for slot in given_up:
            self.release(slot)
        self.evicted += len(given_up)
        return given_up

    # -- restore ---------------------------------------------------------------------------------------------------

    def restore(self, found: list[tuple[int, np.void]]) -> list[int]:
        """Take over frames read from a file; of two that claim the same row the newer stays.

        :param found: (slot, record of the plan's slot type) of every intact record.
        :returns: the slots taken over.
        """
        owners = np.zeros(self.plan.rows, dtype=bool)
        taken: list[int] = []
        for slot, record in sorted(found, key=lambda item: -int(item[1]["frame"]["sequence"])):
            patches = int(record["frame"]["patches"])
            rows = record["rows"][:patches]
            if owners[rows].any():
                continue
            owners[rows] = True
            self.frames[slot] = record["frame"]
            self.frames[slot]["live"] = True
            self.frames[slot]["camera"] = self.camera_index(record["camera_name"].decode(errors="ignore"))
            self.rows[slot, :patches] = rows
            self.index_keys[:, slot] = torch.from_numpy(np.array(record["index_keys"]))
            self._next_sequence = max(self._next_sequence, int(record["frame"]["sequence"]) + 1)
            taken.append(slot)
        free_slots = np.flatnonzero(~self.frames["live"])[::-1]
        free_rows = np.flatnonzero(~owners)[::-1]
        self._slots_free, self._rows_free = len(free_slots), len(free_rows)
        self._free_slots[: self._slots_free] = free_slots
        self._free_rows[: self._rows_free] = free_rows
        return taken

    def slot_of(self, frame_id: int) -> int | None:
        """Slot of a frame, or None when the archive does not hold it."""
        found = np.flatnonzero((self.frames["frame_id"] == frame_id) & self.frames["live"])
        return int(found[-1]) if found.size else None

    def make_index_keys(self, keys: Tensor, kept: Tensor, dissimilarity: Tensor) -> tuple[Tensor, int]:
        """Look-up entries of a frame: the mean key (when kept), then its most telling kept patches.

        :param keys: un-rotated keys of the look-up layers, [layers, kv_heads, patches, head_dim].
        :returns: float16 [layers, entries, kv_heads * head_dim] and the number of entries.
        """
        planes = keys.float().permute(0, 2, 1, 3).flatten(2)
        telling = kept[dissimilarity[kept].argsort(descending=True, stable=True)][: self.plan.settings.index_keys]
        entries = planes[:, telling]
        if self.plan.settings.mean_key:
            entries = torch.cat((planes.mean(1, keepdim=True), entries), dim=1)
        return entries.to(torch.float16), entries.shape[1]
