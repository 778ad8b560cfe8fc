# SPDX-License-Identifier: Apache-2.0
"""Frame counters, and losses found from publication numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ros_kvstream.node.frame_counters import DropCause, FrameCounters, SequenceTracker
from ros_kvstream.records import Observation


def test_published_is_seen_plus_dropped_and_seen_is_kept_plus_gated() -> None:
    counters = FrameCounters()
    counters.received("front")
    counters.received("front", lost_before=3)
    counters.received("front")
    counters.dropped("front", DropCause.ENCODING)
    counters.observed("front", Observation(0, True, 4))
    counters.observed("front", Observation(0, False, 0))
    count = counters.camera("front")
    assert count.published == 6 == count.seen + sum(count.dropped.values())
    assert (count.seen, count.kept, count.gated) == (2, 1, 1)
    assert counters.camera("unknown").published == 0


def test_the_total_adds_all_cameras() -> None:
    counters = FrameCounters()
    for camera in ("front", "rear"):
        counters.received(camera, lost_before=1)
        counters.dropped(camera, DropCause.QUEUE)
    total = counters.total()
    assert total.published == 4 and dict(total.dropped) == {"sequence_gap": 2, "queue": 2}


def test_gaps_in_one_publisher_are_counted() -> None:
    tracker = SequenceTracker()
    assert [tracker.lost_before(number) for number in (5, 6, 9, 10, 11, 400)] == [0, 0, 2, 0, 0, 388]


def test_a_restarted_publisher_is_no_loss() -> None:
    tracker = SequenceTracker()
    assert [tracker.lost_before(number) for number in (100, 101, 1, 2, 4)] == [0, 0, 0, 0, 1]


def test_a_second_publisher_far_ahead_is_no_loss_when_two_are_known() -> None:
    tracker = SequenceTracker()
    assert [tracker.lost_before(number, publishers=2) for number in (5, 9000, 6, 9001, 7, 9003)] == [0, 0, 0, 0, 0, 1]


@given(st.sets(st.integers(1, 500), min_size=1), st.integers(1, 1000))
def test_losses_of_one_publisher_add_up(arrived: set[int], start: int) -> None:
    tracker = SequenceTracker()
    numbers = [start + number for number in sorted(arrived)]
    lost = sum(tracker.lost_before(number) for number in numbers)
    assert lost == numbers[-1] - numbers[0] + 1 - len(numbers)
