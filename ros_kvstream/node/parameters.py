"""Declares the parameters of parameter_table.py, refuses bad values with a reason, and builds settings from them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros_kvstream.errors import SettingsError
from ros_kvstream.node.images import DepthRendering
from ros_kvstream.node.parameter_table import (
    BY_NAME,
    CAMERAS_DESCRIPTION,
    MAX_CAMERAS,
    PARAMETERS,
    SHARE_DESCRIPTION,
    TOPIC_DESCRIPTION,
    TRANSPORT_DESCRIPTION,
    TRANSPORTS,
    Change,
    ParameterSpec,
    Value,
)
from ros_kvstream.settings import StreamSettings

CAMERA_PARTS = ("topic", "transport", "share")
"""Parameters that each camera has."""
_ROS_OWN = ("use_sim_time", "start_type_description_service", "qos_overrides.")
"""Names that rclpy declares itself."""


@dataclass(frozen=True)
class CameraSettings:
    """Where one camera's images come from."""

    name: str
    topic: str
    """Base name, without a transport."""
    transport: str


class NodeParameters:
    """The node's parameters. Declared when made; used from the executor's thread only."""

    def __init__(self, node: Node, unconfigured: Callable[[], bool], new_budget: Callable[[float], None],
                 new_settings: Callable[[StreamSettings], None]) -> None:
        """Declare everything; raise SettingsError for a bad value or a misspelt name given at start.

        :param unconfigured: whether the node holds no memory now, so that all but Change.START may change.
        :param new_budget: applies memory.budget_mib in MiB to a live memory; raises KvStreamError to refuse it.
        :param new_settings: applies the other settings that may change to a live memory; raises KvStreamError too.
        """
        self._node = node
        self._unconfigured = unconfigured
        self._new_budget = new_budget
        self._new_settings = new_settings
        for spec in PARAMETERS:
            _declare(node, spec)
        _declare_cameras(node)
        self._refuse_misspelt()
        self.stream_settings()
        self.depth()
        node.add_pre_set_parameters_callback(_all_as_meant)
        node.add_on_set_parameters_callback(self._check_change)
        node.add_post_set_parameters_callback(self._declare_new_cameras)

    def value(self, name: str) -> Any:
        """Return a parameter's value, of the type of its default."""
        return as_meant(BY_NAME[name], self._node.get_parameter(name).value)

    def stream_settings(self, changed: Mapping[str, Value] | None = None) -> StreamSettings:
        """Build the memory's settings; raise SettingsError when values do not go together.

        :param changed: values to take instead of the present ones.
        """
        changed = changed or {}
        values = {spec.setting: changed.get(spec.name, self.value(spec.name)) for spec in PARAMETERS if spec.setting}
        values["memory.policy_options"] = parse_options(str(values["memory.policy_options"]))
        values["memory.camera_shares"] = self._shares(changed)
        values["retrieval.layers"] = parse_numbers("retrieval.layers", str(values["retrieval.layers"]))
        return _build(StreamSettings, "", values)

    def depth(self, changed: Mapping[str, Value] | None = None) -> DepthRendering:
        """Build the depth rendering; raise SettingsError when its limits do not go together."""
        changed = changed or {}
        mode, near, far = (changed.get(name, self.value(name))
                           for name in ("ingest.depth", "ingest.depth_near", "ingest.depth_far"))
        return DepthRendering(str(mode), float(near), float(far))

    def cameras(self) -> tuple[CameraSettings, ...]:
        """Return the cameras as configured, declaring the parameters of cameras added since the last call."""
        names = list(self._node.get_parameter("cameras").value)
        cameras = []
        for name in names:
            _declare_camera(self._node, name, alone=len(names) == 1)
            topic = str(self._node.get_parameter(f"{name}.topic").value)
            cameras.append(CameraSettings(name, topic, str(self._node.get_parameter(f"{name}.transport").value)))
        return tuple(cameras)

    def _shares(self, changed: Mapping[str, Value]) -> dict[str, float]:
        """Share of every camera as configured, by name."""
        shares = {}
        for name in changed.get("cameras", self._node.get_parameter("cameras").value):  # type: ignore[union-attr]
            known = self._node.has_parameter(f"{name}.share")
            value: Any = changed.get(f"{name}.share", self._node.get_parameter(f"{name}.share").value if known else 0.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise SettingsError(f"{name}.share = {value!r}: must be of type number.")
            shares[str(name)] = float(value)
        return shares

    def _refuse_misspelt(self) -> None:
        """Refuse a name given at start that is none of ours but looks like one."""
        given = getattr(self._node, "_parameter_overrides", {})
        for name in given:
            if self._node.has_parameter(name) or name.startswith(_ROS_OWN):
                continue
            known = [*BY_NAME, "cameras", *(f"{camera.name}.{part}" for camera in self.cameras()
                                            for part in CAMERA_PARTS)]
            similar = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            if similar:
                raise SettingsError(f"parameter {name!r} does not exist; did you mean {similar[0]!r}?")
            self._node.get_logger().warning(f"Parameter {name!r} is none of this node's and has no effect.")

    def _check_change(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        """Accept or refuse a change as a whole."""
        try:
            changed = {parameter.name: parameter.value for parameter in parameters}
            for name, value in changed.items():
                self._check_one(name, value)
            settings = self.stream_settings(changed)
            self.depth(changed)
            if not self._unconfigured():
                self._apply(changed, settings)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told and the node lives
            return SetParametersResult(successful=False, reason=str(error)[:500])
        return SetParametersResult(successful=True)

    def _apply(self, changed: Mapping[str, Value], settings: StreamSettings) -> None:
        """Give a live memory what has changed of its settings."""
        if "memory.budget_mib" in changed:
            self._new_budget(settings.memory.budget_mib)
        own = any(BY_NAME[name].setting for name in changed if name in BY_NAME and name != "memory.budget_mib")
        if own or any(name.endswith(".share") for name in changed):
            self._new_settings(settings)

    def _declare_new_cameras(self, parameters: Sequence[Parameter]) -> None:
        """Let the parameters of a camera that was just added be set before the node is configured."""
        if any(parameter.name == "cameras" for parameter in parameters):
            self.cameras()

    def _check_one(self, name: str, value: Any) -> None:
        spec = BY_NAME.get(name)
        if spec is None:
            self._check_camera_change(name, value)
            return
        check_value(spec, value)
        if spec.change is Change.START or (spec.change is Change.CONFIGURE and not self._unconfigured()):
            raise SettingsError(f"{name} may be changed {spec.change.value}.")

    def _check_camera_change(self, name: str, value: Any) -> None:
        """Check `cameras` and the cameras' own parameters (shares: with the settings); others are not ours."""
        if name == "cameras":
            check_cameras(value)
        elif name.endswith(".transport") and value not in TRANSPORTS:
            raise SettingsError(f"{name} = {value!r}: must be one of {', '.join(TRANSPORTS)}.")
        elif name.startswith(_ROS_OWN) or not name.endswith((".topic", ".transport")):
            return
        if not self._unconfigured():
            raise SettingsError(f"{name} may be changed {Change.CONFIGURE.value}.")


def as_meant(spec: ParameterSpec, value: Any) -> Any:
    """Take 64 for 64.0 where a number is wanted, and YAML's bare on / off, which are booleans, for these words."""
    if isinstance(spec.default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) and "off" in spec.choices:
        return "on" if value else "off"
    return value


def check_value(spec: ParameterSpec, value: Any) -> None:
    """Raise SettingsError unless the value has the parameter's type and lies within its limits."""
    kind = type(spec.default)
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise SettingsError(f"{spec.name} = {value!r}: must be of type {_TYPE_NAMES[kind]}.")
    if spec.choices and value not in spec.choices:
        raise SettingsError(f"{spec.name} = {value!r}: must be one of {', '.join(spec.choices)}.")
    if spec.low is not None and spec.high is not None and not isinstance(value, str):
        if not math.isfinite(value) or not spec.low <= value <= spec.high:
            raise SettingsError(f"{spec.name} = {value!r}: must be from {spec.low:g} to {spec.high:g}.")


def check_cameras(names: Any) -> None:
    """Raise SettingsError unless these are 1 to MAX_CAMERAS distinct names that parameters can be made of."""
    if not isinstance(names, (list, tuple)) or not 1 <= len(names) <= MAX_CAMERAS or len(set(names)) != len(names):
        raise SettingsError(f"cameras = {names!r}: must be 1 to {MAX_CAMERAS} distinct names.")
    groups = {spec.name.split(".")[0] for spec in PARAMETERS}
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in groups:
            raise SettingsError(f"cameras: {name!r} must be letters, digits and underscores, and no parameter's name.")


def parse_options(text: str) -> dict[str, object]:
    """Read 'name=value name=value' into numbers, booleans or words; raise SettingsError for anything else."""
    options: dict[str, object] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not (name.isidentifier() and equals and value):
            raise SettingsError(f"memory.policy_options = {text!r}: {part!r} is not of the form name=value.")
        options[name] = _plain(value)
    return options


def parse_numbers(name: str, text: str) -> tuple[int, ...]:
    """Read '3 7' or '3, 7' into integers; raise SettingsError for anything else."""
    try:
        return tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise SettingsError(f"{name} = {text!r}: must be whole numbers with blanks or commas between them.") from error


def _plain(text: str) -> object:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "text"}


def _build(settings: type[Any], prefix: str, values: Mapping[str, Any]) -> Any:
    """Make nested settings from values by dotted name; a value that is not there keeps the settings' default."""
    arguments = {}
    for item in fields(settings):
        default = item.default_factory() if callable(item.default_factory) else item.default
        name = prefix + item.name
        if is_dataclass(default):
            arguments[item.name] = _build(type(default), name + ".", values)
        elif name in values:
            arguments[item.name] = values[name]
    return settings(**arguments)


def _declare(node: Node, spec: ParameterSpec) -> None:
    """Declare one parameter with its descriptor; raise SettingsError when the value given at start is bad."""
    kind = type(spec.default)
    descriptor = ParameterDescriptor(
        description=spec.description,
        additional_constraints=spec.constraints,
        read_only=spec.change is Change.START,
        # Statically typed, rclpy would refuse "64" for a number; check_value does the type check instead.
        dynamic_typing=True,
    )
    check_value(spec, as_meant(spec, node.declare_parameter(spec.name, spec.default, descriptor).value))
    if spec.low is not None and spec.high is not None:
        low, high = kind(spec.low), kind(spec.high)
        if kind is float:
            descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
        else:
            descriptor.integer_range = [IntegerRange(from_value=low, to_value=high)]
        node.set_descriptor(spec.name, descriptor)


def _declare_cameras(node: Node) -> None:
    descriptor = ParameterDescriptor(
        description=CAMERAS_DESCRIPTION, additional_constraints=f"May be changed {Change.CONFIGURE.value}.",
        dynamic_typing=True)
    check_cameras(node.declare_parameter("cameras", ["camera"], descriptor).value)
    names = node.get_parameter("cameras").value
    for name in names:
        _declare_camera(node, name, alone=len(names) == 1)


def _declare_camera(node: Node, name: str, *, alone: bool) -> None:
    if node.has_parameter(f"{name}.topic"):
        return
    when = f"May be changed {Change.CONFIGURE.value}."
    node.declare_parameter(f"{name}.topic", "image" if alone else f"{name}/image",
                           ParameterDescriptor(description=TOPIC_DESCRIPTION, additional_constraints=when))
    node.declare_parameter(f"{name}.share", 0.0, ParameterDescriptor(
        description=SHARE_DESCRIPTION, additional_constraints=f"May be changed {Change.RUNNING.value}.",
        dynamic_typing=True))
    transport = node.declare_parameter(
        f"{name}.transport", "raw",
        ParameterDescriptor(description=TRANSPORT_DESCRIPTION,
                            additional_constraints=f"One of: {', '.join(TRANSPORTS)}. {when}")).value
    if transport not in TRANSPORTS:
        raise SettingsError(f"{name}.transport = {transport!r}: must be one of {', '.join(TRANSPORTS)}.")


def _all_as_meant(parameters: list[Parameter]) -> list[Parameter]:
    return [Parameter(parameter.name, value=as_meant(BY_NAME[parameter.name], parameter.value))
            if parameter.name in BY_NAME else parameter for parameter in parameters]
