# SPDX-License-Identifier: Apache-2.0
"""A run: frames on their stamps, questions at their times, everything recorded, refusals told."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.tiny_models import cheap_vision, qwen2_5_vl

from ros_kvstream.errors import RecordingError
from ros_kvstream.evaluation.cell_run import UNTRAINED, run_job, share_budget_mib
from ros_kvstream.evaluation.episodes import Episode
from ros_kvstream.evaluation.grid import Cell, Job
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.evaluation.results import score_again
from ros_kvstream.evaluation.scoring import Pattern
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.recordings.frame_sources import FrameStore, StreamFrame
from ros_kvstream.stream.memory import VideoMemory

TEXT = (("memory.max_question_tokens", 16), ("memory.max_answer_tokens", 4), ("gate.mode", "off"))
CELL = Cell("random", "recent", 0.5, overrides=TEXT)
ANYTHING = Pattern(".*")


@pytest.fixture(scope="module")
def model() -> VideoLanguageModel:
    return cheap_vision(qwen2_5_vl(layers=2))


@dataclass(frozen=True)
class Pictures:
    """Random pictures, one a second, of one or several cameras."""

    frames_: int = 20
    cameras: tuple[str, ...] = ("camera",)
    name: str = "pictures"

    def data(self) -> dict[str, Any]:
        return {"frames": self.frames_}

    def count(self) -> int:
        return self.frames_

    def first_stamp(self) -> float:
        return 100.0

    def frames(self, note: Any) -> Iterator[StreamFrame]:
        for index in range(self.frames_):
            pixels = np.random.default_rng(index).integers(0, 256, (56, 56, 3), dtype=np.uint8)
            yield StreamFrame(100.0 + index, self.cameras[index % len(self.cameras)], pixels)


def ask(at: float, name: str = "q", **more: Any) -> EvaluationQuestion:
    return EvaluationQuestion(name, at, "what colour is the cone ?", ANYTHING, **more)


def test_a_question_is_asked_after_the_last_frame_that_is_not_newer(model: VideoLanguageModel) -> None:
    questions = (ask(4.0, "on"), ask(3.9, "before"), ask(0.0, "first"), ask(math.inf, "end"), ask(19.9, "late"))
    result = run_job(Job(CELL, Episode(Pictures(), questions)), model, FrameStore())
    seen = {line["question"]: (line["frames_before"], line["asked_at"]) for line in result.lines}
    assert seen == {"first": (1, 100.0), "before": (4, 103.0), "on": (5, 104.0), "late": (20, 119.0),
                    "end": (20, 119.0)}  # fmt: skip
    assert result.run["status"] == "done" and result.run["frames"] == 20


def test_answers_and_evidence_are_those_of_the_memory_itself(model: VideoLanguageModel) -> None:
    result = run_job(Job(CELL, Episode(Pictures(), (ask(9.0), ask(math.inf, "end")))), model, FrameStore())
    memory = VideoMemory(CELL.settings(0.5), model)
    for index, frame in enumerate(Pictures().frames(None)):
        memory.observe(frame.picture, frame.stamp, frame.camera)
        if index in (9, 19):
            answer, line = memory.ask("what colour is the cone ?"), result.lines[index // 10]
            assert line["answer"] == answer.text
            assert [e["stamp"] for e in line["evidence"]] == [e.stamp for e in answer.evidence]


def test_a_line_is_plain_json_and_can_be_scored_again(model: VideoLanguageModel) -> None:
    result = run_job(Job(CELL, Episode(Pictures(), (ask(math.inf),))), model, FrameStore())
    (line,) = json.loads(json.dumps(result.lines, allow_nan=False))
    assert line["correct"] is True and score_again(line) == line
    assert score_again({**line, "expected": {"exact": "something else"}})["correct"] is False
    assert json.loads(json.dumps(result.run, allow_nan=False)) == result.run


def test_frames_of_one_camera_or_span_alone_can_be_asked_about(model: VideoLanguageModel) -> None:
    source = Pictures(12, ("front", "rear"))
    cell = replace(CELL, policy="full")
    questions = (ask(math.inf, "rear", camera="rear"), ask(math.inf, "span", since=2.0, until=4.0))
    rear, span = run_job(Job(cell, Episode(source, questions)), model, FrameStore()).lines
    assert {frame["camera"] for frame in rear["evidence"]} == {"rear"}
    assert {frame["stamp"] for frame in span["evidence"]} <= {102.0, 103.0, 104.0}


def test_a_question_that_cannot_be_asked_is_an_error_of_its_line_alone(model: VideoLanguageModel) -> None:
    questions = (ask(30.0, "too late"), ask(5.0, "nobody", camera="left"), ask(5.0, "fine"),
                 EvaluationQuestion("long", 6.0, "cone " * 99, ANYTHING))  # fmt: skip
    lines = {line["question"]: line for line in run_job(Job(CELL, Episode(Pictures(), questions)), model,
                                                        FrameStore()).lines}  # fmt: skip
    assert "stream ended 11.0 s before" in lines["too late"]["error"] and lines["too late"]["correct"] is None
    assert lines["long"]["correct"] is False and "tokens" in lines["long"]["error"]
    assert lines["fine"]["error"] == "" and lines["fine"]["answer"] is not None


def test_values_that_are_not_finite_refuse_an_answer_and_a_run(
        model: VideoLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, encode = model.forward, model.encode_frames
    job = Job(CELL, Episode(Pictures(), (ask(5.0),)))

    def without_values(*arguments: Any, logits: bool, **options: Any) -> Any:
        found = forward(*arguments, logits=logits, **options)
        if logits and found is not None:
            model.require_finite(found * math.nan, "language model")
        return found

    monkeypatch.setattr(model, "forward", without_values)
    result = run_job(job, model, FrameStore())
    assert result.run["status"] == "done" and result.lines[0]["correct"] is False
    assert "language model of random" in result.lines[0]["error"] and "dtype = float32" in result.lines[0]["error"]
    monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(model, "encode_frames", lambda frames: [
        replace(tokens, embeddings=tokens.embeddings * math.nan) for tokens in encode(frames)])
    result = run_job(job, model, FrameStore())
    assert result.run["status"] == "refused" and "dtype = float32" in result.run["reason"] and not result.lines
    assert json.dumps(result.run, allow_nan=False)


def test_a_full_cache_that_reaches_its_cap_is_a_refused_run_with_its_reason(model: VideoLanguageModel) -> None:
    cell = replace(CELL, policy="full", budget_mib=0.12)
    result = run_job(Job(cell, Episode(Pictures(200), (ask(math.inf),))), model, FrameStore())
    assert result.run["status"] == "refused" and "full" in result.run["reason"] and result.lines == []
    small = run_job(Job(replace(CELL, budget_mib=0.01), Episode(Pictures(), (ask(1.0),))), model, FrameStore())
    assert small.run["status"] == "refused" and "at least" in small.run["reason"]


@pytest.mark.parametrize(
    ("error", "said"),
    [(RecordingError("bag = 'x' has no image topic"), "bag = 'x' has no image topic"),
     (PermissionError("denied"), "pictures: cannot be read: denied"),
     (None, "pictures: holds no readable frame. cut off")],
)  # fmt: skip
def test_a_stream_that_cannot_be_read_is_a_refused_run_with_its_reason(
    error: Exception | None, said: str, model: VideoLanguageModel
) -> None:
    class Broken(Pictures):
        def frames(self, note: Any) -> Iterator[StreamFrame]:
            note("cut off")
            if error is not None:
                yield next(super().frames(note))
                raise error

    for cell in (CELL, Cell("random", "recent", budget_share=0.5, overrides=TEXT)):
        result = run_job(Job(cell, Episode(Broken(), (ask(0.0), ask(math.inf, "end")))), model, FrameStore())
        assert (result.run["status"], result.run["reason"], result.lines) == ("refused", said, [])


@pytest.mark.parametrize("archive", [0.0, 1.0])
def test_a_share_of_one_just_holds_the_whole_stream(model: VideoLanguageModel, archive: float) -> None:
    cell = Cell("random", "full", budget_share=1.0, archive_mib=archive, overrides=TEXT)
    episode = Episode(Pictures(64), (ask(math.inf),))
    result = run_job(Job(cell, episode), model, FrameStore())
    assert result.run["status"] == "done" and result.run["memory"]["frames_remembered"] == 64
    almost = run_job(Job(replace(cell, budget_share=0.95), episode), model, FrameStore())
    assert almost.run["status"] == "refused"


def test_a_smaller_share_holds_that_share_of_the_frames(model: VideoLanguageModel) -> None:
    cell = Cell("random", "recent", budget_share=0.25, overrides=(*TEXT, ("memory.keep_ratio", 0.5)))
    mib = share_budget_mib(cell, model, FrameStore(), Episode(Pictures(64), ()))
    memory = VideoMemory(cell.settings(mib), model)
    assert 64 <= memory.stats().slots <= 66  # 64 frames of 4 tokens, a quarter of 256


def test_the_trace_stays_small_and_ends_with_the_last_frame(model: VideoLanguageModel) -> None:
    seen: list[int] = []
    result = run_job(Job(CELL, Episode(Pictures(500), (ask(1.0),))), model, FrameStore(), seen.append)
    trace = result.run["trace"]
    assert 50 <= len(trace) <= 130 and trace[-1]["frames"] == 500 and sum(seen) == 500
    assert all(point["used_bytes"] <= result.run["budget_bytes"] for point in trace)


def test_every_cell_sees_the_same_frames(model: VideoLanguageModel) -> None:
    store, episode = FrameStore(), Episode(Pictures(), (ask(1.0),))
    cells = [replace(CELL, policy=policy) for policy in ("recent", "uniform", "infinipot_v")]
    digests = {run_job(Job(cell, episode), model, store).run["frames_digest"] for cell in cells}
    assert len(digests) == 1


def test_a_run_with_random_weights_says_so(model: VideoLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    job, store = Job(CELL, Episode(Pictures(2), (ask(101.0),))), FrameStore()
    assert run_job(job, model, store).run["notes"] == []
    monkeypatch.setattr(model, "trained", False)
    assert run_job(job, model, store).run["notes"] == [UNTRAINED]
