# SPDX-License-Identifier: Apache-2.0
"""Places of the remembered moments, from the arena and the archive."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.records import Place, Scope


def remembered_places(index: FrameIndex, archive: Archive | None, limit: int) -> tuple[Place, ...]:
    """Places of the moments with a pose in the present map, by stamp; those in the arena and in the archive count once.

    :param limit: at most this many, evenly distributed over the moments in order of their stamps; the first and the
        last are always among them.
    """
    anywhere = Scope(near=(0.0, 0.0, 0.0), radius=math.inf, map=index.map)
    in_arena = set(index.matching(anywhere))
    moments = [(index[frame].stamp, frame, -1) for frame in in_arena]
    with archive.lock if archive is not None else nullcontext():
        if archive is not None:
            moments += [moment for moment in _archived(archive, anywhere) if moment[1] not in in_arena]
        moments.sort()
        chosen = np.linspace(0, len(moments) - 1, min(limit, len(moments))).round().astype(int)
        return tuple(_place(index, archive, *moments[number][1:]) for number in chosen)


def _archived(archive: Archive, scope: Scope) -> list[tuple[float, int, int]]:
    """Stamp, frame id and slot of the archived frames in a scope."""
    slots = np.flatnonzero(archive.table.matching(scope))
    entries = archive.table.frames[slots]
    return list(zip(entries["stamp"].tolist(), entries["frame_id"].tolist(), slots.tolist(), strict=True))


def _place(index: FrameIndex, archive: Archive | None, frame: int, slot: int) -> Place:
    if archive is None or slot < 0:
        record = index[frame]
        assert record.pose is not None  # it matched the scope
        return Place(frame, record.stamp, record.camera, record.pose)
    entry = archive.table.frames[slot]
    pose, _ = archive.table.poses(slot)
    assert pose is not None
    return Place(frame, float(entry["stamp"]), archive.table.camera_names[int(entry["camera"])], pose)
