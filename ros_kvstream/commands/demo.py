# SPDX-License-Identifier: Apache-2.0
"""Play a recording to a kvstream node, ask it questions meanwhile, and print answers, evidence and statistics.

Without ``--bag``, the recording is a synthetic patrol through rooms, generated from a seed, with known answers.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from functools import cache
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.commands.demo_report import (
    Reply,
    frames_report,
    is_correct,
    latency_report,
    memory_report,
    question_report,
    show,
    show_reply,
    versions,
)
from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.processes import (
    Process,
    ProcessError,
    ProcessGroup,
    free_domain,
    require_ros,
    ros_environment,
)
from ros_kvstream.patrol.question_plan import PlannedQuestion, left_window, plan_questions, question_moments
from ros_kvstream.poses import ODOMETRY_TYPE
from ros_kvstream.recordings.bags import (
    ONE_CAMERA,
    BagSource,
    ImageTopic,
    find_image_topic,
    picture_size,
    read_messages,
)
from ros_kvstream.settings import (
    ArchiveSettings,
    MemorySettings,
    ModelSettings,
    RetrievalSettings,
    require,
    require_finite,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.evaluation.node_client import NodeClient
    from ros_kvstream.models.base import VideoLanguageModel
    from ros_kvstream.patrol.patrol import PatrolWorld
    from ros_kvstream.recordings.bag_salvage import RawMessage
    from ros_kvstream.recordings.replay import Player
    from ros_kvstream.srv import Query

__all__ = ["add_arguments", "run", "show"]

MIB = 1 << 20
PATROL_SECONDS, PATROL_RATE_HZ, PATROL_SIZE = 50.0, 2.0, 224
PATROL_START = 1_750_000_000.0
"""Stamp of the patrol's first frame, seconds."""
PATROL_QUESTIONS = 10
TYPICAL_QUESTIONS = (
    "what do you see now?",
    "what did you see first?",
    "was there a cone?",
    "where was the cone?",
    "which room are you in now?",
    "what did you see last?",
)
"""Asked about a recording without ``--question``."""
REMEMBERED_SHARE, MAX_REMEMBERED = 0.125, 64
"""The default budget holds this share of the recording's frames, and this many at most."""
ARCHIVE_SHARE = 0.5
"""Default budget of the archive as a share of the memory's."""
PENDING_PICTURES = 4
"""Small, because pending pictures are counted in the archive's small budget."""
MAX_QUESTION_TOKENS, MAX_ANSWER_TOKENS, PATROL_ANSWER_TOKENS = 32, 64, 16
POLL = 0.02
"""Seconds between two checks for events."""
RESPONSE_SECONDS = 120.0
"""Limit for a response; the node itself refuses much earlier (query.timeout_s)."""


@dataclass(frozen=True)
class DemoSettings:
    """Options of one run."""

    output: Path = Path("build/demo")
    """Folder of report, logs and generated recording."""
    bag: Path | None = None
    """Recording to play; None generates a patrol."""
    topic: str = ""
    """Image topic of the recording; empty takes the only one."""
    questions: tuple[str, ...] = ()
    """Questions about the recording; empty takes TYPICAL_QUESTIONS."""
    seconds: float = 0.0
    """Length of the patrol, or of the played part of the recording; 0: 50 s, or all of it."""
    model: str = ModelSettings.path
    policy: str = MemorySettings.policy
    budget_mib: float = 0.0
    """0: enough for an eighth of the frames, at most 64."""
    archive_mib: float | None = None
    """None: half of the memory's budget; 0: no archive."""
    seed: int = 3

    def __post_init__(self) -> None:
        require_finite("--seconds", self.seconds, 0.0, 86400.0)
        require(self.seconds == 0.0 or self.seconds >= 5.0, "--seconds", self.seconds, "0 or at least 5")
        require_finite("--budget-mib", self.budget_mib, 0.0, 1 << 22)
        require_finite("--archive-mib", self.archive_mib or 0.0, 0.0, 1 << 22)
        require(self.seed >= 0, "--seed", self.seed, "0 or more")
        require(not (self.topic and self.bag is None), "--topic", self.topic, "given together with --bag")
        require(not (self.questions and self.bag is None), "--question", self.questions, "given together with --bag")
        require(all(text.strip() for text in self.questions), "--question", self.questions, "not empty")


@dataclass(frozen=True)
class Recording:
    """What is played."""

    path: Path
    topic: ImageTopic
    frames: int
    seconds: float
    """Length of the played part; 0: all."""
    period: float
    """Seconds between two frames."""
    note: Callable[[str], None]
    """Is called with what cannot be read."""
    world: PatrolWorld | None = None
    odometry: str = ""
    """Topic of the robot's poses; empty: there are none."""

    def messages(self) -> Iterator[tuple[float, RawMessage]]:
        """Yield (header stamp or receive time in seconds, serialized message) of images and odometry, in order."""
        poses = read_messages(self.path, (self.odometry,), self.note) if self.odometry else ()
        stamped = ((message.received / 1e9, message) for message in poses)
        return merge(self._images(), stamped, key=lambda found: found[1].received)

    def _images(self) -> Iterator[tuple[float, RawMessage]]:
        first: int | None = None
        for stamp, _, message in BagSource(self.path, ((ONE_CAMERA, self.topic.name),)).messages(self.note):
            first = message.received if first is None else first
            if self.seconds and message.received - first > self.seconds * 1e9:
                return
            yield stamp, message

    @property
    def answer_tokens(self) -> int:
        """Maximum length of an answer."""
        return PATROL_ANSWER_TOKENS if self.world else MAX_ANSWER_TOKENS

    @property
    def stamps(self) -> list[float]:
        """Stamps of a patrol's frames, seconds; empty for other recordings."""
        return [self.world.stamp(index) for index in range(self.frames)] if self.world else []


@dataclass(frozen=True)
class Budget:
    """Budgets of the node, and the sliding window that they are compared with."""

    mib: float
    archive_mib: float
    """0: no archive."""
    window: int
    """Frames in a sliding window of memory and archive together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``kvstream demo``."""
    default = DemoSettings()
    add = parser.add_argument
    add("--bag", type=Path, metavar="PATH", help="ROS 2 recording (mcap or sqlite3) to play instead of a patrol")
    add("--topic", default="", help="its image topic, raw or compressed (default: the only one)")
    add("--question", action="append", default=[], dest="questions", metavar="TEXT",
        help="question about it; may be repeated (default: six typical ones)")
    add("--seconds", type=float, default=0.0, metavar="N",
        help=f"length of the patrol or of the played part of the recording (default: {PATROL_SECONDS:g}, or all of it)")
    add("--model", default=default.model, help="'tiny', a local folder or a hub id (default: %(default)s)")
    add("--policy", default=default.policy, metavar="NAME",
        help="selection policy of the memory (default: %(default)s)")
    add("--budget-mib", type=float, default=0.0, metavar="N",
        help="budget of the memory (default: enough for an eighth of the frames)")
    add("--archive-mib", type=float, metavar="N",
        help="budget of the archive, 0 for none (default: half of the memory's)")
    add("--seed", type=int, default=default.seed, metavar="N", help="seed of the patrol (default: %(default)s)")
    add("--output", type=Path, default=default.output, metavar="DIR",
        help="folder of report, logs and generated recording (default: %(default)s)")  # fmt: skip


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the demo; returns the report, which is also written to ``report.json`` in the output folder."""
    from ros_kvstream.memory.policies import make_policy

    given = {item.name: getattr(options, item.name) for item in fields(DemoSettings)}
    settings = DemoSettings(**given | {"questions": tuple(options.questions)})
    require_ros()
    make_policy(settings.policy)  # rejects an unknown name before anything is written
    settings.output.mkdir(parents=True, exist_ok=True)
    recording = open_recording(settings, console)
    with console.status(f"Reading the configuration of {settings.model}"):
        from ros_kvstream.models.loading import describe_model

        model = describe_model(ModelSettings(settings.model))
        budget = choose_budget(model, settings, recording)
    print_introduction(console, settings, recording, budget, model)
    report = play_and_report(settings, recording, budget, model, console)
    path = settings.output / "report.json"
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    console.print(f"\n[dim]Report: {path}, logs: {settings.output / 'logs'}[/]")
    return report


def open_recording(settings: DemoSettings, console: Console) -> Recording:
    """Open the given recording, or generate the patrol."""
    note = cache(lambda text: console.print(f"[yellow]{text}[/]"))
    if settings.bag is not None:
        topic = find_image_topic(settings.bag, settings.topic, note)
        share = min(1.0, settings.seconds / topic.seconds) if settings.seconds and topic.seconds else 1.0
        period = topic.seconds / max(1, topic.frames - 1)
        return Recording(settings.bag, topic, max(1, int(share * topic.frames)), settings.seconds, period, note)

    from ros_kvstream.patrol.bags import ODOMETRY, write_bag
    from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld

    frames = round((settings.seconds or PATROL_SECONDS) * PATROL_RATE_HZ)
    world = PatrolWorld(PatrolSettings(
        seed=settings.seed, frames=frames, rate_hz=PATROL_RATE_HZ, size=PATROL_SIZE, start=PATROL_START,
    ))  # fmt: skip
    path = settings.output / "patrol"
    shutil.rmtree(path, ignore_errors=True)
    with console.status(f"Generating a patrol of {frames} pictures"):
        write_bag(world, path, topic="/camera/image_raw")
    return Recording(path, find_image_topic(path), frames, 0.0, 1.0 / PATROL_RATE_HZ, note, world, ODOMETRY)


def choose_budget(model: VideoLanguageModel, settings: DemoSettings, recording: Recording) -> Budget:
    """Return the given budget, or one for a part of the recording; raises BudgetError when it is too small."""
    from ros_kvstream.commands.inspect import plan_memory
    from ros_kvstream.memory.budget import smallest_budget

    height, width = picture_size(recording.path, recording.topic)
    try:
        rows, columns = model.grid(height, width)
    except ValueError as error:
        raise SettingsError(f"--bag: the model cannot take pictures of {width} x {height} pixels: {error}") from error
    tokens, mib = model.frame_tokens(rows, columns), settings.budget_mib
    if not mib:
        remembered = max(2, min(MAX_REMEMBERED, int(REMEMBERED_SHARE * recording.frames)))
        archive = ArchiveSettings(budget_mib=0.0 if settings.archive_mib == 0 else 1.0)
        retrieved = RetrievalSettings().slots(tokens, archive)
        reserve = len(model.suffix_ids("")) + MAX_QUESTION_TOKENS + recording.answer_tokens + retrieved
        needed = smallest_budget(model.shape, len(model.prefix_ids), reserve, remembered * tokens)
        mib = math.ceil(1000 * needed / MIB) / 1000
    archive_mib = ARCHIVE_SHARE * mib if settings.archive_mib is None else settings.archive_mib
    memory = MemorySettings(
        budget_mib=mib, max_question_tokens=MAX_QUESTION_TOKENS, max_answer_tokens=recording.answer_tokens
    )
    plan_memory(model, memory, tokens)  # raises BudgetError
    both = replace(memory, budget_mib=mib + archive_mib)
    return Budget(mib, archive_mib, plan_memory(model, both, tokens).frame_slots // tokens)


def print_introduction(
    console: Console, settings: DemoSettings, recording: Recording, budget: Budget, model: VideoLanguageModel
) -> None:
    """Print what is played, the budget, and how to read the evidence."""
    archive = f", and an archive of {budget.archive_mib:.3f} MiB" if budget.archive_mib else ""
    evidence = (
        "pictures, best first, with time and camera; of a retrieved one the fused score and each expert's rank (and "
        "score), of one in the arena its share of the attention"
        if budget.archive_mib
        else "the pictures with the most attention, with time, camera and share of the attention"
    )
    what = "A patrol through rooms" if recording.world else str(recording.path)
    console.print(
        f"\n[bold]{what}[/]: {recording.frames} pictures in {recording.frames * recording.period:.0f} s on "
        f"{recording.topic.name} ({recording.topic.transport}).\n"
        f"[bold]Memory[/]: {budget.mib:.3f} MiB with policy {settings.policy}{archive}; a sliding window of the same "
        f"bytes would hold the last {budget.window} pictures ({budget.window * recording.period:.1f} s).\n"
        f"[bold]Evidence[/] of an answer: {evidence}."
    )
    if not model.trained:
        console.print(f"[yellow]There are no weights for the model '{settings.model}': it is untrained and its answers "
                      "are meaningless. Memory, frames and latency are as with a trained model.[/]")  # fmt: skip
    elif recording.world is None and settings.model == ModelSettings.path:
        console.print("[yellow]The tiny model is trained on synthetic patrols only: its answers about another "
                      "recording mean little. Use --model for a larger model.[/]")  # fmt: skip


def node_command(settings: DemoSettings, recording: Recording, budget: Budget) -> list[str]:
    """Command line of the node."""
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
    if recording.odometry:
        parameters |= {"pose.source": "topic", "pose.topic": recording.odometry}
    command = [sys.executable, "-m", "ros_kvstream.node.main", "--ros-args"]
    command += ["-r", f"image:={recording.topic.played_as.removesuffix('/compressed')}"]
    return command + [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]


def play_and_report(
    settings: DemoSettings, recording: Recording, budget: Budget, model: VideoLanguageModel, console: Console
) -> dict[str, Any]:
    """Start the node, play the recording and ask the questions; returns the report."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from ros_kvstream.evaluation.node_client import NodeClient

    if recording.world is not None:
        plan = plan_questions(recording.world, PATROL_QUESTIONS, budget.window)
    else:
        plan = plan_without_answers(settings.questions or TYPICAL_QUESTIONS, recording.frames)
    domain = free_domain()
    replies: list[Reply] = []
    questions: list[dict[str, Any]] = []
    published, start, stamps = 0, 0.0, recording.stamps
    console.print(f"[dim]With ROS_DOMAIN_ID={domain}, ROS tools see its topics.[/]")
    columns = (TextColumn("[cyan]playing"), BarColumn(24), TaskProgressColumn(), TextColumn("{task.fields[figures]}"))
    with ProcessGroup(settings.output / "logs", ros_environment(domain)) as processes, NodeClient(domain) as client:
        with console.status("Starting kvstream_node"):
            node = processes.start("kvstream_node", node_command(settings, recording, budget))
            client.start(node)
        player = client.make_player(node, {ONE_CAMERA: recording.topic}, clock=True)
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("playing", total=recording.frames, figures="")
            publish = pose_publisher(client, recording)
            for event in play_and_ask(node, player, recording.messages(), client, plan, recording.period, publish):
                if isinstance(event, Reply):
                    left = left_window(event.planned, stamps, budget.window)
                    entry = question_report(event, is_correct(event, stamps), left)
                    show_reply(console, event, entry, start, budget.window * recording.period)
                    replies.append(event)
                    questions.append(entry)
                    continue
                published, start = published + 1, start if published else event.stamp
                figures = f"{event.stamp - start:5.1f} s"
                if (stats := client.stats) is not None:
                    figures += (f"   {stats.frames_seen} frames seen   memory {stats.used_bytes / MIB:.3f} of "
                                f"{stats.budget_bytes / MIB:.3f} MiB")  # fmt: skip
                progress.update(task, completed=published, figures=figures)
        stats = client.wait_for_settled(node, published)
        process_bytes = node.resident_bytes()
    return {
        "questions": questions,
        "memory": memory_report(stats, process_bytes),
        "frames": frames_report(published, stats),
        "latency": latency_report(replies),
        "versions": versions(settings.model, model.trained),
    }


def pose_publisher(client: NodeClient, recording: Recording) -> Callable[[bytes], None] | None:
    """Function that publishes a serialized message of the recording's odometry; None where there is none."""
    if not recording.odometry:
        return None
    from nav_msgs.msg import Odometry

    publisher = client.node.create_publisher(Odometry, recording.odometry, 50)
    return lambda data: publisher.publish(data)  # type: ignore[arg-type, unused-ignore]


def plan_without_answers(texts: Sequence[str], frames: int) -> list[PlannedQuestion]:
    """Distribute questions with unknown answers over the later part of a stream of this many frames."""
    moments = question_moments(len(texts), frames)
    return [PlannedQuestion(text, at, frames - 1) for text, at in zip(texts, moments, strict=True)]


@dataclass(frozen=True)
class PlayedFrame:
    """A frame that the player has published."""

    index: int
    stamp: float


def play_and_ask(
    node: Process, player: Player, messages: Iterable[tuple[float, RawMessage]], client: NodeClient,
    plan: Sequence[PlannedQuestion], period: float, publish_pose: Callable[[bytes], None] | None = None,
) -> Iterator[PlayedFrame | Reply]:  # fmt: skip
    """Ask the questions one after the other, each half a frame period after its frame; yields frames and replies.

    :param messages: (stamp in seconds, message) of each frame, and messages of odometry where ``publish_pose`` takes
        them; :param period: seconds between two frames.
    :raises ProcessError: when the node ends too early or does not respond.
    """
    played, index = iter(messages), -1
    upcoming = next(played, None)
    waiting = deque(plan)
    pending: tuple[PlannedQuestion, Future[Query.Response]] | None = None
    asked, due = 0.0, math.inf
    while upcoming or waiting or pending:
        node.check()
        if upcoming is None:
            time.sleep(POLL)
        elif player.wait(upcoming[1], POLL):
            (stamp, message), upcoming = upcoming, next(played, None)
            if publish_pose is not None and message.type == ODOMETRY_TYPE:
                publish_pose(message.data)
                continue
            index += 1
            player.publish(ONE_CAMERA, message)
            if waiting and due == math.inf and index >= waiting[0].at:
                due = time.monotonic() + period / 2
            yield PlayedFrame(index, stamp)
        if pending and pending[1].done():
            yield Reply(pending[0], pending[1].result())
            pending = None
        elif pending and time.monotonic() - asked > RESPONSE_SECONDS:
            raise ProcessError(f"{node.name} did not respond within {RESPONSE_SECONDS:g} s:{node.log_end()}")
        if waiting and not pending and (upcoming is None or time.monotonic() >= due):
            planned = waiting.popleft()
            pending, asked, due = (planned, client.ask(planned.text)), time.monotonic(), math.inf
