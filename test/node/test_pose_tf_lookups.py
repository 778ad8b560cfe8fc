# SPDX-License-Identifier: Apache-2.0
"""Poses from tf2's own buffer, without a node; skipped where tf2_ros is missing, which a ROS 2 installation has."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import pytest
from support.running_node import transform

from ros_kvstream.node.messages import NANOSECONDS
from ros_kvstream.node.pose_buffer import PoseGap
from ros_kvstream.node.pose_source import NoPose, PoseQuery, RobotPose
from ros_kvstream.node.pose_tf import TfPoses, tf_buffer
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import Pose

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tf2_ros") is None, reason="tf2_ros comes with a ROS 2 installation, not as wheels")

MOUNTING = Pose((0.3, 0.0, 0.5))
START = 1000.0


class Tf:
    """A source of poses with tf2's buffer, which the test fills: map -> odom -> base_link -> camera_optical."""

    def __init__(self, **settings: Any) -> None:
        given = PoseSettings(source="tf", **settings)
        self.buffer = tf_buffer(given)
        self.poses = TfPoses(given, self.buffer)

    def fixed(self, parent: str, child: str, pose: Pose) -> None:
        """Add a transform of /tf_static."""
        self.buffer.set_transform_static(transform(parent, child, pose, 0.0), "test")

    def robot(self) -> Tf:
        """Add map -> odom and the mounting of the camera."""
        self.fixed("map", "odom", Pose((5.0, 0.0, 0.0)))
        self.fixed("base_link", "camera_optical", MOUNTING)
        return self

    def send(self, parent: str, child: str, stamp: float, pose: Pose) -> None:
        """Receive a message on /tf."""
        self.poses.store([transform(parent, child, pose, stamp)])

    def drive(self, begin: float, end: float, step: float = 0.02, at: Callable[[float], float] = lambda _: 0.0) -> None:
        """Receive base_link's transforms of a time span; x in the frame odom is ``at(stamp)``."""
        for number in range(round((end - begin) / step) + 1):
            stamp = begin + number * step
            self.send("odom", "base_link", stamp, Pose((at(stamp), 0.0, 0.0)))

    def ask(self, stamp: float, final: bool = True, frame: str = "camera_optical") -> Any:
        return self.poses.at(PoseQuery("camera", stamp, round(stamp * NANOSECONDS), frame), final=final)

    def x(self, stamp: float) -> tuple[float, float]:
        """x of base and camera in the map."""
        found = self.ask(stamp, final=False)
        assert isinstance(found, RobotPose), found
        return found.base.position[0], found.camera.position[0]

    def gap(self, stamp: float, frame: str = "camera_optical") -> PoseGap:
        """Why there is no pose."""
        found = self.ask(stamp, frame=frame)
        assert isinstance(found, NoPose), found
        return found.cause


def test_base_and_camera_are_composed_along_the_chain() -> None:
    tf = Tf().robot()
    tf.drive(START, START + 1, at=lambda stamp: stamp - START)
    assert tf.x(START + 0.511) == (pytest.approx(5.511), pytest.approx(5.811))


def test_a_pose_that_may_still_come_is_neither_found_nor_missing() -> None:
    tf = Tf().robot()
    assert tf.ask(START + 0.5, final=False) is None
    tf.drive(START, START + 0.4)
    assert tf.ask(START + 0.5, final=False) is None
    assert tf.ask(START + 0.5, final=False, frame="later_optical") is None
    tf.drive(START + 0.42, START + 1)
    tf.fixed("base_link", "later_optical", MOUNTING)
    assert tf.x(START + 0.5) == (5.0, 5.3)
    assert isinstance(tf.ask(START + 0.5, final=False, frame="later_optical"), RobotPose)


def test_each_cause_is_told_apart() -> None:
    tf = Tf().robot()
    assert tf.gap(START) == PoseGap.TRANSFORM
    tf.drive(START, START + 1)
    assert tf.gap(START - 0.1) == tf.gap(START + 1.1) == PoseGap.EXTRAPOLATION
    assert tf.gap(START - 5) == tf.gap(START + 5) == PoseGap.AGE
    assert tf.gap(START + 0.5, frame="unknown") == PoseGap.TRANSFORM
    tf.fixed("elsewhere", "unknown", MOUNTING)
    assert tf.gap(START + 0.5, frame="unknown") == PoseGap.TRANSFORM  # known, but of another tree


def test_a_loop_of_frames_is_described_in_one_line() -> None:
    tf = Tf()
    for parent, child in (("odom", "base_link"), ("base_link", "odom"), ("map", "arm")):
        tf.send(parent, child, START, Pose((0.0, 0.0, 0.0)))
    found = tf.ask(START)
    assert isinstance(found, NoPose) and found.cause == PoseGap.TRANSFORM
    assert "loop" in found.reason and "\n" not in found.reason and "loop" in tf.poses.problem()


def test_transforms_that_are_all_static_hold_at_every_stamp() -> None:
    tf = Tf().robot()
    tf.fixed("odom", "base_link", Pose((1.0, 0.0, 0.0)))
    assert tf.x(START) == tf.x(2 * START) == (6.0, 6.3)


def test_a_camera_on_a_moving_mount_is_looked_up_at_its_stamp() -> None:
    tf = Tf().robot()
    tf.drive(START, START + 1)
    for stamp in (START, START + 0.5):
        tf.send("base_link", "mast", stamp, Pose((0.0, 0.0, stamp - START)))
    tf.fixed("mast", "mast_optical", MOUNTING)
    found = tf.ask(START + 0.25, final=False, frame="mast_optical")
    assert isinstance(found, RobotPose) and found.camera.position == pytest.approx((5.3, 0.0, 0.75))
    assert tf.ask(START + 0.7, final=False, frame="mast_optical") is None
    assert tf.gap(START + 0.7, frame="mast_optical") == PoseGap.EXTRAPOLATION


def test_a_jump_is_noticed_where_tf_interpolates_through_it() -> None:
    tf = Tf().robot()
    tf.drive(START, START + 1, at=lambda stamp: 30.0 * (stamp > START + 0.51))
    assert tf.gap(START + 0.51) == PoseGap.JUMP
    assert tf.x(START + 0.49) == (5.0, 5.3) and tf.x(START + 0.53) == (35.0, 35.3)


def test_a_gap_is_noticed_where_tf_interpolates_over_it() -> None:
    tf = Tf(max_age_s=0.5).robot()
    tf.drive(START, START + 1)
    tf.drive(START + 4, START + 5)
    assert tf.gap(START + 2.5) == PoseGap.AGE
    assert tf.x(START + 0.99) == tf.x(START + 4.01)


def test_a_position_that_is_infinite_is_refused() -> None:
    tf = Tf().robot()
    tf.drive(START, START + 0.5)
    for number in range(1, 20):
        broken = transform("odom", "base_link", Pose((0.0, 0.0, 0.0)), START + 0.5 + 0.02 * number)
        broken.transform.translation.y = math.inf
        tf.poses.store([broken])
    assert tf.gap(START + 0.8) == PoseGap.INVALID and "cannot be used" in tf.ask(START + 0.8).reason
    assert tf.x(START + 0.4) == (5.0, 5.3)


@pytest.mark.parametrize("back", [20.0, 500.0])
def test_a_recording_that_starts_again_has_poses_at_once(back: float) -> None:
    tf = Tf().robot()
    tf.drive(START, START + 1)
    tf.drive(START - back, START - back + 1, at=lambda stamp: stamp - START + back)
    assert tf.x(START - back + 0.5) == (pytest.approx(5.5), pytest.approx(5.8))


def test_frames_that_wait_while_a_recording_starts_again_are_given_up_without_an_error() -> None:
    """Right after the buffer was cleared, tf2 knows the frames, but no time of them."""
    tf = Tf().robot()
    tf.drive(START, START + 1)
    tf.send("map", "elsewhere", START - 500.0, Pose((0.0, 0.0, 0.0)))
    tf.send("map", "elsewhere", START - 600.0, Pose((0.0, 0.0, 0.0)))
    assert tf.gap(START + 0.5) in (PoseGap.EXTRAPOLATION, PoseGap.AGE, PoseGap.MISSING)
    assert tf.ask(START + 0.5, final=False) is None


@pytest.mark.parametrize("frame", ["", "/camera_optical", "camera\0optical", "map"])
def test_a_frame_id_that_tf_would_misread_is_refused_at_once(frame: str) -> None:
    tf = Tf().robot()
    tf.drive(START, START + 1)
    found = tf.ask(START + 0.5, final=False, frame=frame)
    assert isinstance(found, NoPose) and "frame_id" in found.reason


def test_a_frame_stamped_as_the_newest_transform_has_its_pose_at_any_stamp() -> None:
    tf = Tf().robot()
    for number in range(200):
        nanoseconds = 1_700_000_000_000_000_000 + 12_345_679 * number
        message = transform("odom", "base_link", Pose((float(number), 0.0, 0.0)), 0.0)
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(nanoseconds, NANOSECONDS)
        tf.poses = tf.poses if number % 7 else TfPoses(PoseSettings(source="tf", max_speed=1e4), tf.buffer)
        tf.poses.store([message])
        stamp = message.header.stamp
        query = PoseQuery("camera", stamp.sec + stamp.nanosec / NANOSECONDS, nanoseconds, "camera_optical")
        found = tf.poses.at(query, final=False)
        assert isinstance(found, RobotPose) and found.base.position[0] == 5.0 + number
