# SPDX-License-Identifier: Apache-2.0
"""The one thread that touches the memory: questions first, then frames; it outlives every error."""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import FrameError, KvStreamError, QuestionCancelled
from ros_kvstream.node.frame_counters import DropCause, FrameCounters
from ros_kvstream.node.frame_queue import FrameQueue, QueuedFrame
from ros_kvstream.node.questions import PendingQuestion, QuestionQueue
from ros_kvstream.records import Answer, MemoryStats, Observation

Result = TypeVar("Result")
THREAD_NAME = "kvstream_worker"
"""As the system shows it (``top -H``): at most 15 characters there."""
STATS_PERIOD = 0.25
"""Seconds between refreshes of the memory's figures while frames come in."""


class Memory(Protocol):
    """What the worker needs of ``stream.VideoMemory``."""

    def observe(self, frame: NDArray[np.uint8], stamp: float, camera: str = ...) -> Observation: ...  # noqa: D102

    def ask(self, question: str, *, camera: str = ..., since: float = ..., until: float = ...,  # noqa: D102
            max_new_tokens: int | None = ..., should_stop: Callable[[], bool] | None = ...,
            on_token: Callable[[str], None] | None = ...) -> Answer: ...

    def stats(self) -> MemoryStats: ...  # noqa: D102

    def idle(self) -> bool: ...  # noqa: D102

    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class WorkerEvents:
    """What the worker tells its owner, always from the worker's thread; none of these may block."""

    observed: Callable[[QueuedFrame, NDArray[np.uint8], Observation, Any], None]
    """A frame, with its pixels, reached the memory, which may be asked here."""
    frame_refused: Callable[[QueuedFrame, FrameError], None]
    """A frame could not be converted, or the memory did not accept it."""
    fault: Callable[[str, BaseException], None]
    """An error that is no refusal: ("frame" or "question", the error)."""
    token: Callable[[PendingQuestion, str, int], None]
    """A piece of an answer's text, with its running number."""


class Worker:
    """Runs one memory in its own thread. All methods are called from any thread and, but for ``stop``, do not block."""

    def __init__(self, frames: FrameQueue, counters: FrameCounters, convert: Callable[[Any], NDArray[np.uint8]],
                 events: WorkerEvents) -> None:
        """:param convert: image message -> RGB uint8 [height, width, 3]; raises FrameError."""
        self.questions = QuestionQueue()
        self._frames = frames
        self._counters = counters
        self._convert = convert
        self._events = events
        self._calls: deque[tuple[Callable[[Any], Any], Future[Any]]] = deque()
        self._work = threading.Condition()
        self._stopping = False
        self._ingesting = False
        self._memory: Any = None
        self._stats = MemoryStats()
        self._stats_taken = 0.0
        self._thread: threading.Thread | None = None

    def start(self, make_memory: Callable[[], Memory]) -> Future[Memory]:
        """Start the thread and make the memory in it; the future holds it, or what went wrong.

        Callbacks of the future run in the worker's thread before it does anything else; only there, and by ``call``,
        may the memory be used.
        """
        made: Future[Memory] = Future()
        self._thread = threading.Thread(target=self._run, args=(make_memory, made), name=THREAD_NAME, daemon=True)
        self._thread.start()
        return made

    def stop(self, timeout: float) -> bool:
        """Give up all questions, let the present step end, close the memory; False when that took longer."""
        self.give_up_questions("the node is being cleaned up")
        with self._work:
            self._stopping = True
            self._work.notify()
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def ingest(self, on: bool) -> None:
        """Take frames from the queue, or let them lie."""
        with self._work:
            self._ingesting = on
            self._work.notify()

    def frame_waiting(self) -> None:
        """Say that a frame was put into the queue."""
        with self._work:
            self._work.notify()

    def ask(self, pending: PendingQuestion, limit: int) -> None:
        """Hand a question in; raise QuestionError ("busy") when ``limit`` are open already."""
        self.questions.put(pending, limit)
        with self._work:
            self._work.notify()

    def give_up_questions(self, reason: str) -> None:
        """End every open question: the waiting ones at once, the one being answered at its next token."""
        for pending in self.questions.open():
            pending.cancel(reason)
        self.questions.expire()
        with self._work:
            self._work.notify()

    def call(self, function: Callable[[Any], Result]) -> Future[Result]:
        """Run a function on the memory before the next question or frame."""
        done: Future[Result] = Future()
        with self._work:
            if self._stopping:
                done.set_exception(KvStreamError("the memory is being closed."))
            else:
                self._calls.append((function, done))
            self._work.notify()
        return done

    @property
    def stats(self) -> MemoryStats:
        """The memory's figures, at most STATS_PERIOD seconds old while frames come in."""
        return self._stats

    @property
    def died(self) -> bool:
        """Whether the thread has ended though nobody told it to."""
        return self._thread is not None and not self._thread.is_alive() and not self._stopping

    def _run(self, make_memory: Callable[[], Memory], made: Future[Memory]) -> None:
        _name_thread()
        # The collector takes 0.2 s to walk 400,000 objects of a model, and the executor waits: not while one is loaded,
        # and not for these objects afterwards, which are there to stay.
        gc.disable()
        try:
            self._memory = make_memory()
            self._stats = self._memory.stats()
            gc.freeze()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the memory
            made.set_exception(error)
            return
        finally:
            gc.enable()
        made.set_result(self._memory)
        while self._step():
            pass
        self._fail_calls()
        self._memory.close()
        self._memory = None
        gc.unfreeze()
        gc.collect()  # a model that hangs in a cycle is given back now, not when the next one does not fit

    def _step(self) -> bool:
        """Do the next piece of work, the most urgent first; False when it is time to end."""
        with self._work:
            if self._stopping and not self.questions.open():
                return False
            call = self._calls.popleft() if self._calls else None
        if call:
            self._do_call(*call)
        elif pending := self.questions.take():
            self._answer(pending)
            self.questions.done()
        elif frame := self._frames.take() if self._ingesting else None:
            self._observe(frame)
        else:
            self._rest()
        return True

    def _rest(self) -> None:
        """Do a little of what can wait; then bring the figures up to date and sleep until there is work."""
        if self._idle():
            return
        self._refresh_stats(0.0)
        with self._work:
            if not (self._calls or len(self.questions) or self._stopping or (self._ingesting and len(self._frames))):
                self._work.wait(1.0)

    def _idle(self) -> bool:
        """Let the memory do a little of what can wait; False when nothing is left."""
        try:
            return self._memory.idle()
        except Exception as error:  # noqa: BLE001 - the node must outlive any fault in the model
            self._events.fault("idle work", error)
            return False

    def _refresh_stats(self, period: float) -> None:
        now = time.monotonic()
        if now - self._stats_taken >= period:
            self._stats, self._stats_taken = self._memory.stats(), now

    def _do_call(self, function: Callable[[Any], Any], done: Future[Any]) -> None:
        try:
            result = function(self._memory)
            self._refresh_stats(0.0)
            done.set_result(result)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            done.set_exception(error)

    def _observe(self, frame: QueuedFrame) -> None:
        cause = DropCause.ENCODING
        try:
            pixels = self._convert(frame.message)
            cause = DropCause.REJECTED
            observation = self._memory.observe(pixels, frame.stamp, frame.camera)
        except FrameError as error:
            self._counters.dropped(frame.camera, cause)
            self._events.frame_refused(frame, error)
        except Exception as error:  # noqa: BLE001 - the node must outlive any fault in the model
            self._counters.dropped(frame.camera, DropCause.FAULT)
            self._events.fault("frame", error)
        else:
            self._counters.observed(frame.camera, observation)
            self._tell_observed(frame, pixels, observation)
            self._refresh_stats(STATS_PERIOD)

    def _tell_observed(self, frame: QueuedFrame, pixels: NDArray[np.uint8], observation: Observation) -> None:
        try:
            self._events.observed(frame, pixels, observation, self._memory)
        except Exception as error:  # noqa: BLE001 - a picture that cannot be drawn must not end the stream
            self._events.fault("report of a frame", error)

    def _answer(self, pending: PendingQuestion) -> None:
        question = pending.question
        started = time.monotonic()
        try:
            if reason := pending.stop_reason():
                raise QuestionCancelled(reason)
            answer = self._memory.ask(
                question.text, camera=question.camera, since=question.since, until=question.until,
                max_new_tokens=question.max_new_tokens or None, should_stop=pending.should_stop,
                on_token=lambda text: self._events.token(pending, text, pending.token(text)))
            latency = replace(answer.latency, queue_ms=1e3 * (started - pending.asked))
            self._refresh_stats(0.0)
            pending.finish(replace(answer, latency=latency))
        except QuestionCancelled as error:
            pending.finish(QuestionCancelled(pending.stop_reason() or str(error)))
        except KvStreamError as error:
            pending.finish(error)
        except BaseException as error:  # noqa: BLE001 - the node must outlive any fault in the model
            self._events.fault("question", error)
            pending.finish(error)

    def _fail_calls(self) -> None:
        with self._work:
            calls, self._calls = list(self._calls), deque()
        for _, done in calls:
            done.set_exception(KvStreamError("the memory is being closed."))


def _name_thread() -> None:
    """Let the system know the present thread's name, where it has a way to be told (Python does so from 3.14 on)."""
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_NAME)


def describe(error: BaseException) -> str:
    """One line for an error: its own words for ours, its type and place for others."""
    if isinstance(error, KvStreamError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:300]}{place}"
