"""One cell on one episode: every frame observed on its stamp, every question asked at its time, all of it recorded."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from ros_kvstream.errors import BudgetError, CapacityError, FrameError, KvStreamError, QuestionError
from ros_kvstream.evaluation.grid import Cell, Episode, Job
from ros_kvstream.evaluation.question_files import EvaluationQuestion
from ros_kvstream.recordings.frame_sources import FrameStore, StreamFrame
from ros_kvstream.records import Answer

if TYPE_CHECKING:
    from ros_kvstream.models.base import VideoLanguageModel
    from ros_kvstream.stream.memory import VideoMemory

MIB = 1 << 20
TRACE_POINTS = 120
"""Most points of a run's trace of memory and time."""
LATE_SECONDS = 1.0
"""A question is still asked when the stream ended this long before its time; later ones are not."""
Progress = Callable[[int], None]
"""Told how many frames more were seen."""


@dataclass
class RunResult:
    """What one run gave: a record of the run, and one of every question, all plain data for JSON."""

    run: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)


def run_job(job: Job, model: VideoLanguageModel, store: FrameStore, progress: Progress = lambda _: None) -> RunResult:
    """Run a cell on an episode.

    A budget that is too small, or a full cache that reaches its cap, is a result too: the run is "refused" and says
    why. Raises KvStreamError for what is wrong with the recording or the settings.
    """
    from ros_kvstream.stream.memory import VideoMemory

    began, cell, episode = time.perf_counter(), job.cell, job.episode
    run: dict[str, Any] = {"run": job.key, "cell": cell.data(), "episode": episode.name, "status": "done", "reason": ""}
    result, trace = RunResult(run), Trace()
    memory = None
    try:
        budget = cell.budget_mib or share_budget_mib(cell, model, store, episode)
        run["budget_bytes"] = int(budget * MIB)
        memory = VideoMemory(cell.settings(budget), model)
        _stream(memory, job, store, result, trace, progress)
    except (BudgetError, CapacityError, FrameError) as error:
        run |= {"status": "refused", "reason": str(error)}
        result.lines.clear()
    finally:
        if memory is not None:
            memory.close()
    run |= {"trace": trace.points, "seconds": time.perf_counter() - began, "questions": len(result.lines)}
    if run["status"] == "done":
        run |= {"frames_digest": store.digest(episode.source), "notes": store.notes(episode.source)}
    return result


def _stream(
    memory: VideoMemory, job: Job, store: FrameStore, result: RunResult, trace: Trace, progress: Progress
) -> None:
    """Observe and ask in the order of time."""
    episode = job.episode
    first = episode.source.first_stamp()
    waiting = deque(sorted(episode.questions, key=lambda question: question.stamp(question.at, first)))
    every = max(1, (episode.source.count() or TRACE_POINTS) // TRACE_POINTS)
    newest, seen = -math.inf, 0
    for frame in _ahead(store, episode):
        while waiting and waiting[0].stamp(waiting[0].at, first) < frame.stamp:
            result.lines.append(_ask(memory, job, waiting.popleft(), first, newest, seen))
        started = time.perf_counter()
        memory.observe(frame.picture, frame.stamp, frame.camera)
        trace.ingested(1e3 * (time.perf_counter() - started))
        newest, seen = max(newest, frame.stamp), seen + 1
        if seen % every == 0:
            trace.sample(memory, seen)
            progress(every)
    if not seen:
        raise KvStreamError(f"{episode.name}: holds no picture that can be read")
    while waiting:
        result.lines.append(_ask(memory, job, waiting.popleft(), first, newest, seen))
    trace.sample(memory, seen)
    stats = memory.stats()
    result.run |= {"frames": seen, "first_stamp": first, "newest_stamp": newest,
                   "memory": dataclasses.asdict(stats)}  # fmt: skip


def _ahead(store: FrameStore, episode: Episode) -> Iterator[StreamFrame]:
    """The frames; a reading error that is no KvStreamError names the recording."""
    try:
        yield from store.frames(episode.source)
    except OSError as error:
        raise KvStreamError(f"{episode.name}: cannot be read: {error}") from error


def _ask(
    memory: VideoMemory, job: Job, question: EvaluationQuestion, first: float, newest: float, seen: int
) -> dict[str, Any]:
    """Ask one question; returns its line of the results."""
    line = question_line(job, question, first)
    line |= {"asked_at": newest if seen else None, "frames_before": seen}
    due = question.stamp(question.at, first)
    if math.isfinite(due) and due > newest + LATE_SECONDS and seen:
        return line | {"error": f"not asked: the stream ended {due - newest:.1f} s before", "correct": None}
    since, until = (question.stamp(limit, first) if limit else 0.0 for limit in (question.since, question.until))
    try:
        answer = memory.ask(question.prompt, camera=question.camera, since=since, until=until)
    except QuestionError as error:
        return line | {"error": str(error), "correct": False}
    return line | answer_fields(answer) | {"correct": question.expected.accepts(answer.text)}


def question_line(job: Job, question: EvaluationQuestion, first: float) -> dict[str, Any]:
    """The part of a line of the results that does not depend on the answer; times are header stamps."""
    due = question.stamp(question.at, first)
    return {
        "run": job.key,
        "cell": job.cell.data(),
        "episode": job.episode.name,
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
        "error": "",
        "evidence": [],
        "latency": None,
        "memory": None,
    }


def answer_fields(answer: Answer) -> dict[str, Any]:
    """What an answer adds to its line."""
    return {
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "asked_at": answer.asked_at,
        "evidence": [
            {"stamp": frame.stamp, "stamp_end": frame.stamp_end, "camera": frame.camera, "score": frame.score,
             "kept_share": frame.kept_share, "ranks": frame.ranks}
            for frame in answer.evidence
        ],
        "latency": dataclasses.asdict(answer.latency),
        "memory": {"budget_bytes": answer.memory.budget_bytes, "used_bytes": answer.memory.used_bytes,
                   "archive_bytes": answer.memory.archive_bytes,
                   "frames_remembered": answer.memory.frames_remembered},
    }  # fmt: skip


class Trace:
    """Memory and ingest time over a run, at a bounded number of points."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []
        self._ingest: list[float] = []
        self._process = psutil.Process()

    def ingested(self, milliseconds: float) -> None:
        """Note the time of one frame."""
        self._ingest.append(milliseconds)

    def sample(self, memory: VideoMemory, frames: int) -> None:
        """Note the memory's figures, and the frames' times since the last sample."""
        if self._ingest:
            self.points.append(self.point(memory.stats(), frames, self._process.memory_info().rss))

    def point(self, stats: Any, frames: int, process_bytes: int) -> dict[str, float]:
        """One point; the times collected so far are used up."""
        times, self._ingest = sorted(self._ingest), []
        return {
            "frames": frames,
            "stamp": stats.newest_stamp,
            "used_bytes": stats.used_bytes,
            "peak_bytes": stats.peak_bytes,
            "allocated_bytes": stats.allocated_bytes,
            "archive_bytes": stats.archive_bytes,
            "process_bytes": process_bytes,
            "ingest_ms": sum(times) / len(times) if times else 0.0,
            "ingest_max_ms": times[-1] if times else 0.0,
        }


def share_budget_mib(cell: Cell, model: VideoLanguageModel, store: FrameStore, episode: Episode) -> float:
    """MiB that hold a share of the frame slots of the whole stream, and room for prompt, question and answer.

    With an archive the room for the frames that it brings back comes on top too. Slots are in the model's own type: a
    precision ladder gets the same bytes and makes more of them.
    """
    from ros_kvstream.memory.budget import smallest_budget

    settings = cell.settings(1.0)
    _, sizes = store.measure(episode.source)
    grids = {size: model.frame_tokens(*model.grid(*size)) for size in sizes}
    tokens = sum(grids[size] * count for size, count in sizes.items())
    largest = max(grids.values(), default=1)
    reserve = len(model.suffix_ids("")) + settings.memory.max_question_tokens + settings.memory.max_answer_tokens
    if settings.archive.enabled:
        reserve += settings.retrieval.capacity_tokens or settings.retrieval.top_k * largest
    slots = math.ceil(cell.budget_share * tokens)
    needed = smallest_budget(model.shape, len(model.prefix_ids), reserve, slots)
    return math.ceil(needed * 1024 / MIB) / 1024
