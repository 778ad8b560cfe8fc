"""Records to messages and requests to questions: the only place that knows the fields of this package's interfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builtin_interfaces.msg import Time
from sensor_msgs.msg import CompressedImage, Image

from ros_kvstream import msg, records
from ros_kvstream.node.frame_counters import CameraCount, DropCause
from ros_kvstream.node.metrics import Percentiles
from ros_kvstream.node.questions import Question

NANOSECONDS = 1_000_000_000


def to_seconds(stamp: Time) -> float:
    """Seconds of a stamp."""
    return stamp.sec + stamp.nanosec / NANOSECONDS


def to_stamp(seconds: float) -> Time:
    """Stamp of seconds, to the nearest that a float holds; values outside int32 seconds become zero."""
    if not -(2**31) <= seconds < 2**31:  # also true of a NaN
        return Time()
    whole, nanoseconds = divmod(round(seconds * NANOSECONDS), NANOSECONDS)
    return Time(sec=int(whole), nanosec=int(nanoseconds))


@dataclass(frozen=True)
class NodeFigures:
    """What the node itself adds to the memory's figures in KvStats."""

    model: str
    policy: str
    process_bytes: int
    frames: CameraCount
    capacity: int
    questions_waiting: int
    frame_age_ms: float = 0.0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    compaction_ms: float = 0.0
    frames_per_second: float = 0.0
    spreads: Mapping[str, Percentiles] = field(default_factory=dict)
    """By the name of their field in KvStats."""
    cameras: Sequence[CameraFigures] = ()


@dataclass(frozen=True)
class CameraFigures:
    """One camera, for KvStats."""

    name: str
    topic: str
    silence: float
    """Seconds since the last image."""
    frames: CameraCount


SPREADS = {
    "frame_delay_spread_ms": "frame", "vision_spread_ms": "vision", "prefill_spread_ms": "prefill",
    "compaction_spread_ms": "compaction", "question_queue_spread_ms": "question queue",
    "retrieval_spread_ms": "retrieval", "first_token_spread_ms": "first token", "answer_spread_ms": "answer",
    "tokens_per_second_spread": "tokens per second", "executor_lateness_spread_ms": "executor lateness",
}
"""Field of KvStats -> series of the metrics."""


def stats_message(stamp: Time, memory: records.MemoryStats, node: NodeFigures) -> msg.KvStats:
    """Build the KvStats message."""
    message = msg.KvStats(
        model=node.model, policy=node.policy, process_bytes=node.process_bytes,
        frames_published=node.frames.published, frames_seen=node.frames.seen,
        frames_kept=node.frames.kept, frames_gated=node.frames.gated,
        drop_causes=[cause.value for cause in DropCause],
        drop_counts=[node.frames.dropped[cause.value] for cause in DropCause],
        queue_length=node.frames.waiting, queue_capacity=node.capacity, questions_waiting=node.questions_waiting,
        oldest_stamp=to_stamp(memory.oldest_stamp), newest_stamp=to_stamp(memory.newest_stamp),
        frame_age_ms=node.frame_age_ms, vision_ms=node.vision_ms, prefill_ms=node.prefill_ms,
        compaction_ms=node.compaction_ms, frames_per_second=node.frames_per_second,
    )
    for name in ("budget_bytes", "allocated_bytes", "used_bytes", "peak_bytes", "slots", "slots_used",
                 "frames_remembered", "compactions", "rebases", "questions", "archive_budget_bytes", "archive_bytes",
                 "archive_frames", "device_bytes"):
        setattr(message, name, getattr(memory, name))
    for name, spread in node.spreads.items():
        setattr(message, name, msg.Percentiles(count=spread.count, p50=spread.p50, p95=spread.p95, maximum=spread.maximum))
    message.cameras = [_camera_message(camera) for camera in node.cameras]
    message.header.stamp = stamp
    return message


def _camera_message(camera: CameraFigures) -> msg.CameraStats:
    count = camera.frames
    return msg.CameraStats(
        name=camera.name, topic=camera.topic, silence_s=camera.silence, frames_published=count.published,
        frames_seen=count.seen, frames_kept=count.kept, frames_gated=count.gated,
        drop_causes=[cause.value for cause in DropCause],
        drop_counts=[count.dropped[cause.value] for cause in DropCause])


def evidence_message(evidence: records.FrameEvidence) -> msg.FrameEvidence:
    """Build the FrameEvidence message."""
    experts = sorted(evidence.ranks)
    return msg.FrameEvidence(
        frame_id=evidence.frame_id, stamp=to_stamp(evidence.stamp), stamp_end=to_stamp(evidence.stamp_end),
        camera=evidence.camera, score=float(evidence.score), kept_share=float(evidence.kept_share), experts=experts,
        ranks=[evidence.ranks[expert] for expert in experts],
        scores=[float(evidence.scores.get(expert, 0.0)) for expert in experts],
    )


def latency_message(latency: records.LatencyBreakdown) -> msg.LatencyBreakdown:
    """Build the LatencyBreakdown message."""
    names = ("queue_ms", "flush_ms", "retrieval_ms", "prefill_ms", "first_token_ms", "decode_ms", "total_ms")
    return msg.LatencyBreakdown(answer_tokens=latency.answer_tokens, **{name: getattr(latency, name) for name in names})


def question_from(request: Any, default_timeout: float) -> Question:
    """Read a Query request or an Ask goal; raise QuestionError for limits that make no sense."""
    return Question(
        text=request.question, camera=request.camera, since=to_seconds(request.since), until=to_seconds(request.until),
        max_new_tokens=request.max_new_tokens, conversation_id=request.conversation_id,
        timeout=default_timeout if request.timeout_s == 0.0 else request.timeout_s,
    )


def fill_answer(response: Any, answer: records.Answer, memory: msg.KvStats) -> Any:
    """Fill a Query response or an Ask result with an answer."""
    response.success = True
    response.answer = answer.text
    response.finish_reason = answer.finish_reason
    response.asked_at = to_stamp(answer.asked_at)
    response.evidence = [evidence_message(evidence) for evidence in answer.evidence]
    response.latency = latency_message(answer.latency)
    response.memory = memory
    return response


def fill_refusal(response: Any, reason: str, memory: msg.KvStats) -> Any:
    """Fill a Query response or an Ask result with the reason why there is no answer."""
    response.success = False
    response.message = reason
    response.memory = memory
    return response


def answer_message(request: Any, response: Any) -> msg.Answer:
    """Build the message that records a question and what came of it."""
    message = msg.Answer(
        question=request.question, camera=request.camera, since=request.since, until=request.until,
        conversation_id=request.conversation_id, success=response.success, message=response.message,
        answer=response.answer, finish_reason=response.finish_reason, evidence=response.evidence,
        latency=response.latency, memory=response.memory,
    )
    message.header.stamp = response.asked_at
    return message


def image_type(transport: str) -> type[Image] | type[CompressedImage]:
    """Message type of a transport."""
    return CompressedImage if transport == "compressed" else Image


