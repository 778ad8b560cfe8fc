# SPDX-License-Identifier: Apache-2.0
"""Questions about a patrol stream, with their answers and the stamps of the frames that show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from ros_kvstream.patrol.scene import COLOURS, NUMBERS, PLACES, ROOMS, SHAPES, Sighting
from ros_kvstream.poses import Pose, Vector

NOTHING = "nothing"
ABSENT = "none"
UNKNOWN = "i do not know"


@dataclass(frozen=True)
class Question:
    """One question, asked after a certain frame."""

    text: str
    answer: str
    kind: str
    """One of KINDS, "place", or "unknown" (a question with invented words)."""
    when: str
    """"now" when the newest frame shows the answer, "before" otherwise."""
    evidence: tuple[float, ...]
    """Stamps of the frames that show the answer, oldest first; empty for things that never appeared."""
    place: Vector | None = None
    """Questions of kind "place": where the robot was in the middle of the sighting, x y z in the map, metres."""
    moved: float = 0.0
    """Questions of kind "place": length of the robot's way while the thing was in view, metres."""


class World(Protocol):
    """What questions are made from: the sightings of a stream, and stamp, room and pose of every frame."""

    @property
    def sightings(self) -> Sequence[Sighting]:
        """All sightings, in order."""

    def stamp(self, index: int) -> float:
        """Seconds of a frame."""

    def sighting(self, index: int) -> Sighting | None:
        """What is in view in a frame."""

    def room(self, index: int) -> str:
        """Name of the room in a frame."""

    def pose_at(self, stamp: float) -> Pose:
        """Pose of the robot's base at a stamp."""


PHRASES: dict[str, tuple[str, ...]] = {
    "colour": ("what colour was the {x}?", "which colour did the {x} have?", "what was the colour of the {x}?"),
    "where": ("where was the {x}?", "where did you see the {x}?", "where in the picture was the {x}?"),
    "first": ("what did you see first?", "what was the first thing you saw?", "what came first?"),
    "last": ("what did you see last?", "what was the last thing you saw?", "what came last?"),
    "before": ("what came before the {x}?", "what did you see before the {x}?"),
    "after": ("what came after the {x}?", "what did you see after the {x}?"),
    "how_many": ("how many {xs} were there?", "how many {xs} did you see?"),
    "any": ("was there a {x}?", "did you see a {x}?", "was there any {x}?"),
    "room": ("which room was the {x} in?", "in which room did you see the {x}?"),
    "view_now": ("what is in view now?", "what do you see now?", "what do you see?"),
    "room_now": ("which room is this?", "which room are you in now?", "where are you now?"),
}
KINDS = tuple(PHRASES)
"""Every kind whose answer is in the stream."""
PLACE = "place"
"""Kind of questions that the place of the evidence answers; the text asks as "where" does."""
PLACE_PHRASES = PHRASES["where"][:2]

UNKNOWN_PHRASES = (
    "what colour was the {u}?", "where was the {u}?", "how many {u} were there?", "was there a {u}?",
    "what came after the {u}?", "which room was the {u} in?", "{u} {u} {u}?", "what is the {u} of {u}?", "{u}?",
    "did you {u} the {x}?", "who {u} the {u}?", "{u} the {x} {u} now?", "what {u} {u}?",
    "{u}", "{u} {u}", "{u}!", "{u} {u} {u}.", "please {u} me", "tell me the {u}", "{u}, {u} the {x}",
)  # fmt: skip
SPELLINGS = {"colour": "color"}
"""Words with two accepted spellings."""

PLURALS = {
    "cone": "cones", "ball": "balls", "box": "boxes", "tyre": "tyres",
    "cross": "crosses", "star": "stars", "kite": "kites", "pipe": "pipes",
}  # fmt: skip


def vocabulary() -> list[str]:
    """Every word of questions and answers, and the punctuation, sorted."""
    text = " ".join(phrase for phrases in PHRASES.values() for phrase in phrases)
    text += " ".join(UNKNOWN_PHRASES) + " who i do not know yes no please tell me . , ! ' user assistant system"
    for mark in ("{x}", "{xs}", "{u}", "?"):
        text = text.replace(mark, " ")
    words = set(text.split()) | {"?", ABSENT, NOTHING, *SPELLINGS.values(), *NUMBERS, *COLOURS, *SHAPES, *ROOMS}
    words |= set(PLURALS.values()) | {word for place in PLACES for word in place.split()}
    return sorted(words)


def make_questions(
    world: World, count: int, at: int, random: np.random.Generator, kinds: Sequence[str] = ()
) -> list[Question]:
    """Return up to ``count`` questions as asked right after frame ``at``; the kinds take turns."""
    turns = list(kinds or KINDS)
    if not kinds:
        random.shuffle(turns)
    found: list[Question] = []
    asker = Asker(world, at, random)
    for turn in range(3 * max(count, len(turns))):
        if len(found) == count:
            break
        question = asker.ask(turns[turn % len(turns)])
        if question is not None and question not in found:
            found.append(question)
    return found


class Asker:
    """Maker of questions about the frames up to ``at``."""

    def __init__(self, world: World, at: int, random: np.random.Generator) -> None:
        self._world, self._at, self._random = world, at, random
        self._seen = [sighting for sighting in world.sightings if sighting.first <= at]
        self._absent = [shape for shape in SHAPES if shape not in {sighting.shape for sighting in self._seen}]
        self._now = world.stamp(at)
        self._makers: dict[str, Callable[[str], Question | None]] = {
            "colour": self._attribute, "where": self._attribute, "how_many": self._attribute, "room": self._attribute,
            "first": self._end, "last": self._end, "before": self._neighbour, "after": self._neighbour,
            "any": self._any, "view_now": self._view_now, "room_now": self._room_now, "unknown": self._unknown,
            PLACE: self._place,
        }  # fmt: skip

    def ask(self, kind: str) -> Question | None:
        """Return one question of this kind, or None where it does not apply to the stream so far."""
        return self._makers[kind](kind)

    def _make(self, kind: str, answer: str, evidence: Sequence[Sighting], shape: str = "") -> Question:
        phrase = str(self._random.choice(PHRASES[kind]))
        text = phrase.replace("{xs}", PLURALS.get(shape, "")).replace("{x}", shape)
        if self._random.random() < 0.1:
            text = text.replace("colour", SPELLINGS["colour"])
        stamps = tuple(
            self._world.stamp(frame)
            for sighting in evidence
            for frame in range(sighting.first, min(sighting.last, self._at) + 1)
        )
        return self._label(text, answer, kind, stamps)

    def _label(self, text: str, answer: str, kind: str, stamps: tuple[float, ...]) -> Question:
        now = kind.endswith("_now") or (bool(stamps) and stamps[-1] >= self._now)
        return Question(text, answer, kind, "now" if now else "before", tuple(sorted(stamps)))

    def _pick(self, options: Sequence[Sighting]) -> Sighting:
        return options[int(self._random.integers(len(options)))]

    def _attribute(self, kind: str) -> Question | None:
        """Ask for a property of one thing; occasionally of one that never appeared."""
        if self._absent and (kind == "how_many" or not self._seen) and self._random.random() < 0.12:
            return self._make(kind, ABSENT, (), str(self._random.choice(self._absent)))
        if not self._seen:
            return None
        if self._absent and self._random.random() < 0.05:
            return self._make(kind, ABSENT, (), str(self._random.choice(self._absent)))
        thing = self._pick(self._seen)
        answers = {
            "colour": thing.colour, "where": thing.place,
            "how_many": NUMBERS[thing.number - 1], "room": f"the {thing.room}",
        }  # fmt: skip
        return self._make(kind, answers[kind], (thing,), thing.shape)

    def _end(self, kind: str) -> Question | None:
        if not self._seen:
            return None
        thing = self._seen[0 if kind == "first" else -1]
        return self._make(kind, f"the {thing.shape}", (thing,))

    def _neighbour(self, kind: str) -> Question | None:
        """Ask what came right before or after a thing; rarely about the first or last one, where it is nothing."""
        if len(self._seen) < 2:
            return None
        step = -1 if kind == "before" else 1
        index = int(self._random.integers(len(self._seen)))
        other = index + step
        if not 0 <= other < len(self._seen):
            if self._random.random() < 0.5:
                return self._make(kind, NOTHING, (self._seen[index],), self._seen[index].shape)
            index, other = index - step, other - step
        pair = sorted((self._seen[index], self._seen[other]), key=lambda thing: thing.first)
        return self._make(kind, f"the {self._seen[other].shape}", pair, self._seen[index].shape)

    def _any(self, kind: str) -> Question | None:
        present = bool(self._seen) and (not self._absent or self._random.random() < 0.5)
        if present:
            thing = self._pick(self._seen)
            return self._make(kind, "yes", (thing,), thing.shape)
        return self._make(kind, "no", (), str(self._random.choice(self._absent)))

    def _view_now(self, kind: str) -> Question | None:
        thing = self._world.sighting(self._at)
        answer = NOTHING if thing is None else f"the {thing.colour} {thing.shape}"
        return self._label(str(self._random.choice(PHRASES[kind])), answer, kind, (self._now,))

    def _room_now(self, kind: str) -> Question | None:
        answer = f"the {self._world.room(self._at)}"
        return self._label(str(self._random.choice(PHRASES[kind])), answer, kind, (self._now,))

    def _place(self, kind: str) -> Question | None:
        """Ask where a thing was seen; a sighting that goes on counts up to now."""
        if not self._seen:
            return None
        thing = self._pick(self._seen)
        text = str(self._random.choice(PLACE_PHRASES)).replace("{x}", thing.shape)
        stamps = tuple(self._world.stamp(frame) for frame in range(thing.first, min(thing.last, self._at) + 1))
        poses = [self._world.pose_at(stamp) for stamp in stamps]
        moved = sum(pose.distance(after) for pose, after in pairwise(poses))
        middle = self._world.pose_at((stamps[0] + stamps[-1]) / 2)
        return replace(self._label(text, thing.place, kind, stamps), place=middle.position, moved=moved)

    def _unknown(self, kind: str) -> Question | None:
        text = str(self._random.choice(UNKNOWN_PHRASES)).replace("{x}", str(self._random.choice(SHAPES)))
        while "{u}" in text:
            text = text.replace("{u}", self._strange_word(), 1)
        return Question(text, UNKNOWN, kind, "before", ())

    def _strange_word(self) -> str:
        return "".join(self._random.choice(list("bdfgklmnprstvz")) + self._random.choice(list("aeiou"))
                       for _ in range(int(self._random.integers(2, 5))))  # fmt: skip
