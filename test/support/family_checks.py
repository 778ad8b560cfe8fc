# SPDX-License-Identifier: Apache-2.0
"""Streams of noise through a model of any family, and the logits of a question about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ros_kvstream.memory.budget import MIB, smallest_budget
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.settings import GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.answer import append_text
from ros_kvstream.stream.memory import VideoMemory

QUESTION = "what colour is the cone ?"
SIZE = (60, 90)
"""Height and width of the pictures."""


def frames_of(seed: int, count: int, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    """Pictures of noise."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 255, (*size, 3), dtype=np.uint8) for _ in range(count)]


def stream_of(model: VideoLanguageModel, budget_mib: float = 4.0, **options: Any) -> VideoMemory:
    """A memory that evicts nothing, unless told otherwise."""
    parts = {name: options.pop(name) for name in ("archive", "retrieval", "quantized") if name in options}
    values: dict[str, Any] = {"policy": "full", "max_question_tokens": 32, "max_answer_tokens": 16}
    memory = MemorySettings(budget_mib=budget_mib, **{**values, **options})
    return VideoMemory(StreamSettings(memory=memory, gate=GateSettings(mode="off"), **parts), model)


def feed(memory: VideoMemory, frames: Sequence[np.ndarray], stamps: Sequence[float]) -> None:
    """Show frames."""
    for frame, stamp in zip(frames, stamps, strict=True):
        memory.observe(frame, stamp)


def question_logits(memory: VideoMemory, question: str = QUESTION) -> torch.Tensor:
    """Logits of the question's last token through the memory, rolled back afterwards."""
    memory.flush()
    start = memory.ingest.text_start
    mark = memory.arena.mark()
    logits = append_text(memory.model, memory.arena, memory.model.suffix_ids(question), start, None)
    memory.arena.roll_back(mark)
    return logits


def full_budget_mib(model: VideoLanguageModel, slots: int, reserve: int) -> float:
    """MiB of a memory with so many frame slots."""
    return smallest_budget(model.shape, len(model.prefix_ids), reserve, slots) / MIB
