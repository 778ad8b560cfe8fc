# SPDX-License-Identifier: Apache-2.0
"""The archive's table in memory: the slot and patches of each frame, the index keys, and which frames are evicted.

A full archive evicts the frames whose absence leaves the smallest gap for their age. This is not first in, first out:
the whole time of every camera stays covered, older stretches grow sparser, and frames that differed from those before
them are protected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ros_kvstream.memory.archive.plan import CAMERA_NAME_BYTES, FRAME, ArchivePlan
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.records import Scope

NOVELTY_RANGE = (0.05, 100.0)
"""Bounds of the protection by novelty, as a multiple of the median frame's."""


@dataclass(frozen=True)
class Claim:
    """The slot and the patch rows that a new frame got."""

    slot: int
    rows: NDArray[np.int32]
    sequence: int
    evicted: tuple[int, ...] = ()
    """Slots that were evicted for it."""


class FrameTable:
    """Slots, patch rows and index keys; preallocated, never grows."""

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
        self.map_names: list[str] = []
        """Segments of maps that poses refer to."""
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
        """Take a free slot and ``patches`` rows; evicts other frames when there are none.

        :param patches: 1 <= patches <= the plan's rows.
        """
        evicted: list[int] = []
        while self._slots_free == 0 or self._rows_free < patches:
            evicted += self._evict()
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

    def _evict(self) -> list[int]:
        """Release a small batch of the frames whose absence costs least."""
        slots = np.flatnonzero(self.frames["live"])
        entries, settings = self.frames[slots], self.plan.settings
        costs = eviction_costs(
            entries["stamp"], entries["camera"], entries["novelty"], settings.age_weight, settings.novelty_weight
        )
        batch = max(1, self.plan.frames // 64)
        evicted = [int(slot) for slot in slots[choose_evicted(costs, entries["stamp"], min(batch, len(slots)))]]
        for slot in evicted:
            self.release(slot)
        self.evicted += len(evicted)
        return evicted

    # -- filters and poses --------------------------------------------------------------------------------------------

    def set_poses(self, slot: int, map_name: str, poses: ArrayLike) -> None:
        """Set the poses of a frame; an empty name means that they are unknown.

        :param poses: of base and camera at its first moment and of the base at its last, [3, 7].
        """
        entry = self.frames[slot]
        entry["map"] = -1
        if map_name:
            entry["map"] = self._map_index(map_name)
        entry["poses"] = poses if map_name else 0.0

    def _map_index(self, name: str) -> int:
        """Number of a map segment; a number that no frame uses any more is given again."""
        if name not in self.map_names:
            used = self.frames["map"][self.frames["live"]]
            number = next(n for n in range(len(self.map_names) + 1) if n not in used)
            self.map_names[number : number + 1] = [name]
        return self.map_names.index(name)

    def maps(self) -> set[str]:
        """Segments of the maps that the poses of the frames refer to."""
        used = np.unique(self.frames["map"][self.frames["live"]])
        return {self.map_names[number] for number in used.tolist() if number >= 0}

    def map_name(self, slot: int) -> str:
        """Segment of the map that a frame's poses refer to; empty where they are unknown."""
        number = int(self.frames["map"][slot])
        return self.map_names[number] if number >= 0 else ""

    def poses(self, slot: int) -> tuple[FramePose | None, Pose | None]:
        """Where a frame was taken, and the pose of the base at its last moment; None where they are unknown."""
        name = self.map_name(slot)
        if not name:
            return None, None
        base, camera, end = (Pose.from_numbers(numbers) for numbers in self.frames["poses"][slot])
        return FramePose(name, base, camera), end

    def matching(self, scope: Scope) -> NDArray[np.bool_]:
        """Slots whose frame is in a scope, bool [slots]."""
        frames = self.frames
        allowed: NDArray[np.bool_] = frames["live"] & scope.in_time(frames["stamp"], frames["stamp_end"])
        if scope.camera:
            known = scope.camera in self.camera_names
            allowed &= frames["camera"] == (self.camera_names.index(scope.camera) if known else -1)
        if scope.near is not None:
            known = scope.map in self.map_names
            allowed &= (frames["map"] == self.map_names.index(scope.map)) if known else False
            allowed &= scope.in_place(frames["poses"][:, ::2, :3])
        return allowed

    # -- restore ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain values of a checkpoint; the tensors are those of :meth:`tensors`."""
        live = np.flatnonzero(self.frames["live"])
        used = [self.rows[slot, : int(self.frames["patches"][slot])].max() for slot in live]
        return {
            "slots_end": int(live.max()) + 1 if live.size else 0,
            "rows_end": int(max(used)) + 1 if used else 0,
            "camera_names": self.camera_names,
            "map_names": self.map_names,
            "evicted": self.evicted,
            "next_sequence": self._next_sequence,
            "free_slots": self._slots_free,
            "free_rows": self._rows_free,
        }

    def tensors(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """Views of the storage that a state covers, by name."""
        slots = slice(0, state["slots_end"])
        records = self.frames.view(np.uint8).reshape(len(self.frames), self.frames.dtype.itemsize)
        index_keys = {f"index_keys.{index}": keys[slots] for index, keys in enumerate(self.index_keys)}
        return {
            "frames": torch.from_numpy(records)[slots],
            "rows": torch.from_numpy(self.rows)[slots],
            **index_keys,
            "embeddings": self.embeddings[slots],
            "free_slots": torch.from_numpy(self._free_slots),
            "free_rows": torch.from_numpy(self._free_rows),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the plain values of a state whose tensors have been copied into :meth:`tensors`."""
        self.camera_names, self.map_names = list(state["camera_names"]), list(state["map_names"])
        self.evicted = state["evicted"]
        self._next_sequence = state["next_sequence"]
        self._slots_free, self._rows_free = state["free_slots"], state["free_rows"]

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
            self.set_poses(slot, record["map_name"].decode(errors="ignore"), record["frame"]["poses"])
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
        """Index keys of a frame: the mean key (when configured), then the keys of its most distinctive kept patches.

        :param keys: un-rotated keys of the index layers, [layers, kv_heads, patches, head_dim].
        :returns: float16 [layers, entries, kv_heads * head_dim] and the number of entries.
        """
        rows = keys.float().permute(0, 2, 1, 3).flatten(2)
        distinctive = kept[dissimilarity[kept].argsort(descending=True, stable=True)][: self.plan.settings.index_keys]
        entries = rows[:, distinctive]
        if self.plan.settings.mean_key:
            entries = torch.cat((rows.mean(1, keepdim=True), entries), dim=1)
        return entries.to(torch.float16), entries.shape[1]


def eviction_costs(
    stamps: NDArray[np.float64],
    cameras: NDArray[np.int16],
    novelty: NDArray[np.float32],
    age_weight: float,
    novelty_weight: float,
) -> NDArray[np.float64]:
    """Cost of evicting each frame: (gap left / age ** age_weight) * relative novelty ** novelty_weight.

    :param stamps: seconds [frames]; :param cameras: ids [frames]; :param novelty: dissimilarity [frames].
    :returns: [frames]; infinite for each camera's first and newest frame, so that the covered time keeps both ends.
    """
    order = np.lexsort((stamps, cameras))
    costs = np.full(stamps.shape, np.inf)
    times, owners = stamps[order], cameras[order]
    inner = np.zeros(len(order), dtype=bool)
    inner[1:-1] = (owners[:-2] == owners[1:-1]) & (owners[2:] == owners[1:-1])
    candidates = np.flatnonzero(inner)
    if candidates.size:
        gaps = times[candidates + 1] - times[candidates - 1]
        gaps = gaps + max(1e-9, 1e-3 * float(np.median(gaps)))
        ages = stamps.max() - times[candidates] + float(np.median(gaps))
        costs[order[candidates]] = gaps / ages**age_weight
    if novelty_weight > 0:
        median = float(np.median(novelty))
        relative = np.clip(novelty / median, *NOVELTY_RANGE) if median > 0 else np.where(novelty > 0, 2.0, 1.0)
        costs = costs * relative.astype(np.float64) ** novelty_weight
    return costs


def choose_evicted(costs: NDArray[np.float64], stamps: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Choose the ``count`` cheapest frames, without neighbours in time where possible; ties go to the older frame.

    Deterministic. Frames of infinite cost are chosen only when no others are left.
    """
    by_time = np.argsort(stamps, kind="stable")
    rank = np.empty_like(by_time)
    rank[by_time] = np.arange(len(by_time))
    locked = np.zeros(len(by_time) + 2, dtype=bool)
    chosen: list[int] = []
    spared: list[int] = []
    for index in by_time[np.argsort(costs[by_time], kind="stable")]:
        if len(chosen) == count:
            break
        spot = rank[index] + 1
        if locked[spot] or not np.isfinite(costs[index]):
            spared.append(int(index))
            continue
        chosen.append(int(index))
        locked[spot - 1 : spot + 2] = True
    chosen += spared[: count - len(chosen)]
    return np.array(chosen, dtype=np.int64)
