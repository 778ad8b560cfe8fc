"""Adaptive Key Selection (MemStream, arXiv 2602.18434): of every frame, the patches that changed stay."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.ranking import keep_top
from ros_kvstream.memory.policies.recent_share import recent_slots
from ros_kvstream.memory.policies.redundancy import change_from_previous
from ros_kvstream.settings import require_finite


@dataclass(frozen=True)
class AksSettings:
    """Settings of ``aks``."""

    recent_share: float = 0.125
    """Share of the kept slots that belongs to the newest whole frames."""

    def __post_init__(self) -> None:
        require_finite("memory.policy_options.recent_share", self.recent_share, 0.0, 1.0)


class Aks(SelectionPolicy):
    """Keeps the recent frames, then the slots least similar to their patch in the frame before, per KV head."""

    name = "aks"

    def __init__(self, settings: AksSettings | None = None) -> None:
        self.settings = settings or AksSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        recent = recent_slots(view, keep, self.settings.recent_share).mask
        return keep_top(change_from_previous(view).masked_fill_(recent, torch.inf), keep, view)
