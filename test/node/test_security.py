"""Security (SROS 2): never an open node where security is demanded; the policy in config/ is one that the tools take.

A node with security on needs the keystore tools (`sros2`, of a ROS installation) and a middleware that was built with
security, which the wheels of Jazzy and Kilted are not: where one is missing the test says which.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import rclpy
from rclpy.impl.implementation_singleton import rclpy_implementation
from support.running_node import image, own_domain, picture, running_node

from ros_kvstream.node.main import NO_MIDDLEWARE

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
def keystore(tmp_path: Path) -> Path:
    """A keystore with what the policy grants to the node, and with a client that may do anything."""
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


def skip_without_security() -> None:
    """Skip where the middleware cannot do what this process's environment now demands."""
    context = rclpy.Context()
    with own_domain() as domain:
        rclpy.init(context=context, domain_id=domain)
        try:
            rclpy.create_node("test_client", context=context).destroy_node()
        except rclpy_implementation.RCLError as error:
            if WITHOUT not in str(error):
                raise
            pytest.skip("the middleware here was built without security")
        finally:
            rclpy.shutdown(context=context)


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


def test_the_node_runs_with_security_on(
        keystore: Path, tmp_path: Path, random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in demanded(keystore, "/test_client").items():
        monkeypatch.setenv(name, value)
    skip_without_security()
    with running_node(tmp_path, {"model": random_model}, environment=demanded(keystore, "/kvstream")) as node:
        node.until_active()
        node.camera("/image").publish(image(picture(1), 5.0))
        node.until_stats(lambda stats: stats.frames_remembered == 1)
        assert node.ask("what is there ?", max_new_tokens=1).success
