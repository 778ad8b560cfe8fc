"""Ask questions about recordings, videos or patrol streams, for every memory of a grid, and write a report.

Accuracy against bytes, latency against length, policy beside policy, every cell on the same frames. An interrupted
evaluation goes on where it was when the same command is given again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros_kvstream.commands.evaluate_plan import bag_episodes, patrol_episodes
from ros_kvstream.commands.evaluate_table import show
from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets import BENCHMARKS, find_benchmark, read_benchmark
from ros_kvstream.evaluation.executors import EXECUTORS
from ros_kvstream.evaluation.grid import Cell, Episode, Job, Override, make_grid, make_jobs
from ros_kvstream.evaluation.results import ResultsFolder
from ros_kvstream.evaluation.summary import CellSummary, summarise
from ros_kvstream.settings import require, require_finite

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.evaluation.cell_run import RunResult

__all__ = ["add_arguments", "run", "show"]

POLICIES, SHARES = ["infinipot_v", "recent"], [0.0625, 0.25]
"""Evaluated where nothing else is asked for."""
TEXT_ROOM = {"patrol": (32, 8), "questions": (256, 64), "benchmark": (1024, 16)}
"""Longest question and answer in tokens where ``--set`` does not say: room for them is part of every budget."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    what = parser.add_argument_group("what is evaluated")
    what.add_argument("bags", nargs="*", type=Path, metavar="BAG", help="recordings: folders, .mcap or .db3 files")
    what.add_argument("--questions", type=Path, help="question file about them: .yaml, .json or .jsonl")
    what.add_argument("--camera", action="append", default=[], metavar="NAME=TOPIC", help="image topic (all)")
    what.add_argument("--start", type=float, default=0.0, help="read the recordings from this second on")
    what.add_argument("--duration", type=float, default=0.0, help="read so many seconds (to the end)")
    what.add_argument("--patrol", type=int, default=0, metavar="N", help="N patrol streams with known answers instead")
    what.add_argument("--length", type=float, default=600.0, help="seconds of a patrol (600)")
    what.add_argument("--patrol-questions", type=int, default=20, help="questions about each patrol (20)")
    what.add_argument("--seed", type=int, default=0, help="seed of the first patrol")
    what.add_argument("--benchmark", default="", metavar="NAME", help=f"a published one: {', '.join(BENCHMARKS)}")
    what.add_argument("--data", type=Path, help="with --benchmark: folder of its files and videos")
    what.add_argument("--rate", type=float, default=1.0, help="with --benchmark: frames a second of the videos (1)")
    what.add_argument("--limit", type=int, default=0, help="with --benchmark: the first so many videos (all)")
    grid = parser.add_argument_group("memories; lists separated by commas are combined")
    grid.add_argument("--model", default="tiny", help="'tiny', local folders or hub ids")
    grid.add_argument("--policy", default=",".join(POLICIES), help="selection policies (%(default)s)")
    grid.add_argument("--budget-mib", default="", help="caps in MiB")
    grid.add_argument("--budget-share", default="", help="caps as shares of the full cache instead (0.0625,0.25)")
    grid.add_argument("--archive-mib", default="0", help="caps of the archive in MiB, 0 for none (0)")
    grid.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                      help="another setting, such as memory.keep_ratio=0.5")  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument("--output", type=Path, default=Path("build/evaluate"), help="folder of results and report")
    how.add_argument("--no-report", action="store_true", help="results and table alone")
    how.add_argument("--thumbnails", type=int, default=200, help="pictures in the report, at most (200)")
    how.add_argument("--frames-mib", type=float, default=512.0, help="room for decoded frames (512)")
    how.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    how.add_argument("--live", action="store_true", help="play the recordings to a node over DDS, at their own pace")
    how.add_argument("--live-rate", type=float, default=1.0, help="with --live: 2 plays twice as fast (1)")
    how.add_argument("--live-queue", type=int, default=2, help="with --live: frames that wait in the node (2)")
    how.add_argument("--executor", choices=EXECUTORS, default="local", help="local, or ray: many workers")
    how.add_argument("--workers", type=int, default=2, help="with ray: worker processes (2)")
    how.add_argument("--address", default="", help="with ray: of a running cluster (starts one here)")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run what was not run before, write results and report; returns the figures."""
    episodes, kind, notes = plan_episodes(options)
    cells = plan_cells(options, kind)
    jobs = make_jobs(cells, episodes, live_key(options))
    folder = ResultsFolder(options.output)
    todo = [job for job in jobs if job.key not in folder.done]
    introduce(console, episodes, cells, len(jobs) - len(todo), len(jobs))
    for _, result in _executed(options, todo, console):
        folder.add(result)
    keys = [job.key for job in jobs]
    summaries = summarise(folder.runs(keys), folder.lines(keys))
    report = make_report(summaries, options.output, notes, options.benchmark)
    if not options.no_report:
        from ros_kvstream.evaluation.report import write_report

        with console.status("Writing the report"):
            path = write_report(summaries, episodes, options.output, options.thumbnails, options.benchmark)
            report["report"] = str(path)
    return report


def plan_episodes(options: argparse.Namespace) -> tuple[list[Episode], str, list[str]]:
    """The streams with their questions, which kind of evaluation it is (a key of TEXT_ROOM), and what is missing."""
    ways = {"recordings and --questions": options.bags, "--patrol N": options.patrol,
            "--benchmark NAME and --data": options.benchmark}  # fmt: skip
    given = [way for way, value in ways.items() if value]
    if len(given) != 1:
        text = f"not {' and '.join(given)}" if given else "such as `kvstream evaluate --patrol 4`"
        raise SettingsError(f"give one of {', '.join(ways)}: {text}")
    if options.bags:
        if options.questions is None:
            raise SettingsError("--questions: which file holds the questions about the recordings?")
        cameras = [_split(text, "--camera", "NAME=TOPIC") for text in options.camera]
        episodes = bag_episodes(options.bags, options.questions, cameras, options.start, options.duration)
        return episodes, "questions", []
    require(options.questions is None, "--questions", options.questions, "given together with a BAG")
    if options.patrol:
        return patrol_episodes(options.patrol, options.length, options.patrol_questions, options.seed), "patrol", []
    if options.data is None:
        raise SettingsError("--data: in which folder are the files and videos of the benchmark?")
    reading = read_benchmark(options.benchmark, options.data, options.rate, options.limit)
    return reading.episodes, "benchmark", reading.notes


def plan_cells(options: argparse.Namespace, kind: str) -> list[Cell]:
    """The grid that the options ask for."""
    question, answer = TEXT_ROOM[kind]
    overrides: dict[str, Any] = {"memory.max_question_tokens": question, "memory.max_answer_tokens": answer}
    overrides.update(read_override(text) for text in options.set)
    budgets, shares = _numbers(options.budget_mib, "--budget-mib"), _numbers(options.budget_share, "--budget-share")
    return make_grid(
        _words(options.model, "--model"), _words(options.policy, "--policy"), budgets,
        _numbers(options.archive_mib, "--archive-mib") or [0.0],
        shares=shares if shares or budgets else SHARES, overrides=list(overrides.items()),
    )  # fmt: skip


def read_override(text: str) -> Override:
    """Read NAME=VALUE, the value as YAML; on and off are words, as settings have them."""
    import yaml

    name, value = _split(text, "--set", "NAME=VALUE")
    if value in ("on", "off"):
        return name, value
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise SettingsError(f"--set {text}: {value!r} is no value") from error


def _split(text: str, option: str, form: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name.strip() and sign and value.strip()):
        raise SettingsError(f"{option} {text!r}: must be {form}")
    return name.strip(), value.strip()


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    require(bool(words), option, text, "at least one")
    return words


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise SettingsError(f"{option} {text!r}: must be numbers separated by commas") from error


def live_key(options: argparse.Namespace) -> str:
    """What tells runs over DDS from those in code; refuses what does not go together."""
    require(options.workers >= 1, "--workers", options.workers, "1 or more")
    if not options.live:
        return ""
    require(bool(options.bags), "--live", True, "given together with a BAG")
    require(bool(options.budget_mib), "--live", True, "given together with --budget-mib")
    require(options.executor == "local", "--executor", options.executor, "local with --live")
    require_finite("--live-rate", options.live_rate, 0.01, 100.0)
    require_finite("--live-queue", options.live_queue, 1, 64)
    return f"live {options.live_rate:g} {options.live_queue}"


def introduce(console: Console, episodes: Sequence[Episode], cells: Sequence[Cell], done: int, jobs: int) -> None:
    """Say what is about to happen."""
    questions = sum(len(episode.questions) for episode in episodes)
    streams = f"{len(episodes)} stream" + "s" * (len(episodes) != 1)
    memories = f"{len(cells)} memor" + ("y" if len(cells) == 1 else "ies")
    before = f", {done} of them done before" if done else ""
    console.print(f"[bold]{streams}[/] with {questions} questions, [bold]{memories}[/]: {jobs} runs{before}")


def _executed(options: argparse.Namespace, jobs: Sequence[Job], console: Console) -> Iterator[tuple[Job, RunResult]]:
    """Run jobs with a progress bar; results come as they are ready."""
    from ros_kvstream.commands.evaluate_table import GridProgress
    from ros_kvstream.evaluation.executors import Runner, run_local, run_ray

    with GridProgress(console, jobs) if jobs else nullcontext() as progress:
        if options.live:
            from ros_kvstream.evaluation.live_run import run_live_job

            results: Iterator[tuple[Job, RunResult]] = (
                (job, run_live_job(job, options.output / "logs" / job.key, rate=options.live_rate,
                                   queue_frames=options.live_queue)) for job in jobs
            )  # fmt: skip
        elif options.executor == "ray":
            results = run_ray(jobs, workers=options.workers, frames_mib=options.frames_mib, device=options.device,
                              address=options.address)  # fmt: skip
        else:
            runner = Runner(options.frames_mib, options.device)
            results = run_local(jobs, runner, progress.frames if progress else lambda _: None)
        for job, result in results:
            if progress:
                progress.finished(job, result)
            yield job, result


def make_report(
    summaries: Sequence[CellSummary], output: Path, notes: Sequence[str] = (), benchmark: str = ""
) -> dict[str, Any]:
    """The figures as one JSON object.

    :param notes: what was said before any run; :param benchmark: whose paper's scores are worked out.
    """
    found = (
        f"{run['episode']}: {note}" for summary in summaries for run in summary.runs for note in run.get("notes", ())
    )
    cells = [summary.data() for summary in summaries]
    if benchmark:
        score = find_benchmark(benchmark).score
        for cell, summary in zip(cells, summaries, strict=True):
            cell["scores"] = [entry.data() for entry in score(summary.lines)]
    return {"cells": cells, "notes": list(dict.fromkeys([*notes, *found])), "results": str(output / "results.jsonl")}
