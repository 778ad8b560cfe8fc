# SPDX-License-Identifier: Apache-2.0
"""Answers say which part of the time asked about is remembered, and nothing is guessed about the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.records import Verdict
from ros_kvstream.settings import ArchiveSettings, GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.coverage import COVERED_SECONDS, covered_share
from ros_kvstream.stream.memory import VideoMemory

QUESTION = "where is the cone ?"
MODEL = cheap_vision(qwen2_5_vl(layers=2, limit=2048))


def memory_of(archive: float = 0.0) -> VideoMemory:
    memory = MemorySettings(budget_mib=0.25, policy="recent", max_question_tokens=16, max_answer_tokens=4)
    return VideoMemory(StreamSettings(memory=memory, gate=GateSettings(mode="off"),
                                      archive=ArchiveSettings(budget_mib=archive)), MODEL)  # fmt: skip


def watch(memory: VideoMemory, stamps: list[float], camera: str = "camera") -> None:
    for stamp in stamps:
        picture = np.random.default_rng(round(1000 * stamp)).integers(0, 255, (56, 56, 3), dtype=np.uint8)
        memory.observe(picture, stamp, camera)


def test_a_stream_that_is_remembered_whole_is_covered_whole() -> None:
    memory = memory_of()
    watch(memory, [10.0, 11.0, 12.0])
    answer = memory.ask(QUESTION)
    assert (answer.covered_since, answer.covered_until, answer.covered_share) == (10.0, 12.0, 1.0)


def test_evicted_time_is_not_covered_without_an_archive_and_covered_with_one() -> None:
    stamps = [float(second) for second in range(200)]
    shares = []
    for archive in (0.0, 4.0):
        memory = memory_of(archive)
        watch(memory, stamps)
        answer = memory.ask(QUESTION)
        shares.append(answer.covered_share)
        assert answer.covered_until == 199.0
        assert (answer.covered_since == 0.0) == (archive > 0)
    assert shares[0] < 0.5 and shares[1] > 0.95


def test_a_gap_of_the_stream_is_not_covered() -> None:
    memory = memory_of()
    watch(memory, [0.0, 1.0, 2.0, 18.0, 19.0, 20.0])
    assert memory.ask(QUESTION).covered_share == pytest.approx((20 - (18 - 2 - 2 * COVERED_SECONDS)) / 20)
    answer = memory.ask(QUESTION, since=8.0, until=12.0)
    assert answer.verdict is Verdict.NOT_COVERED and answer.covered_share == 0.0
    assert "since = 8.000, until = 12.000" in answer.text and "from 0.000 to 20.000 of camera" in answer.text


def test_coverage_is_that_of_the_camera_asked_about() -> None:
    memory = memory_of()
    watch(memory, [0.0, 1.0, 2.0], "front")
    watch(memory, [100.0, 101.0], "rear")
    assert memory.ask(QUESTION, camera="front", since=0.5).covered_until == 2.0
    assert memory.ask(QUESTION, camera="rear").covered_since == 100.0
    unknown = memory.ask(QUESTION, camera="mast")
    assert unknown.verdict is Verdict.NOT_COVERED
    assert "camera = 'mast'" in unknown.text and "of front, rear" in unknown.text


def test_the_future_is_not_covered_and_does_not_count() -> None:
    memory = memory_of()
    watch(memory, [0.0, 1.0, 2.0])
    assert memory.ask(QUESTION, until=1e6).covered_share == 1.0
    assert memory.ask(QUESTION, since=50.0).verdict is Verdict.NOT_COVERED


def test_a_cleared_memory_begins_anew() -> None:
    memory = memory_of(4.0)
    watch(memory, [0.0, 1.0])
    memory.clear()
    assert memory.ask(QUESTION).verdict is Verdict.NOT_COVERED
    watch(memory, [50.0, 51.0])
    assert memory.ask(QUESTION).covered_share == 1.0


def test_the_words_that_nothing_is_remembered_reach_a_listener() -> None:
    heard: list[str] = []
    answer = memory_of().ask(QUESTION, on_token=heard.append)
    assert "".join(heard) == answer.text


def test_confidence_is_the_geometric_mean_of_the_tokens_and_marks_weak_answers() -> None:
    memory = memory_of()
    watch(memory, [0.0, 1.0, 2.0])
    answer = memory.ask(QUESTION)
    assert 0.0 < answer.confidence < 1.0
    strict = memory.ask(QUESTION, min_confidence=1.0)
    assert strict.text == answer.text and strict.verdict is Verdict.NOT_SEEN


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), min_size=1), st.floats(0, 100), st.floats(0.5, 50))
def test_the_share_is_that_of_a_fine_grid(spans, since, length) -> None:
    until = since + length
    overlapping = [(first, first + more) for first, more in spans if first <= until and first + more >= since]
    if not overlapping:
        return
    grid = since + (np.arange(20000) + 0.5) / 20000 * length
    near = np.zeros(len(grid), bool)
    for first, last in overlapping:
        near |= (grid >= first - COVERED_SECONDS) & (grid <= last + COVERED_SECONDS)
    assert covered_share(np.array(overlapping), since, until) == pytest.approx(near.mean(), abs=1e-3 * len(overlapping))
