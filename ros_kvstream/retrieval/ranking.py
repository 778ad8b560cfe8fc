# SPDX-License-Identifier: Apache-2.0
"""From a question to the archived frames to bring back: experts rank, ranks are fused, moments are chosen.

Questions of order (first, last, before, after) are answered from moments that were novel when they were seen, since
the experts only find frames that look like the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

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
POOL = 2
"""Novel moments that are considered, as a multiple of ``top_k``."""
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
    count, gap, diversity = settings.top_k, settings.moment_gap_seconds, settings.temporal_diversity

    def moments(experts: Mapping[str, Expert], number: int, frames: int) -> list[RankedFrame]:
        ranked = fuse(experts, allowed, archive.table.frames, k=settings.rrf_k, depth=settings.rank_depth)
        return choose_moments(ranked, number, gap_seconds=gap, moment_frames=frames)

    order = question_order(question) if diversity == "auto" else ""
    likely = novel = []
    if diversity != "always" and order not in ("first", "last"):
        likely = moments(expert_scores(archive, settings, encoder, question, queries), count, settings.moment_frames)
    if diversity != "never":
        novel = moments({NOVELTY: Expert(1.0, novelty_scores(archive, allowed))}, POOL * count, 1)
    if not likely:
        return sorted(novel[:count], key=lambda frame: frame.stamp, reverse=order == "last")
    if order:
        named = around(likely, novel, order, gap)
        known = any(_same_moment(named[0], frame, gap) for frame in novel[:count])
        return novel[:count] if known else _distinct([*named, *novel], count, gap)
    return _distinct([*likely[: (count + 1) // 2], *novel, *likely], count, gap) if novel else likely


def around(
    likely: Sequence[RankedFrame], novel: Sequence[RankedFrame], order: str, gap: float
) -> list[RankedFrame]:
    """The moment that a question of order names, and the novel moment before or after it.

    :param likely: moments like the question, best first; the first that is also novel is the one named.
    :param novel: novel moments; :param order: before | after; :param gap: moments closer than this are one, seconds.
    """
    named = next((frame for frame in likely if any(_same_moment(frame, other, gap) for other in novel)), likely[0])
    sign = -1 if order == "before" else 1
    beside = [frame for frame in novel if sign * (frame.stamp - named.stamp) > gap]
    return [named, *sorted(beside, key=lambda frame: sign * frame.stamp)[:1]]


def _same_moment(one: RankedFrame, other: RankedFrame, gap: float) -> bool:
    return one.camera == other.camera and abs(one.stamp - other.stamp) <= gap


def _distinct(frames: Iterable[RankedFrame], count: int, gap: float) -> list[RankedFrame]:
    """The first ``count`` frames, at most one of a moment except where the first ones are of the same."""
    chosen: list[RankedFrame] = []
    for frame in frames:
        if len(chosen) < count and not any(_same_moment(frame, other, gap) for other in chosen):
            chosen.append(frame)
    return chosen
