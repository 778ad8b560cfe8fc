# SPDX-License-Identifier: Apache-2.0
"""The bounded second tier: frames as sparse, packed patches, in host memory or in a folder."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.errors import ArchiveError, FrameError
from ros_kvstream.memory.archive.file import ArchiveFile
from ros_kvstream.memory.archive.newest import NewestFrames
from ros_kvstream.memory.archive.patches import PatchSelector
from ros_kvstream.memory.archive.plan import CAMERA_NAME_BYTES, MIB, ArchivePlan
from ros_kvstream.memory.archive.records import ArchivedFrame, ArchiveStatus, FrameToArchive
from ros_kvstream.memory.archive.table import Claim, FrameTable
from ros_kvstream.memory.archive.writer import ArchiveWriter
from ros_kvstream.memory.frame_index import FrameRecord
from ros_kvstream.poses import SEGMENT_BYTES, FramePose, Pose

log = logging.getLogger(__name__)


class Archive:
    """Stores the distinctive patches of every frame, evicts frames when it is full, and returns frames by slot.

    Everything is allocated at the start inside the plan's bytes. Thread-safe.
    """

    def __init__(self, plan: ArchivePlan, fingerprint: str = "") -> None:
        """Allocate everything, and open or create the file when the plan has a folder.

        A folder that cannot be written or has too little space does not raise: the archive reports ``failed``, stores
        nothing, and the stream continues.

        :param fingerprint: identifies model and weights; a file with another fingerprint is refused.
        :raises ArchiveError: when the folder's file has other settings, is damaged, or is in use.
        """
        self.plan = plan
        self.table = FrameTable(plan)
        self.lock = threading.RLock()
        """Held while several reads of the table belong together; the writer's thread releases frames after an error."""
        self._selector = PatchSelector(plan.shape, plan.settings)
        self._newest = NewestFrames(plan.shape)
        self._state, self._message = "ok", ""
        self._dropped = self._late_dropped = self._lost = self._torn = 0
        self._writer: ArchiveWriter | None = None
        self._patches = torch.empty(0, plan.codec.row_bytes, dtype=torch.uint8)
        self._stage = torch.empty(0, plan.codec.row_bytes, dtype=torch.uint8)
        self._thumbnails = np.zeros((0, plan.settings.thumbnail_bytes), dtype=np.uint8)
        if plan.on_disk:
            self._open(fingerprint)
        else:
            self._patches = torch.zeros(plan.rows, plan.codec.row_bytes, dtype=torch.uint8)
            self._stage = torch.zeros(plan.shape.patches, plan.codec.row_bytes, dtype=torch.uint8)
            self._thumbnails = np.zeros((plan.frames, plan.settings.thumbnail_bytes), dtype=np.uint8)

    def _open(self, fingerprint: str) -> None:
        try:
            file = ArchiveFile(self.plan, fingerprint)
        except OSError as error:
            self._state, self._message = "failed", describe_failure(error, self.plan.settings.path)
            log.warning("archive: %s", self._message)
            return
        if not file.created:
            self._restore(file)
        self._writer = ArchiveWriter(self.plan, file, self._on_lost)

    def _restore(self, file: ArchiveFile) -> None:
        found: list[tuple[int, np.void]] = []
        for slot, record in file.intact():
            if record is None:
                self._torn += 1
            else:
                found.append((slot, record))
        taken = set(self.table.restore(found))
        for slot, late in file.late_records():
            entry = self.table.frames[slot]
            if slot in taken and int(entry["sequence"]) == int(late["sequence"]):
                entry["stamp_end"] = late["stamp_end"]
                if late["map_name"]:
                    self.table.set_poses(slot, late["map_name"].decode(errors="ignore"), late["poses"])
                if late["embedded"]:
                    entry["embedded"] = True
                    self.table.embeddings[slot] = torch.from_numpy(np.array(late["embedding"]))

    # -- in ---------------------------------------------------------------------------------------------------------

    def add(self, frame: FrameToArchive) -> bool:
        """Archive a frame's distinctive patches; False when it could not be stored (see ``status``).

        :raises FrameError: when the frame does not fit the plan's shape.
        """
        shape = self.plan.shape
        numbers = torch.arange(frame.grid[0] * frame.grid[1]) if frame.patches is None else frame.patches.cpu().long()
        for name, tensor, expected in (
            ("keys", frame.keys, (len(shape.index_layers), shape.kv_heads, len(numbers), shape.head_dim)),
            ("content", frame.content, (len(numbers), shape.vectors, shape.width)),
        ):
            if tuple(tensor.shape) != expected or not len(numbers):
                raise FrameError(
                    f"frame {frame.frame_id}: {name} {tuple(tensor.shape)}, the archive takes {expected}"
                )
        cells = frame.grid[0] * frame.grid[1]
        if max(cells, int(numbers.max()) + 1) > shape.patches:
            raise FrameError(
                f"frame {frame.frame_id} is of {frame.grid} patches, the archive was planned for {shape.patches}"
            )
        coordinates = torch.stack((numbers // frame.grid[1], numbers % frame.grid[1]), dim=1).to(torch.int16)
        with self.lock:
            self._newest.add(frame, coordinates)
            if self._state == "failed":
                self._lost += 1
                return False
            searched = frame.keys.cpu()
            kept, dissimilarity = self._choose(frame, searched, numbers)
            stage = self._writer.stage() if self._writer else 0
            if stage is None:
                self._dropped += 1
                return False
            self._store(frame, kept, coordinates[kept], dissimilarity, searched, stage)
            return True

    def _choose(self, frame: FrameToArchive, searched: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of distinctive patches and of tokens that are not patches, ascending; dissimilarity of each token."""
        patch = numbers < frame.grid[0] * frame.grid[1]
        if bool(patch.all()):
            return self._selector.choose(frame.camera, searched, frame.grid, numbers)
        inside = patch.nonzero()[:, 0]
        chosen, found = self._selector.choose(frame.camera, searched[:, :, inside], frame.grid, numbers[inside])
        dissimilarity = torch.zeros(len(numbers)).index_copy_(0, inside, found)
        return torch.cat([inside[chosen], (~patch).nonzero()[:, 0]]).sort().values, dissimilarity

    def _store(
        self,
        frame: FrameToArchive,
        kept: Tensor,
        coordinates: Tensor,
        dissimilarity: Tensor,
        searched: Tensor,
        stage: int,
    ) -> None:
        """Store the patches ``kept`` among those given, at these grid coordinates."""
        table, count = self.table, kept.numel()
        claim = table.claim(count)
        entry = table.frames[claim.slot]
        fits = len(frame.thumbnail) <= self.plan.settings.thumbnail_bytes
        thumbnail = np.frombuffer(frame.thumbnail if fits else b"", dtype=np.uint8)
        index_keys, entries = table.make_index_keys(searched, kept, dissimilarity)
        table.index_keys[:, claim.slot] = 0
        table.index_keys[:, claim.slot, :entries] = index_keys
        for name, value in (
            ("sequence", claim.sequence),
            ("frame_id", frame.frame_id),
            ("stamp", frame.stamp),
            ("stamp_end", frame.stamp if frame.stamp_end is None else frame.stamp_end),
            ("novelty", float(dissimilarity.max())),
            ("thumbnail_bytes", len(thumbnail)),
            ("camera", table.camera_index(frame.camera)),
            ("patches", count),
            ("index_count", entries),
            ("grid_rows", frame.grid[0]),
            ("grid_columns", frame.grid[1]),
            ("live", True),
            ("embedded", False),
        ):
            entry[name] = value
        self._set_poses(claim.slot, frame.pose, frame.base_end)
        packed = self._writer.buffers(stage)[0] if self._writer else self._stage
        self.plan.codec.encode(frame.content[kept.to(frame.content.device)], coordinates, packed[:count])
        if self._writer is None:
            self._patches[torch.from_numpy(claim.rows).long()] = packed[:count]
            self._thumbnails[claim.slot, : len(thumbnail)] = thumbnail
        else:
            record = self._writer.buffers(stage)[1]
            record["frame"], record["camera_name"] = entry, frame.camera.encode()[:CAMERA_NAME_BYTES]
            record["map_name"] = table.map_name(claim.slot).encode()
            record["rows"], record["index_keys"] = table.rows[claim.slot], table.index_keys[:, claim.slot].numpy()
            record["thumbnail"][0, : len(thumbnail)] = thumbnail
            self._writer.submit(stage, claim)
        if frame.embedding is not None:
            self.complete(frame.frame_id, embedding=frame.embedding)

    def complete(
        self,
        frame_id: int,
        *,
        embedding: NDArray[np.float32] | None = None,
        stamp_end: float | None = None,
        pose: FramePose | None = None,
        base_end: Pose | None = None,
    ) -> bool:
        """Add the embedding, the new end of a frame's time span or its poses; False when the frame is not held."""
        with self.lock:
            slot = self.table.slot_of(frame_id)
            if slot is None:
                return False
            entry = self.table.frames[slot]
            if stamp_end is not None:
                entry["stamp_end"] = stamp_end
            if pose is not None:
                self._set_poses(slot, pose, base_end)
            if embedding is not None:
                self.table.embeddings[slot] = torch.as_tensor(np.asarray(embedding, dtype=np.float32))
                entry["embedded"] = True
            if self._writer is not None:
                late = np.zeros(1, dtype=self.plan.late_type)
                late["sequence"], late["stamp_end"] = entry["sequence"], entry["stamp_end"]
                late["map_name"], late["poses"] = self.table.map_name(slot).encode(), entry["poses"]
                late["embedded"], late["embedding"] = entry["embedded"], self.table.embeddings[slot].numpy()
                self._late_dropped += not self._writer.submit_late(slot, late)
            return True

    def _set_poses(self, slot: int, pose: FramePose | None, base_end: Pose | None) -> None:
        if pose is None or len(pose.map.encode()) > SEGMENT_BYTES:
            self.table.set_poses(slot, "", ())
            return
        poses = [pose.base, pose.camera, base_end or pose.base]
        self.table.set_poses(slot, pose.map, [pose.numbers() for pose in poses])

    # -- out --------------------------------------------------------------------------------------------------------

    def fetch(self, slots: Sequence[int]) -> list[ArchivedFrame]:
        """Read frames, in the order given; a frame that cannot be read is left out and reported."""
        frames: list[ArchivedFrame] = []
        with self.lock:
            for slot in slots:
                entry = self.table.frames[slot]
                if not entry["live"]:
                    continue
                try:
                    frames.append(self._fetch(slot, entry))
                except OSError as error:
                    self._degrade(error)
        return frames

    def maps(self) -> set[str]:
        """Segments of the maps that the poses of the frames refer to."""
        with self.lock:
            return self.table.maps()

    def _fetch(self, slot: int, entry: np.void) -> ArchivedFrame:
        rows = self.table.rows[slot, : int(entry["patches"])]
        packed = torch.empty(len(rows), self.plan.codec.row_bytes, dtype=torch.uint8)
        if self._writer is None:
            packed.copy_(self._patches[torch.from_numpy(rows).long()])
        else:
            self._writer.read(slot, rows, packed)
        content, coordinates = self.plan.codec.decode(packed)
        pose, base_end = self.table.poses(slot)
        return ArchivedFrame(
            frame_id=int(entry["frame_id"]),
            stamp=float(entry["stamp"]),
            stamp_end=float(entry["stamp_end"]),
            camera=self.table.camera_names[int(entry["camera"])],
            grid=(int(entry["grid_rows"]), int(entry["grid_columns"])),
            coordinates=coordinates,
            content=content,
            pose=pose,
            base_end=base_end,
        )

    def newest_frames(self, frame_ids: Sequence[int]) -> list[ArchivedFrame]:
        """Those of the frames that are held with all their tokens, oldest first."""
        with self.lock:
            return self._newest.frames(frame_ids)

    def thumbnail(self, frame_id: int) -> bytes:
        """JPEG of a frame; empty when there is none."""
        with self.lock:
            slot = self.table.slot_of(frame_id)
            if slot is None:
                return b""
            if self._writer is not None:
                return self._writer.thumbnail(slot)
            return self._thumbnails[slot, : int(self.table.frames[slot]["thumbnail_bytes"])].tobytes()

    @property
    def newest_frame_id(self) -> int:
        """Highest frame id held, -1 when empty; a stream that reopens an archive continues from it."""
        live = self.table.frames["frame_id"][self.table.frames["live"]]
        return int(live.max()) if live.size else -1

    # -- state ------------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Unique name of the archive's file; empty for an archive in memory."""
        return self._writer.identity if self._writer is not None else ""

    def remove(self, frame_ids: Iterable[int]) -> None:
        """Remove these frames, on disk too; ids that are not held are ignored."""
        with self.lock:
            for slot in (self.table.slot_of(frame_id) for frame_id in frame_ids):
                if slot is not None:
                    self.table.release(slot)
                    if self._writer is not None:
                        self._writer.void(slot)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state for a checkpoint: plain values, and under "tensors" views of the storage in use.

        An archive in a folder survives by itself and continues to grow after the checkpoint: its state is the identity
        of its file. None for a folder that has failed and holds nothing.
        """
        if self.plan.on_disk:
            if not self.identity:
                return None
            state = {"kind": "folder", "identity": self.identity, "newest": self._newest.state_dict()}
            return state | {"tensors": self.state_tensors(state)}
        state = {
            "kind": "memory",
            "plan": self.plan.layout,
            "newest": self._newest.state_dict(),
            "table": self.table.state_dict(),
            "selector": self._selector.state_dict(),
        }
        return state | {"tensors": self.state_tensors(state)}

    def state_tensors(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the views of this archive's storage that a state of an archive with the same layout covers."""
        if state["kind"] != "memory":
            return self._newest.tensors()
        table = state["table"]
        slots, rows = slice(0, table["slots_end"]), slice(0, table["rows_end"])
        thumbnails = torch.from_numpy(self._thumbnails)[slots]
        stored = {"patches": self._patches[rows], "thumbnails": thumbnails}
        return self.table.tensors(table) | stored | self._selector.tensors() | self._newest.tensors()

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ArchiveError when a saved archive does not fit this one."""
        settings = "Set archive.* and retrieval.* as they were when it was saved"
        if self.plan.on_disk != (state["kind"] == "folder"):
            saved = "a folder" if state["kind"] == "folder" else "memory"
            raise ArchiveError(f"its archive was in {saved}, it is in {self.plan.settings.path!r} now. {settings}.")
        if state["kind"] == "folder":
            if self.identity and state["identity"] != self.identity:  # a failed folder is reported by status()
                raise ArchiveError(
                    f"its archive is another one than that in archive.path = {self.plan.settings.path!r}. {settings}."
                )
            saved_shape, shape = state["newest"]["shape"], self._newest.state_dict()["shape"]
            if saved_shape != shape:
                raise ArchiveError(f"its newest frames had the shape {saved_shape} (now {shape}). {settings}.")
            return
        saved_plan, plan = state["plan"], self.plan.layout
        differing = [f"{name} {saved_plan.get(name)} (now {plan[name]})" for name in plan
                     if saved_plan.get(name) != plan[name]]  # fmt: skip
        if differing:
            raise ArchiveError(f"its archive was of other settings: {', '.join(differing)}. {settings}.")

    def empty_for(self, records: Iterable[FrameRecord]) -> None:
        """Prepare for loading a memory with these frames: empty an archive in memory, keep one in a folder.

        In a folder only frames are removed whose ids belong to other frames in the loaded memory.
        """
        if not self.plan.on_disk:
            self.clear()
            return
        self._newest.clear()
        slots = ((record, self.table.slot_of(record.frame_id)) for record in records)
        stamps = self.table.frames["stamp"]
        self.remove([record.frame_id for record, slot in slots
                     if slot is not None and float(stamps[slot]) != record.stamp])  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore plain values, after the tensors have been copied into those of :meth:`state_tensors`."""
        self._newest.load_state_dict(state["newest"])
        if state["kind"] == "memory":
            self.table.load_state_dict(state["table"])
            self._selector.load_state_dict(state["selector"])

    def clear(self) -> None:
        """Remove every frame, on disk too."""
        with self.lock:
            self.table.clear()
            self._selector.clear()
            self._newest.clear()
            if self._writer is not None:
                self._writer.clear()

    def wait(self) -> None:
        """Block until everything archived so far is in the file."""
        if self._writer is not None:
            self._writer.wait()

    def close(self) -> None:
        """Write what is queued and close the file; nothing is stored afterwards."""
        with self.lock:
            writer, self._writer = self._writer, None
            self._state, self._message = "failed", "the archive is closed"
        if writer is not None:
            writer.close()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all live arrays in memory, without the plan's transient working memory."""
        staged = self._writer.allocated_bytes if self._writer else self._stage.untyped_storage().nbytes()
        held = self._patches.untyped_storage().nbytes() + self._thumbnails.nbytes + self._newest.allocated_bytes
        return self.table.allocated_bytes + self._selector.allocated_bytes + staged + held

    def status(self) -> ArchiveStatus:
        """State, counters and sizes."""
        with self.lock:
            stamps = self.table.frames["stamp"][self.table.frames["live"]]
            plan = self.plan
            per_frame = plan.frame_bytes + (plan.slot_type.itemsize if plan.on_disk else 0)
            state, message = self._state, self._message
            if state == "ok" and self._late_dropped:
                state, message = "degraded", describe_missing(self._late_dropped, plan.settings.path)
            return ArchiveStatus(
                state=state,
                message=message,
                frames=self.table.count,
                patches=self.table.rows_used,
                frame_capacity=plan.frames,
                patch_capacity=plan.rows,
                budget_bytes=int(plan.settings.budget_mib * MIB),
                memory_bytes=self.allocated_bytes,
                disk_bytes=sum(plan.disk_parts.values()) if self._writer else 0,
                used_bytes=self.table.count * per_frame + self.table.rows_used * plan.codec.row_bytes,
                evicted=self.table.evicted,
                dropped=self._dropped,
                late_dropped=self._late_dropped,
                lost=self._lost,
                torn=self._torn,
                oldest_stamp=float(stamps.min()) if stamps.size else 0.0,
                newest_stamp=float(stamps.max()) if stamps.size else 0.0,
            )

    def _on_lost(self, claim: Claim, error: OSError) -> None:
        with self.lock:
            if claim.slot >= 0:
                self._lost += 1
                entry = self.table.frames[claim.slot]
                if entry["live"] and int(entry["sequence"]) == claim.sequence:
                    self.table.release(claim.slot)
            self._degrade(error)

    def _degrade(self, error: OSError) -> None:
        if self._state == "ok":
            log.warning("archive: %s", describe_failure(error, self.plan.settings.path))
        if self._state != "failed":
            self._state, self._message = "degraded", describe_failure(error, self.plan.settings.path)


def describe_missing(count: int, path: str) -> str:
    """Describe which late records the file lacks, and the remedy, for diagnostics."""
    return (
        f"archive.path = {path!r}: {count} embeddings, time spans or poses are not in the file, since the disk was "
        "slower than the stream; they are missing after a restart. Remedy: raise archive.queue_frames or use a faster "
        "disk."
    )


def describe_failure(error: OSError, path: str) -> str:
    """Describe what failed and the remedy, for diagnostics."""
    remedies = {
        errno.ENOSPC: "free space there or lower archive.budget_mib",
        errno.EDQUOT: "free space there or lower archive.budget_mib",
        errno.EROFS: "mount it writable or set archive.path to another folder",
        errno.EACCES: "give write permission or set archive.path to another folder",
        errno.EPERM: "give write permission or set archive.path to another folder",
        errno.ENOTDIR: "set archive.path to a folder",
    }
    remedy = remedies.get(error.errno or 0, "check the disk or set archive.path to another folder")
    return f"archive.path = {path!r}: {error.strerror or error}; frames are not archived. Remedy: {remedy}."
