# SPDX-License-Identifier: Apache-2.0
"""The parameters of a node in this process: what is declared, refused and applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from support.running_node import own_context

from ros_kvstream.errors import SettingsError
from ros_kvstream.node.parameters import NodeParameters, check_cameras, report_unused_arguments
from ros_kvstream.node.rclpy_compat import names_given_at_start
from ros_kvstream.settings import StreamSettings


class Declared:
    """The parameters of a node, and what would be applied to its memory."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.unconfigured = True
        self.budgets: list[float] = []
        self.settings: list[StreamSettings] = []
        self.parameters = NodeParameters(node, lambda: self.unconfigured, self.budgets.append, self.settings.append)

    def set(self, **values: Any) -> str:
        """Set parameters at once, "__" for a dot; returns the reason of a refusal."""
        parameters = [Parameter(name.replace("__", "."), value=value) for name, value in values.items()]
        return str(self.node.set_parameters_atomically(parameters).reason)


@pytest.fixture(scope="module")
def context() -> Iterator[rclpy.Context]:
    with own_context() as context:
        yield context


@pytest.fixture
def declare(context: rclpy.Context) -> Iterator[Callable[..., Declared]]:
    nodes: list[Node] = []

    def make(*arguments: str, **given: Any) -> Declared:
        overrides = [Parameter(name.replace("__", "."), value=value) for name, value in given.items()]
        nodes.append(Node("parameters", context=context, parameter_overrides=overrides,
                          cli_args=["--ros-args", *arguments]))
        return Declared(nodes[-1])

    yield make
    for node in nodes:
        node.destroy_node()


def test_values_given_at_start_are_in_the_settings(declare: Callable[..., Declared]) -> None:
    node = declare(memory__budget_mib=8, gate__mode=False, memory__policy="tar", memory__tar__recent_share=0.25,
                   retrieval__layers="3 7", cameras=["front", "rear"], rear__share=0.5)  # fmt: skip
    settings = node.parameters.stream_settings()
    assert (settings.memory.budget_mib, settings.gate.mode, settings.retrieval.layers) == (8.0, "off", (3, 7))
    assert settings.memory.policy_settings["recent_share"] == 0.25
    assert settings.memory.camera_shares == {"front": 0.0, "rear": 0.5}
    assert [(camera.name, camera.topic) for camera in node.parameters.cameras()] == [
        ("front", "front/image"), ("rear", "rear/image")]


@pytest.mark.parametrize(("given", "reason"), [
    ({"memory__budget_mib": -5.0}, "memory.budget_mib = -5.0: must be a finite number from 0.01 to 4194304"),
    ({"memory__buget_mib": 64.0}, "did you mean 'memory.budget_mib'"),
    ({"memory__tar__recent_shar": 0.2}, "did you mean 'memory.tar.recent_share'"),
    ({"camera__trasport": "raw"}, "did you mean 'camera.transport'"),
    ({"camera__transport": "theora"}, "camera.transport = 'theora': must be one of raw, compressed"),
    ({"camera__topic": 7}, r"camera.topic = 7: must be of type text \(in YAML: write it in quotes\)"),
    ({"camera__topic": ["a"]}, r"camera.topic = \['a'\]: must be of type text\."),
    ({"camera__transport": False}, r"camera.transport = False: must be of type text \(in YAML: write it in quotes\)"),
    ({"camera__share": 1.5}, "camera.share = 1.5: must be"),
    ({"cameras": ["a", "a"]}, "distinct names"),
    ({"memory__budget_mib": "lots"}, "memory.budget_mib = 'lots': must be of type number"),
    ({"memory__policy": "lru"}, "memory.policy = 'lru': must be one of infinipot_v"),
    ({"memory__infinipot_v__alpha": 1.5}, "alpha = 1.5: must be"),
    ({"memory__infinipot_v__recent_share": 0.0}, "recent_share = 0.0: must be above 0"),
    ({"ingest__depth_near": 5.0, "ingest__depth_far": 4.0}, "ingest.depth_near"),
], ids=str)  # fmt: skip
def test_a_bad_value_or_name_at_start_is_refused_with_the_reason(
    declare: Callable[..., Declared], given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        declare(**given)


def test_an_empty_list_of_cameras_is_refused_as_such(declare: Callable[..., Declared], tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("/**:\n  ros__parameters:\n    cameras: []\n")
    with pytest.raises(SettingsError, match=r"cameras = \[\]: must be 1 to 8 distinct names"):
        declare("--params-file", str(file))


@pytest.mark.parametrize(("given", "warned"), [
    ({"cameras": ["front", "rear"], "camera__transport": "compressed"}, (
        "camera.transport (set by the launch argument image_topic if that ends in /compressed) has no effect: cameras "
        "= ['front', 'rear'] has no 'camera'. Set front.transport and rear.transport instead.",
        "'image' is remapped to /x (launch argument image_topic), which has no effect: front.topic = 'front/image', "
        "rear.topic = 'rear/image'. Set front.topic and rear.topic instead.")),
    ({"cameras": ["front", "rear"]}, ("'image' is remapped to /x",)),
    ({"cameras": ["front", "rear"], "rear__topic": "image"}, ()),
    ({"camera__topic": "/y"}, ("'image' is remapped to /x", "camera.topic = '/y'")),
    ({"camera__topic": "/image"}, ()),
    ({"cameras": ["front"]}, ()),
], ids=str)  # fmt: skip
def test_an_image_topic_that_no_camera_takes_is_reported(
    declare: Callable[..., Declared], capfd: pytest.CaptureFixture[str], given: dict[str, Any], warned: tuple[str, ...]
) -> None:
    declare("-r", "image:=/x", **given)
    output = "".join(capfd.readouterr())
    assert all(text in output for text in warned) and ("has no effect" in output) == bool(warned)


@pytest.mark.parametrize(("keys", "applies"), [
    (["parameters"], False), (["/robot2/parameters"], False), (["/robot1/paramters"], False), (["/*/camera"], False),
    (["/*"], False), ([], False), (["/robot1/parameters"], True), (["robot1/parameters"], True), (["/**"], True),
    (["/*/parameters"], True), (["/**/parameters"], True), (["/robot1/*"], True), (["other", "/**"], True),
    (["parameters", "/robot1/parameters"], True),
], ids=str)  # fmt: skip
def test_a_parameter_file_whose_keys_do_not_name_the_node_is_reported_with_name_and_keys(
    declare: Callable[..., Declared], capfd: pytest.CaptureFixture[str], tmp_path: Path, keys: list[str], applies: bool
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("".join(f"{key}:\n  ros__parameters:\n    query.max_waiting: 5\n" for key in keys))
    arguments = ["--params-file", str(file), "-r", "__ns:=/robot1"]
    node = declare(*arguments).node
    assert ("query.max_waiting" in names_given_at_start(node)) == applies  # what rclpy does with the file
    report_unused_arguments(node, ["kvstream_node", "--ros-args", *arguments])
    output = "".join(capfd.readouterr())
    warned = f"{file}: no key names this node, /robot1/parameters. Keys found: {', '.join(keys) or 'none'}." in output
    assert warned == ("no key names" in output) == (not applies)


def test_a_key_like_the_nodes_name_is_reported_beside_a_wildcard_and_arguments_that_are_not_for_ros_too(
    declare: Callable[..., Declared], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file.yaml"
    values = "ros__parameters:\n      query.max_waiting: 5\n"
    file.write_text(f"/**:\n    {values}robot2:\n  paramters:\n    {values}")
    node = declare("-r", "__ns:=/robot1").node
    report_unused_arguments(node, ["kvstream_node", "-p", "a:=1", "--ros-args", "--params-file", str(file)])
    output = "".join(capfd.readouterr())
    assert "this node, /robot1/parameters, but wildcards do. Keys found: /**, robot2/paramters." in output
    assert "Ignored: -p a:=1. Arguments for ROS follow --ros-args." in output


def test_a_change_is_refused_as_a_whole(declare: Callable[..., Declared]) -> None:
    node = declare()
    assert "memory.keep_ratio" in node.set(memory__budget_mib=8.0, memory__high_water=0.5)
    assert node.parameters.value("memory.budget_mib") == 64.0
    assert node.set(memory__budget_mib=8, memory__high_water=0.5, memory__keep_ratio=0.4) == ""
    assert node.parameters.value("memory.budget_mib") == 8.0


def test_a_live_memory_gets_only_what_has_changed(declare: Callable[..., Declared]) -> None:
    node = declare()
    node.unconfigured = False
    assert node.set(query__max_waiting=5, memory__tar__recent_share=0.5) == ""
    assert (node.budgets, node.settings) == ([], [])
    assert node.set(memory__budget_mib=8.0) == ""
    assert (node.budgets, node.settings) == ([8.0], [])
    assert node.set(memory__policy="tar") == "" and node.set(camera__share=0.5) == ""
    policy, shares = (settings.memory for settings in node.settings)
    assert (policy.policy, policy.policy_settings["recent_share"]) == ("tar", 0.5)
    assert shares.camera_shares == {"camera": 0.5}


def test_while_configured_only_the_present_value_of_a_fixed_parameter_is_accepted(
    declare: Callable[..., Declared],
) -> None:
    node = declare()
    node.unconfigured = False
    assert "device may be changed while the node is unconfigured" in node.set(device="cpu")
    assert "camera.topic may be changed while" in node.set(camera__topic="other")
    assert node.set(device="auto", memory__block_frames=1, cameras=["camera"]) == ""


def test_a_camera_added_at_run_time_gets_parameters_and_a_bad_one_does_not_end_the_node(
    declare: Callable[..., Declared],
) -> None:
    node = declare(z__transport="theora")
    assert node.set(cameras=["front", "z"]) == ""
    assert node.set(front__share=0.25) == ""
    with pytest.raises(SettingsError, match="z.transport = 'theora'"):
        node.parameters.cameras()
    assert node.set(z__transport="compressed") == ""
    assert [camera.transport for camera in node.parameters.cameras()] == ["raw", "compressed"]


def test_the_range_of_a_camera_is_checked_when_it_is_set_and_reaches_its_settings(
    declare: Callable[..., Declared],
) -> None:
    node = declare(camera__range="0 1023")
    assert "camera.range = '5': must be auto, or two whole numbers" in node.set(camera__range="5")
    assert [camera.range for camera in node.parameters.cameras()] == ["0 1023"]
    assert node.set(camera__range="auto") == "" and node.parameters.cameras()[0].range == "auto"
    with pytest.raises(SettingsError, match="camera.range = '9 3'"):
        declare(camera__range="9 3")


@pytest.mark.parametrize(
    "names", [[], ["a"] * 2, ["a/b"], ["9"], [""], ["gate"], [3], "front", [f"c{i}" for i in range(9)]], ids=str
)
def test_impossible_camera_names_are_refused(names: Any) -> None:
    with pytest.raises(SettingsError, match="cameras"):
        check_cameras(names)
