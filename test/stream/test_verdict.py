# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from ros_kvstream.records import Verdict
from ros_kvstream.stream.verdict import verdict_of


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("what colour was the cone?", "none"),
        ("what came after the cone?", "nothing"),
        ("where was the cat?", "I do not know"),
        ("Where did you last see my keys?", "I don't know where they are."),
        ("what is the dog doing?", "There is no dog in the video."),
        ("was there a cone?", "no"),
        ("Did you see a person?", "No, I did not."),
        ("Is a person in view?", "No."),
        ("what is it?", "  "),
    ],
)
def test_words_of_absence_are_not_seen(question: str, answer: str) -> None:
    assert verdict_of(question, answer) is Verdict.NOT_SEEN


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("what colour was the cone?", "red"),
        ("was there a cone?", "yes"),
        ("is the door open?", "No, the door is closed."),
        ("is the robot moving?", "no"),
        ("what does the sign say?", "No parking"),
        ("what is on the table?", "Notebooks and a cup"),
    ],
)
def test_other_answers_are_seen(question: str, answer: str) -> None:
    assert verdict_of(question, answer) is Verdict.SEEN
