# SPDX-License-Identifier: Apache-2.0
"""The launch files, started for real; skipped where launch is missing, which comes with a ROS 2 installation."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lifecycle_msgs.srv import GetState
from rcl_interfaces.srv import GetParameters
from rclpy.parameter import parameter_value_to_python
from support.running_node import RunningNode, own_context

from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld

LAUNCH = Path(__file__).parents[2] / "launch"
ARGUMENTS = {"image_topic", "odom_topic", "model", "budget_mib", "config", "autostart", "namespace", "use_sim_time",
             "log_level"}
RUN = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
service = LaunchService(noninteractive=True)
arguments = [tuple(argument.split(":=", 1)) for argument in sys.argv[2:]]
source = PythonLaunchDescriptionSource(sys.argv[1])
service.include_launch_description(LaunchDescription([IncludeLaunchDescription(source, launch_arguments=arguments)]))
sys.exit(service.run())
"""


@pytest.fixture(scope="module", autouse=True)
def launch_installed() -> None:
    """Skip where launch is missing. Its submodules, because the repository has a folder named launch."""
    for module in ("launch.actions", "launch_ros.actions"):
        pytest.importorskip(module, reason="launch and launch_ros come with a ROS 2 installation, not as wheels")


def declared(name: str) -> set[str]:
    """Return the names of the arguments that a launch file takes."""
    from launch.launch_description_sources import get_launch_description_from_python_launch_file

    description = get_launch_description_from_python_launch_file(str(LAUNCH / name))
    return {argument.name for argument in description.get_launch_arguments()}


@contextmanager
def launched(folder: Path, name: str, **arguments: object) -> Iterator[RunningNode]:
    """Run a launch file in a domain of its own and end it, with all it started, afterwards."""
    log = folder / "launch.log"
    prefixes = os.pathsep.join([*filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)), sys.prefix])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given = [f"{key}:={value}" for key, value in arguments.items()]
    with own_context() as context, open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(LAUNCH / name), *given], stdout=output, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
            env={**os.environ, "AMENT_PREFIX_PATH": prefixes, "PATH": path,
                 "ROS_DOMAIN_ID": str(context.get_domain_id()), "OMP_NUM_THREADS": "1",
                 "ROS_LOG_DIR": str(folder), "PYTHONUNBUFFERED": "1"})
        node = RunningNode(process, log, context)
        try:
            yield node
        finally:
            node.executor.shutdown()
            node.client.destroy_node()
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def parameters(node: RunningNode, full_name: str, *names: str) -> list[Any]:
    """Read parameters of the launched node."""
    response = node.call(GetParameters, f"{full_name}/get_parameters", GetParameters.Request(names=names))
    return [parameter_value_to_python(value) for value in response.values]


@pytest.fixture
def config(tmp_path: Path, random_model: Path) -> Path:
    """A configuration file with values that are nobody's defaults."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "/**:\n  ros__parameters:\n"
        f"    model: '{random_model}'\n    autostart: false\n    memory.budget_mib: 9.5\n    memory.policy: recent\n")
    return path


def test_the_launch_files_take_the_documented_arguments() -> None:
    assert declared("kvstream.launch.py") == ARGUMENTS
    assert declared("replay.launch.py") == ARGUMENTS | {"bag", "rate"}


def test_arguments_left_out_take_their_values_from_the_configuration_file(tmp_path: Path, config: Path) -> None:
    with launched(tmp_path, "kvstream.launch.py", config=config) as node:
        names = ("autostart", "memory.budget_mib", "memory.policy", "camera.transport", "pose.source", "pose.topic")
        assert parameters(node, "/kvstream", *names) == [False, 9.5, "recent", "raw", "none", "odom"]
        assert node.lifecycle_state() == "unconfigured"


def test_arguments_stand_above_the_configuration_file(tmp_path: Path, config: Path) -> None:
    with launched(tmp_path, "kvstream.launch.py", config=config, budget_mib=8, autostart="true", namespace="robot",
                  image_topic="/front/image_raw/compressed", odom_topic="/base/odom", use_sim_time="true") as node:
        names = ("memory.budget_mib", "memory.policy", "use_sim_time", "pose.source", "pose.topic")
        assert parameters(node, "/robot/kvstream", *names) == [8.0, "recent", True, "topic", "/base/odom"]
        node.until(lambda: node.call(GetState, "/robot/kvstream/get_state", GetState.Request()).current_state.label ==
                   "active", "the node to be active")
        node.until(lambda: node.client.count_subscribers("/front/image_raw/compressed") == 1, "the subscription")


def test_an_image_topic_that_the_configuration_overrides_is_named(tmp_path: Path, config: Path) -> None:
    config.write_text(config.read_text() + "    cameras: [front, rear]\n")
    with launched(tmp_path, "kvstream.launch.py", config=config, image_topic="/x/compressed") as node:
        assert parameters(node, "/kvstream", "cameras", "front.transport") == [["front", "rear"], "raw"]
        for text in ("launch argument image_topic if that ends in /compressed) has no effect: cameras =",
                     "'image' is remapped to /x (launch argument image_topic), which has no effect: front.topic ="):
            node.until(lambda text=text: text in node.output(), text)  # type: ignore[misc]


def test_a_parameter_file_for_another_namespace_is_named(tmp_path: Path, config: Path) -> None:
    config.write_text(config.read_text().replace("/**:", "kvstream:"))
    with launched(tmp_path, "kvstream.launch.py", config=config, namespace="robot1", autostart="false") as node:
        assert parameters(node, "/robot1/kvstream", "memory.budget_mib") == [64.0]
        text = "no key names this node, /robot1/kvstream. Keys found: kvstream."
        node.until(lambda: text in node.output(), text)
        assert node.output().count("Parameter file") == 1  # not the file of the launch arguments


def test_a_recording_is_played_once_the_node_is_active(tmp_path: Path, config: Path) -> None:
    if shutil.which("ros2") is None or subprocess.run(["ros2", "bag", "--help"], capture_output=True).returncode != 0:
        pytest.skip("`ros2 bag` comes with a ROS 2 installation, not as wheels")
    bag = tmp_path / "bag"
    write_bag(PatrolWorld(PatrolSettings(frames=12, start=1000.0)), bag, topic="/camera/image_raw")
    with launched(tmp_path, "replay.launch.py", config=config, autostart="true", bag=bag,
                  image_topic="/camera/image_raw", rate=2.0) as node:
        assert parameters(node, "/kvstream", "use_sim_time") == [True]
        assert node.until_stats(lambda stats: stats.frames_seen > 0).frames_published <= 12
