# SPDX-License-Identifier: Apache-2.0
"""Replay of a bag's images over DDS at the recorded pace, with their recorded stamps.

``python -m ros_kvstream.recordings.replay BAG`` plays one image topic from its own process. It prints one JSON object
per line: {"waiting": topic}, then {"frame": i, "stamp": seconds} after each published frame, then {"published": n}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ros_kvstream.errors import KvStreamError
from ros_kvstream.recordings.bag_salvage import RawMessage
from ros_kvstream.recordings.bags import ONE_CAMERA, BagSource, ImageTopic, find_image_topic

CLOCK_PERIOD = 0.1
"""Longest time between two messages on /clock, seconds."""
SETTLE = 0.3
"""Seconds between finding a subscriber and the first frame: the subscriber must discover the publisher too."""
LINGER = 0.5
"""Seconds that the publisher stays after its last frame, so that it still arrives."""


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

    def publish(self, camera: str, message: RawMessage) -> None:
        """Wait until the message is due, then publish it; the first is due at once."""
        if self._begun is None:
            self._begun = (time.monotonic(), message.received)
        due = self._begun[0] + (message.received - self._begun[1]) / 1e9 / self._rate
        while (left := due - time.monotonic()) > 0:
            self._publish_clock()
            time.sleep(min(left, CLOCK_PERIOD))
        self._publish_clock()
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


def _print(**event: object) -> None:
    print(json.dumps(event), flush=True)


def play(path: Path, topic: ImageTopic, *, seconds: float, clock: bool, patience: float) -> None:
    """Play the topic as soon as there is a subscriber.

    :param seconds: play only the first so many; 0: all. :param patience: seconds to wait for a subscriber.
    """
    import rclpy

    node = rclpy.create_node("kvstream_replay")
    try:
        player = Player(node, {ONE_CAMERA: topic}, clock=clock)
        _print(waiting=topic.played_as)
        deadline = time.monotonic() + patience
        while not player.subscribed():
            if time.monotonic() > deadline:
                raise KvStreamError(f"nobody subscribed to {topic.played_as} within {patience:g} s")
            time.sleep(0.02)
        time.sleep(SETTLE)
        count, first = 0, None
        source = BagSource(path, ((ONE_CAMERA, topic.name),))
        for stamp, camera, message in source.messages(lambda note: print(note, file=sys.stderr)):
            first = message.received if first is None else first
            if seconds and message.received - first > seconds * 1e9:
                break
            player.publish(camera, message)
            _print(frame=count, stamp=stamp)
            count += 1
        time.sleep(LINGER)
        _print(published=count)
    finally:
        node.destroy_node()


def main() -> int:
    """Run as a process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bag", type=Path)
    parser.add_argument("--topic", default="", help="image topic (the only one)")
    parser.add_argument("--seconds", type=float, default=0.0, help="play only the first so many seconds (all)")
    parser.add_argument("--clock", action="store_true", help="publish the recorded time on /clock")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for a subscriber")
    options = parser.parse_args()

    import rclpy
    from rclpy.executors import ExternalShutdownException

    rclpy.init()
    try:
        topic = find_image_topic(options.bag, options.topic)
        play(options.bag, topic, seconds=options.seconds, clock=options.clock, patience=options.patience)
    except KvStreamError as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyboardInterrupt, ExternalShutdownException, BrokenPipeError):
        return 1
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
