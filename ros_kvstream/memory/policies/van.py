# SPDX-License-Identifier: Apache-2.0
"""VaN, value norm (InfiniPot-V): keep the slots with the largest values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, register
from ros_kvstream.memory.policies.pooling import ValueNormPolicy


@register("van")
@dataclass(frozen=True)
class Van(ValueNormPolicy):
    """Keeps the recent frames, then the slots with the largest value norms, per KV head."""

    def score(self, slots: LayerSlots) -> Tensor:
        """Return the value norms, pooled as set, float32 [kv_heads, slots]."""
        return self.value_norms(slots)
