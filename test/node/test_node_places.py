# SPDX-License-Identifier: Apache-2.0
"""A real node over DDS with a memory whose frames have poses: questions near a place, goals, and places in view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from action_msgs.msg import GoalStatus
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, PointStamped
from nav_msgs.msg import Odometry
from std_msgs.msg import Header
from support.archives import frame_pose
from support.running_node import DISCOVERY, SMALL, RunningNode, image, picture, running_node
from visualization_msgs.msg import Marker, MarkerArray

from ros_kvstream.node.messages import pose_message, to_seconds, to_stamp
from ros_kvstream.settings import ArchiveSettings, MemorySettings, ModelSettings, StreamSettings
from ros_kvstream.srv import Query
from ros_kvstream.stream.memory import VideoMemory

MOMENTS = 6
"""Frames of the saved memory, one a second from stamp 10, ten metres apart."""


def save_drive(model: Path, path: Path) -> None:
    """Save the memory of a robot that drove along x, as a node of these parameters loads it."""
    memory = VideoMemory(StreamSettings(
        ModelSettings(str(model)), MemorySettings(budget_mib=SMALL["memory.budget_mib"], policy=SMALL["memory.policy"]),
        archive=ArchiveSettings()))
    for number in range(MOMENTS):
        memory.observe(picture(number), 10.0 + number, pose=frame_pose(10.0 * number))
    memory.save(path)
    memory.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("places")
    save_drive(random_model, folder / "drive.safetensors")
    parameters = {"model": random_model, "memory.directory": folder, "memory.restore": "drive"}
    with running_node(folder, parameters) as running:
        running.until_active()
        yield running


def near(x: float, frame_id: str = "map", y: float = 0.0) -> PointStamped:
    return PointStamped(header=Header(frame_id=frame_id), point=Point(x=x, y=y))


def test_without_a_radius_the_question_is_about_anywhere_and_the_goal_is_that_of_the_best_evidence(
        node: RunningNode) -> None:
    response = node.ask("what is there ?", max_new_tokens=1, near=near(0.0, "nowhere"))
    assert response.success, response.message
    assert {to_seconds(frame.stamp) for frame in response.evidence} == {10.0 + number for number in range(MOMENTS)}
    assert response.has_goal and response.goal.header.stamp == Time() and response.goal.header.frame_id == "map"
    assert response.goal.pose == response.evidence[0].base_pose.pose


def test_near_a_place_only_what_was_seen_there_answers_with_its_poses_and_a_goal(node: RunningNode) -> None:
    response = node.ask("what is there ?", max_new_tokens=1, near=near(21.0), radius=3.0)
    assert response.success, response.message
    (frame,) = response.evidence
    seen = frame_pose(20.0)
    assert to_seconds(frame.stamp) == 12.0 and frame.has_pose
    assert frame.pose == pose_message(seen.camera, "map", 12.0)
    assert frame.base_pose == frame.base_pose_end == pose_message(seen.base, "map", 12.0)
    assert response.has_goal and response.goal == pose_message(seen.base, "map")


def test_the_place_and_the_goal_are_recorded_with_the_answer(node: RunningNode) -> None:
    node.answers.clear()
    response = node.ask("what is there ?", max_new_tokens=1, near=near(30.0), radius=1.5)
    recorded = node.until(lambda: node.answers, "the answer on ~/answers")[0]
    assert (recorded.near, recorded.radius) == (near(30.0), 1.5)
    assert recorded.has_goal and recorded.goal == response.goal


def test_the_action_takes_a_place_and_gives_a_goal_too(node: RunningNode) -> None:
    goal, _ = node.ask_action("what is there ?", max_new_tokens=1, near=near(40.0), radius=1.0)
    status, result = node.result(goal)
    assert status == GoalStatus.STATUS_SUCCEEDED and result.has_goal
    assert result.goal == pose_message(frame_pose(40.0).base, "map")


@pytest.mark.parametrize(("limits", "reason"), [
    ({"near": near(0.0, ""), "radius": 1.0}, "near names no frame: give it in 'map'"),
    ({"near": near(0.0, "base_link"), "radius": 1.0}, "near is in frame 'base_link': give it in 'map'"),
    ({"near": near(0.0), "radius": -1.0}, "radius = -1.0: must be metres"),
    ({"near": near(0.0), "radius": float("nan")}, "radius = nan: must be metres"),
    ({"near": near(0.0), "radius": float("inf")}, "radius = inf: must be metres"),
    ({"near": near(float("nan")), "radius": 1.0}, "near = (nan, 0.0, 0.0): must be three finite numbers"),
], ids=["no frame", "another frame", "negative radius", "radius nan", "radius inf", "near nan"])
def test_a_place_that_cannot_be_used_is_refused_with_the_reason(
        node: RunningNode, limits: dict[str, Any], reason: str) -> None:
    response = node.ask("what is there ?", max_new_tokens=1, **limits)
    assert not response.success and reason in response.message and not response.has_goal
    goal, _ = node.ask_action("what is there ?", max_new_tokens=1, **limits)
    status, result = node.result(goal)
    assert status == GoalStatus.STATUS_ABORTED and reason in result.message
    assert node.ask("what is there ?", max_new_tokens=1).success


def test_where_nothing_was_seen_the_verdict_says_so_and_there_is_no_goal(node: RunningNode) -> None:
    response = node.ask("what is there ?", max_new_tokens=1, near=near(500.0), radius=1.0)
    assert response.verdict == Query.Response.VERDICT_NOT_COVERED
    assert not response.has_goal and response.evidence == []


def test_places_are_drawn_while_somebody_looks_and_removed_by_clear(node: RunningNode) -> None:
    seen: list[MarkerArray] = []
    looking = node.client.create_subscription(MarkerArray, "/kvstream/places", seen.append, 1)
    camera = node.camera("/image")
    stamp = 100.0
    while not seen:
        camera.publish(image(picture(int(stamp)), stamp))  # a frame without a pose: not drawn itself
        stamp += 0.1
        node.spin(0.05)
        assert stamp < 1e4
    removal, spheres, strokes = seen[-1].markers
    assert removal.action == Marker.DELETEALL and spheres.header.frame_id == "map"
    wanted = [frame_pose(10.0 * number).base.position for number in range(MOMENTS)]
    assert [(point.x, point.y, point.z) for point in spheres.points] == wanted
    assert len(strokes.points) == 2 * MOMENTS

    def newest_are(count: int) -> bool:
        return bool(seen) and len(seen[-1].markers) == count

    assert node.clear().success
    node.until(lambda: newest_are(1), "the removal of the places")
    assert seen[-1].markers[0].action == Marker.DELETEALL
    assert not node.ask("what is there ?", near=near(0.0), radius=1.0).has_goal
    assert node.load("drive").success
    node.until(lambda: newest_are(3), "the places of the loaded memory")
    assert len(seen[-1].markers[1].points) == MOMENTS
    node.client.destroy_subscription(looking)


def odometry(stamp: float, x: float) -> Odometry:
    message = Odometry()
    message.header = Header(frame_id="odom", stamp=to_stamp(stamp))
    message.pose.pose.position.x = x
    return message


def test_what_was_seen_with_odometry_is_found_by_its_place_and_drawn(tmp_path: Path, random_model: Path) -> None:
    parameters = {"model": random_model, "pose.source": "topic", "pose.topic": "/odom", "gate.mode": "off",
                  "ingest.queue_frames": 64, "camera.pose": "0.5 0 0 0 0 0"}
    with running_node(tmp_path, parameters) as node:
        node.until_active()
        camera, robot = node.camera("/image"), node.client.create_publisher(Odometry, "/odom", 50)
        node.until(lambda: robot.get_subscription_count() > 0, "a subscription of /odom")
        node.spin(DISCOVERY)
        seen: list[MarkerArray] = []
        node.client.create_subscription(MarkerArray, "/kvstream/places", seen.append, 1)
        for number in range(30):  # 5 m/s, from x = 0 on; images between two poses each
            robot.publish(odometry(50.0 + 0.1 * number, 0.5 * number))
            camera.publish(image(picture(number), 50.05 + 0.1 * number))
            node.spin(0.05)
        robot.publish(odometry(53.0, 15.0))
        node.until_stats(lambda stats: stats.frames_with_pose == 30)

        response = node.ask("what is there ?", max_new_tokens=1, near=near(10.25, "odom"), radius=0.1)
        assert response.success, response.message
        (frame,) = response.evidence
        assert to_seconds(frame.stamp) == pytest.approx(52.05) and response.goal.header.frame_id == "odom"
        assert response.goal.pose.position.x == pytest.approx(10.25, abs=1e-3)
        assert frame.pose.pose.position.x == pytest.approx(10.75, abs=1e-3)  # the camera is 0.5 m ahead of the base
        wrong = node.ask("what is there ?", near=near(10.25, "map"), radius=0.1)
        assert "near is in frame 'map': give it in 'odom'" in wrong.message

        def drawn() -> list[float]:
            newest = seen[-1].markers[1:] if seen else []
            return [point.x for point in newest[0].points] if newest else []

        number = 30
        while len(drawn()) < 30:  # each frame may draw
            camera.publish(image(picture(number), 53.1 + 0.001 * number))
            node.spin(0.1)
            number += 1
            assert number < 1000
        assert drawn() == pytest.approx([0.25 + 0.5 * place for place in range(30)], abs=1e-3)
