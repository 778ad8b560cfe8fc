from __future__ import annotations

import pytest
from rich.console import Console
from support.tiny_models import qwen2_5_vl

from benchmarks import policies as policy_benchmark
from benchmarks.policy_trials import EncodedStream, Score, Trial, encode, frame_slots, run_trial
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import Question
from ros_kvstream.stream.memory import VideoMemory


@pytest.fixture(scope="module")
def model() -> VideoLanguageModel:
    return qwen2_5_vl()


@pytest.fixture(scope="module")
def stream(model: VideoLanguageModel) -> EncodedStream:
    return encode(model, PatrolWorld(PatrolSettings(seed=3, frames=24, size=56)), 4)


def test_a_trial_never_holds_more_frame_slots_than_its_share(
    model: VideoLanguageModel, stream: EncodedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories: list[VideoMemory] = []
    # Closing would empty it before it is looked at.
    monkeypatch.setattr(VideoMemory, "close", lambda self: memories.append(self))
    for policy in ("infinipot_v", "sliding_window"):
        run_trial(model, stream, Trial(policy, share=0.25))
        assert memories[-1].arena.plan.frame_slots == frame_slots(stream, 0.25)
        assert memories[-1].arena.compactions > 0
        assert memories[-1].arena.frame_slots_used <= frame_slots(stream, 0.25)


def test_every_question_is_counted_once_under_its_time(model: VideoLanguageModel, stream: EncodedStream) -> None:
    score = run_trial(model, stream, Trial("full", block_frames=4))
    assert sum(score.asked.values()) == len(stream.questions)
    assert all(score.right[when] <= score.asked[when] for when in score.asked)


def test_only_the_exact_answer_is_right() -> None:
    score = Score()
    question = Question("what colour was the box?", "red", "colour", "before", (1.0,))
    for answer in ("red", " red ", "blue", "red box"):
        score.add(question, answer)
    assert (score.right["before"], score.asked["before"]) == (2, 4)
    assert score.accuracy() == {"now": 0.0, "before": 0.5}


def test_the_report_has_every_policy_at_every_share(model: VideoLanguageModel) -> None:
    console = Console(record=True, width=160)
    part = policy_benchmark.compare(model, 32, 1, 2, ["recent", "uniform"], console)
    assert part["frames"] == 32
    assert set(part["policies"]) == {"recent", "uniform"}
    for row in (part["full"], *part["policies"]["recent"].values()):
        assert set(row) == {"now", "before"}
    assert set(part["policies"]["uniform"]) == {"0.25", "0.125", "0.0625"}
    policy_benchmark.show({"in_range": part}, console)
    assert "sliding" not in console.export_text()
