# SPDX-License-Identifier: Apache-2.0
"""The frame index finds frames by camera and time and comes back from a checkpoint."""

from __future__ import annotations

import json

import pytest

from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.records import Scope


def filled() -> FrameIndex:
    """Frames 0 to 5 of two cameras at one a second, the last one after a jump of the clock."""
    index = FrameIndex()
    for number in range(6):
        camera = ("front", "rear")[number % 2]
        index.camera_id(camera)
        jumped = number == 5
        frame = index.add(1.0 if jumped else 10.0 + number, camera, 4, segment=int(jumped), time=10.0 + number)
        index.set_prefilled(frame.frame_id, tokens=5)
    index.extend(4, 14.8)
    return index


@pytest.mark.parametrize(("camera", "since", "until", "found"), [
    ("", 0.0, 0.0, [0, 1, 2, 3, 4, 5]),
    ("rear", 0.0, 0.0, [1, 3, 5]),
    ("front", 14.5, 0.0, [4]),
    ("", 11.0, 12.5, [1, 2]),
    ("left", 0.0, 0.0, []),
])  # fmt: skip
def test_frames_match_by_camera_and_by_the_overlap_of_their_span(
    camera: str, since: float, until: float, found: list[int]
) -> None:
    assert filled().matching(Scope(camera, since, until)) == found


def test_the_newest_stamp_is_that_of_the_newest_segment() -> None:
    index = filled()
    assert index.newest_stamp() == 1.0
    index.remove([5])
    assert index.newest_stamp() == 14.8
    index.clear()
    assert index.newest() is None and index.newest_stamp() == 0.0


def test_an_index_comes_back_from_its_state_and_gives_no_id_twice() -> None:
    first, second, newer = filled(), FrameIndex(), FrameIndex(first_id=50)
    first.retain([2, 4, 5])
    state = json.loads(json.dumps(first.state_dict()))
    for index, next_id in ((second, 6), (newer, 50)):
        index.load_state_dict(state)
        assert [index[frame] for frame in index.matching(Scope())] == [first[frame] for frame in (2, 4, 5)]
        assert index.cameras == first.cameras == {"front": 0, "rear": 1}
        assert index.add(20.0, "front", 4, 1, 20.0).frame_id == next_id
