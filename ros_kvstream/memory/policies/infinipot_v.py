"""InfiniPot-V: temporal-axis redundancy (TaR) for one share of the budget, value norms (VaN) for the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.paper import paper_selection
from ros_kvstream.memory.policies.ranking import indices_of, top_mask
from ros_kvstream.memory.policies.recent_share import recent_slots
from ros_kvstream.memory.policies.redundancy import novelty
from ros_kvstream.memory.policies.van import NormPooling
from ros_kvstream.settings import require, require_finite

COMPATIBILITIES = ("native", "paper")
COMPARISONS = ("newer", "recent")


@dataclass(frozen=True)
class InfiniPotVSettings(NormPooling):
    """Settings of ``infinipot_v``."""

    alpha: float = 0.9
    """Share of the kept slots that TaR chooses, recent frames included; value norms choose the rest."""
    recent_share: float = 0.125
    """Share of the kept slots that belongs to the newest whole frames (``paper``: share of the frames held)."""
    compare_with: str = "newer"
    """Redundant is what resembles: newer (all newer keys held of the patch) or recent (those of the recent frames)."""
    compatibility: str = "native"
    """native, or paper: exactly the published selection, faults included."""
    depth_pooling: bool = False
    """Only with ``paper``: the published zero-padded pooling by quarter of the depth."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite("memory.policy_options.alpha", self.alpha, 0.0, 1.0)
        require_finite("memory.policy_options.recent_share", self.recent_share, 0.0, 1.0)
        name = "memory.policy_options.compare_with"
        require(self.compare_with in COMPARISONS, name, self.compare_with, "newer or recent")
        name = "memory.policy_options.compatibility"
        require(self.compatibility in COMPATIBILITIES, name, self.compatibility, "native or paper")
        name = "memory.policy_options.depth_pooling"
        require(isinstance(self.depth_pooling, bool), name, self.depth_pooling, "true or false")
        if self.compatibility == "native":
            remedy = "Redundancy is measured against the recent frames; choose van to do without."
            name = "memory.policy_options.recent_share"
            require(self.recent_share > 0.0, name, self.recent_share, "above 0", remedy)
            name = "memory.policy_options.depth_pooling"
            remedy = "Set compatibility to paper, or pooling to adaptive."
            require(not self.depth_pooling, name, True, "false unless compatibility is paper", remedy)
        else:
            name = "memory.policy_options.pooling"
            remedy = "Set depth_pooling instead."
            require(self.pooling == "none", name, self.pooling, "none when compatibility is paper", remedy)


class InfiniPotV(SelectionPolicy):
    """Keeps the recent frames, fills up to alpha with TaR's choice and the rest with the largest value norms.

    Per KV head. Redundancy is scored on un-rotated keys by true patch (camera, h, w), so heads may hold any slots.
    """

    name = "infinipot_v"

    def __init__(self, settings: InfiniPotVSettings | None = None) -> None:
        self.settings = settings or InfiniPotVSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        return indices_of(self.select_mask(view, keep))

    def select_mask(self, view: LayerSlots, keep: int) -> Tensor:
        """Return the choice as bool [kv_heads, slots]; see SelectionPolicy.select_mask."""
        settings = self.settings
        if settings.compatibility == "paper":
            return paper_selection(
                view,
                keep,
                alpha=settings.alpha,
                recent_share=settings.recent_share,
                depth_pooling=settings.depth_pooling,
            )
        recent = recent_slots(view, keep, settings.recent_share)
        # Recent slots count as TaR's own; more of them than its share leave the rest to the norms, never a crash.
        by_redundancy = min(keep, max(int(settings.alpha * keep), recent.most))
        scores = novelty(view, recent.mask, settings.compare_with)
        norms = settings.scores(view) if by_redundancy < keep else None
        if recent.older is None or by_redundancy == recent.most:
            return self._choose(view, scores, norms, by_redundancy, keep)
        # The recent slots stay anyway: only the older ones are ranked.
        older = slice(0, recent.older)
        mask = recent.mask.clone()
        rest = None if norms is None else norms[:, older]
        mask[:, older] = self._choose(view, scores[:, older], rest, by_redundancy - recent.most, keep - recent.most)
        return mask

    @staticmethod
    def _choose(view: LayerSlots, scores: Tensor, norms: Tensor | None, by_score: int, keep: int) -> Tensor:
        """The ``by_score`` highest scores, then the highest norms up to ``keep``; bool like ``scores``."""
        chosen = top_mask(scores, by_score, view)
        return chosen if norms is None else top_mask(norms.masked_fill(chosen, torch.inf), keep, view)
