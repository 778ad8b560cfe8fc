# SPDX-License-Identifier: Apache-2.0
"""Answering of one question: check, flush, context, prefill, decode, evidence, roll back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from torch import Tensor

from ros_kvstream.errors import NotCoveredError, QuestionCancelled, QuestionError
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.records import UNLIMITED, Answer, LatencyBreakdown, Question, Scope, Verdict
from ros_kvstream.retrieval.context import build_context
from ros_kvstream.retrieval.evidence import attended_evidence, attention_mass, evidence_layers
from ros_kvstream.settings import MemorySettings
from ros_kvstream.stream.coverage import cameras_remembered, covered
from ros_kvstream.stream.ingest import Ingest
from ros_kvstream.stream.verdict import verdict_of


def check_question(
    model: VideoLanguageModel,
    memory: MemorySettings,
    text: str,
    scope: Scope = UNLIMITED,
    max_new_tokens: int | None = None,
    min_confidence: float = 0.0,
) -> Question:
    """The question with its tokens and limits; parameters as in :meth:`VideoMemory.ask`.

    :raises QuestionError: for an empty or too long question, or an invalid limit.
    """
    if max_new_tokens is not None and not 1 <= max_new_tokens <= memory.max_answer_tokens:
        raise QuestionError(
            f"max_new_tokens = {max_new_tokens}: must be 1 to {memory.max_answer_tokens} (memory.max_answer_tokens)"
        )
    if not 0.0 <= min_confidence <= 1.0:
        raise QuestionError(f"min_confidence = {min_confidence}: must be 0 to 1")
    if not text or not text.strip():
        raise QuestionError("the question is empty: give it at least one word")
    ids = model.suffix_ids(text.strip())
    tokens = len(ids) - len(model.suffix_ids(""))
    if tokens > memory.max_question_tokens:
        raise QuestionError(
            f"the question has {tokens} tokens: the limit is {memory.max_question_tokens}. "
            "Shorten it or raise memory.max_question_tokens."
        )
    return Question(text, tuple(ids), scope, max_new_tokens or memory.max_answer_tokens, min_confidence)


def check_scope(scope: Scope) -> None:
    """Raise QuestionError for limits that are not finite or contradict each other."""
    for name, stamp in (("since", scope.since), ("until", scope.until)):
        if not math.isfinite(stamp) or stamp < 0:
            raise QuestionError(f"{name} = {stamp}: must be a stamp in seconds, or 0 for unbounded")
    if scope.since and scope.until and scope.since > scope.until:
        raise QuestionError(f"since = {scope.since} is after until = {scope.until}: swap them")
    if not math.isfinite(scope.radius) or scope.radius < 0:
        raise QuestionError(f"radius = {scope.radius}: must be metres, or 0 for anywhere")
    if scope.near is not None and not all(map(math.isfinite, scope.near)):
        raise QuestionError(f"near = {scope.near}: must be three finite numbers of metres")


def answer_question(
    ingest: Ingest,
    question: Question,
    should_stop: Callable[[], bool] | None = None,
    on_token: Callable[[str], None] | None = None,
) -> Answer:
    """Answer from the memory, which is rolled back in every case; the waiting block is prefilled first.

    Where nothing is remembered of what the question is about, the answer says so, and the model is not asked.

    :raises QuestionCancelled: when ``should_stop`` returns True before a token;
    :raises NonFiniteError: when the model computes values that are not finite.
    """
    started = time.perf_counter()
    ingest.flush()
    flushed = time.perf_counter()
    model, arena, ids = ingest.model, ingest.arena, question.ids
    mark, start = arena.mark(), ingest.text_start
    try:
        capacity = arena.plan.reserve_slots - len(ids) - ingest.settings.memory.max_answer_tokens
        context = build_context(ingest, question, start, capacity)
        retrieved = time.perf_counter()
        with model.capture_queries(evidence_layers(model.shape.layers)) as queries:
            logits = append_text(model, arena, ids, start, context.visible)
        first = time.perf_counter()
        last = model.layout.text(start + len(ids) - 1, 1)
        mass = attention_mass(arena, {layer: query[:, -1] for layer, query in queries.items()}, last)
        decoded = _decode(ingest, logits, start + len(ids), question, context.visible, should_stop, on_token)
        ended = time.perf_counter()
    except NotCoveredError:
        return _not_covered(ingest, question, on_token)
    finally:
        arena.roll_back(mark)
    latency = LatencyBreakdown(
        flush_ms=1e3 * (flushed - started),
        retrieval_ms=1e3 * (retrieved - flushed),
        prefill_ms=1e3 * (first - retrieved),
        first_token_ms=1e3 * (first - started),
        decode_ms=1e3 * (ended - first),
        total_ms=1e3 * (time.perf_counter() - started),
        answer_tokens=len(decoded.tokens),
    )
    evidence = attended_evidence(
        mass, context.shown, context.evidence, arena, ingest.frame_index, by_time=context.by_time
    )
    ingest.counters["questions"] += 1
    text = model.decode(decoded.tokens)
    return Answer(
        question.text,
        text,
        evidence,
        latency,
        ingest.stats(),
        ingest.frame_index.newest_stamp(),
        decoded.reason,
        verdict_of(question.text, text) if decoded.confidence >= question.min_confidence else Verdict.NOT_SEEN,
        decoded.confidence,
        **asdict(covered(ingest, question.scope)),
    )


def _not_covered(ingest: Ingest, question: Question, on_token: Callable[[str], None] | None) -> Answer:
    """The answer to a question about a time, place or camera of which nothing is remembered."""
    ingest.counters["questions"] += 1
    remembered = covered(ingest, UNLIMITED)
    if not remembered.covered_share:
        text = "I have not seen anything yet."
    else:
        text = (
            f"I remember nothing of {question.scope}. I remember frames from {remembered.covered_since:.3f} to "
            f"{remembered.covered_until:.3f} of {', '.join(cameras_remembered(ingest))}."
        )
    if on_token is not None:
        on_token(text)
    asked_at, coverage = ingest.frame_index.newest_stamp(), asdict(covered(ingest, question.scope))
    stats, latency = ingest.stats(), LatencyBreakdown()
    return Answer(
        question.text, text, (), latency, stats, asked_at, "not_covered", Verdict.NOT_COVERED, **coverage
    )


def append_text(
    model: VideoLanguageModel, arena: Arena, ids: Sequence[int], start: int, visible: list[Tensor] | None
) -> Tensor:
    """Append text tokens behind the arena's slots; returns the last token's logits, float32 [vocabulary].

    :param visible: per layer bool [kv_heads, slots], False where a slot is hidden; None shows all.
    """
    positions = model.layout.text(start, len(ids))
    arena.begin(Chunk.of_text(positions), frames=False)
    logits = model.forward(arena, model.embed(ids), positions, logits=True, visible=visible)
    arena.commit()
    assert logits is not None
    return logits


@dataclass(frozen=True)
class _Decoded:
    """Tokens of an answer."""

    tokens: list[int]
    reason: str
    """As Answer.finish_reason."""
    confidence: float
    """As Answer.confidence."""


def _decode(
    ingest: Ingest,
    logits: Tensor,
    position: int,
    question: Question,
    visible: list[Tensor] | None,
    should_stop: Callable[[], bool] | None,
    on_token: Callable[[str], None] | None,
) -> _Decoded:
    """Decode greedily from the logits behind the question on."""
    model, sent = ingest.model, ""
    tokens: list[int] = []
    surprise, reason = 0.0, "length"
    while True:
        token = int(logits.argmax())
        surprise -= float(logits.log_softmax(-1)[token])
        if token in model.eos_ids:
            reason = "stop"
            break
        if should_stop is not None and should_stop():
            raise QuestionCancelled(f"stopped after {len(tokens)} answer tokens")
        tokens.append(token)
        if on_token is not None:
            text = model.decode(tokens)
            on_token(text[len(sent) :])
            sent = text
        if len(tokens) >= question.max_tokens:
            break
        logits = append_text(model, ingest.arena, [token], position, visible)
        position += 1
    return _Decoded(tokens, reason, math.exp(-surprise / (len(tokens) + (reason == "stop"))))
