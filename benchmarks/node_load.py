# SPDX-License-Identifier: Apache-2.0
"""A node under cameras and questions, and its worker's processor time part by part. Needs ROS 2."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import torch

from ros_kvstream.commands.soak_cameras import CameraPlan, Room, Scene, SoakCamera, raw_message
from ros_kvstream.evaluation.node_client import NodeClient
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup
from ros_kvstream.msg import KvStats
from ros_kvstream.node.images import Rgb, image_to_rgb
from ros_kvstream.node.worker import THREAD_NAME
from ros_kvstream.recordings.bags import BagError, BagSource
from ros_kvstream.settings import MemorySettings, ModelSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

WIDTH, HEIGHT = 640, 480
WARM_UP_SECONDS = 3.0
QUESTION_SECONDS = 2.0
"""Time between questions; an open question delays the next."""
QUESTION = "is the cone on the left or on the right ?"
QUESTION_TOKENS, ANSWER_TOKENS = 32, 16
STATS_SECONDS = 1.0
"""Period of the node's reports, the default."""
PARTS = ("conversion", "gate", "resize", "vision tower", "prefill", "compaction", "the rest")
OUTSIDE_MODEL = ("conversion", "gate", "compaction", "the rest")
"""Parts of this package; the resize is the family's image processor, which makes the model's input."""
WARM_UP_FRAMES = 30


class Recording:
    """Pictures of a recording in a loop, ``rate`` per second."""

    def __init__(self, path: Path, rate: float, most: int = 200) -> None:
        """Read at most ``most`` pictures of a bag; raises BagError where there are none."""
        self._pictures = [frame.picture for frame in islice(BagSource(path).frames(), most)]
        if not self._pictures:
            raise BagError(f"bag = {str(path)!r}: holds no readable image")
        self._rate = rate
        self._sized: dict[tuple[int, int, int], Rgb] = {}

    def picture(self, now: float, width: int, height: int) -> Rgb:
        """Picture at a time in seconds, resized; the same array whenever it repeats."""
        key = int(now * self._rate) % len(self._pictures), width, height
        if key not in self._sized:
            sized = cv2.resize(self._pictures[key[0]], (width, height), interpolation=cv2.INTER_AREA)
            self._sized[key] = np.asarray(sized, dtype=np.uint8)
        return self._sized[key]


@dataclass(frozen=True)
class Load:
    """Cameras and settings of one measurement."""

    cameras: int
    seconds: float
    rate: float
    """Frames per second of a camera."""
    model: str = "tiny"
    budget_mib: float = 1.0
    scene: Scene | None = None
    """What the cameras see; None for a drawn room each."""

    @property
    def plans(self) -> list[CameraPlan]:
        """The cameras, raw pictures of 640 x 480."""
        names = [f"camera{number}" for number in range(self.cameras)]
        return [CameraPlan(name, f"/{name}/image", False, self.rate, WIDTH, HEIGHT) for name in names]

    def command(self) -> list[str]:
        """Command that runs the node."""
        names = ",".join(f'"{plan.name}"' for plan in self.plans)
        parameters: dict[str, object] = {
            "model": self.model, "memory.budget_mib": self.budget_mib, "memory.max_question_tokens": QUESTION_TOKENS,
            "memory.max_answer_tokens": ANSWER_TOKENS, "cameras": f"[{names}]", "diagnostics.period_s": STATS_SECONDS,
            **{f"{plan.name}.topic": plan.topic for plan in self.plans},
        }  # fmt: skip
        given = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
        return [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", *given]


# -- the running node -------------------------------------------------------------------------------------------------


class LoadClient(NodeClient):
    """A NodeClient with cameras that records frame ages and answer times. Methods are called from one thread."""

    def __init__(self, domain: int, plans: Sequence[CameraPlan], scene: Scene | None = None) -> None:
        self.ages: list[float] = []
        """Age of each newest remembered frame when it had been prefilled, ms."""
        self.answers: list[float] = []
        """Time from the call of ~/query to its response, ms."""
        self.unanswered = 0
        """Questions that were refused or failed."""
        super().__init__(domain)
        self.cameras = [SoakCamera(self.node, plan, number, scene) for number, plan in enumerate(plans)]
        self._question: Future[Any] | None = None
        self._next_question = 0.0

    def __enter__(self) -> LoadClient:
        return self

    def _take_stats(self, stats: KvStats) -> None:
        if self.stats is None or stats.frames_seen != self.stats.frames_seen:
            self.ages.append(stats.frame_age_ms)
        self.stats = stats

    def wait_for_cameras(self, process: Process, timeout: float = 300.0) -> None:
        """Wait until the node (which starts by itself) subscribes to every camera and answers."""
        process.wait_for(lambda: all(camera.connected for camera in self.cameras), "subscribing", timeout)
        self.wait_for_services(process, "query", timeout=timeout)

    def play(self, seconds: float, process: Process) -> None:
        """Publish due frames and ask questions for some seconds."""
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
            if done.exception() is None and done.result().success:
                self.answers.append(1e3 * (time.monotonic() - asked))
            else:
                self.unanswered += 1

        future.add_done_callback(note)
        return future

    def reset(self) -> None:
        """Discard the recorded times."""
        self.ages, self.answers, self.unanswered = [], [], 0


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and number of values; 0 without values."""
    if not values:
        return {"p50": 0.0, "p95": 0.0, "n": 0}
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p95": ordered[round(0.95 * (len(ordered) - 1))], "n": len(ordered)}


def thread_seconds(pid: int) -> dict[str, float]:
    """Processor seconds of a process's threads by name; threads of the same name are summed."""
    seconds: dict[str, float] = {}
    for thread in psutil.Process(pid).threads():
        with suppress(OSError):  # the thread has ended
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

    :param outside_model: the worker's processor seconds per frame that are not the model's.
    """
    with LoadClient(domain, load.plans, load.scene) as client:
        process = processes.start("kvstream_node", load.command())
        client.wait_for_cameras(process)
        client.play(WARM_UP_SECONDS, process)
        before, first = thread_seconds(process.pid), client.stats
        client.reset()
        published, started = sum(camera.published for camera in client.cameras), time.monotonic()
        client.play(load.seconds, process)
        seconds, after, last = time.monotonic() - started, thread_seconds(process.pid), client.stats
        published = sum(camera.published for camera in client.cameras) - published
        ages, answers = percentiles(client.ages), percentiles(client.answers)
    if first is None or last is None:
        raise ProcessError(f"{process.name} published no ~/stats:{process.log_end()}")
    taken = (last.frames_seen - first.frames_seen) / seconds
    cpu = processor_shares(before, after, seconds, load.cameras)
    cpu["worker_outside_model"] = outside_model * taken
    cpu["outside_model_per_camera"] = (cpu["others"] + cpu["worker_outside_model"]) / load.cameras
    causes = [dict(zip(stats.drop_causes, stats.drop_counts, strict=True)) for stats in (first, last)]
    return {
        "age_ms": ages,
        "answer_ms": answers | {"unanswered": client.unanswered},
        "published_per_second": published / seconds,
        "taken_per_second": taken,
        "kept_per_second": (last.frames_kept - first.frames_kept) / seconds,
        "dropped": {cause: int(number) - int(causes[0].get(cause, 0)) for cause, number in causes[1].items()},
        "cpu": cpu,
        "model_ms": {"vision": last.vision_percentiles_ms.p50, "prefill": last.prefill_percentiles_ms.p50},
    }


# -- the worker's time, part by part ----------------------------------------------------------------------------------


class Meter:
    """Processor time of this thread inside wrapped calls; time inside a nested wrapped call counts there only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, with its time recorded under ``name``."""

        def timed(*arguments: Any, **named: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            started = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.thread_time() - started
                self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inner
                self._inner = outer + spent

        return timed

    def attach(self, owner: Any, method: str, name: str) -> None:
        """Wrap a method of an object."""
        setattr(owner, method, self.wrap(name, getattr(owner, method)))


class MeteredProcessor:
    """An image processor whose calls are recorded as "resize"; everything else is the processor's own."""

    def __init__(self, processor: Any, meter: Meter) -> None:
        self._processor, self._call = processor, meter.wrap("resize", processor)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Process pictures."""
        return self._call(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)


def frame_cost(
    frames: int, rate: float, model: str, budget_mib: float, scene: Scene | None = None
) -> dict[str, float]:
    """Shares of one core under a camera of ``rate`` frames per second, by PARTS, and "kept", the share of frames kept.

    A memory gets raw messages of 640 x 480 pixels, ``rate`` per second by their stamps, as from the node's worker.
    """
    torch.set_num_threads(1)
    memory = MemorySettings(
        budget_mib=budget_mib, max_question_tokens=QUESTION_TOKENS, max_answer_tokens=ANSWER_TOKENS
    )
    stream = VideoMemory(StreamSettings(ModelSettings(path=model, device="cpu"), memory))
    meter, kept, seen = Meter(), 0, scene or Room(0)
    meter.attach(stream.ingest.frame_filter, "decide", "gate")
    meter.attach(stream.model, "encode_grids", "vision tower")
    meter.attach(stream.model, "forward", "prefill")
    meter.attach(stream.ingest, "make_room", "compaction")
    network: Any = stream.model
    network.image_processor = MeteredProcessor(network.image_processor, meter)
    convert, observe = meter.wrap("conversion", image_to_rgb), meter.wrap("the rest", stream.observe)
    for number in range(frames + WARM_UP_FRAMES):
        if number == WARM_UP_FRAMES:
            meter.seconds.clear()
            kept = 0
        kept += observe(convert(raw_message(seen.picture(number / rate, WIDTH, HEIGHT))), number / rate).kept
    stream.close()
    shares = {part: meter.seconds.get(part, 0.0) * rate / frames for part in PARTS}
    return {**shares, "kept": kept / frames}
