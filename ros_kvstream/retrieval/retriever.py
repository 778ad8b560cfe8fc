"""From a question to the frames that are brought back: experts rank, ranks are fused, moments are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.retrieval.external import ExternalEncoder, external_scores
from ros_kvstream.retrieval.fusion import Expert, RankedFrame, choose_moments, fuse
from ros_kvstream.retrieval.internal import internal_scores
from ros_kvstream.retrieval.novelty import novelty_scores
from ros_kvstream.retrieval.order import asked_order, diverse_moments
from ros_kvstream.settings import RetrievalSettings

NOVELTY = "novelty"
"""Name, in the evidence, of what ranks moments for questions of order."""

AROUND = ("before", "after")
"""Orders that are asked of a thing: the experts find it."""


class Retriever:
    """Ranks an archive's frames for a question. Reads the archive, changes nothing."""

    def __init__(self, archive: Archive, settings: RetrievalSettings, encoder: ExternalEncoder | None = None) -> None:
        self.archive = archive
        self.settings = settings
        self.encoder = encoder

    def experts(self, question: str, queries: Mapping[int, Tensor]) -> dict[str, Expert]:
        """Each expert's scores of all slots.

        :param queries: layer -> un-rotated query, float32 [heads, head_dim]; empty without the internal expert.
        """
        settings = self.settings
        experts: dict[str, Expert] = {}
        if settings.internal_weight > 0 and queries:
            scores = internal_scores(self.archive, queries, settings).numpy()
            experts["internal"] = Expert(settings.internal_weight, scores)
        if settings.external_weight > 0 and self.encoder is not None:
            vector = self.encoder.embed_text(question)
            if np.any(vector):
                experts["external"] = Expert(settings.external_weight, external_scores(self.archive, vector))
        return experts

    def rank(
        self, question: str, queries: Mapping[int, Tensor], allowed: NDArray[np.bool_]
    ) -> Sequence[RankedFrame]:
        """All frames that any expert ranked, best first.

        :param allowed: archive slots that pass the filters, [slots].
        """
        experts = self.experts(question, queries)
        frames = self.archive.table.frames
        return fuse(experts, allowed, frames, k=self.settings.rrf_k, depth=self.settings.rank_depth)

    def choose(self, question: str, queries: Mapping[int, Tensor], allowed: NDArray[np.bool_]) -> list[RankedFrame]:
        """The frames to bring back, best first, at most ``top_k``."""
        settings = self.settings
        order = asked_order(question) if settings.temporal_diversity == "auto" else ""
        if settings.temporal_diversity == "always" or order:
            moments = self._moments(allowed)
            named = self.rank(question, queries, allowed) if order in AROUND else ()
            return diverse_moments(moments, order, settings.top_k, anchor=named[0] if named else None)
        return choose_moments(
            self.rank(question, queries, allowed),
            settings.top_k,
            gap_seconds=settings.moment_gap_seconds,
            moment_frames=settings.moment_frames,
        )

    def _moments(self, allowed: NDArray[np.bool_]) -> list[RankedFrame]:
        """One frame a moment, what was most of all news when it was seen, whatever is asked."""
        settings, frames = self.settings, self.archive.table.frames
        news = {NOVELTY: Expert(1.0, novelty_scores(self.archive, allowed))}
        ranked = fuse(news, allowed, frames, k=settings.rrf_k, depth=settings.rank_depth)
        return choose_moments(ranked, settings.top_k, gap_seconds=settings.moment_gap_seconds, moment_frames=1)
