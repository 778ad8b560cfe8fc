# SPDX-License-Identifier: Apache-2.0
"""Division of the archive's byte budget: every array and every part of the file is counted before it is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ros_kvstream.errors import BudgetError
from ros_kvstream.memory.archive.row_codec import RowCodec
from ros_kvstream.poses import POSE_NUMBERS, SEGMENT_BYTES
from ros_kvstream.settings import ArchiveSettings

MIB = 1 << 20

CAMERA_NAME_BYTES = 48
"""Longest camera name in UTF-8 bytes; longer names are cut."""
HEADER_BYTES = 4096
"""First page of the file."""
WORKING_BYTES = 96
"""Transient bytes per frame for ranking and eviction (float32 scores, ranks, gaps)."""
THRESHOLD_PATCHES = 2048
"""Patch dissimilarities that determine the stream's threshold."""

FRAME = np.dtype(
    [
        ("sequence", "<i8"),
        ("frame_id", "<i8"),
        ("stamp", "<f8"),
        ("stamp_end", "<f8"),
        ("novelty", "<f4"),
        ("thumbnail_bytes", "<i4"),
        ("camera", "<i2"),
        ("patches", "<i2"),
        ("index_count", "<i2"),
        ("grid_rows", "<i2"),
        ("grid_columns", "<i2"),
        ("map", "<i2"),
        ("poses", "<f4", (3, POSE_NUMBERS)),
        ("live", "?"),
        ("embedded", "?"),
    ]
)
"""Record of a frame in memory, without its index keys. ``map`` is the number of its map segment, -1 without a pose;
``poses`` are those of base and camera at its first moment, and of the base at its last."""


@dataclass(frozen=True)
class ArchiveShape:
    """Sizes of the frames of one stream."""

    vectors: int
    width: int
    """What is stored of a patch: vectors of this width."""
    kv_heads: int
    head_dim: int
    index_layers: tuple[int, ...]
    """Layers whose keys the internal expert searches."""
    patches: int
    """Visual tokens of the largest frame."""
    embedding: int = 0
    """Size of the external embedding; 0 when there is no external expert."""
    cameras: int = 1
    """Cameras whose previous frames are compared."""
    newest: int = 0
    """Newest frames that are held with all their tokens."""
    waiting_bytes: int = 0
    """Bytes of pictures that wait for their external embedding; held by the caller and counted here."""

    @property
    def index_width(self) -> int:
        """Numbers in one index key of one layer (all KV heads)."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class ArchivePlan:
    """Capacity and bytes of an archive; made by :func:`plan_archive`."""

    shape: ArchiveShape
    settings: ArchiveSettings
    frames: int
    """Frames that the archive can hold."""
    rows: int
    """Patches that the archive can hold."""
    codec: RowCodec = field(repr=False)

    @property
    def on_disk(self) -> bool:
        """Whether the archive lives in a folder."""
        return self.settings.path != "memory"

    @property
    def index_count(self) -> int:
        """Index keys per frame and layer: the mean key, when configured, then patch keys."""
        return min(self.settings.index_keys, self.shape.patches) + int(self.settings.mean_key)

    @property
    def index_chunk(self) -> int:
        """Frames whose index keys are converted to float32 at a time: at least one hundredth of the archive.

        In a small archive the overhead per step dominates: up to 1/64 of the budget (256 KiB) makes them larger.
        """
        budget = min(int(self.settings.budget_mib * MIB) // 64, 1 << 18)
        return max(16, self.frames // 100, min(self.frames, budget // (4 * self.index_count * self.shape.index_width)))

    @property
    def slot_type(self) -> np.dtype:
        """One frame's record in the file, checksum first."""
        shape = self.shape
        return np.dtype(
            [
                ("checksum", "<u4"),
                ("rows_checksum", "<u4"),
                ("epoch", "<i8"),
                ("frame", FRAME),
                ("camera_name", f"S{CAMERA_NAME_BYTES}"),
                ("map_name", f"S{SEGMENT_BYTES}"),
                ("rows", "<i4", (shape.patches,)),
                ("index_keys", "<f2", (len(shape.index_layers), self.index_count, shape.index_width)),
                ("thumbnail", "u1", (self.settings.thumbnail_bytes,)),
            ]
        )

    @property
    def late_type(self) -> np.dtype:
        """Values that may change after a frame was written: its time span, its poses and its external embedding."""
        return np.dtype(
            [
                ("checksum", "<u4"),
                ("embedded", "<u4"),
                ("sequence", "<i8"),
                ("stamp_end", "<f8"),
                ("map_name", f"S{SEGMENT_BYTES}"),
                ("poses", "<f4", (3, POSE_NUMBERS)),
                ("embedding", "<f2", (self.shape.embedding,)),
            ]
        )

    @property
    def frame_bytes(self) -> int:
        """Bytes in memory that one frame takes beside its patches."""
        shape = self.shape
        index = len(shape.index_layers) * self.index_count * shape.index_width
        thumbnail = 0 if self.on_disk else self.settings.thumbnail_bytes
        return FRAME.itemsize + 4 * shape.patches + 2 * (index + shape.embedding) + thumbnail

    @property
    def memory_parts(self) -> dict[str, int]:
        """Bytes held in memory, by part."""
        shape, settings = self.shape, self.settings
        index = len(shape.index_layers) * self.index_count * shape.index_width
        parts = {
            "frame table": self.frames * (FRAME.itemsize + 4 * shape.patches + 4) + 4 * self.rows,
            "index keys": self.frames * index * 2,
            "embeddings": self.frames * shape.embedding * 2,
            "working memory": self.frames * WORKING_BYTES + 4 * self.index_chunk * self.index_count * shape.index_width,
            "waiting pictures": shape.waiting_bytes,
            "comparison": comparison_bytes(shape, settings),
            "newest frames": shape.newest * shape.patches * (2 * shape.vectors * shape.width + 4),
            "staging": self.staged_records * shape.patches * self.codec.row_bytes,
        }
        if self.on_disk:
            parts["staging"] += self.staged_records * self.slot_type.itemsize
        else:
            parts["patches"] = self.rows * self.codec.row_bytes
            parts["thumbnails"] = self.frames * settings.thumbnail_bytes
        return parts

    @property
    def disk_parts(self) -> dict[str, int]:
        """Bytes of the file, by part; empty for an archive in memory."""
        if not self.on_disk:
            return {}
        return {
            "header": HEADER_BYTES,
            "late records": self.frames * self.late_type.itemsize,
            "frame records": self.frames * self.slot_type.itemsize,
            "patch records": self.rows * self.codec.row_bytes,
        }

    @property
    def staged_records(self) -> int:
        """Staged records: one for an archive in memory; on disk also those that are queued or being written."""
        return self.settings.queue_frames + 2 if self.on_disk else 1

    @property
    def layout(self) -> dict[str, Any]:
        """What two archives must have in common so that one can load the other's state, by the name of the setting."""
        settings = self.settings
        return {
            "frames": self.frames, "patches": self.rows, "patch bytes": self.codec.row_bytes,
            "archive.content": settings.content, "archive.precision": settings.precision,
            "retrieval.layers": list(self.shape.index_layers),
            "archive.frame_patches": self.shape.patches, "index keys": self.index_count,
            "archive.mean_key": settings.mean_key, "archive.compare_frames": settings.compare_frames,
            "archive.thumbnail_bytes": settings.thumbnail_bytes, "external embedding": self.shape.embedding,
            "newest frames": self.shape.newest,
        }  # fmt: skip

    @property
    def allocated_bytes(self) -> int:
        """All bytes, in memory and on disk; never above the cap."""
        return sum(self.memory_parts.values()) + sum(self.disk_parts.values())


def comparison_bytes(shape: ArchiveShape, settings: ArchiveSettings) -> int:
    """Bytes of the frames before that new ones are compared with, and of the threshold's history."""
    keys = settings.compare_frames * shape.patches * len(shape.index_layers) * shape.index_width * 2
    return shape.cameras * keys + THRESHOLD_PATCHES * 4


def plan_archive(shape: ArchiveShape, settings: ArchiveSettings) -> ArchivePlan:
    """Divide ``settings.budget_mib``; raise BudgetError that names the smallest cap which holds two frames."""
    codec = RowCodec(shape.vectors, shape.width, settings.precision)
    patches_a_frame = max(1.0, settings.keep_ratio * shape.patches)

    def plan(frames: int) -> ArchivePlan:
        rows = max(math.ceil(frames * patches_a_frame), shape.patches)
        return ArchivePlan(shape, settings, frames, rows, codec)

    budget = int(settings.budget_mib * MIB)
    needed = plan(2).allocated_bytes
    if needed > budget:
        raise BudgetError(
            f"archive.budget_mib = {settings.budget_mib:g} is too small: two frames need {needed} bytes. "
            f"Set archive.budget_mib to at least {math.ceil(needed * 1000 / MIB) / 1000:g}, or to 0 for no archive."
        )
    low, high = 2, 4
    while plan(high).allocated_bytes <= budget:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if plan(middle).allocated_bytes <= budget else (low, middle)
    return plan(low)
