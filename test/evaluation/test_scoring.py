# SPDX-License-Identifier: Apache-2.0
"""What counts as right: every form of expected answer, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.scoring import (
    Choice,
    Exact,
    Number,
    OneOf,
    Pattern,
    Place,
    chosen_letter,
    first_number,
    read_expectation,
)

COLOURS = ("red", "green", "blue", "a yellow one")


@pytest.mark.parametrize(("answer", "right"), [("the red cone", True), ("A RED cone.", True), ("red", False),
                                               ("cone red", False), ("", False)])  # fmt: skip
def test_exact_compares_words_without_case_punctuation_and_articles(answer: str, right: bool) -> None:
    assert Exact("the red cone").accepts(answer) is right


def test_one_of_takes_any_of_its_answers() -> None:
    expected = OneOf(("kitchen", "the hall"))
    assert expected.accepts("Hall!") and expected.accepts("the kitchen") and not expected.accepts("kitchen hall")


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"), ("b", "B"), ("(C)", "C"), ("d.", "D"), ("B. green", "B"), ("The answer is C: blue", "C"),
        ("Option D", "D"), ("Best option: (A) red", "A"), ("green", "B"), ("It is B, I think", "B"),
        ("a yellow one", "D"), ("A yellow one", "D"), ("A cone, so B", "B"), ("nothing of that", ""), ("E", ""),
        ("", ""), ("I'd say C", "C"), ("A robot is in the yard. Answer: B", "B"), ("Not A, but B", "B"),
        ("A robot is in the yard", ""), ("The answer is A because it is red", "A"), ("The answer is a cone", ""),
        ("answer: b", "B"), ("(A) is wrong, so (C)", "C"), ("A is wrong. B.", "B"), ("B, not C", "B"),
        ("B rather than C", "B"), ("There is a cone.\nB. green", "B"), ("B. It has vitamin C.", "B"),
        ("The picture shows (B) green", "B"), ("A cone. The answer is A. No, the answer is D.", "D"),
        ("A) red (B) green: I choose B", "B"), ("**B**", "B"), ("The correct option is **C**.", "C"),
        ("A or B", ""), ("(A) or (B)", ""), ("Answer: A or B", ""), ("A, B", ""), ("A/B", ""), ("both A and C", ""),
        ("It may be A. It may be C.", ""), ("Neither A nor B", ""), ("Between A and B, the answer is B", "B"),
    ],
)  # fmt: skip
def test_the_letter_is_read_out_of_the_ways_in_which_models_answer(answer: str, letter: str) -> None:
    assert chosen_letter(answer, COLOURS) == letter


@given(st.sampled_from("ABCD"), st.sampled_from(["{}", "({})", "{}.", "{}) word", "Answer: {}", "The answer is {}."]))
def test_every_letter_is_found_in_every_usual_form(letter: str, form: str) -> None:
    assert Choice(letter, COLOURS).accepts(form.format(letter))
    assert not Choice("ABCD"["BCDA".index(letter)], COLOURS).accepts(form.format(letter))


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ("before_bracket", ("B", "B) green", "(B) green"), ("B. green", "the answer is B", "(A) B)")),
        ("first_capital", ("B", "The best answer is B.", "the cone is B or C"), ("C B", "green", "A. B")),
        ("contains", ("B", "either A or B"), ("A", "b", "")),
    ],
)
def test_benchmarks_read_letters_by_their_own_rules(rule: str, right: list[str], wrong: list[str]) -> None:
    expected = Choice("B", COLOURS, rule)
    assert [expected.accepts(answer) for answer in right] == [True] * len(right)
    assert [expected.accepts(answer) for answer in wrong] == [False] * len(wrong)


def test_a_pattern_is_searched_without_case() -> None:
    assert Pattern(r"\bred\b").accepts("Dark RED box") and not Pattern(r"\bred\b").accepts("bored")


@pytest.mark.parametrize(
    ("answer", "number"),
    [("3", 3), ("about -2.5 m", -2.5), ("three cones", 3), ("1,200", 1200), ("x3 4", 4), ("none", None),
     ("someone", None), ("2e3", 2000)],
)  # fmt: skip
def test_the_first_number_of_an_answer_counts(answer: str, number: float | None) -> None:
    assert first_number(answer) == number


def test_a_number_is_right_within_its_tolerance_and_on_its_edge() -> None:
    assert Number(3, 0.5).accepts("3.5") and not Number(3, 0.5).accepts("3.6") and Number(3).accepts("three")
    assert Number(0.2, 0.1).accepts("0.3")


FORMS = [
    ("red", Exact("red")), (["red", "crimson"], OneOf(("red", "crimson"))), (3, Number(3.0)), (True, Exact("yes")),
    ({"one_of": ["a", "b c"]}, None), ({"exact": "no one"}, Exact("no one")), ({"regex": "x|y"}, Pattern("x|y")),
    ({"number": 2.5, "tolerance": 0.1}, Number(2.5, 0.1)), ({"number": 2}, Number(2.0)),
    ({"choice": "b", "choices": ["x", "y"]}, Choice("B", ("x", "y"))),
    ({"choice": "A", "choices": ["x", 2, True], "rule": "contains"}, Choice("A", ("x", "2", "yes"), "contains")),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), [form for form in FORMS if form[1] is not None])
def test_every_form_is_read_and_written_and_read_again(value: object, expected: object) -> None:
    read = read_expectation(value)
    assert read == expected
    assert read_expectation(read.data()) == read
    assert read.text()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "exact"), ("the", "exact"), ([], "one_of"), ([["red"]], "one_of"), ({}, "exactly one of"),
        ({"exact": "a red", "regex": "b"}, "exactly one of"), ({"regex": "("}, r"regex = '\('"),
        ({"number": "3"}, "number"), ({"number": 3, "tolerance": -1}, "tolerance"), ({"number": True}, "number"),
        ({"choice": "E", "choices": ["x", "y"]}, "must be one of A, B"), ({"choice": "A"}, "choices"),
        ({"choice": "A", "choices": ["x"]}, "2 to 26"), ({"exact": "x", "tolerance": 1}, "tolerance"),
        ({"choice": "A", "choices": ["x", "y"], "rule": "guess"}, "rule = 'guess'"), (None, "expected = None"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_expectation_is_refused_by_name(value: object, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_expectation(value)


def test_a_place_is_right_within_its_distance_whatever_the_text_says() -> None:
    expected = read_expectation({"place": [3, 4], "within": 5.0})
    assert expected == Place((3.0, 4.0), 5.0) and read_expectation(expected.data()) == expected
    assert expected.right("", (0.0, 0.0, 9.0)) and not expected.right("(3, 4)", (-0.1, 0.0, 0.0))
    assert not expected.right("(3, 4)", None)
    assert Place((3.0, 4.0), 1.0).error((0.0, 0.0, 7.0)) == 5.0


@pytest.mark.parametrize(("value", "said"), [
    ({"place": [1], "within": 1}, "must be a list of 2 numbers"), ({"place": [1, "x"]}, "must be a number"),
    ({"place": [1, 2], "within": 0}, "a distance above 0"), ({"place": [1, float("nan")]}, "must be finite"),
    ({"place": [1, 2], "tolerance": 1}, "place does not go with tolerance"),
])  # fmt: skip
def test_a_place_that_is_none_is_refused(value: object, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        read_expectation(value)


def test_other_answers_are_right_by_their_text_with_or_without_a_goal() -> None:
    assert Exact("red").right("red", None) and Exact("red").right("Red.", (1.0, 2.0, 3.0))
