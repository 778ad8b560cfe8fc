"""What goes into the archive, what comes out, and how it reports on itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class FrameToArchive:
    """One frame as the model encoded it; the archive chooses what it keeps of it."""

    frame_id: int
    stamp: float
    """Seconds of the header stamp."""
    camera: str
    grid: tuple[int, int]
    """Rows and columns of its patches, in raster order."""
    keys: Tensor
    """Un-rotated keys, [layers, kv_heads, patches, head_dim], any float type and device."""
    values: Tensor
    """Values, the same shape."""
    stamp_end: float | None = None
    """Stamp of the last redundant frame it stands for; None when there is none."""
    embedding: NDArray[np.float32] | None = None
    """External embedding [size], where it is known already; see ``Archive.complete``."""
    thumbnail: bytes = b""
    """JPEG; left out when it is larger than the room planned."""
    patches: Tensor | None = None
    """Numbers in the grid of the patches given, int64 [patches], where some were never computed; None = all.
    Numbers behind the grid's last stand for tokens that are no patches: they are always kept."""


@dataclass(frozen=True)
class ArchivedFrame:
    """What the archive holds of one frame."""

    frame_id: int
    stamp: float
    stamp_end: float
    camera: str
    grid: tuple[int, int]
    coordinates: Tensor
    """(h, w) of each kept patch, int16 [patches, 2]: its number divided by the grid's columns, and the rest."""
    keys: Tensor
    """Un-rotated keys of the kept patches, float32 [layers, kv_heads, patches, head_dim]."""
    values: Tensor
    """Their values, the same shape."""


@dataclass(frozen=True)
class ArchiveStatus:
    """The archive's own report, for statistics and diagnostics."""

    state: str
    """ok | degraded (frames were lost, see ``message``) | failed (nothing can be archived)."""
    message: str = ""
    """Why, in words a person acts on; empty while all is well."""
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
    """Frames given up for newer ones since the start."""
    dropped: int = 0
    """Frames not archived because the disk was slower than the stream."""
    lost: int = 0
    """Frames not archived because the place could not take them."""
    torn: int = 0
    """Half-written records skipped when the file was opened."""
    oldest_stamp: float = 0.0
    newest_stamp: float = 0.0
