# SPDX-License-Identifier: Apache-2.0
"""From a question to the archived frames to bring back: experts rank, ranks are fused, moments are chosen.

Half of the moments are those most like the question, half those that were novel when they were seen. Questions of order
(first, last, before, after) take the novel ones, since the experts only find frames that look like the question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.retrieval.external import ExternalEncoder, external_scores
from ros_kvstream.retrieval.fusion import Expert, RankedFrame, choose_moments, fuse, same_moment
from ros_kvstream.retrieval.internal import internal_scores
from ros_kvstream.retrieval.novelty import novelty_scores
from ros_kvstream.settings import RetrievalSettings

NOVELTY = "novelty"
"""Name, in the evidence, of the ranking behind questions of order."""
NOVEL = 1.0
"""Least novelty of a moment, standard deviations above the mean of the stream."""
POOL = 2
"""Novel moments that are considered, as a multiple of ``top_k``."""
ORDER_WORDS = {
    "first": "first", "earliest": "first", "begin": "first", "beginning": "first", "start": "first",
    "last": "last", "latest": "last", "recently": "last", "finally": "last",
    "before": "before", "earlier": "before", "previous": "before", "preceding": "before",
    "after": "after", "later": "after", "next": "after", "following": "after", "then": "after",
}  # fmt: skip
"""English words that mark a question of order."""
_SEEING = "see|saw|seen|spot(?:ted)?|noticed?|observed?|find|found|meet|met|pass(?:ed)?|encounter(?:ed)?"
_NAMED = re.compile(rf"\b(?:first|last) (?:{_SEEING}) (?:the|an?|any|my|your|our|his|her|their|this|that)\b")
"""Words that mark none, as in "Where did you last see the cone?": the cone is found by what it looks like."""


def question_order(question: str) -> str:
    """first | last | before | after, or '' when the question is not one of order."""
    words = " ".join(re.findall(r"[a-z]+", question.lower()))
    for word in _NAMED.sub(" ", words).split():
        if word in ORDER_WORDS:
            return ORDER_WORDS[word]
    return ""


def searched_order(settings: RetrievalSettings, question: str) -> str:
    """Order of the question where retrieval goes by it; '' where it goes by likeness and novelty alone."""
    return question_order(question) if settings.temporal_diversity == "auto" else ""


def expert_scores(
    archive: Archive,
    settings: RetrievalSettings,
    encoder: ExternalEncoder | None,
    question: str,
    queries: Mapping[int, Tensor],
) -> dict[str, Expert]:
    """Each expert's scores of all archive slots.

    :param queries: layer -> un-rotated query, float32 [heads, head_dim]; empty without the internal expert.
    """
    experts: dict[str, Expert] = {}
    if settings.internal_weight > 0 and queries:
        scores = internal_scores(archive, queries, settings).numpy()
        experts["internal"] = Expert(settings.internal_weight, scores)
    if settings.external_weight > 0 and encoder is not None:
        vector = encoder.embed_text(question)
        if np.any(vector):
            experts["external"] = Expert(settings.external_weight, external_scores(archive, vector))
    return experts


def choose_frames(
    archive: Archive,
    settings: RetrievalSettings,
    encoder: ExternalEncoder | None,
    question: str,
    queries: Mapping[int, Tensor],
    allowed: NDArray[np.bool_],
    present: Collection[int] = (),
) -> list[RankedFrame]:
    """The frames to bring back, best first, at most ``top_k`` beside those that are present.

    Half of them are the moments that are most like the question, one frame of each; the others are the most novel
    moments, so that the context spans the stream. Questions of order need all of them: novel moments alone, and the
    moment that the question names.

    :param queries: as in :func:`expert_scores`; :param allowed: archive slots that pass the filters, [slots];
    :param present: ids of frames that are in the context anyway.
    """
    count, diversity = settings.top_k, settings.temporal_diversity
    gap = max(settings.moment_gap_seconds, 1.2 * frame_interval(archive.table.frames[allowed]))

    def moments(experts: Mapping[str, Expert], frames: int) -> list[RankedFrame]:
        ranked = fuse(experts, allowed, archive.table.frames, k=settings.rrf_k, depth=settings.rank_depth)
        return choose_moments(ranked, POOL * count, gap_seconds=gap, moment_frames=frames)

    def first(ranked: Iterable[RankedFrame], number: int = count) -> list[RankedFrame]:
        return choose_moments(ranked, number, gap_seconds=gap, moment_frames=1, present=present)

    order = searched_order(settings, question)
    likely: list[RankedFrame] = []
    if diversity != "always" and order not in ("first", "last"):
        likely = moments(expert_scores(archive, settings, encoder, question, queries), settings.moment_frames)
    if diversity == "never":
        return likely[:count]
    ranked = moments({NOVELTY: Expert(1.0, novelty_scores(archive, allowed))}, 1)
    novel = [frame for frame in ranked if frame.scores[NOVELTY] >= NOVEL] or ranked[:1]
    if not likely:
        return sorted(first(novel), key=lambda frame: frame.frame_id, reverse=order == "last")
    if not order:
        return first([*first(likely, (count + 1) // 2), *novel, *likely])
    return first([*named_moments(likely, novel, first(novel), order, gap), *novel])


def frame_interval(frames: NDArray[np.void]) -> float:
    """Seconds between neighbouring frames of a camera where the stream is dense (first quartile); 0 if not known.

    :param frames: live entries of the archive's table.
    """
    order = np.argsort(frames["frame_id"])
    steps = np.diff(frames["stamp"][order]) / np.maximum(np.diff(frames["frame_id"][order]), 1)
    steps = steps[steps > 0]
    return float(np.quantile(steps, 0.25)) * len(np.unique(frames["camera"])) if steps.size else 0.0


def named_moments(
    likely: Sequence[RankedFrame], novel: Sequence[RankedFrame], chosen: Sequence[RankedFrame], order: str, gap: float
) -> list[RankedFrame]:
    """The moment that a question of order names, and the novel one before or after it; empty if it is chosen already.

    :param likely: moments like the question, best first; the first that is also novel is the one named.
    :param novel: novel moments; :param order: before | after; :param gap: moments closer than this are one, seconds.
    """

    def among(frame: RankedFrame, others: Sequence[RankedFrame]) -> bool:
        return any(same_moment(frame, other, gap) for other in others)

    named = next((frame for frame in likely if among(frame, novel)), likely[0])
    if among(named, chosen):
        return []
    sign = -1 if order == "before" else 1
    beside = [f for f in novel if sign * (f.frame_id - named.frame_id) > 0 and not same_moment(f, named, gap)]
    return [named, *sorted(beside, key=lambda frame: sign * frame.frame_id)[:1]]
