# SPDX-License-Identifier: Apache-2.0
"""Order of the evidence: by attention, or by time for questions of first and last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.records import FrameEvidence
from ros_kvstream.retrieval.evidence import MAX_EVIDENCE, attended_evidence, evidence_layers
from ros_kvstream.settings import ArchiveSettings, MemorySettings, ModelSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory


def index_of(frames: int) -> FrameIndex:
    index = FrameIndex()
    for frame in range(frames):
        index.add(float(frame), "camera", 4, 0, float(frame))
    return index


def order(mass: dict[int, float], shown: list[int], retrieved: list[int], **options: bool) -> list[int]:
    arena: Any = SimpleNamespace(frames_kept=lambda: dict.fromkeys(shown, 4.0))
    found = [FrameEvidence(frame, float(frame), float(frame), "camera", 0.01) for frame in retrieved]
    evidence = attended_evidence(mass, shown, found, arena, index_of(20), **options)
    return [frame.frame_id for frame in evidence]


def test_frames_with_more_attention_come_first_whether_retrieved_or_not() -> None:
    mass = {1: 0.1, 2: 0.4, 3: 0.2, 8: 0.3, 9: 0.05}
    assert order(mass, [8, 9], [1, 2, 3]) == [2, 8, 3, 1, 9]


def test_retrieved_frames_without_attention_come_last_in_their_own_order() -> None:
    assert order({8: 0.3}, [8], [3, 1, 2]) == [8, 3, 1, 2]


def test_retrieved_frames_that_answer_by_their_time_keep_their_order_before_the_others() -> None:
    mass = {1: 0.1, 2: 0.4, 3: 0.2, 8: 0.9, 9: 0.95}
    assert order(mass, [8, 9], [3, 1, 2], by_time=True) == [3, 1, 2, 9, 8]


def test_all_retrieved_frames_are_named_and_at_least_one_of_the_arena() -> None:
    mass = {frame: 0.01 * frame for frame in range(20)}
    few = order(mass, list(range(20)), [])
    assert few == list(range(19, 19 - MAX_EVIDENCE, -1))
    many = order(mass, [18, 19], list(range(12)))
    assert many == [19, *range(11, -1, -1)]


@pytest.mark.parametrize(("layers", "middle"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [1, 2]), (8, [2, 3, 4, 5])])
def test_the_middle_half_of_the_layers_is_read(layers: int, middle: list[int]) -> None:
    assert list(evidence_layers(layers)) == middle


@pytest.fixture(scope="module")
def tiny() -> VideoLanguageModel:
    return load_model(ModelSettings())


def test_the_best_evidence_shows_what_the_question_is_about(tiny: VideoLanguageModel) -> None:
    """With the trained model: things seen before, things in view, and the first and the last thing.

    By attention alone, the evidence of "What did you see first?" would be wrong in this stream.
    """
    world = PatrolWorld(PatrolSettings(seed=20263000, frames=96, ends_in_view=1.0))
    memory = VideoMemory(
        StreamSettings(memory=MemorySettings(budget_mib=0.5, max_question_tokens=32, max_answer_tokens=8),
                       archive=ArchiveSettings(budget_mib=1.0)), tiny,
    )  # fmt: skip
    for frame in world:
        memory.observe(frame.picture, frame.stamp)
    asked = 0
    for kind in ("where", "colour", "room", "how_many", "first", "last", "view_now"):
        for question in world.questions(3, kinds=(kind,)):
            if question.evidence:
                best = memory.ask(question.text).evidence[0]
                assert any(best.stamp <= stamp <= best.stamp_end for stamp in question.evidence), question
                asked += 1
    memory.close()
    assert asked > 10
