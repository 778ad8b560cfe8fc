# SPDX-License-Identifier: Apache-2.0
"""Cameras of a real node process: quality of service, silence, wrong topics, and a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image
from support.running_node import RunningNode, image, picture, running_node

from ros_kvstream.node.messages import to_seconds

OK, WARN, ERROR, STALE = (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    """A node with three cameras: 'strict' asks for reliable images, 'kept' for late-joining ones, 'front' for any."""
    parameters = {
        "model": random_model, "cameras": '["strict","kept","front"]', "diagnostics.no_image_s": 0.5,
        "use_sim_time": True, "qos_overrides./strict/image.subscription.reliability": "reliable",
        "qos_overrides./kept/image.subscription.reliability": "reliable",
        "qos_overrides./kept/image.subscription.durability": "transient_local"}
    with running_node(tmp_path_factory.mktemp("cameras"), parameters) as running:
        kept = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL, reliability=ReliabilityPolicy.RELIABLE)
        running.kept = running.client.create_publisher(Image, "/kept/image", kept)
        running.kept.publish(image(picture(1), 7.0))
        running.until_active()
        yield running


def test_reports_keep_coming_though_the_clock_stands_still(node: RunningNode) -> None:
    node.diagnostics.clear()
    first = node.status("state")
    node.diagnostics.clear()
    assert node.status("state").message == first.message == "active"


def test_an_image_sent_before_the_node_started_arrives_where_durability_is_asked_for(node: RunningNode) -> None:
    node.until_stats(lambda stats: to_seconds(stats.newest_stamp) == 7.0)
    assert node.ask("what is there ?", camera="kept", max_new_tokens=1).success


def test_incompatible_quality_of_service_is_an_error_that_names_topic_and_remedy(node: RunningNode) -> None:
    publisher = node.camera("/strict/image", reliable=False, wait=False)
    status = node.until_status("camera strict", lambda status: status.level == ERROR)
    for part in ("/strict/image", "best_effort", "reliable", "no image will arrive",
                 "qos_overrides./strict/image.subscription.reliability to best_effort"):
        assert part in status.message
    assert "no image will arrive" in node.output()
    node.client.destroy_publisher(publisher)
    good = node.camera("/strict/image", reliable=True)
    good.publish(image(picture(2), 8.0))
    node.until_status("camera strict", lambda status: status.level == OK)


def test_a_volatile_publisher_where_late_joining_images_are_asked_for_is_an_error(node: RunningNode) -> None:
    volatile = node.client.create_publisher(Image, "/kept/image", QoSProfile(depth=1))
    status = node.until_status("camera kept", lambda status: status.level == ERROR)
    assert "durability volatile" in status.message
    node.client.destroy_publisher(volatile)
    node.until_status("camera kept", lambda status: status.level != ERROR)


def test_best_effort_and_reliable_publishers_are_both_heard(node: RunningNode) -> None:
    publishers = [node.camera("/front/image", reliable=reliable) for reliable in (True, False)]
    before = node.until_stats(lambda _: True)
    node.until(lambda: all(publisher.get_subscription_count() for publisher in publishers), "both connections")
    for number in range(10):
        for publisher in publishers:
            publisher.publish(image(picture(number), 20.0 + number))
            node.spin(0.05)
    after = node.until_stats(lambda now: now.frames_published >= before.frames_published + 20 and not now.queue_length)
    assert after.frames_published == before.frames_published + 20
    assert after.frames_published == after.frames_seen + sum(after.drop_counts)


def test_a_silent_camera_says_which_topic_it_waits_on_and_which_are_similar(node: RunningNode) -> None:
    other = node.client.create_publisher(Image, "/front/image_rect", 1)
    status = node.until_status("camera front", lambda status: status.level in (WARN, STALE)
                               and "rect" in status.message)
    assert "no image for" in status.message and "/front/image" in status.message
    node.client.destroy_publisher(other)


def test_a_camera_that_dies_goes_stale_and_hurts_no_other(node: RunningNode) -> None:
    node.until_status("camera front", lambda status: status.level == STALE)
    strict = node.camera("/strict/image")
    strict.publish(image(picture(3), 40.0))
    node.until_status("camera strict", lambda status: status.level == OK)
    assert node.ask("what is there ?", camera="strict", max_new_tokens=1).success
    assert node.diagnostics["state"].level == OK


def test_a_looping_bag_under_simulated_time_is_taken_up_again(node: RunningNode) -> None:
    clock = node.client.create_publisher(Clock, "/clock", 1)
    front = node.camera("/front/image")
    for loop in range(2):
        for second in range(50, 55):
            clock.publish(Clock(clock=Time(sec=second)))
            front.publish(image(picture(second + loop), float(second)))
            node.spin(0.1)
    node.until_stats(lambda stats: stats.header.stamp.sec == 54 and to_seconds(stats.newest_stamp) == 54.0)
    answer = node.ask("what is there ?", max_new_tokens=1)
    assert answer.success and answer.asked_at.sec == 54


def test_a_topic_of_the_other_transport_is_named_with_the_remedy(tmp_path: Path, random_model: Path) -> None:
    parameters = {"model": random_model, "diagnostics.no_image_s": 0.5, "camera.topic": "/lens/image/compressed"}
    with running_node(tmp_path, parameters) as node:
        node.until_active()
        node.client.create_publisher(CompressedImage, "/lens/image/compressed", 1)
        status = node.until_status("camera camera", lambda status: "carries" in status.message)
        assert "sensor_msgs/msg/CompressedImage" in status.message
        assert "set camera.transport to compressed" in status.message
