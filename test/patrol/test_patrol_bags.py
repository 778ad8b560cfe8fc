# SPDX-License-Identifier: Apache-2.0
"""Bags of the patrol world read back as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from ros_kvstream.errors import SettingsError
from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.poses import Pose, rotate


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_bag_holds_the_stream_bit_for_bit(tmp_path: Path, compressed: bool, storage: str) -> None:
    world = PatrolWorld(PatrolSettings(seed=5, frames=9, size=112, start=1000.0))
    write_bag(world, tmp_path / "bag", topic="/camera/image", compressed=compressed, storage=storage)
    types = get_typestore(Stores.ROS2_JAZZY)
    with Reader(tmp_path / "bag") as reader:
        rows = [row for row in reader.messages() if row[0].topic != "/odom"]
    assert len(rows) == len(world)
    for frame, (connection, time, data) in zip(world, rows, strict=True):
        message = types.deserialize_cdr(bytes(data), connection.msgtype)
        assert connection.topic == "/camera/image"
        stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
        assert stamp == pytest.approx(frame.stamp, abs=1e-6) and time * 1e-9 == pytest.approx(frame.stamp, abs=1e-6)
        if compressed:
            picture = cv2.imdecode(np.asarray(message.data), cv2.IMREAD_COLOR)[..., ::-1]
        else:
            assert (message.encoding, message.step) == ("rgb8", 3 * 112)
            picture = np.asarray(message.data).reshape(message.height, message.width, 3)
        assert np.array_equal(picture, frame.picture)


def test_an_unknown_storage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="mcap, sqlite3"):
        write_bag(PatrolWorld(PatrolSettings(frames=1)), tmp_path / "bag", storage="tar")


def odometry(folder: Path, topic: str = "/odom") -> list[tuple[int, Any]]:
    """Receive time and message of a bag's odometry."""
    types = get_typestore(Stores.ROS2_JAZZY)
    with Reader(folder) as reader:
        rows = [(time, bytes(data)) for connection, time, data in reader.messages() if connection.topic == topic]
    return [(time, types.deserialize_cdr(data, "nav_msgs/msg/Odometry")) for time, data in rows]


def test_the_odometry_is_the_path_and_every_frame_is_between_two_of_its_messages(tmp_path: Path) -> None:
    world = PatrolWorld(PatrolSettings(seed=5, frames=40, start=1000.0))
    write_bag(world, tmp_path / "bag")
    messages = odometry(tmp_path / "bag")
    stamps = []
    for time, message in messages:
        stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
        stamps.append(stamp)
        assert time == message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        assert (message.header.frame_id, message.child_frame_id) == ("odom", "base_link")
        pose, truth = message.pose.pose, world.pose_at(stamp)
        assert (pose.position.x, pose.position.y, pose.position.z) == pytest.approx(truth.position, abs=1e-5)
        assert abs(pose.orientation.z * truth.orientation[2] + pose.orientation.w * truth.orientation[3]) > 1 - 1e-9
        assert 0 < message.pose.covariance[0] < 1e-3
    assert np.diff(stamps) == pytest.approx(0.05, abs=1e-6)
    assert stamps[0] < world.stamp(0) and world.stamp(len(world) - 1) < stamps[-1]


def test_the_velocity_of_the_odometry_leads_from_one_pose_to_the_next(tmp_path: Path) -> None:
    world = PatrolWorld(PatrolSettings(seed=5, frames=60, rate_hz=4.0, start=10.0))
    write_bag(world, tmp_path / "bag", odometry_hz=50.0)
    messages = [message for _, message in odometry(tmp_path / "bag")]
    wrong = 0
    for one, other in zip(messages, messages[1:], strict=False):
        pose = Pose((0.0, 0.0, 0.0), tuple(getattr(one.pose.pose.orientation, name) for name in "xyzw"))
        speed = rotate(pose.orientation, (one.twist.twist.linear.x, one.twist.twist.linear.y, 0.0))
        step = [getattr(other.pose.pose.position, name) - getattr(one.pose.pose.position, name) for name in "xy"]
        wrong += bool(np.abs(np.array(step) - 0.02 * np.array(speed[:2])).max() > 2e-3)
    assert wrong < 0.1 * len(messages)  # those at which the robot changes its direction


def test_a_bag_that_starts_at_zero_has_no_odometry_before(tmp_path: Path) -> None:
    write_bag(PatrolWorld(PatrolSettings(frames=2)), tmp_path / "bag", odometry="/robot/odom")
    assert odometry(tmp_path / "bag", "/robot/odom")[0][0] == 0


def test_odometry_can_be_left_out(tmp_path: Path) -> None:
    write_bag(PatrolWorld(PatrolSettings(frames=2)), tmp_path / "bag", odometry="")
    with Reader(tmp_path / "bag") as reader:
        assert list(reader.topics) == ["/image"]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), 1e6])
def test_a_bad_rate_of_the_odometry_is_refused(tmp_path: Path, rate: float) -> None:
    with pytest.raises(SettingsError, match="odometry_hz"):
        write_bag(PatrolWorld(PatrolSettings(frames=1)), tmp_path / "bag", odometry_hz=rate)
