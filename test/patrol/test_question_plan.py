# SPDX-License-Identifier: Apache-2.0
"""Planned questions: correct when asked, mostly about frames that left the window."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.question_plan import left_window, plan_questions
from ros_kvstream.patrol.questions import KINDS

WINDOW = 22


def patrol(seed: int, frames: int = 100) -> PatrolWorld:
    return PatrolWorld(PatrolSettings(seed=seed, frames=frames, start=1_750_000_000.0))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_questions_come_in_order_and_their_answers_hold_one_frame_longer(seed: int) -> None:
    world = patrol(seed)
    plan = plan_questions(world, 10, WINDOW)
    moments = [question.at for question in plan]
    assert moments == sorted(set(moments))
    assert len({question.text for question in plan}) == len(plan)
    for question in plan:
        assert question.at < question.last < len(world)
        assert question.kind in KINDS and question.expected
        assert all(stamp <= world.stamp(question.at) for stamp in question.evidence)
        later = [sighting for sighting in world.sightings if question.at < sighting.first <= question.last]
        if question.kind in ("first", "last", "before", "after", "any", "how_many"):
            assert not later
        if question.kind == "room_now":
            assert world.room(question.at) == world.room(question.last) == question.expected.removeprefix("the ")
        if question.kind == "view_now":
            assert world.sighting(question.at) == world.sighting(question.last) is not None


def test_equal_worlds_give_equal_questions_and_others_do_not() -> None:
    assert plan_questions(patrol(3), 10, WINDOW) == plan_questions(patrol(3), 10, WINDOW)
    assert plan_questions(patrol(3), 10, WINDOW) != plan_questions(patrol(4), 10, WINDOW)


def test_the_demos_patrol_gives_ten_questions_most_of_them_about_what_left_the_window() -> None:
    world = patrol(3)
    plan = plan_questions(world, 10, WINDOW)
    stamps = [world.stamp(index) for index in range(len(world))]
    assert len(plan) == 10
    assert sum(question.kind.endswith("_now") for question in plan) == 2
    assert sum(left_window(question, stamps, WINDOW) is True for question in plan) >= 6


def test_a_question_left_the_window_only_when_all_its_frames_did() -> None:
    world = patrol(3)
    stamps = [world.stamp(index) for index in range(len(world))]
    question = next(found for found in plan_questions(world, 10, WINDOW) if found.kind == "before")
    newest = max(stamps.index(stamp) for stamp in question.evidence)
    assert left_window(question, stamps, question.at - newest) is True
    assert left_window(question, stamps, question.at - newest + 1) is False
    assert left_window(question, stamps, len(stamps) + 5) is False
