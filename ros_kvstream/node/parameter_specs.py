# SPDX-License-Identifier: Apache-2.0
"""The node's parameters, derived from the settings: names, types, defaults, checks and conversions. No ROS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

from ros_kvstream.errors import SettingsError
from ros_kvstream.node.settings import CameraSettings, NodeSettings
from ros_kvstream.settings import FieldRules, StreamSettings, require

Value = bool | int | float | str | list[str]
_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list"}


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter of the node: a setting under its parameter's name."""

    name: str
    path: str
    """Dotted path of the setting, such as "model.path" for the parameter ``model``."""
    default: Any
    """Default of the setting, whose type determines the parameter's."""
    rules: FieldRules

    @property
    def kind(self) -> type:
        """Type of the parameter; a tuple of names is a list, a tuple of numbers is text such as '3 7'."""
        if isinstance(self.default, tuple):
            return list if any(isinstance(item, str) for item in self.default) else str
        return type(self.default)

    @property
    def constraints(self) -> str:
        """Choices and when it may change, as `ros2 param describe` shows them."""
        choices = f"One of: {', '.join(self.rules.choices)}. " if self.rules.choices else ""
        return f"{choices}May be changed {self.rules.change.value}."

    def check(self, value: Any) -> None:
        """Raise SettingsError unless the value has the parameter's type and is inside its limits."""
        accepted = {float: (int, float), list: (list, tuple)}.get(self.kind, (self.kind,))
        if self.kind is str and self.rules.low is not None:  # a choice or a whole number
            accepted = (str, int)
        of_type = isinstance(value, accepted) and (self.kind is bool or not isinstance(value, bool))
        quotes = " (in YAML: write it in quotes)" if self.kind is str and isinstance(value, (bool, int, float)) else ""
        require(of_type, self.name, value, f"of type {_TYPE_NAMES[self.kind]}{quotes}")
        self.rules.check(self.name, value)

    def normalized(self, value: Any) -> Any:
        """Return 64.0 for 64 where a number is expected, and on or off for the booleans that YAML reads them as."""
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, bool) and "off" in self.rules.choices:
            return "on" if value else "off"
        return value

    def to_parameter(self, value: Any) -> Value:
        """Convert a setting's value to the parameter's."""
        if isinstance(value, tuple):
            return list(value) if self.kind is list else " ".join(map(str, value))
        return float(value) if self.kind is float else value

    def to_setting(self, value: Value) -> Any:
        """Convert a parameter's value to the setting's; raise SettingsError for text that is not numbers."""
        if not isinstance(self.default, tuple):
            return value
        return tuple(value) if isinstance(value, list) else _numbers(self.name, str(value))


@cache
def parameter_specs() -> dict[str, ParameterSpec]:
    """All parameters by name except the cameras' own; imports the policies, and with them torch."""
    from ros_kvstream.memory.policies import policy_names, policy_type

    found: dict[str, ParameterSpec] = {}
    for spec in (*_specs_of(StreamSettings), *_specs_of(NodeSettings)):
        found[spec.name] = spec
        if spec.name == "memory.policy":
            found[spec.name] = replace(spec, rules=replace(spec.rules, choices=policy_names()))
            for policy in policy_names():
                found |= {own.name: own for own in _specs_of(policy_type(policy), f"memory.{policy}.")}
    return found


def camera_specs(camera: str, *, alone: bool) -> tuple[ParameterSpec, ...]:
    """Parameters of one camera.

    :param alone: whether it is the only one, so that remapping ``image`` is all that it needs.
    """
    topic, *others = _specs_of(CameraSettings, f"{camera}.")
    return (topic if alone else replace(topic, default=f"{camera}/image"), *others)


def to_stream_settings(values: Mapping[str, Value], camera_shares: Mapping[str, float]) -> StreamSettings:
    """Build the memory's settings; raise SettingsError when values do not fit together.

    :param values: every parameter of ``parameter_specs`` by name; :param camera_shares: reserved share by camera.
    """
    from ros_kvstream.memory.policies import make_policy

    settings: dict[str, Any] = {
        spec.path: spec.to_setting(values[name]) for name, spec in parameter_specs().items()
    }
    policy = settings["memory.policy"]
    prefix = f"memory.{policy}."
    own = {path.removeprefix(prefix): value for path, value in settings.items() if path.startswith(prefix)}
    make_policy(policy, own)
    settings |= {"memory.policy_settings": own, "memory.camera_shares": dict(camera_shares)}
    built: StreamSettings = build(StreamSettings, settings)
    return built


def to_parameters(settings: StreamSettings) -> dict[str, Value]:
    """Return the parameters of a node with these settings, without the cameras' own."""
    found = {spec.name: spec.to_parameter(attrgetter(spec.path)(settings)) for spec in _specs_of(StreamSettings)}
    for field_name, value in settings.memory.policy_settings.items():
        name = f"memory.{settings.memory.policy}.{field_name}"
        found[name] = parameter_specs()[name].to_parameter(value)
    return found


def build(settings: type[Any], values: Mapping[str, Any], prefix: str = "") -> Any:
    """Make nested settings from values by dotted path; a setting without a value keeps its default."""
    arguments = {}
    for item in fields(settings):
        path = prefix + item.name
        if is_dataclass(item.default_factory):
            arguments[item.name] = build(item.default_factory, values, f"{path}.")
        elif path in values:
            arguments[item.name] = values[path]
    return settings(**arguments)


def _specs_of(settings: type[Any], prefix: str = "") -> Iterator[ParameterSpec]:
    """Yield the parameters of a settings dataclass and of those inside it; the model's have no prefix."""
    for item in fields(settings):
        path = prefix + item.name
        if is_dataclass(item.default_factory):
            yield from _specs_of(item.default_factory, f"{path}.")
        elif "rules" in item.metadata:
            name = "model" if path == "model.path" else path.removeprefix("model.")
            yield ParameterSpec(name, path, item.default, item.metadata["rules"])


def _numbers(name: str, text: str) -> tuple[float, ...]:
    """Read '3 7' or '3, 7'; raise SettingsError for anything else."""
    try:
        return tuple(float(part) if "." in part else int(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise SettingsError(f"{name} = {text!r}: must be numbers separated by blanks or commas.") from error
