# SPDX-License-Identifier: Apache-2.0
"""Mix of patrol streams on which the tiny model is trained and evaluated."""

from __future__ import annotations

import numpy as np

from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld


def mixed_stream(
    frames: int, objects: int, longest_seconds: float, random: np.random.Generator, slowest: float = 0.2
) -> PatrolWorld:
    """Make a random stream of ``frames`` frames with up to ``objects`` sightings, shorter than ``longest_seconds``.

    45 % of the streams are plain (1 - 3 frames per second, few pauses), 15 % fast (up to 30), 15 % slow (down to
    ``slowest``), and 25 % sparse as behind a frame gate: pauses of up to 40 seconds between sightings. Rates are raised
    and pauses shortened until the stream is short enough.
    """
    sightings = 0 if random.random() < 0.03 else max(int(random.integers(1, objects + 1)) for _ in range(2))
    noise = float(random.uniform(0, 12))
    seed = int(random.integers(1 << 40))
    kind = random.choice(4, p=(0.45, 0.15, 0.15, 0.25))
    rate, share, longest = float(np.exp(random.uniform(np.log(1.0), np.log(3.0)))), 0.0, 10.0
    if kind == 0:
        share = float(random.uniform(0, 0.05))
    elif kind == 1:
        rate = float(np.exp(random.uniform(np.log(3.0), np.log(30.0))))
    elif kind == 2:
        rate = float(np.exp(random.uniform(np.log(slowest), np.log(1.0))))
    else:
        share, longest = float(random.uniform(0.1, 0.9)), float(np.exp(random.uniform(np.log(2.0), np.log(40.0))))
    while True:
        world = PatrolWorld(PatrolSettings(seed=seed, frames=frames, objects=sightings, rate_hz=rate, noise=noise,
                                           pause_share=share, longest_pause=longest))  # fmt: skip
        if world.stamp(frames - 1) < longest_seconds:
            return world
        if rate >= 30.0 and longest <= 0.5:
            share /= 2
        rate, longest = min(30.0, rate * 2), max(0.5, longest / 2)
