"""The cameras' subscriptions: callbacks that only store, frames lost on the way, and why nothing arrives."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from typing import Any

from rclpy.event_handler import QoSRequestedIncompatibleQoSInfo, SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rclpy.qos_overriding_options import QoSOverridingOptions, QoSPolicyKind

from ros_kvstream.errors import KvStreamError
from ros_kvstream.node.frame_counters import FrameCounters, SequenceTracker
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.messages import image_type, to_seconds
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.node.security import security_hint, security_is_on
from ros_kvstream.node.settings import CameraSettings

_OVERRIDABLE = (QoSPolicyKind.HISTORY, QoSPolicyKind.DEPTH, QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)
_SUFFIX = "/compressed"


class CameraSubscription:
    """One camera's subscription. Made, used and destroyed by the executor's thread; the status is read by any."""

    def __init__(self, node: Node, camera: CameraSettings, counters: FrameCounters,
                 store: Callable[[QueuedFrame], None], metrics: Metrics) -> None:
        """Subscribe with sensor-data QoS (overridable by qos_overrides.<topic>.subscription.*), or raise KvStreamError.

        :param store: takes each arrived frame and must not block; :param metrics: told how long each callback took.
        """
        self.camera = camera
        self.topic = resolve_topic(node, camera)
        self._incompatible_text = ""
        self._node = node
        self._account = counters
        self._store = store
        self._meters = metrics
        self._sequence = SequenceTracker()
        self._matched_publishers = 0
        self._started = time.monotonic()
        self._last_arrival: float | None = None
        self._qos = QoSProfile(depth=qos_profile_sensor_data.depth, history=qos_profile_sensor_data.history,
                               reliability=qos_profile_sensor_data.reliability,
                               durability=qos_profile_sensor_data.durability)
        try:
            self._subscription = node.create_subscription(
                image_type(camera.transport), self.topic, self._arrived, self._qos,
                event_callbacks=SubscriptionEventCallbacks(incompatible_qos=self._incompatible, matched=self._matched),
                qos_overriding_options=QoSOverridingOptions(_OVERRIDABLE))
        except rclpy_implementation.RCLError as error:
            raise KvStreamError(f"camera '{camera.name}' cannot subscribe {self.topic}: {error}.{security_hint(error)}"
                                ) from error

    def _arrived(self, message: Any, info: dict[str, Any]) -> None:
        """Store; everything else is the worker's business."""
        now = time.monotonic()
        self._last_arrival = now
        number = info.get("publication_sequence_number") or 0
        lost = self._sequence.lost_before(number, max(1, self._matched_publishers)) if number else 0
        self._account.received(self.camera.name, lost)
        self._store(QueuedFrame(self.camera.name, message, to_seconds(message.header.stamp), now))
        self._meters.add("image callback", 1e3 * (time.monotonic() - now))

    def _matched(self, info: Any) -> None:
        self._matched_publishers = info.current_count

    def incompatible(self) -> str:
        """What is wrong with a publisher's QoS and how to mend it; empty while all match. From any thread."""
        if self._incompatible_text and not self._qos_remedy():
            # The publisher has gone, or it differs in what is not looked at here, and then it is still there.
            unmatched = self._node.count_publishers(self.topic) > self._matched_publishers
            self._incompatible_text = self._incompatible_text if unmatched else ""
        return self._incompatible_text

    def _incompatible(self, info: QoSRequestedIncompatibleQoSInfo) -> None:
        self._incompatible_text = self._qos_remedy() or (
            f"a publisher on {self.topic} offers a QoS that does not match; compare with "
            f"`ros2 topic info --verbose {self.topic}` and set qos_overrides.{self.topic}.subscription.*")
        self._node.get_logger().warning(f"Camera '{self.camera.name}': {self._incompatible_text}")

    def _qos_remedy(self) -> str:
        """Name the first policy of a publisher that ours asks too much of."""
        for publisher in self._node.get_publishers_info_by_topic(self.topic):
            offered = publisher.qos_profile
            for name, wanted, weak in (("reliability", ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT),
                                       ("durability", DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE)):
                if getattr(self._qos, name) == wanted and getattr(offered, name) == weak:
                    return (f"publisher '{publisher.node_name}' on {self.topic} offers {name} {weak.name.lower()}, but "
                            f"this node asks for {wanted.name.lower()}: no image will come. Set "
                            f"qos_overrides.{self.topic}.subscription.{name} to {weak.name.lower()}.")
        return ""

    @property
    def silence(self) -> float:
        """Seconds since the last image, or since the subscription was made."""
        return time.monotonic() - (self._last_arrival or self._started)

    @property
    def heard(self) -> bool:
        """Whether an image ever arrived."""
        return self._last_arrival is not None

    def why_silent(self) -> str:
        """Say which topic is waited on, who publishes there, and which topics are similar. From any thread."""
        found = dict(self._node.get_topic_names_and_types())
        wanted = f"sensor_msgs/msg/{image_type(self.camera.transport).__name__}"
        types = [name for name in found.get(self.topic, []) if name != wanted]
        publishers = self._node.count_publishers(self.topic)
        if publishers and types:
            other = "compressed" if any("CompressedImage" in name for name in types) else "raw"
            return (f"{self.topic} carries {types[0]}, not {wanted}; set {self.camera.name}.transport to {other} or "
                    f"choose another topic.{_similar(self.topic, found)}")
        if publishers:
            return f"{self.topic} has {publishers} publisher(s) but no image comes.{_similar(self.topic, found)}"
        unseen = "Security is on: publishers without an enclave of this keystore are not seen."
        return (f"nobody publishes {self.topic} ({wanted}); remap 'image' or set "
                f"{self.camera.name}.topic.{_similar(self.topic, found)}{f' {unseen}' if security_is_on() else ''}")

    def destroy(self) -> None:
        """End the subscription."""
        self._node.destroy_subscription(self._subscription)


def resolve_topic(node: Node, camera: CameraSettings) -> str:
    """Full topic name: the base name is resolved and remapped first, then the transport is added."""
    base = node.resolve_topic_name(camera.topic)
    if camera.transport == "compressed" and not base.endswith(_SUFFIX):
        return base + _SUFFIX
    return base


def _similar(topic: str, found: dict[str, list[str]]) -> str:
    """Name up to three image topics, the most similar names first."""
    images = [name for name, types in found.items()
              if name != topic and any(kind.endswith(("/Image", "/CompressedImage")) for kind in types)]
    closest = difflib.get_close_matches(topic, images, n=3, cutoff=0.0)
    return f" Image topics here: {', '.join(closest)}." if closest else " There is no other image topic here."
