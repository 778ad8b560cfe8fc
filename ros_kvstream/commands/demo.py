"""Play a recording to a real kvstream node, ask it questions meanwhile, and print answers, evidence and figures.

Without ``--bag`` the recording is a patrol through rooms, drawn from a seed, whose right answers are known.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.commands.demo_plan import (
    TYPICAL_QUESTIONS,
    PlannedQuestion,
    left_window,
    plan_patrol,
    plan_typical,
)
from ros_kvstream.commands.demo_report import (
    frames_report,
    is_correct,
    latency_report,
    question_report,
    show,
    show_reply,
    versions,
)
from ros_kvstream.errors import SettingsError
from ros_kvstream.recordings.bags import ImageTopic, find_image_topic, picture_size
from ros_kvstream.settings import MemorySettings, ModelSettings, require, require_finite

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.commands.interview import Reply
    from ros_kvstream.models.base import VideoLanguageModel
    from ros_kvstream.patrol.patrol import PatrolWorld

__all__ = ["add_arguments", "run", "show"]

MIB = 1 << 20
PATROL_SECONDS, PATROL_RATE_HZ, PATROL_SIZE = 50.0, 2.0, 224
PATROL_START = 1_750_000_000.0
"""Stamp of the patrol's first frame; recordings are from some day."""
QUESTIONS = 10
REMEMBERED_SHARE, MOST_REMEMBERED = 0.125, 64
"""The budget has room for this share of the recording's frames, and for at most so many."""
ARCHIVE_SHARE = 0.5
"""Bytes of the archive as a share of the memory's."""
PENDING_PICTURES = 4
"""So small an archive needs its bytes for frames."""
MAX_QUESTION_TOKENS, MAX_ANSWER_TOKENS = 32, 64
PATROL_ANSWER_TOKENS = 16
"""Answers about the patrol are a few words."""


@dataclass(frozen=True)
class DemoSettings:
    """One run of the demo."""

    output: Path = Path("build/demo")
    """Folder of report, logs and patrol recording."""
    bag: Path | None = None
    """Recording to play; None writes the patrol."""
    topic: str = ""
    """Its image topic; empty takes the only one."""
    questions: tuple[str, ...] = ()
    """Asked about a recording; empty takes typical ones."""
    seconds: float = 0.0
    """Length of the patrol, or how much of the recording is played; 0: 50 s, and all of it."""
    model: str = ModelSettings.path
    policy: str = MemorySettings.policy
    budget_mib: float = 0.0
    """0: room for an eighth of the frames, at most 64 of them."""
    archive_mib: float | None = None
    """Size of the archive; None: half of the memory's, 0: none."""
    seed: int = 3

    def __post_init__(self) -> None:
        require_finite("--seconds", self.seconds, 0.0, 86400.0)
        require(self.seconds == 0.0 or self.seconds >= 5.0, "--seconds", self.seconds, "at least 5")
        require_finite("--budget-mib", self.budget_mib, 0.0, 1 << 22)
        require_finite("--archive-mib", self.archive_mib or 0.0, 0.0, 1 << 22)
        require(self.seed >= 0, "--seed", self.seed, "0 or more")
        require(not (self.topic and self.bag is None), "--topic", self.topic, "given together with --bag")
        require(not (self.questions and self.bag is None), "--question", self.questions, "given together with --bag")
        require(all(text.strip() for text in self.questions), "--question", self.questions, "some words")


@dataclass(frozen=True)
class Recording:
    """What is played."""

    path: Path
    topic: ImageTopic
    frames: int
    seconds: float
    """Play only the first so many; 0: all."""
    period: float
    """Seconds between two frames."""
    world: PatrolWorld | None = None

    @property
    def answer_tokens(self) -> int:
        """Room for an answer."""
        return PATROL_ANSWER_TOKENS if self.world else MAX_ANSWER_TOKENS

    @property
    def stamps(self) -> list[float]:
        """Stamps of all frames where they are known, seconds."""
        return [self.world.stamp(index) for index in range(self.frames)] if self.world else []


@dataclass(frozen=True)
class Budget:
    """What the node is given, and how far back it reaches without choosing."""

    mib: float
    """Of the memory."""
    archive_mib: float
    """Of the archive; 0: none."""
    window: int
    """Frames that a sliding window of the bytes of both holds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``kvstream demo``."""
    default = DemoSettings()
    add = parser.add_argument
    add("--bag", type=Path, metavar="PATH", help="play this ROS 2 recording (mcap or sqlite3) instead of the patrol")
    add("--topic", default="", help="its image topic, raw or compressed (the only one)")
    add("--question", action="append", default=[], metavar="TEXT", help="ask this about it; may be repeated")
    add("--seconds", type=float, default=0.0, metavar="N",
        help=f"length of the patrol, or how much of the recording to play ({PATROL_SECONDS:g}; all of it)")  # fmt: skip
    add("--model", default=default.model, help="'tiny', a local folder or a hub id (%(default)s)")
    add("--policy", default=default.policy, metavar="NAME", help="selection policy of the memory (%(default)s)")
    add("--budget-mib", type=float, default=0.0, metavar="N", help="size of the memory (for an eighth of the frames)")
    add("--archive-mib", type=float, metavar="N", help="size of the archive; 0 for none (half of the memory's)")
    add("--seed", type=int, default=default.seed, metavar="N", help="another seed is another patrol (%(default)s)")
    add("--output", type=Path, default=default.output, metavar="DIR", help="report, logs, recording (%(default)s)")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the demo; returns the report, which is also written to ``report.json`` in the output folder."""
    settings = DemoSettings(
        options.output, options.bag, options.topic, tuple(options.question), options.seconds,
        options.model, options.policy, options.budget_mib, options.archive_mib, options.seed,
    )  # fmt: skip
    return run_demo(settings, console)


def run_demo(settings: DemoSettings, console: Console) -> dict[str, Any]:
    """Run the demo with checked settings."""
    from ros_kvstream.evaluation.processes import require_ros
    from ros_kvstream.memory.policies import make_policy

    require_ros()
    make_policy(settings.policy)  # rejects an unknown name before anything is written
    settings.output.mkdir(parents=True, exist_ok=True)
    recording = open_recording(settings, console)
    with console.status(f"Reading the configuration of {settings.model}"):
        from ros_kvstream.models.loading import describe_model

        model = describe_model(ModelSettings(settings.model))
        budget = choose_budget(model, settings, recording)
    if recording.world is not None:
        plan = plan_patrol(recording.world, QUESTIONS, budget.window)
    else:
        plan = plan_typical(settings.questions or TYPICAL_QUESTIONS, recording.frames)
    introduce(console, settings, recording, budget, model)
    report = interview(settings, recording, budget, plan, model, console)
    path = settings.output / "report.json"
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    console.print(f"\n[dim]Report: {path}, logs: {settings.output / 'logs'}[/]")
    return report


def open_recording(settings: DemoSettings, console: Console) -> Recording:
    """The given recording, or the patrol, written first."""
    if settings.bag is not None:
        topic = find_image_topic(settings.bag, settings.topic, lambda note: console.print(f"[yellow]{note}[/]"))
        share = min(1.0, settings.seconds / topic.seconds) if settings.seconds and topic.seconds else 1.0
        period = topic.seconds / max(1, topic.frames - 1)
        return Recording(settings.bag, topic, max(1, int(share * topic.frames)), settings.seconds, period)

    from ros_kvstream.patrol.bags import write_bag
    from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld

    frames = round((settings.seconds or PATROL_SECONDS) * PATROL_RATE_HZ)
    world = PatrolWorld(PatrolSettings(
        seed=settings.seed, frames=frames, rate_hz=PATROL_RATE_HZ, size=PATROL_SIZE, start=PATROL_START,
    ))  # fmt: skip
    path = settings.output / "patrol"
    shutil.rmtree(path, ignore_errors=True)
    with console.status(f"Writing a patrol of {frames} pictures"):
        write_bag(world, path, topic="/camera/image_raw")
    return Recording(path, find_image_topic(path), frames, 0.0, 1.0 / PATROL_RATE_HZ, world)


def choose_budget(model: VideoLanguageModel, settings: DemoSettings, recording: Recording) -> Budget:
    """The budget asked for, or one with room for a part of the recording; raises BudgetError when it is too small."""
    from ros_kvstream.commands.inspect import plan_memory
    from ros_kvstream.memory.budget import smallest_budget
    from ros_kvstream.settings import RetrievalSettings

    height, width = picture_size(recording.path, recording.topic)
    try:
        rows, columns = model.grid(height, width)
    except ValueError as error:
        raise SettingsError(f"--bag: the model cannot take pictures of {width} x {height} pixels: {error}") from error
    tokens, mib = model.frame_tokens(rows, columns), settings.budget_mib
    room = RetrievalSettings.top_k * tokens if settings.archive_mib != 0 else 0
    if not mib:
        remembered = max(2, min(MOST_REMEMBERED, int(REMEMBERED_SHARE * recording.frames)))
        reserve = len(model.suffix_ids("")) + MAX_QUESTION_TOKENS + recording.answer_tokens + room
        needed = smallest_budget(model.shape, len(model.prefix_ids), reserve, remembered * tokens)
        mib = math.ceil(1000 * needed / MIB) / 1000
    archive_mib = ARCHIVE_SHARE * mib if settings.archive_mib is None else settings.archive_mib
    memory = MemorySettings(
        budget_mib=mib, max_question_tokens=MAX_QUESTION_TOKENS, max_answer_tokens=recording.answer_tokens
    )
    plan_memory(model, memory, tokens)
    both = replace(memory, budget_mib=mib + archive_mib)
    return Budget(mib, archive_mib, plan_memory(model, both, tokens).frame_slots // tokens)


def introduce(
    console: Console, settings: DemoSettings, recording: Recording, budget: Budget, model: VideoLanguageModel
) -> None:
    """Say what is about to happen."""
    archive = f", and an archive of {budget.archive_mib:.3f} MiB" if budget.archive_mib else ""
    evidence = (
        "the pictures that were brought back, by time, camera and fused score: each expert's rank (and score)"
        if budget.archive_mib
        else "the pictures it looked at most, by time, camera and share of the attention"
    )
    what = "A patrol through rooms" if recording.world else str(recording.path)
    console.print(
        f"\n[bold]{what}[/]: {recording.frames} pictures in {recording.frames * recording.period:.0f} s on "
        f"{recording.topic.name} ({recording.topic.transport}).\n"
        f"[bold]Memory[/]: {budget.mib:.3f} MiB under policy {settings.policy}{archive}; a sliding window of the same "
        f"bytes would hold the last {budget.window} pictures ({budget.window * recording.period:.1f} s).\n"
        f"[bold]Evidence[/] of an answer: {evidence}."
    )
    if not model.trained:
        console.print(f"[yellow]The model '{settings.model}' has no weights here: it is untrained, its answers mean "
                      "nothing. Everything else is as it will be.[/]")  # fmt: skip
    elif recording.world is None and settings.model == ModelSettings.path:
        console.print("[yellow]The tiny model has learned the patrol and nothing else: what it says about another "
                      "recording means little. --model takes a larger one.[/]")  # fmt: skip


def node_command(settings: DemoSettings, recording: Recording, budget: Budget) -> list[str]:
    """Command line of the node: small memory, the recording's topic and its time."""
    parameters = {
        "autostart": "false",
        "use_sim_time": "true",
        "model": json.dumps(settings.model),
        "memory.budget_mib": repr(float(budget.mib)),
        "memory.policy": settings.policy,
        "archive.budget_mib": repr(float(budget.archive_mib)),
        "retrieval.external": "tiny" if settings.model == ModelSettings.path and budget.archive_mib else "''",
        "retrieval.pending_pictures": str(PENDING_PICTURES),
        "memory.max_question_tokens": str(MAX_QUESTION_TOKENS),
        "memory.max_answer_tokens": str(recording.answer_tokens),
        "camera.transport": recording.topic.transport,
    }
    command = [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args"]
    command += ["-r", f"image:={recording.topic.played_as.removesuffix('/compressed')}"]
    return command + [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]


def player_command(recording: Recording) -> list[str]:
    """Command line of the process that plays the recording."""
    command = [sys.executable, "-m", "ros_kvstream.recordings.replay", str(recording.path)]
    command += ["--topic", recording.topic.name, "--clock"]
    return command + (["--seconds", repr(recording.seconds)] if recording.seconds else [])


def interview(
    settings: DemoSettings,
    recording: Recording,
    budget: Budget,
    plan: Sequence[PlannedQuestion],
    model: VideoLanguageModel,
    console: Console,
) -> dict[str, Any]:
    """Start node and player, ask the questions, end both; returns the report."""
    from ros_kvstream.commands.demo_progress import StreamProgress
    from ros_kvstream.commands.interview import Interview
    from ros_kvstream.evaluation.node_client import NodeClient
    from ros_kvstream.evaluation.processes import ProcessGroup, free_domain, ros_environment

    domain = free_domain()
    replies: list[Reply] = []
    questions: list[dict[str, Any]] = []
    stamps = recording.stamps
    console.print(f"[dim]Your own ROS tools see its topics with ROS_DOMAIN_ID={domain}.[/]")
    with ProcessGroup(settings.output / "logs", ros_environment(domain)) as processes, NodeClient(domain) as client:
        with console.status("Starting kvstream_node"):
            node = processes.start("kvstream_node", node_command(settings, recording, budget))
            client.start(node)
        player = processes.start("replay", player_command(recording), pipe=True)
        with StreamProgress(console, recording.frames, client) as progress:

            def take_reply(reply: Reply) -> None:
                left = left_window(reply.planned, stamps, budget.window)
                entry = question_report(reply, is_correct(reply, stamps), left)
                show_reply(console, reply, entry, progress.start, budget.window * recording.period)
                replies.append(reply)
                questions.append(entry)

            published = Interview(node, player, client, plan, recording.period).run(progress.frame, take_reply)
        stats = client.wait_for_settled(node, published)
        process_bytes = node.resident_bytes()
    return {
        "questions": questions,
        "memory": {
            "budget_bytes": stats.budget_bytes,
            "used_bytes": stats.used_bytes,
            "peak_bytes": stats.peak_bytes,
            "archive_bytes": stats.archive_bytes,
            "archive_budget_bytes": stats.archive_budget_bytes,
            "process_bytes": process_bytes,
        },
        "frames": frames_report(published, stats),
        "latency": latency_report(replies),
        "versions": versions(settings.model, model.trained),
    }
