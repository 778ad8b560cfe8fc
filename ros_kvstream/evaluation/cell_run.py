# SPDX-License-Identifier: Apache-2.0
"""A run of one cell on one episode: every frame is observed, every question asked at its time, all of it recorded."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from ros_kvstream.errors import BudgetError, CapacityError, FrameError, NonFiniteError, QuestionError, RecordingError
from ros_kvstream.evaluation.episodes import Episode
from ros_kvstream.evaluation.grid import Cell, Job
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.recordings.frame_sources import FrameStore

if TYPE_CHECKING:
    from ros_kvstream.models.base import VideoLanguageModel
    from ros_kvstream.stream.memory import VideoMemory

MIB = 1 << 20
TRACE_POINTS = 120
"""Maximum number of points in a run's trace of memory and time."""
LATE_SECONDS = 1.0
"""A question is still asked when the stream ended this long before its time; later ones are not."""
PATH_POINTS = 1000
"""Maximum number of points of the robot's path, about."""
ANSWER_MEMORY = ("budget_bytes", "used_bytes", "archive_bytes", "frames_remembered")
"""Memory figures that an answer's line has."""
UNTRAINED = "the model has no weights: they are random, and its answers are meaningless"
"""Note of a run whose model is untrained."""
Progress = Callable[[int], None]
"""Is called with the number of frames that were observed since the last call."""


@dataclass
class RunResult:
    """A record of the run and one of every question, all plain data for JSON."""

    run: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)


def start_result(job: Job) -> RunResult:
    """Return the record of a run that has not failed yet."""
    return RunResult({"run": job.key, "cell": job.cell.data(), "episode": job.episode.name, "status": "done",
                      "reason": "", "trace": [], "path": []})  # fmt: skip


def refuse(result: RunResult, error: Exception) -> None:
    """Make a run a refused one, without answers."""
    reason = f"{result.run['episode']}: cannot be read: {error}" if isinstance(error, OSError) else str(error)
    result.run |= {"status": "refused", "reason": reason}
    result.lines.clear()


def run_job(job: Job, model: VideoLanguageModel, store: FrameStore, progress: Progress = lambda _: None) -> RunResult:
    """Run a cell on an episode.

    A budget that is too small, a full cache that reaches its budget, and a recording that cannot be read are results
    too: the run is "refused" with the reason. Raises KvStreamError for settings or a model that cannot be used.
    """
    from ros_kvstream.stream.memory import VideoMemory

    began, cell, episode = time.perf_counter(), job.cell, job.episode
    result, memory = start_result(job), None
    run = result.run
    try:
        budget = cell.budget_mib or share_budget_mib(cell, model, store, episode)
        run["budget_bytes"] = int(budget * MIB)
        memory = VideoMemory(cell.settings(budget), model)
        _stream(memory, job, store, result, progress)
        run |= {"frames_digest": store.digest(episode.source), "notes": [*store.notes(episode.source)]}
        if not model.trained:
            run["notes"].append(UNTRAINED)
    except (BudgetError, CapacityError, FrameError, NonFiniteError, RecordingError, OSError) as error:
        refuse(result, error)
    finally:
        if memory is not None:
            memory.close()
    run |= {"seconds": time.perf_counter() - began, "questions": len(result.lines)}
    return result


def _stream(memory: VideoMemory, job: Job, store: FrameStore, result: RunResult, progress: Progress) -> None:
    """Observe the frames and ask the questions in the order of time."""
    questions, source = QuestionQueue(job), job.episode.source
    every, step = (max(1, (source.count() or points) // points) for points in (TRACE_POINTS, PATH_POINTS))
    process, times = psutil.Process(), list[float]()

    def sample() -> None:
        stats = memory.stats()
        result.run["trace"].append(
            trace_point(stats, stats.newest_stamp, questions.frames, process.memory_info().rss, times)
        )
        times.clear()

    def ask(question: EvaluationQuestion) -> None:
        result.lines.append(_ask(memory, question, questions))

    for frame in store.frames(source):
        for question in questions.due_before(frame.stamp):
            ask(question)
        started = time.perf_counter()
        memory.observe(frame.picture, frame.stamp, frame.camera, frame.pose)
        times.append(1e3 * (time.perf_counter() - started))
        if frame.pose is not None and questions.frames % step == 0:
            result.run["path"].append([frame.stamp, *frame.pose.base.position[:2]])
        questions.count_frame(frame.stamp)
        if questions.frames % every == 0:
            sample()
            progress(every)
    if not questions.frames:
        raise _no_frames(job.episode, store)
    for question in questions.due_before(math.inf):
        ask(question)
    if times:
        sample()
    result.run |= questions.data() | {"memory": dataclasses.asdict(memory.stats())}


def _no_frames(episode: Episode, store: FrameStore) -> RecordingError:
    return RecordingError(f"{episode.name}: holds no readable frame. {' '.join(store.notes(episode.source))}".strip())


def _ask(memory: VideoMemory, question: EvaluationQuestion, questions: QuestionQueue) -> dict[str, Any]:
    """Ask one question; returns its line of the results."""
    line = questions.line(question)
    if line["error"]:
        return line
    since, until = questions.limits(question)
    try:
        answer = memory.ask(
            question.prompt, camera=question.camera, since=since, until=until, near=question.near,
            radius=question.radius,
        )  # fmt: skip
    except (QuestionError, NonFiniteError) as error:
        return line | {"error": str(error), "correct": False}
    evidence = [
        {"stamp": frame.stamp, "stamp_end": frame.stamp_end, "camera": frame.camera, "score": frame.score,
         "kept_share": frame.kept_share, "ranks": frame.ranks,
         "position": list(frame.pose.base.position) if frame.pose else None}
        for frame in answer.evidence
    ]  # fmt: skip
    goal = list(answer.goal.base.position) if answer.goal else None
    return line | {
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "verdict": answer.verdict.value,
        "confidence": answer.confidence,
        "covered_share": answer.covered_share,
        "asked_at": answer.asked_at,
        "evidence": evidence,
        "latency": dataclasses.asdict(answer.latency),
        "memory": {name: getattr(answer.memory, name) for name in ANSWER_MEMORY},
        "goal": goal,
        "error_m": question.expected.error(goal),
        "correct": question.expected.right(answer.text, goal),
    }


class QuestionQueue:
    """Questions of a run in the order of their times, and how far the stream has come."""

    def __init__(self, job: Job) -> None:
        """Read the first stamp of the stream, from which question times count."""
        self.first_stamp = job.episode.source.first_stamp()
        self.newest_stamp = -math.inf
        self.frames = 0
        self._job = job
        self._waiting = deque(sorted(job.episode.questions, key=self._due))

    def _due(self, question: EvaluationQuestion) -> float:
        return question.stamp(question.at, self.first_stamp)

    def due_before(self, stamp: float) -> Iterator[EvaluationQuestion]:
        """Take the questions that are asked before a frame of this stamp; infinite: all that are left."""
        while self._waiting and (math.isinf(stamp) or self._due(self._waiting[0]) < stamp):
            yield self._waiting.popleft()

    def count_frame(self, stamp: float) -> None:
        """Count a frame of the stream."""
        self.frames += 1
        self.newest_stamp = max(self.newest_stamp, stamp)

    def data(self) -> dict[str, Any]:
        """Frames and stamps for the record of the run."""
        return {"frames": self.frames, "first_stamp": self.first_stamp, "newest_stamp": self.newest_stamp}

    def limits(self, question: EvaluationQuestion) -> tuple[float, float]:
        """Header stamps of the question's ``since`` and ``until``; 0: unbounded."""
        first = self.first_stamp
        return (question.stamp(question.since, first) if question.since else 0.0,
                question.stamp(question.until, first) if question.until else 0.0)  # fmt: skip

    def line(self, question: EvaluationQuestion) -> dict[str, Any]:
        """Line of the results of a question that is not answered yet, or too late to be asked; times are stamps."""
        due, first = self._due(question), self.first_stamp
        late = due - self.newest_stamp if self.frames and math.isfinite(due) else 0.0
        return {
            "run": self._job.key,
            "cell": self._job.cell.data(),
            "episode": self._job.episode.name,
            "question": question.name,
            "text": question.text,
            "prompt": question.prompt,
            "expected": question.expected.data(),
            "kind": question.kind,
            "task": question.task,
            "tags": dict(question.tags),
            "camera": question.camera,
            "at": due if math.isfinite(due) else None,
            "first_stamp": first,
            "true_evidence": [question.stamp(stamp, first) for stamp in question.evidence],
            "answer": None,
            "error": f"not asked: the stream ended {late:.1f} s before" if late > LATE_SECONDS else "",
            "evidence": [],
            "latency": None,
            "memory": None,
            "asked_at": self.newest_stamp if self.frames else None,
            "frames_before": self.frames,
            "correct": None,
        }


def trace_point(stats: Any, stamp: float, frames: int, process_bytes: int, times: list[float]) -> dict[str, float]:
    """One point of a run's trace: memory, and ingest times in milliseconds since the last point."""
    return {
        "frames": frames,
        "stamp": stamp,
        "used_bytes": stats.used_bytes,
        "peak_bytes": stats.peak_bytes,
        "allocated_bytes": stats.allocated_bytes,
        "archive_bytes": stats.archive_bytes,
        "process_bytes": process_bytes,
        "ingest_ms": sum(times) / len(times) if times else 0.0,
        "ingest_max_ms": max(times, default=0.0),
    }


def share_budget_mib(cell: Cell, model: VideoLanguageModel, store: FrameStore, episode: Episode) -> float:
    """MiB that hold a share of the frame slots of the whole stream, and room for prompt, question and answer.

    With an archive, the frames that it brings back come on top too. Slots are counted in the native dtype: a quantized
    arena gets the same bytes and holds more slots.
    """
    from ros_kvstream.memory.budget import smallest_budget

    settings, sizes = cell.settings(1.0), store.sizes(episode.source)
    if not sizes:
        raise _no_frames(episode, store)
    grids = {size: model.frame_tokens(*model.grid(*size)) for size in sizes}
    tokens = sum(grids[size] * count for size, count in sizes.items())
    reserve = len(model.suffix_ids("")) + settings.memory.max_question_tokens + settings.memory.max_answer_tokens
    reserve += settings.retrieval.slots(max(grids.values(), default=1), settings.archive)
    slots = math.ceil(cell.budget_share * tokens)
    needed = smallest_budget(model.shape, len(model.prefix_ids), reserve, slots)
    return math.ceil(needed * 1024 / MIB) / 1024
