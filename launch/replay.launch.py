# SPDX-License-Identifier: Apache-2.0
"""Starts the node, and plays a recording with simulated time once the node is active.

    ros2 launch ros_kvstream replay.launch.py bag:=patrol image_topic:=/camera/image_raw/compressed

Accepts every argument of kvstream.launch.py as well. The node keeps running after the recording, to answer questions.
"""

from __future__ import annotations

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, IncludeLaunchDescription, RegisterEventHandler
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.event_handlers import OnStateTransition


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments, start the node, and play the recording once the node is active."""
    play = ExecuteProcess(
        cmd=["ros2", "bag", "play", LaunchConfiguration("bag"), "--clock", "--rate", LaunchConfiguration("rate")],
        name="bag_play",
        output="screen",
    )
    return LaunchDescription([
        DeclareLaunchArgument("bag", description="Path of the recording."),
        DeclareLaunchArgument("rate", default_value="1.0", description="Speed of the replay; 2.0 is twice as fast."),
        # Declared before the included file declares it with another default.
        DeclareLaunchArgument(
            "use_sim_time", default_value="true", description="Whether to take the time from /clock."),
        # Frames published while the model is loaded would be lost: wait for the active state.
        RegisterEventHandler(OnStateTransition(start_state="activating", goal_state="active", entities=[play])),
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(str(Path(__file__).with_name("kvstream.launch.py"))),
            launch_arguments={"use_sim_time": LaunchConfiguration("use_sim_time")}.items(),
        ),
    ])
