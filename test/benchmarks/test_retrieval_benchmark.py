from __future__ import annotations

import numpy as np
import pytest
from support.tiny_models import cheap_vision, qwen2_5_vl

from benchmarks.retrieval_bias import measure_bias, spearman, static_scene
from benchmarks.retrieval_trials import Tally
from ros_kvstream.patrol.questions import Question
from ros_kvstream.records import Answer, FrameEvidence, LatencyBreakdown, MemoryStats
from ros_kvstream.settings import RetrievalSettings


def test_spearman_is_that_of_the_textbook():
    assert spearman(np.array([1.0, 2.0, 5.0])) == pytest.approx(1.0)
    assert spearman(np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    assert spearman(np.array([1.0, 1.0, 1.0])) == 0.0
    assert spearman(np.array([1.0, 3.0, 2.0, 3.0])) == pytest.approx(0.6324555)


def test_a_static_scene_differs_only_in_noise_and_in_its_needle():
    pictures, question = static_scene(3, 20, 10)
    assert question.startswith("what colour was the ")
    smooth = [picture.astype(float) for picture in pictures]
    apart = [np.abs(smooth[index] - smooth[0]).mean() for index in range(1, 20)]
    assert max(apart[:9] + apart[10:]) < 10 < apart[9]


def test_a_tally_counts_answers_and_evidence_brought_back():
    tally = Tally()
    question = Question("what colour was the cone?", "red", "colour", "before", (4.0, 4.5))

    def answer(text: str, stamp: float, ranks: dict[str, int]) -> Answer:
        evidence = (FrameEvidence(3, stamp, stamp, "camera", 0.1, ranks=ranks),)
        return Answer(question.text, text, evidence, LatencyBreakdown(), MemoryStats(), asked_at=20.0)

    tally.add(question, answer("red", 4.5, {"internal": 1}))
    tally.add(question, answer("blue", 4.5, {}))
    assert tally.accuracy("before") == tally.accuracy("recall") == 0.5
    assert tally.recall == 0.5
    assert tally.by_age == {16: [True, False]}


def test_bias_is_measured_for_every_expert_and_the_plain_one():
    model = cheap_vision(qwen2_5_vl(layers=2, limit=2048))
    bias = measure_bias(model, RetrievalSettings(external="tiny", top_k=2), seeds=1, frames=24)
    assert set(bias) == {"internal", "external", "fused", "mean_key"}
    assert all(0 <= value <= 1 for value in bias.values())
