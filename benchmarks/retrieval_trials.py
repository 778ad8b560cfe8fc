"""One patrol stream through a memory with an archive, and the same questions under several ways of retrieval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ros_kvstream.memory.budget import MIB, smallest_budget
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.mix import mixed_stream, trained_seconds
from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.questions import Question
from ros_kvstream.records import Answer
from ros_kvstream.settings import ArchiveSettings, GateSettings, MemorySettings, RetrievalSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

HELD_OUT, TUNING = 20260, 20261
"""Seeds of the streams that figures are reported on, and of those that defaults are tuned on."""
RECALL = ("colour", "where", "how_many", "room")
ORDER = ("first", "last", "before", "after")
NOW = ("view_now", "room_now")
QUESTION_TOKENS, ANSWER_TOKENS = 16, 5
BLOCK_FRAMES = 8


@dataclass(frozen=True)
class Sizes:
    """Bytes of one trial."""

    arena_frames: int = 24
    """Frames that the arena holds."""
    archive_ratio: float = 4.0
    """Archive bytes as a multiple of the arena's."""
    precision: str = "int8"
    policy: str = "infinipot_v"


@dataclass
class Tally:
    """Right answers and found evidence of one way of retrieval."""

    right: dict[str, list[bool]] = field(default_factory=dict)
    """Per group (now, before, recall, order) whether each answer was right."""
    found: list[bool] = field(default_factory=list)
    """Per recall question with evidence: whether a frame that holds it was brought back or still shown."""
    by_age: dict[int, list[bool]] = field(default_factory=dict)
    """Right answers to recall questions by age of the evidence, seconds in powers of two."""

    def add(self, question: Question, answer: Answer) -> None:
        """Count one answer."""
        right = answer.text.strip() == question.answer
        for group in groups(question):
            self.right.setdefault(group, []).append(right)
        if question.kind in RECALL and question.evidence:
            stamps = {round(frame.stamp, 6) for frame in answer.evidence if frame.ranks}
            self.found.append(any(round(stamp, 6) in stamps for stamp in question.evidence))
            age = max(answer.asked_at - question.evidence[-1], 0.0)
            self.by_age.setdefault(1 << int(age).bit_length(), []).append(right)

    def merge(self, other: Tally) -> None:
        """Count another stream's too."""
        self.found += other.found
        for group, values in other.right.items():
            self.right.setdefault(group, []).extend(values)
        for age, values in other.by_age.items():
            self.by_age.setdefault(age, []).extend(values)

    def accuracy(self, group: str) -> float:
        """Share of right answers of a group, 0 where none was asked."""
        return float(np.mean(self.right[group])) if self.right.get(group) else 0.0

    @property
    def recall(self) -> float:
        """Share of recall questions whose evidence was among the frames brought back."""
        return float(np.mean(self.found)) if self.found else 0.0


def groups(question: Question) -> list[str]:
    """What a question counts for."""
    kinds = ["recall"] if question.kind in RECALL else ["order"] if question.kind in ORDER else []
    return [question.when, *kinds]


def worlds(model: VideoLanguageModel, frames: int, count: int, seed: int) -> Iterable[PatrolWorld]:
    """``count`` streams of the training's mix, on seeds of their own."""
    random = np.random.default_rng([seed, frames])
    seconds = trained_seconds(model)
    for _ in range(count):
        yield mixed_stream(frames, 8, seconds, random)


def keep_all_bytes(model: VideoLanguageModel, world: PatrolWorld) -> int:
    """Bytes of keeping every frame's keys and values."""
    rows, columns = model.grid(world.settings.size, world.settings.size)
    return len(world) * rows * columns * model.shape.token_bytes


def make_memory(
    model: VideoLanguageModel, world: PatrolWorld, sizes: Sizes, retrieval: RetrievalSettings, **archive: object
) -> VideoMemory:
    """A memory of these sizes; ``archive_ratio`` 0 makes one that keeps every frame and has no archive."""
    rows, columns = model.grid(world.settings.size, world.settings.size)
    tokens = rows * columns
    reserve = len(model.suffix_ids("")) + QUESTION_TOKENS + ANSWER_TOKENS
    arena_frames = sizes.arena_frames
    if sizes.archive_ratio:
        reserve += retrieval.capacity_tokens or retrieval.top_k * tokens
    else:
        arena_frames = len(world) + BLOCK_FRAMES
    budget = smallest_budget(model.shape, len(model.prefix_ids), reserve, arena_frames * tokens) / MIB + 1e-6
    memory = MemorySettings(
        budget_mib=max(budget, 0.01),
        policy=sizes.policy if sizes.archive_ratio else "full",
        block_frames=BLOCK_FRAMES,
        max_question_tokens=QUESTION_TOKENS,
        max_answer_tokens=ANSWER_TOKENS,
    )
    kept = ArchiveSettings(
        budget_mib=budget * sizes.archive_ratio, precision=sizes.precision, frame_patches=tokens, **archive  # type: ignore[arg-type]
    )
    settings = StreamSettings(memory=memory, archive=kept, retrieval=retrieval, gate=GateSettings(mode="off"))
    return VideoMemory(settings, model)


def watch(memory: VideoMemory, world: PatrolWorld) -> None:
    """Show the whole stream to a memory."""
    for frame in world:
        memory.observe(frame.picture, frame.stamp)


def ask_all(
    memory: VideoMemory, questions: Sequence[Question], ways: Mapping[str, RetrievalSettings]
) -> dict[str, Tally]:
    """The same questions under several ways of retrieval; the memory is the same each time, for it is rolled back."""
    tallies = {name: Tally() for name in ways}
    for name, way in ways.items():
        if memory.archive_retrieval is not None:
            memory.archive_retrieval.settings = way
        for question in questions:
            tallies[name].add(question, memory.ask(question.text))
    return tallies


def ways_of(base: RetrievalSettings) -> dict[str, RetrievalSettings]:
    """No retrieval, each expert alone, both fused."""
    return {
        "none": replace(base, top_k=0),
        "internal": replace(base, external_weight=0.0),
        "external": replace(base, internal_weight=0.0),
        "fused": base,
    }
