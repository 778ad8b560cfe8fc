"""Play two cameras to a running node for a while, ask it questions, inject faults, and tell what did not hold.

The node must outlive every fault, lose no question, never pass its budget, and not grow once it has warmed up.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.processes import Process, ProcessError, ProcessGroup, free_domain, require_ros
from ros_kvstream.evaluation.processes import ros_environment as environment_of
from ros_kvstream.node.metrics import WINDOW_SECONDS
from ros_kvstream.settings import ModelSettings, require, require_finite

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.commands.soak_cameras import CameraPlan
    from ros_kvstream.commands.soak_client import SoakClient
    from ros_kvstream.commands.soak_faults import Fault

QUESTION_SECONDS, FAULT_SECONDS = 3.0, 3.0
"""Between two questions, and between the check of one fault and the next."""
RECOVERY_SECONDS = 30.0
"""Within which the node must take frames again after a fault."""
WARM_UP_SHARE, MOST_WARM_UP = 0.4, 120.0
"""Share of the time, and seconds at most, after which the process must not grow any more."""
GROWTH_LIMIT = 0.02
QUESTIONS = ("what is there?", "what was there before?", "which colours are there?", "what has changed?")


@dataclass(frozen=True)
class SoakSettings:
    """One soak."""

    minutes: float = 20.0
    model: str = ModelSettings.path
    budget_mib: float = 4.0
    seed: int = 0
    raw_size: str = "160x120"
    """Pixels of the raw camera's pictures, width x height."""
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

    @property
    def cameras(self) -> tuple[CameraPlan, ...]:
        """A raw camera and a compressed one."""
        from ros_kvstream.commands.soak_cameras import CameraPlan

        width, height = map(int, self.raw_size.split("x"))
        return (CameraPlan("front", "/front/image", False, self.raw_rate, width, height),
                CameraPlan("rear", "/rear/image", True, 3.0, 128, 96))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--minutes", type=float, default=SoakSettings.minutes, help="how long (default %(default)s)")
    parser.add_argument("--model", default=SoakSettings.model, help="tiny, a folder or a hub id (default %(default)s)")
    parser.add_argument("--budget-mib", type=float, default=SoakSettings.budget_mib,
                        help="hard cap of the memory in MiB (default %(default)s)")
    parser.add_argument("--seed", type=int, default=SoakSettings.seed, help="of the pictures (default %(default)s)")
    parser.add_argument("--raw-size", default=SoakSettings.raw_size,
                        help="pixels of the raw camera's pictures (default %(default)s)")
    parser.add_argument("--raw-rate", type=float, default=SoakSettings.raw_rate,
                        help="frames a second of the raw camera (default %(default)s)")
    parser.add_argument("--output", type=Path, default=SoakSettings.output, help="of the log (default %(default)s)")


class Soak:
    """One run: the clock, the questions, the faults, and what was seen of the process."""

    def __init__(self, settings: SoakSettings, client: SoakClient, process: Process, faults: list[Fault]) -> None:
        self.cameras = client.cameras
        self.faults = faults
        self.asked = self.answered = self.refused = 0
        self.unexpected: list[str] = []
        """Questions that should have been answered and were not, with the reason."""
        self.process_bytes: list[tuple[float, int]] = []
        self.peak_bytes = 0
        self.executor: dict[str, dict[str, float]] = {}
        """Milliseconds of a running node, by what was measured: the newest p50 and p95, the maximum of all the time."""
        self._settings = settings
        self._client = client
        self._process = process
        self._begin = time.monotonic()
        self._open: list[tuple[Future[Any], bool | None]] = []
        """Questions without response, and whether they should be answered; None: either will do."""
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._newest: Any = None

    @property
    def now(self) -> float:
        """Wall-clock seconds, which the stamps are made from."""
        return time.time()

    @property
    def passed(self) -> float:
        """Seconds since the soak began."""
        return time.monotonic() - self._begin

    def run(self, tick: Callable[[float], None]) -> None:
        """Run to the end; ``tick`` is told the share of the time that has passed."""
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
            tick(self.passed / end)
        deadline = time.monotonic() + RECOVERY_SECONDS
        while self._open and time.monotonic() < deadline:
            self._play()
        self.unexpected += ["no response at all"] * len(self._open)

    def _play(self) -> None:
        """One step: frames that are due, responses that came, figures that are new."""
        self._process.check()
        for camera in self.cameras:
            camera.publish_due(self.now)
        for due, action in [entry for entry in self._later if entry[0] <= self.passed]:
            self._later.remove((due, action))
            action()
        for future, expected in [entry for entry in self._open if entry[0].done()]:
            self._open.remove((future, expected))
            self._take(future.result(), expected)
        stats = self._client.stats
        if stats is not None and stats is not self._newest:
            self._newest = stats
            self.process_bytes.append((self.passed, stats.process_bytes))
            self.peak_bytes = max(self.peak_bytes, stats.peak_bytes)
            self._note_executor()
        time.sleep(0.01)

    def _note_executor(self) -> None:
        if self.passed < min(WINDOW_SECONDS, WARM_UP_SHARE * 60.0 * self._settings.minutes):
            return  # the meters still hold what loading the model did to the executor
        for name in ("executor lateness ms", "image callback ms"):
            found = re.match(r"p50 ([\d.]+), p95 ([\d.]+), max ([\d.]+)", self._client.latency.get(name, ""))
            if found:
                p50, p95, largest = map(float, found.groups())
                before = self.executor.get(name, {}).get("max", 0.0)
                self.executor[name] = {"p50": p50, "p95": p95, "max": max(before, largest)}

    def _take(self, response: Any, expected: bool | None) -> None:
        self.answered += response.success
        self.refused += not response.success
        if expected is not None and response.success != expected:
            self.unexpected.append(response.message or f"answered: {response.answer}")

    def _inject(self, fault: Fault) -> None:
        """Inject, go on, and see whether the node takes frames again."""
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
            fault.reasons.append("the node ended")
            raise
        except KvStreamError as error:
            fault.reasons.append(str(error))

    # -- what faults act with ----------------------------------------------------------------------------------------

    def ask(self, question: str, *, expected: bool = True, **limits: Any) -> None:
        """Ask without waiting."""
        self.asked += 1
        self._open.append((self._client.ask_with(question, **limits), expected))

    def change_state(self, transition: str) -> None:
        """Ask for a lifecycle transition and wait for it; open questions may be refused meanwhile."""
        self._excuse_open_questions()
        self._finish(self._client.transition(transition), f"to {transition}")

    def set_parameter(self, name: str, value: float) -> None:
        """Set a parameter to a share of the soak's budget and wait for it."""
        self._finish(self._client.set_parameter(name, value * self._settings.budget_mib), f"to set {name}")

    def save_and_load(self) -> None:
        """Save the memory, forget everything, load it again; open questions may find nothing meanwhile."""
        self._excuse_open_questions()
        for step in (self._client.save, self._client.clear, self._client.load):
            self._finish(step(), step.__name__)

    def _excuse_open_questions(self) -> None:
        self._open = [(future, None) for future, _ in self._open]

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something in a while."""
        self._later.append((self.passed + seconds, action))

    def _finish(self, future: Future[str], what: str) -> None:
        """Play on until a call is done; raise KvStreamError with its reason when it was refused."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while not future.done():
            if time.monotonic() > deadline:
                raise KvStreamError(f"no response to the call {what}")
            self._play()
        if reason := future.result():
            raise KvStreamError(f"{what}: {reason}")

    def growth(self) -> float:
        """How much larger the process was at the end of the time than right after the warm-up, as a share of it."""
        warm = min(WARM_UP_SHARE * self.passed, MOST_WARM_UP)
        # A round of faults changes the process's size for a while: both spans hold a whole one where there is time.
        length = min(max(0.1 * self.passed, FAULT_SECONDS * len(self.faults)), 0.3 * self.passed)
        early = [size for at, size in self.process_bytes if warm <= at < warm + length]
        late = [size for at, size in self.process_bytes if at >= self.passed - length]
        return statistics.median(late) / statistics.median(early) - 1.0 if early and late else 0.0


def node_command(settings: SoakSettings, files: Path) -> list[str]:
    """The command that runs the node."""
    parameters = {
        "model": settings.model, "memory.budget_mib": settings.budget_mib, "memory.directory": files,
        "memory.max_question_tokens": 64, "memory.max_answer_tokens": 16, "cameras": '["front","rear"]',
        "front.topic": "/front/image", "rear.topic": "/rear/image", "rear.transport": "compressed",
        "query.max_waiting": 8, "diagnostics.period_s": 0.5,
    }  # fmt: skip
    given = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
    return [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args", *given]


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run a soak and return its report."""
    settings = SoakSettings(options.minutes, options.model, options.budget_mib, options.seed, options.raw_size,
                            options.raw_rate, options.output)
    require_ros()
    from rich.progress import Progress

    from ros_kvstream.commands.soak_client import SoakClient
    from ros_kvstream.commands.soak_faults import all_faults

    domain, faults = free_domain(), all_faults()
    with (tempfile.TemporaryDirectory() as files, ProcessGroup(settings.output, environment_of(domain)) as processes,
          SoakClient(domain, settings.cameras, settings.seed) as client):
        process = processes.start("kvstream_node", node_command(settings, Path(files)))
        with console.status("Starting kvstream_node"):
            client.wait_for_cameras(process)
        soak = Soak(settings, client, process, faults)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("Soak", total=1.0)
            soak.run(lambda share: progress.update(task, completed=share))
        stats = client.wait_for_settled(process, 0)
    return report_of(settings, soak, stats)


def report_of(settings: SoakSettings, soak: Soak, stats: Any) -> dict[str, Any]:
    """The machine-readable report, with what did not hold under "failures"."""
    dropped = dict(zip(stats.drop_causes, (int(count) for count in stats.drop_counts), strict=True))
    growth, budget = soak.growth(), int(settings.budget_mib * (1 << 20))
    failures = [f"{fault.name}: {reason}" for fault in soak.faults for reason in fault.reasons]
    failures += [f"question: {reason}" for reason in soak.unexpected]
    if soak.asked != soak.answered + soak.refused:
        failures.append(f"questions lost: {soak.asked - soak.answered - soak.refused}")
    if soak.peak_bytes > budget:
        failures.append(f"budget passed: {soak.peak_bytes} of {budget} bytes")
    if growth > GROWTH_LIMIT:
        failures.append(f"the process grew by {100 * growth:.1f} %")
    if stats.frames_published != stats.frames_seen + sum(dropped.values()) + stats.queue_length:
        failures.append("frames are not accounted for")
    return {
        "minutes": settings.minutes,
        "frames": {"published": stats.frames_published, "seen": stats.frames_seen, "kept": stats.frames_kept,
                   "gated": stats.frames_gated, "dropped": dropped},
        "questions": {"asked": soak.asked, "answered": soak.answered, "refused": soak.refused},
        "faults": {fault.name: {"injected": fault.injected, "survived": fault.survived} for fault in soak.faults},
        "memory": {"budget_bytes": budget, "peak_bytes": soak.peak_bytes, "process_growth": growth},
        "executor": {name.replace(" ", "_"): figures for name, figures in soak.executor.items()},
        "failures": failures,
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table; raise KvStreamError when something did not hold."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("fault", "injected", "survived", title=f"Soak of {report['minutes']:g} minutes")
    for name, counts in report["faults"].items():
        table.add_row(name, str(counts["injected"]), str(counts["survived"]))
    console.print(table)
    frames, memory = report["frames"], report["memory"]
    console.print(f"Frames: {frames['published']} published, {frames['kept']} kept, {frames['gated']} gated, "
                  f"{sum(frames['dropped'].values())} dropped")
    console.print("Questions: {asked} asked, {answered} answered, {refused} refused".format(**report["questions"]))
    console.print(f"Memory: {memory['peak_bytes'] / 2**20:.2f} of {memory['budget_bytes'] / 2**20:.2f} MiB at most; "
                  f"the process grew by {100 * memory['process_growth']:.2f} % after the warm-up")
    for name, times in report["executor"].items():
        console.print(f"{name.removesuffix('_ms').replace('_', ' ').capitalize()}: " + ", ".join(
            f"{part} {value:.2f} ms" for part, value in times.items()))
    if report["failures"]:
        console.print(escape("\n".join(report["failures"])), style="red")
        raise KvStreamError(f"{len(report['failures'])} promises did not hold")
