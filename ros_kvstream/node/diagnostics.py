# SPDX-License-Identifier: Apache-2.0
"""The node's health as diagnostic statuses: pure functions from a snapshot to levels with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from ros_kvstream.node.frame_counters import CameraCount, DropCause
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.records import MemoryStats

OK, WARN, ERROR, STALE = (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE)
STALE_FACTOR = 10.0
"""A camera is STALE after this many times the seconds that make it WARN."""

FOREIGN_CLOCK_MS = 3.6e6
"""Stamps further than an hour from the node's clock are no lateness."""


@dataclass(frozen=True)
class Thresholds:
    """Levels at which the node warns, from the parameters diagnostics.*."""

    no_image_s: float
    image_age_s: float
    drop_share: float


@dataclass(frozen=True)
class CameraHealth:
    """One camera now."""

    name: str
    topic: str
    silence: float
    """Seconds since the last image, or since the subscription was made."""
    heard: bool
    why_silent: str
    """Filled in only when the silence is long."""
    count: CameraCount
    dropped_lately: dict[str, int] = field(default_factory=dict)
    """Drops by cause since the last report but a few."""
    received_lately: int = 0
    incompatible: str = ""
    """What is wrong with a publisher's QoS; empty while all match."""
    last_refusal: str = ""
    """What was wrong with the newest frame that was refused lately; empty when none was."""


@dataclass(frozen=True)
class Health:
    """Everything that the statuses are made from."""

    node: str
    state: str
    """Lifecycle state: unconfigured, inactive, active, finalized."""
    failure: str
    """Why the last transition failed; empty when it did not."""
    fault: str
    """The last error inside the memory, while it is recent."""
    worker_died: bool
    """Whether the thread that owns the memory has ended by itself."""
    model: str
    trained: bool
    policy: str
    memory: MemoryStats
    process_bytes: int
    questions_waiting: int
    cameras: Sequence[CameraHealth]
    metrics: Metrics


def statuses(health: Health, thresholds: Thresholds) -> list[DiagnosticStatus]:
    """All statuses of the node: state, memory, ingest, latency and one per camera."""
    found = [_state(health)]
    if health.state in ("inactive", "active"):
        found += [_memory(health), _latency(health)]
    if health.state == "active":
        found.append(_ingest(health, thresholds))
        found += [_camera(health, camera, thresholds) for camera in health.cameras]
    return found


def _status(health: Health, part: str, level: bytes, message: str, values: dict[str, object]) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=level, name=f"{health.node}: {part}", message=message, hardware_id=health.model,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()])


def _state(health: Health) -> DiagnosticStatus:
    values: dict[str, object] = {"lifecycle state": health.state, "model": health.model, "policy": health.policy,
                                 "questions waiting": health.questions_waiting}
    if health.failure:
        return _status(health, "state", ERROR, health.failure, values)
    if health.fault:
        return _status(health, "state", ERROR, f"error inside the memory: {health.fault}", values)
    if health.worker_died:
        return _status(health, "state", ERROR, "the worker thread has ended: clean up and configure again", values)
    if health.state == "active" and not health.trained:
        return _status(health, "state", WARN, f"{health.model} is untrained: its answers mean nothing", values)
    if health.state != "active":
        return _status(health, "state", WARN, f"{health.state}: frames and questions are refused", values)
    return _status(health, "state", OK, "active", values)


def _memory(health: Health) -> DiagnosticStatus:
    memory = health.memory
    values: dict[str, object] = {
        "budget bytes": memory.budget_bytes, "allocated bytes": memory.allocated_bytes, "used bytes": memory.used_bytes,
        "peak bytes": memory.peak_bytes, "slots": memory.slots, "slots used": memory.slots_used,
        "frames remembered": memory.frames_remembered, "compactions": memory.compactions, "rebases": memory.rebases,
        "archive budget bytes": memory.archive_budget_bytes, "archive bytes": memory.archive_bytes,
        "archive frames": memory.archive_frames, "process bytes": health.process_bytes,
        "GPU bytes": memory.device_bytes,
    }
    if max(memory.allocated_bytes, memory.peak_bytes) > memory.budget_bytes:
        return _status(health, "memory", ERROR, "more than memory.budget_mib is in use", values)
    if memory.archive_problem:
        return _status(health, "memory", WARN, memory.archive_problem, values)
    share = 100.0 * memory.slots_used / memory.slots if memory.slots else 0.0
    return _status(health, "memory", OK, f"{memory.frames_remembered} frames remembered, {share:.0f} % full", values)


def _latency(health: Health) -> DiagnosticStatus:
    metrics = health.metrics
    values: dict[str, object] = {f"{name} ms": metrics.percentiles(name) for name in (
        "vision", "prefill", "compaction", "retrieval", "question queue", "first token", "answer",
        "executor lateness", "image callback")}
    values["answer tokens per second"] = metrics.percentiles("tokens per second")
    return _status(health, "latency", OK, f"answer p95 {metrics.percentiles('answer').p95:.0f} ms, "
                   f"frame p95 {metrics.percentiles('frame').p95:.0f} ms", values)


def _ingest(health: Health, thresholds: Thresholds) -> DiagnosticStatus:
    metrics = health.metrics
    age = metrics.percentiles("age")
    received = sum(camera.received_lately for camera in health.cameras)
    dropped = {cause.value: sum(camera.dropped_lately.get(cause.value, 0) for camera in health.cameras)
               for cause in DropCause}
    lost = dropped[DropCause.SEQUENCE_GAP.value]
    share = sum(dropped.values()) / max(1, received + lost)
    values: dict[str, object] = {
        "frames per second in": f"{metrics.rate('arrived'):.2f}",
        "frames per second taken": f"{metrics.rate('frame'):.2f}",
        "age ms": age, "dropped lately share": f"{share:.3f}",
        **{f"dropped lately, {cause}": frames for cause, frames in dropped.items()},
    }
    if share > thresholds.drop_share:
        worst = max(dropped, key=lambda cause: dropped[cause])
        return _status(health, "ingest", WARN, f"{100 * share:.0f} % of the frames are dropped, most for '{worst}'"
                       + _REMEDIES.get(worst, ""), values)
    if age.count and abs(age.newest) > FOREIGN_CLOCK_MS:
        return _status(health, "ingest", WARN, "the stamps are of another clock than this node's: replay with "
                       "use_sim_time, or check the camera's clock", values)
    if age.count and age.newest > 1e3 * thresholds.image_age_s:
        return _status(health, "ingest", WARN, f"the newest frame was {age.newest / 1e3:.1f} s old when the memory "
                       "took it: stamps are late or the memory is too slow", values)
    return _status(health, "ingest", OK, f"{metrics.rate('frame'):.1f} frames/s", values)


_REMEDIES = {
    DropCause.QUEUE.value: ": the memory is slower than the cameras; lower their rate or memory.budget_mib",
    DropCause.SEQUENCE_GAP.value: ": they are lost in transport; use compressed images or reliable QoS, or raise "
                                  "net.core.rmem_max",
}


def _camera(health: Health, camera: CameraHealth, thresholds: Thresholds) -> DiagnosticStatus:
    count = camera.count
    values: dict[str, object] = {
        "topic": camera.topic, "seconds since last image": f"{camera.silence:.1f}", "published": count.published,
        "received": count.received, "seen": count.seen, "kept": count.kept, "gated": count.gated,
        **{f"dropped, {cause.value}": count.dropped[cause.value] for cause in DropCause},
    }
    values["slots in memory"] = health.memory.camera_slots.get(camera.name, 0)
    part = f"camera {camera.name}"
    if camera.incompatible:
        return _status(health, part, ERROR, camera.incompatible, values)
    if camera.silence > thresholds.no_image_s * STALE_FACTOR:
        return _status(health, part, STALE, f"no image for {camera.silence:.0f} s: {camera.why_silent}", values)
    if camera.silence > thresholds.no_image_s:
        return _status(health, part, WARN, f"no image for {camera.silence:.0f} s: {camera.why_silent}", values)
    if camera.last_refusal:
        return _status(health, part, WARN, camera.last_refusal, values)
    if not camera.heard:
        return _status(health, part, OK, f"waiting for the first image on {camera.topic}", values)
    return _status(health, part, OK, f"images on {camera.topic}", values)
