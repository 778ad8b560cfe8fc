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


def rebased(positions: TimestampPositions, held: torch.Tensor, stamp: float, span: int = 1) -> torch.Tensor:
    """What is held, after the re-basing that is due before the next frame; asserts what holds for every one."""
    if not positions.due(stamp, span):
        return held
    change = positions.rebase(stamp, span, torch.bincount(held, minlength=positions.newest + 1))
    moved = change(held)
    assert not positions.due(stamp, span)
    order = held.argsort(stable=True)
    assert bool((moved[order].diff() >= 0).all()), "the order is kept"
    assert bool((moved[order].diff() <= held[order].diff() + 1).all()), "nothing moves apart, up to rounding"
    recent = held >= change.pivot
    assert torch.equal(moved[recent], held[recent] - change.shift), "distances of the newest are exact"
    assert bool(recent.any()) and int(moved.min()) >= positions.start
    return moved


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
        held = rebased(positions, held, stamp)
        held = torch.cat([held, torch.tensor([positions.advance(stamp)], dtype=torch.int32)])
        assert start <= int(held.min()) and int(held.max()) < limit - headroom


YEAR = 365 * 86400.0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.001, 1 / 30, 0.5, 30.0, 3600.0, YEAR, -3600.0, -YEAR]), st.integers(1, 40)),
        min_size=1, max_size=30,
    ),
    st.sampled_from([0.0, 2.0, 25.0]),
)  # fmt: skip
def test_clocks_that_jump_a_year_a_frame_an_hour_and_a_thousand_a_second_stay_in_range_and_in_order(
    stretches: list[tuple[float, int]], rate: float
) -> None:
    """Stretches of frames, each with its period; the clock jumps from one to the next."""
    positions = make_positions(5, rate, 300, headroom=40)
    held = torch.zeros(0, dtype=torch.int64)
    stamp = 1.7e9
    for period, frames in stretches:
        for _ in range(frames):
            stamp += period
            held = rebased(positions, held, stamp, span=3)
            first = positions.advance(stamp, 3)
            assert not len(held) or first >= int(held[-3]), "in order of arrival"
            held = torch.cat([held, torch.arange(first, first + 3)])
            assert 5 <= int(held.min()) and int(held.max()) < 260


def test_ten_hours_rebase_rarely() -> None:
    positions = TimestampPositions(10, 2.0, 32_768, headroom=400)
    for second in range(36_000):
        if positions.due(second):
            positions.rebase(second, 1, torch.ones(positions.newest + 1, dtype=torch.int64))
        positions.advance(second)
    assert positions.rebases <= 30


@pytest.mark.parametrize("rate", [2.0, 0.0])
def test_what_is_held_for_a_thousand_rebasings_stays_apart_and_moves_seldom(rate: float) -> None:
    """Twelve whole frames among thousands of others, of which a policy leaves less and less."""
    positions, random = make_positions(0, rate, 500), torch.Generator().manual_seed(1)
    kept = torch.zeros(0, dtype=torch.int64)
    thinned, moves, stamp = kept, 0, 0.0
    while positions.rebases < 1_000:
        stamp += 5.0
        if positions.due(stamp):
            held = torch.cat([kept.repeat(8), thinned])
            change = positions.rebase(stamp, 1, torch.bincount(held, minlength=positions.newest + 1))
            moves += int((change(kept) != kept).sum())
            kept, thinned = change(kept), change(thinned)
            thinned = thinned[torch.randperm(len(thinned), generator=random)[:200].sort().values]
        at = torch.tensor([positions.advance(stamp)])
        if len(kept) < 12:
            kept = torch.cat([kept, at])
        else:
            thinned = torch.cat([thinned, at.repeat(4)])
    assert len(kept.unique()) == 12, "the order is known to the end"
    assert moves < 12 * 100


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
        held = rebased(positions, held, float(index), span)
        first = positions.advance(float(index), span)
        held = torch.cat([held, torch.arange(first, first + span, dtype=torch.int32)])
        assert start <= int(held.min()) and int(held.max()) == positions.newest < limit - headroom


@pytest.mark.parametrize("tokens_per_second", [0.0, 2.0])
def test_positions_come_back_from_their_state_and_go_on_as_if_nothing_had_happened(tokens_per_second: float) -> None:
    first, second = (make_positions(5, tokens_per_second, 100, headroom=20) for _ in range(2))

    def watched(positions: TimestampPositions, stamps: list[float]) -> list[object]:
        found: list[object] = []
        for at in stamps:
            due = positions.due(at, 3)
            if due:
                positions.rebase(at, 3, torch.ones(positions.newest + 1, dtype=torch.int64))
            found += [positions.seconds(at), due, positions.advance(at, 3)]
        return found

    watched(first, [1e9, 1e9 + 20, 1e9 + 45, 7.0, 30.0])
    watched(second, [3.0])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.rebases == first.rebases and second.newest == first.newest
    assert second.largest_span == first.largest_span
    later = [30.5, 90.0, 2.0, 1e9]
    assert watched(second, later) == watched(first, later)


def test_a_state_from_a_wider_range_is_drawn_into_this_one() -> None:
    wide, narrow = TimestampPositions(5, 2.0, 8192), TimestampPositions(5, 2.0, 300)
    held = torch.tensor([wide.advance(at / 2) for at in range(0, 8000, 5)])
    narrow.load_state_dict(json.loads(json.dumps(wide.state_dict())))
    moved = rebased(narrow, held, 4000.5)
    assert len(moved) == len(held) and int(moved.max()) < narrow.limit == 300


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
