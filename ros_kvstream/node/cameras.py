# SPDX-License-Identifier: Apache-2.0
"""Camera subscriptions: callbacks that only store messages, lost frames, and the reason when no image arrives."""

from __future__ import annotations

import difflib
import time
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any

from rclpy.event_handler import QoSRequestedIncompatibleQoSInfo, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy, qos_profile_sensor_data
from rclpy.qos_overriding_options import QoSOverridingOptions, QoSPolicyKind

from ros_kvstream.errors import KvStreamError
from ros_kvstream.node.frame_counters import FrameCounters, SequenceTracker
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.messages import image_type, to_seconds
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.node.rclpy_compat import RclError
from ros_kvstream.node.security import security_hint, security_is_on
from ros_kvstream.node.settings import CameraSettings

_OVERRIDABLE = (QoSPolicyKind.HISTORY, QoSPolicyKind.DEPTH, QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)
_SUFFIX = "/compressed"
DELAYS = 10
"""Images of which the least delayed one stands for a camera's clock."""


class CameraSubscription:
    """Subscription of one camera, created and destroyed in the executor thread; any thread may read its status."""

    def __init__(self, node: Node, camera: CameraSettings, counters: FrameCounters,
                 store: Callable[[QueuedFrame], None], metrics: Metrics) -> None:
        """Subscribe with sensor-data QoS (overridable by qos_overrides.<topic>.subscription.*), or raise KvStreamError.

        :param store: receives each frame and must not block; :param metrics: records the duration of each callback.
        """
        self.camera = camera
        self.topic = resolve_topic(node, camera)
        self._incompatible_text = ""
        self._node = node
        self._counters = counters
        self._store = store
        self._metrics = metrics
        self._sequence = SequenceTracker()
        self._matched_publishers = 0
        self._started = time.monotonic()
        self._last_arrival: float | None = None
        self._delays: deque[float] = deque(maxlen=DELAYS)
        self._qos = copy(qos_profile_sensor_data)  # qos_overrides change it
        try:
            self._subscription = node.create_subscription(
                image_type(camera.transport), self.topic, self._arrived, self._qos,
                event_callbacks=SubscriptionEventCallbacks(incompatible_qos=self._incompatible, matched=self._matched),
                qos_overriding_options=QoSOverridingOptions(_OVERRIDABLE))
        except RclError as error:
            raise KvStreamError(f"camera '{camera.name}' cannot subscribe {self.topic}: {error}.{security_hint(error)}"
                                ) from error

    def _arrived(self, message: Any, info: dict[str, Any]) -> None:
        """Store the message; the worker converts it later."""
        now = time.monotonic()
        self._last_arrival = now
        number = info.get("publication_sequence_number") or 0
        lost = self._sequence.lost_before(number, max(1, self._matched_publishers)) if number else 0
        self._counters.received(self.camera.name, lost)
        stamp = to_seconds(message.header.stamp)
        if stamp:
            self._delays.append(to_seconds(self._node.get_clock().now().to_msg()) - stamp)
        self._store(QueuedFrame(self.camera.name, message, stamp, now))
        self._metrics.add("image callback", 1e3 * (time.monotonic() - now))

    def _matched(self, info: Any) -> None:
        self._matched_publishers = info.current_count

    def incompatible(self) -> str:
        """Describe a publisher's incompatible QoS and the remedy; empty while all match. Called from any thread."""
        if self._incompatible_text and not self._qos_remedy():
            # Either the publisher has gone, or it differs in a policy not checked here and is still unmatched.
            unmatched = self._node.count_publishers(self.topic) > self._matched_publishers
            self._incompatible_text = self._incompatible_text if unmatched else ""
        return self._incompatible_text

    def _incompatible(self, info: QoSRequestedIncompatibleQoSInfo) -> None:
        self._incompatible_text = self._qos_remedy() or (
            f"a publisher on {self.topic} offers a QoS that does not match; compare with "
            f"`ros2 topic info --verbose {self.topic}` and set qos_overrides.{self.topic}.subscription.*")
        self._node.get_logger().warning(f"Camera '{self.camera.name}': {self._incompatible_text}")

    def _qos_remedy(self) -> str:
        """Describe the first policy in which a publisher offers less than this subscription requests."""
        for publisher in self._node.get_publishers_info_by_topic(self.topic):
            offered = publisher.qos_profile
            for name, wanted, weak in (("reliability", ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT),
                                       ("durability", DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE)):
                if getattr(self._qos, name) == wanted and getattr(offered, name) == weak:
                    return (f"publisher '{publisher.node_name}' on {self.topic} offers {name} {weak.name.lower()}, but "
                            f"this node requests {wanted.name.lower()}: no image will arrive. Set "
                            f"qos_overrides.{self.topic}.subscription.{name} to {weak.name.lower()}.")
        return ""

    @property
    def silence(self) -> float:
        """Seconds since the last image, or since the subscription was created."""
        return time.monotonic() - (self._last_arrival or self._started)

    @property
    def heard(self) -> bool:
        """Whether an image ever arrived."""
        return self._last_arrival is not None

    @property
    def delay(self) -> float | None:
        """Time of arrival minus stamp, seconds: the smallest of the last images; None before the first with a stamp.

        The node's clock measures arrivals, so that a replay at another speed or with pauses does not change it.
        """
        return min(self._delays.copy(), default=None)

    def why_silent(self) -> str:
        """Describe the topic, its publishers and similar topics. Called from any thread."""
        found = dict(self._node.get_topic_names_and_types())
        wanted = f"sensor_msgs/msg/{image_type(self.camera.transport).__name__}"
        types = [name for name in found.get(self.topic, []) if name != wanted]
        publishers = self._node.count_publishers(self.topic)
        if publishers and types:
            other = "compressed" if any("CompressedImage" in name for name in types) else "raw"
            return (f"{self.topic} carries {types[0]}, not {wanted}; set {self.camera.name}.transport to {other} or "
                    f"choose another topic.{_similar(self.topic, found)}")
        if publishers:
            return f"{self.topic} has {publishers} publisher(s) but no image arrives.{_similar(self.topic, found)}"
        unseen = "Security is enabled: publishers without an enclave of this keystore are not visible."
        return (f"no publisher on {self.topic} ({wanted}); remap 'image' or set "
                f"{self.camera.name}.topic.{_similar(self.topic, found)}{f' {unseen}' if security_is_on() else ''}")

    def destroy(self) -> None:
        """Destroy the subscription."""
        self._node.destroy_subscription(self._subscription)


def resolve_topic(node: Node, camera: CameraSettings) -> str:
    """Return the full topic name: resolve and remap the base name, then add the transport."""
    base = node.resolve_topic_name(camera.topic)
    if camera.transport == "compressed" and not base.endswith(_SUFFIX):
        return base + _SUFFIX
    return base


def _similar(topic: str, found: dict[str, list[str]]) -> str:
    """List up to three image topics, the most similar names first."""
    images = [name for name, types in found.items()
              if name != topic and any(kind.endswith(("/Image", "/CompressedImage")) for kind in types)]
    closest = difflib.get_close_matches(topic, images, n=3, cutoff=0.0)
    return f" Available image topics: {', '.join(closest)}." if closest else " No other image topic is available."
