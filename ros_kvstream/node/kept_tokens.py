# SPDX-License-Identifier: Apache-2.0
"""~/kept_tokens: the newest frame with its kept patches bright, and a strip of remembered frames below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import Image

from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.images import Rgb
from ros_kvstream.node.messages import to_stamp
from ros_kvstream.records import Observation

Shares = NDArray[np.float32]
"""Share of layers and KV heads that keep each patch, 0 to 1, [rows, columns]."""
WIDTH = 480
"""Width of the published image in pixels."""
TILES = 8
"""Number of remembered frames in the strip."""
STORED = 64
"""Largest number of stored thumbnails; when it is exceeded, every second one is dropped."""
PERIOD = 0.5
"""Shortest time between two images in seconds."""
DARK = 0.25
"""Brightness of a patch that no layer and KV head keeps."""


class KeptTokens:
    """Draws while the topic has a subscriber. Runs in the worker's thread, because it reads the memory."""

    def __init__(self, node: LifecycleNode) -> None:
        self._publisher = node.create_lifecycle_publisher(Image, "~/kept_tokens", 1)
        self._thumbnails: dict[int, Rgb] = {}
        self._drawn = 0.0

    def observed(self, frame: QueuedFrame, pixels: Rgb, observation: Observation,
                 kept_patches: Callable[[Iterable[int]], Mapping[int, Shares]]) -> None:
        """Record a frame that the memory took; publish an image when it is due and the topic has a subscriber.

        :param kept_patches: frame ids -> shares, for the frames that still have slots.
        """
        if not self._publisher.is_activated or self._publisher.get_subscription_count() == 0:
            self._thumbnails.clear()
            return
        if observation.kept:
            self._thumbnails[observation.frame_id] = _fit(pixels, WIDTH // TILES)
        now = time.monotonic()
        if now - self._drawn < PERIOD:
            return
        self._drawn = now
        shares = kept_patches([*self._thumbnails, observation.frame_id])
        self._drop_evicted(shares)
        picture = draw(pixels, shares.get(observation.frame_id), [
            (thumbnail, shares[frame_id]) for frame_id, thumbnail in evenly_spaced(self._thumbnails, TILES)])
        self._publisher.publish(_message(picture, frame))

    def _drop_evicted(self, shares: Mapping[int, Shares]) -> None:
        """Drop the thumbnails of evicted frames, and every second one when there are too many."""
        held = [frame_id for frame_id in self._thumbnails if frame_id in shares]
        while len(held) > STORED:
            held = held[::2]
        self._thumbnails = {frame_id: self._thumbnails[frame_id] for frame_id in held}


def evenly_spaced(thumbnails: Mapping[int, Rgb], count: int) -> list[tuple[int, Rgb]]:
    """Select at most ``count`` thumbnails, evenly spaced from the oldest to the newest."""
    ordered = sorted(thumbnails.items())
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index)] for index in np.linspace(0, len(ordered) - 1, count)]


def draw(pixels: Rgb, shares: Shares | None, thumbnails: list[tuple[Rgb, Shares]]) -> Rgb:
    """Draw the frame and the strip of thumbnails, each darkened by its shares; the image is WIDTH pixels wide.

    :param shares: of the frame's patches; None when it has no slots (it is redundant, or its block is not full).
    """
    frame = light(_fit(pixels, WIDTH), shares)
    tiles = [light(picture, share) for picture, share in thumbnails]
    strip = np.zeros((max((tile.shape[0] for tile in tiles), default=0), WIDTH, 3), np.uint8)
    for index, tile in enumerate(tiles):
        left = index * (WIDTH // TILES)
        strip[: tile.shape[0], left : left + tile.shape[1]] = tile
    return np.concatenate([frame, strip])


def light(pixels: Rgb, shares: Shares | None) -> Rgb:
    """Scale the brightness of each patch from DARK (nothing kept) to 1 (everything kept)."""
    height, width = pixels.shape[:2]
    if shares is None:
        shares = np.zeros((1, 1), np.float32)
    brightness = DARK + (1.0 - DARK) * cv2.resize(shares, (width, height), interpolation=cv2.INTER_NEAREST)
    return np.asarray(pixels * brightness[..., None], dtype=np.uint8)


def _fit(pixels: Rgb, width: int) -> Rgb:
    """Resize to a width, keeping the aspect ratio."""
    height = max(1, round(pixels.shape[0] * width / pixels.shape[1]))
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _message(picture: Rgb, frame: QueuedFrame) -> Any:
    message = Image(height=picture.shape[0], width=picture.shape[1], encoding="rgb8", step=3 * picture.shape[1])
    message.data.frombytes(picture.tobytes())
    message.header.stamp = to_stamp(frame.stamp)
    message.header.frame_id = frame.message.header.frame_id
    return message
