# SPDX-License-Identifier: Apache-2.0
"""Results of an evaluation on disk, one JSON line per question and per run, from which it resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.cell_run import RunResult
from ros_kvstream.evaluation.scoring import read_expectation

QUESTIONS_FILE = "results.jsonl"
RUNS_FILE = "runs.jsonl"


class ResultsFolder:
    """Folder with results.jsonl (questions) and runs.jsonl (finished runs). One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        """Create the folder and remove the lines of interrupted runs."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._runs = {run["run"]: run for run in _read(folder / RUNS_FILE)}
            finished = [line for line in _read(folder / QUESTIONS_FILE) if line["run"] in self._runs]
            _replace(folder / RUNS_FILE, self._runs.values())
            _replace(folder / QUESTIONS_FILE, finished)
        except OSError as error:
            raise KvStreamError(f"--output {folder}: {error.strerror or error}") from error

    @property
    def done(self) -> frozenset[str]:
        """Keys of the finished runs."""
        return frozenset(self._runs)

    def add(self, result: RunResult) -> None:
        """Write a finished run: its questions first, so that a run in runs.jsonl has all of them."""
        _append(self.folder / QUESTIONS_FILE, result.lines)
        _append(self.folder / RUNS_FILE, [result.run])
        self._runs[result.run["run"]] = result.run

    def runs(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """Records of these runs, in this order."""
        return [self._runs[key] for key in keys if key in self._runs]

    def lines(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        """Question lines of these runs, scored again, in the order of the runs."""
        order = {key: index for index, key in enumerate(keys)}
        found = [line for line in _read(self.folder / QUESTIONS_FILE) if line["run"] in order]
        return [score_again(line) for line in sorted(found, key=lambda line: order[line["run"]])]


def score_again(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of the results with ``correct`` recomputed from the answer and the expectation."""
    if line["answer"] is None:
        return dict(line)
    return {**line, "correct": read_expectation(line["expected"]).right(line["answer"], line.get("goal"))}


def _read(path: Path) -> list[dict[str, Any]]:
    """Read every line; an incomplete last one is left out, any other broken one is an error."""
    if not path.is_file():
        return []
    raw = path.read_bytes().split(b"\n")
    lines = []
    for number, text in enumerate(raw, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            line["run"]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(raw):
                break
            raise KvStreamError(f"{path}, line {number}: is no result; move the file away to start over") from error
        lines.append(line)
    return lines


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(_encode(line) for line in lines))
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file atomically."""
    if not path.exists():
        return
    new = path.with_suffix(".new")
    new.write_bytes(b"".join(_encode(line) for line in lines))
    os.replace(new, path)


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False, ensure_ascii=False).encode() + b"\n"
