# SPDX-License-Identifier: Apache-2.0
"""Writes the archive's file in a separate thread, so that neither ingest nor answers wait for the disk."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.memory.archive.file import ArchiveFile
from ros_kvstream.memory.archive.plan import ArchivePlan
from ros_kvstream.memory.archive.table import Claim

SYNC_SECONDS = 5.0
"""Interval between two fdatasync calls while frames are written."""


@dataclass(frozen=True)
class _Late:
    slot: int
    record: NDArray[np.void]


@dataclass(frozen=True)
class _Frame:
    stage: int
    claim: Claim


class ArchiveWriter:
    """A bounded queue of staged frames in front of the file."""

    def __init__(self, plan: ArchivePlan, file: ArchiveFile, on_lost: Callable[[Claim, OSError], None]) -> None:
        """Start the thread.

        :param on_lost: called in the thread for every frame that could not be written.
        """
        stages = plan.staged_records
        self._file = file
        self._on_lost = on_lost
        self._packed = torch.zeros(stages, plan.shape.patches, plan.codec.row_bytes, dtype=torch.uint8)
        self._records = np.zeros(stages, dtype=plan.slot_type)
        self._free = list(range(stages))
        self._pending: dict[int, _Frame] = {}
        self._lock = threading.Lock()
        self._tasks: queue.Queue[_Frame | _Late | Callable[[], None] | None] = queue.Queue()
        self._late_slots = threading.Semaphore(4 * stages)
        self._thread = threading.Thread(target=self._run, name="kvstream-archive", daemon=True)
        self._thread.start()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the staging arrays."""
        return self._packed.untyped_storage().nbytes() + self._records.nbytes

    # -- from the stream's thread -----------------------------------------------------------------------------------

    def stage(self) -> int | None:
        """Index of a free staging buffer, or None while the disk is too slow."""
        with self._lock:
            return self._free.pop() if self._free else None

    def buffers(self, stage: int) -> tuple[Tensor, NDArray[np.void]]:
        """A staging buffer's patches, uint8 [patches, row_bytes], and its record, shape [1]."""
        return self._packed[stage], self._records[stage : stage + 1]

    def submit(self, stage: int, claim: Claim) -> None:
        """Queue a staged frame; it can be read at once."""
        frame = _Frame(stage, claim)
        with self._lock:
            self._pending[claim.slot] = frame
        self._tasks.put(frame)

    def submit_late(self, slot: int, record: NDArray[np.void]) -> bool:
        """Queue a late record; False, with nothing queued, while the disk is too slow."""
        if not self._late_slots.acquire(blocking=False):
            return False
        self._tasks.put(_Late(slot, record))
        return True

    def read(self, slot: int, rows: NDArray[np.int32], out: Tensor) -> None:
        """Read a frame's patches into ``out`` uint8 [patches, row_bytes], written or not yet.

        :raises OSError: when the file cannot be read.
        """
        with self._lock:
            frame = self._pending.get(slot)
            if frame is not None:
                out.copy_(self._packed[frame.stage, : len(rows)])
                return
        self._file.read_rows(rows, out.numpy())

    def thumbnail(self, slot: int) -> bytes:
        """JPEG of a frame, empty when it has none."""
        with self._lock:
            frame = self._pending.get(slot)
            record = self._records[frame.stage].copy() if frame is not None else None
        if record is None:
            record = self._file.read_slot(slot)[0]
        return record["thumbnail"][: int(record["frame"]["thumbnail_bytes"])].tobytes()

    def void(self, slot: int) -> None:
        """Invalidate one frame's record, after what is queued."""
        self._tasks.put(lambda: self._file.void_slot(slot))

    @property
    def identity(self) -> str:
        """Unique name of the file."""
        return self._file.identity

    def clear(self) -> None:
        """Invalidate every record, after what is queued."""
        self._tasks.put(self._file.clear)

    def wait(self) -> None:
        """Block until everything queued so far is in the file."""
        self._tasks.join()

    def close(self) -> None:
        """Write what is queued, end the thread and close the file."""
        self._tasks.put(None)
        self._thread.join()
        self._file.close()

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        synced, dirty = time.monotonic(), False
        while True:
            try:
                task = self._tasks.get(timeout=SYNC_SECONDS if dirty else None)
            except queue.Empty:
                self._sync()
                synced, dirty = time.monotonic(), False
                continue
            try:
                if task is None:
                    return
                self._do(task)
                dirty = True
            finally:
                self._tasks.task_done()
            if time.monotonic() - synced > SYNC_SECONDS:
                self._sync()
                synced, dirty = time.monotonic(), False

    def _do(self, task: _Frame | _Late | Callable[[], None]) -> None:
        if isinstance(task, _Frame):
            self._write(task)
            return
        try:
            if isinstance(task, _Late):
                self._late_slots.release()
                self._file.write_late(task.slot, task.record)
            else:
                task()
        except OSError as error:
            self._on_lost(Claim(-1, np.empty(0, np.int32), 0), error)

    def _write(self, frame: _Frame) -> None:
        packed = self._packed[frame.stage, : len(frame.claim.rows)].numpy()
        error: OSError | None = None
        try:
            for slot in frame.claim.evicted:
                self._file.void_slot(slot)
            self._file.write_rows(frame.claim.rows, packed)
            self._file.write_slot(frame.claim.slot, self._records[frame.stage : frame.stage + 1], packed)
        except OSError as caught:
            error = caught
        if error is not None:
            self._on_lost(frame.claim, error)
        with self._lock:
            if self._pending.get(frame.claim.slot) is frame:
                del self._pending[frame.claim.slot]
            self._free.append(frame.stage)

    def _sync(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            self._on_lost(Claim(-1, np.empty(0, np.int32), 0), error)
