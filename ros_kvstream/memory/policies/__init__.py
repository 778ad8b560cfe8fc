# SPDX-License-Identifier: Apache-2.0
"""The selection policies: ``make_policy("infinipot_v", {"alpha": 0.5})``. Importing a module registers its policy."""

# In the order in which lists of the policies show them.
from ros_kvstream.memory.policies import (  # noqa: F401, I001
    infinipot_v, tar, van, aks, uniform, sliding_window, recent, full,
)  # fmt: skip
from ros_kvstream.memory.policies.base import (
    LayerSlots,
    SelectionPolicy,
    make_policy,
    policy_names,
    policy_type,
    register,
)

__all__ = ["LayerSlots", "SelectionPolicy", "make_policy", "policy_names", "policy_type", "register"]
