"""The mix of streams: within the time that it is given, of every pace, equal for equal seeds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ros_kvstream.patrol.mix import UNTIMED_SECONDS, mixed_stream, trained_seconds


@pytest.mark.parametrize("longest", [20.0, 300.0, 2000.0])
def test_no_stream_is_longer_than_the_time_that_it_is_given(longest: float) -> None:
    random = np.random.default_rng(1)
    worlds = [mixed_stream(48, 8, longest, random, slowest=0.1) for _ in range(12)]
    assert all(len(world) == 48 and world.stamp(47) < longest for world in worlds)
    assert len({world.stamp(47) for world in worlds}) == len(worlds)


def test_equal_seeds_give_equal_streams() -> None:
    first, second = (mixed_stream(24, 5, 500.0, np.random.default_rng(7)) for _ in range(2))
    assert first.settings == second.settings and first.sightings == second.sightings


@pytest.mark.parametrize(("tokens_per_second", "seconds"), [(2.0, 4064.0), (0.0, UNTIMED_SECONDS)])
def test_trained_time_follows_from_positions_where_these_are_times(tokens_per_second: float, seconds: float) -> None:
    model: Any = SimpleNamespace(tokens_per_second=tokens_per_second, position_limit=8192)
    assert trained_seconds(model) == seconds
