# SPDX-License-Identifier: Apache-2.0
"""Poses from tf in a real node process; skipped where tf2_ros is missing, which a ROS 2 installation has.

Tests go in order. The robot drives with constant speed and turning rate: tf interpolates exactly at every stamp.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped
from lifecycle_msgs.msg import Transition
from numpy.typing import NDArray
from support.running_node import RunningNode, image, picture, running_node, transform

from ros_kvstream.msg import FrameEvidence, KvStats
from ros_kvstream.node.messages import to_seconds, to_stamp
from ros_kvstream.poses import Pose

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tf2_ros") is None, reason="tf2_ros comes with a ROS 2 installation, not as wheels")

START = 1.7e9 + 0.123456789
"""Stamp at which the drive begins: today's magnitude, in which a float of seconds has steps of 238 ns."""
STEP = 0.02
"""Seconds between the transforms of the base: 50 Hz."""
FRONT = Pose.from_euler((0.3, 0.05, 0.5), -np.pi / 2, 0.0, -np.pi / 2)
REAR = Pose.from_euler((-0.2, 0.0, 0.4), -np.pi / 2, 0.0, np.pi / 2)
MOUNTINGS = {"front": FRONT, "rear": REAR}
ODOM = Pose.from_euler((2.0, -1.0, 0.0), 0.0, 0.0, 0.5)
"""Pose of the frame odom in the map."""
Matrix = NDArray[np.float64]


class Robot:
    """Broadcasts map -> odom -> base_link -> <camera>_optical and publishes the images of two cameras."""

    def __init__(self, node: RunningNode) -> None:
        from tf2_ros import StaticTransformBroadcaster, TransformBroadcaster

        self.node = node
        self.now = START
        """Stamp of the newest transform."""
        self.offset = np.zeros(3)
        """What a jump of the localization has added to the position in the odom frame, metres."""
        self.number = 0
        self.broadcaster = TransformBroadcaster(node.client)
        self.static = StaticTransformBroadcaster(node.client)
        fixed = {f"{camera}_optical": ("base_link", pose) for camera, pose in MOUNTINGS.items()}
        self.static.sendTransform([transform(parent, child, pose, 0.0) for child, (parent, pose) in
                                   {**fixed, "odom": ("map", ODOM)}.items()])
        self.cameras = {camera: node.camera(f"/{camera}/image") for camera in MOUNTINGS}
        node.until(lambda: self.broadcaster.pub_tf.get_subscription_count() > 0, "a subscription of /tf")
        node.spin(0.5)

    def odometry(self, stamp: float) -> Pose:
        """Pose of the base in the frame odom."""
        seconds = stamp - START
        x, y, z = np.array([0.5 * seconds, 0.2 * seconds, 0.0]) + self.offset
        return Pose.from_euler((x, y, z), 0.0, 0.0, 0.3 * seconds)

    def move(self, *stamps: float) -> None:
        """Send the transform of the base at these stamps."""
        for stamp in stamps:
            self.broadcaster.sendTransform(transform("odom", "base_link", self.odometry(stamp), stamp))
            self.now = stamp

    def drive(self, seconds: float) -> None:
        """Send the transforms of this time, faster than they would come."""
        for stamp in self.now + STEP * np.arange(1, round(seconds / STEP) + 1):
            self.move(float(stamp))
            self.node.spin(0.002)

    def show(self, stamp: float, camera: str = "front", frame_id: str | None = None) -> None:
        """Publish an image."""
        self.number += 1
        message = image(picture(self.number), stamp)
        message.header.frame_id = f"{camera}_optical" if frame_id is None else frame_id
        self.cameras[camera].publish(message)
        self.node.spin(0.01)


def matrix(pose: Pose) -> Matrix:
    """Homogeneous matrix [4, 4], computed from the quaternion as in a textbook."""
    x, y, z, w = pose.orientation
    turned = np.eye(4)
    turned[:3, :3] = [[1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
                      [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
                      [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]]  # fmt: skip
    turned[:3, 3] = pose.position
    return turned


def received(message: PoseStamped) -> Matrix:
    at, turned = message.pose.position, message.pose.orientation
    return matrix(Pose((at.x, at.y, at.z), (turned.x, turned.y, turned.z, turned.w)))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    parameters = {
        "model": random_model, "cameras": '["front","rear"]', "pose.source": "tf", "gate.mode": "off",
        "ingest.queue_frames": 32, "memory.budget_mib": 32.0, "diagnostics.no_image_s": 60.0}
    with running_node(tmp_path_factory.mktemp("tf"), parameters) as running:
        running.until_active()
        yield running


@pytest.fixture(scope="module")
def robot(node: RunningNode) -> Robot:
    return Robot(node)


def causes(stats: KvStats) -> dict[str, int]:
    """Frames without a pose by cause, without zeros."""
    counts = zip(stats.pose_missing_causes, stats.pose_missing_counts, strict=True)
    return {cause: count for cause, count in counts if count}


def counted(stats: KvStats) -> int:
    """Frames of which it is decided whether they have a pose."""
    return stats.frames_with_pose + sum(causes(stats).values())


def settled(robot: Robot) -> KvStats:
    """Figures once every published frame was taken and has a pose or a cause."""
    return robot.node.until_stats(
        lambda now: now.frames_seen == robot.number and counted(now) == robot.number and not now.queue_length)


def evidence(node: RunningNode, stamp: float, camera: str = "front") -> FrameEvidence:
    """Evidence of an answer that is limited to one frame."""
    response = node.ask("what is there ?", camera=camera, since=to_stamp(stamp), until=to_stamp(stamp),
                        max_new_tokens=1)
    assert response.success, response.message
    (frame,) = response.evidence
    return frame


def assert_places(robot: Robot, stamp: float, camera: str = "front") -> None:
    """Evidence of a frame has the poses of camera and base that the robot had at its stamp."""
    frame = evidence(robot.node, stamp, camera)
    assert frame.has_pose
    base = matrix(ODOM) @ matrix(robot.odometry(stamp))
    for message, expected in ((frame.base_pose, base), (frame.pose, base @ matrix(MOUNTINGS[camera]))):
        assert message.header.frame_id == "map" and message.header.stamp == frame.stamp
        np.testing.assert_allclose(received(message), expected, atol=1e-5)


def more(before: KvStats, after: KvStats) -> tuple[int, dict[str, int]]:
    """Frames with a pose, and without one by cause, that came in between."""
    known, now = causes(before), causes(after)
    gained = {cause: count - known.get(cause, 0) for cause, count in now.items() if count > known.get(cause, 0)}
    return after.frames_with_pose - before.frames_with_pose, gained


def test_every_frame_of_a_drive_has_the_pose_of_its_camera_and_of_the_base(robot: Robot) -> None:
    """50 transforms a second beside images at 25 Hz and 10 Hz, whose stamps lie between those of the transforms."""
    robot.move(START)
    shown: list[tuple[float, str]] = []
    for step in range(60):
        begin = robot.now
        if step % 2 == 0:
            shown.append((begin + 0.3 * STEP, "front"))
            robot.show(*shown[-1])
        if step % 5 == 0:
            shown.append((begin + 0.8 * STEP, "rear"))
            robot.show(*shown[-1])
        robot.move(START + (step + 1) * STEP)
        robot.node.spin(0.01)
    stats = settled(robot)
    assert stats.frames_with_pose == len(shown) and not causes(stats)
    for stamp, camera in shown[:: len(shown) // 8]:
        assert_places(robot, stamp, camera)


def test_a_transform_that_arrives_after_the_memory_took_the_frame_still_counts(robot: Robot) -> None:
    before, stamps = settled(robot), [robot.now + 0.07, robot.now + 0.13]
    for stamp in stamps:
        robot.show(stamp)
    robot.node.until_stats(lambda now: now.frames_seen == robot.number)
    robot.drive(0.2)
    assert more(before, settled(robot)) == (2, {})
    for stamp in stamps:
        assert_places(robot, stamp)


def test_a_frame_with_exactly_the_stamp_of_the_newest_transform_needs_no_later_one(robot: Robot) -> None:
    before = settled(robot)
    for number in range(20):
        robot.move(robot.now + 0.0123 + 1.1e-6 * number)
        robot.show(robot.now)
    assert more(before, settled(robot)) == (20, {})
    assert_places(robot, robot.now)


def test_a_frame_after_the_last_transform_is_remembered_without_a_pose(robot: Robot) -> None:
    before, near, far = settled(robot), robot.now + 0.1, robot.now + 30.0
    robot.show(near)
    assert more(before, settled(robot)) == (0, {"extrapolation": 1})
    robot.show(far)
    assert more(before, settled(robot)) == (0, {"extrapolation": 1, "age": 1})
    for stamp in (near, far):
        frame = evidence(robot.node, stamp)
        assert not frame.has_pose and frame.pose == PoseStamped() == frame.base_pose
    robot.now += 30.0


def test_a_frame_before_the_first_transform_is_remembered_without_a_pose(robot: Robot) -> None:
    before = settled(robot)
    robot.show(START - 100.0)
    after = settled(robot)
    assert more(before, after)[0] == 0 and set(more(before, after)[1]) <= {"age", "extrapolation"}


def test_a_gap_in_the_transforms_is_not_interpolated(robot: Robot) -> None:
    robot.drive(0.2)
    before, begin = settled(robot), robot.now
    robot.move(begin + 5.0)
    robot.drive(0.2)
    robot.show(begin + 2.5)
    assert more(before, settled(robot)) == (0, {"age": 1})
    robot.show(robot.now - 0.05)
    assert more(before, settled(robot)) == (1, {"age": 1})
    assert_places(robot, robot.now - 0.05)


def test_a_jump_of_the_localization_gives_the_frames_around_it_no_pose(robot: Robot) -> None:
    robot.drive(0.2)
    before, begin = settled(robot), robot.now
    robot.offset += (40.0, 0.0, 0.0)
    robot.drive(0.2)
    robot.show(begin + 0.5 * STEP)
    assert more(before, settled(robot)) == (0, {"jump": 1})
    robot.show(begin + 5.5 * STEP)
    assert more(before, settled(robot)) == (1, {"jump": 1})
    assert_places(robot, begin + 5.5 * STEP)


@pytest.mark.parametrize("frame_id", ["front_camera_that_nobody_broadcasts", "/front_optical"])
def test_a_camera_that_tf_does_not_connect_is_reported_with_its_frame(robot: Robot, frame_id: str) -> None:
    before, begin = settled(robot), robot.now
    robot.drive(0.4)
    robot.show(begin + 0.1, frame_id=frame_id)
    with_pose, gained = more(before, settled(robot))
    assert with_pose == 0 and sum(gained.values()) == 1 and set(gained) <= {"transform", "invalid"}
    robot.node.until(lambda: any(frame_id in status.message and status.level != DiagnosticStatus.OK
                                 for status in robot.node.diagnostics.values()), "a warning with the frame id")


def test_an_image_without_a_frame_id_has_no_pose_and_the_node_says_so(robot: Robot) -> None:
    before, begin = settled(robot), robot.now
    robot.drive(0.4)
    robot.show(begin + 0.1, frame_id="")
    with_pose, gained = more(before, settled(robot))
    assert with_pose == 0 and sum(gained.values()) == 1 and set(gained) <= {"transform", "invalid"}
    robot.node.until(lambda: any("frame_id" in status.message and status.level != DiagnosticStatus.OK
                                 for status in robot.node.diagnostics.values()), "a warning about frame_id")


def test_an_image_without_a_stamp_does_not_get_the_newest_pose(robot: Robot) -> None:
    """tf takes the stamp 0 as 'the newest transform'."""
    before = settled(robot)
    robot.show(0.0)
    assert more(before, settled(robot))[0] == 0


def test_other_trees_and_unusable_transforms_change_nothing(robot: Robot) -> None:
    before, begin = settled(robot), robot.now
    broken = transform("odom", "base_link", robot.odometry(begin + STEP), begin + STEP)
    broken.transform.rotation.w = broken.transform.rotation.z = float("nan")
    nameless = transform("", "base_link", robot.odometry(begin + STEP), begin + STEP)
    island = transform("elsewhere", "arm", Pose((1.0, 2.0, 3.0)), begin + STEP)
    robot.broadcaster.sendTransform([broken, nameless, island])
    robot.drive(0.2)
    robot.show(begin + 1.5 * STEP)
    assert more(before, settled(robot)) == (1, {})
    assert_places(robot, begin + 1.5 * STEP)


def test_an_answer_names_the_pose_of_the_base_as_goal(robot: Robot) -> None:
    robot.drive(0.2)
    stamp = robot.now - 0.05
    robot.show(stamp)
    settled(robot)
    response = robot.node.ask("where are you ?", since=to_stamp(stamp), until=to_stamp(stamp), max_new_tokens=1)
    assert response.has_goal and response.goal.header.frame_id == "map"
    np.testing.assert_allclose(received(response.goal), matrix(ODOM) @ matrix(robot.odometry(stamp)), atol=1e-5)


def test_questions_about_a_place_find_what_was_seen_there(robot: Robot) -> None:
    robot.drive(0.2)
    here = robot.now
    robot.show(here - 0.01)
    robot.offset += (0.0, 25.0, 0.0)
    robot.drive(0.2)
    robot.show(robot.now - 0.01)
    settled(robot)
    near: Any = evidence(robot.node, here - 0.01).base_pose
    request = {"radius": 0.02, "max_new_tokens": 1}
    from geometry_msgs.msg import PointStamped

    response = robot.node.ask("what is there ?", near=PointStamped(header=near.header, point=near.pose.position),
                              **request)
    assert response.success, response.message
    assert [to_seconds(frame.stamp) for frame in response.evidence] == [pytest.approx(here - 0.01, abs=1e-6)]


def test_poses_are_known_again_after_deactivate_and_activate(robot: Robot) -> None:
    assert robot.node.change(Transition.TRANSITION_DEACTIVATE)
    robot.node.until(lambda: robot.broadcaster.pub_tf.get_subscription_count() == 0, "no subscription of /tf")
    assert robot.node.change(Transition.TRANSITION_ACTIVATE)
    robot.node.until(lambda: robot.broadcaster.pub_tf.get_subscription_count() == 1
                     and all(camera.get_subscription_count() == 1 for camera in robot.cameras.values()),
                     "the subscriptions again")
    robot.node.spin(0.5)
    before = settled(robot)
    robot.drive(0.2)
    robot.show(robot.now - 0.05)
    assert more(before, settled(robot)) == (1, {})
    assert_places(robot, robot.now - 0.05)


def test_a_recording_that_starts_again_has_poses_again(robot: Robot) -> None:
    """tf drops transforms that are 10 s older than the newest one until its buffer is cleared."""
    robot.offset = np.zeros(3)
    before, robot.now = settled(robot), START - 50.0
    robot.drive(0.4)
    robot.show(robot.now - 0.05)
    assert more(before, settled(robot)) == (1, {})
    assert_places(robot, robot.now - 0.05)


def test_the_node_says_nothing_of_errors_in_its_log(robot: Robot) -> None:
    assert "Traceback" not in robot.node.output()
