# SPDX-License-Identifier: Apache-2.0
"""The selection policies: ``make_policy("infinipot_v", {"alpha": 0.5})``. Importing a module registers its policy."""

from ros_kvstream.memory.policies import aks, full, infinipot_v, recent, sliding_window, tar, uniform, van  # noqa: F401
from ros_kvstream.memory.policies.base import (
    LayerSlots,
    SelectionPolicy,
    make_policy,
    policy_names,
    policy_type,
    register,
)

__all__ = ["LayerSlots", "SelectionPolicy", "make_policy", "policy_names", "policy_type", "register"]
