# SPDX-License-Identifier: Apache-2.0
"""Replay of a bag's images over DDS at the recorded pace, with their recorded stamps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ros_kvstream.recordings.bag_salvage import RawMessage
from ros_kvstream.recordings.bags import ImageTopic

CLOCK_PERIOD = 0.1
"""Longest time between two messages on /clock, seconds."""


class Player:
    """Publishes serialized images when they are due and, optionally, the recorded time on /clock."""

    def __init__(self, node: Any, topics: Mapping[str, ImageTopic], *, clock: bool = False, rate: float = 1.0) -> None:
        """:param topics: by camera; :param clock: publish /clock too; :param rate: 2 plays at twice the pace."""
        from rclpy.qos import QoSProfile, ReliabilityPolicy
        from rosgraph_msgs.msg import Clock
        from sensor_msgs.msg import CompressedImage, Image

        quality = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)  # best-effort subscribers match too
        self._publishers = {
            camera: node.create_publisher(Image if topic.transport == "raw" else CompressedImage, topic.played_as,
                                          quality)
            for camera, topic in topics.items()
        }  # fmt: skip
        self._clock = node.create_publisher(Clock, "/clock", 10) if clock else None
        self._rate = rate
        self._begun: tuple[float, int] | None = None

    def subscribed(self) -> bool:
        """Whether every topic has a subscriber."""
        return all(publisher.get_subscription_count() for publisher in self._publishers.values())

    def wait(self, message: RawMessage, longest: float) -> bool:
        """Wait at most ``longest`` seconds; returns whether the message is due. The first is due at once."""
        if self._begun is None:
            self._begun = (time.monotonic(), message.received)
        self._publish_clock()
        left = self._begun[0] + (message.received - self._begun[1]) / 1e9 / self._rate - time.monotonic()
        time.sleep(min(max(left, 0.0), longest))
        return left <= longest

    def publish(self, camera: str, message: RawMessage) -> None:
        """Wait until the message is due, then publish it."""
        while not self.wait(message, CLOCK_PERIOD):
            pass
        self._publishers[camera].publish(message.data)  # serialized already

    def delay(self, seconds: float) -> None:
        """Make all further messages due later."""
        if self._begun is not None:
            self._begun = (self._begun[0] + seconds, self._begun[1])

    def _publish_clock(self) -> None:
        if self._clock is None or self._begun is None:
            return
        from builtin_interfaces.msg import Time
        from rosgraph_msgs.msg import Clock

        played = int((time.monotonic() - self._begun[0]) * self._rate * 1e9)
        seconds, nanoseconds = divmod(self._begun[1] + played, 10**9)
        self._clock.publish(Clock(clock=Time(sec=seconds, nanosec=nanoseconds)))
