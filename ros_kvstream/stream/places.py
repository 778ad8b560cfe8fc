# SPDX-License-Identifier: Apache-2.0
"""Places of the remembered moments, from the arena and the archive."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.records import Place, Scope


def remembered_places(index: FrameIndex, archive: Archive | None, limit: int) -> tuple[Place, ...]:
    """Places of the moments with a pose in the present map, by stamp, whether in the arena, the archive or both.

    :param limit: at most this many, evenly distributed over the moments in order of their stamps; the first and the
        last are always among them.
    """
    anywhere = Scope(near=(0.0, 0.0, 0.0), radius=math.inf, map=index.map)
    frames = index.matching(anywhere)
    stamps = np.array([index[frame].stamp for frame in frames])
    with archive.lock if archive is not None else nullcontext():
        slots = np.zeros(0, dtype=np.int64)
        if archive is not None:
            entries = archive.table.frames
            slots = np.flatnonzero(archive.table.matching(anywhere))
            slots = slots[~np.isin(entries["frame_id"][slots], frames)]
            stamps = np.concatenate([stamps, entries["stamp"][slots]])
        chosen = _spread(stamps, limit)
        return tuple(
            _in_arena(index, frames[number])
            if archive is None or number < len(frames)
            else _in_archive(archive, int(slots[number - len(frames)]))
            for number in chosen.tolist()
        )


def _spread(stamps: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
    """Numbers of at most ``limit`` stamps, evenly distributed over their order."""
    order = np.argsort(stamps, kind="stable")
    return order[np.linspace(0, len(order) - 1, min(limit, len(order))).round().astype(np.int64)]


def _in_arena(index: FrameIndex, frame: int) -> Place:
    record = index[frame]
    assert record.pose is not None  # it matched the scope
    return Place(frame, record.stamp, record.camera, record.pose)


def _in_archive(archive: Archive, slot: int) -> Place:
    entry = archive.table.frames[slot]
    pose, _ = archive.table.poses(slot)
    assert pose is not None  # it matched the scope
    camera = archive.table.camera_names[int(entry["camera"])]
    return Place(int(entry["frame_id"]), float(entry["stamp"]), camera, pose)
