"""What the readers of benchmarks have in common: files, items, prompts of choices, means of means."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.grid import Episode
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.evaluation.scoring import LETTERS, Choice, Expectation
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.recordings.video_frames import VideoSource

VIDEO_ENDS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v")
SHOWN = 3
"""Missing files that a message names."""


@dataclass(frozen=True)
class Item:
    """One question of a benchmark before its video was looked for."""

    name: str
    video: str
    """Path of the video as the benchmark has it."""
    prompt: str
    expected: Expectation
    task: str
    at: float = math.inf
    """Seconds of the video at which it is asked; infinite: after all of it."""
    kind: str = "before"
    tags: tuple[tuple[str, str], ...] = ()
    """What the scores are split by, beside the task."""


@dataclass
class Reading:
    """A benchmark that was read."""

    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is missing or left out, for people."""
    episodes: list[Episode] = field(default_factory=list)


@dataclass(frozen=True)
class Score:
    """One figure as a benchmark's paper reports it."""

    name: str
    value: float
    """0 - 1."""
    count: int
    """Questions behind it."""

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.name, "value": self.value, "count": self.count}


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's reader and its way of scoring."""

    name: str
    read: Callable[[Path, Reading], Callable[[str], Path | None]]
    """(folder, reading to fill) -> a function that finds a video's file."""
    score: Callable[[Sequence[Line]], list[Score]]

    def read_episodes(self, folder: Path, rate_hz: float, limit: int) -> Reading:
        """Read the files and look for the videos; one episode a video, in the order of the files."""
        reading = Reading()
        find = self.read(folder, reading)
        if not reading.items:
            raise SettingsError(f"--data {folder}: holds no question of {self.name} that can be asked. "
                                + " ".join(reading.notes))  # fmt: skip
        videos = list(dict.fromkeys(item.video for item in reading.items))
        wanted = videos[:limit] if limit else videos
        found = {video: path for video in wanted if (path := find(video)) is not None}
        missing = [video for video in wanted if video not in found]
        if missing:
            named = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
            reading.notes.append(f"{len(missing)} of {len(wanted)} videos are not there: {named}")
        if not found:
            raise SettingsError(f"--data {folder}: {' '.join(reading.notes)}")
        for video, path in found.items():
            own = tuple(_question(item) for item in reading.items if item.video == video)
            reading.episodes.append(Episode(VideoSource(path, _stream_name(video), rate_hz), own))
        return reading


def _stream_name(video: str) -> str:
    """Name of a video's stream: its path as the benchmark has it, without what is the same everywhere."""
    return re.sub(r"^(\./)?(videos?/|src_videos/)?", "", video)


def _question(item: Item) -> EvaluationQuestion:
    return EvaluationQuestion(item.name, item.at, item.prompt, item.expected, kind=item.kind, task=item.task,
                              whole_prompt=True, tags=item.tags)  # fmt: skip


def read_json(path: Path, reading: Reading) -> Any:
    """A file's content: JSON, or one JSON object a line (.jsonl); None and a note where it is not there."""
    if not path.is_file():
        reading.notes.append(f"{path.name} is not there.")
        return None
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except (ValueError, OSError) as error:
        raise SettingsError(f"{path}: is no JSON file ({error})") from error


def take(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> list[Any]:
    """Values of keys that a benchmark's entries have; raises SettingsError that names the missing one."""
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where}: must be an object with {', '.join(keys)}")
    missing = [key for key in keys if key not in entry]
    if missing:
        raise SettingsError(f"{where}: lacks {', '.join(missing)}; is this the published file?")
    return [entry[key] for key in keys]


def bare(option: str) -> str:
    """An option's text without the letter in front of it."""
    return re.sub(r"^\s*\(?[A-Z][.):]\s*", "", option)


def lettered(options: Sequence[str], form: str = "{}. {}") -> list[str]:
    """Options with their letters in front, those that have them already left as they are."""
    return [
        option if re.match(rf"\s*\(?{letter}[.):]", option) else form.format(letter, option)
        for letter, option in zip(LETTERS, options, strict=False)
    ]


def right_choice(answer: str | int, options: Sequence[str], rule: str, where: str) -> Choice:
    """The right choice from a letter, an index, or its text."""
    texts = tuple(bare(str(option)) for option in options)
    if isinstance(answer, int):
        letter = LETTERS[answer] if 0 <= answer < len(texts) else "?"
    elif re.fullmatch(r"\(?[A-Z][.)]?", answer.strip()):
        letter = answer.strip().strip("().")
    else:
        letter = LETTERS[texts.index(bare(answer))] if bare(answer) in texts else "?"
    if letter == "?":
        raise SettingsError(f"{where}: the answer {answer!r} is none of the options")
    return Choice(letter, texts, rule)


def video_finder(folders: Sequence[Path], *, by_stem: bool = False) -> Callable[[str], Path | None]:
    """Finds a video by its path below any of the folders, or else by its name alone.

    :param by_stem: the benchmark names videos without an ending.
    """

    def find(video: str) -> Path | None:
        names = [video + end for end in VIDEO_ENDS] if by_stem else [video]
        for folder in folders:
            for name in names:
                for candidate in (folder / name, folder / Path(name).name):
                    if candidate.is_file():
                        return candidate
        return None

    return find


def mean(lines: Iterable[Line], name: str) -> Score | None:
    """Share of the right ones among the judged lines; None where there are none."""
    judged = [bool(line["correct"]) for line in lines if line["correct"] is not None]
    return Score(name, sum(judged) / len(judged), len(judged)) if judged else None


def by_tag(lines: Sequence[Line], tag: str, order: Sequence[str] = (), prefix: str = "") -> list[Score]:
    """A score for each value of a tag ("task" is one too), in the given order and then by name."""
    values = {_tag(line, tag) for line in lines}
    ordered = [value for value in order if value in values] + sorted(values - set(order))
    scores = (mean((line for line in lines if _tag(line, tag) == value), prefix + value) for value in ordered if value)
    return [score for score in scores if score is not None]


def _tag(line: Line, tag: str) -> str:
    return str(line["task"] if tag == "task" else line["tags"].get(tag, ""))


def mean_of(scores: Sequence[Score], name: str) -> list[Score]:
    """The mean of scores, each counting once; nothing where there are none."""
    if not scores:
        return []
    return [Score(name, sum(score.value for score in scores) / len(scores), sum(score.count for score in scores))]
