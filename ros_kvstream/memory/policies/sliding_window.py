"""The newest slots stay, whatever they hold: the baseline of a plain sliding window."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.ranking import keep_top, recency


@dataclass(frozen=True)
class SlidingWindowSettings:
    """The sliding window has nothing to set."""


class SlidingWindow(SelectionPolicy):
    """Keeps the newest slots by frame, then raster order, per KV head."""

    name = "sliding_window"

    def __init__(self, settings: SlidingWindowSettings | None = None) -> None:
        self.settings = settings or SlidingWindowSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        return keep_top(recency(view), keep)
