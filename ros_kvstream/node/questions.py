# SPDX-License-Identifier: Apache-2.0
"""Questions on their way to the worker: validated, bounded in number, with a time limit and a way to cancel."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ros_kvstream.errors import QuestionCancelled, QuestionError
from ros_kvstream.records import Answer

MAX_QUESTION_CHARACTERS = 20_000
"""Longer texts are refused before they reach the tokenizer."""
MAX_CONVERSATION_CHARACTERS = 200
"""A label is repeated with every piece of the answer, and any peer may ask."""


@dataclass(frozen=True)
class Question:
    """One question with its limits; refuses what cannot be asked when it is made."""

    text: str
    camera: str = ""
    """Name of a camera; empty: all."""
    since: float = 0.0
    """Seconds; 0: unbounded."""
    until: float = 0.0
    """Seconds; 0: unbounded."""
    max_new_tokens: int = 0
    """0: the memory's own limit."""
    timeout: float = 60.0
    """Seconds from now, waiting included."""
    conversation_id: str = ""
    """The asker's own label, repeated with the answer: it joins records, and gives no earlier answer to the model."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise QuestionError("question is empty.")
        if len(self.text) > MAX_QUESTION_CHARACTERS:
            raise QuestionError(f"question has {len(self.text)} characters; at most {MAX_QUESTION_CHARACTERS} "
                                "are taken.")
        if len(self.conversation_id) > MAX_CONVERSATION_CHARACTERS:
            raise QuestionError(f"conversation_id has {len(self.conversation_id)} characters; at most "
                                f"{MAX_CONVERSATION_CHARACTERS} are taken.")
        if self.until and self.since > self.until:
            raise QuestionError(f"since = {self.since:.3f} is after until = {self.until:.3f}.")
        if self.max_new_tokens < 0:
            raise QuestionError(f"max_new_tokens = {self.max_new_tokens}: must be 0 (the node's limit) or more.")
        if not math.isfinite(self.timeout) or self.timeout <= 0.0:
            raise QuestionError(f"timeout_s = {self.timeout}: must be a finite number of seconds above 0.")


@dataclass(eq=False)
class PendingQuestion:
    """A question in the worker's care."""

    question: Question
    asked: float = field(default_factory=time.monotonic)
    """When it was handed in, seconds of a monotonic clock."""
    on_token: Callable[[str, int], None] | None = None
    """Gets each piece of the answer's text with its running number, in the worker's thread; must not block."""
    answer: Future[Answer] = field(default_factory=Future)
    """Finished by the worker, with the answer or with the reason why there is none."""
    number: int = -1
    """Running number of the question, given when it is taken up."""
    _pieces: int = 0
    _cancelled: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self, reason: str) -> None:
        """Ask for an end at the next token; called from any thread."""
        self._cancelled = self._cancelled or reason

    def stop_reason(self) -> str:
        """Why answering should end now; empty while it should not."""
        if self._cancelled:
            return self._cancelled
        if time.monotonic() - self.asked > self.question.timeout:
            return f"no answer within {self.question.timeout:g} s"
        return ""

    def should_stop(self) -> bool:
        """Whether answering should end; asked by the model before each token."""
        return bool(self.stop_reason())

    def token(self, text: str) -> int:
        """Pass a piece of the answer on; returns its running number. From the worker's thread."""
        index, self._pieces = self._pieces, self._pieces + 1
        if self.on_token is not None:
            self.on_token(text, index)
        return index

    def finish(self, outcome: Answer | BaseException) -> None:
        """Hand over the answer, or why there is none; only the first call counts. From any thread."""
        with self._lock:
            if self.answer.done():
                return
            if isinstance(outcome, BaseException):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)


class QuestionQueue:
    """Questions in order of arrival, the one being answered included in the bound. Called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[PendingQuestion] = deque()
        self._answering: PendingQuestion | None = None
        self._taken = 0

    def put(self, pending: PendingQuestion, limit: int) -> None:
        """Add a question; raise QuestionError ("busy") when ``limit`` are waiting or being answered."""
        with self._lock:
            open_now = len(self._waiting) + (self._answering is not None)
            if open_now >= limit:
                raise QuestionError(f"busy: {open_now} questions are waiting or being answered (query.max_waiting); "
                                    "ask again later.")
            self._waiting.append(pending)

    def take(self) -> PendingQuestion | None:
        """Take the oldest question and count it as being answered; None when none waits."""
        with self._lock:
            self._answering = self._waiting.popleft() if self._waiting else None
            if self._answering is not None:
                self._answering.number, self._taken = self._taken, self._taken + 1
            return self._answering

    def expire(self) -> None:
        """End the waiting questions that were cancelled or whose time is up, without waiting for the worker."""
        with self._lock:
            ended = [pending for pending in self._waiting if pending.should_stop()]
            for pending in ended:
                self._waiting.remove(pending)
        for pending in ended:
            pending.finish(QuestionCancelled(pending.stop_reason()))

    def done(self) -> None:
        """Say that the question taken last is answered."""
        with self._lock:
            self._answering = None

    def open(self) -> list[PendingQuestion]:
        """Return all questions that are waiting or being answered."""
        with self._lock:
            return [*([self._answering] if self._answering else []), *self._waiting]

    def __len__(self) -> int:
        """Questions that wait, without the one being answered."""
        with self._lock:
            return len(self._waiting)
