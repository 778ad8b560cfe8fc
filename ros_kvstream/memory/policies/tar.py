"""TaR, temporal-axis redundancy: slots that the recent frames do not show again stay (InfiniPot-V)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.ranking import keep_top
from ros_kvstream.memory.policies.recent_share import recent_slots
from ros_kvstream.memory.policies.redundancy import novelty
from ros_kvstream.settings import require, require_finite


@dataclass(frozen=True)
class TarSettings:
    """Settings of ``tar``."""

    recent_share: float = 0.125
    """Share of the kept slots that belongs to the newest whole frames; the rest is compared with these."""

    compare_with: str = "newer"
    """Redundant is what resembles: newer (all newer keys held of the patch) or recent (those of the recent frames)."""

    def __post_init__(self) -> None:
        require_finite("memory.policy_options.recent_share", self.recent_share, 1e-6, 1.0)
        name = "memory.policy_options.compare_with"
        require(self.compare_with in ("newer", "recent"), name, self.compare_with, "newer or recent")


class Tar(SelectionPolicy):
    """Keeps the recent frames, then the slots least similar to the recent keys of their patch, per KV head."""

    name = "tar"

    def __init__(self, settings: TarSettings | None = None) -> None:
        self.settings = settings or TarSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        recent = recent_slots(view, keep, self.settings.recent_share).mask
        return keep_top(novelty(view, recent, self.settings.compare_with), keep, view)
