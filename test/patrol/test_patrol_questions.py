# SPDX-License-Identifier: Apache-2.0
"""Questions about the patrol world: answers follow from the sightings, evidence lies where it should."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import KINDS, PLURALS, UNKNOWN, Asker, Question, vocabulary


def expected(world: PatrolWorld, at: int, question: Question) -> str:
    """The answer worked out anew from the sightings and the question's own words."""
    seen = [sighting for sighting in world.sightings if sighting.first <= at]
    words = set(re.findall(r"[a-z]+", question.text))
    thing = next((item for item in seen if {item.shape, PLURALS[item.shape]} & words), None)
    if question.kind == "any":
        return "yes" if thing else "no"
    if question.kind == "view_now":
        current = world.sighting(at)
        return f"the {current.colour} {current.shape}" if current else "nothing"
    if question.kind == "room_now":
        return f"the {world.room(at)}"
    if question.kind in ("first", "last"):
        return f"the {seen[0 if question.kind == 'first' else -1].shape}"
    if thing is None:
        return "none"
    if question.kind in ("before", "after"):
        other = seen.index(thing) + (1 if question.kind == "after" else -1)
        return f"the {seen[other].shape}" if 0 <= other < len(seen) else "nothing"
    number = ("one", "two", "three")[thing.number - 1]
    answers = {"colour": thing.colour, "where": thing.place, "how_many": number, "room": f"the {thing.room}"}
    return answers[question.kind]


@given(st.integers(0, 1 << 30), st.integers(1, 120), st.integers(0, 8), st.data())
@settings(max_examples=60, deadline=None)
def test_answers_follow_from_what_was_seen_so_far(seed: int, frames: int, objects: int, data: st.DataObject) -> None:
    world = PatrolWorld(PatrolSettings(seed=seed, frames=frames, objects=objects, pause_share=0.2))
    at = data.draw(st.integers(0, frames - 1))
    stamps = [world.stamp(index) for index in range(at + 1)]
    for question in world.questions(24, at=at, seed=seed):
        assert question.answer == expected(world, at, question)
        assert set(question.evidence) <= set(stamps)
        assert list(question.evidence) == sorted(question.evidence)
        newest = bool(question.evidence) and question.evidence[-1] == stamps[-1]
        assert question.when == ("now" if newest else "before")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_asked_alone(kind: str) -> None:
    world = PatrolWorld(PatrolSettings(seed=4, frames=96, objects=8))
    asked = world.questions(3, kinds=(kind,))
    assert asked and {question.kind for question in asked} == {kind}


def test_every_word_is_in_the_vocabulary_except_in_questions_that_cannot_be_understood() -> None:
    known = set(vocabulary())
    for seed in range(20):
        world = PatrolWorld(PatrolSettings(seed=seed, frames=96))
        for question in world.questions(33, seed=seed):
            words = re.findall(r"[a-z]+|[^a-z\s]", f"{question.text} {question.answer}")
            assert set(words) <= known
    asker = Asker(world, 95, np.random.default_rng(0))
    unknown = [asker.ask("unknown") for _ in range(20)]
    assert {question.answer for question in unknown if question} == {UNKNOWN}
    assert all(set(re.findall(r"[a-z]+", question.text)) - known for question in unknown if question)


def test_the_same_seed_asks_the_same_and_never_twice() -> None:
    world = PatrolWorld(PatrolSettings(seed=9, frames=96))
    asked = world.questions(20, seed=1)
    assert asked == world.questions(20, seed=1) != world.questions(20, seed=2)
    assert len(set(asked)) == len(asked)


def test_a_question_of_place_asks_for_the_robot_in_the_middle_of_the_sighting() -> None:
    for seed in range(12):
        world = PatrolWorld(PatrolSettings(seed=seed, frames=96, rate_hz=3.0))
        for question in world.questions(6, kinds=("place",)):
            thing = next(item for item in world.sightings if item.shape in question.text)
            assert question.kind == "place" and question.place is not None
            assert question.text in (f"where was the {thing.shape}?", f"where did you see the {thing.shape}?")
            assert question.answer == thing.place
            assert question.evidence == tuple(world.stamp(index) for index in range(thing.first, thing.last + 1))
            middle = world.pose_at((world.stamp(thing.first) + world.stamp(thing.last)) / 2)
            assert question.place == middle.position
            straight = world.pose(thing.first).distance(world.pose(thing.last))
            assert straight - 1e-9 <= question.moved
            assert math.dist(question.place, world.pose(thing.first).position) <= question.moved + 1e-9


def test_a_sighting_that_goes_on_has_its_place_up_to_now() -> None:
    world = PatrolWorld(PatrolSettings(seed=2, frames=60, objects=1, rate_hz=10.0, sighting_frames=(20, 20)))
    (thing,) = world.sightings
    (question,) = world.questions(1, at=thing.first + 4, kinds=("place",))
    assert question.when == "now" and len(question.evidence) == 5
    assert question.place == world.pose_at((world.stamp(thing.first) + world.stamp(thing.first + 4)) / 2).position
    (whole,) = world.questions(1, kinds=("place",))
    assert 0 < question.moved < whole.moved


def test_places_are_asked_only_on_request_and_only_of_what_was_seen() -> None:
    assert "place" not in KINDS
    world = PatrolWorld(PatrolSettings(seed=4, frames=96, objects=8))
    assert all(question.place is None and question.moved == 0 for question in world.questions(40))
    before = world.sightings[0].first - 1
    assert before < 0 or world.questions(3, at=before, kinds=("place",)) == []
    assert PatrolWorld(PatrolSettings(frames=20, objects=0)).questions(3, kinds=("place",)) == []
