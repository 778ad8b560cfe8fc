# SPDX-License-Identifier: Apache-2.0
"""Archives and frames for tests: what a frame holds follows from its id, so any copy can be checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.archive.plan import ArchiveShape, plan_archive
from ros_kvstream.memory.archive.records import ArchivedFrame, FrameToArchive
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.settings import ArchiveSettings

SHAPE = ArchiveShape(
    vectors=12, width=8, kv_heads=2, head_dim=8, index_layers=(0, 2), patches=6, embedding=4, cameras=2, newest=3
)


def make_frame(
    frame_id: int, *, stamp: float | None = None, camera: str = "front", like: int | None = None, **more: Any
) -> FrameToArchive:
    """A frame whose keys and content follow from its id (or from ``like``)."""
    generator = torch.Generator().manual_seed(1000 + (frame_id if like is None else like))
    keys = torch.randn(2, SHAPE.kv_heads, SHAPE.patches, SHAPE.head_dim, generator=generator)
    content = torch.randn(SHAPE.patches, SHAPE.vectors, SHAPE.width, generator=generator)
    seconds = frame_id * 0.5 if stamp is None else stamp
    return FrameToArchive(frame_id, seconds, camera, (2, 3), keys, content, **more)


def frame_pose(x: float, segment: str = "map#a") -> FramePose:
    """The pose of a robot at x on the floor, rounded as storage keeps it."""
    base = Pose.from_euler((x, 0.0, 0.0), 0.0, 0.0, x / 3)
    return FramePose(segment, base, base.compose(Pose((0.1, 0.0, 0.4)))).stored()


def make_archive(budget_mib: float = 0.1, fingerprint: str = "", shape: ArchiveShape = SHAPE, **settings) -> Archive:
    """An archive of small frames."""
    return Archive(plan_archive(shape, ArchiveSettings(budget_mib=budget_mib, **settings)), fingerprint)


def add_frames(archive: Archive, numbers: Iterable[int], **frame: Any) -> None:
    """Add frames of these ids, each written before the next."""
    for number in numbers:
        assert archive.add(make_frame(number, **frame))
        archive.wait()


def assert_same(found: ArchivedFrame, given: FrameToArchive, tolerance: float = 1e-3) -> None:
    """The kept patches are those of the frame given, at their coordinates."""
    index = (found.coordinates[:, 0] * given.grid[1] + found.coordinates[:, 1]).long()
    assert (found.stamp, found.camera, found.grid) == (given.stamp, given.camera, given.grid)
    torch.testing.assert_close(found.content, given.content[index], atol=tolerance, rtol=tolerance)
