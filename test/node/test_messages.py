# SPDX-License-Identifier: Apache-2.0
"""Records to messages: nothing lost, nothing invented."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace

import pytest
from builtin_interfaces.msg import Time
from hypothesis import example, given
from hypothesis import strategies as st

from ros_kvstream.node.diagnostics import CameraHealth, Health, PoseHealth
from ros_kvstream.node.frame_counters import CameraCount, PoseCount
from ros_kvstream.node.messages import (
    PERCENTILE_SERIES,
    answer_message,
    evidence_message,
    fill_answer,
    fill_refusal,
    latency_message,
    question_from,
    stats_message,
    to_seconds,
    to_stamp,
)
from ros_kvstream.node.pose_buffer import PoseGap
from ros_kvstream.records import Answer, FrameEvidence, LatencyBreakdown, MemoryStats, Observation
from ros_kvstream.srv import Query

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


def test_latency_carries_every_field() -> None:
    record = LatencyBreakdown(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8)
    message = latency_message(record)
    assert all(getattr(message, item.name) == getattr(record, item.name) for item in fields(LatencyBreakdown))


def test_a_query_becomes_a_question_with_the_nodes_time_limit_unless_it_names_one() -> None:
    request = Query.Request(question="what ?", camera="rear", since=Time(sec=4), max_new_tokens=9, conversation_id="c")
    question = question_from(request, 12.0)
    assert (question.text, question.camera, question.since, question.until) == ("what ?", "rear", 4.0, 0.0)
    assert (question.max_new_tokens, question.conversation_id, question.timeout) == (9, "c", 12.0)
    request.timeout_s = 3.0
    assert question_from(request, 12.0).timeout == 3.0


def test_an_answer_and_a_refusal_are_recorded_with_their_question() -> None:
    request = Query.Request(question="%s {0} what ?", camera="rear")
    evidence = (FrameEvidence(1, 2.0, 2.0, "rear", 0.5),)
    answer = Answer("what ?", "a cone", evidence, LatencyBreakdown(), MEMORY, 2.0, "length")
    response = fill_answer(Query.Response(), answer, stats_message(Time(), HEALTH))
    recorded = answer_message(request, response)
    assert recorded.success and (recorded.question, recorded.answer) == ("%s {0} what ?", "a cone")
    assert recorded.finish_reason == "length" and len(recorded.evidence) == 1
    assert to_seconds(recorded.header.stamp) == 2.0
    refused = answer_message(request, fill_refusal(Query.Response(), "busy", stats_message(Time(), HEALTH)))
    assert not refused.success and refused.message == "busy" and refused.answer == "" and not refused.evidence
