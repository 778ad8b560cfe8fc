# SPDX-License-Identifier: Apache-2.0
"""Accuracy on patrol streams: streams on held-out seeds, questions after the last frame, answers as result lines.

A result line is a mapping as in the results of `kvstream evaluate`, so that ros_kvstream.evaluation scores and sums up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ros_kvstream.errors import BudgetError
from ros_kvstream.evaluation.scoring import Exact
from ros_kvstream.evaluation.summary import Line, share
from ros_kvstream.memory.budget import MIB, plan_budget, smallest_budget
from ros_kvstream.models.base import Frame, FrameTokens, VideoLanguageModel
from ros_kvstream.models.loading import TINY_FOLDER, load_model
from ros_kvstream.patrol.patrol import PatrolFrame, PatrolWorld
from ros_kvstream.patrol.questions import Question
from ros_kvstream.settings import ModelSettings, QuantizedSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory
from training.mix import mixed_stream

OBJECTS = 8
"""Most sightings in a stream."""
WHEN = ("now", "before")
"""Whether the answer is in the newest frame or in earlier ones."""
QUESTION_POSITIONS = 64
"""Positions of a question and its answer after a stream."""
UNTIMED_SECONDS = 2000.0
"""Maximum length of a stream for families whose positions are not times."""
TEXT_TOKENS: dict[str, Any] = {"max_question_tokens": 32, "max_answer_tokens": 8}


@dataclass(frozen=True)
class Stream:
    """A patrol and the questions that are asked after its last frame."""

    name: str
    frames: Sequence[PatrolFrame]
    questions: Sequence[Question]


def make_stream(world: PatrolWorld, questions: int) -> Stream:
    """Draw all frames of a patrol and choose its questions."""
    return Stream(f"{len(world)} frames, seed {world.settings.seed}", list(world), world.questions(questions))


def trained_seconds(model: VideoLanguageModel) -> float:
    """Maximum length of a stream, seconds, for which a question after it still has trained positions."""
    if not model.tokens_per_second:
        return UNTIMED_SECONDS
    return (model.position_limit - QUESTION_POSITIONS) / model.tokens_per_second


def mixed_streams(model: VideoLanguageModel, frames: int, count: int, questions: int, seed: int) -> Iterator[Stream]:
    """Streams of the training mix, drawn one at a time; equal seeds give equal streams."""
    random = np.random.default_rng([seed, frames])
    seconds = trained_seconds(model)
    for _ in range(count):
        yield make_stream(mixed_stream(frames, OBJECTS, seconds, random), questions)


class EncodedModel:
    """A model that has the visual tokens of a stream's frames already, for many memories of the same stream."""

    def __init__(self, model: VideoLanguageModel, stream: Stream, batch: int = 32) -> None:
        pictures = [frame.picture for frame in stream.frames]
        self._model = model
        self._tokens: dict[int, FrameTokens] = {}
        for start in range(0, len(pictures), batch):
            encoded = model.encode_frames(pictures[start : start + batch])
            self._tokens |= zip(map(id, pictures[start : start + batch]), encoded, strict=True)
        self.stream_tokens = sum(len(tokens.embeddings) for tokens in self._tokens.values())
        """Visual tokens of the whole stream: the frame slots of a full cache."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode_grids(self, grids: Sequence[Sequence[Frame]]) -> list[FrameTokens]:
        """Look up the tokens of grids of one frame."""
        return [self._tokens[id(frame)] for (frame,) in grids]


def observe_all(memory: VideoMemory, stream: Stream) -> None:
    """Show every frame to a memory."""
    for frame in stream.frames:
        memory.observe(frame.picture, frame.stamp)


def ask_all(memory: VideoMemory, stream: Stream) -> list[Line]:
    """Ask every question; one result line each."""
    return [
        {
            "episode": stream.name, "frames": len(stream.frames), "kind": question.when, "task": question.kind,
            "expected": question.answer, "answer": answer.text, "correct": Exact(question.answer).accepts(answer.text),
            "asked_at": answer.asked_at, "true_evidence": question.evidence,
            "evidence": [{"stamp": frame.stamp, "ranks": frame.ranks} for frame in answer.evidence],
            "first_token_ms": answer.latency.first_token_ms, "confidence": answer.confidence,
            "verdict": answer.verdict.value,
        }
        for question in stream.questions
        for answer in [memory.ask(question.text)]
    ]  # fmt: skip


def observe_and_ask(model: VideoLanguageModel, settings: StreamSettings, stream: Stream) -> list[Line]:
    """Result lines of a fresh memory with these settings."""
    memory = VideoMemory(settings, model)
    observe_all(memory, stream)
    lines = ask_all(memory, stream)
    memory.close()
    return lines


def accuracy(lines: Sequence[Line], kind: str = "", tasks: Collection[str] = ()) -> float:
    """Share of right answers among the lines of a kind ("now", "before") or of some tasks; 0 without any."""
    part = share(line for line in lines if kind in ("", line["kind"]) and (not tasks or line["task"] in tasks))
    return part.value if part else 0.0


def by_when(lines: Sequence[Line]) -> dict[str, float]:
    """Accuracy "now" and "before"."""
    return {when: accuracy(lines, when) for when in WHEN}


def intervals(lines: Sequence[Line]) -> dict[str, list[float]]:
    """95 % bootstrap intervals of the accuracy "now" and "before", where there were such questions."""
    parts = {when: share(line for line in lines if line["kind"] == when) for when in WHEN}
    return {when: [part.low, part.high] for when, part in parts.items() if part}


def load(path: str, **settings: Any) -> VideoLanguageModel:
    """Load a model on the CPU; ``path``: "tiny" or a folder."""
    return load_model(ModelSettings(path=path, device="cpu", **settings))


def model_folder(path: str) -> Path:
    """Folder of a model; ``path``: "tiny" or a folder."""
    return TINY_FOLDER if path == "tiny" else Path(path)


def budget_for_slots(
    model: VideoLanguageModel, slots: int, text_tokens: int, quantized: QuantizedSettings | None = None,
    block_tokens: int = 4,
) -> float:  # fmt: skip
    """MiB of the smallest memory with so many frame slots, in the native dtype or quantized.

    :param text_tokens: of question, answer and retrieved frames; :param block_tokens: of one block of frames.
    """
    pinned, reserve = len(model.prefix_ids), len(model.suffix_ids("")) + text_tokens
    plain = smallest_budget(model.shape, pinned, reserve, slots)
    if quantized is None:
        return plain / MIB

    def holds(kib: int) -> bool:
        room: dict[str, Any] = {"pinned": pinned, "reserve": reserve, "frame_tokens": block_tokens}
        try:
            return plan_budget(model.shape, kib << 10, quantized, **room).frame_slots >= slots
        except BudgetError:
            return False

    return bisect_left(range(plain >> 6), True, key=holds) / 1024  # 16 times the plain budget is ample
