# SPDX-License-Identifier: Apache-2.0
"""The thread that owns the memory: it answers questions before it takes frames, and survives every error."""

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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ros_kvstream.errors import FrameError, KvStreamError, NonFiniteError, QuestionCancelled
from ros_kvstream.node.frame_counters import DropCause, FrameCounters
from ros_kvstream.node.frame_poses import FramePoses
from ros_kvstream.node.frame_queue import FrameQueue, QueuedFrame
from ros_kvstream.node.questions import PendingQuestion, QuestionQueue
from ros_kvstream.records import MemoryStats, Observation

if TYPE_CHECKING:
    from ros_kvstream.stream.memory import VideoMemory

Result = TypeVar("Result")
THREAD_NAME = "kvstream_worker"
"""Name of the thread for the operating system (``top -H``), which shows at most 15 characters."""
STATS_PERIOD = 0.25
"""Seconds between updates of the memory's statistics while frames arrive."""
POSE_PERIOD = 0.1
"""Longest time in seconds between two looks for the poses of waiting frames."""
CLOSED = "the memory is being closed."


@dataclass(frozen=True)
class WorkerEvents:
    """Callbacks of the worker, called in its thread; they must not block."""

    observed: Callable[[QueuedFrame, NDArray[np.uint8], Observation, VideoMemory], None]
    """The memory took a frame with these pixels. The callback may use the memory."""
    frame_refused: Callable[[QueuedFrame, FrameError], None]
    """A frame could not be converted, or the memory rejected it."""
    image_loss: Callable[[QueuedFrame, str], None]
    """A frame was converted with a loss, which the text describes with the remedy."""
    fault: Callable[[str, BaseException], None]
    """An unexpected error: (what failed, such as "frame" or "question"; the error)."""
    token: Callable[[PendingQuestion, str, int], None]
    """A piece of an answer's text with its index."""


class Worker:
    """Runs one memory in its own thread. All methods may be called from any thread; only ``stop`` blocks."""

    def __init__(self, frames: FrameQueue, counters: FrameCounters, convert: Callable[[QueuedFrame], NDArray[np.uint8]],
                 events: WorkerEvents, poses: FramePoses | None = None) -> None:
        """:param convert: frame with its message -> RGB uint8 [height, width, 3]; raises FrameError.

        :param poses: gives the frames their poses, before each piece of work; None for frames without poses.
        """
        self.questions = QuestionQueue()
        self._frames = frames
        self._counters = counters
        self._convert = convert
        self._events = events
        self._poses = poses
        self._calls: deque[tuple[Callable[[VideoMemory], Any], Future[Any]]] = deque()
        self._work = threading.Condition()
        self._stopping = False
        self._ingesting = False
        self._stats = MemoryStats()
        self._stats_taken = 0.0
        self._thread: threading.Thread | None = None

    def start(self, make_memory: Callable[[], VideoMemory]) -> Future[VideoMemory]:
        """Start the thread and create the memory in it; the future holds the memory or the error.

        Callbacks of the future run in the worker's thread before it takes any work. The memory may be used only there
        and through ``call``.
        """
        made: Future[VideoMemory] = Future()
        self._thread = threading.Thread(target=self._run, args=(make_memory, made), name=THREAD_NAME, daemon=True)
        self._thread.start()
        return made

    def stop(self, timeout: float) -> bool:
        """Cancel all questions, finish the current step, close the memory; False when the timeout expired first."""
        self.cancel_questions("the node is being cleaned up")
        with self._work:
            self._stopping = True
            self._work.notify()
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def ingest(self, on: bool) -> None:
        """Start or stop taking frames from the queue."""
        with self._work:
            self._ingesting = on
            self._work.notify()

    def notify(self) -> None:
        """Wake the worker after a frame was put into the queue, or a pose arrived that frames wait for."""
        with self._work:
            self._work.notify()

    def ask(self, pending: PendingQuestion, limit: int) -> None:
        """Submit a question; raise QuestionError ("busy") when ``limit`` questions are open."""
        self.questions.put(pending, limit)
        self.notify()

    def cancel_questions(self, reason: str) -> None:
        """Cancel every open question: waiting ones at once, the one being answered at its next token."""
        for pending in self.questions.open():
            pending.cancel(reason)
        self.questions.expire()
        self.notify()

    def call(self, function: Callable[[VideoMemory], Result]) -> Future[Result]:
        """Run a function on the memory before the next question or frame."""
        done: Future[Result] = Future()
        with self._work:
            if self._stopping:
                done.set_exception(KvStreamError(CLOSED))
            else:
                self._calls.append((function, done))
            self._work.notify()
        return done

    @property
    def stats(self) -> MemoryStats:
        """Statistics of the memory, at most STATS_PERIOD seconds old while frames arrive."""
        return self._stats

    @property
    def died(self) -> bool:
        """Whether the thread has ended without ``stop``."""
        return self._thread is not None and not self._thread.is_alive() and not self._stopping

    def _run(self, make_memory: Callable[[], VideoMemory], made: Future[VideoMemory]) -> None:
        _name_thread()
        # The garbage collector needs 0.2 s for the 400,000 objects of a model, and blocks the other threads:
        # disable it while the model is loaded, and exclude these objects afterwards.
        gc.disable()
        try:
            memory = make_memory()
            self._stats = memory.stats()
            gc.freeze()
        except BaseException as error:  # noqa: BLE001 - passed to the caller through the future
            made.set_exception(error)
            return
        finally:
            gc.enable()
        made.set_result(memory)
        while self._step(memory):
            pass
        self._fail_calls()
        memory.close()
        gc.unfreeze()
        gc.collect()  # free a model that is part of a reference cycle before the next one is loaded

    def _step(self, memory: VideoMemory) -> bool:
        """Do the next piece of work, the most urgent first; False when the worker should end."""
        with self._work:
            if self._stopping and not self.questions.open():
                return False
            call = self._calls.popleft() if self._calls else None
        self._place(memory)
        if call:
            self._do_call(memory, *call)
        elif pending := self.questions.take():
            self._answer(memory, pending)
            self.questions.done()
        elif frame := self._frames.take() if self._ingesting else None:
            self._observe(memory, frame)
        elif not self._idle(memory):
            self._refresh_stats(memory, 0.0)
            self._wait()
        return True

    def _wait(self) -> None:
        """Sleep until there is work."""
        with self._work:
            if not (self._calls or len(self.questions) or self._stopping or (self._ingesting and len(self._frames))):
                self._work.wait(POSE_PERIOD if self._poses is not None and self._poses.waiting else 1.0)

    def _place(self, memory: VideoMemory) -> None:
        """Give waiting frames the poses that have arrived."""
        if self._poses is None:
            return
        try:
            self._poses.resolve(memory)
        except Exception as error:  # noqa: BLE001 - the node must survive any fault in a source of poses
            self._events.fault("pose", error)

    def _idle(self, memory: VideoMemory) -> bool:
        """Let the memory do a piece of deferred work; False when none is left."""
        try:
            return memory.idle()
        except Exception as error:  # noqa: BLE001 - the node must survive any fault in the model
            self._events.fault("idle work", error)
            return False

    def _refresh_stats(self, memory: VideoMemory, period: float) -> None:
        now = time.monotonic()
        if now - self._stats_taken >= period:
            self._stats, self._stats_taken = memory.stats(), now

    def _do_call(self, memory: VideoMemory, function: Callable[[VideoMemory], Any], done: Future[Any]) -> None:
        try:
            result = function(memory)
            self._refresh_stats(memory, 0.0)
            done.set_result(result)
        except BaseException as error:  # noqa: BLE001 - passed to the caller
            done.set_exception(error)

    def _observe(self, memory: VideoMemory, frame: QueuedFrame) -> None:
        cause = DropCause.ENCODING
        try:
            pixels = self._convert(frame)
            cause = DropCause.REJECTED
            observation = memory.observe(pixels, frame.stamp, frame.camera)
        except FrameError as error:
            self._counters.dropped(frame.camera, cause)
            self._events.frame_refused(frame, error)
            return
        except Exception as error:  # noqa: BLE001 - the node must survive any fault in the model
            self._counters.dropped(frame.camera, DropCause.FAULT)
            self._events.fault("frame", error)
            return
        self._counters.observed(frame.camera, observation)
        if self._poses is not None:
            self._poses.add(frame, observation.frame_id)
        try:
            self._events.observed(frame, pixels, observation, memory)
        except Exception as error:  # noqa: BLE001 - a failed visualization must not end the stream
            self._events.fault("report of a frame", error)
        self._refresh_stats(memory, STATS_PERIOD)

    def _answer(self, memory: VideoMemory, pending: PendingQuestion) -> None:
        question = pending.question
        started = time.monotonic()
        try:
            if reason := pending.stop_reason():
                raise QuestionCancelled(reason)
            answer = memory.ask(
                question.text, camera=question.camera, since=question.since, until=question.until,
                near=question.near, radius=question.radius, near_frame=question.near_frame,
                max_new_tokens=question.max_new_tokens or None, min_confidence=question.min_confidence,
                should_stop=pending.should_stop,
                on_token=lambda text: self._events.token(pending, text, pending.token(text)))
            latency = replace(answer.latency, queue_ms=1e3 * (started - pending.asked))
            self._refresh_stats(memory, 0.0)
            pending.finish(replace(answer, latency=latency))
        except QuestionCancelled as error:
            pending.finish(QuestionCancelled(pending.stop_reason() or str(error)))
        except KvStreamError as error:
            if isinstance(error, NonFiniteError):
                self._events.fault("question", error)
            pending.finish(error)
        except BaseException as error:  # noqa: BLE001 - the node must survive any fault in the model
            self._events.fault("question", error)
            pending.finish(error)

    def _fail_calls(self) -> None:
        with self._work:
            calls, self._calls = list(self._calls), deque()
        for _, done in calls:
            done.set_exception(KvStreamError(CLOSED))


def _name_thread() -> None:
    """Set the current thread's name in the operating system (Python itself does so from 3.14 on)."""
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_NAME)


def describe(error: BaseException) -> str:
    """Describe an error in one line: the message of a KvStreamError, type and location of any other."""
    if isinstance(error, KvStreamError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {str(error)[:300]}{place}"
