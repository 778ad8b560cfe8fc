# SPDX-License-Identifier: Apache-2.0
"""Readable messages of damaged or unindexed bag files, with notes on what is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ros_kvstream.records import Note, ignore

SUFFIXES = (".mcap", ".db3")
"""Suffixes of the storage files that are read."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_FURTHEST_SKIP = 1 << 20
"""Most rows of a damaged database that are skipped at once in search of a readable one."""


class RawMessage(NamedTuple):
    """One serialized message."""

    topic: str
    type: str
    received: int
    """Nanoseconds at which the recorder received it."""
    data: bytes
    encoding: str = "cdr"
    """Serialization format."""


def storage_files(path: Path) -> list[Path]:
    """Return the storage files of a bag: the file itself, or all .mcap and .db3 files of a folder."""
    return [path] if path.is_file() else sorted(file for file in path.glob("*") if file.suffix in SUFFIXES)


def has_index(path: Path) -> bool:
    """Return whether every .mcap file of a bag lists where its messages are, so that they can be read by time."""
    from mcap.reader import SeekingReader

    for file in storage_files(path):
        if file.suffix == ".mcap":
            with file.open("rb") as stream:
                summary = SeekingReader(stream).get_summary()
            if summary is None or not any(chunk.message_index_offsets for chunk in summary.chunk_indexes):
                return False
    return True


def salvage(path: Path, note: Note) -> Iterator[RawMessage]:
    """Yield the messages of one file (.mcap or .db3), or of all such files in a folder by their first message."""
    files = storage_files(path)
    if len(files) > 1:
        files.sort(key=lambda file: next((message.received for message in _salvage(file, ignore)), 0))
    for file in files:
        yield from _salvage(file, note)


def salvage_in_order(path: Path, topics: Collection[str], note: Note) -> Iterator[RawMessage]:
    """Yield the messages of these topics by time of reception; where the files have another order, from a sorted copy.

    The copy is a temporary file as large as the messages.
    """
    times = [message.received for message in salvage(path, ignore) if message.topic in topics]
    chosen = (message for message in salvage(path, note) if message.topic in topics)
    if all(first <= second for first, second in pairwise(times)):
        yield from chosen
        return
    note(f"{path.name} is out of time order: its messages are sorted by time of reception")
    with tempfile.TemporaryFile(prefix="kvstream_") as copy:
        index = []
        for number, message in enumerate(chosen):
            index.append((message.received, number, copy.tell(), len(message.data), message.topic, message.type))
            copy.write(message.data)
        for received, _, start, size, topic, kind in sorted(index):
            copy.seek(start)
            yield RawMessage(topic, kind, received, copy.read(size))


def _salvage(file: Path, note: Note) -> Iterator[RawMessage]:
    return (_salvage_mcap if file.suffix == ".mcap" else _salvage_sqlite3)(file, note)


def _salvage_mcap(file: Path, note: Note) -> Iterator[RawMessage]:
    """Yield every message of the intact chunks, in the order of the file; needs neither index nor footer."""
    from mcap.records import Channel, Chunk, Message, Schema
    from mcap.stream_reader import StreamReader, breakup_chunk

    schemas: dict[int, str] = {}
    channels: dict[int, Channel] = {}

    def messages(records: list[Any]) -> Iterator[RawMessage]:
        for record in records:
            if isinstance(record, Schema):
                schemas[record.id] = record.name
            elif isinstance(record, Channel):
                channels[record.id] = record
            elif isinstance(record, Message) and record.channel_id in channels:
                channel = channels[record.channel_id]
                yield RawMessage(channel.topic, schemas.get(channel.schema_id, ""), record.log_time,
                                 unpacked(record.data), channel.message_encoding)  # fmt: skip

    with file.open("rb") as stream:
        size, at = file.stat().st_size, 0
        records = StreamReader(stream, emit_chunks=True, record_size_limit=size).records
        while True:
            try:
                record: Any = next(records)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - damaged bytes can fail in any way
                note(f"{file.name} breaks off at byte {at} of {size} ({error_text(error)}): the rest is lost")
                return
            parts = [record]
            if isinstance(record, Chunk):
                try:
                    parts = breakup_chunk(record, validate_crc=True)
                except Exception as error:  # noqa: BLE001 - damaged bytes can fail in any way
                    note(f"{file.name}: a damaged chunk before byte {stream.tell()} is left out ({error_text(error)})")
                    parts = []
            at = stream.tell()
            yield from messages(parts)


def _salvage_sqlite3(file: Path, note: Note) -> Iterator[RawMessage]:
    """Yield every message whose row can be read, in the order in which they were written."""
    with _padded(file, note) as path, closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as rows:
        yield from _rows(file.name, rows, note)


@contextmanager
def _padded(file: Path, note: Note) -> Iterator[Path]:
    """Yield the file, or a zero-padded copy where it is shorter than its header says: SQLite reads nothing else."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(100)
    pages = struct.unpack(">HxxxxxxxxxxI", head[16:32]) if head.startswith(b"SQLite format 3\0") else (0, 0)
    declared = (pages[0] if pages[0] != 1 else 1 << 16) * pages[1]
    if size >= declared:
        yield file
        return
    note(f"{file.name} is cut off at byte {size} of {declared}: the rest is lost")
    with tempfile.TemporaryDirectory(prefix="kvstream_") as folder:
        copy = Path(folder) / file.name
        shutil.copyfile(file, copy)
        os.truncate(copy, declared)
        yield copy


def _rows(name: str, database: sqlite3.Connection, note: Note) -> Iterator[RawMessage]:
    try:
        topics = {row[0]: row[1:] for row in database.execute("SELECT id, name, type FROM topics")}
    except sqlite3.DatabaseError as error:
        note(f"{name}: the list of topics cannot be read ({error}), so none of its messages can")
        return
    last, skip, damaged = 0, 1, False
    while skip <= _FURTHEST_SKIP:
        try:
            found = database.execute(
                "SELECT id, topic_id, timestamp, data FROM messages WHERE id > ? ORDER BY id", (last,)
            )
            for identifier, topic, received, data in found:
                last, skip = identifier, 1
                if topic in topics:
                    yield RawMessage(topics[topic][0], topics[topic][1], received, unpacked(data))
            return
        except sqlite3.DatabaseError as error:
            if not damaged:
                note(f"{name} is damaged after row {last} ({error}): unreadable rows are left out")
            damaged = True
            last, skip = last + skip, 2 * skip


def unpacked(data: bytes) -> bytes:
    """Return a message that rosbag2 compressed by itself (compression_mode: MESSAGE) as it was."""
    if not data.startswith(ZSTD_MAGIC):
        return data
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError:
        return data


def error_text(error: Exception) -> str:
    """Message of an error in one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
