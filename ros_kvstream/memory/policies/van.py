"""VaN, value norm: slots whose values are long stay (InfiniPot-V; facts in docs/policies.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.pooling import adaptive_window, pool
from ros_kvstream.memory.policies.ranking import keep_top
from ros_kvstream.memory.policies.recent_share import recent_slots
from ros_kvstream.settings import require, require_finite

POOLINGS = ("none", "adaptive")


@dataclass(frozen=True)
class NormPooling:
    """How value norms are pooled over their neighbourhood before they are compared."""

    pooling: str = "none"
    """none, or adaptive: the window by the layer's coefficient of variation."""
    pooling_thresholds: tuple[float, float, float] = (0.1, 0.2, 0.4)
    """Coefficients of variation from which on 3, 5 and 7 neighbours along each axis are averaged."""

    def __post_init__(self) -> None:
        require(self.pooling in POOLINGS, "memory.policy_options.pooling", self.pooling, "none or adaptive")
        steps = self.pooling_thresholds
        name = "memory.policy_options.pooling_thresholds"
        require(isinstance(steps, (tuple, list)) and len(steps) == 3, name, steps, "three numbers")
        for step in steps:
            require_finite(name, step, 0.0, 1e6)
        require(list(steps) == sorted(steps), name, steps, "ascending")
        object.__setattr__(self, "pooling_thresholds", tuple(steps))

    def scores(self, view: LayerSlots) -> Tensor:
        """Value norms, pooled as set, float32 [kv_heads, slots]."""
        norms = view.value_norms.float()
        if self.pooling == "none":
            return norms
        norms = torch.nan_to_num(norms, nan=0.0, posinf=torch.finfo(torch.float32).max)
        return pool(norms, view, adaptive_window(norms, self.pooling_thresholds))


@dataclass(frozen=True)
class VanSettings(NormPooling):
    """Settings of ``van``."""

    recent_share: float = 0.125
    """Share of the kept slots that belongs to the newest whole frames; 0 to go by the norms alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite("memory.policy_options.recent_share", self.recent_share, 0.0, 1.0)


class Van(SelectionPolicy):
    """Keeps the recent frames, then the slots with the largest (pooled) value norms, per KV head."""

    name = "van"

    def __init__(self, settings: VanSettings | None = None) -> None:
        self.settings = settings or VanSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        recent = recent_slots(view, keep, self.settings.recent_share).mask
        return keep_top(self.settings.scores(view).masked_fill(recent, torch.inf), keep, view)
