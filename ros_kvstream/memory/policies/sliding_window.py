# SPDX-License-Identifier: Apache-2.0
"""Keep the newest slots, whatever they hold: the baseline of a plain sliding window."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy, recency, register


@register("sliding_window")
@dataclass(frozen=True)
class SlidingWindow(SelectionPolicy):
    """Keeps the newest slots by frame, then by raster order, per KV head."""

    def score(self, slots: LayerSlots) -> Tensor:
        """Return int64 [kv_heads, slots]."""
        return recency(slots)
