# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from ros_kvstream.errors import SettingsError
from ros_kvstream.settings import (
    ArchiveSettings,
    FieldRules,
    MemorySettings,
    ModelSettings,
    QuantizedSettings,
    RetrievalSettings,
    StreamSettings,
    rules_of,
)

GROUPS = [StreamSettings(), *(getattr(StreamSettings(), item.name) for item in fields(StreamSettings)
                              if is_dataclass(item.default_factory))]  # fmt: skip
EVERY = [(group, name, rules) for group in GROUPS for name, rules in rules_of(group).items()]
RANGED = [entry for entry in EVERY if entry[2].low is not None]
CHOSEN = [entry for entry in EVERY if entry[2].choices]


def cases(entries: list[tuple[Any, str, FieldRules]]) -> pytest.MarkDecorator:
    names = [f"{type(group).__name__}.{name}" for group, name, _ in entries]
    return pytest.mark.parametrize(("group", "name", "rules"), entries, ids=names)


def neighbours(name: str, limit: float) -> dict[str, float]:
    """Settings that are limited together with this one, so that this one can take its own limit."""
    return {"int8": {"int4": 0.95 - limit}, "int4": {"int8": 0.95 - limit}, "high_water": {"keep_ratio": 0.05}}.get(
        name, {})  # fmt: skip


@cases(EVERY)
def test_every_setting_has_a_description_and_a_default_inside_its_limits(
    group: Any, name: str, rules: FieldRules
) -> None:
    assert rules.description.endswith(".")
    rules.check(name, getattr(group, name))


@cases(RANGED)
def test_both_limits_are_accepted_and_nothing_beyond(group: Any, name: str, rules: FieldRules) -> None:
    assert rules.low is not None and rules.high is not None
    kind = int if rules.choices else type(getattr(group, name))  # a setting with both is a choice or a whole number
    for limit in (rules.low, rules.high):
        replace(group, **{name: kind(limit), **neighbours(name, limit)})
    below, above = rules.low - 1e-3 - abs(rules.low) / 2, rules.high * 2 + 1
    for bad in (below, above, float("nan"), float("inf"), "1", None, True, [1]):
        with pytest.raises(SettingsError, match=f"{name} = .*must be .*a finite number from"):
            replace(group, **{name: bad})


@cases(CHOSEN)
def test_every_choice_is_accepted_and_nothing_else(group: Any, name: str, rules: FieldRules) -> None:
    for choice in rules.choices:
        replace(group, **{name: choice})
    with pytest.raises(SettingsError, match=f"{name} = 'nonsense': must be one of {', '.join(rules.choices)}"):
        replace(group, **{name: "nonsense"})


@pytest.mark.parametrize(("make", "reason"), [
    (lambda: ModelSettings(path=" "), "model = ' ': must be 'tiny'"),
    (lambda: ModelSettings(device="cuda:x"), "device = 'cuda:x': must be auto, cpu, cuda or cuda:N"),
    (lambda: MemorySettings(policy=""), "memory.policy = '': must be"),
    (lambda: MemorySettings(keep_ratio=0.5, high_water=0.5), "keep_ratio = 0.5: must be below memory.high_water = 0.5"),
    (lambda: MemorySettings(camera_shares={"a": 0.6, "b": 0.5}), "all cameras together = 1.1: must be at most 1"),
    (lambda: MemorySettings(camera_shares={"a": -0.1}), "a.share = -0.1: must be"),
    (lambda: MemorySettings(position_limit="far"), "position_limit = 'far': must be one of auto, or a finite number"),
    (lambda: QuantizedSettings(int8=0.5, int4=0.5), "int8 . quantized.int4 = 1.0: must be above 0 and at most 0.95"),
    (lambda: QuantizedSettings(int8=0.0, int4=0.0), "int8 . quantized.int4 = 0.0: must be above 0"),
    (lambda: ArchiveSettings(path=""), "archive.path = '': must be 'memory' or a folder"),
    (lambda: RetrievalSettings(layers=(3, 3)), "retrieval.layers = .3, 3.: must be distinct layer numbers"),
    (lambda: RetrievalSettings(layers=(-1,)), "retrieval.layers"),
    (lambda: RetrievalSettings(layers=(1.5,)), "retrieval.layers"),  # type: ignore[arg-type]
])  # fmt: skip
def test_settings_that_do_not_fit_together_are_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        make()
