# SPDX-License-Identifier: Apache-2.0
"""Frames wait for their poses for a limited time, and their poses belong to the present segment of the map."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import pytest
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import Image

from ros_kvstream.errors import KvStreamError, SettingsError
from ros_kvstream.node.frame_poses import GRACE_SECONDS, MAX_WAITING, FramePoses
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.messages import to_stamp
from ros_kvstream.node.pose_source import TopicPoses
from ros_kvstream.node.pose_tf import TfPoses
from ros_kvstream.node.settings import CameraSettings, PoseSettings, mounting
from ros_kvstream.poses import FramePose, Pose, map_segment


class Memory:
    """Records what is placed."""

    def __init__(self, *segments: str) -> None:
        self.placed: dict[int, FramePose] = {}
        self.segments = set(segments)

    def place(self, frame_id: int, stamp: float, pose: FramePose) -> None:
        self.placed[frame_id] = pose

    def maps(self) -> set[str]:
        return self.segments | {pose.map for pose in self.placed.values()}


def pose_message(stamp: float, x: float, frame_id: str = "map") -> PoseStamped:
    message = PoseStamped()
    message.header.stamp, message.header.frame_id = to_stamp(stamp), frame_id
    message.pose.position.x = x
    return message


class Bench:
    """A topic's poses with one camera, fed by hand."""

    def __init__(self, **settings: Any) -> None:
        self.settings = PoseSettings(source="topic", **settings)
        self.source = TopicPoses(self.settings, {"camera": Pose((0.5, 0.0, 1.0))})
        self.poses = FramePoses(self.source, self.settings)
        self.memory = Memory()

    def frame(self, number: int, stamp: float, age: float = 0.0) -> None:
        image = Image()
        image.header.stamp = to_stamp(stamp)
        self.poses.add(QueuedFrame("camera", image, stamp, time.monotonic() - age), number)
        self.poses.resolve(self.memory)  # type: ignore[arg-type]

    def pose(self, stamp: float, x: float) -> None:
        self.source.store(pose_message(stamp, x), stamp)
        self.poses.resolve(self.memory)  # type: ignore[arg-type]


def test_a_frame_waits_for_the_pose_behind_it_and_gets_camera_and_base() -> None:
    bench = Bench()
    bench.pose(10.0, 0.0)
    bench.frame(7, 10.1)
    assert bench.poses.waiting == 1 and not bench.memory.placed
    bench.pose(10.2, 0.2)
    assert bench.poses.waiting == 0 and bench.poses.count.with_pose == 1
    pose = bench.memory.placed[7]
    assert pose.frame_id == "map" and pose.base.position == pytest.approx((0.1, 0.0, 0.0))
    assert pose.camera.position == pytest.approx((0.6, 0.0, 1.0))


def test_a_frame_that_waited_too_long_is_given_up_and_counted() -> None:
    bench = Bench(max_age_s=0.2)
    bench.pose(10.0, 0.0)
    bench.frame(7, 10.1, age=0.2 + GRACE_SECONDS)
    assert bench.poses.waiting == 0 and bench.poses.count.missing == {"extrapolation": 1}
    bench.pose(10.2, 0.2)
    assert not bench.memory.placed


def test_waiting_frames_are_bounded() -> None:
    bench = Bench(max_age_s=60.0)
    for number in range(MAX_WAITING + 5):
        bench.frame(number, 10.0 + 0.01 * number)
    assert bench.poses.waiting == MAX_WAITING and bench.poses.count.missing == {"missing": 5}


def test_clearing_begins_a_new_segment_unless_the_map_has_a_name() -> None:
    for name, same in (("", False), ("hall", True)):
        bench, segments = Bench(map_name=name), []
        for number in range(2):
            bench.pose(10.0 + number, 0.0)
            bench.frame(number, 10.0 + number)
            segments.append(bench.memory.placed[number].map)
            bench.poses.cleared()
        assert (segments[0] == segments[1]) is same
        assert not name or segments[0] == map_segment("map", "hall")


def test_poses_of_another_map_in_the_memory_are_noticed() -> None:
    bench = Bench(map_name="hall")
    bench.memory = Memory(map_segment("map", "yard"))
    bench.poses.replaced(bench.memory)  # type: ignore[arg-type]
    assert bench.poses.other_map == map_segment("map", "yard")
    bench.poses.replaced(Memory(map_segment("odom", "hall")))  # type: ignore[arg-type]
    assert bench.poses.other_map == ""


def test_a_mounting_is_six_numbers() -> None:
    camera = CameraSettings("camera", pose="0.2, 0, 0.5, 0 0 1.57")
    assert mounting(camera).position == (0.2, 0.0, 0.5)
    for bad in ("1 2 3", "0 0 0 0 0 nan", "0 0 0 0 0 inf", "a b c d e f"):
        with pytest.raises(SettingsError, match="six finite numbers"):
            CameraSettings("camera", pose=bad)


@pytest.mark.skipif(importlib.util.find_spec("tf2_ros") is not None, reason="tf2_ros is installed here")
def test_without_tf2_ros_poses_from_tf_are_refused_with_the_remedy() -> None:
    with pytest.raises(KvStreamError, match="tf2_ros"):
        TfPoses(PoseSettings(source="tf"))


def test_a_topic_name_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="pose.topic = '/a b'"):
        TopicPoses(PoseSettings(source="topic", topic="/a b"), {})
