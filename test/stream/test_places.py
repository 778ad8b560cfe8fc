# SPDX-License-Identifier: Apache-2.0
"""Frames are remembered with their poses, questions can be limited to a place, and answers name a goal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.archives import frame_pose
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.errors import QuestionError
from ros_kvstream.records import Verdict
from ros_kvstream.settings import ArchiveSettings, GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

QUESTION = "where is the cone ?"
MODEL = cheap_vision(qwen2_5_vl(layers=2, limit=2048))


def memory_of(archive: float = 0.0, gate: str = "off", **options: object) -> VideoMemory:
    memory = MemorySettings(budget_mib=0.25, policy="recent", max_question_tokens=16, max_answer_tokens=8, **options)  # type: ignore[arg-type]
    return VideoMemory(StreamSettings(memory=memory, gate=GateSettings(mode=gate),
                                      archive=ArchiveSettings(budget_mib=archive)), MODEL)  # fmt: skip


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (56, 56, 3), dtype=np.uint8)


def drive(memory: VideoMemory, count: int, start: int = 0, segment: str = "map#a") -> None:
    """One frame and one metre a second."""
    for number in range(start, start + count):
        memory.observe(picture(number), 10.0 + number, pose=frame_pose(float(number), segment))


@pytest.mark.parametrize("archive, frames", [(0.0, 12), (1.0, 12), (1.0, 150)], ids=["arena", "small", "archive"])
def test_only_frames_near_the_place_answer_and_the_goal_is_where_the_best_was_taken(archive, frames):
    memory = memory_of(archive)
    drive(memory, frames)
    centre = 5.0
    answer = memory.ask(QUESTION, near=(centre, 0.0, 0.0), radius=2.0)
    assert 1 <= len(answer.evidence) <= 5
    for frame in answer.evidence:
        assert frame.pose == frame_pose(frame.stamp - 10.0)
        assert abs(frame.pose.base.position[0] - centre) <= 2.0
    assert answer.goal == answer.evidence[0].pose


def test_a_radius_of_zero_is_anywhere():
    memory = memory_of()
    drive(memory, 12)
    whole, anywhere = memory.ask(QUESTION), memory.ask(QUESTION, near=(5.0, 0.0, 0.0), radius=0.0)
    assert whole.text == anywhere.text and whole.evidence == anywhere.evidence


@pytest.mark.parametrize("archive", [0.0, 1.0], ids=["arena", "archive"])
def test_a_place_where_nothing_was_seen_is_said(archive):
    memory = memory_of(archive)
    drive(memory, 12)
    answer = memory.ask(QUESTION, near=(500.0, 0.0, 0.0), radius=2.0)
    assert answer.verdict is Verdict.NOT_COVERED and answer.goal is None
    assert "near = (500, 0, 0) within 2 m" in answer.text


@pytest.mark.parametrize("archive", [0.0, 1.0], ids=["arena", "archive"])
def test_poses_of_an_earlier_map_are_neither_matched_nor_given(archive):
    memory = memory_of(archive)
    drive(memory, 6, segment="map#a")
    drive(memory, 6, start=6, segment="map#b")
    answer = memory.ask(QUESTION)
    assert {frame.pose is not None for frame in answer.evidence if frame.stamp < 15.5} == {False}
    assert {frame.pose is not None for frame in answer.evidence if frame.stamp > 15.5} == {True}
    assert memory.ask(QUESTION, near=(0.0, 0.0, 0.0), radius=2.0).verdict is Verdict.NOT_COVERED


@pytest.mark.parametrize("archive", [0.0, 1.0], ids=["arena", "archive"])
def test_the_maps_of_remembered_poses_are_known_while_a_frame_of_them_is_left(archive):
    memory = memory_of(archive)
    assert memory.maps() == set()
    drive(memory, 3, segment="map#a")
    drive(memory, 3, start=3, segment="map#b")
    assert memory.maps() == {"map#a", "map#b"}
    drive(memory, 120, start=6, segment="map#b")  # the arena has evicted the frames before
    assert memory.maps() == ({"map#a", "map#b"} if archive else {"map#b"})
    memory.clear()
    assert memory.maps() == set()


def test_poses_that_become_known_later_count_as_if_they_had_come_with_the_frame():
    given, placed = memory_of(1.0), memory_of(1.0)
    drive(given, 30)
    for number in range(30):
        observed = placed.observe(picture(number), 10.0 + number)
        if number % 3 == 0:
            placed.ask(QUESTION)
        placed.place(observed.frame_id, 10.0 + number, frame_pose(float(number)))
    one, other = (memory.ask(QUESTION, near=(3.0, 0.0, 0.0), radius=4.0) for memory in (given, placed))
    assert one.text == other.text and one.evidence == other.evidence


@pytest.mark.parametrize("archive", [0.0, 1.0], ids=["arena", "archive"])
def test_redundant_frames_extend_the_span_to_their_pose(archive):
    memory = memory_of(archive, gate="flow")
    observed = [memory.observe(picture(1), 10.0 + n, pose=frame_pose(float(n))) for n in range(3)]
    assert [frame.kept for frame in observed] == [True, False, False]
    (frame,) = memory.ask(QUESTION, near=(2.0, 0.0, 0.0), radius=0.5).evidence
    assert frame.pose == frame_pose(0.0) and frame.base_end == frame_pose(2.0).base and frame.stamp_end == 12.0


def test_poses_change_no_answer():
    plain, posed = memory_of(1.0), memory_of(1.0)
    for number in range(60):
        plain.observe(picture(number), 10.0 + number)
    drive(posed, 60)
    one, other = plain.ask(QUESTION), posed.ask(QUESTION)
    assert one.text == other.text and [f.frame_id for f in one.evidence] == [f.frame_id for f in other.evidence]
    assert one.goal is None and other.goal is not None


@pytest.mark.parametrize("arguments, message", [
    ({"near": (0.0, 0.0, 0.0), "radius": -1.0}, "radius = -1"),
    ({"near": (0.0, 0.0, 0.0), "radius": math.nan}, "radius = nan"),
    ({"near": (math.nan, 0.0, 0.0), "radius": 1.0}, "near = .*three finite numbers"),
    ({"near": (0.0, 0.0, 0.0), "radius": 1.0, "near_frame": ""}, "near names no frame: give it in 'map'"),
    ({"near": (0.0, 0.0, 0.0), "radius": 1.0, "near_frame": "odom"}, "near is in frame 'odom': give it in 'map'"),
])  # fmt: skip
def test_bad_places_are_refused_with_the_value(arguments, message):
    memory = memory_of()
    drive(memory, 3)
    with pytest.raises(QuestionError, match=message):
        memory.ask(QUESTION, **arguments)


def test_a_place_without_any_pose_is_refused_with_the_setting():
    memory = memory_of()
    memory.observe(picture(0), 1.0)
    with pytest.raises(QuestionError, match="pose.source"):
        memory.ask(QUESTION, near=(0.0, 0.0, 0.0), radius=1.0)


@pytest.mark.parametrize("near_frame", [None, "map"])
def test_a_place_is_in_the_frame_of_the_map_when_none_is_named(near_frame):
    memory = memory_of()
    drive(memory, 3)
    assert memory.ask(QUESTION, near=(0.0, 0.0, 0.0), radius=1.0, near_frame=near_frame).evidence


def test_places_are_those_of_every_moment_in_the_arena_and_the_archive_by_stamp():
    memory = memory_of(1.0)
    drive(memory, 150)
    in_arena = len(memory.frame_index)
    assert in_arena < 150, "some moments must have left the arena"
    places = memory.places(1000)
    assert [place.frame_id for place in places] == list(range(150))
    for number, place in enumerate(places):
        assert (place.stamp, place.camera, place.pose) == (10.0 + number, "camera", frame_pose(float(number)))


@pytest.mark.parametrize("archive", [0.0, 1.0], ids=["arena", "archive"])
def test_of_too_many_places_the_first_the_last_and_evenly_distributed_ones_between_are_given(archive):
    memory = memory_of(archive)
    drive(memory, 12)
    stamps = [place.stamp for place in memory.places(5)]
    assert len(stamps) == 5 and (stamps[0], stamps[-1]) == (10.0, 21.0)
    assert {round(gap) for gap in np.diff(stamps)} <= {2, 3}


@pytest.mark.parametrize("archive", [0.0, 1.0], ids=["arena", "archive"])
def test_places_leave_out_moments_without_a_pose_and_those_of_another_map(archive):
    memory = memory_of(archive)
    assert memory.places(9) == ()
    drive(memory, 3, segment="map#a")
    memory.observe(picture(3), 13.0)
    assert [place.stamp for place in memory.places(9)] == [10.0, 11.0, 12.0]
    drive(memory, 2, start=4, segment="map#b")
    assert [(place.stamp, place.pose.map) for place in memory.places(9)] == [(14.0, "map#b"), (15.0, "map#b")]
    memory.clear()
    assert memory.places(9) == ()
