# SPDX-License-Identifier: Apache-2.0
"""The contract of the policies: choice by scores, the registry and the checks of settings."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slots import Frame, indices, make_slots

from ros_kvstream.errors import CapacityError, SettingsError
from ros_kvstream.memory.policies import make_policy, policy_names, policy_type
from ros_kvstream.memory.policies.base import SelectionPolicy, top_mask
from ros_kvstream.settings import rules_of


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=24), st.data())
def test_equal_scores_go_to_the_newer_slot_wherever_it_is(scores: list[int], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(scores)))
    seed = data.draw(st.integers(0, 999))
    slots = make_slots([Frame(1, 1)] * len(scores), heads=1, shuffled=True, seed=seed)
    frames = slots.frames[0].tolist()
    by_frame = torch.tensor([[float(scores[frame]) for frame in frames]])
    kept = {frames[slot] for slot in indices(top_mask(by_frame, keep, slots))[0].tolist()}
    best = sorted(range(len(scores)), key=lambda frame: (scores[frame], frame), reverse=True)
    assert kept == set(best[:keep])


def test_nan_is_below_everything_and_infinity_above() -> None:
    slots = make_slots([Frame(1, 1)] * 5)
    scores = torch.tensor([[torch.nan, -torch.inf, 1.0, torch.nan, 2.0], [torch.nan] * 5])
    mask = top_mask(scores, 3, slots)
    assert mask[0, 2] and mask[0, 4]
    assert mask.sum(-1).tolist() == [3, 3]
    infinite = torch.tensor([[torch.inf, 1e38, 3.0, torch.inf, 0.0]] * 2)
    assert indices(top_mask(infinite, 2, slots)).tolist() == [[0, 3], [0, 3]]


def test_the_scratch_is_used_where_it_is_large_enough() -> None:
    scratch = torch.zeros(2, 3, 4)
    slots = replace(make_slots([Frame()] * 2), scratch=scratch)
    assert slots.scratch_view(4, 6).data_ptr() == scratch.data_ptr()
    assert slots.scratch_view(5, 6).data_ptr() != scratch.data_ptr()
    assert slots.scratch_view(5, 6).shape == (5, 6)


def test_every_policy_is_a_frozen_dataclass_with_described_settings_under_its_name() -> None:
    names = {"infinipot_v", "tar", "van", "aks", "uniform", "sliding_window", "recent", "full"}
    assert names <= set(policy_names())
    for name in names:
        policy = make_policy(name)
        assert isinstance(policy, policy_type(name)) and policy.name == name
        assert all(rules.description for rules in rules_of(policy).values())
        with pytest.raises(FrozenInstanceError):
            policy.recent_share = 0.5  # type: ignore[attr-defined]


def test_a_policy_without_score_and_select_says_what_is_missing() -> None:
    class Empty(SelectionPolicy):
        name = "empty"

    with pytest.raises(NotImplementedError, match="'empty' must override score or select"):
        Empty().select(make_slots([Frame()] * 2), 3)


@pytest.mark.parametrize(("name", "options", "message"), [
    ("lru", {}, r"memory\.policy = 'lru': must be one of .*infinipot_v.*sliding_window"),
    ("infinipot_v", {"alfa": 0.5}, r"memory\.infinipot_v\.alfa = 0\.5: .*settings are: .*alpha"),
    ("sliding_window", {"alpha": 0.5}, r"memory\.sliding_window\.alpha = 0\.5: .*no settings"),
])  # fmt: skip
def test_an_unknown_policy_or_setting_is_refused_with_the_known_ones(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        make_policy(name, options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("infinipot_v", {"alpha": 1.5}),
        ("infinipot_v", {"alpha": float("nan")}),
        ("infinipot_v", {"alpha": "half"}),
        ("infinipot_v", {"recent_share": 0.0}),
        ("infinipot_v", {"recent_share": -0.1}),
        ("infinipot_v", {"compatibility": "exact"}),
        ("infinipot_v", {"depth_pooling": True}),
        ("infinipot_v", {"depth_pooling": "yes", "compatibility": "paper"}),
        ("infinipot_v", {"pooling": "max"}),
        ("infinipot_v", {"compare_with": "older"}),
        ("tar", {"compare_with": 1}),
        ("infinipot_v", {"pooling": "adaptive", "compatibility": "paper"}),
        ("infinipot_v", {"pooling_thresholds": (0.4, 0.2, 0.1)}),
        ("infinipot_v", {"pooling_thresholds": 0.1}),
        ("van", {"recent_share": 2.0}),
        ("tar", {"recent_share": 0.0}),
        ("aks", {"recent_share": None}),
        ("uniform", {"compatibility": 3}),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_its_limit(name: str, options: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=rf"memory\.{name}\.\w+ = .*must be"):
        make_policy(name, options)


def test_full_refuses_to_evict_and_says_what_to_do() -> None:
    policy = make_policy("full", {})
    policy.check(100, 10, 100)
    with pytest.raises(CapacityError, match="100 slots.*10 more.*memory.budget_mib"):
        policy.check(100, 10, 75)
