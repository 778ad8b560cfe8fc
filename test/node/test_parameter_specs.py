# SPDX-License-Identifier: Apache-2.0
"""The node's parameters follow from the settings, and the generated files from both."""

from __future__ import annotations

import runpy
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.policies import policy_names, policy_type
from ros_kvstream.node.parameter_specs import (
    ParameterSpec,
    Value,
    build,
    camera_specs,
    parameter_specs,
    to_parameters,
    to_stream_settings,
)
from ros_kvstream.settings import MemorySettings, ModelSettings, RetrievalSettings, StreamSettings, rules_of

ROOT = Path(__file__).parents[2]
SPECS = parameter_specs()
ALL = [*SPECS.values(), *camera_specs("front", alone=True)]
EVERY = pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
RANGED = pytest.mark.parametrize("spec", [spec for spec in ALL if spec.rules.low is not None],
                                 ids=lambda spec: spec.name)  # fmt: skip


def defaults() -> dict[str, Value]:
    return {name: spec.to_parameter(spec.default) for name, spec in SPECS.items()}


def leaves(settings: type, prefix: str = "") -> dict[str, Any]:
    """Dotted paths of all settings with their defaults."""
    found: dict[str, Any] = {}
    for item in fields(settings):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        path = prefix + item.name
        found |= leaves(type(default), path + ".") if is_dataclass(default) else {path: default}
    return found


def test_every_setting_of_the_memory_is_a_parameter_with_the_same_default() -> None:
    settings = leaves(StreamSettings)
    del settings["memory.camera_shares"], settings["memory.policy_settings"]  # parameters of a camera, of a policy
    assert settings.items() <= {spec.path: spec.default for spec in SPECS.values()}.items()


def test_every_setting_of_every_policy_is_a_parameter_and_the_policies_are_the_choices() -> None:
    assert SPECS["memory.policy"].rules.choices == policy_names()
    for policy in policy_names():
        prefix = f"memory.{policy}."
        assert {name.removeprefix(prefix) for name in SPECS if name.startswith(prefix)} == set(
            rules_of(policy_type(policy)))


def test_the_models_settings_have_no_prefix_and_its_path_is_the_parameter_model() -> None:
    assert {"model", "device", "dtype", "seed"} <= set(SPECS) and not any(name.startswith("model.") for name in SPECS)


def test_a_single_camera_takes_the_topic_image_and_one_of_several_its_own() -> None:
    alone, several = camera_specs("front", alone=True), camera_specs("front", alone=False)
    assert [spec.name for spec in alone] == ["front.topic", "front.transport", "front.share", "front.range",
                                            "front.pose"]
    assert (alone[0].default, several[0].default) == ("image", "front/image") and alone[1:] == several[1:]


@EVERY
def test_every_default_is_valid_and_described(spec: ParameterSpec) -> None:
    spec.check(spec.to_parameter(spec.default))
    assert spec.to_setting(spec.to_parameter(spec.default)) == spec.default
    assert spec.rules.description.endswith(".") and "May be changed" in spec.constraints


@RANGED
def test_bad_numbers_are_refused_by_name(spec: ParameterSpec) -> None:
    for value in (float("nan"), float("inf"), -1e30, "1", None, True, [1]):
        with pytest.raises(SettingsError, match=spec.name):
            spec.check(value)


@pytest.mark.parametrize(("name", "value", "kind"), [
    ("query.max_waiting", 2.5, "integer"), ("memory.budget_mib", "64", "number"), ("autostart", 1, "boolean"),
    ("model", 7, "text"), ("cameras", "front", "list"), ("retrieval.layers", 3, "text"),
])  # fmt: skip
def test_a_value_of_another_type_is_refused_with_the_type(name: str, value: Any, kind: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} = {value!r}: must be of type {kind}"):
        SPECS[name].check(value)


def test_the_position_limit_is_auto_or_a_whole_number() -> None:
    for value in ("auto", 0, 1000):
        SPECS["memory.position_limit"].check(value)
        settings = to_stream_settings(defaults() | {"memory.position_limit": value}, {})
        assert settings.memory.position_limit == value == to_parameters(settings)["memory.position_limit"]
    for value in (1000.5, "far", True):
        with pytest.raises(SettingsError, match="memory.position_limit"):
            SPECS["memory.position_limit"].check(value)


def test_an_integer_is_accepted_where_a_number_is_expected() -> None:
    SPECS["memory.budget_mib"].check(64)
    number = SPECS["memory.budget_mib"].normalized(64)
    assert number == 64.0 and isinstance(number, float)


def test_bare_words_of_yaml_are_taken_as_meant() -> None:
    assert SPECS["gate.mode"].normalized(False) == "off" and SPECS["quantized.mode"].normalized(True) == "on"
    assert SPECS["autostart"].normalized(False) is False and SPECS["memory.policy"].normalized(True) is True


def test_several_numbers_are_text() -> None:
    layers, thresholds = SPECS["retrieval.layers"], SPECS["memory.van.pooling_thresholds"]
    assert layers.to_setting(" 3, 7 11 ") == (3, 7, 11) and layers.to_setting("") == ()
    assert thresholds.to_parameter((0.1, 0.2, 0.4)) == "0.1 0.2 0.4"
    assert thresholds.to_setting("0.1 0.2 1") == (0.1, 0.2, 1)
    with pytest.raises(SettingsError, match="retrieval.layers = '3;7': must be numbers"):
        layers.to_setting("3;7")


def test_the_chosen_policys_settings_become_the_memorys_and_those_of_others_do_not() -> None:
    values = defaults() | {"memory.policy": "tar", "memory.tar.recent_share": 0.25, "memory.van.recent_share": 0.5}
    memory = to_stream_settings(values, {"front": 0.5}).memory
    assert memory.policy_settings == {"recent_share": 0.25, "compare_with": "newer"}
    assert memory.camera_shares == {"front": 0.5}


@pytest.mark.parametrize(("changed", "reason"), [
    ({"memory.infinipot_v.alpha": 1.5}, "alpha"),
    ({"memory.infinipot_v.recent_share": 0.0}, "recent_share"),
    ({"memory.van.pooling_thresholds": "a b"}, "pooling_thresholds = 'a b': must be numbers"),
    ({"memory.keep_ratio": 0.9, "memory.high_water": 0.5}, "memory.keep_ratio"),
    ({"retrieval.layers": "3 3"}, "retrieval.layers"),
])  # fmt: skip
def test_values_that_do_not_fit_together_are_refused(changed: dict[str, Value], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        to_stream_settings(defaults() | changed, {})


def test_settings_survive_the_way_to_parameters_and_back() -> None:
    own = {"recent_share": 0.25, "compare_with": "recent"}
    memory, retrieval = MemorySettings(3, "tar", own), RetrievalSettings(layers=(1, 2))
    settings = StreamSettings(ModelSettings("folder", "cpu"), memory, retrieval=retrieval, seed=4)
    parameters = to_parameters(settings)
    assert parameters["memory.budget_mib"] == 3.0 and isinstance(parameters["memory.budget_mib"], float)
    assert to_stream_settings(defaults() | parameters, {}) == settings


def test_settings_without_a_value_keep_their_default() -> None:
    assert build(StreamSettings, {"memory.keep_ratio": 0.5}) == replace(
        StreamSettings(), memory=MemorySettings(keep_ratio=0.5))


def test_the_parameter_file_and_the_page_are_what_the_settings_say() -> None:
    generator = runpy.run_path(str(ROOT / "tools" / "parameters.py"))
    text = (ROOT / "config" / "kvstream.yaml").read_text()
    assert text == generator["parameter_file"](), "run make parameters"
    assert (ROOT / "docs" / "parameters.md").read_text() == generator["parameter_page"](), "run make parameters"
    parameters = yaml.safe_load(text)["/**"]["ros__parameters"]
    assert parameters == defaults() | {
        spec.name: spec.default for spec in camera_specs("camera", alone=True)}
