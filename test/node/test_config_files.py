"""The files in config/ name what the node really has."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import yaml

from ros_kvstream.msg import KvStats

CONFIG = Path(__file__).parents[2] / "config"
SHOWN = {"/kvstream/kept_tokens", "/kvstream/answers", "/kvstream/stats", "/diagnostics"}


def granted(kind: str, way: str) -> set[str]:
    """Full names that the security policy grants to the node."""
    entries = ElementTree.parse(CONFIG / "kvstream.policy.xml").getroot().iter(kind)
    names = [entry.text or "" for group in entries if group.get(way) == "ALLOW" for entry in group]
    return {name.replace("~", "/kvstream") if name.startswith("~") else f"/{name}" for name in names}


def test_the_layout_shows_topics_and_fields_that_exist() -> None:
    layout = json.loads((CONFIG / "kvstream.foxglove.json").read_text())
    panels = layout["configById"]
    text = json.dumps(layout["layout"])
    assert all(f'"{name}"' in text for name in panels)
    topics = {panels["Image!kept"]["imageMode"]["imageTopic"], panels["RawMessages!answers"]["topicPath"],
              panels["DiagnosticSummary!health"]["topicToRender"]}
    for panel in panels.values():
        for path in panel.get("paths", []):
            topic, field = path["value"].split(".")
            topics.add(topic)
            assert field in KvStats.get_fields_and_field_types()
    assert topics == SHOWN


def test_the_view_shows_the_kept_tokens() -> None:
    view = yaml.safe_load((CONFIG / "kvstream.rviz").read_text())
    topics = [display["Topic"]["Value"] for display in view["Visualization Manager"]["Displays"]]
    assert topics == ["/kvstream/kept_tokens", "/image"]


def test_the_security_policy_grants_what_a_running_node_has(tmp_path: Path) -> None:
    from support.running_node import running_node

    with running_node(tmp_path, {"autostart": False}) as node:
        node.until(lambda: "kvstream" in node.client.get_node_names(), "the node")
        assert node.lifecycle_state() == "unconfigured"
        services = {name for name, _ in node.client.get_service_names_and_types_by_node("kvstream", "/")}
        topics = {name for name, _ in node.client.get_publisher_names_and_types_by_node("kvstream", "/")}
    action = {name for name in services | topics if "/_action/" in name}
    assert {name.split("/_action/")[0] for name in action} == granted("actions", "execute")
    assert services - action == granted("services", "reply")
    assert topics - action == granted("topics", "publish")
    assert granted("topics", "subscribe") == {"/image", "/clock"}
