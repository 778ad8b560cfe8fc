"""One question's way through the arena: prefill, decode, evidence, roll back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.errors import QuestionCancelled, QuestionError
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.frame_index import FrameIndex
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.records import FrameEvidence, LatencyBreakdown
from ros_kvstream.retrieval.attention_evidence import attention_mass
from ros_kvstream.retrieval.context import Context, ContextBuilder, Filters
from ros_kvstream.settings import MemorySettings

MAX_EVIDENCE = 8
"""Frames named as evidence of an answer, best first."""


@dataclass(frozen=True)
class AnswerLimits:
    """What a caller asked for beside the question; refuses bad values when made."""

    camera: str
    since: float
    until: float
    max_new_tokens: int | None
    memory: MemorySettings

    def __post_init__(self) -> None:
        limit = self.memory.max_answer_tokens
        wanted = self.max_new_tokens
        if wanted is not None and not 1 <= wanted <= limit:
            raise QuestionError(
                f"max_new_tokens = {wanted}: must be 1 to {limit} (memory.max_answer_tokens), whose slots are reserved"
            )
        for name, stamp in (("since", self.since), ("until", self.until)):
            if not math.isfinite(stamp) or stamp < 0:
                raise QuestionError(f"{name} = {stamp}: must be a stamp in seconds, or 0 for unbounded")
        if self.since and self.until and self.since > self.until:
            raise QuestionError(f"since = {self.since} is after until = {self.until}: swap them")

    @property
    def tokens(self) -> int:
        """Most answer tokens."""
        return self.max_new_tokens or self.memory.max_answer_tokens

    @property
    def filtered(self) -> bool:
        """Whether only some frames may be looked at."""
        return bool(self.camera or self.since or self.until)


class Answerer:
    """Answers one question at a time from the arena as it stands, and leaves no trace in it."""

    def __init__(
        self, model: VideoLanguageModel, arena: Arena, frame_index: FrameIndex, builder: ContextBuilder | None = None
    ) -> None:
        self.model = model
        self.arena = arena
        self.frame_index = frame_index
        self.builder = builder

    def answer(
        self,
        question: str,
        ids: list[int],
        start: int,
        limits: AnswerLimits,
        flush_ms: float,
        should_stop: Callable[[], bool] | None,
        on_token: Callable[[str], None] | None,
    ) -> tuple[str, tuple[FrameEvidence, ...], LatencyBreakdown, str]:
        """Text, evidence, latency and finish reason; the arena is rolled back in every case."""
        mark = self.arena.mark()
        asked = time.perf_counter()
        try:
            context = self._context(question, ids, start, limits)
            visible = context.visible
            began = time.perf_counter()
            layers = range(self.model.shape.layers)
            with self.model.capture_queries(layers) as queries:
                logits = self._forward(ids, start, visible)
            token = int(logits.argmax())
            first = time.perf_counter()
            last = self.model.text_positions(start + len(ids) - 1, 1)
            mass = attention_mass(self.arena, {i: q[:, -1] for i, q in queries.items()}, last)
            tokens, reason = self._decode(token, start + len(ids), limits, visible, should_stop, on_token)
            decoded = time.perf_counter()
        finally:
            self.arena.roll_back(mark)
        latency = LatencyBreakdown(
            flush_ms=flush_ms,
            retrieval_ms=1e3 * (began - asked),
            prefill_ms=1e3 * (first - began),
            first_token_ms=flush_ms + 1e3 * (first - asked),
            decode_ms=1e3 * (decoded - first),
            total_ms=flush_ms + 1e3 * (time.perf_counter() - asked),
            answer_tokens=len(tokens),
        )
        return self.model.decode(tokens), self._evidence(mass, context), latency, reason

    def _context(self, question: str, ids: list[int], start: int, limits: AnswerLimits) -> Context:
        """What the question may look at; retrieved frames are behind the arena's own afterwards."""
        if self.builder is not None:
            room = self.arena.plan.reserve_slots - len(ids) - limits.memory.max_answer_tokens
            filters = Filters(limits.camera, limits.since, limits.until)
            context = self.builder.build(question, ids, start, filters, room)
            if context is not None and (context.shown or context.evidence or not limits.filtered):
                return context
        frames = self.frame_index.matching(limits.camera, limits.since, limits.until)
        if not limits.filtered:
            return Context(None, tuple(frames), ())
        if not frames:
            raise QuestionError(
                f"no remembered frame matches camera = {limits.camera!r}, since = {limits.since}, "
                f"until = {limits.until}: widen them"
            )
        return Context(self.arena.visible(frames), tuple(frames), ())

    def _forward(self, ids: list[int], start: int, visible: list[Tensor] | None) -> Tensor:
        """Append text tokens behind the memory; returns the last one's logits."""
        positions = self.model.text_positions(start, len(ids))
        self.arena.begin(Chunk.of_text(positions), frames=False)
        logits = self.model.forward(self.arena, self.model.embed(ids), positions, logits=True, visible=visible)
        self.arena.commit()
        assert logits is not None
        return logits

    def _decode(
        self,
        token: int,
        position: int,
        limits: AnswerLimits,
        visible: list[Tensor] | None,
        should_stop: Callable[[], bool] | None,
        on_token: Callable[[str], None] | None,
    ) -> tuple[list[int], str]:
        tokens: list[int] = []
        told = ""
        while token not in self.model.eos_ids:
            if should_stop is not None and should_stop():
                raise QuestionCancelled(f"stopped after {len(tokens)} answer tokens")
            tokens.append(token)
            if on_token is not None:
                text = self.model.decode(tokens)
                on_token(text[len(told) :])
                told = text
            if len(tokens) >= limits.tokens:
                return tokens, "length"
            token = int(self._forward([token], position, visible).argmax())
            position += 1
        return tokens, "stop"

    def _evidence(self, mass: dict[int, float], context: Context) -> tuple[FrameEvidence, ...]:
        """The retrieved frames, then those looked at most, each with the share of its slots that is still there."""
        allowed = set(context.shown) - {frame.frame_id for frame in context.evidence}
        kept = self.arena.frames_kept()
        ranked = sorted((frame for frame in mass if frame in allowed), key=lambda frame: (-mass[frame], -frame))
        evidence = list(context.evidence)
        for frame in ranked[: max(0, MAX_EVIDENCE - len(evidence))]:
            record = self.frame_index[frame]
            share = min(1.0, kept.get(frame, 0.0) / max(record.tokens, 1))
            evidence.append(
                FrameEvidence(frame, record.stamp, record.stamp_end, record.camera, mass[frame], kept_share=share)
            )
        return tuple(evidence)
