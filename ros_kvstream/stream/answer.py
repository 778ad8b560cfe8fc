# SPDX-License-Identifier: Apache-2.0
"""Answering of one question: check, flush, context, prefill, decode, evidence, roll back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from ros_kvstream.errors import QuestionCancelled, QuestionError
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.records import UNLIMITED, Answer, LatencyBreakdown, Question, Scope
from ros_kvstream.retrieval.context import build_context
from ros_kvstream.retrieval.evidence import attended_evidence, attention_mass, evidence_layers
from ros_kvstream.settings import MemorySettings
from ros_kvstream.stream.ingest import Ingest


def check_question(
    model: VideoLanguageModel,
    memory: MemorySettings,
    text: str,
    scope: Scope = UNLIMITED,
    max_new_tokens: int | None = None,
) -> Question:
    """The question with its tokens and limits; parameters as in :meth:`VideoMemory.ask`.

    :raises QuestionError: for an empty or too long question, or an invalid limit.
    """
    if max_new_tokens is not None and not 1 <= max_new_tokens <= memory.max_answer_tokens:
        raise QuestionError(
            f"max_new_tokens = {max_new_tokens}: must be 1 to {memory.max_answer_tokens} (memory.max_answer_tokens)"
        )
    if not text or not text.strip():
        raise QuestionError("the question is empty: give it at least one word")
    ids = model.suffix_ids(text.strip())
    tokens = len(ids) - len(model.suffix_ids(""))
    if tokens > memory.max_question_tokens:
        raise QuestionError(
            f"the question has {tokens} tokens: the limit is {memory.max_question_tokens}. "
            "Shorten it or raise memory.max_question_tokens."
        )
    return Question(text, tuple(ids), scope, max_new_tokens or memory.max_answer_tokens)


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

    :raises QuestionError: when there is no frame, or none that passes the question's filters;
    :raises QuestionCancelled: when ``should_stop`` returns True before a token;
    :raises NonFiniteError: when the model computes values that are not finite.
    """
    started = time.perf_counter()
    ingest.flush()
    flushed = time.perf_counter()
    if ingest.frame_index.newest() is None:
        raise QuestionError("there is no frame yet: wait for the first camera image")
    model, arena, ids = ingest.model, ingest.arena, question.ids
    mark, start = arena.mark(), ingest.text_start
    try:
        capacity = arena.plan.reserve_slots - len(ids) - ingest.settings.memory.max_answer_tokens
        context = build_context(ingest, question, start, capacity)
        retrieved = time.perf_counter()
        with model.capture_queries(evidence_layers(model.shape.layers)) as queries:
            logits = append_text(model, arena, ids, start, context.visible)
        token = int(logits.argmax())
        first = time.perf_counter()
        last = model.layout.text(start + len(ids) - 1, 1)
        mass = attention_mass(arena, {layer: query[:, -1] for layer, query in queries.items()}, last)
        tokens, reason = _decode(ingest, token, start + len(ids), question, context.visible, should_stop, on_token)
        decoded = time.perf_counter()
    finally:
        arena.roll_back(mark)
    latency = LatencyBreakdown(
        flush_ms=1e3 * (flushed - started),
        retrieval_ms=1e3 * (retrieved - flushed),
        prefill_ms=1e3 * (first - retrieved),
        first_token_ms=1e3 * (first - started),
        decode_ms=1e3 * (decoded - first),
        total_ms=1e3 * (time.perf_counter() - started),
        answer_tokens=len(tokens),
    )
    evidence = attended_evidence(
        mass, context.shown, context.evidence, arena, ingest.frame_index, by_time=context.by_time
    )
    ingest.counters["questions"] += 1
    asked_at = ingest.frame_index.newest_stamp()
    return Answer(question.text, model.decode(tokens), evidence, latency, ingest.stats(), asked_at, reason)


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


def _decode(
    ingest: Ingest,
    token: int,
    position: int,
    question: Question,
    visible: list[Tensor] | None,
    should_stop: Callable[[], bool] | None,
    on_token: Callable[[str], None] | None,
) -> tuple[list[int], str]:
    """Decode greedily from the first answer token on; returns the tokens and the finish reason."""
    model, sent = ingest.model, ""
    tokens: list[int] = []
    while token not in model.eos_ids:
        if should_stop is not None and should_stop():
            raise QuestionCancelled(f"stopped after {len(tokens)} answer tokens")
        tokens.append(token)
        if on_token is not None:
            text = model.decode(tokens)
            on_token(text[len(sent) :])
            sent = text
        if len(tokens) >= question.max_tokens:
            return tokens, "length"
        token = int(append_text(model, ingest.arena, [token], position, visible).argmax())
        position += 1
    return tokens, "stop"
