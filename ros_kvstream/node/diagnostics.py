# SPDX-License-Identifier: Apache-2.0
"""Diagnostic statuses of the node: pure functions from a snapshot to levels with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from ros_kvstream.node.frame_counters import CameraCount, DropCause, PoseCount
from ros_kvstream.node.metrics import Metrics
from ros_kvstream.node.pose_buffer import PoseGap
from ros_kvstream.node.settings import DiagnosticsSettings
from ros_kvstream.records import MemoryStats, Observation

OK, WARN, ERROR, STALE = (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE)
STALE_FACTOR = 10.0
"""A camera becomes STALE after this multiple of the time after which it is WARN."""

FOREIGN_CLOCK_MS = 3.6e6
"""Stamps that differ from the node's clock by more than an hour are from another clock."""
CLOCK_DIFFERENCE = 1.0
"""Largest difference between the delays of two cameras, or of poses and images, that is not reported, seconds."""
POSE_SHARE = 0.5
"""Share of the recent frames without a pose above which WARN is reported."""


@dataclass(frozen=True)
class CameraHealth:
    """Snapshot of one camera."""

    name: str
    topic: str
    silence: float
    """Seconds since the last image, or since the subscription was created."""
    heard: bool
    count: CameraCount
    why_silent: str = ""
    """Set only when the silence exceeds the threshold."""
    dropped_lately: dict[str, int] = field(default_factory=dict)
    received_lately: int = 0
    incompatible: str = ""
    """Description of an incompatible QoS."""
    last_refusal: str = ""
    """Why a frame was recently rejected."""
    delay: float | None = None
    """Time of arrival by the node's clock minus stamp, seconds; None before the first stamp."""
    image_loss: str = ""
    """What the conversion of a recent frame lost."""


@dataclass(frozen=True)
class PoseHealth:
    """Snapshot of the poses of the frames."""

    source: str = "none"
    """Parameter pose.source."""
    description: str = ""
    """Topic with its type, or frames of tf."""
    count: PoseCount = field(default_factory=PoseCount)
    """Since configure."""
    lately: PoseCount = field(default_factory=PoseCount)
    waiting: int = 0
    """Frames whose pose may still arrive."""
    problem: str = ""
    """Why no pose can arrive at present."""
    unusable: bool = False
    """Whether none can arrive before something is changed, such as a topic of an unsupported type."""
    reason: str = ""
    """Why a recent frame has no pose, with the remedy."""
    delay: float | None = None
    """Time of arrival by the node's clock minus stamp, seconds; None before the first pose."""
    other_map: str = ""
    """Segment of a map in the memory whose places are not compared with the present ones."""


@dataclass(frozen=True)
class Health:
    """Snapshot of the node, for /diagnostics and ~/stats; a text is empty when there is nothing to report."""

    node: str = ""
    state: str = "unconfigured"
    failure: str = ""
    """Why the last transition failed."""
    faults: int = 0
    """Errors inside the memory since the start: frames and questions that were dropped for them."""
    fault: str = ""
    """A recent error inside the memory."""
    worker_died: bool = False
    no_clock: bool = False
    """use_sim_time is set and no /clock has arrived."""
    model: str = ""
    trained: bool = True
    policy: str = ""
    memory: MemoryStats = MemoryStats()
    process_bytes: int = 0
    frames: CameraCount = field(default_factory=CameraCount)
    """Sum over all cameras."""
    queue_capacity: int = 0
    questions_waiting: int = 0
    newest: Observation | None = None
    """The frame that the memory took last."""
    cameras: Sequence[CameraHealth] = ()
    pose: PoseHealth = PoseHealth()
    metrics: Metrics = field(default_factory=Metrics)


def statuses(health: Health, thresholds: DiagnosticsSettings) -> list[DiagnosticStatus]:
    """Build all statuses: state, memory, latency, ingest, pose where there is a source, and one per camera."""
    found = [_state(health)]
    if health.state in ("inactive", "active"):
        found += [_memory(health), _latency(health)]
    if health.state == "active":
        found.append(_ingest(health, thresholds))
        if health.pose.source != "none":
            found.append(_pose(health))
        found += [_camera(health, camera, thresholds) for camera in health.cameras]
    return found


def _status(health: Health, part: str, level: bytes, message: str, values: dict[str, object]) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=level, name=f"{health.node}: {part}", message=message, hardware_id=health.model,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()])


def _state(health: Health) -> DiagnosticStatus:
    values: dict[str, object] = {"lifecycle state": health.state, "model": health.model, "policy": health.policy,
                                 "questions waiting": health.questions_waiting,
                                 "errors inside the memory": health.faults}
    if health.failure:
        return _status(health, "state", ERROR, health.failure, values)
    if health.fault:
        return _status(health, "state", ERROR, f"error inside the memory: {health.fault}", values)
    if health.worker_died:
        return _status(health, "state", ERROR, "the worker thread has ended: clean up and configure again", values)
    if health.state == "active" and not health.trained:
        text = f"{health.model} is untrained, with random weights: its answers are meaningless"
        return _status(health, "state", WARN, text, values)
    if health.state != "active":
        return _status(health, "state", WARN, f"{health.state}: frames and questions are rejected", values)
    return _status(health, "state", OK, "active", values)


def _memory(health: Health) -> DiagnosticStatus:
    memory = health.memory
    values: dict[str, object] = {
        "budget bytes": memory.budget_bytes, "allocated bytes": memory.allocated_bytes, "used bytes": memory.used_bytes,
        "peak bytes": memory.peak_bytes, "slots": memory.slots, "slots used": memory.slots_used,
        "frames remembered": memory.frames_remembered, "patches kept": memory.patches_kept,
        "patches pruned": memory.patches_pruned, "compactions": memory.compactions, "rebases": memory.rebases,
        "position limit": f"{memory.position_limit} ({memory.position_source})",
        "archive budget bytes": memory.archive_budget_bytes, "archive bytes": memory.archive_bytes,
        "archive frames": memory.archive_frames, "process bytes": health.process_bytes,
        "GPU bytes": memory.device_bytes,
    }
    if max(memory.allocated_bytes, memory.peak_bytes) > memory.budget_bytes:
        return _status(health, "memory", ERROR, "the memory uses more than memory.budget_mib", values)
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


def _ingest(health: Health, thresholds: DiagnosticsSettings) -> DiagnosticStatus:
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
        return _status(health, "ingest", WARN, f"{100 * share:.0f} % of the frames are dropped, mostly because of "
                       f"'{worst}'{_REMEDIES.get(worst, '')}", values)
    if health.no_clock:
        return _status(health, "ingest", WARN, "use_sim_time is true and no /clock arrives: frames without a stamp get "
                       "the time 0. Play the recording with --clock, or set use_sim_time to false", values)
    if clocks := _two_clocks(health.cameras):
        return _status(health, "ingest", WARN, clocks, values)
    if age.count and abs(age.newest) > FOREIGN_CLOCK_MS:
        return _status(health, "ingest", WARN, "the stamps are of another clock than this node's; set use_sim_time "
                       "for a replay, or check the camera's clock", values)
    if age.count and age.newest > 1e3 * thresholds.image_age_s:
        return _status(health, "ingest", WARN, f"the newest frame was {age.newest / 1e3:.1f} s old when the memory "
                       "took it: the stamps are late or the memory is too slow", values)
    return _status(health, "ingest", OK, f"{metrics.rate('frame'):.1f} frames/s", values)


def _two_clocks(cameras: Sequence[CameraHealth]) -> str:
    """Describe two cameras whose stamps are of different clocks; empty where all agree."""
    delays = sorted((camera.delay, camera.name) for camera in cameras if camera.delay is not None)
    if not delays or delays[-1][0] - delays[0][0] <= CLOCK_DIFFERENCE:
        return ""
    (least, ahead), (most, behind) = delays[0], delays[-1]
    return (f"the stamps of camera '{behind}' are {most - least:.1f} s behind those of camera '{ahead}': they are of "
            "different clocks, or late. Questions with since and until compare stamps. Synchronize the clocks")


_REMEDIES = {
    DropCause.QUEUE.value: ": the memory is slower than the cameras; reduce their rate or memory.budget_mib",
    DropCause.SEQUENCE_GAP.value: ": frames are lost in transport; use compressed images or reliable QoS, or increase "
                                  "net.core.rmem_max",
}


def _pose(health: Health) -> DiagnosticStatus:
    pose, count, lately = health.pose, health.pose.count, health.pose.lately
    values: dict[str, object] = {
        "source": pose.source, "from": pose.description, "frames with a pose": count.with_pose,
        "share of frames with a pose": f"{count.with_pose / max(1, count.total):.3f}",
        "share of recent frames with a pose": f"{lately.with_pose / max(1, lately.total):.3f}",
        "frames waiting for a pose": pose.waiting,
        **{f"frames without a pose, {gap.value}": count.missing[gap.value] for gap in PoseGap},
        "seconds from stamp to arrival": "" if pose.delay is None else f"{pose.delay:.3f}",
    }
    missing = sum(lately.missing.values())
    if pose.unusable:
        return _status(health, "pose", WARN, pose.problem, values)
    if pose.reason and missing:
        return _status(health, "pose", WARN, f"{missing} recent frames have no pose: {pose.reason}", values)
    if missing > POSE_SHARE * lately.total:
        worst = max(lately.missing, key=lambda cause: lately.missing[cause])
        return _status(health, "pose", WARN, f"{100 * missing / lately.total:.0f} % of the recent frames have no pose, "
                       f"mostly because of '{worst}': {_pose_remedy(health, worst)}", values)
    if pose.other_map:
        return _status(health, "pose", OK, f"the memory holds poses of another map or run ({pose.other_map}), which "
                       "are not compared with the present ones. Set pose.map_name where localization always uses the "
                       "same map", values)
    if not lately.total:
        return _status(health, "pose", OK, f"no recent frame. {pose.problem}".strip(), values)
    return _status(health, "pose", OK, f"{lately.with_pose} of {lately.total} recent frames have a pose", values)


def _pose_remedy(health: Health, cause: str) -> str:
    """Describe what to do about frames without a pose."""
    pose, delays = health.pose, [camera.delay for camera in health.cameras if camera.delay is not None]
    if pose.problem:
        return pose.problem
    if pose.delay is not None and delays and cause in _CLOCK_CAUSES:
        behind = pose.delay - min(delays)
        if abs(behind) > CLOCK_DIFFERENCE:
            relation = "behind" if behind > 0 else "ahead of"
            return (f"the stamps of the poses are {abs(behind):.1f} s {relation} those of the images: they are of "
                    "different clocks. Synchronize the clocks, or set use_sim_time in all nodes")
    return _POSE_REMEDIES[cause]


_CLOCK_CAUSES = (PoseGap.MISSING.value, PoseGap.AGE.value, PoseGap.EXTRAPOLATION.value)
_POSE_REMEDIES = {
    PoseGap.MISSING.value: "no pose has arrived; check pose.topic",
    PoseGap.AGE.value: "no pose has a stamp near theirs; publish poses at a higher rate, or increase pose.max_age_s",
    PoseGap.EXTRAPOLATION.value: "poses stop before their stamps; check that the localization runs and is not late",
    PoseGap.COVARIANCE.value: "the localization is too uncertain; localize the robot, or increase pose.max_covariance "
                              "(the variance of plain odometry grows without limit)",
    PoseGap.JUMP.value: "the robot would have moved faster than pose.max_speed, or the frame_id of the poses changes; "
                        "check that one node alone publishes them",
    PoseGap.INVALID.value: "poses have values or a frame_id that cannot be used",
    PoseGap.TRANSFORM.value: "tf does not connect the frames",
}


def _camera(health: Health, camera: CameraHealth, thresholds: DiagnosticsSettings) -> DiagnosticStatus:
    count = camera.count
    values: dict[str, object] = {
        "topic": camera.topic, "seconds since last image": f"{camera.silence:.1f}", "published": count.published,
        "received": count.received, "seen": count.seen, "kept": count.kept, "gated": count.gated,
        **{f"dropped, {cause.value}": count.dropped[cause.value] for cause in DropCause},
        "slots in memory": health.memory.camera_slots.get(camera.name, 0),
    }
    part = f"camera {camera.name}"
    if camera.incompatible:
        return _status(health, part, ERROR, camera.incompatible, values)
    if camera.silence > thresholds.no_image_s:
        level = STALE if camera.silence > thresholds.no_image_s * STALE_FACTOR else WARN
        return _status(health, part, level, f"no image for {camera.silence:.0f} s: {camera.why_silent}", values)
    if camera.last_refusal:
        return _status(health, part, WARN, camera.last_refusal, values)
    if camera.image_loss:
        return _status(health, part, WARN, camera.image_loss, values)
    if not camera.heard:
        return _status(health, part, OK, f"waiting for the first image on {camera.topic}", values)
    return _status(health, part, OK, f"images on {camera.topic}", values)
