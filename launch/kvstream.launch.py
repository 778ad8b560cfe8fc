# SPDX-License-Identifier: Apache-2.0
"""Starts the lifecycle node `kvstream`.

    ros2 launch ros_kvstream kvstream.launch.py image_topic:=/camera/image_raw budget_mib:=512

The configuration file supplies the value of every empty argument.
"""

from __future__ import annotations

from typing import Any

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

AS_IN_CONFIG = "Empty: the value of the configuration file."
COMPRESSED = "/compressed"

# launch argument: (parameter of the node, type)
PARAMETERS: dict[str, tuple[str, type]] = {
    "odom_topic": ("pose.topic", str),
    "model": ("model", str),
    "budget_mib": ("memory.budget_mib", float),
    "autostart": ("autostart", bool),
    "use_sim_time": ("use_sim_time", bool),
}


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments and start the node."""
    config = PathJoinSubstitution([FindPackageShare("ros_kvstream"), "config", "kvstream.yaml"])
    return LaunchDescription([
        DeclareLaunchArgument(
            "image_topic", default_value="image",
            description="Topic of a single camera; CompressedImage if it ends in /compressed. With several cameras, or "
            "a camera.topic in the configuration file, it has no effect and the node logs a warning."),
        DeclareLaunchArgument(
            "odom_topic", default_value="",
            description="Topic of the robot's poses: Odometry, PoseStamped or PoseWithCovarianceStamped. It sets "
            f"pose.topic, and pose.source to topic. {AS_IN_CONFIG}"),
        DeclareLaunchArgument(
            "model", default_value="", description=f"'tiny', a local folder or a hub id. {AS_IN_CONFIG}"),
        DeclareLaunchArgument(
            "budget_mib", default_value="", description=f"Hard cap of the memory in MiB. {AS_IN_CONFIG}"),
        DeclareLaunchArgument("config", default_value=config, description="YAML file with the node's parameters."),
        DeclareLaunchArgument(
            "autostart", default_value="",
            description=f"Whether the node configures and activates itself at start. {AS_IN_CONFIG}"),
        DeclareLaunchArgument("namespace", default_value="", description="Namespace of the node."),
        DeclareLaunchArgument(
            "use_sim_time", default_value="false", description="Whether to take the time from /clock."),
        DeclareLaunchArgument(
            "log_level", default_value="info",
            description="debug, info, warn, error or fatal; or NAME:=LEVEL for one logger."),
        OpaqueFunction(function=start_node),
    ])


def start_node(context: LaunchContext) -> list[LifecycleNode]:
    """Create the node with the parameters of the configuration file, overridden by the arguments."""
    topic = LaunchConfiguration("image_topic").perform(context)
    parameters: dict[str, Any] = {
        name: ParameterValue(LaunchConfiguration(argument), value_type=kind)
        for argument, (name, kind) in PARAMETERS.items()
        if LaunchConfiguration(argument).perform(context)
    }
    if "pose.topic" in parameters:
        parameters["pose.source"] = "topic"
    if topic.endswith(COMPRESSED):
        topic = topic[: -len(COMPRESSED)]
        parameters["camera.transport"] = "compressed"
    return [LifecycleNode(
        package="ros_kvstream",
        executable="kvstream_node",
        name="kvstream",
        namespace=LaunchConfiguration("namespace"),
        parameters=[LaunchConfiguration("config"), parameters],
        remappings=[("image", topic)],
        ros_arguments=["--log-level", LaunchConfiguration("log_level")],
        output="screen",
    )]
