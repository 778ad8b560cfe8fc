# SPDX-License-Identifier: Apache-2.0
"""The files in config/ are well-formed, and name what a running node really has, by the types that each view needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from support.running_node import RunningNode, running_node

from ros_kvstream.msg import KvStats
from ros_kvstream.node.settings import PoseSettings

CONFIG = Path(__file__).parents[2] / "config"
PANELS = {"Image": "sensor_msgs/msg/Image", "DiagnosticSummary": "diagnostic_msgs/msg/DiagnosticArray",
          "RawMessages": "ros_kvstream/msg/Answer", "Plot": "ros_kvstream/msg/KvStats",
          "3D": "visualization_msgs/msg/MarkerArray"}
"""What each kind of panel in the layout shows."""
NUMBERS = ("uint8", "uint32", "uint64", "float32", "float64", "double", "float", "int32", "int64")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("config"), {"autostart": False}) as running:
        running.until(lambda: "kvstream" in running.client.get_node_names(), "the node")
        assert running.lifecycle_state() == "unconfigured"
        yield running


@pytest.fixture(scope="module")
def layout() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIG / "kvstream.foxglove.json").read_text())
    return found


@pytest.fixture(scope="module")
def view() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONFIG / "kvstream.rviz").read_text())
    return found


def published(node: RunningNode) -> dict[str, str]:
    """Topics that the node publishes, with their type."""
    return {name: types[0] for name, types in node.client.get_publisher_names_and_types_by_node("kvstream", "/")}


# -- Foxglove ---------------------------------------------------------------------------------------------------------


def leaves(tree: Any) -> list[str]:
    """Panels of a layout tree; fails where a branch is not split in two at a share between 0 and 100 %."""
    if isinstance(tree, str):
        return [tree]
    assert set(tree) - {"splitPercentage"} == {"direction", "first", "second"}
    assert tree["direction"] in ("row", "column")
    assert 0 < tree.get("splitPercentage", 50) < 100
    return leaves(tree["first"]) + leaves(tree["second"])


def shown(name: str, panel: dict[str, Any]) -> set[str]:
    """Topics that a panel of the layout shows; a plot's paths are TOPIC.FIELD."""
    kind = name.split("!")[0]
    if kind == "Plot":
        assert panel["paths"]
        for path in panel["paths"]:
            assert KvStats.get_fields_and_field_types()[path["value"].split(".")[1]] in NUMBERS
        return {path["value"].split(".")[0] for path in panel["paths"]}
    if kind == "3D":
        return {topic for topic, settings in panel["topics"].items() if settings["visible"]}
    place = {"Image": lambda: panel["imageMode"]["imageTopic"], "RawMessages": lambda: panel["topicPath"],
             "DiagnosticSummary": lambda: panel["topicToRender"]}
    return {place[kind]()}


def test_the_layout_places_every_panel_once(layout: dict[str, Any]) -> None:
    assert {"configById", "globalVariables", "userNodes", "playbackConfig", "layout"} <= set(layout)
    assert sorted(leaves(layout["layout"])) == sorted(layout["configById"])


def test_the_layout_shows_topics_that_the_node_publishes_in_the_type_of_the_panel(
        node: RunningNode, layout: dict[str, Any]) -> None:
    topics = published(node)
    for name, panel in layout["configById"].items():
        assert shown(name, panel)
        for topic in shown(name, panel):
            assert topics[topic] == PANELS[name.split("!")[0]], topic


# -- RViz -------------------------------------------------------------------------------------------------------------


def displays(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Displays by name; fails where two have the same one."""
    found: list[dict[str, Any]] = view["Visualization Manager"]["Displays"]
    assert len({display["Name"] for display in found}) == len(found)
    return {display["Name"]: display for display in found}


def test_the_view_has_what_rviz_looks_for(view: dict[str, Any]) -> None:
    assert {"Panels", "Visualization Manager", "Window Geometry"} <= set(view)
    assert view["Visualization Manager"]["Global Options"]["Fixed Frame"]
    synced = [panel["SyncSource"] for panel in view["Panels"] if "SyncSource" in panel]
    assert set(synced) <= set(displays(view))
    kinds = {name: display["Class"].removeprefix("rviz_default_plugins/") for name, display in displays(view).items()}
    assert kinds == {"Kept tokens": "Image", "Camera": "Image", "Grid, 1 m": "Grid", "Places": "MarkerArray"}
    assert all(display["Enabled"] is True for display in displays(view).values())
    assert "rviz_default_plugins/MoveCamera" in [tool["Class"] for tool in view["Visualization Manager"]["Tools"]]


def test_the_view_shows_kept_tokens_places_and_the_camera_with_a_quality_of_service_that_matches(
        node: RunningNode, view: dict[str, Any]) -> None:
    topics = {name: display["Topic"] for name, display in displays(view).items() if "Topic" in display}
    for name, topic, kind in (("Kept tokens", "/kvstream/kept_tokens", "sensor_msgs/msg/Image"),
                              ("Places", "/kvstream/places", "visualization_msgs/msg/MarkerArray")):
        wanted = topics[name]
        assert wanted["Value"] == topic and published(node)[topic] == kind
        offered = node.client.get_publishers_info_by_topic(topic)[0].qos_profile
        assert offered.reliability == ReliabilityPolicy.RELIABLE or wanted["Reliability Policy"] == "Best Effort"
        assert offered.durability == DurabilityPolicy.TRANSIENT_LOCAL or wanted["Durability Policy"] == "Volatile"
    camera = topics["Camera"]
    assert camera["Value"] == "/image"
    assert camera["Reliability Policy"] == "Best Effort"  # cameras are heard whatever they offer


# -- nav2 -------------------------------------------------------------------------------------------------------------


def test_the_node_is_brought_up_as_the_file_for_the_lifecycle_manager_says(tmp_path: Path) -> None:
    file = CONFIG / "nav2_lifecycle_manager.yaml"
    keys = yaml.safe_load(file.read_text())
    manager = keys["/**/lifecycle_manager_kvstream"]["ros__parameters"]
    assert (manager["autostart"], manager["node_names"], manager["bond_timeout"]) == (True, ["kvstream"], 0.0)
    with running_node(tmp_path, {}, "--params-file", str(file)) as running:
        assert running.lifecycle_state() == "unconfigured"
        for transition, state in ((1, "inactive"), (3, "active")):  # what nav2's lifecycle manager calls and expects
            assert running.change(transition) and running.lifecycle_state() == state
        assert running.client.count_publishers("/bond") == 0  # why bond_timeout is 0
        assert "no key names" not in running.output()


# -- SROS 2 -----------------------------------------------------------------------------------------------------------


def granted(kind: str, way: str, namespace: str = "") -> set[str]:
    """Full names that the security policy grants to the node, with its ns changed to a namespace."""
    entries = ElementTree.parse(CONFIG / "kvstream.policy.xml").getroot().iter(kind)
    names = [entry.text or "" for group in entries if group.get(way) == "ALLOW" for entry in group]
    return {name if name.startswith("/") else f"{namespace}/{name.replace('~', 'kvstream')}" for name in names}


def test_the_security_policy_grants_what_a_running_node_has(node: RunningNode) -> None:
    services = {name for name, _ in node.client.get_service_names_and_types_by_node("kvstream", "/")}
    topics = set(published(node))
    action = {name for name in services | topics if "/_action/" in name}
    assert {name.split("/_action/")[0] for name in action} == granted("actions", "execute")
    assert services - action == granted("services", "reply")
    assert topics - action == granted("topics", "publish")
    poses = {f"/{PoseSettings().topic}", "/tf", "/tf_static"}  # subscribed with pose.source topic or tf
    assert granted("topics", "subscribe") == {"/image", "/clock"} | poses


def test_in_another_namespace_the_policy_still_grants_the_topics_that_are_in_none() -> None:
    names = granted("topics", "publish", "/robot") | granted("topics", "subscribe", "/robot")
    assert {name for name in names if not name.startswith("/robot/")} == {
        "/clock", "/diagnostics", "/parameter_events", "/rosout", "/tf", "/tf_static"}
