# SPDX-License-Identifier: Apache-2.0
"""A real recording through a real node: 1,000 frames, all accounted for, the budget never passed, no growth."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rosbags.rosbag2 import Reader
from sensor_msgs.msg import CompressedImage
from support.running_node import RunningNode, running_node

from ros_kvstream.models.loading import TINY_FOLDER
from ros_kvstream.msg import KvStats
from ros_kvstream.node.messages import to_seconds

BAG = Path(__file__).parents[1] / "data" / "donkey_track"
TOPIC = "/camera/image_raw/compressed"
FRAMES, FIRST, LAST = 1000, 1_700_000_000.0, 1_700_000_049.95
GROUP, SLOWEST = 8, 20.0
"""Frames published at once; the next follow when these are accounted for, at the recording's own rate at the latest."""
BUDGET_MIB = 0.35 if TINY_FOLDER.is_dir() else 0.2
"""So little that the arena is full for most of the recording."""


def frames() -> Iterator[bytes]:
    """The recording's images as they lie in the bag (serialized messages)."""
    with Reader(BAG) as reader:
        images = [connection for connection in reader.connections if connection.topic == TOPIC]
        for _, _, data in reader.messages(images):
            yield data


class Replay:
    """What the whole replay showed: figures at every frame that brought new ones, and the answers."""

    def __init__(self, node: RunningNode) -> None:
        self.figures: list[KvStats] = []
        node.until_active()
        camera = node.camera(TOPIC, CompressedImage)
        self.begin = time.monotonic()
        for number, data in enumerate(frames()):
            camera.publish(data)
            if (number + 1) % GROUP == 0:
                self._wait(node, number + 1)
            if number == FRAMES // 2:
                middle = node.ask_later("what is there ?", max_new_tokens=8)
        self.final = node.until_stats(lambda now: now.frames_published == now.frames_seen + sum(now.drop_counts)
                                      and to_seconds(now.newest_stamp) >= LAST - 1e-3)
        node.until(middle.done, "the answer in the middle")
        self.middle = middle.result()
        self.end = node.ask("what is there ?", max_new_tokens=8)
        self.output = node.output()

    def _wait(self, node: RunningNode, published: int) -> None:
        """Spin until all is accounted for or it is time for more, noting every new set of figures."""
        end = self.begin + published / SLOWEST
        while (left := end - time.monotonic()) > 0:
            node.executor.spin_once(timeout_sec=left)
            if node.stats is not None and node.stats.frames_seen + sum(node.stats.drop_counts) >= published:
                end = 0.0
            if node.stats is not None and (not self.figures or node.stats is not self.figures[-1]):
                self.figures.append(node.stats)

    def at(self, frame: int) -> KvStats:
        """The first figures with at least this many frames published."""
        return next(stats for stats in [*self.figures, self.final] if stats.frames_published >= frame)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Replay:
    model = "tiny" if TINY_FOLDER.is_dir() else random_model
    parameters = {"model": model, "memory.budget_mib": BUDGET_MIB, "memory.policy": "sliding_window",
                  "memory.max_question_tokens": 32, "memory.max_answer_tokens": 16,
                  "ingest.queue_frames": 2 * GROUP, "diagnostics.period_s": 0.05,
                  f"qos_overrides.{TOPIC}.subscription.depth": 2 * GROUP,
                  "camera.topic": "/camera/image_raw", "camera.transport": "compressed"}
    with running_node(tmp_path_factory.mktemp("donkey"), parameters) as node:
        return Replay(node)


def test_all_frames_are_accounted_for(replay: Replay) -> None:
    final = replay.final
    assert final.frames_published == FRAMES
    assert final.frames_seen + sum(final.drop_counts) == FRAMES
    assert final.frames_kept + final.frames_gated == final.frames_seen > FRAMES // 20
    assert to_seconds(final.newest_stamp) == pytest.approx(LAST, abs=1e-3)


def test_the_budget_is_never_passed_though_the_memory_is_full(replay: Replay) -> None:
    assert replay.final.compactions > 0
    for stats in [*replay.figures, replay.final]:
        assert stats.budget_bytes == int(BUDGET_MIB * 2**20)
        assert stats.used_bytes <= stats.peak_bytes <= stats.allocated_bytes <= stats.budget_bytes


def test_the_process_does_not_grow_between_frame_300_and_the_end(replay: Replay) -> None:
    early, late = replay.at(300).process_bytes, replay.final.process_bytes
    assert late < 1.02 * early


def test_a_question_in_the_middle_is_answered_about_the_middle(replay: Replay) -> None:
    assert replay.middle.success, replay.middle.message
    middle = (FIRST + LAST) / 2
    assert abs(to_seconds(replay.middle.asked_at) - middle) < 5.0
    assert replay.middle.evidence
    assert all(FIRST <= to_seconds(found.stamp) <= to_seconds(replay.middle.asked_at) + 1e-6
               for found in replay.middle.evidence)


def test_a_question_at_the_end_is_answered_about_the_end(replay: Replay) -> None:
    assert replay.end.success, replay.end.message
    assert to_seconds(replay.end.asked_at) == pytest.approx(LAST, abs=1e-3)
    assert replay.end.memory.questions == 2
    assert "Traceback" not in replay.output
