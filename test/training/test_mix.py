# SPDX-License-Identifier: Apache-2.0
"""The mix of patrol streams: within the given length, of every pace, equal for equal seeds."""

from __future__ import annotations

import numpy as np
import pytest

from training.mix import mixed_stream


@pytest.mark.parametrize("longest", [20.0, 300.0, 2000.0])
def test_streams_stay_within_the_given_length(longest: float) -> None:
    random = np.random.default_rng(1)
    worlds = [mixed_stream(48, 8, longest, random, slowest=0.1) for _ in range(12)]
    assert all(len(world) == 48 and world.stamp(47) < longest for world in worlds)
    assert len({world.stamp(47) for world in worlds}) == len(worlds)


def test_equal_seeds_give_equal_streams() -> None:
    first, second = (mixed_stream(24, 5, 500.0, np.random.default_rng(7)) for _ in range(2))
    assert first.settings == second.settings and first.sightings == second.sightings
