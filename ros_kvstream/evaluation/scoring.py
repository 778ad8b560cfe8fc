# SPDX-License-Identifier: Apache-2.0
"""Expected answers: exact words, one of several, a choice, a pattern, a number within a tolerance, or a place."""

from __future__ import annotations

import dataclasses
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ros_kvstream.errors import SettingsError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Letters of the choices, in order."""
_ARTICLES = frozenset(("a", "an", "the"))
_NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_DIGITS = r"(?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBER = re.compile(_DIGITS + r"|\b(?:" + "|".join(_NUMBER_WORDS) + r")\b")
_PREFIXES = re.compile(
    r"^\W*(?:(?:the|my|your)\s+)?(?:(?:best|correct|right|final)\s+)?(?:answer|option|choice)\s*(?:is|:|=)?\s*", re.I
)
_LETTER = r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])"
_STATED = re.compile(
    r"\b(?i:answer|option|choice|choose|chose|pick|select)\b(?:\s+(?i:is|would\s+be|should\s+be|must\s+be|option)\b)?"
    r"\s*[:=]?\s*[(\[\"'*]*(?<![A-Za-z'])([A-Za-z])(?![A-Za-z'])"
)
_FORMS = (
    _STATED,
    re.compile(r"^[\s(\[\"'*]*([A-Za-z])[)\].:,](?!\w)", re.M),
    re.compile(r"[(\[]([A-Z])[)\]]"),
    re.compile(_LETTER),
)
_JOINED = re.compile(
    r"[)\].]*\s*(?:,|/|\bor\b|\band\b|&)\s*(?:(?:or|and)\s+)?(?:(?i:option)\s+)?[(\[]*" + _LETTER + r"(?!\s+[a-z])"
)
_DENIED_BEFORE = re.compile(
    r"\b(?:not|never|neither|nor|than|instead of|except|excluding|isn't|n't)(?:\s+(?:option|choice|be|is|the))*"
    r"\s*[(\[\"']*$",
    re.I,
)
_DENIED_AFTER = re.compile(
    r"[)\].\"']*\s+(?:is|are|was|would be|seems|looks)(?:n't|\s+(?:not|wrong|incorrect|false|ruled))", re.I
)
_NOUN_AFTER = re.compile(
    r"\s+(?!(?:because|since|as|is|was|and|or|but|for|with|if|seems|looks|would|fits|matches|it|the|this|that|which)\b)[a-z]"
)
"""After the letters A and I: a word that makes them an article or a pronoun."""


def words(text: str) -> list[str]:
    """Words of a text for comparison, without case, punctuation and articles."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in _ARTICLES]


@dataclass(frozen=True)
class Expectation(ABC):
    """An expected answer. Its first field is named by ``form`` in files, the others by their own names."""

    form: ClassVar[str]
    """Name of the form in files."""

    @abstractmethod
    def accepts(self, answer: str) -> bool:
        """Return whether the answer's text is right."""

    def right(self, answer: str, goal: Sequence[float] | None) -> bool:
        """Return whether an answer is right.

        :param goal: position of the answer's goal, x, y, z in metres; None where it has none.
        """
        return self.accepts(answer)

    def error(self, goal: Sequence[float] | None) -> float | None:
        """Distance of an answer's goal from the expected place, metres; None without a goal or an expected place."""
        return None

    def text(self) -> str:
        """The expected answer for people."""
        return str(getattr(self, dataclasses.fields(self)[0].name))

    def data(self) -> dict[str, Any]:
        """Plain data, from which :func:`read_expectation` makes an equal expectation."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        listed = [list(value) if isinstance(value, tuple) else value for value in values]
        return dict(zip(self.keys(), listed, strict=True))

    @classmethod
    def keys(cls) -> list[str]:
        """Keys of the form in files."""
        return [cls.form, *(field.name for field in dataclasses.fields(cls)[1:])]


@dataclass(frozen=True)
class Exact(Expectation):
    """The same words in the same order."""

    answer: str
    form: ClassVar[str] = "exact"

    def __post_init__(self) -> None:
        if not words(self.answer):
            raise SettingsError(f"expected: exact = {self.answer!r}: must hold at least one word")

    def accepts(self, answer: str) -> bool:
        """Compare the words."""
        return words(answer) == words(self.answer)


@dataclass(frozen=True)
class OneOf(Expectation):
    """Any of several answers, each compared as in :class:`Exact`."""

    answers: tuple[str, ...]
    form: ClassVar[str] = "one_of"

    def __post_init__(self) -> None:
        if not self.answers or not all(words(answer) for answer in self.answers):
            raise SettingsError(f"expected: one_of = {list(self.answers)!r}: must list answers of at least one word")

    def accepts(self, answer: str) -> bool:
        """Compare with each."""
        return any(words(answer) == words(expected) for expected in self.answers)

    def text(self) -> str:
        """All of them."""
        return " / ".join(self.answers)


@dataclass(frozen=True)
class Choice(Expectation):
    """A letter; the answer can also be the text of the choice."""

    letter: str
    choices: tuple[str, ...]
    """Texts of the choices, in the order of their letters."""
    rule: str = "letter"
    """How the letter is read from the answer, a key of RULES: generally, or as a benchmark's own scoring does."""
    form: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        letters = LETTERS[: len(self.choices)]
        if not 2 <= len(self.choices) <= len(LETTERS):
            raise SettingsError(f"expected: choices = {list(self.choices)!r}: need 2 to {len(LETTERS)} of them")
        if self.letter not in letters:
            raise SettingsError(f"expected: choice = {self.letter!r}: must be one of {', '.join(letters)}")
        if self.rule not in RULES:
            raise SettingsError(f"expected: rule = {self.rule!r}: must be one of {', '.join(RULES)}")

    def accepts(self, answer: str) -> bool:
        """Read the letter by the rule and compare it."""
        return RULES[self.rule](answer, self.letter, self.choices)

    def text(self) -> str:
        """Letter and text."""
        return f"{self.letter}. {self.choices[LETTERS.index(self.letter)]}"


def chosen_letter(answer: str, choices: Sequence[str]) -> str:
    """Letter that an answer chose; empty where it chose none.

    The first of these forms that the answer has decides:

    1. The letter or the text of a choice as the whole answer, perhaps after "The answer is": "b", "(B)", "green".
    2. A statement, "Answer: B", "The answer is (B)", "Option B", "I choose B"; the last one, where there are several.
    3. A letter with a mark at the start of a line, "B.", "B) green", "B: green".
    4. A letter in brackets, "(B)".
    5. A capital that stands alone, "It is B".

    A letter that is denied ("not A", "A is wrong") is not counted, nor is an article ("A robot"). An answer that is a
    hedge chooses none: letters that are joined ("A or B", "A, B", "A/B"), or different letters in form 3, 4 or 5.
    """
    letters = LETTERS[: len(choices)]
    bare = _PREFIXES.sub("", answer.strip()).strip()
    alone = re.fullmatch(r"\W*([A-Za-z])\W*", bare)
    if alone and alone[1].upper() in letters:
        return alone[1].upper()
    for letter, choice in zip(letters, choices, strict=True):
        if words(choice) and words(choice) == words(bare):
            return letter
    for form in _FORMS:
        found = [match for match in form.finditer(answer) if _names_choice(answer, match, letters)]
        if form is _STATED:
            found = found[-1:]
        if found:
            joined = any(_JOINED.match(answer, match.end(1)) for match in found)
            named = {match[1].upper() for match in found}
            return "" if joined or len(named) > 1 else named.pop()
    return ""


def _names_choice(answer: str, match: re.Match[str], letters: str) -> bool:
    """Return whether a letter that was found is neither an article or pronoun nor denied."""
    before, after = answer[: match.start(1)], answer[match.end(1) :]
    if match[1].upper() not in letters or _DENIED_AFTER.match(after) or _DENIED_BEFORE.search(before):
        return False
    if match[1].islower():
        return re.match(r"\W*(?:$|[).:,])", after) is not None
    return match[1] not in "AI" or _NOUN_AFTER.match(after) is None


def _before_bracket(answer: str, letter: str, choices: Sequence[str]) -> bool:
    """MLVU: the character before the first closing bracket, or the whole answer, is the letter."""
    answer = answer.strip()
    return (answer[: answer.index(")")][-1:] if ")" in answer else answer) == letter


def _first_capital(answer: str, letter: str, choices: Sequence[str]) -> bool:
    """Video-MME: the first capital among the letters, after phrases such as "The best answer is" are removed."""
    for phrase in ("best answer", "correct answer", "answer", "best option", "correct option"):
        answer = re.sub(rf"(?:The )?{phrase}(?: is|:)?", "", answer, flags=re.I)
    found = re.search(f"[{LETTERS[: len(choices)]}]", answer)
    return found is not None and found[0] == letter


RULES: dict[str, Callable[[str, str, Sequence[str]], bool]] = {
    "letter": lambda answer, letter, choices: chosen_letter(answer, choices) == letter,
    "before_bracket": _before_bracket,
    "first_capital": _first_capital,
    "contains": lambda answer, letter, choices: letter in answer,  # OVO-Bench
    "first_character": lambda answer, letter, choices: answer[:1] == letter,  # StreamingBench
}
"""Rules that compare an answer with the right letter: (answer, letter, choices) -> whether it is right."""


@dataclass(frozen=True)
class Pattern(Expectation):
    """A regular expression that is found in the answer; case does not count."""

    pattern: str
    form: ClassVar[str] = "regex"

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise SettingsError(f"expected: regex = {self.pattern!r}: {error}") from error

    def accepts(self, answer: str) -> bool:
        """Search for the pattern."""
        return re.search(self.pattern, answer, re.I) is not None

    def text(self) -> str:
        """The pattern between slashes."""
        return f"/{self.pattern}/"


@dataclass(frozen=True)
class Number(Expectation):
    """The first number of the answer, in digits or as a word up to twelve, within a tolerance."""

    value: float
    tolerance: float = 0.0
    form: ClassVar[str] = "number"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise SettingsError(
                f"expected: number = {self.value!r}, tolerance = {self.tolerance!r}: "
                "need a finite number and a tolerance of 0 or more"
            )

    def accepts(self, answer: str) -> bool:
        """Compare the first number."""
        found = first_number(answer)
        slack = 1e-9 * max(1.0, abs(self.value))  # 0.3 written in digits is not 0.1 + 0.2
        return found is not None and abs(found - self.value) <= self.tolerance + slack

    def text(self) -> str:
        """The number with its tolerance."""
        return f"{self.value:g}" + (f" ± {self.tolerance:g}" if self.tolerance else "")


@dataclass(frozen=True)
class Place(Expectation):
    """A place in the map: the answer's goal is within a distance of it; the text does not count."""

    place: tuple[float, float]
    """x, y in metres."""
    within: float
    """Metres."""
    form: ClassVar[str] = "place"

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.place)) or not 0 < self.within < math.inf:
            raise SettingsError(f"expected: place = {list(self.place)!r}, within = {self.within!r}: need finite metres "
                                "x and y, and a distance above 0")  # fmt: skip

    def accepts(self, answer: str) -> bool:
        """No text alone is a place."""
        return False

    def right(self, answer: str, goal: Sequence[float] | None) -> bool:
        """Compare the goal with the place."""
        error = self.error(goal)
        return error is not None and error <= self.within

    def error(self, goal: Sequence[float] | None) -> float | None:
        """Distance in x and y."""
        return None if goal is None else math.dist(goal[:2], self.place)

    def text(self) -> str:
        """Coordinates and distance."""
        return "({:g}, {:g})".format(*self.place) + f" ± {self.within:g} m"


def first_number(text: str) -> float | None:
    """The first number in a text, in digits or as an English word up to twelve; None where there is none."""
    match = _NUMBER.search(text.lower().replace(",", ""))
    if match is None:
        return None
    return float(_NUMBER_WORDS.index(match[0])) if match[0] in _NUMBER_WORDS else float(match[0])


FORMS: dict[str, type[Expectation]] = {kind.form: kind for kind in (Exact, OneOf, Choice, Pattern, Number, Place)}
"""Forms that ``expected`` can have."""


def read_expectation(value: object) -> Expectation:
    """Read ``expected`` of a question file.

    A text is :class:`Exact`, a list of texts :class:`OneOf`, a number :class:`Number`, yes and no (which YAML reads as
    true and false) their words; a mapping names its form.

    :raises SettingsError: names the value and the forms.
    """
    if isinstance(value, (bool, str)):
        return Exact(_text(value, "exact"))
    if isinstance(value, (int, float)):
        return Number(float(value))
    if isinstance(value, Sequence):
        return OneOf(_texts(value, "one_of"))
    if not isinstance(value, Mapping):
        raise SettingsError(f"expected = {value!r}: must be a text, a list of texts, a number, or a mapping with one "
                            f"of {', '.join(FORMS)}")  # fmt: skip
    forms = [form for form in FORMS if form in value]
    if len(forms) != 1:
        raise SettingsError(f"expected = {dict(value)!r}: must have exactly one of {', '.join(FORMS)}")
    form = forms[0]
    if unknown := sorted(str(key) for key in value if key not in FORMS[form].keys()):
        raise SettingsError(f"expected: {form} does not go with {', '.join(unknown)}")
    if form == "choice":
        choices = _texts(value.get("choices"), "choices")
        return Choice(_text(value["choice"], "choice").strip().upper(), choices, str(value.get("rule", "letter")))
    if form == "number":
        return Number(_number(value["number"], "number"), _number(value.get("tolerance", 0.0), "tolerance"))
    if form == "one_of":
        return OneOf(_texts(value["one_of"], "one_of"))
    if form == "place":
        x, y = numbers(value["place"], "expected: place", 2)
        return Place((x, y), _number(value.get("within", 1.0), "within"))
    return {"exact": Exact, "regex": Pattern}[form](_text(value[form], form))


def _text(value: object, name: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SettingsError(f"expected: {name} = {value!r}: must be a text")


def _texts(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SettingsError(f"expected: {name} = {value!r}: must be a list of texts")
    return tuple(_text(item, name) for item in value)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"expected: {name} = {value!r}: must be a number")
    return float(value)


def numbers(value: object, what: str, count: int) -> tuple[float, ...]:
    """Read a list of finite numbers; raises SettingsError that names the value."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != count:
        raise SettingsError(f"{what} = {value!r}: must be a list of {count} numbers, metres")
    found = tuple(_number(item, what) for item in value)
    if not all(map(math.isfinite, found)):
        raise SettingsError(f"{what} = {value!r}: must be finite")
    return found
