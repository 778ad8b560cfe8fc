"""Which questions the demo asks, and when: from the patrol world with known answers, or typical ones for any bag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.questions import NOTHING, Question

KINDS = ("colour", "where", "room_now", "first", "how_many", "view_now", "room", "before", "after", "any")
"""Question kinds in the order in which they are asked."""
TYPICAL_QUESTIONS = (
    "what do you see now?",
    "what did you see first?",
    "was there a cone?",
    "where was the cone?",
    "which room are you in now?",
    "what did you see last?",
)
"""Asked about a recording of which nothing is known."""
EARLIEST = 0.4
"""Share of the stream that is over before the first question: there must be something to remember."""
TRIES = 48
"""Random variants of a question among which the one that asks most of the memory is taken."""


@dataclass(frozen=True)
class PlannedQuestion:
    """A question and the frame after which it is asked."""

    text: str
    at: int
    """Index of the newest frame when it is asked."""
    last: int
    """Index of the last newest frame for which ``expected`` is still the answer."""
    kind: str = ""
    expected: str | None = None
    """None where nobody knows the answer."""
    evidence: tuple[float, ...] = ()
    """Stamps that hold the answer, seconds; empty for things that never were, or where nobody knows."""


def plan_typical(texts: Sequence[str], frames: int) -> list[PlannedQuestion]:
    """Percentiles questions with unknown answers over the later part of a stream of so many frames."""
    moments = _moments(len(texts), frames)
    return [PlannedQuestion(text, at, frames - 1) for text, at in zip(texts, moments, strict=True)]


def plan_patrol(world: PatrolWorld, count: int, window: int) -> list[PlannedQuestion]:
    """Choose ``count`` questions of mixed kinds, those about the past preferably about what left the window.

    Each is asked at a moment at which the answer does not change with the next frame, so that a frame more or less on
    the way does not make a right answer wrong. Equal worlds give equal questions.

    :param window: frames that a sliding window of the same bytes holds.
    """
    plan: list[PlannedQuestion] = []
    for index, moment in enumerate(_moments(count, len(world))):
        kind = KINDS[index % len(KINDS)]
        later = plan[-1].at + 1 if plan else 1
        for at in sorted(range(later, len(world) - 1), key=lambda at: abs(at - moment)):
            question = _ask(world, kind, at, window, plan)
            last = _last_unchanged(world, at, kind)
            if question is not None and last > at:
                plan.append(PlannedQuestion(question.text, at, last, question.kind, question.answer, question.evidence))
                break
    return plan


def left_window(question: PlannedQuestion, stamps: Sequence[float], window: int) -> bool | None:
    """Whether all frames with the answer had left a window of the last ``window`` frames; None where nobody knows.

    :param stamps: stamps of all frames, seconds.
    """
    if question.expected is None:
        return None
    oldest = stamps[max(0, question.at - window + 1)]
    return bool(question.evidence) and max(question.evidence) < oldest


def _moments(count: int, frames: int) -> list[int]:
    """``count`` frame indices, evenly spread from EARLIEST to shortly before the end."""
    first, last = int(EARLIEST * (frames - 1)), max(0, frames - 2)
    return [first + round((last - first) * index / max(1, count - 1)) for index in range(count)]


def _ask(world: PatrolWorld, kind: str, at: int, window: int, plan: Sequence[PlannedQuestion]) -> Question | None:
    """A question of this kind that was not asked yet, or None where there is none worth asking."""
    if kind == "view_now" and world.sighting(at) is None:
        return None
    found = [question for seed in range(TRIES) for question in world.questions(1, at, seed, (kind,))]
    texts = {planned.text for planned in plan}
    when = "now" if kind.endswith("_now") else "before"
    fresh = [q for q in found if q.text not in texts and q.evidence and q.when == when and q.answer != NOTHING]
    oldest = world.stamp(max(0, at - window + 1))

    def rank(question: Question) -> tuple[bool, int, float]:
        asked_before = sum(question.evidence == planned.evidence for planned in plan)
        return question.evidence[-1] >= oldest, asked_before, question.evidence[-1]

    return min(fresh, key=rank, default=None)


def _last_unchanged(world: PatrolWorld, at: int, kind: str) -> int:
    """Last frame at which a question of this kind, asked at ``at``, has the same answer."""

    def state(index: int) -> tuple[object, ...]:
        if kind == "room_now":
            return (world.room(index),)
        if kind == "view_now":
            return (world.sighting(index),)
        return (sum(sighting.first <= index for sighting in world.sightings),)

    last = at
    while last + 1 < len(world) and state(last + 1) == state(at):
        last += 1
    return last
