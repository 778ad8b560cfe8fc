# SPDX-License-Identifier: Apache-2.0
"""Keep the newest whole frames (SimpleStream): the control that every memory has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy, recency, register


@register("recent")
@dataclass(frozen=True)
class Recent(SelectionPolicy):
    """Keeps the newest frames whole, and of the next older frame its first rows as far as they fit."""

    def score(self, slots: LayerSlots) -> Tensor:
        """Return int64 [kv_heads, slots]: newer frames first (high bits), inside a frame the reverse raster order."""
        return recency(slots) ^ 0xFFFFFFFF
