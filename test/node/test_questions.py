# SPDX-License-Identifier: Apache-2.0
"""Questions: what is refused, how many wait, and how their time runs out."""

from __future__ import annotations

import math

import pytest

from ros_kvstream.errors import QuestionCancelled, QuestionError
from ros_kvstream.node.questions import MAX_QUESTION_CHARACTERS, PendingQuestion, Question, QuestionQueue


@pytest.mark.parametrize(("limits", "named"), [
    ({"text": "a" * (MAX_QUESTION_CHARACTERS + 1)}, str(MAX_QUESTION_CHARACTERS + 1)),
    ({"conversation_id": "c" * 201}, "conversation_id has 201"),
    ({"timeout": -1.0}, "timeout_s = -1"),
    ({"timeout": math.nan}, "timeout_s = nan"),
    ({"timeout": math.inf}, "timeout_s = inf"),
])
def test_what_cannot_be_asked_is_refused_by_name(limits: dict, named: str) -> None:
    with pytest.raises(QuestionError, match=named):
        Question(**{"text": "what?", **limits})


def test_questions_are_taken_in_order_and_the_one_too_many_is_told_busy() -> None:
    queue = QuestionQueue()
    asked = [PendingQuestion(Question(str(number))) for number in range(4)]
    queue.put(asked[0], limit=3)
    assert queue.take() is asked[0]
    queue.put(asked[1], limit=3)
    queue.put(asked[2], limit=3)
    with pytest.raises(QuestionError, match="busy: 3 questions"):
        queue.put(asked[3], limit=3)
    queue.done()
    queue.put(asked[3], limit=3)
    assert [queue.take(), queue.take(), queue.take(), queue.take()] == [*asked[1:], None]


def test_a_waiting_question_whose_time_is_up_ends_without_the_worker() -> None:
    queue = QuestionQueue()
    late, patient = PendingQuestion(Question("late", timeout=1e-9)), PendingQuestion(Question("patient"))
    for pending in (late, patient):
        queue.put(pending, limit=3)
    queue.expire()
    assert isinstance(late.answer.exception(timeout=0), QuestionCancelled)
    assert "no answer within" in str(late.answer.exception())
    assert not patient.answer.done() and queue.take() is patient


def test_only_the_first_outcome_of_a_question_counts() -> None:
    pending = PendingQuestion(Question("what?"))
    pending.finish(QuestionError("first"))
    pending.finish(QuestionError("second"))
    assert str(pending.answer.exception(timeout=0)) == "first"


def test_a_cancelled_question_keeps_its_first_reason() -> None:
    pending = PendingQuestion(Question("what?"))
    assert not pending.should_stop()
    pending.cancel("the node was deactivated")
    pending.cancel("another")
    assert pending.should_stop() and pending.stop_reason() == "the node was deactivated"
