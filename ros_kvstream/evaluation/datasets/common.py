# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benchmark readers: files, items, prompts of choices, means of means."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.episodes import Episode
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.evaluation.scoring import LETTERS, Choice, Expectation
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.recordings.video_frames import VideoSource

VIDEO_ENDS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v")
SHOWN = 3
"""Number of missing files that a message names."""
VideoFinder = Callable[[str], Path | None]
"""Finds the file of a video by its path as the benchmark has it."""


@dataclass(frozen=True)
class Item:
    """One question of a benchmark, before its video is looked for."""

    name: str
    video: str
    """Path of the video as the benchmark has it."""
    prompt: str
    expected: Expectation
    task: str
    at: float = math.inf
    """Seconds of the video at which it is asked; infinite: at its end."""
    kind: str = "before"
    tags: tuple[tuple[str, str], ...] = ()
    """What the scores are split by, besides the task."""

    def question(self) -> EvaluationQuestion:
        """The question of the evaluation."""
        return EvaluationQuestion(self.name, self.at, self.prompt, self.expected, kind=self.kind, task=self.task,
                                  whole_prompt=True, tags=self.tags)  # fmt: skip


@dataclass
class Reading:
    """A benchmark as far as it has been read."""

    items: list[Item] = field(default_factory=list)
    unanswered: int = 0
    """Questions without a published answer, which are left out."""
    notes: list[str] = field(default_factory=list)
    """What is missing or left out."""
    episodes: list[Episode] = field(default_factory=list)

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

    def entries(self, path: Path, kind: str = "entry") -> Iterator[tuple[str, Any]]:
        """Yield (file and number, entry) of every entry of a file."""
        for index, entry in enumerate(self.read_json(path) or ()):
            yield f"{path.name}, {kind} {index}", entry

    def find_videos(self, find: VideoFinder, rate_hz: float, limit: int) -> None:
        """Make an episode of every video that is found."""
        videos = list(dict.fromkeys(item.video for item in self.items))[: limit or None]
        missing = []
        for video in videos:
            path = find(video)
            if path is None:
                missing.append(video)
                continue
            name = re.sub(r"^(\./)?(videos?/|src_videos/)?", "", video)
            questions = tuple(item.question() for item in self.items if item.video == video)
            self.episodes.append(Episode(VideoSource(path, name, rate_hz), questions))
        if missing:
            named = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
            self.notes.append(f"{len(missing)} of {len(videos)} videos are not there: {named}")


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


@dataclass(frozen=True)
class Benchmark:
    """Reader and scoring of a benchmark."""

    read: Callable[[Path, Reading], VideoFinder]
    """(folder, reading to fill) -> finder of its videos."""
    score: Callable[[Sequence[Line]], list[Score]]


def take(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> list[Any]:
    """Values of required keys of an entry; raises SettingsError that names the missing ones."""
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where}: must be an object with {', '.join(keys)}")
    if missing := [key for key in keys if key not in entry]:
        raise SettingsError(f"{where}: lacks {', '.join(missing)}; is this the published file?")
    return [entry[key] for key in keys]


def lettered(options: Sequence[str], form: str = "{}. {}") -> list[str]:
    """Options with their letters in front; those that have them already stay as they are."""
    return [
        option if re.match(rf"\s*\(?{letter}[.):]", option) else form.format(letter, option)
        for letter, option in zip(LETTERS, options, strict=False)
    ]


def right_choice(answer: str | int, options: Sequence[str], rule: str, where: str) -> Choice:
    """The right choice from a letter, an index, or its text."""
    texts = tuple(_bare(str(option)) for option in options)
    if isinstance(answer, int):
        letter = LETTERS[answer] if 0 <= answer < len(texts) else ""
    elif re.fullmatch(r"\(?[A-Z][.)]?", answer.strip()):
        letter = answer.strip().strip("().")
    else:
        letter = LETTERS[texts.index(_bare(answer))] if _bare(answer) in texts else ""
    if not letter:
        raise SettingsError(f"{where}: the answer {answer!r} is none of the options")
    return Choice(letter, texts, rule)


def _bare(option: str) -> str:
    """Text of an option without the letter in front of it."""
    return re.sub(r"^\s*\(?[A-Z][.):]\s*", "", option)


def video_finder(folders: Sequence[Path], *, by_stem: bool = False) -> VideoFinder:
    """Return a finder of a video by its path below any of the folders, or else by its name alone.

    :param by_stem: the benchmark names videos without a suffix.
    """

    def find(video: str) -> Path | None:
        names = [video + end for end in VIDEO_ENDS] if by_stem else [video]
        candidates = (folder / name for folder in folders for stem in names for name in (stem, Path(stem).name))
        return next((candidate for candidate in candidates if candidate.is_file()), None)

    return find


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
