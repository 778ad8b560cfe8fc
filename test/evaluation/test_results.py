# SPDX-License-Identifier: Apache-2.0
"""Results on disk: what an interrupted evaluation leaves behind never gets in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.cell_run import RunResult
from ros_kvstream.evaluation.results import ResultsFolder


def result(key: str, answers: list[str]) -> RunResult:
    lines: list[dict[str, Any]] = [
        {"run": key, "question": str(i), "answer": answer, "expected": {"exact": "red"}, "correct": answer == "red"}
        for i, answer in enumerate(answers)
    ]
    return RunResult({"run": key, "status": "done"}, lines)


def test_finished_runs_are_known_again_with_their_questions(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    folder.add(result("b", ["red", "blue"]))
    folder.add(result("a", ["red"]))
    again = ResultsFolder(tmp_path)
    assert again.done == {"a", "b"}
    assert [(line["run"], line["correct"]) for line in again.lines(["a", "b"])] == [
        ("a", True), ("b", True), ("b", False),
    ]  # fmt: skip
    assert [run["run"] for run in again.runs(["b", "c", "a"])] == ["b", "a"]


def test_questions_of_a_run_that_was_not_finished_are_taken_out(tmp_path: Path) -> None:
    ResultsFolder(tmp_path).add(result("a", ["red"]))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(json.dumps(result("b", ["red"]).lines[0]) + "\n" + '{"run": "b", "ques')
    folder = ResultsFolder(tmp_path)
    assert folder.done == {"a"}
    folder.add(result("b", ["blue", "red"]))
    assert [line["answer"] for line in ResultsFolder(tmp_path).lines(["b"])] == ["blue", "red"]


def test_a_run_whose_record_was_cut_short_is_not_done(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    folder.add(result("a", ["red"]))
    folder.add(result("b", ["red"]))
    runs = tmp_path / "runs.jsonl"
    runs.write_bytes(runs.read_bytes()[:-9])
    assert ResultsFolder(tmp_path).done == {"a"}


def test_answers_are_scored_again_when_they_are_read(tmp_path: Path) -> None:
    ResultsFolder(tmp_path).add(result("a", ["red", "blue"]))
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text().replace('"exact": "red"', '"exact": "blue"'))
    assert [line["correct"] for line in ResultsFolder(tmp_path).lines(["a"])] == [False, True]


def test_a_broken_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path) -> None:
    ResultsFolder(tmp_path).add(result("a", ["red"]))
    path = tmp_path / "results.jsonl"
    path.write_text("{oops\n" + path.read_text())
    with pytest.raises(KvStreamError, match=r"results.jsonl, line 1"):
        ResultsFolder(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvStreamError, match="--output"):
        ResultsFolder(tmp_path / "file" / "folder")
