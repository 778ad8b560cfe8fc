"""Pictures of a recording, each on the stamp of its header: no replay, no rate, nothing dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros_kvstream.errors import FrameError
from ros_kvstream.recordings.bag_salvage import SUFFIXES, Note, RawMessage, salvage
from ros_kvstream.recordings.bags import IMAGE_TYPES, BagError, header_stamp
from ros_kvstream.recordings.frame_sources import StreamFrame
from ros_kvstream.settings import require, require_finite

ONE_CAMERA = "camera"
"""Name of the camera of a recording with one image topic, as the node has it by default."""
HEADER_BYTES = 12
"""A serialized message with fewer bytes holds no stamp."""
_COMMON_ENDS = ("/compressed", "/image_raw", "/image_color", "/image_rect", "/image_rect_color", "/image")


@dataclass(frozen=True)
class BagSource:
    """A part of a recording, from one or several cameras."""

    path: Path
    """Folder, .mcap or .db3 file."""
    cameras: tuple[tuple[str, str], ...] = ()
    """(camera, topic); empty: every image topic."""
    start: float = 0.0
    """Seconds after the recording's first picture at which reading begins."""
    duration: float = 0.0
    """Seconds that are read; 0: to the end."""

    def __post_init__(self) -> None:
        require_finite("--start", self.start, 0.0, 1e9)
        require_finite("--duration", self.duration, 0.0, 1e9)
        names = [camera for camera, _ in self.cameras]
        require(len(set(names)) == len(names), "--camera", names, "different names")

    @property
    def name(self) -> str:
        """Name of the folder, or of the file without its ending."""
        return self.path.stem if self.path.suffix in SUFFIXES else self.path.resolve().name

    def data(self) -> dict[str, Any]:
        """What is read, as plain data; another recording of the same name has other sizes."""
        files = [self.path] if self.path.is_file() else sorted(f for f in self.path.glob("*") if f.suffix in SUFFIXES)
        sizes = {file.name: file.stat().st_size for file in files}
        part = {"cameras": dict(self.cameras), "start": self.start, "duration": self.duration}
        return {"bag": self.name, "files": sizes, **part}

    def count(self) -> int:
        """About how many frames there are, for progress; 0 where nobody knows."""
        with suppress(BagError):
            topics = image_topics(self.path, lambda _: None)
            return sum(topics[topic][1] for topic in choose_cameras(self.path, topics, self.cameras, lambda _: None))
        return 0

    def first_stamp(self) -> float:
        """Header stamp of the recording's first picture, seconds: where the questions' clock begins."""
        chosen = choose_cameras(self.path, image_topics(self.path, lambda _: None), self.cameras, lambda _: None)
        for message in read_raw(self.path, set(chosen), lambda _: None):
            if len(message.data) >= HEADER_BYTES:
                return header_stamp(message.data)
        raise BagError(f"bag = {str(self.path)!r}: its image topics hold no message that can be read")

    def frames(self, note: Note) -> Iterator[StreamFrame]:
        """Every picture of the part, in the order in which the recorder received them.

        :param note: told what could not be read. :raises BagError: where there is no such recording or topic.
        """
        broken: dict[str, list[str]] = {}
        for stamp, camera, message in self.messages(note):
            try:
                yield StreamFrame(stamp, camera, _picture(message))
            except FrameError as error:
                broken.setdefault(message.topic, []).append(str(error))
        for topic, errors in broken.items():
            note(f"{topic}: {len(errors)} pictures cannot be read, such as: {errors[0]}")

    def messages(self, note: Note) -> Iterator[tuple[float, str, RawMessage]]:
        """(header stamp, camera, message) of every picture of the part, the message as it lies in the file."""
        chosen = choose_cameras(self.path, image_topics(self.path, note), self.cameras, note)
        first: float | None = None
        for message in read_raw(self.path, set(chosen), note):
            if len(message.data) < HEADER_BYTES:
                note(f"{message.topic}: a message of {len(message.data)} bytes has no header: left out")
                continue
            stamp = header_stamp(message.data)
            first = stamp if first is None else first
            if self._is_read(stamp - first):
                yield stamp, chosen[message.topic], message

    def topics(self) -> dict[str, tuple[str, str]]:
        """Topic and message type of every camera."""
        topics = image_topics(self.path, lambda _: None)
        chosen = choose_cameras(self.path, topics, self.cameras, lambda _: None)
        return {camera: (topic, topics[topic][0]) for topic, camera in chosen.items()}

    def _is_read(self, seconds: float) -> bool:
        return seconds >= self.start and (not self.duration or seconds <= self.start + self.duration)


def image_topics(path: Path, note: Note) -> dict[str, tuple[str, int]]:
    """Type and number of messages of every image topic; a damaged recording is read through for it."""
    if not path.exists():
        raise BagError(f"bag = {str(path)!r}: is not there")
    if path.is_dir() and not any(path.glob("*.yaml")) and not any(f.suffix in SUFFIXES for f in path.iterdir()):
        raise BagError(f"bag = {str(path)!r}: no ROS 2 recording (metadata.yaml, .mcap or .db3 files) is there")
    if path.is_file() and path.suffix not in SUFFIXES:
        raise BagError(f"bag = {str(path)!r}: must be a folder or a file ending with {' or '.join(SUFFIXES)}")
    topics: dict[str, tuple[str, int]] = {}
    try:
        with _reader(path) as reader:
            for connection in reader.connections:
                if connection.msgtype in IMAGE_TYPES:
                    known = topics.get(connection.topic, ("", 0))[1]
                    topics[connection.topic] = (connection.msgtype, known + connection.msgcount)
            return topics
    except Exception as error:  # noqa: BLE001 - a damaged file may fail in any way
        note(f"{path.name} is damaged or without its index ({_reason(error)}): what can be read is read")
    for message in salvage(path, lambda _: None):  # the notes come when the pictures are read
        if message.type in IMAGE_TYPES:
            topics[message.topic] = (message.type, topics.get(message.topic, ("", 0))[1] + 1)
    return topics


def _reader(path: Path) -> Any:
    from rosbags.rosbag2 import Reader

    return Reader(path)


def choose_cameras(
    path: Path, topics: Mapping[str, tuple[str, int]], wanted: tuple[tuple[str, str], ...], note: Note
) -> dict[str, str]:
    """Camera of every topic that is read.

    Without a wish all image topics are, but not a compressed one whose raw one is there too.

    :raises BagError: that lists the image topics.
    """
    listed = ", ".join(f"{topic} ({IMAGE_TYPES[kind]}, {count} frames)" for topic, (kind, count) in topics.items())
    if wanted:
        missing = [topic for _, topic in wanted if topic not in topics]
        if missing:
            raise BagError(f"bag = {str(path)!r} has no image topic {', '.join(missing)}; its image topics: "
                           + (listed or "none"))  # fmt: skip
        return {topic: camera for camera, topic in wanted}
    if not topics:
        raise BagError(f"bag = {str(path)!r} has no image topic")
    doubles = [topic for topic in topics if topic.endswith("/compressed") and topic[: -len("/compressed")] in topics]
    if doubles:
        note(f"{', '.join(doubles)}: left out, the raw pictures are there too")
    chosen = [topic for topic in topics if topic not in doubles]
    if len(chosen) == 1:
        return {chosen[0]: ONE_CAMERA}
    names = [_camera_name(topic) for topic in chosen]
    if len(set(names)) < len(names):
        names = [topic.strip("/").replace("/", "_") for topic in chosen]
    return dict(zip(chosen, names, strict=True))


def _camera_name(topic: str) -> str:
    base = topic
    for end in _COMMON_ENDS:
        base = base.removesuffix(end)
    return base.strip("/").replace("/", "_") or topic.strip("/").replace("/", "_")


def read_raw(path: Path, topics: set[str], note: Note) -> Iterator[RawMessage]:
    """Messages of some topics by time of reception; where the reader fails, what is left is salvaged."""
    newest, at_newest, failed = -1, set[str](), False
    try:
        with _reader(path) as reader:
            connections = [connection for connection in reader.connections if connection.topic in topics]
            for connection, received, data in reader.messages(connections) if connections else ():
                if received != newest:
                    newest, at_newest = received, set()
                at_newest.add(connection.topic)
                yield RawMessage(connection.topic, connection.msgtype, received, bytes(data))
    except GeneratorExit:
        raise
    except Exception:  # noqa: BLE001 - a damaged file may fail in any way; the salvage says what is lost
        failed = True
    if not failed:
        return
    for message in salvage(path, note):
        known = message.received < newest or (message.received == newest and message.topic in at_newest)
        if message.topic in topics and not known:
            yield message


def _picture(message: RawMessage) -> Any:
    """RGB uint8 [height, width, 3] of a message; raises FrameError where it is no picture."""
    from ros_kvstream.node.compressed_images import compressed_to_rgb
    from ros_kvstream.node.images import image_to_rgb

    try:
        decoded = _types().deserialize_cdr(message.data, message.type)
    except Exception as error:  # noqa: BLE001 - a damaged message may fail in any way
        raise FrameError(f"a message of {len(message.data)} bytes cannot be read ({_reason(error)})") from error
    return (image_to_rgb if IMAGE_TYPES[message.type] == "raw" else compressed_to_rgb)(decoded)


def _types() -> Any:
    """The message definitions; made once."""
    global _store
    if _store is None:
        from rosbags.typesys import Stores, get_typestore

        _store = get_typestore(Stores.ROS2_JAZZY)
    return _store


_store: Any = None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
