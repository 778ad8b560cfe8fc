"""Nothing is evicted: the full cache, which refuses to pass the cap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.errors import CapacityError
from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy


@dataclass(frozen=True)
class FullSettings:
    """The full cache has nothing to set."""


class Full(SelectionPolicy):
    """Keeps every slot; raises CapacityError where room would have to be made."""

    name = "full"

    def __init__(self, settings: FullSettings | None = None) -> None:
        self.settings = settings or FullSettings()

    def check(self, slots: int, needed: int, keep: int) -> None:
        """Refuse to evict: raises CapacityError when fewer than ``slots`` slots may stay."""
        if keep < slots:
            raise CapacityError(
                f"memory.policy = 'full' holds {slots} slots per KV head and needs {needed} more, but only {keep} may "
                "stay: the full cache never evicts. Raise memory.budget_mib, end the stream earlier, or choose a "
                "policy that evicts (infinipot_v)."
            )

    def select(self, view: LayerSlots, keep: int) -> Tensor:
        """Return int64 [kv_heads, keep] of all slots; raises CapacityError when keep < view.slots."""
        self.check(view.slots, 0, keep)
        everything = torch.arange(view.slots, device=view.keys.device)
        return everything.expand(view.keys.shape[0], view.slots).clone()
