"""Plays one image topic of a recording over DDS at its true pace, with the stamps that it holds, from its own process.

``python -m ros_kvstream.recordings.replay BAG`` prints a JSON line per event: {"waiting": topic}, then
{"frame": i, "stamp": seconds} right after frame i was published, then {"published": n}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ros_kvstream.errors import KvStreamError
from ros_kvstream.recordings.bags import ImageTopic, find_image_topic, header_stamp, read_messages

CLOCK_PERIOD = 0.1
"""Longest time between two messages on /clock, seconds."""
SETTLE = 0.3
"""Seconds between finding a subscriber and the first frame: the subscriber must find the publisher too."""
LINGER = 0.5
"""Seconds that the publisher stays after its last frame, so that it still arrives."""


class Player:
    """Publishes serialized image messages when they are due, and the time of the recording on /clock beside them."""

    def __init__(self, node: Any, topic: ImageTopic, *, clock: bool) -> None:
        """:param clock: also publish /clock, for a node that runs on the time of the recording."""
        from rclpy.qos import QoSProfile, ReliabilityPolicy
        from rosgraph_msgs.msg import Clock
        from sensor_msgs.msg import CompressedImage, Image

        kind = CompressedImage if topic.transport == "compressed" else Image
        # Reliable: a subscriber may ask for that or for best effort, and gets what it asks for.
        self._images = node.create_publisher(
            kind, topic.played_as, QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
        )
        self._clock = node.create_publisher(Clock, "/clock", 10) if clock else None
        self._begun: tuple[float, int] | None = None

    @property
    def subscribers(self) -> int:
        """How many listen to the images."""
        return int(self._images.get_subscription_count())

    def publish(self, received: int, data: bytes) -> None:
        """Wait until the frame is due, then publish it; the first is due at once.

        :param received: nanoseconds at which the recorder received it.
        """
        if self._begun is None:
            self._begun = (time.monotonic(), received)
        due = self._begun[0] + (received - self._begun[1]) / 1e9
        while (left := due - time.monotonic()) > 0:
            self._tell_time()
            time.sleep(min(left, CLOCK_PERIOD))
        self._tell_time()
        self._images.publish(bytes(data))  # serialized already

    def _tell_time(self) -> None:
        if self._clock is None or self._begun is None:
            return
        from builtin_interfaces.msg import Time
        from rosgraph_msgs.msg import Clock

        seconds, nanoseconds = divmod(self._begun[1] + int((time.monotonic() - self._begun[0]) * 1e9), 10**9)
        self._clock.publish(Clock(clock=Time(sec=seconds, nanosec=nanoseconds)))


def _say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def play(path: Path, topic: ImageTopic, *, seconds: float, clock: bool, patience: float) -> int:
    """Play the topic once somebody listens; returns the number of frames published.

    :param seconds: only the first so many; 0: all. :param patience: seconds to wait for a subscriber.
    """
    import rclpy

    node = rclpy.create_node("kvstream_replay")
    try:
        player = Player(node, topic, clock=clock)
        _say(waiting=topic.played_as)
        deadline = time.monotonic() + patience
        while not player.subscribers:
            if time.monotonic() > deadline:
                raise KvStreamError(f"nobody subscribed to {topic.played_as} within {patience:g} s")
            time.sleep(0.02)
        time.sleep(SETTLE)
        count = 0
        for received, data in read_messages(path, topic, seconds):
            player.publish(received, data)
            _say(frame=count, stamp=header_stamp(data))
            count += 1
        time.sleep(LINGER)
        _say(published=count)
        return count
    finally:
        node.destroy_node()


def main() -> int:
    """Run as a process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bag", type=Path)
    parser.add_argument("--topic", default="", help="image topic (the only one)")
    parser.add_argument("--seconds", type=float, default=0.0, help="play only the first so many (all)")
    parser.add_argument("--clock", action="store_true", help="publish the time of the recording on /clock")
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
