from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.positions import SequentialPositions, TimestampPositions, make_positions


def test_positions_are_seconds_times_tokens_per_second_from_the_first_stamp() -> None:
    clock = TimestampPositions(start=5, tokens_per_second=2.0, limit=10_000)
    assert [clock.advance(stamp) for stamp in (1e9, 1e9 + 0.2, 1e9 + 1, 1e9 + 61.5)] == [5, 5, 7, 128]


def test_a_small_step_backward_keeps_true_time() -> None:
    clock = TimestampPositions(0, 10.0, 10_000)
    assert [clock.advance(stamp) for stamp in (0.0, 5.0, 4.5, 5.1)] == [0, 50, 45, 51]
    assert clock.segment == 0


def test_a_jump_backward_opens_a_segment_one_second_later() -> None:
    clock = TimestampPositions(0, 2.0, 10_000)
    assert [clock.advance(stamp) for stamp in (100.0, 110.0, 3.0, 4.0)] == [0, 20, 22, 24]
    assert clock.segment == 1


def test_a_jump_far_forward_does_not_leave_the_range() -> None:
    clock = TimestampPositions(0, 2.0, 1_000)
    clock.advance(0.0)
    assert clock.advance(1.7e9) == 2
    assert clock.segment == 1


def test_a_range_that_text_fills_is_refused_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match=r"limit = 300.*Lower memory.max_question_tokens"):
        TimestampPositions(10, 2.0, 300, room=285)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-3.0, 400.0), min_size=1, max_size=200),
    st.integers(0, 30),
    st.sampled_from([1.0, 2.0, 25.0]),
    st.integers(0, 700),
)
def test_positions_stay_in_range_and_rebasing_keeps_order_and_recent_distances(
    gaps: list[float], start: int, rate: float, room: int
) -> None:
    limit = 800
    clock = TimestampPositions(start, rate, limit, room)
    held = torch.zeros(0, dtype=torch.int32)
    stamp = 0.0
    for gap in gaps:
        stamp += gap
        change = clock.rebase(stamp)
        if change is not None:
            moved = change(held)
            assert torch.equal(moved.argsort(stable=True), held.argsort(stable=True))
            exact = held >= change.pivot
            assert torch.equal(moved[exact], held[exact] - change.shift)
            held = moved
        held = torch.cat([held, torch.tensor([clock.advance(stamp)], dtype=torch.int32)])
        assert start <= int(held.min()) and int(held.max()) < limit - room


def test_ten_hours_rebase_rarely() -> None:
    clock = TimestampPositions(10, 2.0, 32_768, room=400)
    for second in range(36_000):
        clock.rebase(second)
        clock.advance(second)
    assert clock.rebases == 3


# -- positions in order of arrival ------------------------------------------------------------------------------------


def test_running_positions_follow_each_other_whatever_the_stamps() -> None:
    clock = make_positions(start=7, tokens_per_second=0.0, limit=1000)
    assert [clock.advance(stamp, 9) for stamp in (5.0, 5.1, 900.0)] == [7, 16, 25]
    assert clock.newest == 33
    assert clock.segment == 0


def test_a_jump_backward_opens_a_segment_of_running_positions_without_a_gap() -> None:
    clock = SequentialPositions(0, 1000)
    clock.advance(50.0, 4)
    assert clock.advance(3.0, 4) == 4
    assert clock.segment == 1


def test_stamps_cannot_be_found_in_running_positions() -> None:
    with pytest.raises(SettingsError, match="consecutive"):
        SequentialPositions(0, 1000).locate(3.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=150), st.integers(0, 30), st.integers(0, 400))
def test_running_positions_stay_in_range_and_rebasing_keeps_order_and_recent_distances(
    spans: list[int], start: int, room: int
) -> None:
    limit = 800
    clock = SequentialPositions(start, limit, room)
    assert max(spans) <= clock.largest_span
    held = torch.zeros(0, dtype=torch.int32)
    for index, span in enumerate(spans):
        change = clock.rebase(float(index), span)
        if change is not None:
            moved = change(held)
            assert bool((moved[1:] >= moved[:-1]).all())
            exact = held >= change.pivot
            assert exact.sum() >= (limit - room - start) // 4
            assert torch.equal(moved[exact], held[exact] - change.shift)
            held = moved
        first = clock.advance(float(index), span)
        held = torch.cat([held, torch.arange(first, first + span, dtype=torch.int32)])
        assert start <= int(held.min()) and int(held.max()) == clock.newest < limit - room


# -- the stream's time ------------------------------------------------------------------------------------------------


def test_seconds_count_from_the_first_frame_and_go_on_behind_a_jump_backward() -> None:
    clock = TimestampPositions(0, 2.0, 1000)
    assert [clock.seconds(stamp) for stamp in (100.0, 100.5, 160.25, 160.0)] == [0.0, 0.5, 60.25, 60.0]
    assert clock.seconds(10.0) == 61.25
    assert clock.seconds(12.0) == 63.25


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
def test_seconds_never_fall_by_more_than_jitter(stamps: list[float]) -> None:
    clock = SequentialPositions(0, 1000)
    told = [clock.seconds(stamp) for stamp in stamps]
    assert told[0] == 0.0
    assert all(later >= max(told[: index + 1]) - 1.0 - 1e-6 for index, later in enumerate(told[1:]))
