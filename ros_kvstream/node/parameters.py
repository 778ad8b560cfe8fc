# SPDX-License-Identifier: Apache-2.0
"""Declares the node's parameters, refuses bad values with a reason, and builds settings from them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.utilities import remove_ros_args

from ros_kvstream.errors import SettingsError
from ros_kvstream.node.parameter_specs import (
    ParameterSpec,
    Value,
    build,
    camera_specs,
    parameter_specs,
    to_stream_settings,
)
from ros_kvstream.node.rclpy_compat import names_given_at_start
from ros_kvstream.node.settings import MAX_CAMERAS, CameraSettings, NodeSettings, mounting, value_range
from ros_kvstream.settings import Change, StreamSettings

_ROS_OWN = ("use_sim_time", "start_type_description_service", "qos_overrides.")
"""Names that rclpy declares itself."""


class NodeParameters:
    """The node's parameters, declared when this is made. Used from the executor's thread, ``value`` from any."""

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
        self._specs: dict[str, ParameterSpec] = {}
        for spec in parameter_specs().values():
            self._declare(spec)
        self.cameras()
        self._refuse_misspelt()
        self._report_unused_remapping()
        self.stream_settings()
        self.node_settings()
        node.add_pre_set_parameters_callback(self._normalized)
        node.add_on_set_parameters_callback(self._check_change)
        node.add_post_set_parameters_callback(self._declare_new_cameras)

    def value(self, name: str) -> Any:
        """Return a parameter's value, of the type of its default."""
        return self._specs[name].normalized(self._node.get_parameter(name).value)

    def stream_settings(self, changed: Mapping[str, Value] | None = None) -> StreamSettings:
        """Build the memory's settings; raise SettingsError when values do not fit together.

        :param changed: values to take instead of the present ones.
        """
        values = self._values(changed)
        return to_stream_settings(values, {name: values.get(f"{name}.share", 0.0) for name in values["cameras"]})

    def node_settings(self, changed: Mapping[str, Value] | None = None) -> NodeSettings:
        """Build the node's own settings, as ``stream_settings`` does the memory's."""
        built: NodeSettings = build(NodeSettings, self._values(changed))
        return built

    def _values(self, changed: Mapping[str, Value] | None) -> dict[str, Any]:
        return {name: self.value(name) for name in list(self._specs)} | dict(changed or {})

    def cameras(self) -> tuple[CameraSettings, ...]:
        """Return the cameras as configured; declares the parameters of cameras added since the last call."""
        names = self.value("cameras")
        for name in names:
            for spec in camera_specs(name, alone=len(names) == 1):
                if spec.name not in self._specs:
                    self._declare(spec)
        parts = ("topic", "transport", "share", "range", "pose")
        return tuple(CameraSettings(name, *(self.value(f"{name}.{part}") for part in parts)) for name in names)

    def _declare(self, spec: ParameterSpec) -> None:
        """Declare one parameter with its descriptor; raise SettingsError when the value given at start is bad."""
        descriptor = ParameterDescriptor(
            description=spec.rules.description,
            additional_constraints=spec.constraints,
            read_only=spec.rules.change is Change.START,
            # Statically typed, rclpy would refuse 64 for 64.0; ParameterSpec.check checks the type instead.
            dynamic_typing=True,
        )
        value = self._node.declare_parameter(spec.name, spec.to_parameter(spec.default), descriptor).value
        self._specs[spec.name] = spec
        _check(spec, spec.normalized([] if value is None else value))  # rclpy reads an empty list as None
        low, high = spec.rules.low, spec.rules.high
        if low is not None and high is not None:
            if spec.kind is float:
                descriptor.floating_point_range = [FloatingPointRange(from_value=float(low), to_value=float(high))]
            else:
                descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
            self._node.set_descriptor(spec.name, descriptor)

    def _refuse_misspelt(self) -> None:
        """Refuse a name given at start that does not exist but resembles one that does."""
        cameras = self.value("cameras")
        for name in names_given_at_start(self._node):
            if self._node.has_parameter(name) or name.startswith(_ROS_OWN):
                continue
            camera, _, part = name.rpartition(".")
            if camera in NodeSettings().cameras and part in (item.name for item in fields(CameraSettings)):
                source = " (set by the launch argument image_topic if that ends in /compressed)"
                self._node.get_logger().warning(
                    f"{name}{source if part == 'transport' else ''} has no effect: cameras = {cameras} has no "
                    f"{camera!r}. Set {' and '.join(f'{other}.{part}' for other in cameras)} instead.")
                continue
            similar = difflib.get_close_matches(name, self._specs, n=1, cutoff=0.75)
            if similar:
                raise SettingsError(f"parameter {name!r} does not exist; did you mean {similar[0]!r}?")
            self._node.get_logger().warning(f"Parameter {name!r} does not exist in this node and has no effect.")

    def _report_unused_remapping(self) -> None:
        """Warn when 'image' is remapped and no camera has that topic."""
        remapped, image = (self._node.resolve_topic_name("image", only_expand=only) for only in (False, True))
        topics = {f"{camera.name}.topic": camera.topic for camera in self.cameras()}
        if remapped != image and not {"image", image} & set(topics.values()):
            own = ", ".join(f"{name} = {topic!r}" for name, topic in topics.items())
            self._node.get_logger().warning(
                f"'image' is remapped to {remapped} (launch argument image_topic), which has no effect: {own}. Set "
                f"{' and '.join(topics)} instead.")

    # -- changes at run time ----------------------------------------------------------------------------------------

    def _normalized(self, parameters: list[Parameter]) -> list[Parameter]:
        """Convert whole numbers and bare YAML words before rclpy checks them against the descriptors."""
        return [Parameter(parameter.name, value=self._specs[parameter.name].normalized(parameter.value))
                if parameter.name in self._specs else parameter for parameter in parameters]

    def _check_change(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        """Accept or refuse a change as a whole; an accepted one is applied to a live memory."""
        try:
            changed = {parameter.name: parameter.value for parameter in parameters}
            for name, value in changed.items():
                if name in self._specs:
                    _check(self._specs[name], value)
                    self._check_moment(self._specs[name], value)
            settings = self.stream_settings(changed)
            self.node_settings(changed)
            if not self._unconfigured():
                self._apply(settings)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets the reason and the node goes on
            return SetParametersResult(successful=False, reason=str(error)[:500])
        return SetParametersResult(successful=True)

    def _check_moment(self, spec: ParameterSpec, value: Any) -> None:
        """Raise SettingsError when the parameter may not change now; its present value is always accepted."""
        allowed = spec.rules.change is Change.RUNNING or (
            spec.rules.change is Change.CONFIGURE and self._unconfigured())
        if not allowed and value != self.value(spec.name):
            raise SettingsError(f"{spec.name} may be changed {spec.rules.change.value}.")

    def _apply(self, settings: StreamSettings) -> None:
        """Give a live memory the settings that differ from the present ones."""
        now = self.stream_settings()
        budget_mib = settings.memory.budget_mib
        if budget_mib != now.memory.budget_mib:
            self._new_budget(budget_mib)
        if settings != replace(now, memory=replace(now.memory, budget_mib=budget_mib)):
            self._new_settings(settings)

    def _declare_new_cameras(self, parameters: Sequence[Parameter]) -> None:
        """Make the parameters of an added camera available before the node is configured."""
        if any(parameter.name == "cameras" for parameter in parameters):
            try:
                self.cameras()
            except SettingsError as error:  # given at start for this camera; configure fails with the same reason
                self._node.get_logger().error(str(error))


def _check(spec: ParameterSpec, value: Any) -> None:
    """Raise SettingsError for a bad value of a parameter."""
    if spec.name == "cameras":
        check_cameras(value)
    spec.check(value)
    camera, _, part = spec.name.rpartition(".")
    if part == "range":
        value_range(CameraSettings(camera, range=value))
    if part == "pose":
        mounting(CameraSettings(camera, pose=value))


def check_cameras(names: Any) -> None:
    """Raise SettingsError unless these are 1 to MAX_CAMERAS distinct names that parameters can be made of."""
    if not isinstance(names, (list, tuple)) or not 1 <= len(names) <= MAX_CAMERAS or len(set(names)) != len(names):
        raise SettingsError(f"cameras = {names!r}: must be 1 to {MAX_CAMERAS} distinct names.")
    groups = {name.split(".")[0] for name in parameter_specs()}
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in groups:
            raise SettingsError(f"cameras: {name!r} must be letters, digits and underscores, and no parameter's name.")


def report_unused_arguments(node: Node, arguments: Sequence[str]) -> None:
    """Warn about arguments that are no ROS arguments, and about parameter files whose keys do not name the node.

    :param arguments: the command line, with the program's name first.
    """
    if ignored := remove_ros_args(arguments)[1:]:
        node.get_logger().warning(f"Ignored: {' '.join(ignored)}. Arguments for ROS follow --ros-args.")
    full_name = node.get_fully_qualified_name()
    for option, path in zip(arguments, arguments[1:], strict=False):
        if option != "--params-file":
            continue
        try:
            keys = list(_node_keys(yaml.safe_load(Path(path).read_text())))
        except (OSError, ValueError, yaml.YAMLError):  # rcl has read it: removed since, or YAML that only rcl accepts
            continue
        matching = [key for key in keys if _names(key, full_name)]
        similar = difflib.get_close_matches(node.get_name(), [key.split("/")[-1] for key in keys], n=1, cutoff=0.75)
        if any(not key.endswith("*") for key in matching) or (matching and not similar):
            continue
        node.get_logger().warning(
            f"Parameter file {path}: no key names this node, {full_name}{', but wildcards do' if matching else ''}. "
            f"Keys found: {', '.join(keys) or 'none'}. Write the values under {full_name} or /**.")


def _node_keys(tree: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of a parameter file above ros__parameters, nested ones joined by '/'."""
    for name, below in tree.items() if isinstance(tree, dict) else ():
        if name == "ros__parameters":
            yield key
        else:
            yield from _node_keys(below, f"{key}/{name}" if key else str(name))


def _names(key: str, full_name: str) -> bool:
    """Whether a key of a parameter file applies to a node: * is one part of its name, ** any number of them."""
    pattern = re.escape("/" + key.strip("/")).replace(r"/\*\*", r"(/\w+)*").replace(r"/\*", r"/\w+")
    return re.fullmatch(pattern, full_name) is not None
