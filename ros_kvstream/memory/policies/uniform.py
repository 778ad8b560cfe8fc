# SPDX-License-Identifier: Apache-2.0
"""Keep evenly spaced slots over time: the baseline that does not look at the content."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy, recency, register
from ros_kvstream.settings import Change, setting


@register("uniform")
@dataclass(frozen=True)
class Uniform(SelectionPolicy):
    """Keeps slot floor(i * slots / keep) in order of time and raster, for i from 0 to keep - 1."""

    compatibility: str = setting(
        "native",
        "native (exact steps), or paper: steps in floating point as published, which may fall one slot short.",
        choices=("native", "paper"), change=Change.RUNNING,
    )  # fmt: skip

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """Return the kept slots, bool [kv_heads, slots]; see SelectionPolicy.select."""
        in_time = recency(slots).argsort(dim=-1, stable=True)
        steps = torch.arange(keep, device=in_time.device)
        if self.compatibility == "paper":
            picks = (steps.double() * (slots.count / keep)).long()
        else:
            picks = steps * slots.count // keep
        return torch.zeros_like(in_time, dtype=torch.bool).scatter_(1, in_time[:, picks], True)
