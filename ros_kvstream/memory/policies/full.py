# SPDX-License-Identifier: Apache-2.0
"""Evict nothing: the full cache, which refuses frames that exceed the budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.errors import CapacityError
from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy, register


@register("full")
@dataclass(frozen=True)
class Full(SelectionPolicy):
    """Keeps every slot; raises CapacityError where slots would have to be evicted."""

    def check(self, slots: int, needed: int, keep: int) -> None:
        """Raise CapacityError when ``keep`` < ``slots``; see SelectionPolicy.check."""
        if keep < slots:
            raise CapacityError(
                f"memory.policy = 'full' holds {slots} slots per KV head and needs {needed} more, but only {keep} may "
                "stay: the full cache never evicts. Raise memory.budget_mib, end the stream earlier, or choose a "
                "policy that evicts (infinipot_v)."
            )

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """Return all slots; raises CapacityError when that is more than ``keep``."""
        self.check(slots.count, 0, keep)
        return torch.ones_like(slots.frames, dtype=torch.bool)
