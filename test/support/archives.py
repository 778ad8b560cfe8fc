# SPDX-License-Identifier: Apache-2.0
"""Archives and frames for tests: what a frame holds follows from its id, so any copy can be checked."""

from __future__ import annotations

import torch

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.plan import ArchiveShape, plan_archive
from ros_kvstream.memory.archive.records import ArchivedFrame, FrameToArchive
from ros_kvstream.settings import ArchiveSettings

SHAPE = ArchiveShape(layers=3, kv_heads=2, head_dim=8, index_layers=(0, 2), patches=6, embedding=4, cameras=2)


def make_frame(frame_id: int, *, stamp: float | None = None, camera: str = "front", thumbnail: bytes = b"",
               like: int | None = None) -> FrameToArchive:  # fmt: skip
    """A frame whose keys and values follow from its id (or from ``like``)."""
    generator = torch.Generator().manual_seed(1000 + (frame_id if like is None else like))
    keys, values = torch.randn(2, SHAPE.layers, SHAPE.kv_heads, SHAPE.patches, SHAPE.head_dim, generator=generator)
    seconds = frame_id * 0.5 if stamp is None else stamp
    return FrameToArchive(frame_id, seconds, camera, (2, 3), keys, values, thumbnail=thumbnail)


def make_archive(budget_mib: float = 0.1, fingerprint: str = "", shape: ArchiveShape = SHAPE, **settings) -> Archive:
    """An archive of small frames."""
    return Archive(plan_archive(shape, ArchiveSettings(budget_mib=budget_mib, **settings)), fingerprint)


def assert_same(found: ArchivedFrame, given: FrameToArchive, tolerance: float = 1e-3) -> None:
    """The kept patches are those of the frame given, at their coordinates."""
    index = (found.coordinates[:, 0] * given.grid[1] + found.coordinates[:, 1]).long()
    assert (found.stamp, found.camera, found.grid) == (given.stamp, given.camera, given.grid)
    torch.testing.assert_close(found.keys, given.keys[:, :, index], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found.values, given.values[:, :, index], atol=tolerance, rtol=tolerance)
