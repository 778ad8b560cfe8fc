# SPDX-License-Identifier: Apache-2.0
"""How often waiting frames are looked for: always while that is quick, with pauses where it takes long in vain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sensor_msgs.msg import Image

from ros_kvstream.node import frame_poses
from ros_kvstream.node.frame_poses import LOOK_SHARE, FramePoses
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.settings import PoseSettings

MEMORY: Any = SimpleNamespace(place=lambda *_: None, maps=set)
FRAMES = 100


class SlowSource:
    """Never knows a pose; each look advances the clock that the module reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.looks, self.seconds = 1000.0, 0, seconds
        monkeypatch.setattr(frame_poses, "time", SimpleNamespace(monotonic=lambda: self.now))

    def at(self, query: Any, *, final: bool) -> None:
        self.looks += 1
        self.now += self.seconds


def waiting(source: Any) -> FramePoses:
    """Poses of FRAMES frames that wait for a minute."""
    poses = FramePoses(source, PoseSettings(source="tf", max_age_s=60.0))
    for number in range(FRAMES):
        poses.add(QueuedFrame("camera", Image(), 1.0, source.now), number)
    return poses


def test_quick_looks_are_never_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SlowSource(monkeypatch, 1e-6)
    poses = waiting(source)
    for _ in range(20):
        poses.resolve(MEMORY)
    assert source.looks == 20 * FRAMES and poses.waiting == FRAMES


def test_long_looks_take_a_tenth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SlowSource(monkeypatch, 1e-3)
    poses, begin = waiting(source), source.now
    while source.now < begin + 20.0:
        poses.resolve(MEMORY)
        source.now += 0.005
    assert 0 < source.looks * source.seconds <= 1.1 * LOOK_SHARE * (source.now - begin)
    assert poses.waiting == FRAMES
