# SPDX-License-Identifier: Apache-2.0
"""Frames that wait for their poses, and the poses that the memory of a node keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.node import Node
from std_srvs.srv import Trigger
from support.node_bench import NodeBench
from support.running_node import image, own_context, picture

from ros_kvstream.node.frame_poses import GRACE_SECONDS, MAX_WAITING, FramePoses
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.messages import to_stamp
from ros_kvstream.node.pose_buffer import PoseGap
from ros_kvstream.node.pose_source import NoPose, PoseQuery, RobotPose
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.srv import MemoryFile

SETTINGS = PoseSettings(source="topic", max_age_s=0.5)
START = 1.7e9 + 0.25


class Source:
    """Knows the poses that are put into it, and gives the frames of others up when told to."""

    def __init__(self) -> None:
        self.known: dict[float, RobotPose] = {}
        self.asked: list[tuple[float, bool]] = []

    def at(self, query: PoseQuery, *, final: bool) -> RobotPose | NoPose | None:
        self.asked.append((query.stamp, final))
        return self.known.get(query.stamp) or (NoPose(PoseGap.AGE, "no pose") if final else None)

    def know(self, *stamps: float, frame_id: str = "odom") -> None:
        for stamp in stamps:
            self.known[stamp] = RobotPose(frame_id, Pose((stamp, 0.0, 0.0)), Pose((stamp, 0.0, 1.0)))

    def subscribe(self, node: Node, received: Callable[[], None]) -> None:
        raise NotImplementedError

    def unsubscribe(self) -> None:
        raise NotImplementedError

    def describe(self) -> str:
        return "a list"

    def problem(self) -> str:
        return ""

    def unusable(self) -> bool:
        return False

    def delay(self) -> float | None:
        return None


class Placed:
    """Notes what is placed."""

    def __init__(self) -> None:
        self.poses: list[tuple[int, float, FramePose]] = []
        self.segments: set[str] = set()

    def place(self, frame_id: int, stamp: float, pose: FramePose) -> None:
        self.poses.append((frame_id, stamp, pose))

    def maps(self) -> set[str]:
        return self.segments | {pose.map for _, _, pose in self.poses}


def take(poses: FramePoses, *stamps: float, arrived: float | None = None) -> None:
    """Let frames wait whose id is their stamp."""
    for stamp in stamps:
        now = time.monotonic() if arrived is None else arrived
        poses.add(QueuedFrame("camera", image(picture(1), stamp), stamp, now), int(stamp))


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def placed() -> Placed:
    return Placed()


def test_frames_are_placed_in_order_once_their_poses_are_known(source: Source, placed: Placed) -> None:
    poses = FramePoses(source, SETTINGS)
    take(poses, 1.0, 2.0, 3.0)
    source.know(2.0)
    poses.resolve(placed)
    assert [frame_id for frame_id, _, _ in placed.poses] == [2] and poses.waiting == 2
    source.know(1.0, 3.0)
    poses.resolve(placed)
    assert [(frame_id, stamp) for frame_id, stamp, _ in placed.poses] == [(2, 2.0), (1, 1.0), (3, 3.0)]
    assert placed.poses[0][2].base.position == (2.0, 0.0, 0.0) and placed.poses[0][2].camera.position == (2.0, 0.0, 1.0)
    assert (poses.count.with_pose, poses.count.total, poses.waiting) == (3, 3, 0)


def test_a_frame_that_has_waited_too_long_is_given_up_with_its_cause_and_reason(source: Source, placed: Placed) -> None:
    poses = FramePoses(source, SETTINGS)
    take(poses, 1.0, arrived=time.monotonic() - SETTINGS.max_age_s - GRACE_SECONDS - 0.01)
    take(poses, 2.0)
    poses.resolve(placed)
    assert source.asked == [(1.0, True), (2.0, False)] and poses.waiting == 1 and not placed.poses
    assert dict(poses.count.missing) == {"age": 1} and poses.noted is not None and poses.noted[1] == "no pose"


def test_the_number_of_waiting_frames_is_bounded_and_the_oldest_are_given_up(source: Source, placed: Placed) -> None:
    poses = FramePoses(source, SETTINGS)
    message = image(picture(1), 1.0)
    for number in range(MAX_WAITING + 5):
        poses.add(QueuedFrame("camera", message, float(number), time.monotonic()), number)
    poses.resolve(placed)
    assert poses.waiting == MAX_WAITING and poses.count.missing["age"] == 5
    assert [stamp for stamp, final in source.asked if final] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_error_while_placing_keeps_the_other_frames_waiting(source: Source, placed: Placed) -> None:
    poses = FramePoses(source, SETTINGS)
    take(poses, 1.0, 2.0)
    source.know(1.0, 2.0)
    place, placed.place = placed.place, lambda *_: (_ for _ in ()).throw(OSError("disk"))  # type: ignore[assignment]
    with pytest.raises(OSError, match="disk"):
        poses.resolve(placed)
    placed.place = place  # type: ignore[method-assign]
    poses.resolve(placed)
    assert [frame_id for frame_id, _, _ in placed.poses] == [2]


def test_the_exact_stamp_of_the_header_is_asked_for(placed: Placed) -> None:
    asked: list[PoseQuery] = []

    class Noting(Source):
        def at(self, query: PoseQuery, *, final: bool) -> RobotPose | NoPose | None:
            asked.append(query)
            return None

    poses = FramePoses(Noting(), SETTINGS)
    message = image(picture(1), 0.0)
    message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id = 1_700_000_000, 123_456_789, "lens"
    poses.add(QueuedFrame("camera", message, 1_700_000_000.1234567, time.monotonic()), 1)
    unstamped = image(picture(1), 0.0)
    poses.add(QueuedFrame("camera", unstamped, 5.5, time.monotonic()), 2)
    poses.resolve(placed)
    assert asked[0].nanoseconds == 1_700_000_000_123_456_789 and asked[0].image_frame == "lens"
    assert asked[1].nanoseconds == 5_500_000_000


def segments(placed: Placed) -> list[str]:
    return [pose.map for _, _, pose in placed.poses]


@pytest.mark.parametrize("name", ["", "warehouse"])
def test_a_cleared_memory_begins_a_new_segment_unless_the_map_has_a_name(
    source: Source, placed: Placed, name: str
) -> None:
    poses = FramePoses(source, PoseSettings(source="topic", map_name=name))
    source.know(1.0, 2.0)
    take(poses, 1.0)
    poses.resolve(placed)
    poses.cleared()
    take(poses, 2.0)
    poses.resolve(placed)
    one, other = segments(placed)
    assert (one == other == "odom#warehouse") if name else (one != other)
    assert one.startswith("odom#") and other.startswith("odom#")


def test_frames_that_wait_while_the_memory_is_cleared_are_counted_and_not_placed(
    source: Source, placed: Placed
) -> None:
    poses = FramePoses(source, SETTINGS)
    take(poses, 1.0, 2.0)
    source.know(2.0)
    poses.cleared()
    poses.resolve(placed)
    assert poses.waiting == 0 and not placed.poses
    assert (poses.count.with_pose, poses.count.missing["age"]) == (1, 1)


def test_runs_without_a_name_have_segments_of_their_own_and_another_frame_id_too(source: Source) -> None:
    found = set()
    for frame_id in ("odom", "odom", "map"):
        placed, poses = Placed(), FramePoses(source, SETTINGS)
        source.know(1.0, frame_id=frame_id)
        take(poses, 1.0)
        poses.resolve(placed)
        found |= set(segments(placed))
    assert len(found) == 3


@pytest.mark.parametrize(("name", "held", "other"), [
    ("", "odom#old", "odom#old"), ("hall", "odom#old", "odom#old"), ("hall", "map#hall", ""), ("", None, "")])
def test_poses_of_another_map_in_a_loaded_memory_are_noticed(
    source: Source, placed: Placed, name: str, held: str | None, other: str
) -> None:
    poses = FramePoses(source, PoseSettings(source="topic", map_name=name))
    placed.segments = {held} if held else set()
    poses.replaced(placed)
    assert poses.other_map == other
    poses.cleared()
    assert poses.other_map == ""


# -- with a node ------------------------------------------------------------------------------------------------------


class Bench(NodeBench):
    """A node with odometry."""

    def __init__(self, context: rclpy.Context, model: Path, parameters: dict[str, Any]) -> None:
        super().__init__(context, model, {"memory.budget_mib": 8.0, "pose.source": "topic", "pose.topic": "/odom",
                                          "ingest.queue_frames": 32, **parameters})
        self.poses = self.helper.create_publisher(Odometry, "/odom", 50)
        self.until(lambda: self.poses.get_subscription_count() > 0)
        self.shown = 0

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.01)

    def drive(self, *stamps: float) -> None:
        """Publish poses: 1 m/s along x, turning by 0.5 rad/s."""
        for stamp in stamps:
            message, pose = Odometry(), pose_at(stamp)
            message.header.stamp, message.header.frame_id = to_stamp(stamp), "odom"
            message.pose.pose.position.x = pose.position[0]
            message.pose.pose.orientation.z, message.pose.pose.orientation.w = pose.orientation[2:]
            self.poses.publish(message)
            self.spin(0.01)

    def show(self, *stamps: float) -> None:
        for stamp in stamps:
            self.shown += 1
            self.camera.publish(image(picture(self.shown), stamp))
            self.spin(0.02)

    def decided(self) -> None:
        """Wait until every published frame has a pose or a cause."""
        self.until(lambda: self.session.poses.count.total == self.shown)

    def records(self) -> list[Any]:
        """Records of the remembered frames."""
        def read(memory: Any) -> list[Any]:
            return [memory.frame_index[frame] for frame in range(memory.frame_index.next_id)
                    if frame in memory.frame_index]

        return self.session.worker.call(read).result(60)

    def call(self, kind: Any, service: str, **values: Any) -> Any:
        client = self.helper.create_client(kind, service)
        self.until(client.service_is_ready)
        future = client.call_async(kind.Request(**values))
        self.until(future.done)
        assert future.result().success, future.result().message
        return future.result()


def pose_at(stamp: float) -> Pose:
    return Pose.from_euler((stamp - START, 0.0, 0.0), 0.0, 0.0, 0.5 * (stamp - START))


@pytest.fixture
def bench(request: pytest.FixtureRequest, random_model: Path, tmp_path: Path) -> Iterator[Bench]:
    with own_context() as context:
        made = Bench(context, random_model, {**getattr(request, "param", {}), "memory.directory": str(tmp_path)})
        yield made
        made.close()


@pytest.mark.parametrize("bench", [{"camera.pose": "0.2 0 0.5 0 0 1.5707963267948966"}], indirect=True)
def test_the_memory_keeps_the_interpolated_poses_of_base_and_camera(bench: Bench) -> None:
    bench.drive(*[START + 0.02 * step for step in range(10)])
    stamps = [START + 0.033, START + 0.1, START + 0.171, START + 0.195]  # the last one is ahead of the poses
    bench.show(*stamps)
    bench.until(lambda: bench.session.counters.total().seen == 4)
    assert [record.pose is not None for record in bench.records()] == [True, True, True, False]
    bench.drive(START + 0.2)
    bench.decided()
    for record, stamp in zip(bench.records(), stamps, strict=True):
        base = pose_at(stamp)
        yaw = 0.5 * (stamp - START)
        np.testing.assert_allclose(record.pose.base.numbers(), base.numbers(), atol=1e-5)
        camera = Pose.from_euler((stamp - START + 0.2 * np.cos(yaw), 0.2 * np.sin(yaw), 0.5), 0.0, 0.0, yaw + np.pi / 2)
        np.testing.assert_allclose(record.pose.camera.numbers(), camera.numbers(), atol=1e-5)
        assert record.pose.frame_id == "odom" and record.base_end == record.pose.base


@pytest.mark.parametrize("bench", [{"gate.mode": "flow"}], indirect=True)
def test_a_redundant_frame_extends_its_moment_with_the_last_pose(bench: Bench) -> None:
    bench.drive(*[START + 0.02 * step for step in range(10)])
    for stamp in (START + 0.03, START + 0.11):
        bench.shown += 1
        bench.camera.publish(image(picture(1), stamp))
        bench.spin(0.05)
    bench.decided()
    (record,) = bench.records()
    assert bench.session.poses.count.with_pose == 2
    np.testing.assert_allclose(record.pose.base.numbers(), pose_at(START + 0.03).numbers(), atol=1e-5)
    np.testing.assert_allclose(record.base_end.numbers(), pose_at(START + 0.11).numbers(), atol=1e-5)


def test_clear_begins_a_new_segment_and_a_memory_of_another_run_gives_a_hint(bench: Bench) -> None:
    bench.drive(*[START + 0.02 * step for step in range(10)])
    bench.show(START + 0.05)
    bench.decided()
    before = bench.records()[0].pose.map
    bench.call(MemoryFile, "/kvstream/save", name="first")
    bench.call(Trigger, "/kvstream/clear")
    bench.show(START + 0.1)
    bench.decided()
    (record,) = bench.records()
    assert record.pose.map != before and record.pose.frame_id == "odom" and bench.session.poses.other_map == ""
    bench.call(MemoryFile, "/kvstream/load", name="first")
    assert bench.session.poses.other_map == before and bench.records()[0].pose.map == before


def test_configured_again_poses_are_of_another_segment_and_places_of_a_name_are_known_again(
    random_model: Path, tmp_path: Path
) -> None:
    found = {}
    for run, name in (("one", ""), ("two", ""), ("three", "hall"), ("four", "hall")):
        with own_context() as context:
            bench = Bench(context, random_model, {"pose.map_name": name})
            bench.drive(START, START + 0.1)
            bench.show(START + 0.05)
            bench.decided()
            found[run] = bench.records()[0].pose.map
            bench.close()
    assert found["one"] != found["two"] and found["three"] == found["four"] == "odom#hall"
