# SPDX-License-Identifier: Apache-2.0
"""The frame queue: newest wins, every drop is counted, cameras take turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ros_kvstream.node.frame_counters import DropCause, FrameCounters
from ros_kvstream.node.frame_queue import FrameQueue, QueuedFrame


def frame(camera: str, stamp: float) -> QueuedFrame:
    return QueuedFrame(camera, None, stamp, 0.0)


def test_a_full_queue_keeps_the_newest_frames_and_counts_the_rest() -> None:
    counters = FrameCounters()
    queue = FrameQueue(2, counters)
    for stamp in range(10):
        queue.put(frame("front", stamp))
    assert [queue.take().stamp, queue.take().stamp, queue.take()] == [8, 9, None]
    assert counters.camera("front").dropped["queue"] == 8


def test_a_fast_camera_does_not_starve_a_slow_one() -> None:
    queue = FrameQueue(4, FrameCounters())
    for stamp in range(4):
        queue.put(frame("fast", stamp))
    queue.put(frame("slow", 100))
    order = [queue.take().camera for _ in range(5)]
    assert "slow" in order[:2]


def test_draining_counts_what_was_waiting_under_its_cause() -> None:
    counters = FrameCounters()
    queue = FrameQueue(3, counters)
    for camera in ("front", "rear"):
        queue.put(frame(camera, 1.0))
    queue.drain(DropCause.INACTIVE)
    assert len(queue) == 0 and counters.total().dropped["inactive"] == 2


@given(st.integers(1, 5), st.lists(st.one_of(st.sampled_from(["a", "b", "c"]), st.none()), max_size=60))
def test_every_frame_put_is_taken_dropped_or_waiting(capacity: int, actions: list[str | None]) -> None:
    counters = FrameCounters()
    queue = FrameQueue(capacity, counters)
    put = taken = 0
    newest: dict[str, int] = {}
    for number, camera in enumerate(actions):
        if camera is None:
            taken += queue.take() is not None
        else:
            queue.put(frame(camera, number))
            put, newest[camera] = put + 1, number
    waiting = len(queue)
    rest = [queue.take() for _ in range(waiting)]
    assert put == taken + waiting + counters.total().dropped["queue"]
    for camera in {item.camera for item in rest}:
        stamps = [item.stamp for item in rest if item.camera == camera]
        assert stamps == sorted(stamps) and stamps[-1] == newest[camera] and len(stamps) <= capacity
