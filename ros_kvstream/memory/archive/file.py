# SPDX-License-Identifier: Apache-2.0
"""The archive's one preallocated file: header, late records, frame records, patch records.

A frame's patches are written before its record, and the record carries checksums of both. A half-written frame does
not match its checksums and is skipped on reopen. Nothing is moved; a slot is overwritten by its next frame.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import ArchiveError
from ros_kvstream.memory.archive.plan import HEADER_BYTES, ArchivePlan

FILE_NAME = "frames.kvarchive"
MAGIC = b"KVARCHIV"
FORMAT = 4
"""Written into the header; files of another format are refused."""
IDENTITY_OFFSET, IDENTITY_BYTES = 2560, 16
"""Random bytes that identify the file, written once."""
EPOCH_OFFSETS = (3072, 3584)
"""Two cells that are written alternately, so that one is always valid."""
SCAN_RECORDS = 256
"""Records read at a time on reopen."""


def checksum(data: memoryview | bytes) -> int:
    """CRC-32, never 0: checksum 0 marks an empty record."""
    return zlib.crc32(data) or 1


def _bytes_of(array: NDArray[np.void]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


class ArchiveFile:
    """Reads and writes the file by its layout."""

    def __init__(self, plan: ArchivePlan, fingerprint: str) -> None:
        """Open or create the file in the plan's folder.

        :param fingerprint: identifies model and weights; a file with another fingerprint is refused.
        :raises ArchiveError: when the file has other settings, is in use, or is not an archive;
        :raises OSError: when the folder cannot be written or the disk is full; no new file is left then.
        """
        self.plan = plan
        self.path = Path(plan.settings.path).expanduser() / FILE_NAME
        parts = plan.disk_parts
        self._late_offset = HEADER_BYTES
        self._slots_start = self._late_offset + parts["late records"]
        self._rows_start = self._slots_start + parts["frame records"]
        self.bytes = sum(parts.values())
        self._header = self._make_header(fingerprint)
        self.epoch = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self.created = not self._check_header()
            if self.created:
                self._create()
            else:
                self.epoch = self._read_epoch()
            self.identity = os.pread(self._descriptor, IDENTITY_BYTES, IDENTITY_OFFSET).hex()
            """Unique among files of the same layout."""
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Flush everything to the disk and close."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)

    def sync(self) -> None:
        """Flush what was written to the disk, so that it survives a loss of power."""
        os.fdatasync(self._descriptor)

    # -- header ---------------------------------------------------------------------------------------------------

    def _make_header(self, fingerprint: str) -> bytes:
        plan = self.plan
        text = json.dumps(
            {
                "format": FORMAT,
                "fingerprint": fingerprint,
                "content": plan.settings.content,
                "precision": plan.settings.precision,
                "frames": plan.frames,
                "rows": plan.rows,
                "row_bytes": plan.codec.row_bytes,
                "slot_bytes": plan.slot_type.itemsize,
                "late_bytes": plan.late_type.itemsize,
                "index_layers": list(plan.shape.index_layers),
                "shape": [plan.shape.vectors, plan.shape.width, plan.shape.kv_heads, plan.shape.head_dim],
                "frame_patches": plan.shape.patches,
            },
            sort_keys=True,
        ).encode()
        return MAGIC + struct.pack("<II", len(text), checksum(text)) + text

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArchiveError(f"{self.path} is in use by another process. Give each its own archive.path.") from error

    def _check_header(self) -> bool:
        """True for a file with this header, False for a new file; raises ArchiveError for anything else."""
        found = os.pread(self._descriptor, HEADER_BYTES, 0)
        if found.startswith(self._header):
            if os.fstat(self._descriptor).st_size < self.bytes:
                raise ArchiveError(f"{self.path} was cut short. Delete it, or set archive.path to another folder.")
            return True
        if not found.strip(b"\0"):
            return False
        if not found.startswith(MAGIC):
            raise ArchiveError(f"{self.path} is no archive. Set archive.path to another folder.")
        length, crc = struct.unpack_from("<II", found, len(MAGIC))
        text = found[len(MAGIC) + 8 : len(MAGIC) + 8 + length]
        if checksum(text) != crc:
            raise ArchiveError(f"{self.path} has a damaged header. Delete it, or set archive.path to another folder.")
        saved, own = json.loads(text), json.loads(self._header[len(MAGIC) + 8 :])
        if saved.get("format") != FORMAT:
            raise ArchiveError(
                f"{self.path} has format {saved.get('format')}, this version of ros_kvstream reads format {FORMAT}. "
                "Delete it, or set archive.path to another folder."
            )
        names = [name for name in own if saved.get(name) != own[name]]
        different = [f"{name} {saved.get(name)!r} there, {own[name]!r} here" for name in names]
        raise ArchiveError(
            f"{self.path} was written with other settings ({'; '.join(different)}). "
            "Use the settings it was made with, delete it, or set archive.path to another folder."
        )

    def _create(self) -> None:
        try:
            os.posix_fallocate(self._descriptor, 0, self.bytes)
        except OSError:
            os.unlink(self.path)
            raise
        self._write_epoch(1)
        self._write_all(memoryview(os.urandom(IDENTITY_BYTES)), IDENTITY_OFFSET)
        os.pwrite(self._descriptor, self._header, 0)

    def _write_epoch(self, epoch: int) -> None:
        cell = struct.pack("<q", epoch)
        os.pwrite(self._descriptor, cell + struct.pack("<I", checksum(cell)), EPOCH_OFFSETS[epoch % 2])
        self.epoch = epoch

    def _read_epoch(self) -> int:
        epochs = [0]
        for offset in EPOCH_OFFSETS:
            cell = os.pread(self._descriptor, 12, offset)
            if checksum(cell[:8]) == struct.unpack("<I", cell[8:])[0]:
                epochs.append(struct.unpack("<q", cell[:8])[0])
        return max(epochs)

    def clear(self) -> None:
        """Invalidate all earlier records with one small write."""
        self._write_epoch(self.epoch + 1)

    # -- records --------------------------------------------------------------------------------------------------

    def write_rows(self, rows: NDArray[np.int32], packed: NDArray[np.uint8]) -> None:
        """Write patches; consecutive rows are written in one call.

        :param rows: ascending [patches]; :param packed: [patches, row_bytes].
        """
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            self._write_all(packed[start:end].reshape(-1).data, self.row_offset(int(rows[start])))

    def read_rows(self, rows: NDArray[np.int32], out: NDArray[np.uint8]) -> None:
        """Read patches into ``out`` [patches, row_bytes]."""
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            os.preadv(self._descriptor, [out[start:end].reshape(-1).data], self.row_offset(int(rows[start])))

    def write_slot(self, slot: int, record: NDArray[np.void], packed: NDArray[np.uint8]) -> None:
        """Write a frame's record, after its patches.

        :param record: one record of the plan's slot type; checksums and epoch are filled in here;
        :param packed: the patches it names, [patches, row_bytes].
        """
        record["epoch"] = self.epoch
        record["rows_checksum"] = checksum(packed.reshape(-1).data)
        record["checksum"] = checksum(_bytes_of(record)[4:])
        self._write_all(_bytes_of(record), self.slot_offset(slot))

    def void_slot(self, slot: int) -> None:
        """Mark a frame as evicted, before its rows are reused."""
        os.pwrite(self._descriptor, bytes(4), self.slot_offset(slot))

    def read_slot(self, slot: int) -> NDArray[np.void]:
        """Read a frame's record, unchecked, shape [1]."""
        data = os.pread(self._descriptor, self.plan.slot_type.itemsize, self.slot_offset(slot))
        return np.frombuffer(data, dtype=self.plan.slot_type)

    def write_late(self, slot: int, record: NDArray[np.void]) -> None:
        """Write a frame's late record; a half-written one loses only the late values."""
        record["checksum"] = checksum(_bytes_of(record)[4:])
        self._write_all(_bytes_of(record), self._late_offset + slot * self.plan.late_type.itemsize)

    def intact(self) -> Iterator[tuple[int, np.void | None]]:
        """Yield (slot, record) of all slots of the present epoch in use; record is None when it is half-written."""
        packed = np.empty((self.plan.shape.patches, self.plan.codec.row_bytes), dtype=np.uint8)
        for slot, record in self._records(self._slots_start, self.plan.slot_type):
            if not int(record["checksum"]):
                continue
            whole = checksum(record.tobytes()[4:]) == int(record["checksum"])
            if whole and int(record["epoch"]) != self.epoch:
                continue
            yield slot, record if whole and self._rows_match(record, packed) else None

    def late_records(self) -> Iterator[tuple[int, np.void]]:
        """Yield all valid late records; the reader compares their sequence with the frame's."""
        for slot, record in self._records(self._late_offset, self.plan.late_type):
            if checksum(record.tobytes()[4:]) == int(record["checksum"]):
                yield slot, record

    def _rows_match(self, record: np.void, packed: NDArray[np.uint8]) -> bool:
        patches = int(record["frame"]["patches"])
        rows = record["rows"][:patches]
        if not 1 <= patches <= self.plan.shape.patches or rows.min() < 0 or rows.max() >= self.plan.rows:
            return False
        self.read_rows(rows, packed[:patches])
        return checksum(packed[:patches].reshape(-1).data) == int(record["rows_checksum"])

    def _records(self, offset: int, kind: np.dtype) -> Iterator[tuple[int, np.void]]:
        for first in range(0, self.plan.frames, SCAN_RECORDS):
            count = min(SCAN_RECORDS, self.plan.frames - first)
            data = os.pread(self._descriptor, count * kind.itemsize, offset + first * kind.itemsize)
            for index, record in enumerate(np.frombuffer(data, dtype=kind)):
                yield first + index, record

    def row_offset(self, row: int) -> int:
        """Byte offset of a patch."""
        return self._rows_start + row * self.plan.codec.row_bytes

    def slot_offset(self, slot: int) -> int:
        """Byte offset of a frame's record."""
        return self._slots_start + slot * self.plan.slot_type.itemsize

    def _write_all(self, data: memoryview, offset: int) -> None:
        while data:
            written = os.pwrite(self._descriptor, data, offset)
            data, offset = data[written:], offset + written
