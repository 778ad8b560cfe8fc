# SPDX-License-Identifier: Apache-2.0
"""Which questions to ask during a patrol stream, and when, so that most are about frames that left a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.questions import NOTHING, Question

KINDS = ("colour", "where", "room_now", "first", "how_many", "view_now", "room", "before", "after", "any")
"""Question kinds in the order in which they are asked."""
EARLIEST = 0.4
"""Share of the stream that precedes the first question."""
VARIANTS = 48
"""Random variants of each question; the one with the oldest evidence is taken."""


@dataclass(frozen=True)
class PlannedQuestion:
    """A question and the frame after which it is asked."""

    text: str
    at: int
    """Index of the newest frame when it is asked."""
    last: int
    """Index of the last frame for which ``expected`` is the answer."""
    kind: str = ""
    expected: str | None = None
    """None where the answer is unknown."""
    evidence: tuple[float, ...] = ()
    """Stamps of the frames that show the answer, seconds; empty where there are none or they are unknown."""


def question_moments(count: int, frames: int) -> list[int]:
    """Indices of ``count`` frames, evenly distributed from EARLIEST to shortly before the end of the stream."""
    first, last = int(EARLIEST * (frames - 1)), max(0, frames - 2)
    return [first + round((last - first) * index / max(1, count - 1)) for index in range(count)]


def plan_questions(world: PatrolWorld, count: int, window: int) -> list[PlannedQuestion]:
    """Choose ``count`` questions of different kinds; those about the past preferably about what left the window.

    Each is asked at a frame after which its answer stays the same for at least one more frame, so that a frame of delay
    does not make a correct answer wrong. Equal worlds give equal questions.

    :param window: frames in a sliding window of the same bytes.
    """
    plan: list[PlannedQuestion] = []
    for index, moment in enumerate(question_moments(count, len(world))):
        kind = KINDS[index % len(KINDS)]
        earliest = plan[-1].at + 1 if plan else 1
        for at in sorted(range(earliest, len(world) - 1), key=lambda at: abs(at - moment)):
            question = _choose(world, kind, at, window, plan)
            last = _last_unchanged(world, at, kind)
            if question is not None and last > at:
                plan.append(PlannedQuestion(question.text, at, last, question.kind, question.answer, question.evidence))
                break
    return plan


def left_window(question: PlannedQuestion, stamps: Sequence[float], window: int) -> bool | None:
    """Whether all frames with the answer had left a window of ``window`` frames; None where the answer is unknown.

    :param stamps: stamps of all frames, seconds.
    """
    if question.expected is None:
        return None
    oldest = stamps[max(0, question.at - window + 1)]
    return bool(question.evidence) and max(question.evidence) < oldest


def _choose(world: PatrolWorld, kind: str, at: int, window: int, plan: Sequence[PlannedQuestion]) -> Question | None:
    """The question of this kind with the oldest evidence that is not in the plan, or None."""
    if kind == "view_now" and world.sighting(at) is None:
        return None
    found = [question for seed in range(VARIANTS) for question in world.questions(1, at, seed, (kind,))]
    texts = {planned.text for planned in plan}
    when = "now" if kind.endswith("_now") else "before"
    fresh = [q for q in found if q.text not in texts and q.evidence and q.when == when and q.answer != NOTHING]
    oldest = world.stamp(max(0, at - window + 1))

    def rank(question: Question) -> tuple[bool, int, float]:
        repetitions = sum(question.evidence == planned.evidence for planned in plan)
        return question.evidence[-1] >= oldest, repetitions, question.evidence[-1]

    return min(fresh, key=rank, default=None)


def _last_unchanged(world: PatrolWorld, at: int, kind: str) -> int:
    """Last frame at which a question of this kind has the same answer as at frame ``at``."""

    def state(index: int) -> object:
        if kind == "room_now":
            return world.room(index)
        if kind == "view_now":
            return world.sighting(index)
        return sum(sighting.first <= index for sighting in world.sightings)

    last = at
    while last + 1 < len(world) and state(last + 1) == state(at):
        last += 1
    return last
