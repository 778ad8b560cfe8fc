# SPDX-License-Identifier: Apache-2.0
"""Levels and reasons, from snapshots."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.time import Time
from support.running_node import image, picture

from ros_kvstream.node.cameras import CameraSubscription
from ros_kvstream.node.diagnostics import CameraHealth, Health, PoseHealth, statuses
from ros_kvstream.node.frame_counters import CameraCount, FrameCounters, PoseCount
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.node.settings import CameraSettings, DiagnosticsSettings
from ros_kvstream.records import MemoryStats

OK, WARN, ERROR, STALE = (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE)
THRESHOLDS = DiagnosticsSettings(no_image_s=5.0, image_age_s=1.0, drop_share=0.5)
CAMERA = CameraHealth("front", "/image", 0.1, True, CameraCount(10, 10, 10), "no publisher on /image", {}, 10)
MEMORY = MemoryStats(budget_bytes=100, allocated_bytes=90, used_bytes=50, peak_bytes=60, slots=10, slots_used=5)
HEALTH = Health("/kvstream", "active", model="tiny", policy="tar", memory=MEMORY, process_bytes=1000, cameras=[CAMERA])


def found(health: Health) -> dict[str, DiagnosticStatus]:
    return {status.name.removeprefix("/kvstream: "): status for status in statuses(health, THRESHOLDS)}


def with_camera(**changes) -> Health:
    return replace(HEALTH, cameras=[replace(CAMERA, **changes)])


def test_a_healthy_node_is_ok_in_every_part() -> None:
    health = found(HEALTH)
    assert set(health) == {"state", "memory", "latency", "ingest", "camera front"}
    assert {status.level for status in health.values()} == {OK}


def test_errors_inside_the_memory_are_counted_after_the_newest_is_no_longer_shown() -> None:
    state = found(replace(HEALTH, faults=3))["state"]
    assert state.level == OK and {value.key: value.value for value in state.values}["errors inside the memory"] == "3"


def test_patches_left_out_by_saliency_are_in_the_status_of_the_memory() -> None:
    memory = found(replace(HEALTH, memory=replace(MEMORY, patches_kept=30, patches_pruned=12)))["memory"]
    assert {("patches kept", "30"), ("patches pruned", "12")} <= {(value.key, value.value) for value in memory.values}


@pytest.mark.parametrize(("health", "part", "level", "reason"), [
    (replace(HEALTH, failure="configure failed: too small"), "state", ERROR, "too small"),
    (replace(HEALTH, fault="frame: out of memory"), "state", ERROR, "out of memory"),
    (replace(HEALTH, worker_died=True), "state", ERROR, "worker thread has ended"),
    (replace(HEALTH, trained=False), "state", WARN, "untrained"),
    (replace(HEALTH, state="inactive"), "state", WARN, "inactive"),
    (replace(HEALTH, memory=replace(MEMORY, peak_bytes=101)), "memory", ERROR, "more than memory.budget_mib"),
    (replace(HEALTH, memory=replace(MEMORY, archive_problem="archive.path is full")), "memory", WARN, "is full"),
    (with_camera(silence=6.0), "camera front", WARN, "no image for 6 s: no publisher on /image"),
    (with_camera(silence=51.0), "camera front", STALE, "no image for 51 s"),
    (with_camera(incompatible="publisher offers best_effort"), "camera front", ERROR, "best_effort"),
    (with_camera(last_refusal="encoding 'x' is not supported"), "camera front", WARN, "'x'"),
    (with_camera(image_loss="uses 5 of 256 levels"), "camera front", WARN, "uses 5 of 256"),
    (with_camera(heard=False), "camera front", OK, "waiting for the first image on /image"),
    (with_camera(dropped_lately={"queue": 6}), "ingest", WARN,
     "60 % of the frames are dropped, mostly because of 'queue'"),
    (with_camera(dropped_lately={"queue": 5}), "ingest", OK, ""),
    (with_camera(dropped_lately={"sequence_gap": 30}), "ingest", WARN, "net.core.rmem_max"),
])
def test_a_part_that_is_not_well_says_why(health: Health, part: str, level: bytes, reason: str) -> None:
    status = found(health)[part]
    assert status.level == level and reason in status.message


@pytest.mark.parametrize(("age", "level", "reason"), [
    (200.0, OK, ""), (1500.0, WARN, "1.5 s old"), (1e9, WARN, "another clock"), (-1e9, WARN, "another clock")])
def test_old_frames_and_foreign_stamps_are_told_apart(age: float, level: bytes, reason: str) -> None:
    metrics = Metrics()
    metrics.add("age", age)
    status = found(replace(HEALTH, metrics=metrics))["ingest"]
    assert status.level == level and reason in status.message


@pytest.mark.parametrize(("front", "rear", "reason"), [
    (5.0, 5.9, ""), (5.0, 8.0, "'rear' are 3.0 s behind those of camera 'front'"), (5.0, None, ""),
    (1.7e9, 5.0, "'front' are 1699999995.0 s behind those of camera 'rear'")])
def test_two_cameras_of_different_clocks_are_named_with_the_difference(
    front: float, rear: float | None, reason: str
) -> None:
    cameras = [replace(CAMERA, delay=front), replace(CAMERA, name="rear", delay=rear)]
    status = found(replace(HEALTH, cameras=cameras))["ingest"]
    assert status.level == (WARN if reason else OK) and reason in status.message


def test_a_camera_of_a_lower_rate_is_no_other_clock_in_a_replay_at_half_speed() -> None:
    arrived: list[Any] = []
    clock = SimpleNamespace()
    node: Any = SimpleNamespace(
        create_subscription=lambda kind, topic, callback, *_, **__: arrived.append(callback), get_clock=lambda: clock,
        resolve_topic_name=lambda name: f"/{name}")
    cameras = [CameraSubscription(node, CameraSettings(name), FrameCounters(), lambda _: None, Metrics())
               for name in ("fast", "slow")]
    for second in range(30):
        clock.now = lambda now=100 + second: Time(seconds=now)  # what /clock says
        for callback in arrived if second % 10 == 0 else arrived[:1]:
            callback(image(picture(1), 100.0 + second), {})
    assert [camera.delay for camera in cameras] == [0.0, 0.0]


def test_a_simulated_clock_that_never_came_is_named_before_foreign_stamps() -> None:
    metrics = Metrics()
    metrics.add("age", -1e9)
    status = found(replace(HEALTH, metrics=metrics, no_clock=True))["ingest"]
    assert status.level == WARN and "no /clock" in status.message and "another clock" not in status.message


def test_an_unconfigured_node_reports_its_state_only() -> None:
    assert set(found(replace(HEALTH, state="unconfigured"))) == {"state"}


POSE = PoseHealth("topic", "/odom (nav_msgs/msg/Odometry)", PoseCount(90, Counter(age=10)), PoseCount(20), delay=0.02)


def poses(with_pose: int, **missing: int) -> PoseCount:
    return PoseCount(with_pose, Counter(missing))


@pytest.mark.parametrize(("changes", "level", "reason"), [
    ({}, OK, "20 of 20 recent frames have a pose"),
    ({"lately": poses(10, age=10)}, OK, "10 of 20"),
    ({"lately": poses(9, age=10)}, WARN, "53 % of the recent frames have no pose, mostly because of 'age'"),
    ({"lately": poses(0, age=3, covariance=4)}, WARN, "'covariance': the localization is too uncertain"),
    ({"lately": poses(0, jump=4)}, WARN, "pose.max_speed"),
    ({"lately": poses(0, extrapolation=4)}, WARN, "localization runs and is not late"),
    ({"lately": poses(0, missing=4), "problem": "no publisher on /odom"}, WARN, "no publisher on /odom"),
    ({"lately": poses(0), "problem": "no publisher on /odom"}, OK, "no recent frame. no publisher on /odom"),
    ({"problem": "carries std_msgs/msg/String", "unusable": True}, WARN, "std_msgs/msg/String"),
    ({"lately": poses(20, invalid=1), "reason": "a message is bad"}, WARN, "1 recent frames have no pose: a message"),
    ({"reason": "a message is bad"}, OK, "20 of 20"),
    ({"other_map": "odom#1a2b"}, OK, "(odom#1a2b), which are not compared with the present ones. Set pose.map_name"),
])
def test_poses_say_how_many_frames_have_one_and_what_to_do_about_the_others(
    changes: dict[str, Any], level: bytes, reason: str
) -> None:
    status = found(replace(HEALTH, pose=replace(POSE, **changes)))["pose"]
    assert status.level == level and reason in status.message


@pytest.mark.parametrize(("delay", "cause", "reason"), [
    (3600.0, "age", "3595.0 s behind those of the images"), (-95.0, "age", "100.0 s ahead of those of the images"),
    (3600.0, "missing", "different clocks"), (5.9, "age", "increase pose.max_age_s"),
    (3600.0, "jump", "pose.max_speed")])
def test_poses_of_another_clock_than_the_images_are_named_where_that_explains_the_cause(
    delay: float, cause: str, reason: str
) -> None:
    health = replace(HEALTH, cameras=[replace(CAMERA, delay=5.0)])
    status = found(replace(health, pose=replace(POSE, delay=delay, lately=poses(0, **{cause: 5}))))["pose"]
    assert status.level == WARN and reason in status.message


def test_the_status_of_poses_lists_every_cause_and_is_missing_without_a_source() -> None:
    values = {value.key: value.value for value in found(replace(HEALTH, pose=POSE))["pose"].values}
    assert values["frames without a pose, age"] == "10" and values["frames without a pose, transform"] == "0"
    assert values["share of frames with a pose"] == "0.900" and values["from"] == "/odom (nav_msgs/msg/Odometry)"
    assert "pose" not in found(HEALTH) and "pose" not in found(replace(HEALTH, state="inactive", pose=POSE))


def test_percentiles_and_rates_cover_the_window() -> None:
    metrics = Metrics(seconds=60.0)
    for value in range(1, 101):
        metrics.add("frame", float(value))
    values = metrics.percentiles("frame")
    assert (values.count, values.p50, values.p95, values.maximum, values.newest) == (100, 50.0, 95.0, 100.0, 100.0)
    assert metrics.rate("frame", 5.0) == 20.0
    assert metrics.rate("other") == 0.0 and metrics.percentiles("other").count == 0
    assert Metrics(seconds=-1.0).percentiles("frame").count == 0
