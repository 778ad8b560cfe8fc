"""Questions are asked when their frame has been played, one after the other, and every end is noticed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ros_kvstream.commands import interview
from ros_kvstream.commands.demo_plan import PlannedQuestion
from ros_kvstream.commands.interview import Interview, Reply
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup

PLAYER = """
import json, sys, time
frames, period, ends = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "ends"
for index in range(frames):
    print(json.dumps({"frame": index, "stamp": 100.0 + index}), flush=True)
    time.sleep(period)
if ends:
    print(json.dumps({"published": frames}), flush=True)
else:
    sys.exit("the disk is gone")
"""


class Client:
    """Stands for the node's client: answers at once, or never."""

    def __init__(self, seen: list[int], *, answers: bool = True) -> None:
        self.asked: list[tuple[str, int]] = []
        """Question and number of frames played when it was asked."""
        self._seen = seen
        self._answers = answers

    def ask(self, question: str) -> Future[Any]:
        self.asked.append((question, len(self._seen)))
        reply: Future[Any] = Future()
        if self._answers:
            reply.set_result(f"answer to {question}")
        return reply


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path, os.environ, patience=0.5) as group:
        yield group


def start(group: ProcessGroup, frames: int, period: float, ending: str = "ends") -> tuple[Process, Process]:
    node = group.start("node", [sys.executable, "-c", "import time; time.sleep(600)"])
    command = [sys.executable, "-c", PLAYER, str(frames), str(period), ending]
    return node, group.start("player", command, pipe=True)


def questions(*moments: int) -> list[PlannedQuestion]:
    return [PlannedQuestion(f"question {number}?", at, at) for number, at in enumerate(moments)]


def test_each_question_waits_for_its_frame_and_no_longer(group: ProcessGroup) -> None:
    seen: list[int] = []
    client, replies = Client(seen), list[Reply]()
    plan = questions(1, 3)
    talk = Interview(*start(group, 6, 0.0), client, plan, period=0.0)  # type: ignore[arg-type]
    published = talk.run(lambda index, stamp: seen.append(index), replies.append)
    assert (published, seen) == (6, [0, 1, 2, 3, 4, 5])
    assert client.asked == [("question 0?", 2), ("question 1?", 4)]
    assert [(reply.planned, reply.response) for reply in replies] == [
        (planned, f"answer to {planned.text}") for planned in plan
    ]


def test_questions_about_frames_that_never_come_are_asked_at_the_end(group: ProcessGroup) -> None:
    seen: list[int] = []
    client = Client(seen)
    Interview(*start(group, 2, 0.0), client, questions(5, 90), 0.1).run(  # type: ignore[arg-type]
        lambda index, stamp: seen.append(index), lambda reply: None
    )
    assert client.asked == [("question 0?", 2), ("question 1?", 2)]


def test_a_player_that_breaks_off_is_an_error_with_its_log(group: ProcessGroup) -> None:
    client = Client([])
    talk = Interview(*start(group, 2, 0.0, "breaks off"), client, questions(5), 0.1)  # type: ignore[arg-type]
    with pytest.raises(ProcessError, match=r"(?s)player ended before the recording did.*the disk is gone"):
        talk.run(lambda index, stamp: None, lambda reply: None)
    assert client.asked == []


def test_a_node_that_ends_is_an_error(group: ProcessGroup) -> None:
    node, player = start(group, 600, 1.0)
    talk = Interview(node, player, Client([]), questions(500), 0.1)  # type: ignore[arg-type]
    with pytest.raises(ProcessError, match="node ended with status"):
        talk.run(lambda index, stamp: node.kill(), lambda reply: None)


def test_a_node_that_does_not_reply_is_an_error(group: ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interview, "PATIENCE", 0.3)
    talk = Interview(*start(group, 2, 0.0), Client([], answers=False), questions(0), 0.1)  # type: ignore[arg-type]
    with pytest.raises(ProcessError, match="node did not reply within 0.3 s"):
        talk.run(lambda index, stamp: None, lambda reply: None)
