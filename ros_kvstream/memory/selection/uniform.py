"""Evenly spaced slots over time stay: the baseline that spreads the budget blindly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.selection.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.selection.ranking import recency


@dataclass(frozen=True)
class UniformSettings:
    """Uniform sampling has nothing to set."""


class Uniform(SelectionPolicy):
    """Keeps every (slots / keep)-th slot in the order of time and raster: slot floor(i * slots / keep)."""

    name = "uniform"

    def __init__(self, settings: UniformSettings | None = None) -> None:
        self.settings = settings or UniformSettings()

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep], ascending; see SelectionPolicy.select."""
        in_time = recency(view).argsort(dim=-1, stable=True)
        # Integers, not int(i * step): a float step may fall one slot short of where it should land.
        picks = torch.arange(keep, device=in_time.device) * view.slots // keep
        return in_time[:, picks].sort(-1).values
