# SPDX-License-Identifier: Apache-2.0
"""Positions follow the stamps or the order of arrival, stay in range and come back from a checkpoint."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.positions import SequentialPositions, TimestampPositions, make_positions


@pytest.mark.parametrize(("positions", "span", "stamps", "expected", "segment"), [
    (TimestampPositions(5, 2.0, 10_000), 1, (1e9, 1e9 + 0.2, 1e9 + 1, 1e9 + 61.5), [5, 5, 7, 128], 0),
    (TimestampPositions(0, 10.0, 10_000), 1, (0.0, 5.0, 4.5, 5.1), [0, 50, 45, 51], 0),
    (TimestampPositions(0, 2.0, 10_000), 1, (100.0, 110.0, 3.0, 4.0), [0, 20, 22, 24], 1),
    (TimestampPositions(0, 2.0, 1_000), 1, (0.0, 1.7e9), [0, 2], 1),
    (make_positions(7, 0.0, 1000), 9, (5.0, 5.1, 900.0), [7, 16, 25], 0),
    (SequentialPositions(0, 1000), 4, (50.0, 3.0), [0, 4], 1),
], ids=["true time", "a small step back keeps true time", "a jump back opens a segment one second later",
        "a jump far forward stays in the range", "sequential", "sequential without a gap after a jump back"])
def test_positions_follow_the_stamps_or_each_other(
    positions: TimestampPositions | SequentialPositions, span: int, stamps: tuple[float, ...], expected: list[int],
    segment: int,
) -> None:  # fmt: skip
    assert [positions.advance(stamp, span) for stamp in stamps] == expected
    assert (positions.segment, positions.newest) == (segment, expected[-1] + span - 1)


def test_a_range_that_text_fills_is_refused_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match=r"limit = 300.*Lower memory.max_question_tokens"):
        TimestampPositions(10, 2.0, 300, headroom=285)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-3.0, 400.0), min_size=1, max_size=200),
    st.integers(0, 30),
    st.sampled_from([1.0, 2.0, 25.0]),
    st.integers(0, 700),
)
def test_positions_stay_in_range_and_rebasing_keeps_order_and_recent_distances(
    gaps: list[float], start: int, rate: float, headroom: int
) -> None:
    limit = 800
    positions = TimestampPositions(start, rate, limit, headroom)
    held = torch.zeros(0, dtype=torch.int32)
    stamp = 0.0
    for gap in gaps:
        stamp += gap
        change = positions.rebase(stamp)
        if change is not None:
            moved = change(held)
            assert torch.equal(moved.argsort(stable=True), held.argsort(stable=True))
            exact = held >= change.pivot
            assert torch.equal(moved[exact], held[exact] - change.shift)
            held = moved
        held = torch.cat([held, torch.tensor([positions.advance(stamp)], dtype=torch.int32)])
        assert start <= int(held.min()) and int(held.max()) < limit - headroom


def test_ten_hours_rebase_rarely() -> None:
    positions = TimestampPositions(10, 2.0, 32_768, headroom=400)
    for second in range(36_000):
        positions.rebase(second)
        positions.advance(second)
    assert positions.rebases == 3


# -- positions in order of arrival ------------------------------------------------------------------------------------


def test_stamps_cannot_be_found_in_sequential_positions() -> None:
    with pytest.raises(SettingsError, match="consecutive"):
        SequentialPositions(0, 1000).locate(3.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=150), st.integers(0, 30), st.integers(0, 400))
def test_sequential_positions_stay_in_range_and_rebasing_keeps_order_and_recent_distances(
    spans: list[int], start: int, headroom: int
) -> None:
    limit = 800
    positions = SequentialPositions(start, limit, headroom)
    assert max(spans) <= positions.largest_span
    held = torch.zeros(0, dtype=torch.int32)
    for index, span in enumerate(spans):
        change = positions.rebase(float(index), span)
        if change is not None:
            moved = change(held)
            assert bool((moved[1:] >= moved[:-1]).all())
            exact = held >= change.pivot
            assert exact.sum() >= (limit - headroom - start) // 4
            assert torch.equal(moved[exact], held[exact] - change.shift)
            held = moved
        first = positions.advance(float(index), span)
        held = torch.cat([held, torch.arange(first, first + span, dtype=torch.int32)])
        assert start <= int(held.min()) and int(held.max()) == positions.newest < limit - headroom


@pytest.mark.parametrize("tokens_per_second", [0.0, 2.0])
def test_positions_come_back_from_their_state_and_go_on_as_if_nothing_had_happened(tokens_per_second: float) -> None:
    first, second = (make_positions(5, tokens_per_second, 100, headroom=20) for _ in range(2))

    def watched(positions: TimestampPositions, stamps: list[float]) -> list[object]:
        return [(positions.seconds(at), positions.rebase(at, 3), positions.advance(at, 3)) for at in stamps]

    watched(first, [1e9, 1e9 + 20, 1e9 + 45, 7.0, 30.0])
    watched(second, [3.0])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.rebases == first.rebases and second.newest == first.newest
    assert second.largest_span == first.largest_span
    later = [30.5, 90.0, 2.0, 1e9]
    assert watched(second, later) == watched(first, later)


# -- the stream's time ------------------------------------------------------------------------------------------------


def test_seconds_count_from_the_first_frame_and_go_on_behind_a_jump_backward() -> None:
    positions = TimestampPositions(0, 2.0, 1000)
    assert [positions.seconds(stamp) for stamp in (100.0, 100.5, 160.25, 160.0)] == [0.0, 0.5, 60.25, 60.0]
    assert positions.seconds(10.0) == 61.25
    assert positions.seconds(12.0) == 63.25


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
def test_seconds_never_fall_by_more_than_jitter(stamps: list[float]) -> None:
    positions = SequentialPositions(0, 1000)
    seconds = [positions.seconds(stamp) for stamp in stamps]
    assert seconds[0] == 0.0
    assert all(later >= max(seconds[: index + 1]) - 1.0 - 1e-6 for index, later in enumerate(seconds[1:]))
