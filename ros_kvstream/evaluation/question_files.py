# SPDX-License-Identifier: Apache-2.0
"""Question files of `kvstream evaluate`, in YAML or JSON Lines; every error names its line or question.

Besides ``text`` and ``expected`` a question can have ``at`` (seconds; it is asked after the last frame that is not
newer), ``evidence`` (when the answer was in view), ``kind`` (now | before; derived from the evidence by default),
``camera``, ``since``, ``until``, ``near`` and ``radius`` (which frames it may look at), ``task`` (its group in the
report), ``bag`` (the recording that it is about) and ``id``. docs/evaluation.md shows a whole file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.scoring import LETTERS, Choice, Expectation, numbers, read_expectation

KINDS = ("now", "before")
"""Whether the newest frame holds the answer."""
CLOCKS = ("stream", "header")
"""Times in seconds after the first frame, or header stamps."""
NOW_SECONDS = 1.0
"""A question without a kind is about now when its evidence is at most this old."""
_KEYS = ("at", "bag", "camera", "evidence", "expected", "id", "kind", "near", "radius", "since", "task", "text",
         "until")  # fmt: skip


@dataclass(frozen=True)
class EvaluationQuestion:
    """One question of an evaluation, its time and its expected answer."""

    name: str
    """Name in results, unique within its stream."""
    at: float
    """Seconds; it is asked after the last frame that is not newer. Infinite: after the last frame."""
    text: str
    expected: Expectation
    evidence: tuple[float, ...] = ()
    """Times at which the answer was in view, seconds; empty: unknown."""
    kind: str = "before"
    camera: str = ""
    since: float = 0.0
    """Only frames from this time on; 0: unbounded."""
    until: float = 0.0
    clock: str = "stream"
    """Clock of all times, one of CLOCKS."""
    task: str = ""
    """Group in the report, such as a benchmark's task."""
    bag: str = ""
    """Name of the recording that it is about; empty: every one."""
    whole_prompt: bool = False
    """Whether the text is the complete prompt, without choices added to it."""
    tags: tuple[tuple[str, str], ...] = ()
    """What a benchmark's scores are split by, besides the task."""
    near: tuple[float, float, float] | None = None
    """Only frames that were taken within ``radius`` of this point of the map, metres; None: anywhere."""
    radius: float = 0.0

    def stamp(self, time: float, first: float) -> float:
        """Header stamp of a time of this question, seconds.

        :param first: header stamp of the stream's first frame.
        """
        return time + first if self.clock == "stream" else time

    @property
    def prompt(self) -> str:
        """The text, with the choices where there are any and the text is not the complete prompt."""
        if not isinstance(self.expected, Choice) or self.whole_prompt:
            return self.text
        lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, self.expected.choices, strict=False)]
        return "\n".join([self.text, *lines, "Answer with the letter of the right choice."])


def read_questions(path: Path) -> list[EvaluationQuestion]:
    """Read a question file (.yaml, .yml, .json: one document; .jsonl: one question a line).

    :raises SettingsError: names the file, the question and the problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--questions {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"--questions {path}: is not UTF-8 text") from error
    entries, clock = _lines(path, text) if path.suffix == ".jsonl" else _document(path, text)
    if not entries:
        raise SettingsError(f"--questions {path}: holds no question")
    questions: dict[tuple[str, str], EvaluationQuestion] = {}
    for where, entry in entries:
        question = _question(entry, where, clock)
        if (question.bag, question.name) in questions:
            raise SettingsError(f"{where}: id = {question.name!r} is there twice")
        questions[question.bag, question.name] = question
    return list(questions.values())


def _lines(path: Path, text: str) -> tuple[list[tuple[str, object]], str]:
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                entries.append((f"{path}, line {number}", json.loads(line)))
            except ValueError as error:
                raise SettingsError(f"{path}, line {number}: is not JSON ({error})") from error
    return entries, "stream"


def _document(path: Path, text: str) -> tuple[list[tuple[str, object]], str]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: is not YAML ({' '.join(str(error).split())})") from error
    clock = "stream"
    if isinstance(document, Mapping):
        unknown = sorted(str(key) for key in document if key not in ("clock", "questions"))
        if unknown or "questions" not in document:
            raise SettingsError(f"{path}: must be a list of questions, or 'questions:' and 'clock:' alone"
                                + (f"; unknown: {', '.join(unknown)}" if unknown else ""))  # fmt: skip
        clock, document = document.get("clock", "stream"), document["questions"]
    _check_choice(clock, CLOCKS, f"{path}: clock")
    if not isinstance(document, Sequence) or isinstance(document, str):
        raise SettingsError(f"{path}: must be a list of questions")
    return [(f"{path}, question {index}", entry) for index, entry in enumerate(document, 1)], clock


def _question(entry: object, where: str, clock: str) -> EvaluationQuestion:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where}: must be a mapping with {', '.join(_KEYS)}, not {entry!r}")
    if unknown := sorted(str(key) for key in entry if key not in (*_KEYS, "clock")):
        raise SettingsError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(_KEYS)}")
    if missing := [key for key in ("text", "expected") if key not in entry]:
        raise SettingsError(f"{where}: lacks {', '.join(missing)}")
    clock = entry.get("clock", clock)
    _check_choice(clock, CLOCKS, f"{where}: clock")
    text = str(entry["text"]).strip()
    if not text:
        raise SettingsError(f"{where}: text is empty")
    try:
        expected = read_expectation(entry["expected"])
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    at = _seconds(entry.get("at"), f"{where}: at", math.inf)
    evidence = _evidence(entry.get("evidence", ()), f"{where}: evidence")
    if evidence and max(evidence) > at:
        raise SettingsError(f"{where}: evidence at {max(evidence):g} s is newer than the question at {at:g} s")
    kind = entry.get("kind") or ("now" if evidence and at - max(evidence) <= NOW_SECONDS else "before")
    _check_choice(kind, KINDS, f"{where}: kind")
    camera, task, bag = (str(entry.get(name) or "") for name in ("camera", "task", "bag"))
    since, until = (_seconds(entry.get(name), f"{where}: {name}", 0.0) for name in ("since", "until"))
    name = str(entry.get("id") or where.rpartition(", ")[2])
    near, radius = _surroundings(entry, where)
    return EvaluationQuestion(name, at, text, expected, evidence, kind, camera, since, until, clock, task, bag,
                              near=near, radius=radius)  # fmt: skip


def _surroundings(entry: Mapping[Any, Any], where: str) -> tuple[tuple[float, float, float] | None, float]:
    """``near`` and ``radius`` of a question, which go together."""
    if ("near" in entry) != ("radius" in entry):
        raise SettingsError(f"{where}: near and radius go together; only one of them is given")
    if "near" not in entry:
        return None, 0.0
    try:
        x, y, z = numbers(entry["near"], "near", 3)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    radius = entry["radius"]
    if isinstance(radius, bool) or not isinstance(radius, (int, float)) or not 0 < radius < math.inf:
        raise SettingsError(f"{where}: radius = {radius!r}: must be metres above 0")
    return (x, y, z), float(radius)


def _check_choice(value: object, choices: Sequence[str], what: str) -> None:
    if value not in choices:
        raise SettingsError(f"{what} = {value!r}: must be {' or '.join(choices)}")


def _seconds(value: Any, what: str, default: float) -> float:
    if value is None or value == "end":
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise SettingsError(f"{what} = {value!r}: must be seconds, 0 or more")
    return float(value)


def _evidence(value: object, what: str) -> tuple[float, ...]:
    if isinstance(value, (int, float)):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SettingsError(f"{what} = {value!r}: must be a list of seconds")
    return tuple(sorted(_seconds(item, what, math.nan) for item in value))
