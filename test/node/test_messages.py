# SPDX-License-Identifier: Apache-2.0
"""Records to messages: nothing lost, nothing invented."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace

import pytest
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Point, PointStamped, PoseStamped
from hypothesis import example, given
from hypothesis import strategies as st
from std_msgs.msg import Header

from ros_kvstream.action import Ask
from ros_kvstream.msg import Answer as AnswerMessage
from ros_kvstream.msg import KvStats
from ros_kvstream.node.diagnostics import CameraHealth, Health, PoseHealth
from ros_kvstream.node.frame_counters import CameraCount, PoseCount
from ros_kvstream.node.messages import (
    PERCENTILE_SERIES,
    VERDICTS,
    answer_message,
    evidence_message,
    fill_answer,
    fill_refusal,
    latency_message,
    pose_message,
    question_from,
    stats_message,
    to_seconds,
    to_stamp,
)
from ros_kvstream.node.pose_buffer import PoseGap
from ros_kvstream.poses import FramePose, Pose
from ros_kvstream.records import Answer, FrameEvidence, LatencyBreakdown, MemoryStats, Observation, Verdict
from ros_kvstream.srv import Query

BASE = Pose((1.0, 2.0, 0.0), (0.0, 0.0, 0.6, 0.8))
SEEN_AT = FramePose("map#a", BASE, BASE.compose(Pose((0.2, 0.0, 0.7))))
MEMORY = MemoryStats(**{item.name: number + 1 for number, item in enumerate(fields(MemoryStats))})
COUNT = CameraCount(5, 4, 3, 1)
FRAME = Observation(0, True, 4, vision_ms=2.5, prefill_ms=3.5, compaction_ms=4.5)
HEALTH = Health(model="tiny", policy="tar", memory=MEMORY, process_bytes=7, frames=COUNT, queue_capacity=2,
                questions_waiting=1, newest=FRAME, cameras=[CameraHealth("rear", "/rear/image", 2.0, True, COUNT)])


@given(st.integers(-(2**31), 2**31 - 2), st.integers(0, 999_999_999))
@example(2**31 - 2, 999_999_881)  # rounds up to the last second of the range
@example(2**31 - 1, 0)
def test_a_stamp_survives_as_seconds_within_a_microsecond(seconds: int, nanoseconds: int) -> None:
    stamp = to_stamp(to_seconds(Time(sec=seconds, nanosec=nanoseconds)))
    assert abs((stamp.sec - seconds) * 10**9 + stamp.nanosec - nanoseconds) < 1000


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e300, 2.0**31, -(2.0**31) - 1])
def test_seconds_that_are_no_stamp_become_zero(seconds: float) -> None:
    assert to_stamp(seconds) == Time()


def test_figures_carry_every_field_of_the_memory() -> None:
    HEALTH.metrics.add("vision", 3.0)
    message = stats_message(Time(sec=3), HEALTH)
    own = {"frames_seen": 4, "frames_kept": 3, "frames_gated": 1}  # the node's counters, which clear does not reset
    for item in fields(MemoryStats):
        if item.name in ("camera_slots", "archive_problem", "position_limit", "position_source"):  # in diagnostics
            continue
        found, wanted = getattr(message, item.name), getattr(MEMORY, item.name)
        if item.name.endswith("_stamp"):
            found = to_seconds(found)
        assert found == own.get(item.name, wanted), item.name
    assert message.frames_published == 5 and message.queue_length == 1 and message.header.stamp.sec == 3
    assert (message.vision_ms, message.prefill_ms, message.compaction_ms) == (2.5, 3.5, 4.5)
    assert message.vision_percentiles_ms.p95 == 3.0 and message.cameras[0].name == "rear"
    assert message.cameras[0].frames_published == 5 and message.cameras[0].silence_s == 2.0
    assert len(message.drop_causes) == len(message.drop_counts) == 6


def test_every_percentiles_field_has_its_series() -> None:
    fields = stats_message(Time(), HEALTH).get_fields_and_field_types()
    assert {name for name, kind in fields.items() if kind == "ros_kvstream/Percentiles"} == set(PERCENTILE_SERIES)


def test_figures_list_every_cause_of_a_missing_pose_in_parallel_also_without_a_source() -> None:
    count = PoseCount(7, Counter(age=2, transform=1))
    message = stats_message(Time(), replace(HEALTH, pose=PoseHealth("tf", count=count)))
    assert message.frames_with_pose == 7
    assert list(message.pose_missing_causes) == [gap.value for gap in PoseGap]
    counts = dict(zip(message.pose_missing_causes, message.pose_missing_counts, strict=True))
    assert counts == {**dict.fromkeys(counts, 0), "age": 2, "transform": 1}
    none = stats_message(Time(), HEALTH)
    assert list(none.pose_missing_counts) == [0] * len(PoseGap) and none.frames_with_pose == 0


def test_evidence_lists_experts_in_parallel() -> None:
    ranks, scores = {"internal": 2, "external": 1}, {"internal": 0.1, "external": 9.0}
    record = FrameEvidence(7, 1.5, 2.5, "front", 0.25, 0.5, ranks, scores)
    message = evidence_message(record)
    assert list(zip(message.experts, message.ranks, message.scores, strict=True)) == [
        ("external", 1, 9.0), ("internal", 2, 0.1)]
    assert (to_seconds(message.stamp), to_seconds(message.stamp_end), message.camera) == (1.5, 2.5, "front")


def numbers(message: PoseStamped) -> list[float]:
    """Position and orientation of a message, as ``Pose.numbers``."""
    at, turned = message.pose.position, message.pose.orientation
    return [at.x, at.y, at.z, turned.x, turned.y, turned.z, turned.w]


def test_a_pose_is_stamped_in_its_frame() -> None:
    message = pose_message(BASE, "map", 1.5)
    assert numbers(message) == [1.0, 2.0, 0.0, *BASE.orientation]
    assert message.header.frame_id == "map" and to_seconds(message.header.stamp) == 1.5


def test_evidence_carries_the_poses_of_camera_and_base_at_the_ends_of_its_span() -> None:
    end = Pose((3.0, 2.0, 0.0))
    message = evidence_message(FrameEvidence(7, 1.5, 2.5, "front", 0.25, pose=SEEN_AT, base_end=end))
    assert message.has_pose
    poses = [(message.pose, SEEN_AT.camera, 1.5), (message.base_pose, BASE, 1.5), (message.base_pose_end, end, 2.5)]
    for found, wanted, stamp in poses:
        assert numbers(found) == [*wanted.position, *wanted.orientation]
        assert (found.header.frame_id, to_seconds(found.header.stamp)) == ("map", stamp)


def test_without_a_pose_of_a_redundant_frame_the_last_pose_of_the_base_is_the_first() -> None:
    for record in (FrameEvidence(7, 1.5, 2.5, "front", 0.25, pose=SEEN_AT, base_end=BASE),
                   FrameEvidence(7, 1.5, 2.5, "front", 0.25, pose=SEEN_AT)):
        message = evidence_message(record)
        assert message.base_pose_end == message.base_pose


def test_evidence_without_a_pose_has_none() -> None:
    message = evidence_message(FrameEvidence(7, 1.5, 2.5, "front", 0.25))
    assert not message.has_pose and message.pose == message.base_pose == message.base_pose_end == PoseStamped()


def test_latency_carries_every_field() -> None:
    record = LatencyBreakdown(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8)
    message = latency_message(record)
    assert all(getattr(message, item.name) == getattr(record, item.name) for item in fields(LatencyBreakdown))


def test_a_query_becomes_a_question_with_the_nodes_time_limit_unless_it_names_one() -> None:
    request = Query.Request(question="what ?", camera="rear", since=Time(sec=4), max_new_tokens=9, conversation_id="c")
    question = question_from(request, 12.0)
    assert (question.text, question.camera, question.since, question.until) == ("what ?", "rear", 4.0, 0.0)
    assert (question.max_new_tokens, question.conversation_id, question.timeout) == (9, "c", 12.0)
    assert (question.near, question.radius) == ((0.0, 0.0, 0.0), 0.0)
    request.timeout_s = 3.0
    assert question_from(request, 12.0).timeout == 3.0


def test_a_query_near_a_place_becomes_a_question_with_the_point_and_its_frame() -> None:
    request = Query.Request(question="what ?", near=near(4.0, -5.0, 0.5), radius=2.5)
    question = question_from(request, 12.0)
    assert (question.near, question.radius, question.near_frame) == ((4.0, -5.0, 0.5), 2.5, "map")


def near(x: float, y: float, z: float, frame_id: str = "map") -> PointStamped:
    return PointStamped(header=Header(frame_id=frame_id), point=Point(x=x, y=y, z=z))


def test_the_goal_is_where_the_base_was_for_the_best_evidence_with_a_pose() -> None:
    evidence = (FrameEvidence(1, 2.0, 2.0, "rear", 0.9), FrameEvidence(0, 1.0, 1.5, "rear", 0.5, pose=SEEN_AT))
    answer = Answer("what ?", "a cone", evidence, LatencyBreakdown(), MEMORY, 2.0)
    response = fill_answer(Query.Response(), answer, stats_message(Time(), HEALTH))
    assert response.has_goal and response.goal == pose_message(BASE, "map")
    assert response.goal.header.stamp == Time()  # stands for the newest transform
    assert [frame.has_pose for frame in response.evidence] == [False, True]
    request = Query.Request(question="what ?", near=near(1.0, 2.0, 3.0), radius=9.0)
    recorded = answer_message(request, response)
    assert (recorded.near, recorded.radius) == (request.near, 9.0)
    assert (recorded.has_goal, recorded.goal) == (True, response.goal)


def test_an_answer_and_a_refusal_are_recorded_with_their_question() -> None:
    request = Query.Request(question="%s {0} what ?", camera="rear")
    evidence = (FrameEvidence(1, 2.0, 2.0, "rear", 0.5),)
    answer = Answer("what ?", "a cone", evidence, LatencyBreakdown(), MEMORY, 2.0, "length")
    response = fill_answer(Query.Response(), answer, stats_message(Time(), HEALTH))
    recorded = answer_message(request, response)
    assert recorded.success and (recorded.question, recorded.answer) == ("%s {0} what ?", "a cone")
    assert recorded.finish_reason == "length" and len(recorded.evidence) == 1
    assert not recorded.has_goal and recorded.goal == PoseStamped()
    assert to_seconds(recorded.header.stamp) == 2.0
    refused = answer_message(request, fill_refusal(Query.Response(), "busy", stats_message(Time(), HEALTH)))
    assert not refused.success and refused.message == "busy" and refused.answer == "" and not refused.evidence


def test_an_answer_carries_its_verdict_its_confidence_and_what_is_covered() -> None:
    answer = Answer("q", "none", (), LatencyBreakdown(), MEMORY, 9.0, verdict=Verdict.NOT_SEEN, confidence=0.75,
                    covered_since=1.5, covered_until=8.5, covered_share=0.25)  # fmt: skip
    response = fill_answer(Query.Response(), answer, KvStats())
    message = answer_message(Query.Request(), response)
    for found in (response, message):
        assert (found.verdict, found.confidence, found.covered_share) == (found.VERDICT_NOT_SEEN, 0.75, 0.25)
        assert (to_seconds(found.covered_since), to_seconds(found.covered_until)) == (1.5, 8.5)


def test_verdicts_have_the_same_numbers_in_every_interface() -> None:
    for verdict, number in VERDICTS.items():
        for interface in (AnswerMessage, Query.Response, Ask.Result):
            assert getattr(interface, f"VERDICT_{verdict.name}") == number
    assert fill_refusal(Query.Response(), "no", KvStats()).verdict == Query.Response.VERDICT_NONE
