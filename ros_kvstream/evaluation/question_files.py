"""Question files for `kvstream evaluate`: YAML or JSON Lines, checked with the place of every mistake.

Beside ``text`` and ``expected`` a question may have ``at`` (seconds; asked after the last frame that is not newer),
``evidence`` (when the answer was to be seen), ``kind`` (now | before; from the evidence where it is left out),
``camera``, ``since``, ``until`` (which frames it may look at), ``task`` (its group in the report), ``bag`` (the
recording it is about) and ``id``. docs/evaluation.md has a whole file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.scoring import LETTERS, Choice, Expectation, read_expectation

KINDS = ("now", "before")
"""Whether the newest frame holds the answer."""
CLOCKS = ("stream", "header")
"""Times in seconds after the first frame, or header stamps."""
NOW_SECONDS = 1.0
"""Evidence at most this old makes a question one about now, where the file does not say."""
_KEYS = frozenset(("id", "at", "text", "expected", "evidence", "kind", "camera", "since", "until", "task", "bag"))


@dataclass(frozen=True)
class EvaluationQuestion:
    """One question of an evaluation, its time, and what is right."""

    name: str
    """Names it in results: unique within its stream."""
    at: float
    """Asked after the last frame that is not newer, seconds; infinite: after the last frame."""
    text: str
    expected: Expectation
    evidence: tuple[float, ...] = ()
    """Times at which the answer was to be seen, seconds; empty where nobody says."""
    kind: str = "before"
    camera: str = ""
    since: float = 0.0
    """Only frames from this time on; 0: unbounded."""
    until: float = 0.0
    clock: str = "stream"
    """Which clock all times are of, one of CLOCKS."""
    task: str = ""
    """Group in the report, such as a benchmark's task."""
    bag: str = ""
    """Name of the recording that it is about; empty: any."""
    whole_prompt: bool = False
    """Whether the text is all that is asked; else the choices are added where there are any."""
    tags: tuple[tuple[str, str], ...] = ()
    """What a benchmark's scores are split by, beside the task."""

    def stamp(self, time: float, first: float) -> float:
        """Header stamp of a time of this question, seconds.

        :param first: header stamp of the stream's first frame.
        """
        return time + first if self.clock == "stream" else time

    @property
    def prompt(self) -> str:
        """What is asked: the text, and the choices where there are any and the text is not all."""
        if not isinstance(self.expected, Choice) or self.whole_prompt:
            return self.text
        lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, self.expected.choices, strict=False)]
        return "\n".join([self.text, *lines, "Answer with the letter of the right choice."])


def read_questions(path: Path) -> list[EvaluationQuestion]:
    """Read a question file (.yaml, .yml, .json: one document; .jsonl: one question a line).

    :raises SettingsError: with file, question and what is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--questions {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"--questions {path}: is not UTF-8 text") from error
    if path.suffix == ".jsonl":
        entries, clock = list(_lines(path, text)), "stream"
    else:
        entries, clock = _document(path, text)
    if not entries:
        raise SettingsError(f"--questions {path}: holds no question")
    questions = [_question(entry, where, clock) for where, entry in entries]
    seen: set[tuple[str, str]] = set()
    for (where, _), question in zip(entries, questions, strict=True):
        if (question.bag, question.name) in seen:
            raise SettingsError(f"{where}: id = {question.name!r} is there twice")
        seen.add((question.bag, question.name))
    return questions


def _lines(path: Path, text: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"{path}, line {number}", json.loads(line)
            except ValueError as error:
                raise SettingsError(f"{path}, line {number}: is not JSON ({error})") from error


def _document(path: Path, text: str) -> tuple[list[tuple[str, object]], str]:
    import yaml

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
    if clock not in CLOCKS:
        raise SettingsError(f"{path}: clock = {clock!r}: must be {' or '.join(CLOCKS)}")
    if not isinstance(document, Sequence) or isinstance(document, str):
        raise SettingsError(f"{path}: must be a list of questions")
    return [(f"{path}, question {index}", entry) for index, entry in enumerate(document, 1)], clock


def _question(entry: object, where: str, clock: str) -> EvaluationQuestion:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where}: must be a mapping with {', '.join(sorted(_KEYS))}, not {entry!r}")
    unknown = sorted(str(key) for key in entry if key not in _KEYS | {"clock"})
    if unknown:
        raise SettingsError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join(sorted(_KEYS))}")
    missing = [key for key in ("text", "expected") if key not in entry]
    if missing:
        raise SettingsError(f"{where}: lacks {', '.join(missing)}")
    clock = entry.get("clock", clock)
    if clock not in CLOCKS:
        raise SettingsError(f"{where}: clock = {clock!r}: must be {' or '.join(CLOCKS)}")
    text = str(entry["text"]).strip()
    if not text:
        raise SettingsError(f"{where}: text is empty")
    try:
        expected = read_expectation(entry["expected"])
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    at = _time(entry, "at", where, math.inf)
    evidence = _evidence(entry.get("evidence", ()), where)
    if evidence and max(evidence) > at:
        raise SettingsError(f"{where}: evidence at {max(evidence):g} s is newer than the question at {at:g} s")
    kind = entry.get("kind") or ("now" if evidence and at - max(evidence) <= NOW_SECONDS else "before")
    if kind not in KINDS:
        raise SettingsError(f"{where}: kind = {kind!r}: must be {' or '.join(KINDS)}")
    camera, task, bag = (str(entry.get(name) or "") for name in ("camera", "task", "bag"))
    since, until = _time(entry, "since", where, 0.0), _time(entry, "until", where, 0.0)
    return EvaluationQuestion(
        str(entry.get("id") or where.rpartition(", ")[2]), at, text, expected, evidence, kind,
        camera, since, until, clock, task, bag,
    )  # fmt: skip


def _time(entry: Mapping[str, Any], name: str, where: str, default: float) -> float:
    value = entry.get(name)
    if value is None or value == "end":
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise SettingsError(f"{where}: {name} = {value!r}: must be seconds, 0 or more")
    return float(value)


def _evidence(value: object, where: str) -> tuple[float, ...]:
    if isinstance(value, (int, float)):
        value = [value]
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SettingsError(f"{where}: evidence = {value!r}: must be a list of seconds")
    return tuple(sorted(_time({"evidence": item}, "evidence", where, math.nan) for item in value))
