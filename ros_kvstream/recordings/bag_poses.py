# SPDX-License-Identifier: Apache-2.0
"""Where the frames of a bag were taken: from a topic of poses, or from /tf and /tf_static.

The rules are those of the node (docs/places.md): a pose that is too old or too uncertain, or jumps, is left out.
Messages are read beside the frames, a little ahead of them; no more than the newest are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

from ros_kvstream.errors import PoseError, RecordingError
from ros_kvstream.node.pose_buffer import PoseBuffer, PoseGap, PoseSample, read_pose
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import POSE_TYPES, FramePose, Pose, map_segment
from ros_kvstream.recordings.bag_salvage import RawMessage, error_text
from ros_kvstream.recordings.transforms import TransformBuffer

TF_TYPE = "tf2_msgs/msg/TFMessage"
TF, TF_STATIC = "/tf", "/tf_static"
MAP_FRAMES = ("map", "odom")
"""Frames in which poses are wanted, the first that tf knows."""
AHEAD_SECONDS = 0.5
"""Time by which messages of poses may be received later than the frames of their stamps."""
TRIED_MESSAGES = 5000
"""Messages of tf that are read to find out whether it connects the frames."""
MAP_NAME = "recording"
"""Name of the map's segment: a memory takes the frames of one recording."""
NONE, AUTO, FROM_TF = "none", "auto", "tf"

Read = Callable[[Collection[str]], Iterator[RawMessage]]
"""Topics -> their messages in the order of reception."""


def choose_poses(how: str, topics: dict[str, str], connected: Callable[[], bool]) -> tuple[str, str]:
    """What the poses of a bag are read from ("none", "tf" or a topic), and a sentence about the choice.

    :param how: auto, none, tf or a topic; :param topics: name -> type of all topics of the bag;
    :param connected: whether tf connects the camera with the map, asked only where the bag has tf.
    :raises RecordingError: for a topic that the bag lacks or that holds no poses.
    """
    found = [name for name, kind in topics.items() if kind in POSE_TYPES]
    has_tf = topics.get(TF) == TF_TYPE
    if how == NONE:
        return NONE, ""
    if how == FROM_TF and not has_tf:
        raise RecordingError(f"--pose tf: the bag has no {TF}; its topics with poses: {', '.join(found) or 'none'}")
    if how not in (AUTO, FROM_TF):
        if how not in found:
            held = f"holds {topics[how]}, not {', '.join(POSE_TYPES)}" if how in topics else "is not in the bag"
            raise RecordingError(f"--pose {how}: {held}; topics with poses: {', '.join(found) or 'none'}")
        return how, ""
    if how == FROM_TF or (has_tf and connected()):
        return FROM_TF, f"poses are read from {TF}"
    if len(found) == 1:
        return found[0], f"poses are read from {found[0]}"
    if found:
        return NONE, f"there are several topics with poses ({', '.join(found)}): choose one with --pose TOPIC"
    return NONE, f"{TF} does not connect the camera with {' or '.join(MAP_FRAMES)}: no poses" if has_tf else ""


class BagPoses:
    """Poses of the frames of one bag, read beside them."""

    def __init__(self, read: Read, source: str, *, by_reception: bool = False) -> None:
        """:param source: "tf" or a topic; :param by_reception: whether times of reception replace all stamps."""
        self.missing: Counter[str] = Counter()
        """Frames without a pose, by cause."""
        self.placed = 0
        """Frames with a pose."""
        self._settings = PoseSettings()
        self._topic = "" if source == FROM_TF else source
        self._messages = read([TF, TF_STATIC, *([self._topic] if self._topic else [])])
        self._next: RawMessage | None = next(self._messages, None)
        self._by_reception = by_reception
        self._damaged, self._damage = 0, ""
        """Number of messages that could not be deserialized, and why the first could not."""
        self._samples = PoseBuffer(self._settings)
        self._transforms = TransformBuffer(self._settings)

    def at(self, stamp: float, received: int, frame_id: str) -> FramePose | None:
        """Pose of a frame, None where it is unknown; frames are asked about in the order of reception.

        :param stamp: seconds; :param received: nanoseconds; :param frame_id: of the image's header.
        """
        self._read(received + round((self._settings.max_age_s + AHEAD_SECONDS) * 1e9))
        found = self._from_topic(stamp, frame_id) if self._topic else self._from_tf(stamp, frame_id)
        if isinstance(found, PoseGap):
            self.missing[found.value] += 1
            return None
        self.placed += 1
        return found

    def connects(self, stamp: float, frame_id: str) -> bool:
        """Whether tf connects a frame_id with a map at any stamp so far."""
        for _ in range(TRIED_MESSAGES):
            if self._next is None:
                break
            self._read(self._next.received)
            for frame in MAP_FRAMES:
                found = self._transforms.lookup(frame, frame_id, stamp)
                if found is not PoseGap.TRANSFORM:
                    return True
        return False

    def notes(self) -> list[str]:
        """How many frames have no pose, and why, and what could not be read; empty where all is well."""
        found, without = [], sum(self.missing.values())
        if without:
            causes = ", ".join(f"{cause} {count}" for cause, count in sorted(self.missing.items()))
            found.append(f"{without} of {without + self.placed} frames have no pose: {causes}")
        if self._damaged:
            found.append(f"{self._damaged} messages of poses cannot be deserialized; the first: {self._damage}")
        return found

    def _from_topic(self, stamp: float, frame_id: str) -> FramePose | PoseGap:
        sample = self._samples.at(stamp, final=True)
        if sample is None or isinstance(sample, PoseGap):
            return sample or PoseGap.MISSING
        assert sample.pose is not None
        mounting = self._transforms.lookup(self._settings.base_frame, frame_id, stamp)
        camera = sample.pose if isinstance(mounting, PoseGap) else sample.pose.compose(mounting)
        return FramePose(map_segment(_name(sample.frame_id), MAP_NAME), sample.pose, camera)

    def _from_tf(self, stamp: float, frame_id: str) -> FramePose | PoseGap:
        for frame in MAP_FRAMES:
            base = self._transforms.lookup(frame, self._settings.base_frame, stamp)
            camera = self._transforms.lookup(frame, frame_id, stamp)
            if not isinstance(base, PoseGap) and not isinstance(camera, PoseGap):
                return FramePose(map_segment(frame, MAP_NAME), base, camera)
            causes = [found for found in (base, camera) if isinstance(found, PoseGap) and found != PoseGap.TRANSFORM]
            if causes:  # the frames are connected, and only this stamp is unknown: no other map may stand in
                return causes[0]
        return PoseGap.TRANSFORM

    def _read(self, until: int) -> None:
        """Take the messages that were received until a time, nanoseconds."""
        while self._next is not None and self._next.received <= until:
            self._take(self._next)
            self._next = next(self._messages, None)

    def _take(self, raw: RawMessage) -> None:
        try:
            message = deserialize(raw)
        except Exception as error:  # noqa: BLE001 - a damaged message can fail in any way
            self._damaged += 1
            self._damage = self._damage or f"{raw.topic}: {error_text(error)}"
            return
        received = raw.received / 1e9 if self._by_reception else None
        if raw.topic == self._topic:
            sample, _ = read_pose(message, self._settings.frame_id_bytes, received)
            if sample.stamp:
                self._samples.add(sample)
            return
        for transform in message.transforms:
            sample = _transform(transform, received)
            self._transforms.add(_name(transform.child_frame_id), sample, static=raw.topic == TF_STATIC)


def _transform(message: Any, received: float | None) -> PoseSample:
    """Pose of a child frame in its parent; without a pose where the values cannot be used.

    :param received: takes the place of the header's stamp, seconds.
    """
    header, value = message.header, message.transform
    stamp = header.stamp.sec + header.stamp.nanosec / 1e9 if received is None else received
    try:
        pose = Pose.from_message(value.translation, value.rotation) if header.frame_id else None
    except PoseError:
        pose = None
    return PoseSample(stamp, _name(header.frame_id), pose)


def _name(frame_id: str) -> str:
    """Frame id without the leading slash of ROS 1."""
    return frame_id.lstrip("/")


def deserialize(message: RawMessage) -> Any:
    """Message of a recording, with the fields of its definition in ROS 2 Jazzy."""
    return message_types().deserialize_cdr(message.data, message.type)


@cache
def message_types() -> Any:
    """Message definitions of ROS 2 Jazzy."""
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_JAZZY)
