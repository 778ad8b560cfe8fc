# SPDX-License-Identifier: Apache-2.0
"""Publishes ~/stats and /diagnostics periodically, from the worker, the cameras and the metrics."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psutil
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.lifecycle import LifecycleNode

from ros_kvstream import msg
from ros_kvstream.node.diagnostics import CameraHealth, Health, PoseHealth, statuses
from ros_kvstream.node.frame_queue import QueuedFrame
from ros_kvstream.node.messages import stats_message, to_seconds
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.node.parameters import NodeParameters
from ros_kvstream.node.session import NodeStatus, Session
from ros_kvstream.node.settings import DiagnosticsSettings
from ros_kvstream.records import Answer, Observation

Count = TypeVar("Count")
LATELY = 10.0
"""Length in seconds of the period called "lately" in /diagnostics."""


class Reporter:
    """Collects the statistics of the node and publishes them. ``report`` runs in the heartbeat's thread."""

    def __init__(self, node: LifecycleNode, parameters: NodeParameters, metrics: Metrics) -> None:
        self._metrics = metrics
        self._node = node
        self._parameters = parameters
        self._process = psutil.Process()
        self._newest: Observation | None = None
        self._fault: tuple[float, str] | None = None
        self._faults = 0
        self._refusals: dict[str, tuple[float, str]] = {}
        self._image_losses: dict[str, tuple[float, str]] = {}
        self._history: dict[str, deque[tuple[float, int, Any]]] = {}
        self._stats = node.create_publisher(msg.KvStats, "~/stats", 10)
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", 10)

    # -- recorded, from the threads of the worker and the executor --------------------------------------------------

    def observed(self, frame: QueuedFrame, observation: Observation) -> None:
        """Record a frame that the memory took."""
        self._newest = observation
        now = time.monotonic()
        self._metrics.add("frame", 1e3 * (now - frame.arrived))
        self._metrics.add("age", 1e3 * (to_seconds(self._node.get_clock().now().to_msg()) - frame.stamp))
        for name in ("vision", "prefill", "compaction"):
            if value := getattr(observation, f"{name}_ms"):
                self._metrics.add(name, value)

    def refused(self, camera: str, reason: str) -> None:
        """Record why a frame was rejected."""
        self._refusals[camera] = (time.monotonic(), reason)

    def lost_detail(self, camera: str, text: str) -> None:
        """Record what the conversion of a frame lost."""
        self._image_losses[camera] = (time.monotonic(), text)

    def fault(self, reason: str) -> None:
        """Record an error inside the memory."""
        self._fault = (time.monotonic(), reason)
        self._faults += 1

    def answered(self, answer: Answer) -> None:
        """Record the latency of an answer."""
        latency = answer.latency
        for name, value in (("question queue", latency.queue_ms), ("retrieval", latency.retrieval_ms),
                            ("first token", latency.first_token_ms), ("answer", latency.total_ms)):
            self._metrics.add(name, value)
        if latency.decode_ms and latency.answer_tokens > 1:
            self._metrics.add("tokens per second", 1e3 * (latency.answer_tokens - 1) / latency.decode_ms)

    # -- published --------------------------------------------------------------------------------------------------

    def stats(self, status: NodeStatus) -> msg.KvStats:
        """Build the statistics as a message; all zero without a session."""
        session = status.session
        if session is None:
            health = Health(process_bytes=self._process.memory_info().rss)
        else:
            health = self._health(status, session, [CameraHealth(
                camera.camera.name, camera.topic, camera.silence, camera.heard,
                session.counters.camera(camera.camera.name)) for camera in list(session.cameras)],
                PoseHealth(count=session.poses.count) if session.poses is not None else PoseHealth())
        return stats_message(self._node.get_clock().now().to_msg(), health)

    def report(self, status: NodeStatus) -> None:
        """Publish both topics once, and finish questions whose time limit has passed."""
        session, thresholds = status.session, self._parameters.node_settings().diagnostics
        if session is not None:
            session.worker.questions.expire()
        health = self._health(status, session, self._cameras(session, thresholds) if session else [],
                              self._pose(session) if session else PoseHealth())
        stamp = self._node.get_clock().now().to_msg()
        if session is not None:
            self._stats.publish(stats_message(stamp, health))
        message = DiagnosticArray(status=statuses(health, thresholds))
        message.header.stamp = stamp
        self._diagnostics.publish(message)

    def _health(self, status: NodeStatus, session: Session | None, cameras: Sequence[CameraHealth],
                pose: PoseHealth) -> Health:
        common: dict[str, Any] = {
            "node": self._node.get_fully_qualified_name(), "state": status.state, "failure": status.failure,
            "fault": self._recent(self._fault), "faults": self._faults,
            "process_bytes": self._process.memory_info().rss}
        if session is None:
            return Health(**common, model=str(self._parameters.value("model")))
        return Health(
            **common, model=session.memory.model_name, trained=session.memory.model.trained, policy=session.policy,
            worker_died=session.worker.died, no_clock=self._no_clock(), memory=session.worker.stats,
            frames=session.counters.total(), queue_capacity=session.frames.capacity,
            questions_waiting=len(session.worker.questions), newest=self._newest, cameras=cameras,
            pose=pose, metrics=self._metrics)

    def _pose(self, session: Session) -> PoseHealth:
        poses = session.poses
        if poses is None:
            return PoseHealth()
        count, source = poses.count, poses.source
        return PoseHealth(
            poses.settings.source, source.describe(), count, count.since(self._before("", count, count.total)),
            poses.waiting, source.problem(), source.unusable(), self._recent(poses.noted), source.delay(),
            poses.other_map)

    def _no_clock(self) -> bool:
        simulated = bool(self._node.get_parameter("use_sim_time").value)
        return simulated and self._node.get_clock().now().nanoseconds == 0

    def _cameras(self, session: Session, thresholds: DiagnosticsSettings) -> list[CameraHealth]:
        healths = []
        for camera in list(session.cameras):
            name = camera.camera.name
            count = session.counters.camera(name)
            before = self._before(name, count, count.received)
            silence = camera.silence
            healths.append(CameraHealth(
                name, camera.topic, silence, camera.heard, count,
                why_silent=camera.why_silent() if silence > thresholds.no_image_s else "",
                dropped_lately=dict(Counter(count.dropped) - Counter(before.dropped)),
                received_lately=count.received - before.received,
                incompatible=camera.incompatible(), delay=camera.delay,
                last_refusal=self._recent(self._refusals.get(name)),
                image_loss=self._recent(self._image_losses.get(name))))
        return healths

    def _before(self, name: str, count: Count, total: int) -> Count:
        """Return a camera's counters as of LATELY seconds ago, or those of the poses ("").

        :param total: a number in ``count`` that only grows.
        """
        now = time.monotonic()
        history = self._history.setdefault(name, deque())
        if history and history[-1][1] > total:  # the counters were reset by a new configure
            history.clear()
        while len(history) > 1 and history[1][0] < now - LATELY:
            history.popleft()
        history.append((now, total, count))
        before: Count = history[0][2]
        return before

    @staticmethod
    def _recent(noted: tuple[float, str] | None) -> str:
        """Return a recorded text while it is recent, else an empty one."""
        return noted[1] if noted and time.monotonic() - noted[0] < LATELY else ""


class Heartbeat:
    """Calls a function periodically in its own thread, by the system clock."""

    def __init__(self, period: Callable[[], float], beat: Callable[[], None],
                 failed: Callable[[Exception], None]) -> None:
        """:param period: returns the seconds until the next call; :param failed: receives an exception of ``beat``."""
        self._period = period
        self._beat = beat
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvstream_heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._period()):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - one failed report must not end reporting
                if not self._stop.is_set():
                    self._failed(error)

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
