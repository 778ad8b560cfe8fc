"""A running node under cameras and questions: ages, answer times, drops, processor time by thread."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.frame_cost import HEIGHT, WIDTH
from ros_kvstream.commands.soak_cameras import CameraPlan, Scene, SoakCamera
from ros_kvstream.evaluation.node_client import NodeClient
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup
from ros_kvstream.msg import KvStats
from ros_kvstream.node.worker import THREAD_NAME

WARM_UP_SECONDS = 3.0
QUESTION_SECONDS = 2.0
"""From one question to the next; one that is still open delays the next."""
QUESTION = "is the cone on the left or on the right ?"
STATS_SECONDS = 1.0
"""Period of the node's reports, as it is by default."""


@dataclass(frozen=True)
class Load:
    """What a node is put under."""

    cameras: int
    seconds: float
    rate: float
    """Frames per second of a camera."""
    model: str = "tiny"
    budget_mib: float = 1.0
    scene: Scene | None = None
    """What the cameras see; None for a room of their own each."""

    @property
    def plans(self) -> list[CameraPlan]:
        """The cameras, raw pictures of 640 x 480."""
        names = [f"camera{number}" for number in range(self.cameras)]
        return [CameraPlan(name, f"/{name}/image", False, self.rate, WIDTH, HEIGHT) for name in names]

    def command(self) -> list[str]:
        """The command that runs the node."""
        names = ",".join(f'"{plan.name}"' for plan in self.plans)
        parameters: dict[str, object] = {
            "model": self.model, "memory.budget_mib": self.budget_mib, "memory.max_question_tokens": 32,
            "memory.max_answer_tokens": 16, "cameras": f"[{names}]", "diagnostics.period_s": STATS_SECONDS,
            **{f"{plan.name}.topic": plan.topic for plan in self.plans},
        }  # fmt: skip
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
        return [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", *given]


class LoadClient(NodeClient):
    """A NodeClient with cameras, which notes every age and every answer's time. Methods are called from one thread."""

    def __init__(self, domain: int, plans: Sequence[CameraPlan], scene: Scene | None = None) -> None:
        self.ages: list[float] = []
        """Age of each newest remembered frame when the memory had it, ms."""
        self.answers: list[float] = []
        """From the call of ~/query until its response is here, ms."""
        super().__init__(domain)
        self.cameras = [SoakCamera(self._node, plan, number, scene) for number, plan in enumerate(plans)]
        self._question: Future[Any] | None = None
        self._next_question = 0.0

    def __enter__(self) -> LoadClient:
        return self

    def _take_stats(self, stats: KvStats) -> None:
        if self.stats is None or stats.frames_seen != self.stats.frames_seen:
            self.ages.append(stats.frame_age_ms)
        self.stats = stats

    def wait_for_cameras(self, process: Process, timeout: float = 300.0) -> None:
        """Wait until the node (which starts by itself) listens to every camera and answers."""
        process.wait_for(lambda: all(camera.connected for camera in self.cameras), "subscribing", timeout)
        self._find(self._query, process, "offering ~/query", timeout)

    def play(self, seconds: float, process: Process) -> None:
        """Publish what is due and ask in turn for some seconds."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            process.check()
            for camera in self.cameras:
                camera.publish_due(time.time())
            if now >= self._next_question and (self._question is None or self._question.done()):
                self._next_question = now + QUESTION_SECONDS
                self._question = self._ask_now(now)
            time.sleep(0.001)

    def _ask_now(self, asked: float) -> Future[Any]:
        future = self.ask(QUESTION)

        def note(done: Future[Any]) -> None:
            with suppress(Exception):  # a call that failed has no time
                if done.result().success:
                    self.answers.append(1e3 * (time.monotonic() - asked))

        future.add_done_callback(note)
        return future

    def forget(self) -> None:
        """Begin anew with the notes."""
        self.ages, self.answers = [], []


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and number of values; 0 without values."""
    if not values:
        return {"p50": 0.0, "p95": 0.0, "n": 0}
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p95": ordered[round(0.95 * (len(ordered) - 1))], "n": len(ordered)}


def thread_seconds(pid: int) -> dict[str, float]:
    """Processor seconds so far of a process's threads by their names, those of one name together."""
    seconds: dict[str, float] = {}
    for thread in psutil.Process(pid).threads():
        with suppress(OSError):  # it ended meanwhile
            name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text().strip()
            seconds[name] = seconds.get(name, 0.0) + thread.user_time + thread.system_time
    return seconds


def processor_shares(
    before: Mapping[str, float], after: Mapping[str, float], seconds: float, cameras: int
) -> dict[str, float]:
    """Shares of one core: the worker thread (frames, gate, model), all other threads, and those per camera."""
    used = {name: max(0.0, after[name] - before.get(name, 0.0)) / seconds for name in after}
    worker = used.pop(THREAD_NAME, 0.0)
    others = sum(used.values())
    return {"worker": worker, "others": others, "others_per_camera": others / cameras}


def measure(load: Load, domain: int, processes: ProcessGroup, outside_model: float) -> dict[str, Any]:
    """Start a node, put it under load, and return its row of the report.

    :param outside_model: the worker's processor seconds a frame that are not the model's.
    """
    with LoadClient(domain, load.plans, load.scene) as client:
        process = processes.start("kvstream_node", load.command())
        client.wait_for_cameras(process)
        client.play(WARM_UP_SECONDS, process)
        before, first = thread_seconds(process.pid), client.stats
        client.forget()
        published, started = sum(camera.published for camera in client.cameras), time.monotonic()
        client.play(load.seconds, process)
        seconds, after, last = time.monotonic() - started, thread_seconds(process.pid), client.stats
        published = sum(camera.published for camera in client.cameras) - published
        ages, answers = spread(client.ages), spread(client.answers)
    if first is None or last is None:
        raise ProcessError(f"{process.name} published no figures:{process.log_end()}")
    taken = (last.frames_seen - first.frames_seen) / seconds
    cpu = processor_shares(before, after, seconds, load.cameras)
    cpu["worker_outside_model"] = outside_model * taken
    cpu["outside_model_per_camera"] = (cpu["others"] + cpu["worker_outside_model"]) / load.cameras
    causes = [dict(zip(stats.drop_causes, stats.drop_counts, strict=True)) for stats in (first, last)]
    return {
        "age_ms": ages,
        "answer_ms": answers,
        "published_per_second": published / seconds,
        "taken_per_second": taken,
        "kept_per_second": (last.frames_kept - first.frames_kept) / seconds,
        "dropped": {cause: int(number) - int(causes[0].get(cause, 0)) for cause, number in causes[1].items()},
        "cpu": cpu,
        "model_ms": {"vision": last.vision_spread_ms.p50, "prefill": last.prefill_spread_ms.p50},
    }
