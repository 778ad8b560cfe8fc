# SPDX-License-Identifier: Apache-2.0
"""The patrol world: the same settings give the same stream, and a stream is what its sightings say."""

from __future__ import annotations

import tracemalloc

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.errors import SettingsError
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.scene import COLOURS, PLACES, QUADRANT, ROOMS, SHAPES

streams = st.builds(
    PatrolSettings,
    seed=st.integers(0, 1 << 40), frames=st.integers(1, 200), objects=st.integers(0, 8),
    rate_hz=st.floats(0.2, 30.0), pause_share=st.floats(0.0, 0.9), longest_pause=st.floats(0.5, 100.0),
)  # fmt: skip


@given(streams)
@settings(max_examples=60, deadline=None)
def test_sightings_are_disjoint_in_order_and_of_different_shapes(setting: PatrolSettings) -> None:
    world = PatrolWorld(setting)
    edges = [edge for sighting in world.sightings for edge in (sighting.first, sighting.last + 1)]
    assert edges == sorted(edges) and (not edges or (edges[0] >= 0 and edges[-1] <= setting.frames))
    assert len({sighting.shape for sighting in world.sightings}) == len(world.sightings) <= setting.objects
    for sighting in world.sightings:
        assert sighting.room == world.room(sighting.first) == world.room(sighting.last)
        assert world.sighting(sighting.first) == world.sighting(sighting.last) == sighting


@given(streams)
@settings(max_examples=60, deadline=None)
def test_stamps_rise(setting: PatrolSettings) -> None:
    world = PatrolWorld(setting)
    stamps = [world.stamp(index) for index in range(len(world))]
    assert stamps[0] == setting.start or len(world._pauses) > 1
    assert all(later > earlier for earlier, later in zip(stamps, stamps[1:], strict=False))


def test_equal_settings_give_equal_pictures_and_another_seed_others() -> None:
    one, same, other = (PatrolWorld(PatrolSettings(seed=seed, frames=20)) for seed in (5, 5, 6))
    assert all(np.array_equal(a.picture, b.picture) and a.stamp == b.stamp for a, b in zip(one, same, strict=True))
    assert any(not np.array_equal(a.picture, b.picture) for a, b in zip(one, other, strict=True))


def test_an_object_changes_its_own_quadrant_alone() -> None:
    world = PatrolWorld(PatrolSettings(seed=11, frames=40, objects=8, noise=0.0))
    for sighting in world.sightings:
        with_object = world.picture(sighting.first).astype(int)
        bare = PatrolWorld(PatrolSettings(seed=11, frames=40, objects=8, noise=0.0))
        bare.sighting = lambda index: None  # type: ignore[method-assign, assignment]
        changed = np.abs(with_object - bare.picture(sighting.first)).max(axis=-1) > 2
        row, column = divmod(PLACES.index(sighting.place), 2)
        inside = changed[row * QUADRANT : (row + 1) * QUADRANT, column * QUADRANT : (column + 1) * QUADRANT].sum()
        assert inside > 25 and inside >= 0.95 * changed.sum()


def test_a_large_picture_shrinks_to_the_native_one() -> None:
    small, large = (PatrolWorld(PatrolSettings(seed=3, frames=60, size=size, noise=0.0)) for size in (56, 224))
    for index in range(0, 60, 5):
        shrunk = cv2.resize(large.picture(index), (56, 56), interpolation=cv2.INTER_AREA).astype(int)
        assert np.abs(shrunk - small.picture(index)).mean() < 1.5


def test_redundant_stretches_differ_by_noise_alone() -> None:
    world = PatrolWorld(PatrolSettings(seed=2, frames=2000, objects=2, noise=3.0))
    differences = [
        np.abs(world.picture(index).astype(int) - world.picture(index + 1)).mean() for index in range(0, 1999, 10)
    ]
    assert np.mean(np.array(differences) < 5.0) > 0.5


def test_all_rooms_shapes_colours_and_places_occur() -> None:
    worlds = [PatrolWorld(PatrolSettings(seed=seed, frames=96)) for seed in range(60)]
    seen = [sighting for world in worlds for sighting in world.sightings]
    assert {sighting.shape for sighting in seen} == set(SHAPES)
    assert {sighting.colour for sighting in seen} == set(COLOURS)
    assert {sighting.place for sighting in seen} == set(PLACES)
    assert {sighting.room for sighting in seen} == set(ROOMS)
    assert {sighting.number for sighting in seen} == {1, 2, 3}


def test_ten_hours_at_thirty_frames_a_second_stay_small() -> None:
    tracemalloc.start()
    world = PatrolWorld(PatrolSettings(seed=1, frames=1_080_000, rate_hz=30.0, objects=8))
    for index in range(0, 1_080_000, 54_000):
        world.frame(index)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 2**20
    assert world.stamp(1_079_999) > 35_000
    assert len(world.sightings) == 8


@pytest.mark.parametrize(
    "wrong", [{"frames": 0}, {"objects": 9}, {"rate_hz": 0.0}, {"size": 100}, {"noise": -1.0}, {"pause_share": 2.0}]
)
def test_bad_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        PatrolSettings(**wrong)  # type: ignore[arg-type]
