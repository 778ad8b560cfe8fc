"""What is evaluated: patrol streams or recordings, each with its questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.grid import Episode
from ros_kvstream.evaluation.question_files import EvaluationQuestion, read_questions
from ros_kvstream.evaluation.scoring import Exact
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import KINDS, Question
from ros_kvstream.recordings.bag_frames import BagSource
from ros_kvstream.recordings.frame_sources import PatrolSource
from ros_kvstream.settings import require, require_finite

PATROL_RATE_HZ = 2.0
PATROL_START = 1000.0
"""Stamp of a patrol's first frame, seconds."""
EARLIEST = 0.3
"""Share of a patrol that is over before its first question: there must be something to remember."""


def patrol_episodes(streams: int, seconds: float, questions: int, seed: int = 0) -> list[Episode]:
    """Patrol streams of so many seconds, each with so many questions of all kinds, spread over its later part."""
    require(streams >= 1, "--patrol", streams, "1 or more streams")
    require_finite("--length", seconds, 2.0, 1e6)
    require(questions >= 1, "--patrol-questions", questions, "1 or more")
    frames = max(4, round(seconds * PATROL_RATE_HZ))
    settings = PatrolSettings(frames=frames, rate_hz=PATROL_RATE_HZ, start=PATROL_START)
    return [_patrol(replace(settings, seed=seed + index), questions) for index in range(streams)]


def _patrol(settings: PatrolSettings, count: int) -> Episode:
    """One patrol: the kinds take turns from a random start; a kind that cannot be asked then is passed over."""
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
                asked.append(_known(found[0], world.stamp(at), index))
                break
    return Episode(PatrolSource(settings), tuple(asked))


def _known(question: Question, stamp: float, index: int) -> EvaluationQuestion:
    return EvaluationQuestion(
        f"{index:03d}-{question.kind}", stamp, question.text, Exact(question.answer), question.evidence, question.when,
        clock="header", task=question.kind,
    )  # fmt: skip


def bag_episodes(
    bags: Sequence[Path], questions: Path, cameras: Sequence[tuple[str, str]], start: float, duration: float
) -> list[Episode]:
    """Recordings with the questions of a file; each question goes to the recording that it names, or to all."""
    asked = read_questions(questions)
    sources = [BagSource(path, tuple(cameras), start, duration) for path in bags]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise SettingsError(f"BAG: two recordings have the same name: {', '.join(names)}")
    strange = sorted({question.bag for question in asked if question.bag} - set(names))
    if strange:
        raise SettingsError(f"--questions {questions}: bag = {', '.join(strange)} is none of {', '.join(names)}")
    episodes = []
    for source in sources:
        own = tuple(question for question in asked if question.bag in ("", source.name))
        if not own:
            raise SettingsError(f"--questions {questions}: no question is about {source.name}")
        episodes.append(Episode(source, own))
    return episodes
