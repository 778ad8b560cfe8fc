"""Policies side by side on the same encoded streams: what a memory of a given size still knows at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from ros_kvstream.memory.budget import MIB, smallest_budget
from ros_kvstream.memory.policies import SelectionPolicy
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.patrol.mix import mixed_stream, trained_seconds
from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.questions import Question
from ros_kvstream.settings import GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

HELD_OUT, TUNING = 20258, 20259
"""Seeds of the streams that figures are reported on, and of those that defaults are tuned on."""
MAX_QUESTION_TOKENS, MAX_ANSWER_TOKENS = 32, 8


@dataclass(frozen=True)
class Trial:
    """One way to keep a memory small."""

    policy: str = "infinipot_v"
    options: Mapping[str, object] = field(default_factory=dict)
    share: float = 1.0
    """Frame slots as a share of those that the whole stream would fill: the hard cap, never passed."""
    keep_ratio: float = MemorySettings.keep_ratio
    block_frames: int = MemorySettings.block_frames
    replacement: Callable[[SelectionPolicy], SelectionPolicy] | None = None
    """Puts another policy in place of the one made from the settings (ablations)."""


@dataclass(frozen=True)
class EncodedStream:
    """A stream whose pictures went through the vision tower once, with its questions."""

    frames: Sequence[Frame]
    stamps: Sequence[float]
    tokens: Sequence[FrameTokens]
    questions: Sequence[Question]


@dataclass
class Score:
    """Answers right and asked, by when the evidence was seen."""

    right: dict[str, int] = field(default_factory=lambda: {"now": 0, "before": 0})
    asked: dict[str, int] = field(default_factory=lambda: {"now": 0, "before": 0})

    def add(self, question: Question, answer: str) -> None:
        """Count one answer; it is right when it is the expected one, word for word."""
        self.asked[question.when] += 1
        self.right[question.when] += answer.strip() == question.answer

    def merge(self, other: Score) -> None:
        """Count another stream's answers too."""
        for when in self.asked:
            self.asked[when] += other.asked[when]
            self.right[when] += other.right[when]

    def accuracy(self) -> dict[str, float]:
        """Share of right answers, "now" and "before"."""
        return {when: self.right[when] / max(1, self.asked[when]) for when in self.asked}


def streams(model: VideoLanguageModel, frames: int, count: int, questions: int, seed: int) -> Iterable[EncodedStream]:
    """``count`` streams of the training mix on seeds of their own, encoded one at a time."""
    random = np.random.default_rng([seed, frames])
    seconds = trained_seconds(model)
    for _ in range(count):
        yield encode(model, mixed_stream(frames, 8, seconds, random), questions)


def encode(model: VideoLanguageModel, world: PatrolWorld, questions: int, batch: int = 32) -> EncodedStream:
    """Draw a stream and run the vision tower on it, ``batch`` pictures at a time."""
    frames = [frame.picture for frame in world]
    tokens: list[FrameTokens] = []
    for start in range(0, len(frames), batch):
        tokens += model.encode_frames(frames[start : start + batch])
    stamps = [world.stamp(index) for index in range(len(world))]
    return EncodedStream(frames, stamps, tokens, world.questions(questions))


def run_trial(model: VideoLanguageModel, stream: EncodedStream, trial: Trial) -> Score:
    """Show the stream to a VideoMemory of the trial's size and ask the questions after the last frame."""
    memory = VideoMemory(_settings(model, stream, trial), cast(VideoLanguageModel, _KnownPictures(model, stream)))
    if trial.replacement is not None:
        memory.ingest.policy = trial.replacement(memory.ingest.policy)
    for frame, stamp in zip(stream.frames, stream.stamps, strict=True):
        memory.observe(frame, stamp)
    score = Score()
    for question in stream.questions:
        score.add(question, memory.ask(question.text).text)
    memory.close()
    return score


def frame_slots(stream: EncodedStream, share: float) -> int:
    """Frame slots of a memory with this share of the full cache."""
    return round(share * sum(len(tokens.embeddings) for tokens in stream.tokens))


def _settings(model: VideoLanguageModel, stream: EncodedStream, trial: Trial) -> StreamSettings:
    """Exactly the budget that gives the trial's frame slots; every frame is computed, nothing is archived."""
    reserve = len(model.suffix_ids("")) + MAX_QUESTION_TOKENS + MAX_ANSWER_TOKENS
    slots = frame_slots(stream, trial.share)
    budget = smallest_budget(model.shape, len(model.prefix_ids), reserve, slots)
    memory = MemorySettings(
        budget_mib=budget / MIB,
        policy=trial.policy,
        policy_settings=trial.options,
        keep_ratio=trial.keep_ratio,
        block_frames=trial.block_frames,
        max_question_tokens=MAX_QUESTION_TOKENS,
        max_answer_tokens=MAX_ANSWER_TOKENS,
    )
    return StreamSettings(memory=memory, gate=GateSettings(mode="off"))


class _KnownPictures:
    """The model, but for pictures of a stream that have been through the vision tower already."""

    def __init__(self, model: VideoLanguageModel, stream: EncodedStream) -> None:
        self._model = model
        self._known = {id(frame): tokens for frame, tokens in zip(stream.frames, stream.tokens, strict=True)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode_grids(self, grids: Sequence[Sequence[Frame]]) -> list[FrameTokens]:
        """Look the pictures up; grids are of one frame."""
        return [self._known[id(frame)] for (frame,) in grids]
