# SPDX-License-Identifier: Apache-2.0
"""TaR, temporal-axis redundancy (InfiniPot-V): keep the keys that are least like newer keys of their patch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, RecentFirst, recent_slots, register, top_mask
from ros_kvstream.memory.policies.redundancy import COMPARISONS, novelty
from ros_kvstream.settings import Change, require, setting


@register("tar")
@dataclass(frozen=True)
class Tar(RecentFirst):
    """Keeps the recent frames, then the most novel keys, per KV head."""

    compare_with: str = setting(
        "newer",
        "Keys that a key is compared with: newer (all newer keys that are held of its patch) or recent (those of the "
        "recent frames, as published; in tests it forgets more).",
        choices=COMPARISONS, change=Change.RUNNING,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "Use the policy van to do without recent frames."
        require(self.recent_share > 0.0, "memory.tar.recent_share", self.recent_share, "above 0", remedy)

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """Return the kept slots, bool [kv_heads, slots]; see SelectionPolicy.select."""
        recent = recent_slots(slots, keep, self.recent_share)
        return top_mask(novelty(slots, recent, self.compare_with), keep, slots)
