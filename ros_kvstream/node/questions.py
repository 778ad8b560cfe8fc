# SPDX-License-Identifier: Apache-2.0
"""Questions for the worker: validated, bounded in number, with a time limit and cancellation."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ros_kvstream.errors import QuestionCancelled, QuestionError
from ros_kvstream.poses import Vector
from ros_kvstream.records import Answer

MAX_QUESTION_CHARACTERS = 20_000
"""Limit of the text, checked before tokenization."""
MAX_CONVERSATION_CHARACTERS = 200
"""Limit of the label, which is published with every piece of the answer."""


@dataclass(frozen=True)
class Question:
    """One question; raises QuestionError for what only the node limits. The memory checks the rest."""

    text: str
    camera: str = ""
    since: float = 0.0
    until: float = 0.0
    max_new_tokens: int = 0
    """0: the limit of the memory."""
    timeout: float = 60.0
    """Seconds from now, including waiting."""
    near: Vector | None = None
    """Point that the frames were taken near, metres; None: anywhere."""
    radius: float = 0.0
    """Metres around ``near``; 0: anywhere."""
    near_frame: str | None = None
    """Frame id of ``near``; None: that of the map."""
    min_confidence: float = 0.0
    """An answer with less confidence gets the verdict NOT_SEEN, 0 - 1."""
    conversation_id: str = ""
    """Label chosen by the client and published with the answer; the model does not see earlier questions."""

    def __post_init__(self) -> None:
        if len(self.text) > MAX_QUESTION_CHARACTERS:
            raise QuestionError(f"question has {len(self.text)} characters; at most {MAX_QUESTION_CHARACTERS} "
                                "are accepted.")
        if len(self.conversation_id) > MAX_CONVERSATION_CHARACTERS:
            raise QuestionError(f"conversation_id has {len(self.conversation_id)} characters; at most "
                                f"{MAX_CONVERSATION_CHARACTERS} are accepted.")
        if not math.isfinite(self.timeout) or self.timeout <= 0.0:
            raise QuestionError(f"timeout_s = {self.timeout}: must be a finite number of seconds above 0.")


@dataclass(eq=False)
class PendingQuestion:
    """A question that waits for the worker or is being answered."""

    question: Question
    asked: float = field(default_factory=time.monotonic)
    """Time of submission, seconds of a monotonic clock."""
    on_token: Callable[[str, int], None] | None = None
    """Called in the worker's thread with each piece of the answer's text and its index; must not block."""
    answer: Future[Answer] = field(default_factory=Future)
    """Set by the worker to the answer or an error."""
    number: int = -1
    """Number of the question, assigned when the worker takes it."""
    _pieces: int = 0
    _cancelled: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self, reason: str) -> None:
        """Stop generation at the next token; called from any thread."""
        self._cancelled = self._cancelled or reason

    def stop_reason(self) -> str:
        """Return why answering should stop now; empty when it should continue."""
        if self._cancelled:
            return self._cancelled
        if time.monotonic() - self.asked > self.question.timeout:
            return f"no answer within {self.question.timeout:g} s"
        return ""

    def should_stop(self) -> bool:
        """Whether answering should stop; the model checks this before each token."""
        return bool(self.stop_reason())

    def token(self, text: str) -> int:
        """Forward a piece of the answer and return its index; called in the worker's thread."""
        index, self._pieces = self._pieces, self._pieces + 1
        if self.on_token is not None:
            self.on_token(text, index)
        return index

    def finish(self, outcome: Answer | BaseException) -> None:
        """Set the answer or the error; only the first call has an effect. Called from any thread."""
        with self._lock:
            if self.answer.done():
                return
            if isinstance(outcome, BaseException):
                self.answer.set_exception(outcome)
            else:
                self.answer.set_result(outcome)


class QuestionQueue:
    """Questions in order of arrival; the limit includes the one being answered. Thread-safe."""

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
        """Take the oldest question and mark it as being answered; None when none waits."""
        with self._lock:
            self._answering = self._waiting.popleft() if self._waiting else None
            if self._answering is not None:
                self._answering.number, self._taken = self._taken, self._taken + 1
            return self._answering

    def expire(self) -> None:
        """Finish waiting questions that were cancelled or timed out, without the worker."""
        with self._lock:
            ended = [pending for pending in self._waiting if pending.should_stop()]
            for pending in ended:
                self._waiting.remove(pending)
        for pending in ended:
            pending.finish(QuestionCancelled(pending.stop_reason()))

    def done(self) -> None:
        """Mark the question taken last as finished."""
        with self._lock:
            self._answering = None

    def open(self) -> list[PendingQuestion]:
        """Return all questions that are waiting or being answered."""
        with self._lock:
            return [*([self._answering] if self._answering else []), *self._waiting]

    def __len__(self) -> int:
        """Return the number of waiting questions, without the one being answered."""
        with self._lock:
            return len(self._waiting)
