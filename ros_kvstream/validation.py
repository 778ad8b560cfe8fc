"""Checks that settings make of their values; each error names the value, the limit and the remedy."""

from __future__ import annotations

import math

from ros_kvstream.errors import SettingsError


def require(condition: bool, name: str, value: object, limit: str, remedy: str = "") -> None:
    """Raise SettingsError that names the value, the limit and the remedy unless the condition holds."""
    if not condition:
        raise SettingsError(f"{name} = {value!r}: must be {limit}." + (f" {remedy}" if remedy else ""))


def require_finite(name: str, value: float, low: float, high: float) -> None:
    """Raise SettingsError unless low <= value <= high and the value is a finite number."""
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    require(finite and low <= value <= high, name, value, f"a finite number from {low:g} to {high:g}")
