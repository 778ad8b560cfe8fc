# SPDX-License-Identifier: Apache-2.0
"""The cameras of a stream share one time axis, whatever clocks stamp them."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.memory.stream_clock import StreamClock


def times(clock: StreamClock, *frames: tuple[float, str]) -> list[float]:
    return [clock.time(stamp, camera) for stamp, camera in frames]


@pytest.mark.parametrize(("stamps", "expected", "segment"), [
    ((100.0, 110.0, 109.5, 110.5), [100, 110, 109.5, 110.5], 0),
    ((100.0, 110.0, 3.0, 4.0), [100, 110, 111, 112], 1),
    ((0.0, 1.7e9, 1.7e9 + 2), [0, 1, 3], 1),
    ((0.0, 400.0), [0, 400], 0),
], ids=["a small step back", "a jump back goes on a second later", "a jump far forward too", "a pause is none"])
def test_jumps_of_one_camera(stamps: tuple[float, ...], expected: list[float], segment: int) -> None:
    clock = StreamClock(500.0)
    assert times(clock, *((stamp, "front") for stamp in stamps)) == pytest.approx(expected)
    assert clock.segment == segment


@pytest.mark.parametrize("offset", [-3.0, 3.0, -1.7e9])
def test_two_clocks_take_as_much_time_as_one(offset: float, caplog: pytest.LogCaptureFixture) -> None:
    """Two cameras at 10 Hz for a minute, one stamped by another clock."""
    clock, start = StreamClock(500.0), 1.7e9
    with caplog.at_level(logging.WARNING):
        for index in range(600):
            front = clock.time(start + index / 10, "front")
            rear = clock.time(start + offset + index / 10 + 0.05, "rear")
            assert rear == pytest.approx(front, abs=3.1)
    assert clock.segment == 0 and max(front, rear) - start < 64
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (offset < 0), "a camera that is ahead looks like one that starts after a pause"
    assert all("'front' and 'rear' differ by" in text for text in warnings)
    assert offset != -3.0 or "differ by 2.9 s" in warnings[0] or "differ by 3.0 s" in warnings[0]


def test_cameras_of_one_clock_jump_together_once() -> None:
    """A bag with two cameras that plays in a loop."""
    clock = StreamClock(500.0)
    for _ in range(3):
        for index in range(20):
            front, rear = times(clock, (10 + index / 2, "front"), (10.1 + index / 2, "rear"))
            assert rear == pytest.approx(front + 0.1)
    assert clock.segment == 2
    assert clock.past(10.0, "front") == pytest.approx(clock.past(10.0, "rear"))


def test_seconds_count_from_the_first_frame_and_go_on_behind_a_jump_backward() -> None:
    clock = StreamClock(float("inf"))
    stamps = (100.0, 100.5, 160.25, 160.0, 10.0, 12.0)
    found = [clock.seconds(time) for time in times(clock, *((stamp, "front") for stamp in stamps))]
    assert found == [0.0, 0.5, 60.25, 60.0, 61.25, 63.25]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 1e6), st.sampled_from(["front", "rear"])), min_size=1, max_size=50))
def test_a_camera_never_goes_back_by_more_than_jitter(frames: list[tuple[float, str]]) -> None:
    clock = StreamClock(500.0)
    newest: dict[str, float] = {}
    for stamp, camera in frames:
        time = clock.time(stamp, camera)
        assert time >= newest.get(camera, time) - 1.0 - 1e-6
        newest[camera] = max(time, newest.get(camera, time))


def test_a_clock_comes_back_from_its_state_and_goes_on_as_if_nothing_had_happened() -> None:
    first, second = StreamClock(500.0), StreamClock(500.0)
    times(first, (100.0, "front"), (5.0, "rear"), (3.0, "front"), (6.0, "rear"))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    later = ((4.0, "front"), (7.0, "rear"), (1.0, "rear"), (1e9, "left"))
    assert times(second, *later) == times(first, *later)
    assert second.segment == first.segment
