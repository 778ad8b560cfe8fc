"""Which frames a full archive forgets: those whose absence leaves the smallest gap for their age.

Not first-in-first-out: every camera's whole time stays covered, older stretches grow sparser, and frames that differed
from those before them are protected.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOVELTY_RANGE = (0.05, 100.0)
"""Bounds of the protection by novelty, as a multiple of the median frame's."""


def eviction_costs(
    stamps: NDArray[np.float64],
    cameras: NDArray[np.int16],
    novelty: NDArray[np.float32],
    age_weight: float,
    novelty_weight: float,
) -> NDArray[np.float64]:
    """Cost of forgetting each frame: (gap left / age ** age_weight) * relative novelty ** novelty_weight.

    :param stamps: seconds [frames]; :param cameras: ids [frames]; :param novelty: dissimilarity [frames].
    :returns: [frames]; infinite for each camera's first and newest frame, so that no time drops off either end.
    """
    order = np.lexsort((stamps, cameras))
    costs = np.full(stamps.shape, np.inf)
    times, owners = stamps[order], cameras[order]
    inner = np.zeros(len(order), dtype=bool)
    inner[1:-1] = (owners[:-2] == owners[1:-1]) & (owners[2:] == owners[1:-1])
    coordinates = np.flatnonzero(inner)
    if coordinates.size:
        gaps = times[coordinates + 1] - times[coordinates - 1]
        gaps = gaps + max(1e-9, 1e-3 * float(np.median(gaps)))
        ages = stamps.max() - times[coordinates] + float(np.median(gaps))
        costs[order[coordinates]] = gaps / ages**age_weight
    if novelty_weight > 0:
        middle = float(np.median(novelty))
        relative = np.clip(novelty / middle, *NOVELTY_RANGE) if middle > 0 else np.where(novelty > 0, 2.0, 1.0)
        costs = costs * relative.astype(np.float64) ** novelty_weight
    return costs


def choose_evicted(costs: NDArray[np.float64], stamps: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The ``count`` cheapest frames, no two neighbours in time unless there is no other way; ties to the older.

    Deterministic. Protected (infinite) frames go only when nothing else is left.
    """
    by_time = np.argsort(stamps, kind="stable")
    place = np.empty_like(by_time)
    place[by_time] = np.arange(len(by_time))
    locked = np.zeros(len(by_time) + 2, dtype=bool)
    chosen: list[int] = []
    spared: list[int] = []
    for index in by_time[np.argsort(costs[by_time], kind="stable")]:
        if len(chosen) == count:
            break
        spot = place[index] + 1
        if locked[spot] or not np.isfinite(costs[index]):
            spared.append(int(index))
            continue
        chosen.append(int(index))
        locked[spot - 1 : spot + 2] = True
    chosen += spared[: count - len(chosen)]
    return np.array(chosen, dtype=np.int64)
