# SPDX-License-Identifier: Apache-2.0
"""Episodes of an evaluation: patrol streams or bags, each with its questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.question_files import EvaluationQuestion, read_questions
from ros_kvstream.evaluation.scoring import Exact
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import KINDS
from ros_kvstream.recordings.bag_poses import AUTO
from ros_kvstream.recordings.bags import BagSource
from ros_kvstream.recordings.frame_sources import FrameSource, StreamFrame
from ros_kvstream.settings import require, require_finite

PATROL_RATE_HZ = 2.0
PATROL_START = 1000.0
"""Stamp of a patrol's first frame, seconds."""
EARLIEST = 0.3
"""Share of a patrol that passes before its first question, so that there is something to remember."""


@dataclass(frozen=True)
class Episode:
    """One stream and the questions about it."""

    source: FrameSource
    questions: tuple[EvaluationQuestion, ...]

    @property
    def name(self) -> str:
        """Name in results."""
        return self.source.name

    def data(self) -> dict[str, Any]:
        """Plain data: equal data, equal stream and questions."""
        asked = [
            {**dataclasses.asdict(question), "expected": question.expected.data(), "at": repr(question.at)}
            for question in self.questions
        ]
        return {"name": self.name, "source": self.source.data(), "questions": asked}


@dataclass(frozen=True)
class PatrolSource:
    """A stream of the patrol world, rendered frame by frame."""

    settings: PatrolSettings

    @property
    def name(self) -> str:
        """Seed and length."""
        return f"patrol-{self.settings.seed}-{self.settings.frames}"

    def data(self) -> dict[str, Any]:
        """Settings of the world."""
        return {"patrol": dataclasses.asdict(self.settings)}

    def count(self) -> int:
        """Number of frames."""
        return self.settings.frames

    def first_stamp(self) -> float:
        """Stamp of the first frame."""
        return PatrolWorld(self.settings).stamp(0)

    def frames(self, note: Callable[[str], None]) -> Iterator[StreamFrame]:
        """Render every frame."""
        world = PatrolWorld(self.settings)
        for frame in world:
            yield StreamFrame(frame.stamp, "camera", frame.picture, world.frame_pose(frame.index))


def patrol_episodes(streams: int, seconds: float, questions: int, seed: int = 0) -> list[Episode]:
    """Return patrol streams of this length, each with questions of all kinds, spread over its later part."""
    require(streams >= 1, "--patrol", streams, "1 or more streams")
    require_finite("--length", seconds, 2.0, 1e6)
    require(questions >= 1, "--patrol-questions", questions, "1 or more")
    frames = max(4, round(seconds * PATROL_RATE_HZ))
    settings = PatrolSettings(frames=frames, rate_hz=PATROL_RATE_HZ, start=PATROL_START)
    return [_patrol(replace(settings, seed=seed + index), questions) for index in range(streams)]


def _patrol(settings: PatrolSettings, count: int) -> Episode:
    """One patrol; its questions cycle through the kinds from a random start and skip kinds without an answer yet."""
    world = PatrolWorld(settings)
    random = np.random.default_rng([20257, settings.seed])
    first, last = int(EARLIEST * (settings.frames - 1)), settings.frames - 1
    turn, asked = int(random.integers(len(KINDS))), []
    for index in range(count):
        at = first + round((last - first) * (index + 1) / count)
        for _ in KINDS:
            found = world.questions(1, at, seed=index, kinds=(KINDS[turn % len(KINDS)],))
            turn += 1
            if found:
                (question,) = found
                asked.append(EvaluationQuestion(
                    f"{index:03d}-{question.kind}", world.stamp(at), question.text, Exact(question.answer),
                    question.evidence, question.when, clock="header", task=question.kind,
                ))  # fmt: skip
                break
    return Episode(PatrolSource(settings), tuple(asked))


def bag_episodes(
    bags: Sequence[Path],
    questions: Path,
    cameras: Sequence[tuple[str, str]],
    start: float,
    duration: float,
    poses: str = AUTO,
) -> list[Episode]:
    """Return bags with the questions of a file; a question belongs to the bag that it names, or to all."""
    if missing := [str(path) for path in bags if not path.exists()]:
        raise SettingsError(f"BAG: no such file or folder: {', '.join(missing)}")
    asked = read_questions(questions)
    sources = [BagSource(path, tuple(cameras), start, duration, poses) for path in bags]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise SettingsError(f"BAG: two recordings have the same name: {', '.join(names)}")
    if unknown := sorted({question.bag for question in asked if question.bag} - set(names)):
        raise SettingsError(f"--questions {questions}: bag = {', '.join(unknown)} is none of {', '.join(names)}")
    own = [tuple(question for question in asked if question.bag in ("", name)) for name in names]
    if () in own:
        raise SettingsError(f"--questions {questions}: no question is about {names[own.index(())]}")
    return [Episode(source, questions) for source, questions in zip(sources, own, strict=True)]
