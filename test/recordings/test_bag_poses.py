# SPDX-License-Identifier: Apache-2.0
"""Frames of a bag come with poses from odometry or tf; what cannot be trusted is left out and said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from ros_kvstream.errors import RecordingError
from ros_kvstream.patrol.bags import write_bag
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.poses import FramePose, Pose, map_frame
from ros_kvstream.recordings.bags import BagSource
from ros_kvstream.recordings.frame_sources import StreamFrame

TYPES = get_typestore(Stores.ROS2_JAZZY)
T = TYPES.types
IMAGE, ODOMETRY, TF = "sensor_msgs/msg/Image", "nav_msgs/msg/Odometry", "tf2_msgs/msg/TFMessage"
Message = tuple[str, str, float, Any]
"""(topic, type, time of reception in seconds, message)."""
CAMERA = Pose.from_euler((0.2, 0.0, 0.5), -math.pi / 2, 0.0, -math.pi / 2)


def header(stamp: float, frame_id: str) -> Any:
    nanoseconds = round(stamp * 1e9)
    time = T["builtin_interfaces/msg/Time"](sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)
    return T["std_msgs/msg/Header"](stamp=time, frame_id=frame_id)


def image(stamp: float, frame_id: str = "camera", received: float | None = None) -> Message:
    pixels = np.random.default_rng(round(stamp * 10)).integers(0, 255, 8 * 8 * 3, dtype=np.uint8)
    message = T[IMAGE](header=header(stamp, frame_id), height=8, width=8, encoding="rgb8", is_bigendian=0, step=24,
                       data=pixels)  # fmt: skip
    return "/image", IMAGE, stamp if received is None else received, message


def ros_pose(x: float, quaternion: Sequence[float] = (0.0, 0.0, 0.0, 1.0)) -> Any:
    point = T["geometry_msgs/msg/Point"](x=x, y=0.0, z=0.0)
    return T["geometry_msgs/msg/Pose"](position=point, orientation=T["geometry_msgs/msg/Quaternion"](*quaternion))


def odometry(stamp: float, x: float, *, late: float = 0.0, variance: float = 0.0, topic: str = "/odom",
             quaternion: Sequence[float] = (0.0, 0.0, 0.0, 1.0)) -> Message:  # fmt: skip
    covariance = np.zeros(36)
    covariance[0] = variance
    zero = T["geometry_msgs/msg/Vector3"](x=0.0, y=0.0, z=0.0)
    twist = T["geometry_msgs/msg/TwistWithCovariance"](
        twist=T["geometry_msgs/msg/Twist"](linear=zero, angular=zero), covariance=np.zeros(36))  # fmt: skip
    pose = T["geometry_msgs/msg/PoseWithCovariance"](pose=ros_pose(x, quaternion), covariance=covariance)
    message = T[ODOMETRY](header=header(stamp, "odom"), child_frame_id="base_link", pose=pose, twist=twist)
    return topic, ODOMETRY, stamp + late, message


def transforms(received: float, *links: tuple[str, str, Pose], static: bool = False) -> Message:
    found = []
    for parent, child, pose in links:
        translation = T["geometry_msgs/msg/Vector3"](*pose.position)
        rotation = T["geometry_msgs/msg/Quaternion"](*pose.orientation)
        transform = T["geometry_msgs/msg/Transform"](translation=translation, rotation=rotation)
        found.append(T["geometry_msgs/msg/TransformStamped"](
            header=header(received, parent), child_frame_id=child, transform=transform))  # fmt: skip
    return "/tf_static" if static else "/tf", TF, received, T[TF](transforms=found)


def write(folder: Path, *messages: Message) -> Path:
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connections = {topic: writer.add_connection(topic, kind, typestore=TYPES)
                       for topic, kind in dict((m[0], m[1]) for m in messages).items()}  # fmt: skip
        for topic, kind, received, message in sorted(messages, key=lambda m: m[2]):
            writer.write(connections[topic], round(received * 1e9), TYPES.serialize_cdr(message, kind))
    return folder


def read(path: Path, poses: str = "auto") -> tuple[list[StreamFrame], list[str]]:
    notes: list[str] = []
    return list(BagSource(path, poses=poses).frames(notes.append)), notes


def drive(first: float, last: float, rate: float = 20.0, **more: Any) -> list[Message]:
    """Odometry of one metre a second."""
    return [odometry(first + n / rate, first + n / rate - 100, **more) for n in range(round((last - first) * rate) + 1)]


def xs(frames: Sequence[StreamFrame]) -> list[float | None]:
    return [frame.pose.base.position[0] if frame.pose else None for frame in frames]


def test_a_patrols_odometry_gives_the_true_pose_of_every_frame(tmp_path: Path) -> None:
    world = PatrolWorld(PatrolSettings(frames=24, rate_hz=4.0, start=1000.0))
    write_bag(world, tmp_path / "bag")
    frames, notes = read(tmp_path / "bag")
    assert notes == ["poses are read from /odom"]
    for frame in frames:
        assert frame.pose is not None and frame.pose.frame_id == "odom"
        assert frame.pose.base.distance(world.pose_at(frame.stamp)) < 0.05


def test_poses_are_interpolated_at_the_stamp_also_when_they_are_received_later(tmp_path: Path) -> None:
    bag = write(tmp_path / "bag", *drive(100.0, 104.0, late=0.3), image(101.03), image(102.01))
    frames, notes = read(bag)
    assert xs(frames) == pytest.approx([1.03, 2.01]) and len(notes) == 1


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        ([*drive(100.0, 100.5), *drive(103.0, 104.0)], "age"),
        (drive(100.0, 101.9), "extrapolation"),
        (drive(100.0, 104.0, variance=4.0), "covariance"),
        (drive(100.0, 104.0, variance=math.nan), "covariance"),
        ([*drive(100.0, 102.0), odometry(102.05, 90.0)], "jump"),
        ([*drive(100.0, 101.9), odometry(102.1, 2.1, quaternion=(0.0, 0.0, 0.0, 0.0))], "invalid"),
        ([*drive(100.0, 101.9), odometry(102.1, math.nan)], "invalid"),
        (drive(5000.0, 5002.0, late=-4899.0), "age"),
    ],
    ids=["gap", "end", "uncertain", "NaN variance", "jump", "zero quaternion", "NaN", "other clock"],
)
def test_a_frame_whose_pose_cannot_be_trusted_has_none_and_that_is_said(
    tmp_path: Path, messages: list[Message], cause: str
) -> None:
    bag = write(tmp_path / "bag", *messages, image(102.03))
    frames, notes = read(bag)
    assert xs(frames) == [None]
    assert notes[-1] == f"1 of 1 frames have no pose: {cause} 1"


def test_tf_gives_the_camera_and_the_base_in_the_map(tmp_path: Path) -> None:
    moving = [transforms(100 + n / 50, ("odom", "base_link", Pose((n / 50, 0.0, 0.0)))) for n in range(200)]
    origin = Pose.from_euler((5.0, 1.0, 0.0), 0.0, 0.0, math.pi / 2)
    fixed = transforms(100.0, ("base_link", "camera", CAMERA), ("map", "odom", origin), static=True)
    frames, notes = read(write(tmp_path / "bag", fixed, *moving, *drive(100.0, 104.0), image(102.005)))
    pose = frames[0].pose
    assert notes == ["poses are read from /tf"]
    assert isinstance(pose, FramePose) and map_frame(pose.map) == "map"
    assert pose.base.position == pytest.approx((5.0, 3.005, 0.0))
    assert pose.camera.distance(pose.base.compose(CAMERA)) < 1e-9


def test_tf_that_does_not_connect_the_camera_gives_way_to_odometry_unless_it_is_asked_for(tmp_path: Path) -> None:
    moving = [transforms(100 + n / 50, ("odom", "base_link", Pose((n / 50, 0.0, 0.0)))) for n in range(200)]
    bag = write(tmp_path / "bag", *moving, *drive(100.0, 104.0), image(102.0, "somewhere"))
    frames, notes = read(bag)
    assert xs(frames) == pytest.approx([2.0]) and notes == ["poses are read from /odom"]
    frames, notes = read(bag, "tf")
    assert xs(frames) == [None] and notes[-1] == "1 of 1 frames have no pose: transform 1"


def test_the_mounting_in_tf_static_gives_the_camera_beside_odometry(tmp_path: Path) -> None:
    fixed = transforms(100.0, ("base_link", "camera", CAMERA), static=True)
    frames, _ = read(write(tmp_path / "bag", fixed, *drive(100.0, 104.0), image(102.0)), "/odom")
    assert frames[0].pose is not None
    assert frames[0].pose.camera.position == pytest.approx((2.2, 0.0, 0.5))


def test_messages_of_poses_that_cannot_be_read_are_said_and_the_others_are_used(tmp_path: Path) -> None:
    with Writer(tmp_path / "bag", version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        poses = writer.add_connection("/odom", ODOMETRY, typestore=TYPES)
        images = writer.add_connection("/image", IMAGE, typestore=TYPES)
        for topic, kind, received, message in sorted([*drive(100.0, 104.0), image(102.03)], key=lambda m: m[2]):
            data = bytes(TYPES.serialize_cdr(message, kind))
            cut = data[:30] if received == 101.0 else data
            writer.write(images if topic == "/image" else poses, round(received * 1e9), cut)
    frames, notes = read(tmp_path / "bag")
    assert xs(frames) == pytest.approx([2.03])
    assert notes[-1].startswith("1 messages of poses cannot be deserialized; the first: /odom: ")


def test_a_message_without_a_stamp_does_not_remove_the_poses_before_it(tmp_path: Path) -> None:
    topic, kind, _, message = odometry(0.0, 50.0)
    unstamped = (topic, kind, 102.04, message)
    frames, _ = read(write(tmp_path / "bag", *drive(100.0, 104.0), unstamped, image(102.03)))
    assert xs(frames) == pytest.approx([2.03])


def test_of_several_topics_one_must_be_chosen(tmp_path: Path) -> None:
    bag = write(tmp_path / "bag", *drive(100.0, 104.0), *drive(100.0, 104.0, topic="/gps"), image(102.0))
    frames, notes = read(bag)
    assert xs(frames) == [None] and "/odom, /gps" in notes[0] and "--pose TOPIC" in notes[0]
    assert xs(read(bag, "/gps")[0]) == pytest.approx([2.0])
    frames, notes = read(bag, "none")
    assert xs(frames) == [None] and notes == []


@pytest.mark.parametrize(("source", "text"), [
    ("/missing", "is not in the bag; topics with poses: /odom"),
    ("/image", "holds sensor_msgs/msg/Image, not nav_msgs/msg/Odometry"),
    ("tf", "the bag has no /tf; its topics with poses: /odom"),
])  # fmt: skip
def test_a_source_that_the_bag_lacks_is_refused(tmp_path: Path, source: str, text: str) -> None:
    bag = write(tmp_path / "bag", *drive(100.0, 104.0), image(102.0))
    with pytest.raises(RecordingError, match=text):
        read(bag, source)
