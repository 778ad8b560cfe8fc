# SPDX-License-Identifier: Apache-2.0
"""Security (SROS 2): never an open node where security is demanded; the policy in config/ is one that the tools take.

A node with security on needs the keystore tools (`sros2`, of a ROS installation) and a middleware that was built with
security, which the wheels of Jazzy and Kilted are not: where one is missing the test says which.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
import rclpy
from lifecycle_msgs.msg import Transition
from rosgraph_msgs.msg import Clock
from support.running_node import image, own_context, own_domain, picture, running_node

from ros_kvstream.errors import KvStreamError
from ros_kvstream.node.cameras import CameraSubscription
from ros_kvstream.node.messages import to_stamp
from ros_kvstream.node.rclpy_compat import RclError
from ros_kvstream.node.run import NO_MIDDLEWARE
from ros_kvstream.node.security import security_hint
from ros_kvstream.node.settings import CameraSettings

POLICY = Path(__file__).parents[2] / "config" / "kvstream.policy.xml"
CLIENT = """
<enclave path="/test_client"><profiles><profile ns="/" node="test_client">
  <topics publish="ALLOW" subscribe="ALLOW"><topic>*</topic></topics>
  <services request="ALLOW" reply="ALLOW"><service>*</service></services>
  <actions call="ALLOW" execute="ALLOW"><action>*</action></actions>
</profile></profiles></enclave>"""
WITHOUT = "doesn't have the security libraries"
"""What Fast DDS says when it was built without."""


def demanded(keystore: Path, enclave: str) -> dict[str, str]:
    return {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce", "ROS_SECURITY_KEYSTORE": str(keystore),
            "ROS_SECURITY_ENCLAVE_OVERRIDE": enclave}


@pytest.fixture
def domain() -> Iterator[int]:
    """The domain that the keystore is for: certificates and permissions hold in one alone."""
    with own_domain() as domain:
        yield domain


@pytest.fixture
def keystore(tmp_path: Path, domain: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keystore with what the policy grants to the node, and with a client that may do anything."""
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
    try:
        from sros2.api import _artifact_generation as artifacts
        from sros2.keystore import create_keystore
    except (ImportError, LookupError, OSError) as error:
        pytest.skip(f"the keystore tools (sros2) are not installed: {error}")
    tree = ElementTree.parse(POLICY)
    enclaves: Any = tree.getroot().find("enclaves")
    enclaves.append(ElementTree.fromstring(CLIENT))
    tree.write(tmp_path / "policy.xml")
    create_keystore(tmp_path / "keystore")
    artifacts.generate_artifacts(keystore_path=tmp_path / "keystore", policy_files=[tmp_path / "policy.xml"])
    return tmp_path / "keystore"


def start(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Start a node that does nothing and should not run at all."""
    with own_domain() as domain:
        command = [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", "-p", "autostart:=false"]
        return subprocess.run(command, text=True, capture_output=True, timeout=150, check=False,
                              env={**os.environ, "ROS_DOMAIN_ID": str(domain), **environment})


def skip_without_security(domain: int) -> None:
    """Skip where the middleware cannot do what this process's environment now demands."""
    try:
        with own_context(domain) as context:
            rclpy.create_node("test_client", context=context).destroy_node()
    except RclError as error:
        if WITHOUT not in str(error):
            raise
        pytest.skip("the middleware here was built without security")


def test_where_security_is_demanded_and_there_is_no_keystore_the_node_does_not_run(tmp_path: Path) -> None:
    done = start(demanded(tmp_path / "nowhere", "/kvstream"))
    output = done.stdout + done.stderr
    assert done.returncode == NO_MIDDLEWARE and "ROS 2 does not start" in output and "Traceback" not in output


def test_where_the_node_has_no_enclave_of_its_own_it_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "enclaves").mkdir()
    done = start(demanded(tmp_path, "/kvstream"))
    assert done.returncode == NO_MIDDLEWARE and "Traceback" not in done.stdout + done.stderr


def test_the_keystore_tools_take_the_policy(keystore: Path) -> None:
    enclave = keystore / "enclaves" / "kvstream"
    for name in ("cert.pem", "key.pem", "governance.p7s", "permissions.p7s"):
        assert (enclave / name).stat().st_size > 0
    granted = (enclave / "permissions.xml").read_text()
    for topic in ("rt/image", "rt/kvstream/stats", "rq/kvstream/queryRequest",
                  "rq/kvstream/ask/_action/send_goalRequest"):
        assert f"<topic>{topic}</topic>" in granted


@pytest.fixture
def secured(keystore: Path, domain: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The keystore, with this process a client that may do anything; skips where the middleware has no security."""
    for name, value in demanded(keystore, "/test_client").items():
        monkeypatch.setenv(name, value)
    skip_without_security(domain)
    return keystore


def test_the_node_does_all_it_has_to_with_security_on(
        secured: Path, domain: int, tmp_path: Path, random_model: Path) -> None:
    (tmp_path / "memories").mkdir()
    parameters = {"model": random_model, "memory.directory": tmp_path / "memories", "use_sim_time": True}
    with running_node(tmp_path, parameters, environment=demanded(secured, "/kvstream"), held_domain=domain) as node:
        node.until_active()
        node.camera("/clock", Clock).publish(Clock(clock=to_stamp(9.0)))
        node.camera("/image").publish(image(picture(1), 0.0))  # it takes the time of its arrival, by the clock
        node.until_stats(lambda stats: stats.frames_remembered == 1)
        answer = node.ask("what is there ?", max_new_tokens=1)
        assert answer.success and answer.evidence[0].stamp.sec == 9
        goal, feedback = node.ask_action("what is there ?", max_new_tokens=1)
        assert node.result(goal)[1].success
        node.until(lambda: feedback and node.answers and node.tokens, "feedback, an answer and a token on their topics")
        assert node.save("one").success and node.clear().success and node.load("one").frames == 1
        assert node.set_parameter("memory.budget_mib", 7.0) == ""
        for transition in (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP,
                           Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
            assert node.change(transition)
        assert node.interrupt() == 0 and "not found in allow rule" not in node.output()


def test_a_camera_that_the_policy_does_not_grant_is_refused_in_words(
        secured: Path, domain: int, tmp_path: Path, random_model: Path) -> None:
    with running_node(tmp_path, {"model": random_model}, "-r", "image:=/other/image",
                      environment=demanded(secured, "/kvstream"), held_domain=domain) as node:
        said = node.until_status("state", lambda status: "activate failed" in status.message).message
        assert "camera 'camera' cannot subscribe /other/image" in said and "policy must grant" in said
        assert node.lifecycle_state() == "inactive" and node.interrupt() == 0


def test_a_keystore_of_another_domain_is_refused_in_words(secured: Path) -> None:
    done = start(demanded(secured, "/kvstream"))
    assert done.returncode == NO_MIDDLEWARE and "created for this ROS_DOMAIN_ID" in done.stdout + done.stderr


def test_the_hint_at_security_is_given_only_where_it_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = RclError("could not create data writer")
    monkeypatch.delenv("ROS_SECURITY_ENABLE", raising=False)
    assert security_hint(refused) == ""
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    assert "config/kvstream.policy.xml" in security_hint(refused)
    assert security_hint(RclError(f"This Fast DDS version {WITHOUT}")) == ""


def test_a_refused_subscription_names_the_camera_and_its_topic() -> None:
    node = Mock()
    node.resolve_topic_name.side_effect = lambda name: f"/{name}"
    node.create_subscription.side_effect = RclError("invalid allocator")
    with pytest.raises(KvStreamError, match="camera 'front' cannot subscribe /front/image: invalid allocator"):
        CameraSubscription(node, CameraSettings("front", "front/image", "raw"), Mock(), Mock(), Mock())


def test_with_security_on_a_silent_camera_tells_which_publishers_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    node = Mock()
    node.resolve_topic_name.return_value = "/image"
    node.get_topic_names_and_types.return_value, node.count_publishers.return_value = [], 0
    camera = CameraSubscription(node, CameraSettings("camera", "image", "raw"), Mock(), Mock(), Mock())
    assert "without an enclave of this keystore are not visible" in camera.why_silent()
