# SPDX-License-Identifier: Apache-2.0
"""~/kept_tokens: the newest frame with the patches that the memory keeps lit, remembered moments below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
"""Share of layers and KV heads that keep each patch, 0 - 1, [rows, columns]."""
WIDTH = 480
"""Pixels across the whole picture."""
MOMENTS = 8
"""Remembered moments in the strip."""
STORED = 64
"""Small pictures of frames that are held at most; when more are remembered, every second one goes."""
PERIOD = 0.5
"""Seconds between two pictures at least."""
DARK = 0.25
"""Brightness of a patch that is kept nowhere."""


@dataclass(frozen=True)
class _Moment:
    stamp: float
    picture: Rgb


class KeptTokens:
    """Draws while somebody looks. Runs in the worker's thread, since it asks the memory."""

    def __init__(self, node: LifecycleNode) -> None:
        self._publisher = node.create_lifecycle_publisher(Image, "~/kept_tokens", 1)
        self._moments: dict[int, _Moment] = {}
        self._drawn = 0.0

    def observed(self, frame: QueuedFrame, pixels: Rgb, observation: Observation,
                 kept_patches: Callable[[Iterable[int]], Mapping[int, Shares]]) -> None:
        """Take a frame that the memory took; publish a picture when one is due and somebody subscribed.

        :param kept_patches: frame ids -> shares, of those frames of which something is still kept.
        """
        if not self._publisher.is_activated or self._publisher.get_subscription_count() == 0:
            self._moments.clear()
            return
        if observation.kept:
            self._moments[observation.frame_id] = _Moment(frame.stamp, _fit(pixels, WIDTH // MOMENTS))
        now = time.monotonic()
        if now - self._drawn < PERIOD:
            return
        self._drawn = now
        shares = kept_patches([*self._moments, observation.frame_id])
        self._forget(shares)
        picture = draw(pixels, shares.get(observation.frame_id), [
            (moment.picture, shares[frame_id]) for frame_id, moment in spread_out(self._moments, MOMENTS)])
        self._publisher.publish(_message(picture, frame))

    def _forget(self, shares: Mapping[int, Shares]) -> None:
        """Drop the moments that the memory has evicted, and every second one when there are too many."""
        held = [frame_id for frame_id in self._moments if frame_id in shares]
        while len(held) > STORED:
            held = held[::2]
        self._moments = {frame_id: self._moments[frame_id] for frame_id in held}


def spread_out(moments: Mapping[int, _Moment], count: int) -> list[tuple[int, _Moment]]:
    """At most ``count`` moments, evenly spread from the oldest to the newest."""
    ordered = sorted(moments.items())
    if len(ordered) <= count:
        return ordered
    return [ordered[round(index)] for index in np.linspace(0, len(ordered) - 1, count)]


def draw(pixels: Rgb, shares: Shares | None, moments: list[tuple[Rgb, Shares]]) -> Rgb:
    """One picture, WIDTH across: the frame lit by its shares, and below it the moments lit by theirs.

    :param shares: of the frame's patches; None when nothing of it is kept (it is redundant, or waits in its block).
    """
    frame = light(_fit(pixels, WIDTH), shares)
    tiles = [light(picture, share) for picture, share in moments]
    strip = np.zeros((max((tile.shape[0] for tile in tiles), default=0), WIDTH, 3), np.uint8)
    for index, tile in enumerate(tiles):
        left = index * (WIDTH // MOMENTS)
        strip[: tile.shape[0], left : left + tile.shape[1]] = tile
    return np.concatenate([frame, strip])


def light(pixels: Rgb, shares: Shares | None) -> Rgb:
    """Darken each patch by how little of it is kept: all kept is unchanged, nothing kept is DARK."""
    height, width = pixels.shape[:2]
    if shares is None:
        shares = np.zeros((1, 1), np.float32)
    brightness = DARK + (1.0 - DARK) * cv2.resize(shares, (width, height), interpolation=cv2.INTER_NEAREST)
    return np.asarray(pixels * brightness[..., None], dtype=np.uint8)


def _fit(pixels: Rgb, width: int) -> Rgb:
    """Scale to a width, keeping the shape."""
    height = max(1, round(pixels.shape[0] * width / pixels.shape[1]))
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _message(picture: Rgb, frame: QueuedFrame) -> Any:
    message = Image(height=picture.shape[0], width=picture.shape[1], encoding="rgb8", step=3 * picture.shape[1])
    message.data.frombytes(picture.tobytes())
    message.header.stamp = to_stamp(frame.stamp)
    message.header.frame_id = frame.message.header.frame_id
    return message
