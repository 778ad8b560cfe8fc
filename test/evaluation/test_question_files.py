# SPDX-License-Identifier: Apache-2.0
"""Question files: YAML and JSON Lines give the same questions, and every mistake is named with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.question_files import EvaluationQuestion, read_questions
from ros_kvstream.evaluation.scoring import Choice, Exact, Number

ENTRIES = [
    {"id": "cone", "at": 31.5, "text": "what colour was the cone?", "expected": "red", "evidence": [12.5, 12.0]},
    {"at": 40, "text": "which room?", "expected": {"choice": "B", "choices": ["hall", "yard"]}, "kind": "now",
     "camera": "front", "since": 2, "until": 39, "task": "rooms", "bag": "kitchen"},
    {"text": "how many?", "expected": {"number": 3, "tolerance": 1}, "evidence": 39.5, "at": 40},
]  # fmt: skip


def write(folder: Path, kind: str, entries: object) -> Path:
    path = folder / f"questions.{kind}"
    if kind == "jsonl":
        path.write_text("\n\n".join(json.dumps(entry) for entry in entries) + "\n")  # type: ignore[attr-defined]
    else:
        path.write_text(yaml.safe_dump(entries) if kind == "yaml" else json.dumps(entries))
    return path


@pytest.mark.parametrize("kind", ["yaml", "json", "jsonl"])
def test_all_three_kinds_of_file_give_the_same_questions(kind: str, tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path, kind, ENTRIES))
    first, second, third = questions
    assert (first.name, first.at, first.expected, first.evidence) == ("cone", 31.5, Exact("red"), (12.0, 12.5))
    assert second == EvaluationQuestion(second.name, 40.0, "which room?", Choice("B", ("hall", "yard")), (), "now",
                                        "front", 2.0, 39.0, "stream", "rooms", "kitchen")  # fmt: skip
    assert third.expected == Number(3, 1)
    assert len({question.name for question in questions}) == 3


def test_now_and_before_follow_from_the_evidence_where_the_file_does_not_say(tmp_path: Path) -> None:
    kinds = [question.kind for question in read_questions(write(tmp_path, "yaml", ENTRIES))]
    assert kinds == ["before", "now", "now"]


def test_a_question_without_a_time_is_asked_at_the_end(tmp_path: Path) -> None:
    (question,) = read_questions(write(tmp_path, "yaml", [{"text": "last?", "expected": "yes"}]))
    assert math.isinf(question.at)


def test_header_stamps_are_taken_as_they_are_and_stream_times_from_the_first_frame(tmp_path: Path) -> None:
    document = {"clock": "header", "questions": [{"at": 1e9, "text": "now?", "expected": "a b"}]}
    (header,) = read_questions(write(tmp_path, "yaml", document))
    assert header.stamp(header.at, 999.0) == 1e9
    (stream,) = read_questions(write(tmp_path, "json", [{"at": 3, "text": "now?", "expected": "a b"}]))
    assert stream.stamp(stream.at, 999.0) == 1002.0


def test_choices_are_listed_in_what_is_asked_unless_the_text_is_the_whole_prompt() -> None:
    question = EvaluationQuestion("q", 1.0, "which room?", Choice("A", ("hall", "yard")))
    assert question.prompt.splitlines()[:3] == ["which room?", "A. hall", "B. yard"]
    assert EvaluationQuestion("q", 1.0, "which?", Choice("A", ("x", "y")), whole_prompt=True).prompt == "which?"
    assert EvaluationQuestion("q", 1.0, "which?", Exact("hall")).prompt == "which?"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "holds no question"), ("a text", "must be a list"), ({"clock": "stream"}, "questions"),
        ({"clock": "wall", "questions": []}, "clock = 'wall'"), ({"questions": [], "extra": 1}, "extra"),
        (["what?"], "question 1: must be a mapping"), ([{"text": "a"}], "question 1: lacks expected"),
        ([ENTRIES[0], {**ENTRIES[0], "id": "b", "colour": 1}], "question 2: unknown colour"),
        ([{**ENTRIES[0], "text": " "}], "text is empty"), ([{**ENTRIES[0], "at": -1}], "at = -1"),
        ([{**ENTRIES[0], "at": "noon"}], "at = 'noon'"), ([{**ENTRIES[0], "kind": "later"}], "kind = 'later'"),
        ([{**ENTRIES[0], "evidence": [50]}], "evidence at 50 s is newer"),
        ([ENTRIES[0]] * 2, "id = 'cone' is there twice"), ({"clock": "x", "questions": []}, "clock = 'x'"),
        ([{**ENTRIES[0], "until": -5}], "until = -5: must be seconds, 0 or more"),
        ([{**ENTRIES[0], "evidence": "x"}], "evidence = 'x'"),
        ([{**ENTRIES[0], "expected": {}}], "question 1: expected"),
        ([{**ENTRIES[0], "near": [0, 0, 0]}], "near and radius go together"),
        ([{**ENTRIES[0], "radius": 2}], "near and radius go together"),
        ([{**ENTRIES[0], "near": [0, 0], "radius": 2}], "near = \\[0, 0\\]: must be a list of 3"),
        ([{**ENTRIES[0], "near": [0, 0, 0], "radius": -1}], "radius = -1: must be metres above 0"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_file_and_question(entries: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        read_questions(write(tmp_path, "yaml", entries))
    assert "questions.yaml" in str(caught.value)


def test_a_broken_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(ENTRIES[0]) + "\n{oops\n")
    with pytest.raises(SettingsError, match="line 2: is not JSON"):
        read_questions(path)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="missing.yaml"):
        read_questions(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"binary.yaml: is not UTF-8"):
        read_questions(tmp_path / "binary.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(SettingsError, match=r"broken.yaml: is not YAML"):
        read_questions(tmp_path / "broken.yaml")


def test_a_question_can_be_limited_to_a_place(tmp_path: Path) -> None:
    (question,) = read_questions(write(tmp_path, "yaml", [{**ENTRIES[0], "near": [1, 2.5, 0], "radius": 3}]))
    assert (question.near, question.radius) == ((1.0, 2.5, 0.0), 3.0)
