"""Cameras for a soak: cheap pictures with something moving, published at their rates, and made faulty on demand."""

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
Damage = Callable[[Any], None]
"""Changes a message into a faulty one."""


@dataclass
class CameraPlan:
    """One camera of the soak."""

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
        """What it shows at a time in seconds, RGB uint8 [height, width, 3]."""
        ...


class Room:
    """A grey room with a few coloured things that move."""

    def __init__(self, seed: int) -> None:
        self._objects = np.random.default_rng(seed).uniform(0.1, 0.9, (len(COLOURS), 4))
        """Place and speed of each thing, in shares of the picture."""

    def picture(self, now: float, width: int, height: int) -> Rgb:
        """The room at a time in seconds, RGB uint8 [height, width, 3]."""
        picture = np.full((height, width, 3), 110, np.uint8)
        for (x, y, speed_x, speed_y), colour in zip(self._objects, COLOURS, strict=True):
            left = int(abs((x + speed_x * now / 7) % 2 - 1) * 0.8 * width)
            top = int(abs((y + speed_y * now / 9) % 2 - 1) * 0.8 * height)
            cv2.rectangle(picture, (left, top), (left + width // 5, top + height // 5), colour, -1)
        return picture


def raw_message(picture: Rgb) -> Image:
    """An rgb8 message of a picture, without a header."""
    message = Image(height=picture.shape[0], width=picture.shape[1], encoding="rgb8", step=3 * picture.shape[1])
    message.data.frombytes(picture.tobytes())
    return message


class SoakCamera:
    """Publishes one camera's pictures when they are due. Used by one thread."""

    def __init__(self, node: Node, plan: CameraPlan, seed: int, scene: Scene | None = None) -> None:
        """:param seed: of the room that it sees, unless a scene is given."""
        self.plan = plan
        self.published = 0
        self.offset = 0.0
        """Seconds added to every stamp: a clock that was set."""
        self.scale = 1.0
        """Size of the pictures, against the plan's."""
        self.quiet_until = 0.0
        self._node = node
        self._scene = scene or Room(seed)
        self._due = 0.0
        self._reliable = True
        self._publisher: Any = None
        self.renew()

    def renew(self) -> None:
        """Publish anew, reliable and best effort in turn, as a driver that was restarted with other settings."""
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)
            self._reliable = not self._reliable
        reliability = ReliabilityPolicy.RELIABLE if self._reliable else ReliabilityPolicy.BEST_EFFORT
        self._publisher = self._node.create_publisher(
            CompressedImage if self.plan.compressed else Image,
            self.plan.topic + ("/compressed" if self.plan.compressed else ""),
            QoSProfile(depth=5, reliability=reliability),
            event_callbacks=PublisherEventCallbacks(use_default_callbacks=False))

    @property
    def connected(self) -> bool:
        """Whether somebody listens."""
        return bool(self._publisher.get_subscription_count())

    def publish_due(self, now: float) -> None:
        """Publish a frame when the plan's rate asks for one; ``now`` in seconds."""
        if now >= self._due and now >= self.quiet_until:
            self._due = max(self._due + 1.0 / self.plan.rate, now - 1.0)
            self.publish(now)

    def publish(self, now: float, damage: Damage | None = None) -> None:
        """Publish one frame, damaged if wanted."""
        size = round(self.plan.width * self.scale), round(self.plan.height * self.scale)
        message = self._message(self._scene.picture(now, *size))
        message.header.stamp = to_stamp(now + self.offset)
        message.header.frame_id = f"{self.plan.name}_optical_frame"
        if damage is not None:
            damage(message)
        self._publisher.publish(message)
        self.published += 1

    def _message(self, picture: Rgb) -> Any:
        if self.plan.compressed:
            message = CompressedImage(format="rgb8; jpeg compressed bgr8")
            message.data.frombytes(cv2.imencode(".jpg", picture[..., ::-1])[1].tobytes())
            return message
        return raw_message(picture)
