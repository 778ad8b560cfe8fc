# SPDX-License-Identifier: Apache-2.0
"""Accuracy on patrol streams: the shared tally, and the benchmarks model, policies and retrieval that use it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from support.tiny_models import cheap_vision, qwen2_5_vl

from benchmarks import model as model_benchmark
from benchmarks import policies as policy_benchmark
from benchmarks.accuracy import (
    UNTIMED_SECONDS,
    EncodedModel,
    Stream,
    accuracy,
    ask_all,
    budget_for_slots,
    by_when,
    intervals,
    make_stream,
    mixed_streams,
    trained_seconds,
)
from benchmarks.model import default_plan, full_cache, summarise
from benchmarks.policies import Trial, run_trials
from benchmarks.retrieval import by_age, measure_bias, recall, spearman, static_scene, wilson
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import KINDS, Question
from ros_kvstream.records import Answer, FrameEvidence, LatencyBreakdown, MemoryStats
from ros_kvstream.settings import MemorySettings, ModelSettings, QuantizedSettings, RetrievalSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory
from training.batch import ChatLayout, make_batch
from training.forward import loss_and_right
from training.mix import mixed_stream


@pytest.fixture(scope="module")
def tiny() -> VideoLanguageModel:
    return load_model(ModelSettings(path="tiny", device="cpu"))


@pytest.fixture(scope="module")
def small() -> VideoLanguageModel:
    return qwen2_5_vl(layers=1)


class Parrot:
    """A memory that gives prepared answers."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = iter(answers)

    def ask(self, text: str) -> Answer:
        return next(self._answers)


def answer(text: str, stamp: float = 4.5, ranks: dict[str, int] | None = None) -> Answer:
    seen = (FrameEvidence(3, stamp, stamp, "camera", 0.1, ranks=ranks or {}),)
    return Answer("?", text, seen, LatencyBreakdown(), MemoryStats(), asked_at=20.0)


def lines_of(question: Question, *answers: Answer) -> list[Any]:
    return ask_all(Parrot(*answers), Stream("s", [], [question] * len(answers)))  # type: ignore[arg-type]


# -- the tally --------------------------------------------------------------------------------------------------------


def test_only_the_expected_words_are_right_and_shares_come_with_intervals() -> None:
    question = Question("what colour was the box?", "red", "colour", "before", (1.0,))
    lines = lines_of(question, *map(answer, ("red", " red ", "blue", "red box")))
    assert [line["correct"] for line in lines] == [True, True, False, False]
    assert by_when(lines) == {"now": 0.0, "before": 0.5} and accuracy(lines, tasks=("where",)) == 0.0
    (low, high), *others = intervals(lines).values()
    assert 0 <= low < 0.5 < high <= 1 and not others


def test_evidence_counts_as_retrieved_only_where_an_expert_ranked_it() -> None:
    question = Question("what colour was the cone?", "red", "colour", "before", (4.0, 4.5))
    lines = lines_of(question, answer("red", ranks={"internal": 1}), answer("blue"))
    assert recall(lines) == 0.5 and recall([]) == 0.0
    assert by_age(lines) == {"16": {"accuracy": 0.5, "n": 2.0}}


def test_equal_seeds_give_equal_streams(tiny: VideoLanguageModel) -> None:
    (one,), (same,), (other,) = (list(mixed_streams(tiny, 6, 1, 3, seed)) for seed in (1, 1, 2))
    assert one.name == same.name != other.name and one.questions == same.questions
    assert all(np.array_equal(a.picture, b.picture) for a, b in zip(one.frames, same.frames, strict=True))


@pytest.mark.parametrize("quantized", [None, QuantizedSettings(mode="on")])
def test_a_budget_for_slots_holds_just_those(small: VideoLanguageModel, quantized: QuantizedSettings | None) -> None:
    memory = MemorySettings(budget_mib=budget_for_slots(small, 100, 40, quantized), max_question_tokens=32,
                            max_answer_tokens=8)  # fmt: skip
    settings = StreamSettings(memory=memory, quantized=quantized or QuantizedSettings())
    assert 100 <= VideoMemory(settings, small).stats().slots <= 110


# -- benchmark model --------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_memory_answers_as_the_batched_pass_of_the_training_does(tiny: VideoLanguageModel) -> None:
    random, layout = np.random.default_rng(77), ChatLayout(tiny.tokenizer)  # type: ignore[attr-defined]
    agreed = answered = 0
    for _ in range(3):
        world = mixed_stream(48, 8, 3000.0, random)
        stream = make_stream(world, 16)
        lines = full_cache(tiny, stream)
        batch = make_batch(layout, [world], [list(stream.questions)], [0])
        _, _, right = loss_and_right(tiny.network, batch)  # type: ignore[attr-defined]
        agreed += sum(mark == line["correct"] for mark, line in zip(right[0].tolist(), lines, strict=True))
        answered += sum(line["correct"] for line in lines)
    assert agreed == 48
    assert answered >= 40


def test_unknown_words_get_a_sensible_answer(tiny: VideoLanguageModel) -> None:
    stream = make_stream(mixed_stream(24, 4, 3000.0, np.random.default_rng(5)), 0)
    texts = ("where was the zebra?", "qwertz uiop asdf?", "what colour was the helicopter?", "¿dónde está?", "🤖?")
    asked = [Question(text, "i do not know", "unknown", "before", ()) for text in texts]
    assert sum(line["correct"] for line in full_cache(tiny, replace(stream, questions=asked))) >= 4


def test_figures_count_training_lengths_for_kinds_and_every_length_beside() -> None:
    lines = []
    for text, frames, seconds in (("red", 24, 3.0), ("blue", 24, 30.0), ("blue", 400, 3.0)):
        (line,) = lines_of(Question("?", "red", "colour", "before", (20.0 - seconds,)), answer(text))
        lines.append({**line, "frames": frames})
    figures = summarise(lines, longest=96)
    assert figures["kinds"] == {"colour": {"accuracy": 0.5, "chance": 1.0, "n": 2}}
    assert figures["by_length"] == {"24": 0.5, "400": 0.0}
    assert figures["by_age"] == {"0": 1.0, "15": 0.0}


def test_the_plan_goes_to_sixteen_times_the_longest_training_length() -> None:
    plan = default_plan(96)
    assert {96, 192, 384, 1536} <= set(plan) and max(plan) == 16 * 96


def test_the_model_benchmark_reports_every_kind_and_prints_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_benchmark, "default_plan", lambda longest: {24: 4})
    console = Console(record=True)
    report = model_benchmark.run(argparse.Namespace(model="tiny", questions=22, quick=False), console)
    model_benchmark.show(report, console)
    assert set(report["kinds"]) <= set(KINDS) and len(report["kinds"]) >= 9
    assert all(0 <= row["chance"] <= 1 and row["n"] > 0 for row in report["kinds"].values())
    printed = console.export_text()
    assert "colour" in printed and "by stream length" in printed


# -- benchmark policies -----------------------------------------------------------------------------------------------


def test_a_trial_never_holds_more_frame_slots_than_its_share(
    small: VideoLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories: list[VideoMemory] = []
    monkeypatch.setattr(VideoMemory, "close", lambda self: memories.append(self))  # closing would empty it
    stream = make_stream(PatrolWorld(PatrolSettings(seed=3, frames=24, size=56)), 4)
    slots = round(0.25 * EncodedModel(small, stream).stream_tokens)
    answers = run_trials(small, stream, [Trial("infinipot_v", share=0.25), Trial("sliding_window", share=0.25)])
    assert [len(lines) for lines in answers] == [4, 4]
    for memory in memories:
        assert memory.arena.plan.frame_slots == slots and memory.arena.compactions > 0
        assert memory.arena.frame_slots_used <= slots


def test_the_policies_report_has_every_policy_at_every_share(small: VideoLanguageModel) -> None:
    console = Console(record=True, width=160)
    part = policy_benchmark.compare(small, 32, 1, 2, ["recent", "uniform"], console)
    assert part["frames"] == 32 and sum(part["asked"].values()) == 2
    assert set(part["policies"]) == {"recent", "uniform"}
    for row in (part["full"], *part["policies"]["recent"].values()):
        assert set(row) == {"now", "before"}
    assert set(part["policies"]["uniform"]) == {"0.25", "0.125", "0.0625"}
    policy_benchmark.show({"in_range": part}, console)
    assert "sliding" not in console.export_text()


# -- benchmark retrieval ----------------------------------------------------------------------------------------------


def test_spearman_is_that_of_the_textbook() -> None:
    assert spearman(np.array([1.0, 2.0, 5.0])) == pytest.approx(1.0)
    assert spearman(np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    assert spearman(np.array([1.0, 1.0, 1.0])) == 0.0
    assert spearman(np.array([1.0, 3.0, 2.0, 3.0])) == pytest.approx(0.6324555)


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    assert wilson(9, 9) == pytest.approx([0.7008, 1.0], abs=1e-3)
    assert wilson(50, 100) == pytest.approx([0.4038, 0.5962], abs=1e-3)


def test_a_static_scene_differs_only_in_noise_and_in_its_needle() -> None:
    stream = static_scene(3, 20, 10)
    assert stream.questions[0].text.startswith("what colour was the ")
    smooth = [frame.picture.astype(float) for frame in stream.frames]
    apart = [np.abs(smooth[index] - smooth[0]).mean() for index in range(1, 20)]
    assert max(apart[:9] + apart[10:]) < 10 < apart[9]


def test_bias_is_measured_for_every_expert_and_the_plain_one() -> None:
    model = cheap_vision(qwen2_5_vl(layers=2, limit=2048))
    bias = measure_bias(model, RetrievalSettings(external="tiny", top_k=2), seeds=1, frames=24)
    assert set(bias) == {"internal", "external", "fused", "mean_key"}
    assert all(0 <= value <= 1 for value in bias.values())


@pytest.mark.parametrize(("tokens_per_second", "seconds"), [(2.0, 4064.0), (0.0, UNTIMED_SECONDS)])
def test_trained_seconds_follow_from_positions_that_are_times(tokens_per_second: float, seconds: float) -> None:
    model: Any = SimpleNamespace(tokens_per_second=tokens_per_second, position_limit=8192)
    assert trained_seconds(model) == seconds
