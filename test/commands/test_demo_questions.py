# SPDX-License-Identifier: Apache-2.0
"""The demo asks each question after its frame, one after the other, and reports processes that end or hang."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ros_kvstream.commands import demo
from ros_kvstream.commands.demo import TYPICAL_QUESTIONS, PlayedFrame, plan_without_answers, play_and_ask
from ros_kvstream.commands.demo_report import Reply
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup
from ros_kvstream.patrol.question_plan import PlannedQuestion, left_window
from ros_kvstream.recordings.bag_salvage import RawMessage
from ros_kvstream.recordings.bags import BagError

MESSAGE = RawMessage("/image", "sensor_msgs/msg/Image", 0, b"")


class FakePlayer:
    """A player that publishes each message after a period."""

    def __init__(self, period: float = 0.0) -> None:
        self._period = period

    def wait(self, message: RawMessage, longest: float) -> bool:
        time.sleep(min(self._period, longest))
        return self._period <= longest

    def publish(self, camera: str, message: RawMessage) -> None:
        pass


class Client:
    """A client of a node that answers at once, or never."""

    def __init__(self, *, answers: bool = True) -> None:
        self.seen: list[int] = []
        self.asked: list[tuple[str, int]] = []
        """Question and number of frames played when it was asked."""
        self._answers = answers

    def ask(self, question: str) -> Future[Any]:
        self.asked.append((question, len(self.seen)))
        reply: Future[Any] = Future()
        if self._answers:
            reply.set_result(f"answer to {question}")
        return reply


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Process]:
    with ProcessGroup(tmp_path, os.environ, patience=0.5) as group:
        yield group.start("node", [sys.executable, "-c", "import time; time.sleep(600)"])


def questions(*moments: int) -> list[PlannedQuestion]:
    return [PlannedQuestion(f"question {number}?", at, at) for number, at in enumerate(moments)]


def ask(client: Client, node: Process, frames: int, plan: list[PlannedQuestion], period: float = 0.0) -> list[Reply]:
    """Play and ask everything; the replies. The client counts the frames."""
    replies = []
    messages = [(100.0 + index, MESSAGE) for index in range(frames)]
    for event in play_and_ask(node, FakePlayer(), messages, client, plan, period):  # type: ignore[arg-type]
        if isinstance(event, PlayedFrame):
            client.seen.append(event.index)
        else:
            replies.append(event)
    return replies


def test_odometry_is_published_in_its_turn_and_is_no_frame(node: Process) -> None:
    pose = RawMessage("/odom", "nav_msgs/msg/Odometry", 0, b"pose")
    client, order = Client(), []
    messages = [(0.0, pose), (100.0, MESSAGE), (0.0, pose), (0.0, pose), (101.0, MESSAGE), (0.0, pose)]
    for event in play_and_ask(
        node, FakePlayer(), messages, client, questions(1), 0.0,  # type: ignore[arg-type]
        publish_pose=lambda data: order.append(data.decode()),
    ):  # fmt: skip
        order.append(f"frame {event.index} {event.stamp}" if isinstance(event, PlayedFrame) else "reply")
    played = [item for item in order if item != "reply"]
    assert played == ["pose", "frame 0 100.0", "pose", "pose", "frame 1 101.0", "pose"]
    assert order.count("reply") == 1 and order.index("reply") > order.index("frame 1 101.0")


def test_the_patrol_of_the_demo_has_poses_for_the_node(tmp_path: Path) -> None:
    settings = demo.DemoSettings(output=tmp_path, seconds=5.0)
    recording = demo.open_recording(settings, Console(quiet=True))
    messages = list(recording.messages())
    received = [message.received for _, message in messages]
    assert received == sorted(received)
    kinds = [message.type for _, message in messages]
    assert kinds.count("sensor_msgs/msg/Image") == recording.frames == 10
    assert kinds.count("nav_msgs/msg/Odometry") > 80 and kinds[0] == kinds[-1] == "nav_msgs/msg/Odometry"
    command = demo.node_command(settings, recording, demo.Budget(1.0, 0.5, 20))
    assert "pose.source:=topic" in command and "pose.topic:=/odom" in command


def test_each_question_is_asked_right_after_its_frame(node: Process) -> None:
    client, plan = Client(), questions(1, 3)
    replies = ask(client, node, 6, plan)
    assert client.seen == [0, 1, 2, 3, 4, 5]
    assert client.asked == [("question 0?", 2), ("question 1?", 4)]
    assert replies == [Reply(planned, f"answer to {planned.text}") for planned in plan]  # type: ignore[arg-type]


def test_questions_about_frames_that_never_come_are_asked_at_the_end(node: Process) -> None:
    client = Client()
    ask(client, node, 2, questions(5, 90), 0.1)
    assert client.asked == [("question 0?", 2), ("question 1?", 2)]


def test_a_recording_that_breaks_off_is_an_error(node: Process) -> None:
    def messages() -> Iterator[tuple[float, RawMessage]]:
        yield 100.0, MESSAGE
        raise BagError("the disk is gone")

    client = Client()
    with pytest.raises(BagError, match="the disk is gone"):
        list(play_and_ask(node, FakePlayer(), messages(), client, questions(5), 0.1))  # type: ignore[arg-type]
    assert client.asked == []


def test_a_node_that_ends_is_an_error(node: Process) -> None:
    messages = [(100.0, MESSAGE)] * 600
    with pytest.raises(ProcessError, match="node ended with status"):
        for _ in play_and_ask(node, FakePlayer(), messages, Client(), questions(500), 0.1):  # type: ignore[arg-type]
            node.kill()


def test_a_node_that_does_not_respond_is_an_error(node: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "RESPONSE_SECONDS", 0.3)
    with pytest.raises(ProcessError, match="node did not respond within 0.3 s"):
        ask(Client(answers=False), node, 2, questions(0), 0.1)


@pytest.mark.parametrize("frames", [2, 10, 1000])
def test_questions_with_unknown_answers_are_spread_over_the_later_part(frames: int) -> None:
    plan = plan_without_answers(TYPICAL_QUESTIONS, frames)
    assert [question.text for question in plan] == list(TYPICAL_QUESTIONS)
    assert [question.at for question in plan] == sorted(question.at for question in plan)
    assert all(0 <= question.at < frames and question.expected is None for question in plan)
    assert left_window(plan[0], [], 22) is None
