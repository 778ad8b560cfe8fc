# SPDX-License-Identifier: Apache-2.0
"""A real node process over DDS: frames in, questions answered, everything accounted for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from action_msgs.msg import GoalInfo, GoalStatus
from action_msgs.srv import CancelGoal
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.action import ActionClient
from sensor_msgs.msg import Image
from support.running_node import RunningNode, image, picture, running_node

from ros_kvstream.action import Ask
from ros_kvstream.msg import KvStats
from ros_kvstream.node.messages import to_seconds, to_stamp

LONG_ANSWER = 800
"""Tokens of an answer that takes seconds."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[RunningNode]:
    parameters = {"model": random_model, "memory.max_answer_tokens": LONG_ANSWER, "ingest.queue_frames": 2}
    with running_node(tmp_path_factory.mktemp("questions"), parameters) as running:
        running.until_active()
        yield running


@pytest.fixture(scope="module")
def camera(node: RunningNode):
    return node.camera("/image")


class Published:
    """Counts what a test publishes, with growing stamps over all tests of this module."""

    stamp = 100.0


def publish(node: RunningNode, camera, count: int, encoding: str = "rgb8") -> float:
    """Publish pictures 0.1 s apart and wait until each is accounted for; returns the newest stamp."""
    before = node.until_stats(lambda _: True)
    for _ in range(count):
        Published.stamp = round(Published.stamp + 0.1, 3)
        camera.publish(image(picture(int(10 * Published.stamp)), Published.stamp, encoding))
        node.spin(0.02)
    node.until_stats(lambda now: accounted(now) and now.frames_published >= before.frames_published + count)
    return Published.stamp


def accounted(stats: KvStats) -> bool:
    """Whether published = seen + dropped, with nothing waiting, and seen = kept + gated."""
    return (stats.frames_published == stats.frames_seen + sum(stats.drop_counts) and stats.queue_length == 0
            and stats.frames_seen == stats.frames_kept + stats.frames_gated)


def dropped(stats: KvStats, cause: str) -> int:
    return stats.drop_counts[stats.drop_causes.index(cause)]


def test_a_question_before_the_first_frame_says_so_and_the_node_lives(node: RunningNode) -> None:
    response = node.ask("what is there ?")
    assert response.success and response.finish_reason == "not_covered" and "not seen anything" in response.answer
    assert node.lifecycle_state() == "active"


def test_an_answer_comes_with_evidence_latency_and_memory(node: RunningNode, camera) -> None:
    newest = publish(node, camera, 10)
    before = len(node.answers)
    response = node.ask("what colour is the cone ?", max_new_tokens=7, conversation_id="tour")
    assert response.success, response.message
    assert response.finish_reason == "length" and response.latency.answer_tokens == 7 and response.answer
    assert to_seconds(response.asked_at) == pytest.approx(newest, abs=1e-6)
    assert response.evidence and {evidence.camera for evidence in response.evidence} == {"camera"}
    assert all(100.0 < to_seconds(evidence.stamp) <= newest + 1e-6 for evidence in response.evidence)
    assert 0 < response.latency.first_token_ms <= response.latency.total_ms
    memory = response.memory
    assert 0 < memory.used_bytes <= memory.peak_bytes <= memory.allocated_bytes <= memory.budget_bytes == 8 << 20
    node.until(lambda: len(node.answers) > before, "the answer on ~/answers")
    recorded = node.answers[-1]
    assert recorded.success and recorded.answer == response.answer and recorded.conversation_id == "tour"
    assert recorded.question == "what colour is the cone ?" and recorded.header.stamp == response.asked_at


def test_the_memory_is_rolled_back_after_a_question(node: RunningNode, camera) -> None:
    publish(node, camera, 3)
    node.spin(1.1)
    before = node.until_stats(accounted)
    first = node.ask("what is there ?", max_new_tokens=20)
    second = node.ask("what is there ?", max_new_tokens=20)
    assert first.answer == second.answer and first.evidence == second.evidence
    for response in (first, second):
        for name in ("used_bytes", "slots_used", "frames_remembered", "frames_seen", "allocated_bytes"):
            assert getattr(response.memory, name) == getattr(before, name), name
    assert second.memory.questions == first.memory.questions + 1


@pytest.mark.parametrize(("limits", "named"), [
    ({"question": "  "}, "empty"),
    ({"question": "what ?", "max_new_tokens": 10**9}, "max_new_tokens = 1000000000"),
    ({"question": "what " * 2000}, "tokens: the limit is 256"),
    ({"question": "what ?", "since": to_stamp(9.0), "until": to_stamp(8.0)}, "since = 9"),
    ({"question": "what ?", "since": to_stamp(9.0), "until": to_stamp(-5.0)}, "until = -5.0: must be a stamp"),
    ({"question": "what ?", "timeout_s": float("nan")}, "timeout_s = nan"),
], ids=lambda value: str(value)[:40])
def test_an_impossible_question_is_refused_with_the_reason(node: RunningNode, camera, limits: dict, named: str) -> None:
    publish(node, camera, 1)
    response = node.ask(limits.pop("question"), **limits)
    assert not response.success and named in response.message and response.answer == ""
    assert node.ask("what is there ?", max_new_tokens=1).success


@pytest.mark.parametrize(("limits", "named"), [
    ({"camera": "nowhere"}, "camera = 'nowhere'"), ({"since": to_stamp(1e6)}, "since = 1000000"),
], ids=["camera", "time"])
def test_what_is_not_covered_is_answered_in_words_without_the_model(
    node: RunningNode, camera, limits: dict, named: str
) -> None:
    publish(node, camera, 1)
    response = node.ask("what is there ?", **limits)
    assert response.success and response.verdict == response.VERDICT_NOT_COVERED
    assert named in response.answer and response.confidence == 0.0 and not response.evidence
    covered = node.ask("what is there ?", max_new_tokens=1)
    assert covered.verdict in (covered.VERDICT_SEEN, covered.VERDICT_NOT_SEEN) and covered.covered_share > 0.0


def test_while_a_question_is_answered_newest_frames_win_and_all_are_accounted_for(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    before = node.until_stats(accounted)
    answer = node.ask_later("what is there ?", max_new_tokens=LONG_ANSWER)
    for _ in range(12):
        Published.stamp = round(Published.stamp + 0.1, 3)
        camera.publish(image(picture(int(10 * Published.stamp)), Published.stamp))
        node.spin(0.03)
    assert not answer.done(), "the answer must still be running for this test to mean anything"
    node.until(answer.done, "the long answer")
    after = node.until_stats(  # the memory's own statistics follow the node's counters within a moment
        lambda now: accounted(now) and now.frames_published >= before.frames_published + 12
        and to_seconds(now.newest_stamp) == pytest.approx(Published.stamp, abs=1e-6))
    assert answer.result().success and answer.result().latency.answer_tokens == LONG_ANSWER
    assert after.frames_published - before.frames_published == 12
    assert dropped(after, "queue") - dropped(before, "queue") >= 12 - 3  # two wait, one may have gone in before


def test_three_questions_at_once_are_answered_in_order_and_the_fourth_is_told_busy(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    asked = [node.ask_later("what is there ?", max_new_tokens=200) for _ in range(4)]
    node.until(asked[3].done, "the refusal of the fourth")
    assert not asked[3].result().success and "busy" in asked[3].result().message
    assert not asked[2].done()
    node.until(lambda: all(future.done() for future in asked), "all answers")
    waited = [future.result().latency.queue_ms for future in asked[:3]]
    assert all(future.result().success for future in asked[:3]) and waited == sorted(waited)


def test_the_answer_is_published_piece_by_piece(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    node.tokens.clear()
    response = node.ask("what is there ?", max_new_tokens=30, conversation_id="tour")
    node.until(lambda: len(node.tokens) >= 30, "all pieces")
    assert [token.index for token in node.tokens] == list(range(30))
    assert "".join(token.text for token in node.tokens) == response.answer
    assert {token.conversation_id for token in node.tokens} == {"tour"}
    assert len({token.question_id for token in node.tokens}) == 1


def test_the_action_answers_as_the_service_does_with_its_text_as_feedback(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    expected = node.ask("what is there ?", max_new_tokens=30)
    goal, feedback = node.ask_action("what is there ?", max_new_tokens=30)
    status, result = node.result(goal)
    assert status == GoalStatus.STATUS_SUCCEEDED and result.success
    assert (result.answer, result.evidence) == (expected.answer, expected.evidence)
    node.until(lambda: len(feedback) >= 30, "all feedback")
    assert "".join(piece.text for piece in feedback) == expected.answer


def test_a_cancelled_goal_stops_and_the_memory_is_as_before(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    before = node.ask("what is there ?", max_new_tokens=3)
    goal, feedback = node.ask_action("what is there ?", max_new_tokens=LONG_ANSWER)
    node.until(lambda: feedback, "the first piece")
    goal.cancel_goal_async()
    status, result = node.result(goal)
    assert status == GoalStatus.STATUS_CANCELED
    assert not result.success and result.message == "cancelled by the client" and len(feedback) < LONG_ANSWER
    after = node.ask("what is there ?", max_new_tokens=3)
    assert after.answer == before.answer and after.memory.slots_used == before.memory.slots_used


def test_a_cancel_right_behind_its_goal_is_never_lost(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    client, accepted = ActionClient(node.client, Ask, "/kvstream/ask"), 0
    node.until(client.server_is_ready, "the action ~/ask")
    for _ in range(30):
        uuid = GoalInfo().goal_id
        uuid.uuid = np.frombuffer(os.urandom(16), np.uint8)
        goal = Ask.Goal(question="what is there ?", max_new_tokens=LONG_ANSWER)
        sent = client.send_goal_async(goal, goal_uuid=uuid)
        request = CancelGoal.Request(goal_info=GoalInfo(goal_id=uuid))
        response = node.call(CancelGoal, "/kvstream/ask/_action/cancel_goal", request)
        node.until(sent.done, "the goal to be accepted")
        if response.goals_canceling:
            accepted += 1
        else:  # the cancel overtook its goal, and was refused
            sent.result().cancel_goal_async()
        status, result = node.result(sent.result())
        assert status == GoalStatus.STATUS_CANCELED and result.message == "cancelled by the client"
    assert accepted
    client.destroy()


def test_a_goal_that_cannot_be_answered_is_aborted_with_the_reason(node: RunningNode) -> None:
    goal, _ = node.ask_action(" ")
    status, result = node.result(goal)
    assert status == GoalStatus.STATUS_ABORTED and "empty" in result.message


def test_a_time_limit_stops_generation_and_the_memory_is_as_before(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    before = node.ask("what is there ?", max_new_tokens=3)
    late = node.ask("what is there ?", max_new_tokens=LONG_ANSWER, timeout_s=0.3)
    assert not late.success and "no answer within 0.3 s" in late.message
    after = node.ask("what is there ?", max_new_tokens=3)
    assert after.answer == before.answer and after.memory.slots_used == before.memory.slots_used


@pytest.mark.parametrize("encoding", ["rgb9", "32FC1"])
def test_a_bad_encoding_is_counted_named_in_diagnostics_and_survived(node: RunningNode, camera, encoding: str) -> None:
    before = node.until_stats(accounted)
    pixels = picture(1)
    camera.publish(Image(height=56, width=56, step=56 * 3, encoding=encoding, data=pixels.tobytes()))
    node.until_status("camera camera", lambda status: status.level == DiagnosticStatus.WARN
                      and encoding in status.message)
    after = node.until_stats(lambda now: accounted(now) and now.frames_published > before.frames_published)
    assert dropped(after, "encoding") == dropped(before, "encoding") + 1
    publish(node, camera, 1)


def test_a_frame_without_a_stamp_gets_the_time_of_its_arrival(node: RunningNode, camera) -> None:
    now = to_seconds(node.client.get_clock().now().to_msg())
    camera.publish(image(picture(4), 0.0))
    node.until_stats(lambda stats: abs(to_seconds(stats.newest_stamp) - now) < 60.0)


def test_what_is_kept_is_drawn_while_somebody_looks(node: RunningNode, camera) -> None:
    seen: list[Image] = []
    looking = node.client.create_subscription(Image, "/kvstream/kept_tokens", seen.append, 1)
    while not any(drawn.height > 480 for drawn in seen):  # a square frame, and moments below it
        newest = publish(node, camera, 3)
        assert newest < 1e6
    drawn = seen[-1]
    assert (drawn.encoding, drawn.width, drawn.step) == ("rgb8", 480, 1440)
    assert to_seconds(drawn.header.stamp) <= newest + 1e-6
    node.client.destroy_subscription(looking)


def test_clear_forgets_every_frame_and_the_node_goes_on(node: RunningNode, camera) -> None:
    publish(node, camera, 2)
    cleared = node.clear()
    assert cleared.success and "frames evicted" in cleared.message
    stats = node.until_stats(lambda now: now.frames_remembered == 0)
    assert stats.slots_used == 0 and accounted(stats)
    assert node.ask("what is there ?").finish_reason == "not_covered"
    publish(node, camera, 1)
    assert node.ask("what is there ?", max_new_tokens=1).success


def test_ctrl_c_ends_the_node_cleanly_while_it_works(node: RunningNode, camera) -> None:
    publish(node, camera, 1)
    node.ask_later("what is there ?", max_new_tokens=LONG_ANSWER)
    node.spin(0.3)
    assert node.interrupt() == 0
    assert "Traceback" not in node.output()
