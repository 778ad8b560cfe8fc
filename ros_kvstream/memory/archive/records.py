# SPDX-License-Identifier: Apache-2.0
"""Records of the archive: a frame to store, a stored frame, and the archive's status."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.poses import FramePose, Pose


@dataclass(frozen=True)
class FrameToArchive:
    """One frame as the model encoded it; the archive keeps its distinctive patches."""

    frame_id: int
    stamp: float
    """Seconds of the header stamp."""
    camera: str
    grid: tuple[int, int]
    """Rows and columns of its patches, in raster order."""
    keys: Tensor
    """Un-rotated keys of the index layers, [index_layers, kv_heads, patches, head_dim], any float type and device."""
    content: Tensor
    """What is stored of each patch, [patches, vectors, width], any float type and device."""
    stamp_end: float | None = None
    """Stamp of the last redundant frame that it represents; None when there is none."""
    embedding: NDArray[np.float32] | None = None
    """External embedding [size] when it is known already; see ``Archive.complete``."""
    thumbnail: bytes = b""
    """JPEG; dropped when it is larger than ``archive.thumbnail_bytes``."""
    patches: Tensor | None = None
    """Token indices in the grid, int64 [patches], when some patches were not computed; None for all patches.
    Indices beyond the grid belong to tokens that are not patches; these are always kept."""
    pose: FramePose | None = None
    """Where it was taken; see ``Archive.complete`` for a pose that becomes known later."""
    base_end: Pose | None = None
    """Pose of the robot's base at ``stamp_end``; None without ``pose``."""


@dataclass(frozen=True)
class ArchivedFrame:
    """The stored part of one frame."""

    frame_id: int
    stamp: float
    stamp_end: float
    camera: str
    grid: tuple[int, int]
    coordinates: Tensor
    """Grid coordinates (h, w) of each kept patch, int16 [patches, 2]."""
    content: Tensor
    """What was stored of each kept patch, float32 [patches, vectors, width]."""
    pose: FramePose | None = None
    """Where it was taken; None where that is unknown."""
    base_end: Pose | None = None
    """Pose of the robot's base at ``stamp_end``; None without ``pose``."""


@dataclass(frozen=True)
class ArchiveStatus:
    """State and counters of the archive, for statistics and diagnostics."""

    state: str
    """ok, degraded (frames were lost, see ``message``) or failed (nothing can be archived)."""
    message: str = ""
    """Reason and remedy; empty in state ok."""
    frames: int = 0
    patches: int = 0
    frame_capacity: int = 0
    patch_capacity: int = 0
    budget_bytes: int = 0
    memory_bytes: int = 0
    """Bytes allocated in memory."""
    disk_bytes: int = 0
    """Bytes of the file."""
    used_bytes: int = 0
    """Bytes of the frames and patches held, in memory and on disk."""
    evicted: int = 0
    """Frames evicted for newer ones since the start."""
    dropped: int = 0
    """Frames not archived because the disk was slower than the stream."""
    late_dropped: int = 0
    """Embeddings and time spans that are not in the file because the disk was slower than the stream."""
    lost: int = 0
    """Frames not archived because of an error of the folder or disk."""
    torn: int = 0
    """Half-written records skipped when the file was opened."""
    oldest_stamp: float = 0.0
    newest_stamp: float = 0.0
