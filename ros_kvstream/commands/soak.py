# SPDX-License-Identifier: Apache-2.0
"""Run a node for a long time under two cameras, questions and injected faults, and report what fails.

The node must survive every fault, answer or refuse every question, stay within its budget, and not grow after warm-up.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup, free_domain, require_ros
from ros_kvstream.evaluation.processes import ros_environment as environment_of
from ros_kvstream.node.metrics import WINDOW_SECONDS
from ros_kvstream.settings import ModelSettings, require, require_finite

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.commands.soak_cameras import SoakCamera
    from ros_kvstream.evaluation.node_client import NodeClient

QUESTION_SECONDS, FAULT_SECONDS = 3.0, 3.0
"""Seconds between two questions, and between the recovery from a fault and the next one."""
RECOVERY_SECONDS = 30.0
"""Limit for the node to take frames again after a fault, and to respond to a call."""
WARM_UP_SHARE, MAX_WARM_UP = 0.4, 120.0
"""The warm-up ends after this share of the time, and after this many seconds at most."""
GROWTH_LIMIT = 0.02
QUESTIONS = ("what is there?", "what was there before?", "which colours are there?", "what has changed?")
FILE = "soak"
"""Name of the memory file."""


@dataclass(frozen=True)
class SoakSettings:
    """Options of one run."""

    minutes: float = 20.0
    model: str = ModelSettings.path
    budget_mib: float = 4.0
    seed: int = 0
    raw_size: str = "160x120"
    """Width x height of the raw camera's pictures, pixels."""
    raw_rate: float = 6.0
    """Frames per second of the raw camera."""
    output: Path = Path("build/soak")
    """Folder of the node's log."""

    def __post_init__(self) -> None:
        require_finite("--minutes", self.minutes, 0.1, 60 * 24 * 30)
        require_finite("--budget-mib", self.budget_mib, 0.1, 1 << 20)
        require_finite("--raw-rate", self.raw_rate, 0.1, 1e3)
        sized = re.fullmatch(r"\d{2,4}x\d{2,4}", self.raw_size) is not None
        require(sized, "--raw-size", self.raw_size, "such as 1920x1080")

    def make_cameras(self, client: NodeClient) -> list[SoakCamera]:
        """Make a raw camera and a compressed one."""
        from ros_kvstream.commands.soak_cameras import CameraPlan, SoakCamera

        width, height = map(int, self.raw_size.split("x"))
        plans = (CameraPlan("front", "/front/image", False, self.raw_rate, width, height),
                 CameraPlan("rear", "/rear/image", True, 3.0, 128, 96))  # fmt: skip
        return [SoakCamera(client.node, plan, self.seed + index) for index, plan in enumerate(plans)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``kvstream soak``."""
    helps = {
        "minutes": "duration", "model": "'tiny', a local folder or a hub id", "budget_mib": "budget of the memory, MiB",
        "seed": "seed of the pictures", "raw_size": "width x height of the raw camera's pictures, pixels",
        "raw_rate": "frames per second of the raw camera", "output": "folder of the node's log",
    }  # fmt: skip
    for option in fields(SoakSettings):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default,
                            help=f"{helps[option.name]} (default: %(default)s)")  # fmt: skip


@dataclass
class Fault:
    """One kind of fault, with the number of times it was injected and survived."""

    name: str
    inject: Callable[[Soak], None]
    injected: int = 0
    survived: int = 0
    failures: list[str] = field(default_factory=list)
    """Why it was not survived, one entry per failure."""


class Soak:
    """One run: publishes frames, asks questions, injects faults and records what the node reports."""

    def __init__(
        self, settings: SoakSettings, client: NodeClient, process: Process, cameras: Sequence[SoakCamera]
    ) -> None:
        from diagnostic_msgs.msg import DiagnosticArray

        self.cameras = cameras
        self.faults = all_faults()
        self.asked = self.answered = self.refused = 0
        self.unexpected: list[str] = []
        """Reasons of responses other than expected."""
        self.process_bytes: list[tuple[float, int]] = []
        """Seconds since the start, and size of the node's process then."""
        self.peak_bytes = 0
        self.executor: dict[str, dict[str, float]] = {}
        """Milliseconds by metric of the executor: the latest p50 and p95, and the maximum of the whole run."""
        self._settings = settings
        self._client = client
        self._process = process
        self._start = time.monotonic()
        self._open: list[tuple[Future[Any], bool | None]] = []
        """Questions without a response, and whether an answer is expected; None: either is fine."""
        self._scheduled: list[tuple[float, Callable[[], None]]] = []
        self._newest: Any = None
        self._latency: dict[str, str] = {}
        client.node.create_subscription(DiagnosticArray, "/diagnostics", self._take_diagnostics, 10)

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def run(self, progress: Callable[[float], None]) -> None:
        """Run to the end.

        :param progress: is called with the share of the time that has passed.
        """
        end = 60.0 * self._settings.minutes
        next_question = next_fault = QUESTION_SECONDS
        number = 0
        while self.passed < end:
            self._play()
            if self.passed >= next_question:
                next_question = self.passed + QUESTION_SECONDS
                self.ask(QUESTIONS[self.asked % len(QUESTIONS)], max_new_tokens=8)
            if self.passed >= next_fault:
                self._inject(self.faults[number % len(self.faults)])
                number, next_fault = number + 1, self.passed + FAULT_SECONDS
            progress(self.passed / end)
        deadline = time.monotonic() + RECOVERY_SECONDS
        while self._open and time.monotonic() < deadline:
            self._play()
        self.unexpected += ["no response"] * len(self._open)

    def _play(self) -> None:
        """Publish due frames, run due actions, and take responses and new statistics."""
        self._process.check()
        for camera in self.cameras:
            camera.publish_due(time.time())
        for due, action in [entry for entry in self._scheduled if entry[0] <= self.passed]:
            self._scheduled.remove((due, action))
            action()
        for future, expected in [entry for entry in self._open if entry[0].done()]:
            self._open.remove((future, expected))
            self._take_answer(future.result(), expected)
        stats = self._client.stats
        if stats is not None and stats is not self._newest:
            self._newest = stats
            self.process_bytes.append((self.passed, stats.process_bytes))
            self.peak_bytes = max(self.peak_bytes, stats.peak_bytes)
            self._record_executor()
        time.sleep(0.01)

    def _take_diagnostics(self, array: Any) -> None:
        for status in array.status:
            if status.name.endswith(": latency"):
                self._latency = {value.key: value.value for value in status.values}

    def _record_executor(self) -> None:
        if self.passed < min(WINDOW_SECONDS, WARM_UP_SHARE * 60.0 * self._settings.minutes):
            return  # the metrics still include the time in which the model was loaded
        for name in ("executor lateness ms", "image callback ms"):
            found = re.match(r"p50 ([\d.]+), p95 ([\d.]+), max ([\d.]+)", self._latency.get(name, ""))
            if found:
                p50, p95, largest = map(float, found.groups())
                before = self.executor.get(name, {}).get("max", 0.0)
                self.executor[name] = {"p50": p50, "p95": p95, "max": max(before, largest)}

    def _take_answer(self, response: Any, expected: bool | None) -> None:
        self.answered += response.success
        self.refused += not response.success
        if expected is not None and response.success != expected:
            self.unexpected.append(response.message or f"answered: {response.answer}")

    def _inject(self, fault: Fault) -> None:
        """Inject a fault, and wait until the node takes frames again."""
        fault.injected += 1
        try:
            fault.inject(self)
            before = self._client.stats.frames_seen if self._client.stats else 0
            deadline = time.monotonic() + RECOVERY_SECONDS
            while self._client.stats is None or self._client.stats.frames_seen < before + 2 * len(self.cameras):
                if time.monotonic() > deadline:
                    raise KvStreamError(f"no frames were taken within {RECOVERY_SECONDS:g} s")
                self._play()
            fault.survived += 1
        except ProcessError:
            fault.failures.append("the node ended")
            raise
        except KvStreamError as error:
            fault.failures.append(str(error))

    def ask(self, question: str, *, expected: bool = True, **limits: Any) -> None:
        """Ask a question without waiting; ``expected``: whether it should be answered."""
        self.asked += 1
        self._open.append((self._client.ask(question, **limits), expected))

    def change_state(self, transition: str) -> None:
        """Request a lifecycle transition and wait for it; questions that are open may be refused."""
        self._open = [(future, None) for future, _ in self._open]
        self._finish(self._client.change_state(transition), transition)

    def set_budget(self, share: float) -> None:
        """Set the memory's budget to a share of the run's and wait for it."""
        from rcl_interfaces.srv import SetParameters
        from rclpy.parameter import Parameter

        value = Parameter("memory.budget_mib", value=share * self._settings.budget_mib).to_parameter_msg()
        self._finish(self._client.call("set_parameters", SetParameters.Request(parameters=[value])), "set_parameters")

    def save_and_load(self) -> None:
        """Save the memory, clear it and load it again; questions that are open may be refused."""
        from std_srvs.srv import Trigger

        from ros_kvstream.srv import MemoryFile

        self._open = [(future, None) for future, _ in self._open]
        file = MemoryFile.Request(name=FILE)
        for service, request in (("save", file), ("clear", Trigger.Request()), ("load", file)):
            self._finish(self._client.call(service, request), service)

    def schedule(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action after some seconds."""
        self._scheduled.append((self.passed + seconds, action))

    def _finish(self, future: Future[Any], what: str) -> None:
        """Continue until a call returns; raises KvStreamError with the reason of a refusal."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while not future.done():
            if time.monotonic() > deadline:
                raise KvStreamError(f"{what}: no response within {RECOVERY_SECONDS:g} s")
            self._play()
        response = future.result()
        if hasattr(response, "results"):  # of SetParameters
            success, reason = response.results[0].successful, response.results[0].reason
        else:
            success, reason = response.success, getattr(response, "message", "")
        if not success:
            raise KvStreamError(f"{what}: {reason or 'refused'}")


# -- faults ------------------------------------------------------------------------------------------------------------


def _damaged_frames(damage: Callable[[Any], None], soak: Soak, count: int = 1) -> None:
    for _ in range(count):
        for camera in soak.cameras:
            camera.publish(time.time(), damage)


def _unknown_encoding(message: Any) -> None:
    if hasattr(message, "encoding"):
        message.encoding = "nonsense8"
    else:
        message.format = "h264"
        message.data[:4] = type(message.data)("B", b"\0\0\0\1")


def _truncated(message: Any) -> None:
    del message.data[len(message.data) // 2 :]


def _empty(message: Any) -> None:
    message.data = type(message.data)("B")


def _without_stamp(message: Any) -> None:
    message.header.stamp.sec, message.header.stamp.nanosec = 0, 0


def _move_clock(seconds: float, soak: Soak) -> None:
    for camera in soak.cameras:
        camera.clock_offset += seconds


def _restart_cameras(soak: Soak) -> None:
    for camera in soak.cameras:
        camera.restart()


def _change_size(soak: Soak) -> None:
    camera = soak.cameras[0]
    camera.scale = 1.5
    soak.schedule(3.0, lambda: setattr(camera, "scale", 1.0))


def _silence_camera(soak: Soak) -> None:
    soak.cameras[-1].silent_until = time.time() + 4.0


def _ask_invalid_questions(soak: Soak) -> None:
    soak.ask("", expected=False)
    soak.ask("what is there?", expected=False, max_new_tokens=-5)
    soak.ask("what is there?", camera="nowhere")  # answered in words: nothing is remembered of it
    soak.ask("{0} %s %n \\x00 ../../etc/passwd", expected=False, timeout_s=float("nan"))


def _ask_without_time(soak: Soak) -> None:
    soak.ask("what is there?", expected=False, timeout_s=1e-6)


def _change_budget(soak: Soak) -> None:
    for share in (0.6, 1.0):
        soak.set_budget(share)


def _deactivate(soak: Soak) -> None:
    soak.change_state("deactivate")
    soak.change_state("activate")


def all_faults() -> list[Fault]:
    """Every kind of fault, in the order of injection."""
    return [
        Fault("unknown encoding", partial(_damaged_frames, _unknown_encoding)),
        Fault("cut short", partial(_damaged_frames, _truncated)),
        Fault("bad questions", _ask_invalid_questions),
        Fault("empty image", partial(_damaged_frames, _empty)),
        Fault("clock set back", partial(_move_clock, -30.0)),
        Fault("burst of frames", partial(_damaged_frames, lambda message: None, count=20)),
        Fault("no stamp", partial(_damaged_frames, _without_stamp)),
        Fault("other QoS", _restart_cameras),
        Fault("other size", _change_size),
        Fault("budget changed", _change_budget),
        Fault("clock set forward", partial(_move_clock, 3600.0)),
        Fault("saved and loaded", Soak.save_and_load),
        Fault("no time to answer", _ask_without_time),
        Fault("camera silent", _silence_camera),
        Fault("deactivated", _deactivate),
    ]


# -- the run and its report --------------------------------------------------------------------------------------------


def node_command(settings: SoakSettings, files: Path) -> list[str]:
    """Command line of the node."""
    parameters = {
        "model": settings.model, "memory.budget_mib": settings.budget_mib, "memory.directory": files,
        "memory.max_question_tokens": 64, "memory.max_answer_tokens": 16, "cameras": '["front","rear"]',
        "front.topic": "/front/image", "rear.topic": "/rear/image", "rear.transport": "compressed",
        "query.max_waiting": 8, "diagnostics.period_s": 0.5,
    }  # fmt: skip
    given = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
    return [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", *given]


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the node and return the report."""
    settings = SoakSettings(**{option.name: getattr(options, option.name) for option in fields(SoakSettings)})
    require_ros()
    from rich.progress import Progress

    from ros_kvstream.evaluation.node_client import NodeClient

    domain = free_domain()
    with (tempfile.TemporaryDirectory() as files, ProcessGroup(settings.output, environment_of(domain)) as processes,
          NodeClient(domain) as client):  # fmt: skip
        cameras = settings.make_cameras(client)
        process = processes.start("kvstream_node", node_command(settings, Path(files)))
        with console.status("Starting kvstream_node"):
            process.wait_for(lambda: all(camera.connected for camera in cameras), "subscribing to the cameras", 300.0)
            client.wait_for_services(process)
        soak = Soak(settings, client, process, cameras)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("Soak", total=1.0)
            soak.run(lambda share: progress.update(task, completed=share))
        stats = client.wait_for_settled(process, 0)
    return report_of(settings, soak, stats)


def process_growth(sizes: Sequence[tuple[float, int]], passed: float, round_seconds: float) -> float:
    """Relative growth of a process from the end of the warm-up to the end of the run.

    :param sizes: (seconds since the start, bytes); :param passed: length of the run, seconds.
    :param round_seconds: length of one round of all faults. A fault can change the size for a while, so both samples
        cover a whole round where the run is long enough.
    """
    warm = min(WARM_UP_SHARE * passed, MAX_WARM_UP)
    length = min(max(0.1 * passed, round_seconds), 0.3 * passed)
    early = [size for at, size in sizes if warm <= at < warm + length]
    late = [size for at, size in sizes if at >= passed - length]
    return statistics.median(late) / statistics.median(early) - 1.0 if early and late else 0.0


def report_of(settings: SoakSettings, soak: Soak, stats: Any) -> dict[str, Any]:
    """The machine-readable report; "failures" lists everything that failed."""
    dropped = dict(zip(stats.drop_causes, (int(count) for count in stats.drop_counts), strict=True))
    growth = process_growth(soak.process_bytes, soak.passed, FAULT_SECONDS * len(soak.faults))
    budget = int(settings.budget_mib * (1 << 20))
    failures = [f"{fault.name}: {reason}" for fault in soak.faults for reason in fault.failures]
    failures += [f"question: {reason}" for reason in soak.unexpected]
    if soak.asked != soak.answered + soak.refused:
        failures.append(f"questions lost: {soak.asked - soak.answered - soak.refused}")
    if soak.peak_bytes > budget:
        failures.append(f"budget exceeded: {soak.peak_bytes} of {budget} bytes")
    if growth > GROWTH_LIMIT:
        failures.append(f"the process grew by {100 * growth:.1f} %, more than {100 * GROWTH_LIMIT:g} %")
    if stats.frames_published != stats.frames_seen + sum(dropped.values()) + stats.queue_length:
        failures.append("frames are not accounted for: published differs from seen + dropped + waiting")
    return {
        "minutes": settings.minutes,
        "frames": {"published": stats.frames_published, "seen": stats.frames_seen, "kept": stats.frames_kept,
                   "gated": stats.frames_gated, "dropped": dropped},
        "questions": {"asked": soak.asked, "answered": soak.answered, "refused": soak.refused},
        "faults": {fault.name: {"injected": fault.injected, "survived": fault.survived} for fault in soak.faults},
        "memory": {"budget_bytes": budget, "peak_bytes": soak.peak_bytes, "process_growth": growth},
        "executor": {name.replace(" ", "_"): figures for name, figures in soak.executor.items()},
        "failures": failures,
    }  # fmt: skip


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table; raises KvStreamError when something failed."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("fault", "injected", "survived", title=f"Soak of {report['minutes']:g} minutes")
    for name, counts in report["faults"].items():
        table.add_row(name, str(counts["injected"]), str(counts["survived"]))
    console.print(table)
    frames, memory = report["frames"], report["memory"]
    console.print(f"Frames: {frames['published']} published, {frames['kept']} kept, {frames['gated']} gated, "
                  f"{sum(frames['dropped'].values())} dropped")  # fmt: skip
    console.print("Questions: {asked} asked, {answered} answered, {refused} refused".format(**report["questions"]))
    console.print(f"Memory: peak {memory['peak_bytes'] / 2**20:.2f} of {memory['budget_bytes'] / 2**20:.2f} MiB; "
                  f"the process grew by {100 * memory['process_growth']:.2f} % after the warm-up")  # fmt: skip
    for name, times in report["executor"].items():
        figures = ", ".join(f"{part} {value:.2f} ms" for part, value in times.items())
        console.print(f"{name.removesuffix('_ms').replace('_', ' ').capitalize()}: {figures}")
    if report["failures"]:
        console.print(escape("\n".join(report["failures"])), style="red")
        raise KvStreamError(f"{len(report['failures'])} checks failed; the node's log is in the output folder")
