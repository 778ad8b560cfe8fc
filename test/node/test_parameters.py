"""The parameter table: complete, equal to the settings' defaults, its limits those of the settings."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ros_kvstream.errors import SettingsError
from ros_kvstream.node.parameter_file import render
from ros_kvstream.node.parameter_table import BY_NAME, PARAMETERS, ParameterSpec
from ros_kvstream.node.parameters import _build, as_meant, check_cameras, check_value, parse_numbers, parse_options
from ros_kvstream.settings import StreamSettings

CONFIG = Path(__file__).parents[2] / "config" / "kvstream.yaml"
RANGED = [spec for spec in PARAMETERS if spec.low is not None]


def leaves(settings: type, prefix: str = "") -> dict[str, Any]:
    """Dotted names of all settings with their defaults."""
    found: dict[str, Any] = {}
    for item in fields(settings):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        name = prefix + item.name
        found |= leaves(type(default), name + ".") if is_dataclass(default) else {name: default}
    return found


def as_parameter(default: Any) -> Any:
    """How a setting's default looks as a parameter: collections are text."""
    return "" if default in ({}, ()) else default


def test_every_setting_of_the_memory_is_a_parameter_with_the_same_default() -> None:
    settings = {name: as_parameter(default) for name, default in leaves(StreamSettings).items()}
    del settings["memory.camera_shares"]  # each camera's own parameter
    assert {spec.setting: spec.default for spec in PARAMETERS if spec.setting} == settings


def test_parameter_names_are_distinct() -> None:
    assert len(BY_NAME) == len(PARAMETERS)


def neighbours(name: str, limit: float) -> dict[str, float]:
    """Settings that have a limit together with this one, so that this one can go to its own."""
    return {"quantized.int8": {"quantized.int4": 0.95 - limit}, "quantized.int4": {"quantized.int8": 0.95 - limit},
            "memory.high_water": {"memory.keep_ratio": 0.05}}.get(name, {})


@pytest.mark.parametrize("spec", [spec for spec in RANGED if spec.setting], ids=lambda spec: spec.name)
def test_the_settings_accept_both_limits_of_a_parameter_and_nothing_beyond(spec: ParameterSpec) -> None:
    for limit in (spec.low, spec.high):
        _build(StreamSettings, "", {spec.setting: type(spec.default)(limit), **neighbours(spec.name, limit)})
    if spec.name == "seed":
        return  # any integer does
    for beyond in (spec.low - 1e-3 - abs(spec.low) / 2, spec.high * 2 + 1):
        with pytest.raises(SettingsError):
            _build(StreamSettings, "", {spec.setting: beyond})


@pytest.mark.parametrize("spec", [spec for spec in PARAMETERS if spec.choices and spec.setting],
                         ids=lambda spec: spec.name)
def test_the_settings_accept_every_choice(spec: ParameterSpec) -> None:
    for choice in spec.choices:
        _build(StreamSettings, "", {spec.setting: choice})


@pytest.mark.parametrize("spec", [spec for spec in PARAMETERS if spec.choices and spec.setting],
                         ids=lambda spec: spec.name)
def test_the_choices_are_all_that_the_settings_know(spec: ParameterSpec) -> None:
    with pytest.raises(SettingsError) as refusal:
        _build(StreamSettings, "", {spec.setting: "nonsense"})
    limit = str(refusal.value).split("must be ")[1].rstrip(".").removeprefix("one of ")
    assert set(limit.replace(" or ", ", ").split(", ")) == set(spec.choices)


@pytest.mark.parametrize("spec", RANGED, ids=lambda spec: spec.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30, "1", None, True, [1]], ids=str)
def test_bad_numbers_are_refused_by_name(spec: ParameterSpec, value: Any) -> None:
    with pytest.raises(SettingsError, match=spec.name):
        check_value(spec, value)


@pytest.mark.parametrize("spec", PARAMETERS, ids=lambda spec: spec.name)
def test_every_default_is_valid_and_described(spec: ParameterSpec) -> None:
    check_value(spec, spec.default)
    assert spec.description.endswith(".") and "May be changed" in spec.constraints


def test_an_integer_is_accepted_where_a_number_is_wanted() -> None:
    check_value(BY_NAME["memory.budget_mib"], 64)


def test_bare_words_of_yaml_are_taken_as_meant() -> None:
    assert as_meant(BY_NAME["gate.mode"], False) == "off" and as_meant(BY_NAME["quantized.mode"], True) == "on"
    assert as_meant(BY_NAME["autostart"], False) is False and as_meant(BY_NAME["memory.policy"], True) is True
    number = as_meant(BY_NAME["memory.budget_mib"], 64)
    assert number == 64.0 and isinstance(number, float)


def test_policy_options_are_read_by_kind() -> None:
    assert parse_options("alpha=0.5, recent=3 pool=true mode=all") == {
        "alpha": 0.5, "recent": 3, "pool": True, "mode": "all"}
    assert parse_options("  ") == {}


@pytest.mark.parametrize("text", ["alpha", "=3", "alpha=", "a b=1", "1x=2"])
def test_policy_options_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="form name=value"):
        parse_options(text)


def test_layers_are_read_as_whole_numbers() -> None:
    assert parse_numbers("retrieval.layers", " 3, 7 11 ") == (3, 7, 11) and parse_numbers("retrieval.layers", "") == ()
    with pytest.raises(SettingsError, match="retrieval.layers = '3;7'"):
        parse_numbers("retrieval.layers", "3;7")


@pytest.mark.parametrize("names", [[], ["a"] * 2, ["a/b"], ["9"], [""], ["gate"], [3], "front",
                                   [f"c{i}" for i in range(9)]], ids=str)
def test_impossible_camera_names_are_refused(names: Any) -> None:
    with pytest.raises(SettingsError, match="cameras"):
        check_cameras(names)


def test_the_parameter_file_is_what_the_table_says() -> None:
    assert CONFIG.read_text() == render(), "run python -m ros_kvstream.node.parameter_file > config/kvstream.yaml"
    parameters = yaml.safe_load(CONFIG.read_text())["/**"]["ros__parameters"]
    assert {name: value for name, value in parameters.items() if name in BY_NAME} == {
        spec.name: spec.default for spec in PARAMETERS}
    assert {*parameters} - {*BY_NAME} == {"cameras", "camera.topic", "camera.transport", "camera.share"}
