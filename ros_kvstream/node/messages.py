# SPDX-License-Identifier: Apache-2.0
"""Conversion between records and this package's messages; only this module knows their fields."""

from __future__ import annotations

from typing import Any

from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, PoseStamped, Quaternion
from sensor_msgs.msg import CompressedImage, Image

from ros_kvstream import msg, records
from ros_kvstream.node.diagnostics import Health
from ros_kvstream.node.frame_counters import CameraCount, DropCause
from ros_kvstream.node.pose_buffer import PoseGap
from ros_kvstream.node.questions import Question
from ros_kvstream.poses import Pose

NANOSECONDS = 1_000_000_000


def to_seconds(stamp: Time) -> float:
    """Convert a stamp to seconds."""
    return stamp.sec + stamp.nanosec / NANOSECONDS


def to_stamp(seconds: float) -> Time:
    """Stamp of seconds, to the nearest that a float holds; values outside int32 seconds become zero."""
    if not -(2**31) <= seconds < 2**31:  # also true of a NaN
        return Time()
    whole, nanoseconds = divmod(round(seconds * NANOSECONDS), NANOSECONDS)
    return Time(sec=int(whole), nanosec=int(nanoseconds))


VERDICTS = {
    records.Verdict.SEEN: msg.Answer.VERDICT_SEEN, records.Verdict.NOT_SEEN: msg.Answer.VERDICT_NOT_SEEN,
    records.Verdict.NOT_COVERED: msg.Answer.VERDICT_NOT_COVERED,
}
"""Verdict -> its number in messages, the same in Answer, Query and Ask."""

PERCENTILE_SERIES = {
    "frame_delay_percentiles_ms": "frame", "vision_percentiles_ms": "vision", "prefill_percentiles_ms": "prefill",
    "compaction_percentiles_ms": "compaction", "question_queue_percentiles_ms": "question queue",
    "retrieval_percentiles_ms": "retrieval", "first_token_percentiles_ms": "first token",
    "answer_percentiles_ms": "answer",
    "tokens_per_second_percentiles": "tokens per second", "executor_lateness_percentiles_ms": "executor lateness",
}
"""Field of KvStats -> series in ``Metrics``."""


def stats_message(stamp: Time, health: Health) -> msg.KvStats:
    """Build the KvStats message."""
    memory, metrics = health.memory, health.metrics
    message = msg.KvStats(
        model=health.model, policy=health.policy, process_bytes=health.process_bytes, **_frame_counts(health.frames),
        queue_length=health.frames.waiting, queue_capacity=health.queue_capacity,
        questions_waiting=health.questions_waiting,
        oldest_stamp=to_stamp(memory.oldest_stamp), newest_stamp=to_stamp(memory.newest_stamp),
        frames_with_pose=health.pose.count.with_pose, pose_missing_causes=[gap.value for gap in PoseGap],
        pose_missing_counts=[health.pose.count.missing[gap.value] for gap in PoseGap],
        frame_age_ms=metrics.percentiles("age").newest, frames_per_second=metrics.rate("frame"),
        cameras=[msg.CameraStats(name=camera.name, topic=camera.topic, silence_s=camera.silence,
                                 **_frame_counts(camera.count)) for camera in health.cameras],
    )
    for name in ("budget_bytes", "allocated_bytes", "used_bytes", "peak_bytes", "slots", "slots_used",
                 "frames_remembered", "patches_kept", "patches_pruned", "compactions", "rebases", "questions",
                 "archive_budget_bytes", "archive_bytes", "archive_frames", "device_bytes"):
        setattr(message, name, getattr(memory, name))
    if health.newest is not None:
        for name in ("vision_ms", "prefill_ms", "compaction_ms"):
            setattr(message, name, getattr(health.newest, name))
    for name, series in PERCENTILE_SERIES.items():
        values = metrics.percentiles(series)
        setattr(message, name, msg.Percentiles(
            count=values.count, p50=values.p50, p95=values.p95, maximum=values.maximum))
    message.header.stamp = stamp
    return message


def _frame_counts(count: CameraCount) -> dict[str, Any]:
    """Fields that KvStats and CameraStats have in common."""
    return {"frames_published": count.published, "frames_seen": count.seen, "frames_kept": count.kept,
            "frames_gated": count.gated, "drop_causes": [cause.value for cause in DropCause],
            "drop_counts": [count.dropped[cause.value] for cause in DropCause]}


def pose_message(pose: Pose, frame_id: str, stamp: float = 0.0) -> PoseStamped:
    """Build the PoseStamped message of a pose in a frame; a stamp of 0 stands for the newest transform."""
    message = PoseStamped()
    message.header.frame_id, message.header.stamp = frame_id, to_stamp(stamp)
    message.pose.position = Point(**dict(zip("xyz", pose.position, strict=True)))
    message.pose.orientation = Quaternion(**dict(zip("xyzw", pose.orientation, strict=True)))
    return message


def evidence_message(evidence: records.FrameEvidence) -> msg.FrameEvidence:
    """Build the FrameEvidence message."""
    experts = sorted(evidence.ranks)
    message = msg.FrameEvidence(
        frame_id=evidence.frame_id, stamp=to_stamp(evidence.stamp), stamp_end=to_stamp(evidence.stamp_end),
        camera=evidence.camera, score=float(evidence.score), kept_share=float(evidence.kept_share), experts=experts,
        ranks=[evidence.ranks[expert] for expert in experts],
        scores=[float(evidence.scores.get(expert, 0.0)) for expert in experts],
    )
    pose, end = evidence.pose, evidence.base_end
    if pose is not None:
        message.has_pose = True
        message.pose = pose_message(pose.camera, pose.frame_id, evidence.stamp)
        message.base_pose = message.base_pose_end = pose_message(pose.base, pose.frame_id, evidence.stamp)
        if end not in (None, pose.base):
            message.base_pose_end = pose_message(end, pose.frame_id, evidence.stamp_end)
    return message


def latency_message(latency: records.LatencyBreakdown) -> msg.LatencyBreakdown:
    """Build the LatencyBreakdown message."""
    names = ("queue_ms", "flush_ms", "retrieval_ms", "prefill_ms", "first_token_ms", "decode_ms", "total_ms")
    return msg.LatencyBreakdown(answer_tokens=latency.answer_tokens, **{name: getattr(latency, name) for name in names})


def question_from(request: Any, default_timeout: float, min_confidence: float = 0.0) -> Question:
    """Convert a Query request or an Ask goal; raise QuestionError for invalid limits."""
    point = request.near.point
    return Question(
        text=request.question, camera=request.camera, since=to_seconds(request.since), until=to_seconds(request.until),
        near=(point.x, point.y, point.z), radius=request.radius, near_frame=request.near.header.frame_id,
        max_new_tokens=request.max_new_tokens, conversation_id=request.conversation_id,
        timeout=default_timeout if request.timeout_s == 0.0 else request.timeout_s, min_confidence=min_confidence,
    )


def fill_answer(response: Any, answer: records.Answer, memory: msg.KvStats) -> Any:
    """Fill a Query response or an Ask result with an answer."""
    response.success = True
    response.answer = answer.text
    response.finish_reason = answer.finish_reason
    response.verdict = VERDICTS[answer.verdict]
    response.confidence = answer.confidence
    response.covered_since, response.covered_until = to_stamp(answer.covered_since), to_stamp(answer.covered_until)
    response.covered_share = answer.covered_share
    response.asked_at = to_stamp(answer.asked_at)
    response.evidence = [evidence_message(evidence) for evidence in answer.evidence]
    if answer.goal is not None:
        response.has_goal, response.goal = True, pose_message(answer.goal.base, answer.goal.frame_id)
    response.latency = latency_message(answer.latency)
    response.memory = memory
    return response


def fill_refusal(response: Any, reason: str, memory: msg.KvStats) -> Any:
    """Fill a Query response or an Ask result with the reason for a failure."""
    response.success = False
    response.message = reason
    response.memory = memory
    return response


def answer_message(request: Any, response: Any) -> msg.Answer:
    """Build the Answer message from a question and its response."""
    message = msg.Answer(
        question=request.question, camera=request.camera, since=request.since, until=request.until,
        near=request.near, radius=request.radius, conversation_id=request.conversation_id,
        success=response.success, message=response.message, answer=response.answer,
        finish_reason=response.finish_reason, evidence=response.evidence,
        has_goal=response.has_goal, goal=response.goal, latency=response.latency, memory=response.memory,
        verdict=response.verdict, confidence=response.confidence, covered_since=response.covered_since,
        covered_until=response.covered_until, covered_share=response.covered_share,
    )
    message.header.stamp = response.asked_at
    return message


def image_type(transport: str) -> type[Image] | type[CompressedImage]:
    """Return the message type of a transport."""
    return CompressedImage if transport == "compressed" else Image


