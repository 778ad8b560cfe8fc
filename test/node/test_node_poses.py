# SPDX-License-Identifier: Apache-2.0
"""Poses from a topic in a real node process: odometry beside images, and all that can be wrong with it.

The tests of a node go in order. The robot drives 1 m/s along x; time is that of the stamps, from START on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped, PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from std_msgs.msg import String
from support.running_node import RunningNode, image, picture, running_node

from ros_kvstream.msg import KvStats
from ros_kvstream.node.messages import to_stamp

OK, WARN = DiagnosticStatus.OK, DiagnosticStatus.WARN
START = 1.7e9 + 0.123
STEP = 0.02
"""Seconds between poses: 50 Hz."""
FRAME = 1 / 30
"""Seconds between images."""
MAX_AGE = 0.4


def fill(message: Any, stamp: float, x: float, frame_id: str = "odom", variance: float = 0.0) -> Any:
    """Fill a message of any supported type with a pose at x, looking along x."""
    message.header.stamp, message.header.frame_id = to_stamp(stamp), frame_id
    pose = message.pose
    if hasattr(pose, "covariance"):
        pose.covariance[0] = pose.covariance[7] = variance
        pose = pose.pose
    pose.position.x, pose.orientation.w = x, 1.0
    return message


class Robot:
    """Publishes images and poses with stamps of its own time."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        self.images = node.camera("/image")
        self.kind: Any = Odometry
        self.poses: Any = None
        self.now = START
        self.shown = 0
        self.offset = 0.0
        """Metres that jumps of the localization have added."""

    def localize(self, kind: Any = Odometry) -> None:
        """Publish poses of this type from now on, and none of the one before."""
        self.silence()
        self.kind, self.poses = kind, self.node.client.create_publisher(kind, "/odom", 50)
        self.node.until(lambda: self.poses.get_subscription_count() > 0, "a subscription of /odom")
        self.node.spin(0.3)

    def silence(self) -> None:
        if self.poses is not None:
            self.node.client.destroy_publisher(self.poses)
            self.poses = None

    def pose(self, stamp: float, **values: Any) -> Any:
        """The message of the pose at a stamp."""
        return fill(self.kind(), stamp, stamp - START + self.offset, **values)

    def send(self, message: Any) -> None:
        self.poses.publish(message)
        self.node.spin(0.004)

    def drive(self, seconds: float, **values: Any) -> None:
        """Publish the poses of this time."""
        for step in range(round(seconds / STEP)):
            self.send(self.pose(self.now + (step + 1) * STEP, **values))
        self.now += seconds

    def show(self, *stamps: float) -> None:
        """Publish an image at each stamp."""
        for stamp in stamps:
            self.shown += 1
            self.images.publish(image(picture(self.shown), stamp))
            self.node.spin(0.01)


def causes(stats: KvStats) -> dict[str, int]:
    """Frames without a pose by cause, without zeros."""
    counts = zip(stats.pose_missing_causes, stats.pose_missing_counts, strict=True)
    return {cause: count for cause, count in counts if count}


def decided(robot: Robot) -> KvStats:
    """Figures once every published frame has a pose or a cause."""
    return robot.node.until_stats(
        lambda now: now.frames_seen == robot.shown == now.frames_with_pose + sum(causes(now).values()))


def outcome(robot: Robot, act: Callable[[], None]) -> tuple[int, dict[str, int]]:
    """Frames that got a pose by an act, and the others by cause."""
    before = decided(robot)
    act()
    after, known = decided(robot), causes(before)
    gained = {cause: count - known.get(cause, 0) for cause, count in causes(after).items()}
    return after.frames_with_pose - before.frames_with_pose, {cause: count for cause, count in gained.items() if count}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    parameters = {"model": random_model, "pose.source": "topic", "pose.topic": "/odom", "pose.max_age_s": MAX_AGE,
                  "gate.mode": "off", "ingest.queue_frames": 64, "camera.pose": "0.2 0 0.5 0 0 0"}
    with running_node(tmp_path_factory.mktemp("poses"), parameters) as running:
        running.until_active()
        yield running


@pytest.fixture(scope="module")
def robot(node: RunningNode) -> Robot:
    return Robot(node)


def test_every_cause_is_listed_with_zero_before_the_first_frame(node: RunningNode) -> None:
    stats = node.until_stats(lambda _: True)
    assert list(stats.pose_missing_causes) == [
        "missing", "age", "extrapolation", "covariance", "jump", "invalid", "transform"]
    assert list(stats.pose_missing_counts) == [0] * 7 and stats.frames_with_pose == 0
    assert node.status("pose").level == OK


def test_without_a_publisher_frames_are_remembered_and_the_topic_and_similar_ones_are_named(robot: Robot) -> None:
    other = robot.node.client.create_publisher(PoseStamped, "/odometry/filtered", 1)
    assert outcome(robot, lambda: robot.show(START, START + FRAME)) == (0, {"missing": 2})
    status = robot.node.until_status("pose", lambda status: status.level == WARN)
    for part in ("100 %", "'missing'", "no publisher on /odom", "/odometry/filtered"):
        assert part in status.message
    robot.node.client.destroy_publisher(other)
    assert decided(robot).frames_remembered == 2


def test_an_unsupported_type_is_in_the_log_once_and_always_in_diagnostics_with_the_supported_ones(robot: Robot) -> None:
    wrong = robot.node.client.create_publisher(String, "/odom", 1)
    for _ in range(2):
        robot.node.diagnostics.pop("pose", None)
        status = robot.node.until_status("pose", lambda status: "std_msgs/msg/String" in status.message)
        assert status.level == WARN
        for kind in ("nav_msgs/msg/Odometry", "geometry_msgs/msg/PoseStamped",
                     "geometry_msgs/msg/PoseWithCovarianceStamped"):
            assert kind in status.message
    robot.node.client.destroy_publisher(wrong)
    robot.node.until_status("pose", lambda status: "String" not in status.message)
    assert robot.node.output().count("carries std_msgs/msg/String") == 1


def test_a_publisher_that_appears_later_is_found_and_50_hz_of_odometry_place_all_images_of_30_hz(robot: Robot) -> None:
    robot.localize()

    def drive() -> None:
        robot.drive(STEP)
        images = [robot.now + (number + 0.5) * FRAME for number in range(45)]
        for _ in range(76):
            robot.drive(STEP)
            while images and images[0] < robot.now + 0.5 * STEP:  # some before the pose behind them, some after it
                robot.show(images.pop(0))

    assert outcome(robot, drive) == (45, {})
    status = robot.node.until_status("pose", lambda status: "45 of " in status.message)
    values = {value.key: value.value for value in status.values}
    assert status.level == OK and values["source"] == "topic"
    assert values["from"] == "/odom (nav_msgs/msg/Odometry)"
    assert (values["frames with a pose"], values["frames without a pose, missing"]) == ("45", "2")


def test_a_frame_gets_a_pose_that_arrives_after_the_memory_took_it(robot: Robot) -> None:
    def late() -> None:
        robot.show(robot.now + 0.03, robot.now + 0.07)
        robot.node.until_stats(lambda now: now.frames_seen == robot.shown)
        robot.node.spin(0.2)
        robot.drive(0.1)

    assert outcome(robot, late) == (2, {})


def test_a_question_is_answered_while_frames_wait_for_their_poses(robot: Robot) -> None:
    def ask() -> None:
        robot.show(robot.now + 0.01)
        assert robot.node.ask("what is there ?", max_new_tokens=1).success
        robot.drive(0.04)

    assert outcome(robot, ask) == (1, {})


def test_frames_behind_the_last_pose_are_given_up_by_cause(robot: Robot) -> None:
    assert outcome(robot, lambda: robot.show(robot.now + 0.1)) == (0, {"extrapolation": 1})
    assert outcome(robot, lambda: robot.show(robot.now + 5.0)) == (0, {"age": 1})


def test_a_gap_in_the_poses_is_not_interpolated(robot: Robot) -> None:
    def gap() -> None:
        robot.now += 2.0
        robot.drive(0.04)
        robot.show(robot.now - 1.0)

    assert outcome(robot, gap) == (0, {"age": 1})


def test_frames_in_a_jump_have_no_pose_and_those_after_it_have_one(robot: Robot) -> None:
    def jump() -> None:
        robot.drive(0.1)
        before = robot.now
        robot.offset += 30.0
        robot.drive(0.1)
        robot.show(before + 0.01, before + 0.05)

    assert outcome(robot, jump) == (1, {"jump": 1})


def test_a_change_of_the_frame_id_is_a_jump(robot: Robot) -> None:
    def change() -> None:
        robot.drive(0.04)
        robot.drive(0.04, frame_id="map")
        robot.show(robot.now - 0.05, robot.now - 0.03)

    assert outcome(robot, change) == (1, {"jump": 1})


def test_frames_near_an_uncertain_pose_have_none(robot: Robot) -> None:
    def uncertain() -> None:
        robot.drive(0.1, variance=0.9)
        robot.show(robot.now - 0.03)
        robot.drive(0.1, variance=1.1)
        robot.show(robot.now - 0.03)
        robot.drive(0.1, variance=math.nan)
        robot.show(robot.now - 0.03)

    assert outcome(robot, uncertain) == (1, {"covariance": 2})


def nan_position(message: Any) -> None:
    message.pose.pose.position.y = math.nan


def zero_quaternion(message: Any) -> None:
    message.pose.pose.orientation.w = 0.0


def no_frame(message: Any) -> None:
    message.header.frame_id = ""


def long_frame(message: Any) -> None:
    message.header.frame_id = "x" * 81


@pytest.mark.parametrize(("spoil", "reason"), [
    (nan_position, "position"), (zero_quaternion, "orientation"), (no_frame, "frame_id in its header is empty"),
    (long_frame, "longer than 80 bytes")])
def test_frames_near_a_pose_that_cannot_be_used_have_none_and_the_reason_is_reported(
    robot: Robot, spoil: Callable[[Any], None], reason: str
) -> None:
    def invalid() -> None:
        robot.drive(0.04)
        message = robot.pose(robot.now + STEP)
        spoil(message)
        robot.send(message)
        robot.now += STEP
        robot.drive(0.1)
        robot.show(robot.now - 0.11, robot.now - 0.05)

    assert outcome(robot, invalid) == (1, {"invalid": 1})
    status = robot.node.until_status("pose", lambda status: reason in status.message)
    assert status.level == WARN and "/odom" in status.message


def test_poses_without_a_stamp_place_nothing_and_are_reported(robot: Robot) -> None:
    def unstamped() -> None:
        robot.drive(0.04)
        robot.show(robot.now + 0.05)
        for _ in range(3):
            robot.send(fill(Odometry(), 0.0, 1.0))

    assert outcome(robot, unstamped) == (0, {"invalid": 1})
    robot.node.until_status("pose", lambda status: status.level == WARN and "has no stamp" in status.message)
    robot.drive(0.1)
    assert outcome(robot, lambda: robot.show(robot.now - 0.05)) == (1, {})


@pytest.mark.parametrize("kind", [PoseStamped, PoseWithCovarianceStamped, Odometry])
def test_a_publisher_of_another_supported_type_is_followed(robot: Robot, kind: Any) -> None:
    robot.localize(kind)

    def drive() -> None:
        robot.drive(0.2)
        robot.show(robot.now - 0.11, robot.now - 0.05)

    assert outcome(robot, drive) == (2, {})
    robot.node.until_status(
        "pose", lambda status: any(kind.__name__ + ")" in value.value for value in status.values))


def test_poses_of_another_clock_than_the_images_place_nothing_and_the_difference_is_reported(robot: Robot) -> None:
    def foreign() -> None:
        for number in range(12):
            robot.send(robot.pose(robot.now - 3600.0 + number * STEP))
            robot.show(robot.now + 60.0 + number * FRAME)

    with_pose, gained = outcome(robot, foreign)
    assert with_pose == 0 and gained == {"age": 12}
    status = robot.node.until_status("pose", lambda status: "different clocks" in status.message)
    assert status.level == WARN and "behind those of the images" in status.message


def test_everything_was_accounted_for_and_nothing_failed(robot: Robot) -> None:
    stats = decided(robot)
    assert stats.frames_published == stats.frames_seen and not sum(stats.drop_counts)
    assert robot.node.lifecycle_state() == "active" and "Traceback" not in robot.node.output()
    assert robot.node.status("state").level == OK
