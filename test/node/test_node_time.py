# SPDX-License-Identifier: Apache-2.0
"""A node that runs by /clock: a bag that starts late, pauses and loops, and stamps of every kind. Tests go in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rosgraph_msgs.msg import Clock
from support.running_node import RunningNode, image, picture, running_node

from ros_kvstream.msg import KvStats
from ros_kvstream.node.messages import to_seconds, to_stamp

START = 1000.0
"""First time of the bag's /clock."""
DAY = 86400.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    parameters = {"model": random_model, "use_sim_time": True, "gate.mode": "off", "ingest.queue_frames": 32}
    with running_node(tmp_path_factory.mktemp("time"), parameters) as running:
        running.until_active()
        yield running


@pytest.fixture(scope="module")
def bag(node: RunningNode) -> Bag:
    return Bag(node)


class Bag:
    """Plays frames with the clock that they belong to, or either alone."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        self.frames = node.camera("/image")
        self.clock = node.client.create_publisher(Clock, "/clock", 1)
        self.number = 0

    def show(self, *stamps: float, clock: bool = False) -> KvStats:
        """Publish frames with these stamps (and the clock at each); returns the figures once all were taken."""
        before = self.node.until_stats(settled)
        for stamp in stamps:
            if clock:
                self.clock.publish(Clock(clock=to_stamp(stamp)))
            self.number += 1
            self.frames.publish(image(picture(self.number), stamp))
            self.node.spin(0.02)
        return self.node.until_stats(
            lambda now: settled(now) and now.frames_seen >= before.frames_seen + len(stamps))


def settled(stats: KvStats) -> bool:
    return stats.queue_length == 0


def newest(stats: KvStats) -> float:
    return to_seconds(stats.newest_stamp)


def reports_keep_coming(node: RunningNode) -> bool:
    """Whether two more reports arrive."""
    for _ in range(2):
        node.diagnostics.clear()
        node.status("state")
    return True


def evidence(node: RunningNode, **limits: Any) -> list[float]:
    """Stamps of the frames that an answer rests on."""
    response = node.ask("what is there ?", max_new_tokens=1, **limits)
    assert response.success, response.message
    return sorted(to_seconds(frame.stamp) for frame in response.evidence)


def test_before_the_bag_starts_the_node_reports_and_takes_frames_without_stamps(node: RunningNode, bag: Bag) -> None:
    assert reports_keep_coming(node)
    stats = bag.show(0.0, 0.0)
    assert stats.frames_seen == 2 and newest(stats) == 0.0 and stats.header.stamp.sec == 0
    node.until_status("ingest", lambda status: "no /clock" in status.message)
    assert node.ask("what is there ?", max_new_tokens=1).success


def test_a_bag_that_starts_late_is_taken_at_its_own_time(node: RunningNode, bag: Bag) -> None:
    stats = bag.show(START, START + 0.5, START + 1.0, clock=True)
    assert newest(stats) == START + 1.0 and stats.frames_remembered == 5
    node.until_status("ingest", lambda status: "no /clock" not in status.message)
    node.until_stats(lambda now: to_seconds(now.header.stamp) == START + 1.0)
    assert to_seconds(node.ask("what is there ?", max_new_tokens=1).asked_at) == START + 1.0


def test_a_frame_without_a_stamp_gets_the_time_of_the_bag(bag: Bag) -> None:
    assert newest(bag.show(0.0)) == START + 1.0


def test_while_the_bag_is_paused_reports_go_on_and_questions_are_about_the_last_frame(
        node: RunningNode, bag: Bag) -> None:
    assert node.set_parameter("diagnostics.no_image_s", 0.3) == ""
    node.until_status("camera camera", lambda status: status.level != DiagnosticStatus.OK
                      and "no image for" in status.message)  # by the machine's clock: /clock stands still
    assert reports_keep_coming(node)
    assert to_seconds(node.until_stats(settled).header.stamp) == START + 1.0
    assert to_seconds(node.ask("what is there ?", max_new_tokens=1).asked_at) == START + 1.0
    stats = bag.show(START + 1.5, clock=True)
    assert newest(stats) == START + 1.5
    assert node.set_parameter("diagnostics.no_image_s", 60.0) == ""
    node.until_status("camera camera", lambda status: status.level == DiagnosticStatus.OK)


def test_a_bag_that_loops_loses_nothing_and_now_is_the_new_round(node: RunningNode, bag: Bag) -> None:
    before = node.until_stats(settled)
    stats = bag.show(START, START + 0.5, clock=True)
    assert stats.frames_remembered == before.frames_remembered + 2
    assert newest(stats) == START + 0.5 < newest(before)
    response = node.ask("what is there ?", max_new_tokens=1)
    assert response.success and to_seconds(response.asked_at) == START + 0.5
    # Both rounds are there, the one before included.
    assert set(evidence(node, since=to_stamp(START + 0.9))) <= {START + 1.0, START + 1.5}
    node.until_stats(lambda now: to_seconds(now.header.stamp) == START + 0.5)  # the clock went back too


def test_frames_with_the_same_stamp_are_all_taken(node: RunningNode, bag: Bag) -> None:
    before = node.until_stats(settled)
    stats = bag.show(START + 2.0, START + 2.0, START + 2.0)
    assert stats.frames_seen == before.frames_seen + 3 and newest(stats) == START + 2.0


def test_a_frame_from_the_future_is_reported_and_does_not_stay_now(node: RunningNode, bag: Bag) -> None:
    before = node.until_stats(settled)
    stats = bag.show(START + DAY)
    assert newest(stats) == START + DAY and stats.frames_remembered == before.frames_remembered + 1
    status = node.until_status("ingest", lambda status: status.level == DiagnosticStatus.WARN)
    assert "of another clock" in status.message
    stats = bag.show(START + 3.0, clock=True)
    assert newest(stats) == START + 3.0 and stats.frames_remembered == before.frames_remembered + 2
    assert to_seconds(node.ask("what is there ?", max_new_tokens=1).asked_at) == START + 3.0
    node.until_status("ingest", lambda status: status.level == DiagnosticStatus.OK)


def test_frames_a_little_ahead_of_the_clock_are_no_fault(node: RunningNode, bag: Bag) -> None:
    bag.show(START + 3.2, START + 3.4)
    node.diagnostics.clear()
    assert node.status("ingest").level == DiagnosticStatus.OK


def test_everything_was_accounted_for(node: RunningNode) -> None:
    stats = node.until_stats(settled)
    assert stats.frames_published == stats.frames_seen + sum(stats.drop_counts)
    assert sum(stats.drop_counts) == 0 and node.lifecycle_state() == "active"
