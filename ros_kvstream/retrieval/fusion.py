# SPDX-License-Identifier: Apache-2.0
"""Reciprocal rank fusion of experts, and ranked frames merged into moments.

score(frame) = sum over experts of weight / (k + rank); k = 60 by convention (Cormack et al., 2009).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Expert:
    """One expert's scores of all slots of an archive."""

    weight: float
    scores: NDArray[np.float32]
    """[slots], higher is better; -inf where there is none."""


@dataclass(frozen=True)
class RankedFrame:
    """One archived frame in the fused order."""

    slot: int
    frame_id: int
    stamp: float
    camera: int
    """The archive's number of the camera."""
    fused: float
    ranks: dict[str, int]
    """Rank per expert that ranked it, 1 is best."""
    scores: dict[str, float]
    """Raw score per expert that ranked it."""


def best_slots(
    scores: NDArray[np.float32], allowed: NDArray[np.bool_], frame_ids: NDArray[np.int64], depth: int
) -> NDArray[np.int64]:
    """Slots by descending score, at most ``depth``; of equal scores the newer frame first. Deterministic.

    :param scores: [slots]; :param allowed: which slots may be ranked, [slots]; :param frame_ids: [slots].
    """
    slots = np.flatnonzero(allowed & (scores > -np.inf))
    if slots.size > depth:
        least = np.partition(scores[slots], slots.size - depth)[slots.size - depth]
        slots = slots[scores[slots] >= least]
    order = np.lexsort((-frame_ids[slots], -scores[slots].astype(np.float64)))
    return slots[order][:depth]


def fuse(
    experts: Mapping[str, Expert],
    allowed: NDArray[np.bool_],
    frames: NDArray[np.void],
    *,
    k: float,
    depth: int,
) -> Iterator[RankedFrame]:
    """Fuse the experts' rankings; best first, ties to the newer frame. Records are made only as they are iterated.

    :param allowed: slots that may be ranked, [slots]; :param frames: the archive's frame table;
    :param k: of reciprocal rank fusion; :param depth: deeper ranks count as not found.
    """
    ids = np.ascontiguousarray(frames["frame_id"])
    fused = np.zeros(len(frames))
    ranks: dict[str, NDArray[np.int64]] = {}
    for name, expert in experts.items():
        if expert.weight > 0:
            slots = best_slots(expert.scores, allowed, ids, depth)
            fused[slots] += expert.weight / (k + 1 + np.arange(len(slots)))
            ranks[name] = np.zeros(len(frames), dtype=np.int64)
            ranks[name][slots] = np.arange(1, len(slots) + 1)
    found = np.flatnonzero(np.any(list(ranks.values()), axis=0)) if ranks else np.empty(0, dtype=np.int64)

    def ranked_frame(slot: int) -> RankedFrame:
        ranked = [name for name in ranks if ranks[name][slot]]
        return RankedFrame(
            slot=slot,
            frame_id=int(ids[slot]),
            stamp=float(frames["stamp"][slot]),
            camera=int(frames["camera"][slot]),
            fused=float(fused[slot]),
            ranks={name: int(ranks[name][slot]) for name in ranked},
            scores={name: float(experts[name].scores[slot]) for name in ranked},
        )

    return (ranked_frame(int(slot)) for slot in found[np.lexsort((-ids[found], -fused[found]))])


def choose_moments(
    ranked: Iterable[RankedFrame],
    count: int,
    *,
    gap_seconds: float,
    moment_frames: int,
    present: Collection[int] = (),
) -> list[RankedFrame]:
    """The best ``count`` frames, of which at most ``moment_frames`` belong to one moment, in ranked order.

    A frame belongs to a moment if it is within ``gap_seconds`` of one of its chosen frames, on the same camera. So a
    long look at one thing does not displace all others.

    :param present: ids of frames that do not count, since they are in the context anyway.
    """
    chosen: list[RankedFrame] = []
    for frame in ranked:
        if not count:
            break
        if sum(same_moment(frame, other, gap_seconds) for other in chosen) < moment_frames:
            chosen.append(frame)
            count -= frame.frame_id not in present
    return chosen


def same_moment(one: RankedFrame, other: RankedFrame, gap_seconds: float) -> bool:
    """Whether two frames of one camera are so close in time that they show the same."""
    return one.camera == other.camera and abs(one.stamp - other.stamp) <= gap_seconds
