"""The selection policies and their registry: `make_policy("infinipot_v", {"alpha": 0.5})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.policies.aks import Aks, AksSettings
from ros_kvstream.memory.policies.base import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.full import Full, FullSettings
from ros_kvstream.memory.policies.infinipot_v import InfiniPotV, InfiniPotVSettings
from ros_kvstream.memory.policies.recent import Recent, RecentSettings
from ros_kvstream.memory.policies.sliding_window import SlidingWindow, SlidingWindowSettings
from ros_kvstream.memory.policies.tar import Tar, TarSettings
from ros_kvstream.memory.policies.uniform import Uniform, UniformSettings
from ros_kvstream.memory.policies.van import Van, VanSettings

__all__ = ["REGISTRY", "LayerSlots", "SelectionPolicy", "make_policy"]

REGISTRY: dict[str, tuple[type[Any], type[Any]]] = {
    "infinipot_v": (InfiniPotV, InfiniPotVSettings),
    "tar": (Tar, TarSettings),
    "van": (Van, VanSettings),
    "aks": (Aks, AksSettings),
    "uniform": (Uniform, UniformSettings),
    "sliding_window": (SlidingWindow, SlidingWindowSettings),
    "recent": (Recent, RecentSettings),
    "full": (Full, FullSettings),
}
"""Policy class and settings class by the name of the parameter ``memory.policy``."""


def make_policy(name: str, options: Mapping[str, object] | None = None) -> SelectionPolicy:
    """Make a selection policy by name.

    :param name: one of REGISTRY; :param options: its settings by name (``memory.policy_options``).
    Raises SettingsError for an unknown name, an unknown option or a value out of its range.
    """
    if name not in REGISTRY:
        raise SettingsError(f"memory.policy = {name!r}: must be one of {', '.join(REGISTRY)}.")
    policy, settings = REGISTRY[name]
    options = dict(options or {})
    known = [field.name for field in fields(settings)]
    for option in options:
        if option not in known:
            remedy = f"Known options: {', '.join(known)}." if known else "This policy has no options; remove it."
            raise SettingsError(f"memory.policy_options.{option} = {options[option]!r}: unknown to {name!r}. {remedy}")
    made: SelectionPolicy = policy(settings(**options))
    return made
