# SPDX-License-Identifier: Apache-2.0
"""From a question to the archived frames to bring back: experts rank, ranks are fused, moments are chosen.

Questions of order (first, last, before, after) are answered from moments that were novel when they were seen, since
the experts only find frames that look like the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.retrieval.external import ExternalEncoder, external_scores
from ros_kvstream.retrieval.fusion import Expert, RankedFrame, choose_moments, fuse
from ros_kvstream.retrieval.internal import internal_scores
from ros_kvstream.retrieval.novelty import novelty_scores
from ros_kvstream.settings import RetrievalSettings

NOVELTY = "novelty"
"""Name, in the evidence, of the ranking behind questions of order."""
ORDER_WORDS = {
    "first": "first", "earliest": "first", "begin": "first", "beginning": "first", "start": "first",
    "last": "last", "latest": "last", "recently": "last", "finally": "last",
    "before": "before", "earlier": "before", "previous": "before", "preceding": "before",
    "after": "after", "later": "after", "next": "after", "following": "after", "then": "after",
}  # fmt: skip
"""English words that mark a question of order."""


def question_order(question: str) -> str:
    """first | last | before | after, or '' when the question is not one of order."""
    for word in re.findall(r"[a-z]+", question.lower()):
        if word in ORDER_WORDS:
            return ORDER_WORDS[word]
    return ""


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
) -> list[RankedFrame]:
    """The frames to bring back, best first, at most ``top_k``.

    :param queries: as in :func:`expert_scores`; :param allowed: archive slots that pass the filters, [slots].
    """

    def fused(experts: Mapping[str, Expert]) -> Iterator[RankedFrame]:
        return fuse(experts, allowed, archive.table.frames, k=settings.rrf_k, depth=settings.rank_depth)

    gap, diversity = settings.moment_gap_seconds, settings.temporal_diversity
    order = question_order(question) if diversity == "auto" else ""
    if diversity != "always" and not order:
        ranked = fused(expert_scores(archive, settings, encoder, question, queries))
        return choose_moments(ranked, settings.top_k, gap_seconds=gap, moment_frames=settings.moment_frames)
    anchor = None
    if order in ("before", "after"):
        anchor = next(fused(expert_scores(archive, settings, encoder, question, queries)), None)
    novel = fused({NOVELTY: Expert(1.0, novelty_scores(archive, allowed))})
    moments = choose_moments(novel, settings.top_k, gap_seconds=gap, moment_frames=1)
    return diverse_moments(moments, order, settings.top_k, anchor)


def diverse_moments(
    moments: Sequence[RankedFrame], order: str, count: int, anchor: RankedFrame | None = None
) -> list[RankedFrame]:
    """At most ``count`` moments for a question of order, best first.

    :param moments: one frame per distinct moment, best first; :param order: from :func:`question_order`, '' for
        moments spread evenly over time; :param anchor: the moment that the question names, for before and after.
    """
    by_time = sorted(moments, key=lambda frame: (frame.stamp, frame.frame_id))
    if order == "first":
        return by_time[:count]
    if order == "last":
        return by_time[::-1][:count]
    if order in ("before", "after") and anchor is not None:
        before = [frame for frame in by_time if frame.stamp < anchor.stamp]
        after = [frame for frame in by_time if frame.stamp > anchor.stamp]
        near = before[::-1] if order == "before" else after
        far = after if order == "before" else before[::-1]
        return [anchor, *near[: max(count - 2, 1)], *far[:1]][:count]
    if len(by_time) <= count:
        return by_time
    step = (len(by_time) - 1) / max(count - 1, 1)
    return [by_time[round(index * step)] for index in range(count)]
