# SPDX-License-Identifier: Apache-2.0
"""The frame index finds frames by camera and time and comes back from a checkpoint."""

from __future__ import annotations

import json

import pytest

from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.poses import FramePose, Pose
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


def at(x: float, segment: str = "map#1") -> FramePose:
    return FramePose(segment, Pose((x, 0.0, 0.0)), Pose((x, 0.0, 0.5)))


def test_a_time_span_keeps_its_first_and_its_last_pose():
    index = FrameIndex()
    frame = index.add(1.0, "front", 4, 0, 1.0).frame_id
    index.place(frame, 1.0, at(0.1))
    for stamp in (2.0, 3.0):
        index.extend(frame, stamp)
        index.place(frame, stamp, at(stamp))
    record = index[frame]
    assert record.pose == at(0.1).stored() and record.base_end == at(3.0).base
    assert index.map == "map#1"


def test_a_redundant_frame_places_a_frame_whose_own_pose_is_unknown():
    index = FrameIndex()
    frame = index.add(1.0, "front", 4, 0, 1.0).frame_id
    index.extend(frame, 2.0)
    index.place(frame, 2.0, at(2.0))
    assert index[frame].pose == at(2.0) and index[frame].base_end == at(2.0).base


def test_a_pose_of_another_map_or_of_a_forgotten_frame_changes_no_record():
    index = FrameIndex()
    frame = index.add(1.0, "front", 4, 0, 1.0).frame_id
    index.place(frame, 1.0, at(1.0))
    before = index[frame]
    assert index.place(frame, 2.0, at(9.0, "map#2")) is None and index[frame] == before
    assert index.place(frame + 1, 2.0, at(9.0)) is None
    assert index.map == "map#1"


def test_a_place_matches_the_first_and_the_last_pose_of_the_present_map_only():
    index = FrameIndex()
    for number, (first, last, segment) in enumerate([(0, 0, "a#1"), (3, 3, "a#1"), (3, 20, "a#1"), (0, 0, "b#1")]):
        frame = index.add(float(number + 1), "front", 4, 0, number + 1.0).frame_id
        index.place(frame, number + 1.0, at(first, segment))
        index.place(frame, number + 1.5, at(last, segment))
    index.add(9.0, "front", 4, 0, 9.0)

    def found(x: float, radius: float, segment: str) -> list[int]:
        return index.matching(Scope(near=(x, 0.0, 0.0), radius=radius, map=segment))

    assert found(0, 1, "a#1") == [0]
    assert found(0, 3, "a#1") == [0, 1, 2]
    assert found(20, 0.5, "a#1") == [2]
    assert found(0, 1, "b#1") == [3]
    assert found(0, 1e9, "c#1") == []


def test_poses_survive_a_state_bit_for_bit():
    index = FrameIndex()
    frame = index.add(1.0, "front", 4, 0, 1.0).frame_id
    turned = Pose.from_euler((0.1, -2.7, 1 / 3), 0.3, -0.2, 2.1)
    index.place(frame, 1.0, FramePose("map#1", turned, turned.compose(Pose((0.2, 0.0, 0.7)))))
    other = FrameIndex()
    other.load_state_dict(json.loads(json.dumps(index.state_dict())))
    assert other[frame] == index[frame] and other.map == "map#1"
