"""Image topics of a recording, and its messages as they lie in the file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros_kvstream.errors import KvStreamError

IMAGE_TYPES = {"sensor_msgs/msg/Image": "raw", "sensor_msgs/msg/CompressedImage": "compressed"}
"""Message types that hold a picture, with the name of their transport."""


class BagError(KvStreamError):
    """A recording cannot be read, or has no such image topic."""


@dataclass(frozen=True)
class ImageTopic:
    """One image topic of a recording."""

    name: str
    type: str
    """Message type, a key of IMAGE_TYPES."""
    frames: int
    seconds: float
    """From the recording's first message to its last."""

    @property
    def transport(self) -> str:
        """Parameter <camera>.transport for it."""
        return IMAGE_TYPES[self.type]

    @property
    def played_as(self) -> str:
        """Topic that a compressed one is played on: ends with /compressed, as subscribers expect."""
        suffix = "" if self.transport == "raw" or self.name.endswith("/compressed") else "/compressed"
        return self.name + suffix


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from rosbags.highlevel import AnyReader, AnyReaderError
    from rosbags.typesys import Stores, get_typestore

    folder = path.parent if path.suffix in (".mcap", ".db3") and path.is_file() else path
    if not folder.is_dir() or not (folder / "metadata.yaml").is_file():
        raise BagError(f"bag = {str(path)!r}: no ROS 2 recording (a folder with metadata.yaml) is there")
    try:
        with AnyReader([folder], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as reader:
            yield reader
    except AnyReaderError as error:
        raise BagError(f"bag = {str(path)!r} cannot be read: {error}") from error


def find_image_topic(path: Path, topic: str = "") -> ImageTopic:
    """The image topic of that name, or the only one where no name is given; raises BagError that lists them."""
    with _opened(path) as reader:
        seconds = reader.duration / 1e9 if reader.message_count else 0.0
        found = [
            ImageTopic(name, info.msgtype, info.msgcount, seconds)
            for name, info in reader.topics.items()
            if info.msgtype in IMAGE_TYPES
        ]
    names = ", ".join(f"{image.name} ({image.transport}, {image.frames} frames)" for image in found) or "none"
    chosen = [image for image in found if image.name == topic or not topic]
    if len(chosen) != 1:
        problem = f"has no image topic {topic!r}" if topic else f"has {len(found)} image topics"
        raise BagError(f"bag = {str(path)!r} {problem}; its image topics: {names}")
    if not chosen[0].frames:
        raise BagError(f"bag = {str(path)!r}: topic {chosen[0].name} holds no message")
    return chosen[0]


def read_messages(path: Path, topic: ImageTopic, seconds: float = 0.0) -> Iterator[tuple[int, bytes]]:
    """Receive time in nanoseconds and serialized message of every frame in order, lazily.

    :param seconds: only those of the first so many seconds; 0: all.
    """
    with _opened(path) as reader:
        connections = [connection for connection in reader.connections if connection.topic == topic.name]
        first = None
        for _, received, data in reader.messages(connections):
            first = received if first is None else first
            if seconds and received - first > seconds * 1e9:
                return
            yield received, data


def header_stamp(data: bytes) -> float:
    """Header stamp in seconds of a serialized image message of either type (CDR; the header comes first)."""
    whole, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return float(whole + nanoseconds / 1e9)


def picture_size(path: Path, topic: ImageTopic) -> tuple[int, int]:
    """Height and width of the topic's first picture; raises BagError when it is none."""
    with _opened(path) as reader:
        connections = [connection for connection in reader.connections if connection.topic == topic.name]
        connection, _, data = next(iter(reader.messages(connections)))
        message = reader.deserialize(data, connection.msgtype)
    if topic.transport == "raw":
        return int(message.height), int(message.width)
    import cv2

    picture = cv2.imdecode(message.data, cv2.IMREAD_UNCHANGED)
    if picture is None:
        raise BagError(f"bag = {str(path)!r}: the first message of {topic.name} is no picture ({message.format})")
    return int(picture.shape[0]), int(picture.shape[1])
