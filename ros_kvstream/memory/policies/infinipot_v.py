# SPDX-License-Identifier: Apache-2.0
"""InfiniPot-V: temporal redundancy (TaR) chooses one share of the kept slots, value norms (VaN) choose the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, recent_slots, register, top_mask
from ros_kvstream.memory.policies.paper import paper_selection
from ros_kvstream.memory.policies.pooling import ValueNormPolicy
from ros_kvstream.memory.policies.redundancy import COMPARISONS, novelty
from ros_kvstream.settings import Change, require, setting


@register("infinipot_v")
@dataclass(frozen=True)
class InfiniPotV(ValueNormPolicy):
    """Keeps the recent frames, then the most novel keys up to ``alpha``, then the largest value norms, per KV head."""

    alpha: float = setting(
        0.9,
        "Share of the kept slots that is chosen by novelty of the keys (TaR), recent frames included; value norms "
        "(VaN) choose the rest. 1 is the policy tar, 0 is van.",
        0.0, 1.0, change=Change.RUNNING,
    )  # fmt: skip
    compare_with: str = setting(
        "newer",
        "Keys that a key is compared with: newer (all newer keys that are held of its patch) or recent (those of the "
        "recent frames, as published; in tests it forgets more).",
        choices=COMPARISONS, change=Change.RUNNING,
    )  # fmt: skip
    compatibility: str = setting(
        "native",
        "native, or paper: exactly the published selection with its faults, for comparisons. With paper, recent_share "
        "is a share of the frames held, and pooling must be none.",
        choices=("native", "paper"), change=Change.RUNNING,
    )  # fmt: skip
    depth_pooling: bool = setting(
        False,
        "With compatibility = paper: pool value norms as published, zero-padded, by quarter of the model's depth.",
        change=Change.RUNNING,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        depth = "memory.infinipot_v.depth_pooling"
        require(isinstance(self.depth_pooling, bool), depth, self.depth_pooling, "true or false")
        if self.compatibility == "native":
            remedy = "Use the policy van to do without recent frames."
            require(self.recent_share > 0.0, "memory.infinipot_v.recent_share", self.recent_share, "above 0", remedy)
            remedy = "Set compatibility to paper, or pooling to adaptive."
            require(not self.depth_pooling, depth, True, "false unless compatibility is paper", remedy)
        else:
            limit, remedy = "none when compatibility is paper", "Set depth_pooling instead."
            require(self.pooling == "none", "memory.infinipot_v.pooling", self.pooling, limit, remedy)

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """Return the kept slots, bool [kv_heads, slots]; see SelectionPolicy.select."""
        if self.compatibility == "paper":
            return paper_selection(slots, keep, self.alpha, self.recent_share, self.depth_pooling)
        recent = recent_slots(slots, keep, self.recent_share)
        # The recent slots belong to TaR's share; where they exceed it, less is left for the value norms.
        by_novelty = min(keep, max(int(self.alpha * keep), int(recent.sum(-1).max())))
        kept = top_mask(novelty(slots, recent, self.compare_with), by_novelty, slots)
        if by_novelty == keep:
            return kept
        return top_mask(self.value_norms(slots).masked_fill(kept, torch.inf), keep, slots)
