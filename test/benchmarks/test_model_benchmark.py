"""The model benchmark: answers of the product are those of the training's own pass; figures add up."""

from __future__ import annotations

import argparse
import io

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks import model as model_benchmark
from benchmarks.model import Outcome, ask_all, default_plan, summarise
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.patrol.mix import mixed_stream
from ros_kvstream.patrol.questions import KINDS, Question
from ros_kvstream.settings import ModelSettings
from training.batch import ChatLayout, make_batch
from training.forward import loss_and_right


@pytest.fixture(scope="module")
def model() -> VideoLanguageModel:
    return load_model(ModelSettings(path="tiny", device="cpu"))


@torch.no_grad()
def test_the_product_answers_as_the_batched_pass_of_the_training_does(model: VideoLanguageModel) -> None:
    random = np.random.default_rng(77)
    layout = ChatLayout(model.tokenizer)  # type: ignore[attr-defined]
    agreed, answered = 0, 0
    for _ in range(3):
        world = mixed_stream(48, 8, 3000.0, random)
        questions = world.questions(16)
        outcomes = ask_all(model, world, questions)
        _, _, right = loss_and_right(model.network, make_batch(layout, [world], [questions], [0]))  # type: ignore[attr-defined]
        agreed += sum(mark == outcome.right for mark, outcome in zip(right[0].tolist(), outcomes, strict=True))
        answered += sum(outcome.right for outcome in outcomes)
    assert agreed == 48
    assert answered >= 40


def test_unknown_words_get_a_sensible_answer(model: VideoLanguageModel) -> None:
    world = mixed_stream(24, 4, 3000.0, np.random.default_rng(5))
    texts = ("where was the zebra?", "qwertz uiop asdf?", "what colour was the helicopter?", "¿dónde está?", "🤖?")
    questions = [Question(text, "i do not know", "unknown", "before", ()) for text in texts]
    answers = [outcome.answer for outcome in ask_all(model, world, questions)]
    assert answers.count("i do not know") >= 4


def outcome(kind: str, right: bool, frames: int, age: float | None, when: str = "before") -> Outcome:
    question = Question("?", "red", kind, when, () if age is None else (0.0,))
    return Outcome(question, "red" if right else "blue", frames, age)


def test_figures_count_training_lengths_for_kinds_and_every_length_beside() -> None:
    cases = ((True, 24, 3.0), (False, 24, 30.0), (False, 400, 3.0))
    outcomes = [outcome("colour", right, frames, age) for right, frames, age in cases]
    figures = summarise(outcomes, longest=96)
    assert figures["kinds"] == {"colour": {"accuracy": 0.5, "chance": 1.0, "n": 2}}
    assert figures["by_length"] == {"24": 0.5, "400": 0.0}
    assert figures["by_age"] == {"0": 1.0, "15": 0.0}


def test_the_plan_goes_to_sixteen_times_the_longest_training_length() -> None:
    plan = default_plan(96)
    assert {96, 192, 384, 1536} <= set(plan) and max(plan) == 16 * 96


def test_the_command_reports_every_kind_and_prints_tables(
    model: VideoLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_benchmark, "default_plan", lambda longest: {24: 10})
    out = io.StringIO()
    console = Console(file=out)
    options = argparse.Namespace(model="tiny", questions=22, quick=False)
    report = model_benchmark.run(options, console)
    model_benchmark.show(report, console)
    assert set(report["kinds"]) <= set(KINDS) and len(report["kinds"]) >= 9
    assert all(0 <= row["chance"] <= 1 and row["n"] > 0 for row in report["kinds"].values())
    assert "colour" in out.getvalue() and "by stream length" in out.getvalue()
