# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark place`: distance between an answer's goal and the place where the robot saw the thing.

Patrols with a known path on held-out seeds; every frame comes with its pose. Beside the error stands the distance that
the robot moved while the thing was in view: the place is not defined more exactly than that. A goal is as good as the
choice of the first evidence, which is measured for questions of all kinds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import figures_table
from benchmarks.accuracy import TEXT_TOKENS, budget_for_slots, load
from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.scoring import Exact
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.patrol import NATIVE_SIZE, PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import PLACE, Question
from ros_kvstream.records import Answer, FrameEvidence
from ros_kvstream.settings import ArchiveSettings, MemorySettings, RetrievalSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

HELD_OUT = 20264
"""Seed of the streams; nothing is tuned on them."""
RATE_HZ = 2.0
ARENA_FRAMES, ARCHIVE_RATIO = 20, 2.0
"""Whole frames that the arena holds, and the archive's bytes as a multiple of the arena's."""
PENDING_PICTURES = 4
"""Small archives need their bytes for frames."""
EVIDENCE_KINDS = ("where", "colour", "how_many", "room", "any", "first", "last", "view_now")
"""Kinds of questions of which one moment is the evidence."""
EVIDENCE_QUESTIONS = 4
"""Questions of each kind about each stream."""
TOLERANCE = 1e-6
"""Seconds."""


@dataclass(frozen=True)
class Place:
    """Result of one question."""

    error: float | None
    """Distance of the goal's base from the truth, metres; None without a goal."""
    moved: float
    """Length of the robot's way while the thing was in view, metres."""
    shown: bool
    """Whether the first frame of the evidence shows the thing."""
    correct: bool
    """Whether the text of the answer is right."""


@dataclass(frozen=True)
class Evidence:
    """Whether a frame shows what one question is about."""

    kind: str
    first: bool
    """The first frame of the evidence."""
    scored: bool
    """The retrieved frame with the highest score of the experts."""


def make_memory(model: VideoLanguageModel, external: str) -> VideoMemory:
    """A memory with an archive; all settings but the budgets and the external expert are the default ones."""
    retrieval = RetrievalSettings(external=external, pending_pictures=PENDING_PICTURES)
    tokens = model.frame_tokens(*model.grid(NATIVE_SIZE, NATIVE_SIZE))
    text = sum(TEXT_TOKENS.values()) + retrieval.slots(tokens, ArchiveSettings(budget_mib=1.0))
    budget = budget_for_slots(model, ARENA_FRAMES * tokens, text)
    return VideoMemory(
        StreamSettings(
            memory=MemorySettings(budget_mib=budget, **TEXT_TOKENS),
            archive=ArchiveSettings(budget_mib=ARCHIVE_RATIO * budget),
            retrieval=retrieval,
        ),
        model,
    )


def observe_with_poses(memory: VideoMemory, world: PatrolWorld) -> None:
    """Show every frame of a patrol to a memory, with its pose."""
    for frame in world:
        memory.observe(frame.picture, frame.stamp, pose=world.frame_pose(frame.index))


def result(question: Question, answer: Answer) -> Place:
    """Compare an answer's goal with the truth."""
    assert question.place is not None
    error = None if answer.goal is None else math.dist(answer.goal.base.position, question.place)
    shown = bool(answer.evidence) and shows(answer.evidence[0], question)
    return Place(error, question.moved, shown, Exact(question.answer).accepts(answer.text))


def shows(frame: FrameEvidence, question: Question) -> bool:
    """Whether a frame was taken, or extended, while the thing was in view."""
    return any(frame.stamp - TOLERANCE <= stamp <= frame.stamp_end + TOLERANCE for stamp in question.evidence)


def first_evidence(memory: VideoMemory, world: PatrolWorld) -> list[Evidence]:
    """Ask questions of every kind whose evidence is known."""
    found = []
    for kind in EVIDENCE_KINDS:
        for question in world.questions(EVIDENCE_QUESTIONS, kinds=(kind,)):
            if question.evidence:
                evidence = memory.ask(question.text).evidence
                scored = max((frame for frame in evidence if frame.ranks), key=lambda frame: frame.score, default=None)
                found.append(Evidence(
                    kind, shows(evidence[0], question), scored is not None and shows(scored, question)
                ))  # fmt: skip
    return found


def by_kind(found: Sequence[Evidence]) -> dict[str, dict[str, float]]:
    """Shares of questions whose first, or highest scored, evidence shows what they are about, and their number."""
    groups = {kind: [item for item in found if item.kind == kind] for kind in EVIDENCE_KINDS}
    return {
        kind: {
            "shown_first": float(np.mean([item.first for item in group])),
            "scored_first": float(np.mean([item.scored for item in group])),
            "n": len(group),
        }
        for kind, group in groups.items()
        if group
    }


def figures(results: Sequence[Place]) -> dict[str, float | None]:
    """Error, distance moved and counts of some results, at least one; errors are None where no answer has a goal."""
    errors = [place.error for place in results if place.error is not None]
    return {
        "median_error_m": float(np.median(errors)) if errors else None,
        "p90_error_m": float(np.quantile(errors, 0.9)) if errors else None,
        "answered": len(errors),
        "n": len(results),
        "moved_median_m": float(np.median([place.moved for place in results])),
        "shown_first": float(np.mean([place.shown for place in results])),
        "accuracy": float(np.mean([place.correct for place in results])),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder")
    parser.add_argument("--external", default="", help="external expert: '' (none), tiny, imagenet, a hub id, a folder")
    parser.add_argument("--lengths", type=int, nargs="+", default=[96, 400], help="frames per stream")
    parser.add_argument("--streams", type=int, default=8, help="streams of each length")
    parser.add_argument("--questions", type=int, default=8, help="most questions about each stream")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the object of ``--json``."""
    model = load(options.model)
    by_length: dict[int, list[Place]] = {}
    evidence: list[Evidence] = []
    for frames in options.lengths:
        results = by_length.setdefault(frames, [])
        for number in range(options.streams):
            world = PatrolWorld(PatrolSettings(seed=HELD_OUT * 1000 + number, frames=frames, rate_hz=RATE_HZ))
            memory = make_memory(model, options.external)
            observe_with_poses(memory, world)
            for question in world.questions(options.questions, kinds=(PLACE,)):
                results.append(result(question, memory.ask(question.text)))
            evidence += first_evidence(memory, world)
            memory.close()
        if not results:
            raise SettingsError(f"--lengths {frames}, --questions {options.questions}: there was nothing to ask about")
        console.print(f"{frames} frames: median error {_number(figures(results)['median_error_m'])} m")
    everything = [place for results in by_length.values() for place in results]
    return {
        **figures(everything),
        "by_length": {str(frames): figures(part) for frames, part in by_length.items()},
        "evidence": by_kind(evidence),
    }


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    rows = [*((f"{frames} frames", part) for frames, part in report["by_length"].items()), ("all", report)]
    names = ("median_error_m", "p90_error_m", "moved_median_m", "shown_first", "accuracy")
    console.print(figures_table(
        "Goals of answers, patrols on held-out seeds",
        ("streams", "median error, m", "p90, m", "moved in view, m", "shown first", "text right", "answered"),
        ((label, *(_number(part[name]) for name in names), f"{part['answered']} of {part['n']}")
         for label, part in rows),
    ))  # fmt: skip
    console.print(figures_table(
        "Questions whose first evidence shows what they are about",
        ("kind", "first evidence", "highest score", "n"),
        ((kind, f"{part['shown_first']:.3f}", f"{part['scored_first']:.3f}", f"{part['n']:.0f}")
         for kind, part in report["evidence"].items()),
    ))  # fmt: skip
