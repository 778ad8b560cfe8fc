"""The mix of patrol streams that the tiny model is trained and measured on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld

if TYPE_CHECKING:
    from ros_kvstream.models.base import VideoLanguageModel

QUESTION_POSITIONS = 64
"""Positions that a question and its answer take behind a stream."""
UNTIMED_SECONDS = 2000.0
"""Longest streams for families whose positions are not times."""


def trained_seconds(model: VideoLanguageModel) -> float:
    """Seconds of stream that fit into the model's trained positions, a question behind them included."""
    if not model.tokens_per_second:
        return UNTIMED_SECONDS
    return (model.position_limit - QUESTION_POSITIONS) / model.tokens_per_second


def mixed_stream(
    frames: int, objects: int, longest_seconds: float, random: np.random.Generator, slowest: float = 0.2
) -> PatrolWorld:
    """One stream of ``frames`` frames with up to ``objects`` sightings, at most ``longest_seconds`` long.

    45 % plain (1 - 3 frames a second, a few pauses), 15 % fast (to 30), 15 % slow (from ``slowest``), 25 % thinned
    out as behind a frame gate: pauses of up to 40 seconds wherever nothing happens. Rates rise and pauses shrink until
    the time fits.
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
