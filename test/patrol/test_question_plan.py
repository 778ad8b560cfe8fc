"""The demo's questions: right at their moment, mostly about what is long gone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.commands.demo_plan import TYPICAL_QUESTIONS, left_window, plan_patrol, plan_typical
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import KINDS

WINDOW = 22


def patrol(seed: int, frames: int = 100) -> PatrolWorld:
    return PatrolWorld(PatrolSettings(seed=seed, frames=frames, start=1_750_000_000.0))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_questions_come_in_order_and_their_answers_hold_one_frame_longer(seed: int) -> None:
    world = patrol(seed)
    plan = plan_patrol(world, 10, WINDOW)
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
    assert plan_patrol(patrol(3), 10, WINDOW) == plan_patrol(patrol(3), 10, WINDOW)
    assert plan_patrol(patrol(3), 10, WINDOW) != plan_patrol(patrol(4), 10, WINDOW)


def test_the_demos_own_patrol_asks_ten_questions_most_of_them_about_what_left_the_window() -> None:
    world = patrol(3)
    plan = plan_patrol(world, 10, WINDOW)
    stamps = [world.stamp(index) for index in range(len(world))]
    assert len(plan) == 10
    assert sum(question.kind.endswith("_now") for question in plan) == 2
    assert sum(left_window(question, stamps, WINDOW) is True for question in plan) >= 6


def test_a_question_left_the_window_only_when_all_its_frames_did() -> None:
    world = patrol(3)
    stamps = [world.stamp(index) for index in range(len(world))]
    question = next(found for found in plan_patrol(world, 10, WINDOW) if found.kind == "before")
    newest = max(stamps.index(stamp) for stamp in question.evidence)
    assert left_window(question, stamps, question.at - newest) is True
    assert left_window(question, stamps, question.at - newest + 1) is False
    assert left_window(question, stamps, len(stamps) + 5) is False


@pytest.mark.parametrize("frames", [2, 10, 1000])
def test_typical_questions_are_spread_over_the_later_part_and_nobody_knows_their_answers(frames: int) -> None:
    plan = plan_typical(TYPICAL_QUESTIONS, frames)
    assert [question.text for question in plan] == list(TYPICAL_QUESTIONS)
    assert [question.at for question in plan] == sorted(question.at for question in plan)
    assert all(0 <= question.at < frames and question.expected is None for question in plan)
    assert left_window(plan[0], [], WINDOW) is None
