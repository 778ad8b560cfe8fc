# SPDX-License-Identifier: Apache-2.0
"""Which part of the time that a question is about is still remembered, in the arena or in the archive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.records import Coverage, Scope
from ros_kvstream.stream.ingest import Ingest

COVERED_SECONDS = 2.5
"""Time before and after a remembered frame that counts as covered: two frames that are 5 s apart leave no gap."""


def covered(ingest: Ingest, scope: Scope) -> Coverage:
    """Coverage of the time in a scope, by the frames of its camera; its place is not considered.

    Without ``since`` the time begins with the stream; it ends with the newest frame at the latest.
    """
    index = ingest.frame_index
    timed = replace(scope, near=None)
    spans, archive = index.time_spans(index.matching(timed)), ingest.archive
    if archive is not None:
        with archive.lock:
            frames = archive.table.frames[archive.table.matching(timed)]
            spans = np.concatenate([spans, np.stack([frames["stamp"], frames["stamp_end"]], axis=1)])
    if not len(spans):
        return Coverage()
    newest = max(index.newest_stamp(), float(spans[:, 1].max()))
    since = scope.since or min(index.first_stamp, float(spans[:, 0].min()))
    until = min(scope.until or newest, newest)
    first, last = max(since, float(spans[:, 0].min())), min(until, float(spans[:, 1].max()))
    return Coverage(first, last, covered_share(spans, since, until))


def cameras_remembered(ingest: Ingest) -> list[str]:
    """Names of the cameras of which a frame is remembered, sorted."""
    names, archive = ingest.frame_index.cameras_remembered(), ingest.archive
    if archive is not None:
        with archive.lock:
            table = archive.table
            names |= {table.camera_names[number] for number in np.unique(table.frames["camera"][table.frames["live"]])}
    return sorted(names)


def covered_share(spans: NDArray[np.float64], since: float, until: float) -> float:
    """Share of a time that is at most COVERED_SECONDS away from one of the spans, 0 - 1.

    :param spans: first and last stamp of each frame, seconds [frames, 2]; at least one, all of them overlap the time.
    """
    if until <= since:
        return 1.0
    starts = np.clip(spans[:, 0] - COVERED_SECONDS, since, until)
    order = np.argsort(starts)
    starts, ends = starts[order], np.clip(spans[order, 1] + COVERED_SECONDS, since, until)
    before = np.concatenate([[since], np.maximum.accumulate(ends)[:-1]])
    return float(np.maximum(ends - np.maximum(starts, before), 0.0).sum() / (until - since))
