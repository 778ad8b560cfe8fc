"""Evenly spaced slots over time stay: the baseline that spreads the budget blindly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.ranking import recency
from ros_kvstream.settings import require


@dataclass(frozen=True)
class UniformSettings:
    """Settings of ``uniform``."""

    compatibility: str = "native"
    """native, or paper: int(i * step) with the rounding of floating point, as published."""

    def __post_init__(self) -> None:
        name = "memory.policy_options.compatibility"
        require(self.compatibility in ("native", "paper"), name, self.compatibility, "native or paper")


class Uniform(SelectionPolicy):
    """Keeps every (slots / keep)-th slot in the order of time and raster: slot floor(i * slots / keep)."""

    name = "uniform"

    def __init__(self, settings: UniformSettings | None = None) -> None:
        self.settings = settings or UniformSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        in_time = recency(view).argsort(dim=-1, stable=True)
        steps = torch.arange(keep, device=in_time.device)
        if self.settings.compatibility == "paper":
            picks = (steps.double() * (view.slots / keep)).long()
        else:
            # Integers: a float step may fall one slot short of where it should land.
            picks = steps * view.slots // keep
        return in_time[:, picks].sort(-1).values
