# SPDX-License-Identifier: Apache-2.0
"""Bag reader: image topics, serialized messages and RGB frames of ROS 2 bags, damaged ones included."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import FrameError, RecordingError
from ros_kvstream.recordings.bag_poses import AUTO, FROM_TF, NONE, BagPoses, choose_poses, deserialize
from ros_kvstream.recordings.bag_salvage import (
    SUFFIXES,
    RawMessage,
    error_text,
    has_index,
    salvage,
    salvage_in_order,
    storage_files,
    unpacked,
)
from ros_kvstream.recordings.frame_sources import StreamFrame
from ros_kvstream.records import Note, ignore
from ros_kvstream.settings import require, require_finite

IMAGE_TYPES = {"sensor_msgs/msg/Image": "raw", "sensor_msgs/msg/CompressedImage": "compressed"}
"""Message types that hold an image, with the name of their transport."""
ONE_CAMERA = "camera"
"""Camera name of a bag with one image topic; the same as the node's default."""
HEADER_BYTES = 12
"""Minimum size of a serialized message with a stamp."""
VIDEO_FORMATS = re.compile(r"CompressedVideo|ffmpeg|theora|h\.?26[45]|hevc|avc|vp[89]|av1", re.I)
"""Names of types and formats that hold packets of a video."""
DECODE = "packets of a video: record them as JPEG (MJPEG), or decode them to sensor_msgs/msg/Image"
KEPT_TOKENS = "/kept_tokens"
"""End of the topic on which the node publishes pictures of what it keeps."""
BACKWARD_SECONDS = 1.0
"""Header stamps that go back by more than this are unusable; messages can arrive out of order within it."""
REPEATED_STAMPS = 2
"""Number of repetitions of a header stamp from which on the stamps of its topic are unusable."""
CLOCK_SECONDS = 10.0
"""Topics whose header stamps differ by more than this from each other, at the same time of reception, use different
clocks."""
_COMMON_ENDS = ("/compressed", "/image_raw", "/image_color", "/image_rect", "/image_rect_color", "/image")


class BagError(RecordingError):
    """A bag cannot be read, or lacks the requested image topic."""


@dataclass(frozen=True)
class ImageTopic:
    """One image topic of a bag."""

    name: str
    type: str
    """Message type, a key of IMAGE_TYPES."""
    frames: int
    seconds: float
    """From the bag's first message to its last."""

    @property
    def transport(self) -> str:
        """Value of the parameter <camera>.transport."""
        return IMAGE_TYPES[self.type]

    @property
    def played_as(self) -> str:
        """Topic on which it is replayed: that of a compressed one ends with /compressed, as subscribers expect."""
        suffix = "" if self.transport == "raw" or self.name.endswith("/compressed") else "/compressed"
        return self.name + suffix

    def __str__(self) -> str:
        return f"{self.name} ({self.transport}, {self.frames} frames)"


class _Contents(NamedTuple):
    """Topics of a bag."""

    counts: Counter[tuple[str, str, str]]
    """Number of messages by (topic, type, serialization format)."""
    nanoseconds: int
    """From the first message to the last."""
    damages: list[str]
    """What cannot be read."""


def image_topics(path: Path, note: Note = ignore) -> dict[str, ImageTopic]:
    """Return the image topics of a bag by name. A bag without an index is read to its end for this."""
    return _image_topics(_contents(path, note))


def _image_topics(contents: _Contents) -> dict[str, ImageTopic]:
    return {
        topic: ImageTopic(topic, kind, count, contents.nanoseconds / 1e9)
        for (topic, kind, encoding), count in contents.counts.items() if kind in IMAGE_TYPES and encoding == "cdr"
    }  # fmt: skip


def _contents(path: Path, note: Note) -> _Contents:
    """Topics of a bag; raises BagError where the path holds none."""
    if not path.exists():
        raise BagError(f"bag = {str(path)!r}: no such file or folder")
    packed = [path] if path.suffix == ".zstd" else sorted(path.glob("*.zstd"))
    if path.is_file() and path.suffix not in SUFFIXES and not packed:
        raise BagError(f"bag = {str(path)!r}: must be a folder or a file ending with {' or '.join(SUFFIXES)}")
    counts = Counter[tuple[str, str, str]]()
    try:
        with _reader(path) as reader:
            for connection in reader.connections:
                counts[connection.topic, connection.msgtype, connection.ext.serialization_format] += connection.msgcount
            return _Contents(counts, reader.duration if reader.message_count else 0, [])
    except Exception as error:  # noqa: BLE001 - a damaged file can fail in any way
        unindexed = _unindexed(path, error)
    if packed and (path in packed or not storage_files(path)):
        raise BagError(f"bag = {str(path)!r}: is compressed with zstd and cannot be read so; unpack it: "
                       f"zstd -d {packed[0].name}")  # fmt: skip
    if not storage_files(path):
        held = "a metadata.yaml alone" if (path / "metadata.yaml").exists() else "no ROS 2 bag"
        raise BagError(f"bag = {str(path)!r}: the folder holds {held}; its .mcap or .db3 files are needed")
    note(unindexed)
    damages: list[str] = []
    counts.clear()
    first, last = math.inf, -math.inf
    for message in salvage(path, damages.append):  # the reader of the frames notes the damages
        counts[message.topic, message.type, message.encoding] += 1
        first, last = min(first, message.received), max(last, message.received)
    return _Contents(counts, int(last - first) if counts else 0, damages)


def no_image_topic(path: Path) -> BagError:
    """Error about a bag without an image topic: lists its topics, and what makes those with pictures readable."""
    contents = _contents(path, ignore)
    listed = [f"{topic} ({kind}, {encoding}, {count} messages){_conversion(kind, encoding)}"
              for (topic, kind, encoding), count in contents.counts.items()]  # fmt: skip
    damages = f" {'; '.join(contents.damages)}." if contents.damages else ""
    return BagError(f"bag = {str(path)!r} has no image topic (sensor_msgs/msg/Image or CompressedImage, cdr);{damages} "
                    f"its topics: {'; '.join(listed) or 'none'}")  # fmt: skip


def _conversion(kind: str, encoding: str) -> str:
    """What makes the pictures of a topic readable; empty where it seems to hold none."""
    if not re.search(r"image|video|ffmpeg|theora|jpeg|h\.?26[45]", kind, re.I) or kind.endswith("CameraInfo"):
        return ""
    if encoding in ("ros1", "ros1msg") or kind in ("sensor_msgs/Image", "sensor_msgs/CompressedImage"):
        return ": ROS 1; convert the recording with rosbags-convert"
    if VIDEO_FORMATS.search(kind):
        return f": {DECODE}"
    return ": convert its pictures to sensor_msgs/msg/CompressedImage"


def find_image_topic(path: Path, name: str = "", note: Note = ignore) -> ImageTopic:
    """Return the image topic of that name, or the only one; raises BagError that lists the topics."""
    topics = image_topics(path, note)
    if not topics:
        raise no_image_topic(path)
    chosen = [topic for topic in topics.values()
              if (topic.name == name if name else not topic.name.endswith(KEPT_TOKENS))]  # fmt: skip
    if len(chosen) != 1:
        problem = f"has no image topic {name!r}" if name else f"has {len(topics)} image topics"
        raise BagError(f"bag = {str(path)!r} {problem}; its image topics: {_listed(topics)}")
    if not chosen[0].frames:
        raise BagError(f"bag = {str(path)!r}: topic {chosen[0].name} holds no message")
    return chosen[0]


def _listed(topics: dict[str, ImageTopic]) -> str:
    return ", ".join(map(str, topics.values())) or "none"


def read_messages(path: Path, topics: Collection[str], note: Note = ignore) -> Iterator[RawMessage]:
    """Yield the messages of these topics by time of reception; where the index fails, the rest is salvaged."""
    newest, at_newest = -1, set[str]()
    try:
        with _reader(path) as reader:
            if not has_index(path):
                raise BagError("the positions of its messages are not listed")
            connections = [connection for connection in reader.connections if connection.topic in topics]
            for connection, received, data in reader.messages(connections) if connections else ():
                if received != newest:
                    newest, at_newest = received, set()
                at_newest.add(connection.topic)
                yield RawMessage(connection.topic, connection.msgtype, received, unpacked(bytes(data)))
        return
    except Exception as error:  # noqa: BLE001 - a damaged file can fail in any way
        unindexed = _unindexed(path, error)
    notes: list[str] = []
    for message in salvage_in_order(path, topics, notes.append):
        if message.received > newest or (message.received == newest and message.topic not in at_newest):
            yield message
    for text in notes or [unindexed]:
        note(text)


def _unindexed(path: Path, error: Exception) -> str:
    return f"{path.name} has no index that can be used ({error_text(error)}): it is read from its start to its end"


def header_stamp(data: bytes) -> float:
    """Header stamp in seconds of a serialized image message of either type (CDR; the header comes first)."""
    whole, nanoseconds = struct.unpack_from(_stamp_format(data), data, 4)
    return float(whole + nanoseconds / 1e9)


def header_frame_id(data: bytes) -> str:
    """Header frame_id of a serialized image message of either type; empty where it cannot be read."""
    with suppress(struct.error, UnicodeDecodeError):
        (length,) = struct.unpack_from("<I" if data[1] & 1 else ">I", data, HEADER_BYTES)
        return data[HEADER_BYTES + 4 : HEADER_BYTES + 4 + length].rstrip(b"\0").decode().lstrip("/")
    return ""


def with_stamp(data: bytes, nanoseconds: int) -> bytes:
    """Copy of a serialized image message with another header stamp."""
    return data[:4] + struct.pack(_stamp_format(data), *divmod(nanoseconds, 10**9)) + data[HEADER_BYTES:]


def _stamp_format(data: bytes) -> str:
    """Format of a stamp in the byte order of a serialized message."""
    return "<iI" if data[1] & 1 else ">iI"


@lru_cache(maxsize=1024)
def stamp_fault(path: Path, topics: frozenset[str], files: tuple[tuple[Path, int], ...]) -> str:
    """Return why the header stamps of these topics are unusable; empty where they are usable.

    They are unusable where those of a topic go back or stay the same, or where topics use different clocks.

    :param files: storage files with their sizes, for the cache.
    """
    newest, repeats, offsets = dict[str, float](), dict[str, int](), dict[str, float]()
    for topic, received, data in ((m.topic, m.received / 1e9, m.data) for m in read_messages(path, topics)):
        if len(data) < HEADER_BYTES:
            continue
        stamp = header_stamp(data)
        before = newest.get(topic, -math.inf)
        if stamp < before - BACKWARD_SECONDS:
            return f"the header stamps of {topic} go back by {before - stamp:g} s at {before:g} s"
        repeats[topic] = repeats.get(topic, 0) + 1 if stamp == before else 0
        if repeats[topic] == REPEATED_STAMPS:
            return f"the header stamps of {topic} stay at {stamp:g} s"
        newest[topic] = max(before, stamp)
        offsets.setdefault(topic, received - stamp)
    clocks = sorted(offsets, key=offsets.__getitem__)
    apart = offsets[clocks[-1]] - offsets[clocks[0]] if clocks else 0.0
    if apart > CLOCK_SECONDS:
        return f"the header stamps of {clocks[0]} and {clocks[-1]} are {apart:g} s apart"
    return ""


def decode_image(message: RawMessage, note: Note = ignore) -> NDArray[np.uint8]:
    """RGB image [height, width, 3] of a serialized message; raises FrameError where it holds none.

    :param note: is called with what the conversion of a 16-bit picture loses.
    """
    from ros_kvstream.node.compressed_images import compressed_to_rgb
    from ros_kvstream.node.images import image_to_rgb

    try:
        decoded = deserialize(message)
    except Exception as error:  # noqa: BLE001 - a damaged message can fail in any way
        text = f"a message of {len(message.data)} bytes cannot be deserialized ({error_text(error)})"
        raise FrameError(text) from error
    to_rgb = image_to_rgb if IMAGE_TYPES[message.type] == "raw" else compressed_to_rgb
    return to_rgb(decoded, warn=note)


def picture_size(path: Path, topic: ImageTopic) -> tuple[int, int]:
    """Height and width of the topic's first readable image; raises BagError where there is none."""
    notes: list[str] = []
    for frame in BagSource(path, ((ONE_CAMERA, topic.name),), poses=NONE).frames(notes.append):
        return frame.picture.shape[0], frame.picture.shape[1]
    raise BagError(f"bag = {str(path)!r}: {topic.name} holds no readable image. {' '.join(notes)}")


@dataclass(frozen=True)
class BagSource:
    """A part of a bag, from one or several cameras. No frame of it is dropped."""

    path: Path
    """Folder, .mcap or .db3 file."""
    cameras: tuple[tuple[str, str], ...] = ()
    """(camera, topic); empty: every image topic."""
    start: float = 0.0
    """Seconds after the bag's first image at which reading begins."""
    duration: float = 0.0
    """Seconds that are read; 0: to the end."""
    poses: str = AUTO
    """Where the poses of the frames come from: none, tf, a topic, or auto (tf if it connects, else the only topic)."""

    def __post_init__(self) -> None:
        require_finite("--start", self.start, 0.0, 1e9)
        require_finite("--duration", self.duration, 0.0, 1e9)
        names = [camera for camera, _ in self.cameras]
        require(len(set(names)) == len(names), "--camera", names, "different names")

    @property
    def name(self) -> str:
        """Name of the folder, or of the file without its suffix."""
        return self.path.stem if self.path.suffix in SUFFIXES else self.path.resolve().name

    def data(self) -> dict[str, Any]:
        """Plain data that identifies the frames; another bag of the same name differs by its file sizes."""
        sizes = {file.name: file.stat().st_size for file in storage_files(self.path)}
        part = {"cameras": dict(self.cameras), "start": self.start, "duration": self.duration}
        part["poses"] = self.poses
        return {"bag": self.name, "files": sizes, **part}

    def topics(self, note: Note = ignore) -> dict[str, ImageTopic]:
        """Return the topic of every camera.

        By default that is every image topic, except the node's own ~/kept_tokens and a compressed one whose raw one is
        in the bag too.

        :raises BagError: lists the image topics.
        """
        return self._chosen(image_topics(self.path, note), note)

    def _chosen(self, topics: dict[str, ImageTopic], note: Note) -> dict[str, ImageTopic]:
        """Topic of every camera among the image topics of the bag."""
        if not topics:
            raise no_image_topic(self.path)
        if missing := [topic for _, topic in self.cameras if topic not in topics]:
            text = f"bag = {str(self.path)!r} has no image topic {', '.join(missing)}"
            raise BagError(f"{text}; its image topics: {_listed(topics)}")
        if self.cameras:
            return {camera: topics[topic] for camera, topic in self.cameras}
        own = [name for name in topics if name.endswith(KEPT_TOKENS)]
        if own:
            note(f"{', '.join(own)}: left out because it holds pictures that the node made")
        if len(own) == len(topics):
            raise no_image_topic(self.path)
        doubles = [name for name in topics if name.endswith("/compressed") and name[: -len("/compressed")] in topics]
        if doubles:
            note(f"{', '.join(doubles)}: left out because the bag holds the raw images too")
        chosen = [name for name in topics if name not in (*doubles, *own)]
        names = [ONE_CAMERA] if len(chosen) == 1 else [_camera_name(name) for name in chosen]
        if len(set(names)) < len(names):
            names = [name.strip("/").replace("/", "_") for name in chosen]
        return {camera: topics[name] for camera, name in zip(names, chosen, strict=True)}

    def count(self) -> int:
        """Approximate number of frames, for progress; 0 where it is unknown."""
        with suppress(BagError):
            return sum(topic.frames for topic in self.topics().values())
        return 0

    def first_stamp(self) -> float:
        """Stamp of the bag's first image, seconds. Question times count from here."""
        for stamp, _ in self._stamped({topic.name for topic in self.topics().values()}, ignore):
            return stamp
        raise BagError(f"bag = {str(self.path)!r}: its image topics hold no readable message")

    def messages(self, note: Note = ignore) -> Iterator[tuple[float, str, RawMessage]]:
        """Yield (stamp, camera, serialized message) of every image of the part.

        Stamps are those of the headers, or the times of reception where the header stamps of the bag are unusable; the
        headers of the messages yielded agree with them.
        """
        said = set[str]()

        def once(text: str) -> None:
            if text not in said:
                said.add(text)
                note(text)

        cameras = {topic.name: camera for camera, topic in self.topics(once).items()}
        first: float | None = None
        for stamp, message in self._stamped(cameras, once):
            first = stamp if first is None else first
            seconds = stamp - first
            after_start = not self.start or seconds >= self.start
            if after_start and (not self.duration or seconds <= self.start + self.duration):
                yield stamp, cameras[message.topic], message

    def _stamped(self, topics: Collection[str], note: Note) -> Iterator[tuple[float, RawMessage]]:
        """Yield (stamp, message) of every image of these topics."""
        fault = self._stamp_fault(topics)
        if fault:
            note(f"{fault}: the times of reception are used instead of the header stamps")
        for message in read_messages(self.path, topics, note):
            if len(message.data) < HEADER_BYTES:
                note(f"{message.topic}: left out a message of {len(message.data)} bytes, which has no header")
                continue
            if fault:
                data = with_stamp(message.data, message.received)
                message = RawMessage(message.topic, message.type, message.received, data, message.encoding)
            yield header_stamp(message.data), message

    def _stamp_fault(self, topics: Collection[str]) -> str:
        sizes = tuple((file, file.stat().st_size) for file in storage_files(self.path))
        return stamp_fault(self.path, frozenset(topics), sizes)

    def _open_poses(self, note: Note) -> BagPoses | None:
        """Reader of the poses of the part; None where it has none."""
        if self.poses == NONE:
            return None
        read, contents = partial(read_messages, self.path), _contents(self.path, ignore)
        images = {topic.name for topic in self._chosen(_image_topics(contents), ignore).values()}
        by_reception = bool(self._stamp_fault(images))

        def connected() -> bool:
            for stamp, message in self._stamped(images, ignore):
                tried = BagPoses(read, FROM_TF, by_reception=by_reception)
                return tried.connects(stamp, header_frame_id(message.data))
            return False

        kinds = {topic: kind for topic, kind, encoding in contents.counts if encoding == "cdr"}
        source, text = choose_poses(self.poses, kinds, connected)
        if text:
            note(text)
        return None if source == NONE else BagPoses(read, source, by_reception=by_reception)

    def frames(self, note: Note = ignore) -> Iterator[StreamFrame]:
        """Yield every frame of the part in the order in which the recorder received them.

        :param note: is called with what cannot be read. :raises BagError: where there is no such bag or topic.
        """
        broken: dict[str, list[str]] = {}
        losses: dict[str, list[str]] = {}
        poses = self._open_poses(note)
        for stamp, camera, message in self.messages(note):
            try:
                picture = decode_image(message, losses.setdefault(message.topic, []).append)
            except FrameError as error:
                broken.setdefault(message.topic, []).append(str(error))
                continue
            pose = poses.at(stamp, message.received, header_frame_id(message.data)) if poses else None
            yield StreamFrame(stamp, camera, picture, pose)
        for text in poses.notes() if poses else ():
            note(text)
        for topic, texts in losses.items():
            if texts:
                note(f"{topic}: {len(texts)} images lose most of their levels; the first: {texts[0]}")
        for topic, errors in broken.items():
            remedy = f" ({DECODE})" if VIDEO_FORMATS.search(errors[0]) else ""
            note(f"{topic}: {len(errors)} images cannot be decoded; the first error: {errors[0]}{remedy}")


def _camera_name(topic: str) -> str:
    base = topic
    for end in _COMMON_ENDS:
        base = base.removesuffix(end)
    return (base.strip("/") or topic.strip("/")).replace("/", "_")


def _reader(path: Path) -> Any:
    from rosbags.rosbag2 import Reader

    return Reader(path)
