"""Reciprocal rank fusion of experts, and ranked frames merged into moments.

score(frame) = sum over experts of weight / (k + rank); k = 60 by convention (Cormack et al., 2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Expert:
    """One expert's opinion on all slots of an archive."""

    weight: float
    scores: NDArray[np.float32]
    """[slots], higher is better; -inf where it has none."""


@dataclass(frozen=True)
class RankedFrame:
    """One frame with its place in the fused order."""

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
    """Slots by falling score, at most ``depth``; equal scores: newer frame first. Deterministic.

    :param scores: [slots]; :param allowed: which slots may be ranked; :param frame_ids: [slots].
    """
    slots = np.flatnonzero(allowed & (scores > -np.inf))
    if slots.size > depth:
        least = np.partition(scores[slots], slots.size - depth)[slots.size - depth]
        slots = slots[scores[slots] >= least]
    order = np.lexsort((-frame_ids[slots], -scores[slots].astype(np.float64)))
    return slots[order][:depth]


class Ranking(Sequence[RankedFrame]):
    """Frames in fused order, best first; each is made when it is looked at: as a rule few of a thousand are."""

    def __init__(
        self,
        order: NDArray[np.int64],
        fused: NDArray[np.float64],
        experts: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float32]]],
        frames: NDArray[np.void],
    ) -> None:
        """:param order: slots; :param experts: ranks (0: not ranked) and scores of all slots, by expert."""
        self._order, self._fused, self._experts, self._frames = order, fused, experts, frames

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: int) -> RankedFrame: ...

    @overload
    def __getitem__(self, place: slice) -> Ranking: ...

    def __getitem__(self, place: int | slice) -> RankedFrame | Ranking:
        if isinstance(place, slice):
            return Ranking(self._order[place], self._fused, self._experts, self._frames)
        slot = int(self._order[place])
        entry, ranked = self._frames[slot], {n: pair for n, pair in self._experts.items() if pair[0][slot]}
        return RankedFrame(
            slot=slot,
            frame_id=int(entry["frame_id"]),
            stamp=float(entry["stamp"]),
            camera=int(entry["camera"]),
            fused=float(self._fused[slot]),
            ranks={name: int(ranks[slot]) for name, (ranks, _) in ranked.items()},
            scores={name: float(scores[slot]) for name, (_, scores) in ranked.items()},
        )


def fuse(
    experts: Mapping[str, Expert],
    allowed: NDArray[np.bool_],
    frames: NDArray[np.void],
    *,
    k: float,
    depth: int,
) -> Ranking:
    """Fuse the experts' rankings; best first, ties to the newer frame.

    :param allowed: slots that may be ranked, [slots]; :param frames: the archive's frame table;
    :param k: of reciprocal rank fusion; :param depth: ranks deeper than this count as not found.
    """
    ids = np.ascontiguousarray(frames["frame_id"])
    fused = np.zeros(len(frames))
    rankings = {
        name: best_slots(expert.scores, allowed, ids, depth) for name, expert in experts.items() if expert.weight > 0
    }
    for name, slots in rankings.items():
        fused[slots] += experts[name].weight / (k + 1 + np.arange(len(slots)))
    found = np.unique(np.concatenate(list(rankings.values()))) if rankings else np.empty(0, dtype=np.int64)
    order = found[np.lexsort((-ids[found], -fused[found]))]
    opinions = {}
    for name, slots in rankings.items():
        ranks = np.zeros(len(frames), dtype=np.int64)
        ranks[slots] = np.arange(1, len(slots) + 1)
        opinions[name] = ranks, experts[name].scores
    return Ranking(order, fused, opinions, frames)


def choose_moments(
    ranked: Sequence[RankedFrame], count: int, *, gap_seconds: float, moment_frames: int
) -> list[RankedFrame]:
    """The best frames, neighbours in time merged into moments of which at most ``moment_frames`` are taken.

    A frame belongs to a moment when it is within ``gap_seconds`` of one of its chosen frames, on the same camera: so a
    long look at one thing cannot push all others out. In ranked order, at most ``count``.
    """
    chosen: list[RankedFrame] = []
    for frame in ranked:
        if len(chosen) == count:
            break
        near = [
            other for other in chosen if other.camera == frame.camera and abs(other.stamp - frame.stamp) <= gap_seconds
        ]
        if len(near) < moment_frames:
            chosen.append(frame)
    return chosen


def filter_slots(
    frames: NDArray[np.void], camera_names: Sequence[str], camera: str, since: float, until: float
) -> NDArray[np.bool_]:
    """Slots whose frame is of this camera ('' = all) and overlaps this span of stamps (0 = unbounded), [slots]."""
    allowed = frames["live"].copy()
    if camera:
        allowed &= frames["camera"] == (camera_names.index(camera) if camera in camera_names else -1)
    if since:
        allowed &= frames["stamp_end"] >= since
    if until:
        allowed &= frames["stamp"] <= until
    return allowed
