"""What counts as a right answer: exact words, one of several, a choice, a pattern, or a number within a tolerance."""

from __future__ import annotations

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
_STANDS_ALONE = re.compile(r"(?<![A-Za-z'])([A-Z])(?![A-Za-z'])")


def words(text: str) -> list[str]:
    """Words of a text for comparison: case, punctuation and articles do not count."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in _ARTICLES]


class Expectation(ABC):
    """What an answer is judged by; written to and read from plain data, so that results can be scored again."""

    form: ClassVar[str]
    """Name of the form in files."""

    @abstractmethod
    def accepts(self, answer: str) -> bool:
        """Whether the answer is right."""

    @abstractmethod
    def text(self) -> str:
        """The expected answer for people."""

    @abstractmethod
    def data(self) -> dict[str, Any]:
        """As plain data, from which :func:`read_expectation` makes an equal one."""


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

    def text(self) -> str:
        """The words."""
        return self.answer

    def data(self) -> dict[str, Any]:
        """{"exact": answer}."""
        return {"exact": self.answer}


@dataclass(frozen=True)
class OneOf(Expectation):
    """Any of several answers, each as in :class:`Exact`."""

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

    def data(self) -> dict[str, Any]:
        """{"one_of": [answer, ...]}."""
        return {"one_of": list(self.answers)}


@dataclass(frozen=True)
class Choice(Expectation):
    """A letter; the answer may also be the choice's own text."""

    letter: str
    choices: tuple[str, ...]
    """Texts of the choices, in the order of their letters."""
    rule: str = "letter"
    """How the answer is read, a key of RULES: as people would, or as a benchmark's own scoring does."""
    form: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        if not 2 <= len(self.choices) <= len(LETTERS):
            raise SettingsError(f"expected: choices = {list(self.choices)!r}: need 2 to {len(LETTERS)} of them")
        if self.letter not in LETTERS[: len(self.choices)]:
            raise SettingsError(
                f"expected: choice = {self.letter!r}: must be one of {', '.join(LETTERS[: len(self.choices)])}"
            )
        if self.rule not in RULES:
            raise SettingsError(f"expected: rule = {self.rule!r}: must be one of {', '.join(RULES)}")

    def accepts(self, answer: str) -> bool:
        """Read the answer by the rule."""
        return RULES[self.rule](answer, self.letter, self.choices)

    def text(self) -> str:
        """Letter and text."""
        return f"{self.letter}. {self.choices[LETTERS.index(self.letter)]}"

    def data(self) -> dict[str, Any]:
        """{"choice": letter, "choices": [text, ...], "rule": name}."""
        return {"choice": self.letter, "choices": list(self.choices), "rule": self.rule}


def chosen_letter(answer: str, choices: Sequence[str]) -> str:
    """Letter that an answer chose; empty where it chose none.

    "B", "(B)", "b.", "Option B", "The answer is B: the red cone" and the choice's own text are understood. A letter in
    lower case counts only where it is the whole answer: "a" is also a word.
    """
    letters = LETTERS[: len(choices)]
    bare = _PREFIXES.sub("", answer.strip()).strip()
    alone = re.fullmatch(r"\W*([A-Za-z])\W*", bare)
    if alone and alone[1].upper() in letters:
        return alone[1].upper()
    leading = re.match(r"[(\[\"'*]*([A-Za-z])[)\].:,]", bare)
    if leading and leading[1].upper() in letters:
        return leading[1].upper()
    for letter, choice in zip(letters, choices, strict=True):
        if words(choice) and words(choice) == words(bare):
            return letter
    first = next((match for match in _STANDS_ALONE.findall(bare) if match in letters), "")
    # "A cone" begins with the article, which no other letter can be
    if first == "A" and re.match(r"A\s+[a-z]", bare):
        return next((match for match in _STANDS_ALONE.findall(bare[1:]) if match in letters), "")
    return str(first)


def _before_bracket(answer: str, letter: str, choices: Sequence[str]) -> bool:
    """MLVU: the character before the first closing bracket, or the whole answer, is the letter."""
    answer = answer.strip()
    return (answer[: answer.index(")")][-1:] if ")" in answer else answer) == letter


def _first_capital(answer: str, letter: str, choices: Sequence[str]) -> bool:
    """Video-MME: the first capital among the letters, once phrases such as "The best answer is" are taken out."""
    for phrase in ("best answer", "correct answer", "answer", "best option", "correct option"):
        answer = re.sub(rf"(?:The )?{phrase}(?: is|:)?", "", answer, flags=re.I)
    found = re.search(f"[{LETTERS[: len(choices)]}]", answer)
    return found is not None and found[0] == letter


def _contains(answer: str, letter: str, choices: Sequence[str]) -> bool:
    """OVO-Bench: the letter occurs in the answer."""
    return letter in answer


RULES: dict[str, Callable[[str, str, Sequence[str]], bool]] = {
    "letter": lambda answer, letter, choices: chosen_letter(answer, choices) == letter,
    "before_bracket": _before_bracket,
    "first_capital": _first_capital,
    "contains": _contains,
}
"""Ways of reading the letter out of an answer: (answer, right letter, choices) -> whether it is right."""


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

    def data(self) -> dict[str, Any]:
        """{"regex": pattern}."""
        return {"regex": self.pattern}


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

    def data(self) -> dict[str, Any]:
        """{"number": value, "tolerance": tolerance}."""
        return {"number": self.value, "tolerance": self.tolerance}


def first_number(text: str) -> float | None:
    """The first number in a text, in digits or as an English word up to twelve; None where there is none."""
    match = _NUMBER.search(text.lower().replace(",", ""))
    if match is None:
        return None
    return float(_NUMBER_WORDS.index(match[0])) if match[0] in _NUMBER_WORDS else float(match[0])


FORMS: dict[str, frozenset[str]] = {
    "exact": frozenset(("exact",)),
    "one_of": frozenset(("one_of",)),
    "choice": frozenset(("choice", "choices", "rule")),
    "regex": frozenset(("regex",)),
    "number": frozenset(("number", "tolerance")),
}
"""Keys that each form of ``expected`` may have."""


def read_expectation(value: object) -> Expectation:
    """Read ``expected`` of a question file.

    A text is :class:`Exact`, a list of texts :class:`OneOf`, a number :class:`Number`, yes and no (which YAML reads as
    true and false) their words; a mapping names its form.

    :raises SettingsError: that names the value and the forms.
    """
    if isinstance(value, bool):
        return Exact("yes" if value else "no")
    if isinstance(value, (int, float)):
        return Number(float(value))
    if isinstance(value, str):
        return Exact(value)
    if isinstance(value, Sequence):
        return OneOf(tuple(_text(item, "one_of") for item in value))
    if isinstance(value, Mapping):
        return _read_form(value)
    raise SettingsError(f"expected = {value!r}: must be a text, a list of texts, a number, or a mapping with one of "
                        + ", ".join(FORMS))  # fmt: skip


def _read_form(value: Mapping[str, Any]) -> Expectation:
    forms = [form for form in FORMS if form in value]
    if len(forms) != 1:
        raise SettingsError(f"expected = {dict(value)!r}: must have exactly one of {', '.join(FORMS)}")
    form = forms[0]
    unknown = sorted(str(key) for key in value if key not in FORMS[form])
    if unknown:
        raise SettingsError(f"expected: {form} does not go with {', '.join(unknown)}")
    if form == "choice":
        choices = value.get("choices")
        if not isinstance(choices, Sequence) or isinstance(choices, str):
            raise SettingsError("expected: choice needs 'choices', the list of their texts")
        letter = _text(value["choice"], "choice").strip().upper()
        return Choice(letter, tuple(_text(item, "choices") for item in choices), str(value.get("rule", "letter")))
    if form == "number":
        return Number(_number(value["number"], "number"), _number(value.get("tolerance", 0.0), "tolerance"))
    if form == "one_of":
        return read_expectation(list(value["one_of"]) if isinstance(value["one_of"], (list, tuple)) else [])
    return {"exact": Exact, "regex": Pattern}[form](_text(value[form], form))


def _text(value: object, name: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SettingsError(f"expected: {name} = {value!r}: must be a text")


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"expected: {name} = {value!r}: must be a number")
    return float(value)
