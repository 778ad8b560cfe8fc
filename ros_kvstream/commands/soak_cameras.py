# SPDX-License-Identifier: Apache-2.0
"""Synthetic cameras for load tests: pictures with moving objects, published at their rate; faults on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from rclpy.event_handler import PublisherEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from ros_kvstream.node.images import Rgb
from ros_kvstream.node.messages import to_stamp

COLOURS = ((220, 40, 40), (40, 200, 60), (50, 70, 230), (240, 200, 40))


@dataclass(frozen=True)
class CameraPlan:
    """One camera of a load test."""

    name: str
    topic: str
    compressed: bool
    rate: float
    """Frames per second."""
    width: int
    height: int


class Scene(Protocol):
    """What a camera sees."""

    def picture(self, now: float, width: int, height: int) -> Rgb:
        """Picture at a time in seconds, RGB uint8 [height, width, 3]."""
        ...


class Room:
    """A grey room with four coloured, moving rectangles."""

    def __init__(self, seed: int) -> None:
        self._objects = np.random.default_rng(seed).uniform(0.1, 0.9, (len(COLOURS), 4))
        """Position and speed of each rectangle, as shares of the picture."""

    def picture(self, now: float, width: int, height: int) -> Rgb:
        """Picture at a time in seconds, RGB uint8 [height, width, 3]."""
        picture = np.full((height, width, 3), 110, np.uint8)
        for (x, y, speed_x, speed_y), colour in zip(self._objects, COLOURS, strict=True):
            left = int(abs((x + speed_x * now / 7) % 2 - 1) * 0.8 * width)
            top = int(abs((y + speed_y * now / 9) % 2 - 1) * 0.8 * height)
            cv2.rectangle(picture, (left, top), (left + width // 5, top + height // 5), colour, -1)
        return picture


def raw_message(picture: Rgb) -> Image:
    """An rgb8 message of a picture, with an empty header."""
    message = Image(height=picture.shape[0], width=picture.shape[1], encoding="rgb8", step=3 * picture.shape[1])
    message.data.frombytes(picture.tobytes())
    return message


def jpeg_message(picture: Rgb) -> CompressedImage:
    """A JPEG message of a picture, with an empty header."""
    message = CompressedImage(format="rgb8; jpeg compressed bgr8")
    message.data.frombytes(cv2.imencode(".jpg", picture[..., ::-1])[1].tobytes())
    return message


class SoakCamera:
    """Publishes one camera's pictures when they are due. Not thread-safe."""

    def __init__(self, node: Node, plan: CameraPlan, seed: int, scene: Scene | None = None) -> None:
        """:param seed: of the room that it sees if no scene is given."""
        self.published = 0
        self.clock_offset = 0.0
        """Seconds added to every stamp, as after setting the camera's clock."""
        self.scale = 1.0
        """Size of the pictures relative to the plan's."""
        self.silent_until = 0.0
        self._plan = plan
        self._node = node
        self._scene = scene or Room(seed)
        self._due = 0.0
        self._reliable = False
        self._publisher: Any = None
        self.restart()

    def restart(self) -> None:
        """Replace the publisher as a restarted driver does, with reliable and best-effort QoS in turn."""
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)
        self._reliable = not self._reliable
        reliability = ReliabilityPolicy.RELIABLE if self._reliable else ReliabilityPolicy.BEST_EFFORT
        self._publisher = self._node.create_publisher(
            CompressedImage if self._plan.compressed else Image,
            self._plan.topic + ("/compressed" if self._plan.compressed else ""),
            QoSProfile(depth=5, reliability=reliability),
            event_callbacks=PublisherEventCallbacks(use_default_callbacks=False))  # fmt: skip

    @property
    def connected(self) -> bool:
        """Whether the topic has a subscriber."""
        return bool(self._publisher.get_subscription_count())

    def publish_due(self, now: float) -> None:
        """Publish a frame if one is due at ``now``, in seconds."""
        if now >= self._due and now >= self.silent_until:
            self._due = max(self._due + 1.0 / self._plan.rate, now - 1.0)
            self.publish(now)

    def publish(self, now: float, damage: Callable[[Any], None] | None = None) -> None:
        """Publish one frame.

        :param damage: changes the message before it is published.
        """
        size = round(self._plan.width * self.scale), round(self._plan.height * self.scale)
        picture = self._scene.picture(now, *size)
        message: Any = jpeg_message(picture) if self._plan.compressed else raw_message(picture)
        message.header.stamp = to_stamp(now + self.clock_offset)
        message.header.frame_id = f"{self._plan.name}_optical_frame"
        if damage is not None:
            damage(message)
        self._publisher.publish(message)
        self.published += 1
