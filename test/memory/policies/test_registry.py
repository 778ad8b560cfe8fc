from __future__ import annotations

import pytest

from ros_kvstream.errors import CapacityError, SettingsError
from ros_kvstream.memory.policies import REGISTRY, make_policy
from ros_kvstream.settings import POLICIES


def test_every_policy_of_the_settings_can_be_made_under_its_own_name() -> None:
    assert set(REGISTRY) == set(POLICIES)
    for name in POLICIES:
        assert make_policy(name, {}).name == name


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'lru'.*infinipot_v.*sliding_window"):
        make_policy("lru", {})


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="alfa.*Known options:.*alpha"):
        make_policy("infinipot_v", {"alfa": 0.5})
    with pytest.raises(SettingsError, match="no options"):
        make_policy("sliding_window", {"alpha": 0.5})


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
    with pytest.raises(SettingsError, match=r"memory\.policy_options\.\w+ = .*must be"):
        make_policy(name, options)


def test_full_refuses_to_evict_and_says_what_to_do() -> None:
    policy = make_policy("full", {})
    policy.check(100, 10, 100)
    with pytest.raises(CapacityError, match="100 slots.*10 more.*memory.budget_mib"):
        policy.check(100, 10, 75)
