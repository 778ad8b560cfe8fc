"""The last whole frames stay: the control that every memory has to beat (SimpleStream: last N frames only)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.ranking import keep_top, recency


@dataclass(frozen=True)
class RecentSettings:
    """The control has nothing to set: as many whole frames stay as fit."""


class Recent(SelectionPolicy):
    """Keeps the newest frames whole; what is left of ``keep`` goes to the next older frame from its first row on."""

    name = "recent"

    def __init__(self, settings: RecentSettings | None = None) -> None:
        self.settings = settings or RecentSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        order = recency(view)
        # Newer frames first (high bits); inside a frame the raster order is turned round, so rows fill from the top.
        return keep_top(order ^ 0xFFFFFFFF, keep)
