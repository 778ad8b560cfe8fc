# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmark readers: files, items, prompts of choices, means of means."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.episodes import Episode
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.evaluation.scoring import LETTERS, Choice, Expectation
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.recordings.video_frames import VideoSource

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v")
SHOWN = 3
"""Number of missing files or unusable entries that a message names."""


@dataclass
class Reading:
    """A benchmark as far as it has been read."""

    folder: Path
    """Folder of its files."""
    video_folders: list[Path] = field(default_factory=list)
    """Folders below which its videos are looked for."""
    suffixes: tuple[str, ...] = ("",)
    """Possible suffixes of the videos that the names in the benchmark lack."""
    other_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Other paths that a video can have in the published folders."""
    questions: dict[str, list[EvaluationQuestion]] = field(default_factory=dict)
    """By the path of the video as the benchmark has it."""
    unanswered: int = 0
    """Questions without a published answer, which are left out."""
    omitted: list[str] = field(default_factory=list)
    """Why entries that cannot be used are left out."""
    notes: list[str] = field(default_factory=list)
    """What is missing or left out."""
    episodes: list[Episode] = field(default_factory=list)

    def add(
        self, video: str, name: str, prompt: str, expected: Expectation, task: str, *,
        at: float = math.inf, kind: str = "before", **tags: str,
    ) -> None:  # fmt: skip
        """Add a question.

        :param at: seconds of the video at which it is asked; infinite: at its end.
        :param tags: what the scores are split by, besides the task.
        """
        self.questions.setdefault(str(video), []).append(EvaluationQuestion(
            str(name), at, prompt, expected, kind=kind, task=str(task), whole_prompt=True, tags=tuple(tags.items()),
        ))  # fmt: skip

    def read_json(self, path: Path) -> Any:
        """Content of a file: JSON, or one JSON object per line (.jsonl); None and a note where it does not exist."""
        if not path.is_file():
            self.notes.append(f"{path.name} is not there.")
            return None
        try:
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".jsonl":
                return [json.loads(line) for line in text.splitlines() if line.strip()]
            return json.loads(text)
        except (ValueError, OSError) as error:
            raise SettingsError(f"{path}: is no JSON file ({error})") from error

    @contextmanager
    def omitting(self, where: str) -> Iterator[None]:
        """Leave out and count an entry that cannot be used, instead of ending the evaluation."""
        try:
            yield
        except SettingsError as error:
            self.omitted.append(str(error))
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            self.omitted.append(f"{where}: is not as published ({type(error).__name__}: {error})")

    def entries(self, path: Path, kind: str = "entry") -> Iterator[tuple[str, Any]]:
        """Yield (file and number, entry) of every entry of a file."""
        for index, entry in enumerate(self.read_json(path) or ()):
            yield f"{path.name}, {kind} {index}", entry

    def find_videos(self, rate_hz: float, limit: int) -> None:
        """Make an episode of every video that is found below any of the folders.

        It is looked for by its path and, where no other video of the benchmark has the same name, by its name alone.
        """
        videos = list(self.questions)[: limit or None]
        same_name = Counter(Path(video).name for video in self.questions)
        missing = []
        for video in videos:
            names = [video, *self.other_names.get(video, ())]
            if same_name[Path(video).name] == 1:
                names.append(Path(video).name)
            paths = (folder / (name + suffix) for name in names for folder in self.video_folders
                     for suffix in self.suffixes)  # fmt: skip
            path = next((path for path in paths if path.is_file()), None)
            if path is None:
                missing.append(video)
                continue
            name = re.sub(r"^(\./)?(videos?/|src_videos/)?", "", video)
            self.episodes.append(Episode(VideoSource(path, name, rate_hz), tuple(self.questions[video])))
        if missing:
            named = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
            searched = ", ".join(str(folder) for folder in self.video_folders if folder.is_dir())
            self.notes.append(
                f"{len(missing)} of {len(videos)} videos are not there: {named}; the folders searched: {searched}"
            )


@dataclass(frozen=True)
class Score:
    """One score as a benchmark's paper reports it."""

    name: str
    value: float
    """0 - 1."""
    count: int
    """Number of questions."""

    def data(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Benchmark(NamedTuple):
    """Reader and scoring of a benchmark."""

    read: Callable[[Reading], None]
    score: Callable[[Sequence[Line]], list[Score]]


def take(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> list[Any]:
    """Values of required keys of an entry; raises SettingsError that names the missing ones."""
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where}: must be an object with {', '.join(keys)}")
    if missing := [key for key in keys if key not in entry]:
        raise SettingsError(f"{where}: lacks {', '.join(missing)}; is this the published file?")
    return [entry[key] for key in keys]


_MARK = re.compile(r"\s*\(?([A-Z])[.):]")


def by_letter(options: Sequence[str]) -> list[str]:
    """Options in the order of their letters, which are those that they bear or those of their places.

    Where they bear letters, an option without one is the rest of the option before it; an empty one, or one whose
    letter was there before, is none; a letter that is left out has an empty option.
    """
    options = [str(option) for option in options]
    marks = [match[1] if (match := _MARK.match(option)) else "" for option in options]
    if [mark for mark in marks if mark][:1] != ["A"] or not {"B", "C"} & set(marks) or marks[0] not in ("", "A"):
        return options
    found: list[str] = []
    for option, mark in zip(options, marks, strict=True):
        lacking = LETTERS.index(mark) - len(found) if mark else -1
        if lacking in (0, 1):
            found += [""] * lacking + [option]
        elif not mark and option.strip() and found:
            found[-1] = f"{found[-1]}, {option}"
    return found


def lettered(options: Sequence[str], form: str = "{}. {}") -> list[str]:
    """Options with their letters in front; those that have them already stay as they are."""
    return [
        option if re.match(rf"\s*\(?{letter}[.):]", option) else form.format(letter, option)
        for letter, option in zip(LETTERS, by_letter(options), strict=False)
    ]


def right_choice(answer: str | int, options: Sequence[str], rule: str, where: str) -> Choice:
    """The right choice from a letter, an index, or its text."""
    texts = tuple(map(_bare, by_letter(options)))
    if isinstance(answer, int):
        letter = LETTERS[answer] if 0 <= answer < len(texts) else ""
    elif re.fullmatch(r"\(?[A-Z][.)]?", answer.strip()):
        letter = answer.strip().strip("().")
    else:
        letter = LETTERS[texts.index(_bare(answer))] if _bare(answer) in texts else ""
    if not letter or letter not in LETTERS[: len(texts)]:
        raise SettingsError(f"{where}: the answer {answer!r} is none of the options")
    return Choice(letter, texts, rule)


def _bare(option: str) -> str:
    """Text of an option without the letter in front of it."""
    return re.sub(r"^\s*\(?[A-Z][.):]\s*", "", option)


def accuracy(lines: Iterable[Line], name: str) -> list[Score]:
    """Share of right answers among the judged lines; empty where there are none."""
    judged = [bool(line["correct"]) for line in lines if line["correct"] is not None]
    return [Score(name, sum(judged) / len(judged), len(judged))] if judged else []


def by_tag(lines: Sequence[Line], tag: str, order: Sequence[str] = (), prefix: str = "") -> list[Score]:
    """Accuracy for each value of a tag ("task" is one too), in the given order and then by name."""
    groups: dict[str, list[Line]] = {value: [] for value in order}
    for line in sorted(lines, key=lambda line: _tag(line, tag)):
        groups.setdefault(_tag(line, tag), []).append(line)
    return [score for value, own in groups.items() if value for score in accuracy(own, prefix + value)]


def _tag(line: Line, tag: str) -> str:
    return str(line["task"] if tag == "task" else line["tags"].get(tag, ""))


def mean_of(scores: Sequence[Score], name: str) -> list[Score]:
    """Mean of scores, each with equal weight; empty where there are none."""
    if not scores:
        return []
    return [Score(name, sum(score.value for score in scores) / len(scores), sum(score.count for score in scores))]
