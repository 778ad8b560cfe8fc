# SPDX-License-Identifier: Apache-2.0
"""Poses from messages and from transforms, with stand-ins for the graph and for tf2's buffer."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped, PoseWithCovarianceStamped, TransformStamped
from nav_msgs.msg import Odometry
from rclpy.time import Time

from ros_kvstream.errors import KvStreamError, SettingsError
from ros_kvstream.node.messages import to_stamp
from ros_kvstream.node.pose_buffer import PoseGap, read_pose
from ros_kvstream.node.pose_source import NoPose, PoseQuery, RobotPose, TopicPoses
from ros_kvstream.node.pose_tf import TfPoses
from ros_kvstream.node.session import pose_source
from ros_kvstream.node.settings import CameraSettings, PoseSettings, mounting
from ros_kvstream.poses import Pose, interpolate

TOPIC = PoseSettings(source="topic", topic="odom")
TF = PoseSettings(source="tf", max_age_s=0.5, max_speed=2.0)
FORWARD = Pose.from_euler((0.2, 0.0, 0.5), 0.0, 0.0, math.pi / 2)


def query(stamp: float, image_frame: str = "camera", camera: str = "front") -> PoseQuery:
    return PoseQuery(camera, stamp, round(stamp * 1e9), image_frame)


def message(kind: Any, stamp: float, pose: Pose, frame_id: str = "odom", variance: tuple[float, float] = (0, 0)) -> Any:
    made = kind()
    made.header.stamp, made.header.frame_id = to_stamp(stamp), frame_id
    inner = made.pose
    if hasattr(inner, "covariance"):
        inner.covariance[0], inner.covariance[7] = variance
        inner = inner.pose
    inner.position.x, inner.position.y, inner.position.z = pose.position
    turned = inner.orientation
    turned.x, turned.y, turned.z, turned.w = pose.orientation
    return made


# -- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Odometry, PoseStamped, PoseWithCovarianceStamped])
def test_each_type_of_message_gives_pose_stamp_and_frame(kind: Any) -> None:
    pose = Pose.from_euler((1.0, 2.0, 3.0), 0.1, 0.2, 0.3)
    sample, invalid = read_pose(message(kind, 5.5, pose), 80)
    assert not invalid and (sample.stamp, sample.frame_id) == (5.5, "odom")
    assert sample.pose is not None
    np.testing.assert_allclose(sample.pose.numbers(), pose.numbers(), atol=1e-6)


@pytest.mark.parametrize(("variance", "larger"), [((0.1, 0.3), 0.3), ((0.4, 0.3), 0.4), ((math.nan, 0.3), math.nan),
                                                   ((0.3, math.nan), math.nan)])
def test_the_variance_is_the_larger_one_of_x_and_y(variance: tuple[float, float], larger: float) -> None:
    sample, _ = read_pose(message(Odometry, 5.5, FORWARD, variance=variance), 80)
    np.testing.assert_equal(sample.variance, larger)


def test_messages_that_cannot_be_used_have_no_pose_and_a_reason() -> None:
    good = message(Odometry, 5.5, FORWARD)
    assert read_pose(good, 4)[1] == ""
    for stamp, frame_id, x, w, reason in (
        (0.0, "odom", 0.0, 1.0, "no stamp"), (5.5, "", 0.0, 1.0, "frame_id in its header is empty"),
        (5.5, "x" * 81, 0.0, 1.0, "longer than 80 bytes"), (5.5, "ä" * 41, 0.0, 1.0, "longer than 80 bytes"),
        (5.5, "odom", math.nan, 1.0, "position"), (5.5, "odom", math.inf, 1.0, "position"),
        (5.5, "odom", 0.0, 0.0, "orientation"), (5.5, "odom", 0.0, math.nan, "orientation"),
    ):  # fmt: skip
        bad = message(Odometry, stamp, Pose((0.0, 0.0, 0.0)), frame_id)
        bad.pose.pose.position.x, bad.pose.pose.orientation.w = x, w
        sample, invalid = read_pose(bad, 80)
        assert sample.pose is None and reason in invalid


def test_a_camera_stands_where_its_mounting_says_while_the_robot_drives_and_turns() -> None:
    poses = TopicPoses(TOPIC, {"front": FORWARD, "rear": Pose((0.0, 0.0, 0.0))})
    one, other = Pose.from_euler((1.0, 0.0, 0.0), 0.0, 0.0, 0.0), Pose.from_euler((1.2, 0.0, 0.0), 0.0, 0.0, 1.0)
    poses.store(message(Odometry, 10.0, one), 10.05)
    assert poses.at(query(10.05), final=False) is None
    poses.store(message(Odometry, 10.1, other), 10.2)
    found = poses.at(query(10.05), final=False)
    assert isinstance(found, RobotPose) and found.frame_id == "odom"
    base = interpolate(one, other, 0.5)
    np.testing.assert_allclose(found.base.numbers(), base.numbers(), atol=1e-6)
    x, y, z = found.camera.position  # 0.2 m ahead of the base, which has turned by 0.5 rad
    np.testing.assert_allclose((x, y, z), (1.1 + 0.2 * math.cos(0.5), 0.2 * math.sin(0.5), 0.5), atol=1e-6)
    rear = poses.at(query(10.05, camera="rear"), final=False)
    assert isinstance(rear, RobotPose) and rear.camera == rear.base == found.base
    assert poses.delay() == pytest.approx(0.05)


def test_a_gap_names_the_message_only_where_one_was_the_cause() -> None:
    poses = TopicPoses(TOPIC, {"front": FORWARD})
    assert poses.at(query(10.0), final=True) == NoPose(PoseGap.MISSING)
    poses.store(message(PoseStamped, 10.0, FORWARD, ""), 10.0)
    found = poses.at(query(10.0), final=False)
    assert isinstance(found, NoPose) and found.cause is PoseGap.INVALID and "frame_id" in found.reason
    poses.store(message(PoseStamped, 11.0, FORWARD), 11.0)
    assert poses.at(query(11.2), final=True) == NoPose(PoseGap.EXTRAPOLATION)
    poses.store(message(PoseStamped, 0.0, FORWARD), 11.0)
    unstamped = poses.at(query(11.2), final=True)
    assert isinstance(unstamped, NoPose) and unstamped.cause is PoseGap.INVALID and "no stamp" in unstamped.reason
    assert isinstance(poses.at(query(11.0), final=False), RobotPose)


# -- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "pose"), [
    ("", Pose((0.0, 0.0, 0.0))), ("  ", Pose((0.0, 0.0, 0.0))), ("0.2 0 0.5 0 0 1.5707963267948966", FORWARD),
    ("1, -2, 3e-1, 0, 0, 0", Pose((1.0, -2.0, 0.3)))])
def test_a_mounting_is_six_numbers_or_the_base_itself(text: str, pose: Pose) -> None:
    np.testing.assert_allclose(mounting(CameraSettings("front", pose=text)).numbers(), pose.numbers(), atol=1e-7)


@pytest.mark.parametrize("text", ["1", "1 2 3 4 5", "1 2 3 4 5 6 7", "a b c d e f", "nan 0 0 0 0 0", "0 0 0 inf 0 0",
                                  "0 0 0 0 0 nan", "inf 0 0 0 0 0"])
def test_another_mounting_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(SettingsError, match="front.pose = .*six finite numbers x y z roll pitch yaw"):
        CameraSettings("front", pose=text)


@pytest.mark.parametrize(("values", "reason"), [
    ({"map_name": "a#b"}, "pose.map_name"), ({"map_name": "x" * 49}, "at most 48 bytes"),
    ({"map_name": "a\nb"}, "pose.map_name"), ({"frame": ""}, "pose.frame"), ({"frame": "/map"}, "'/' in front"),
    ({"base_frame": ""}, "pose.base_frame"), ({"base_frame": "map"}, "another frame than pose.frame"),
    ({"frame": "x" * 81}, "1 to 80 bytes"), ({"frame": "x" * 50, "map_name": "m" * 48}, "1 to 47 bytes")])
def test_frames_and_maps_with_unusable_names_are_refused(values: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        PoseSettings(**values)


def test_the_archive_can_keep_the_longest_frame_id_with_the_longest_name_of_a_map() -> None:
    from ros_kvstream.poses import SEGMENT_BYTES, map_segment

    for name in ("", "0" * 8, "m" * 48):
        settings = PoseSettings(map_name=name)
        assert len(map_segment("f" * settings.frame_id_bytes, name or "0" * 8).encode()) <= SEGMENT_BYTES


def test_the_source_follows_the_setting_and_a_bad_topic_is_named() -> None:
    cameras = [CameraSettings("front")]
    assert pose_source(PoseSettings(), cameras) is None
    assert isinstance(pose_source(TOPIC, cameras), TopicPoses)
    with pytest.raises(SettingsError, match=r"pose.topic = 'a b': Invalid topic name"):
        pose_source(PoseSettings(source="topic", topic="a b"), cameras)


@pytest.mark.skipif(importlib.util.find_spec("tf2_ros") is not None, reason="tf2_ros is installed here")
def test_without_tf2_ros_the_source_says_where_it_is_to_be_had() -> None:
    with pytest.raises(KvStreamError, match=r"tf2_ros, which is not installed: a ROS 2 distribution has it .* wheels"):
        pose_source(TF, [CameraSettings("front")])


# -- tf -------------------------------------------------------------------------------------------------------------


class TransformException(Exception):
    """tf2's errors have these names."""


class LookupException(TransformException):
    pass


class ConnectivityException(TransformException):
    pass


class ExtrapolationException(TransformException):
    pass


class Transforms:
    """A buffer like tf2's for frames that are known in the map directly; it interpolates over gaps and jumps."""

    def __init__(self, **static: Pose) -> None:
        self.moving: dict[str, dict[int, Pose]] = {}
        self.static = static
        self.mounted: dict[str, tuple[str, Pose]] = {}
        """Frames on another one."""

    def clear(self) -> None:
        self.moving.clear()

    def set_transform(self, transform: TransformStamped, _: str) -> None:
        at, turned = transform.transform.translation, transform.transform.rotation
        poses = self.moving.setdefault(transform.child_frame_id, {})
        poses[Time.from_msg(transform.header.stamp).nanoseconds] = (
            Pose((at.x, at.y, at.z), (turned.x, turned.y, turned.z, turned.w)) if turned.w else None)

    def get_latest_common_time(self, _: str, source: str) -> Time:
        source = self.mounted.get(source, (source,))[0]
        if source in self.static:
            return Time()
        if not self.moving.get(source):
            raise LookupException(f'"{source}" does not exist\nsecond line')
        return Time(nanoseconds=max(self.moving[source]))

    def lookup_transform(self, target: str, source: str, time: Time) -> TransformStamped:
        source, offset = self.mounted.get(source, (source, Pose((0.0, 0.0, 0.0))))
        newest = self.get_latest_common_time(target, source).nanoseconds
        pose = self.static.get(source)
        if pose is None:
            stamps = sorted(self.moving[source])
            if not stamps[0] <= time.nanoseconds <= newest:
                raise ExtrapolationException("into the future")
            after = next(stamp for stamp in stamps if stamp >= time.nanoseconds)
            before = max(stamp for stamp in stamps if stamp <= time.nanoseconds)
            share = (time.nanoseconds - before) / (after - before) if after > before else 0.0
            one, other = self.moving[source][before], self.moving[source][after]
            pose = interpolate(one, other, share) if one and other else None
        found = TransformStamped()
        if pose is None:  # tf2 gives what it got where values are infinite
            found.transform.translation.x = math.inf
            return found
        found.transform.translation.x, found.transform.translation.y, found.transform.translation.z = (
            pose.compose(offset).position)
        turned = found.transform.rotation
        turned.x, turned.y, turned.z, turned.w = pose.compose(offset).orientation
        return found


def moved(stamp: float, x: float, child: str = "base_link", w: float = 1.0) -> TransformStamped:
    made = TransformStamped(child_frame_id=child)
    made.header.stamp, made.header.frame_id = to_stamp(stamp), "map"
    made.transform.translation.x, made.transform.rotation.w = x, w
    return made


@pytest.fixture
def transforms() -> Transforms:
    found = Transforms()
    found.mounted["camera"] = ("base_link", FORWARD)
    return found


@pytest.fixture
def tf(transforms: Transforms) -> TfPoses:
    return TfPoses(TF, transforms)


def test_tf_gives_base_and_camera_at_the_images_stamp_once_it_is_known(tf: TfPoses) -> None:
    assert tf.at(query(100.0), final=False) is None and "does not exist" in tf.problem()
    tf.store([moved(100.0, 1.0)])
    assert tf.at(query(100.05), final=False) is None and tf.problem() == ""
    tf.store([moved(100.1, 1.1)])
    found = tf.at(query(100.05), final=False)
    assert isinstance(found, RobotPose) and found.frame_id == "map"
    np.testing.assert_allclose(found.base.position, (1.05, 0.0, 0.0), atol=1e-6)
    np.testing.assert_allclose(found.camera.position, (1.25, 0.0, 0.5), atol=1e-6)
    assert isinstance(tf.at(query(100.1), final=False), RobotPose), "at the newest transform, no later one is needed"


@pytest.mark.parametrize(("stamps", "stamp", "cause"), [
    ([100.0, 105.0], 102.5, PoseGap.AGE), ([100.0, 100.1], 100.3, PoseGap.EXTRAPOLATION),
    ([100.0, 100.1], 101.0, PoseGap.AGE), ([100.0, 100.1], 99.9, PoseGap.EXTRAPOLATION),
    ([100.0, 100.1], 90.0, PoseGap.AGE)])
def test_tf_is_not_trusted_in_gaps_nor_beyond_its_ends(
    tf: TfPoses, stamps: list[float], stamp: float, cause: PoseGap
) -> None:
    for each in stamps:
        tf.store([moved(each, 1.0)])
    assert tf.at(query(stamp), final=True) == NoPose(cause)


def test_a_jump_of_the_localization_is_not_interpolated(tf: TfPoses) -> None:
    for stamp, x in ((100.0, 1.0), (100.1, 1.1), (100.2, 9.0), (100.3, 9.1)):
        tf.store([moved(stamp, x)])
    assert tf.at(query(100.15), final=False) == NoPose(PoseGap.JUMP)
    assert isinstance(tf.at(query(100.05), final=False), RobotPose)
    assert isinstance(tf.at(query(100.25), final=False), RobotPose)


@pytest.mark.parametrize("error", [LookupException, ConnectivityException])
def test_a_camera_that_tf_does_not_connect_is_waited_for_and_then_named(
    tf: TfPoses, transforms: Transforms, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    for stamp in (100.0, 100.1):
        tf.store([moved(stamp, 1.0)])
    look_up = transforms.lookup_transform

    def fail(target: str, source: str, time: Time) -> TransformStamped:
        if source == "lens":
            raise error("no 'lens'\nand more")
        return look_up(target, source, time)

    monkeypatch.setattr(transforms, "lookup_transform", fail)
    assert tf.at(query(100.05, "lens"), final=False) is None
    found = tf.at(query(100.05, "lens"), final=True)
    assert isinstance(found, NoPose) and found.cause is PoseGap.TRANSFORM
    assert "'lens' (the images of 'front')" in found.reason and "and more" not in found.reason


def test_an_unknown_base_is_named_with_its_parameter(tf: TfPoses) -> None:
    found = tf.at(query(100.0), final=True)
    assert isinstance(found, NoPose) and found.cause is PoseGap.TRANSFORM
    assert "'base_link' (pose.base_frame)" in found.reason and "'map' (pose.frame)" in found.reason


@pytest.mark.parametrize(("stamp", "frame", "cause", "reason"), [
    (100.05, "", PoseGap.TRANSFORM, "no frame_id"), (100.05, "/camera", PoseGap.TRANSFORM, "must not begin with '/'"),
    (100.05, "map", PoseGap.TRANSFORM, "is pose.frame itself"), (0.0, "camera", PoseGap.AGE, "no stamp")])
def test_images_that_tf_would_place_wrongly_are_refused_at_once(
    tf: TfPoses, stamp: float, frame: str, cause: PoseGap, reason: str
) -> None:
    for each in (100.0, 100.1):
        tf.store([moved(each, 1.0)])
    found = tf.at(query(stamp, frame), final=False)
    assert isinstance(found, NoPose) and found.cause is cause and reason in found.reason and "'front'" in found.reason


def test_a_moving_camera_whose_transform_is_late_is_waited_for(tf: TfPoses, transforms: Transforms) -> None:
    for stamp in (100.0, 100.1, 100.2):
        tf.store([moved(stamp, 1.0)])
    tf.store([moved(100.0, 1.5, "pan")])
    assert tf.at(query(100.1, "pan"), final=False) is None
    assert tf.at(query(100.1, "pan"), final=True) == NoPose(PoseGap.EXTRAPOLATION)
    tf.store([moved(100.2, 1.7, "pan")])
    found = tf.at(query(100.1, "pan"), final=False)
    assert isinstance(found, RobotPose)
    np.testing.assert_allclose(found.camera.position, (1.6, 0.0, 0.0), atol=1e-6)


def test_static_transforms_alone_place_frames_of_every_stamp() -> None:
    fixed = TfPoses(TF, Transforms(base_link=Pose((1.0, 2.0, 0.0)), camera=FORWARD))
    found = fixed.at(query(100.0), final=False)
    assert found == RobotPose("map", Pose((1.0, 2.0, 0.0)), FORWARD)


def test_transforms_with_unusable_values_are_invalid(tf: TfPoses) -> None:
    tf.store([moved(100.0, 1.0)])
    tf.store([moved(100.1, 1.0, w=0.0)])
    found = tf.at(query(100.05), final=False)
    assert isinstance(found, NoPose) and found.cause is PoseGap.INVALID and "cannot be used" in found.reason


def test_transforms_that_go_back_far_begin_anew(tf: TfPoses, transforms: Transforms) -> None:
    for stamp in (100.0, 100.1):
        tf.store([moved(stamp, 1.0)])
    for stamp in (50.0, 50.1):
        tf.store([moved(stamp, 5.0)])
    assert sorted(transforms.moving["base_link"]) == [50_000_000_000, 50_100_000_000]
    found = tf.at(query(50.05), final=False)
    assert isinstance(found, RobotPose) and found.base.position[0] == pytest.approx(5.0)


def test_other_errors_of_the_buffer_are_not_taken_for_missing_transforms(transforms: Transforms) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    transforms.get_latest_common_time = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        TfPoses(TF, transforms).at(query(100.0), final=False)
