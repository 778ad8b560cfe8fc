# SPDX-License-Identifier: Apache-2.0
"""The demo's report: scored answers, accounted frames, and its text in the terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rich.console import Console

from ros_kvstream.commands.demo_report import (
    frames_report,
    is_correct,
    latency_report,
    question_report,
    show,
    show_reply,
)
from ros_kvstream.patrol.question_plan import PlannedQuestion

STAMPS = [100.0, 101.0, 102.0, 103.0]
LATENCY = ("queue_ms", "flush_ms", "retrieval_ms", "prefill_ms", "first_token_ms", "decode_ms", "total_ms")


def reply(answer: str = "red", *, expected: str | None = "red", asked_at: float = 101.0, success: bool = True,
          goal: Any = None) -> Any:  # fmt: skip
    def stamp(seconds: float) -> SimpleNamespace:
        return SimpleNamespace(sec=int(seconds), nanosec=round(seconds % 1 * 1e9))

    expert = {"experts": ["internal"], "ranks": [1], "scores": [2.0]}
    frame = SimpleNamespace(stamp=stamp(100.5), camera="front", score=0.5, **expert)
    response = SimpleNamespace(
        success=success, message="" if success else "busy", answer=answer if success else "", asked_at=stamp(asked_at),
        evidence=[frame] if success else [],
        has_goal=success and goal is not None, goal=goal, latency=SimpleNamespace(**dict.fromkeys(LATENCY, 12.0)),
    )  # fmt: skip
    planned = PlannedQuestion("what colour was the cone?", 1, 2, "colour" if expected else "", expected, (100.0,))
    return SimpleNamespace(planned=planned, response=response)


def test_an_answer_is_correct_wrong_or_not_scored() -> None:
    assert is_correct(reply("red"), STAMPS) is True
    assert is_correct(reply("The RED."), STAMPS) is True
    assert is_correct(reply("red cone"), STAMPS) is False
    assert is_correct(reply("blue"), STAMPS) is False
    assert is_correct(reply(success=False), STAMPS) is False
    assert is_correct(reply("red", asked_at=102.0), STAMPS) is True
    assert is_correct(reply("red", asked_at=103.0), STAMPS) is None
    assert is_correct(reply("red", expected=None), []) is None


def test_a_question_has_exactly_the_documented_keys() -> None:
    entry = question_report(reply(), True, True)
    assert list(entry) == ["question", "expected", "answer", "correct", "asked_at", "kind", "left_window", "evidence"]
    assert entry["evidence"] == [{"stamp": 100.5, "camera": "front", "score": 0.5}]
    assert question_report(reply(success=False), False, True)["message"] == "busy"


def goal_at(x: float, y: float, frame_id: str = "map") -> Any:
    pose = SimpleNamespace(position=SimpleNamespace(x=x, y=y, z=0.0))
    return SimpleNamespace(header=SimpleNamespace(frame_id=frame_id), pose=pose)


def test_the_goal_of_an_answer_is_reported_and_shown_where_it_is_known() -> None:
    there = reply(goal=goal_at(1.5, -2.25))
    assert question_report(there, True, True)["goal"] == {"frame_id": "map", "position": [1.5, -2.25, 0.0]}
    assert "goal" not in question_report(reply(), True, True)
    assert "goal: x 1.50 m, y -2.25 m in map" in shown(there)
    assert "goal" not in shown(reply())


def test_evidence_is_shown_best_first_whether_it_was_retrieved_or_is_in_the_arena() -> None:
    answered = reply()
    held = SimpleNamespace(stamp=SimpleNamespace(sec=100, nanosec=0), camera="rear", score=0.25, experts=[], ranks=[],
                           scores=[])  # fmt: skip
    answered.response.evidence.insert(0, held)
    text = shown(answered)
    assert text.index("0.0 s rear 25% of the attention") < text.index("0.5 s front 0.5000: internal #1 (2.00)")


def test_frames_that_never_reached_the_node_count_as_dropped() -> None:
    stats = SimpleNamespace(frames_published=97, frames_seen=90, frames_kept=60, frames_gated=30,
                            drop_causes=["queue", "sequence_gap"], drop_counts=[5, 2])  # fmt: skip
    frames = frames_report(100, stats)
    assert frames["dropped"] == {"queue": 5, "sequence_gap": 2, "not_received": 3}
    assert frames["published"] == frames["seen"] + sum(frames["dropped"].values())


def test_latency_is_of_answered_questions_only() -> None:
    assert latency_report([reply(), reply(success=False)])["total_ms"] == {"median": 12.0, "max": 12.0}
    assert latency_report([reply(success=False)]) == {}


def shown(*replies: Any, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    entries = [question_report(one, is_correct(one, STAMPS), True) for one in replies]
    for one, entry in zip(replies, entries, strict=True):
        show_reply(console, one, entry, 100.0, 0.5)
    memory = {"budget_bytes": 1 << 20, "used_bytes": 1 << 19, "peak_bytes": 1 << 20, "process_bytes": 300 << 20}
    frames = {"published": 5, "seen": 3, "kept": 2, "gated": 1, "dropped": {"queue": 2, "encoding": 0}}
    show({"questions": entries, "memory": memory, "frames": frames, "latency": latency_report(replies),
          "versions": {"model": "tiny (untrained)"}}, console)  # fmt: skip
    return console.export_text()


def test_the_terminal_shows_answers_evidence_and_statistics() -> None:
    text = shown(reply("red"), reply("blue"), reply(success=False))
    for part in ("what colour was the cone?", "✓ red", "✗ blue expected: red", "no answer: busy",
                 "last seen 1.0 s earlier", "0.5 s front 0.5000: internal #1 (2.00)", "1 of 3 correct",
                 "3 were about frames that had left a sliding window",
                 "0.500 of 1.000 MiB used", "5 published = 3 seen + 2 dropped (queue 2)", "2 kept + 1 gated",
                 "12.0 ms", "tiny (untrained)"):  # fmt: skip
        assert part in " ".join(text.split()), part
    assert max(len(line) for line in text.splitlines()) <= 100


def test_markup_in_an_answer_is_only_text() -> None:
    assert "[red]x[/blue]" in shown(reply("[red]x[/blue]"))


def test_a_recording_with_unknown_answers_is_not_scored() -> None:
    text = shown(reply("red", expected=None))
    assert "→ red" in text and "the correct answers are unknown" in text and "✗" not in text
