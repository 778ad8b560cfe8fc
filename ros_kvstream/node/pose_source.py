# SPDX-License-Identifier: Apache-2.0
"""Poses of the robot from a topic: its type is found from the graph, and callbacks only store what arrives."""

from __future__ import annotations

import difflib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from geometry_msgs.msg import PoseStamped, PoseWithCovarianceStamped
from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidTopicNameException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.qos_overriding_options import QoSOverridingOptions, QoSPolicyKind
from rclpy.validate_topic_name import validate_topic_name

from ros_kvstream.errors import SettingsError
from ros_kvstream.node.messages import to_seconds
from ros_kvstream.node.pose_buffer import PoseBuffer, PoseGap, read_pose
from ros_kvstream.node.rclpy_compat import RclError
from ros_kvstream.node.security import security_hint
from ros_kvstream.node.settings import PoseSettings
from ros_kvstream.poses import POSE_TYPES, Pose

TYPES: dict[str, type[Any]] = dict(zip(POSE_TYPES, (Odometry, PoseWithCovarianceStamped, PoseStamped), strict=True))
"""Supported message types; the first one that a publisher offers is taken."""
LOOK_SECONDS = 0.5
"""Period in which publishers are looked for."""
DEPTH = 50
"""Queue of the subscription: poses are small, and one that is lost leaves a gap."""
DELAYS = 10
"""Poses of which the least delayed one stands for the source's clock."""
_OVERRIDABLE = (QoSPolicyKind.HISTORY, QoSPolicyKind.DEPTH, QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)


@dataclass(frozen=True)
class PoseQuery:
    """A frame whose pose is wanted."""

    camera: str
    stamp: float
    """Seconds of the header stamp."""
    nanoseconds: int
    """The same stamp exactly; 0 where the image has none."""
    image_frame: str
    """frame_id of the image's header."""


@dataclass(frozen=True)
class RobotPose:
    """Where robot and camera were."""

    frame_id: str
    base: Pose
    camera: Pose


@dataclass(frozen=True)
class NoPose:
    """Why the pose of a frame is unknown."""

    cause: PoseGap
    reason: str = ""
    """What is wrong with the source, with the remedy; empty where the cause says it all."""


class PoseSource(Protocol):
    """Poses by stamp. ``subscribe`` and ``unsubscribe`` belong to the executor's thread, the rest to any."""

    def subscribe(self, node: Node, received: Callable[[], None]) -> None:
        """Begin to store poses; raise KvStreamError where that is impossible.

        :param received: called in the executor's thread after each new pose; must not block.
        """

    def unsubscribe(self) -> None:
        """Store no more poses; those that are stored stay."""

    def at(self, query: PoseQuery, *, final: bool) -> RobotPose | NoPose | None:
        """Pose of a frame; None while it may still arrive, unless ``final``. Never waits."""

    def describe(self) -> str:
        """Name the source, such as its topic and type."""

    def problem(self) -> str:
        """Describe why no pose can arrive, with the remedy; empty where nothing is known to be wrong."""

    def unusable(self) -> bool:
        """Whether what is there can never be used, such as a topic of another type."""

    def delay(self) -> float | None:
        """Time of arrival minus stamp of the newest poses, seconds by the node's clock; None before the first."""


class TopicPoses:
    """Poses of the robot's base from nav_msgs/Odometry, geometry_msgs/PoseStamped or PoseWithCovarianceStamped.

    They are poses of the base in the frame of their header. The child_frame_id of an Odometry is not read: where it is
    not the base, use tf.
    """

    def __init__(self, settings: PoseSettings, mountings: Mapping[str, Pose]) -> None:
        """Check the topic's name; raise SettingsError for a bad one.

        :param mountings: pose of each camera in the base frame, by its name.
        """
        try:
            validate_topic_name(settings.topic)
        except InvalidTopicNameException as error:
            raise SettingsError(f"pose.topic = {settings.topic!r}: {str(error).splitlines()[0]}.") from error
        self._settings = settings
        self._mountings = dict(mountings)
        self._topic = settings.topic
        self._lock = threading.Lock()
        self._buffer = PoseBuffer(settings)
        self._invalid = ""
        """What was wrong with the last message that could not be used."""
        self._unstamped = False
        """Whether the last message had no stamp, so that no frame can be near it."""
        self._delays: deque[float] = deque(maxlen=DELAYS)
        self._kind = ""
        """Type that is subscribed."""
        self._unsupported: tuple[str, ...] = ()
        """Types on the topic where none of them is supported."""
        self._said: set[tuple[str, ...]] = set()
        self._error = ""
        self._node: Node | None = None
        self._timer: Any = None
        self._subscription: Any = None
        self._received: Callable[[], None] = lambda: None

    # -- the subscription, in the executor's thread -----------------------------------------------------------------

    def subscribe(self, node: Node, received: Callable[[], None]) -> None:
        """Look for a publisher now and periodically, and subscribe with its type."""
        self._node, self._received = node, received
        self._topic = node.resolve_topic_name(self._settings.topic)
        self._timer = node.create_timer(LOOK_SECONDS, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._look()

    def unsubscribe(self) -> None:
        """Destroy subscription and timer."""
        if self._node is None:
            return
        self._node.destroy_timer(self._timer)
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
        self._node = self._subscription = self._timer = None
        self._kind = ""

    def _look(self) -> None:
        """Subscribe with the type of a publisher; keep the subscription while its type is offered or none is."""
        node = self._node
        if node is None:
            return
        types = sorted({info.topic_type for info in node.get_publishers_info_by_topic(self._topic)})
        wanted = next((kind for kind in TYPES if kind in types), "")
        self._unsupported = () if wanted else tuple(types)
        if self._unsupported and self._unsupported not in self._said:
            self._said.add(self._unsupported)
            node.get_logger().error(f"Poses: {self.problem()}")
        if not wanted or self._kind in types:
            return
        if self._subscription is not None:
            node.destroy_subscription(self._subscription)
            self._subscription, self._kind = None, ""
        qos = copy(qos_profile_sensor_data)  # qos_overrides change it
        qos.depth = DEPTH
        try:
            self._subscription = node.create_subscription(
                TYPES[wanted], self._topic, self._arrived, qos,
                qos_overriding_options=QoSOverridingOptions(_OVERRIDABLE))
        except RclError as error:
            self._error = f"{self._topic} cannot be subscribed: {error}.{security_hint(error)}"
            return
        self._kind, self._error = wanted, ""
        node.get_logger().info(f"Poses from {self.describe()}.")

    def _arrived(self, message: Any) -> None:
        """Store a pose; the worker asks for it later."""
        if self._node is not None:
            self.store(message, to_seconds(self._node.get_clock().now().to_msg()))
            self._received()

    def store(self, message: Any, now: float) -> None:
        """Store the pose of a message that arrived at ``now``, seconds of the node's clock."""
        sample, invalid = read_pose(message, self._settings.frame_id_bytes)
        with self._lock:
            self._unstamped = not sample.stamp
            if invalid:
                self._invalid = f"a message on {self._topic} cannot be used: {invalid}"
            if sample.stamp:
                self._buffer.add(sample)
                self._delays.append(now - sample.stamp)

    # -- from any thread --------------------------------------------------------------------------------------------

    def at(self, query: PoseQuery, *, final: bool) -> RobotPose | NoPose | None:
        """Pose at the frame's stamp by interpolation; None while a pose behind it may still arrive."""
        with self._lock:
            found = self._buffer.at(query.stamp, final=final)
            if self._unstamped and final and isinstance(found, PoseGap):
                found = PoseGap.INVALID
            reason = self._invalid if found is PoseGap.INVALID else ""
        if found is None:
            return None
        if isinstance(found, PoseGap):
            return NoPose(found, reason)
        assert found.pose is not None
        return RobotPose(found.frame_id, found.pose, found.pose.compose(self._mountings[query.camera]))

    def describe(self) -> str:
        """Topic and type."""
        return f"{self._topic} ({self._kind})" if self._kind else self._topic

    def unusable(self) -> bool:
        """Whether the topic has publishers, and none of a supported type, or cannot be subscribed."""
        return bool(self._unsupported or self._error)

    def problem(self) -> str:
        """Describe a topic without a publisher, or of an unsupported type. Asks the graph."""
        node = self._node
        if self._error:
            return self._error
        if self._unsupported:
            return (f"{self._topic} carries {', '.join(self._unsupported)}, which has no pose that can be used. Set "
                    f"pose.topic to a topic of {', '.join(TYPES)}, or pose.source to tf")
        if node is None or node.count_publishers(self._topic):
            return ""
        others = [name for name, types in node.get_topic_names_and_types()
                  if name != self._topic and set(types) & set(TYPES)]
        closest = difflib.get_close_matches(self._topic, others, n=3, cutoff=0.0)
        return (f"no publisher on {self._topic}; set pose.topic. "
                + (f"Available topics with poses: {', '.join(closest)}" if closest else "No topic with poses is there"))

    def delay(self) -> float | None:
        """The smallest delay of the last poses, seconds."""
        with self._lock:
            return min(self._delays, default=None)
