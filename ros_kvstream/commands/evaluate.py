# SPDX-License-Identifier: Apache-2.0
"""Ask questions about recordings, videos or patrol streams, for every memory of a grid, and write a report.

Reports accuracy against bytes, latency against length and policy against policy, with every cell on the same frames.
The same command resumes an interrupted evaluation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.progress
from rich import box
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ros_kvstream.errors import SettingsError
from ros_kvstream.evaluation.datasets import BENCHMARKS, find_benchmark, read_benchmark
from ros_kvstream.evaluation.episodes import Episode, bag_episodes, patrol_episodes
from ros_kvstream.evaluation.executors import EXECUTORS, Runner, run_ray
from ros_kvstream.evaluation.grid import Cell, Job, Override, make_grid, make_jobs, read_cell
from ros_kvstream.evaluation.results import ResultsFolder
from ros_kvstream.evaluation.scoring import Place
from ros_kvstream.evaluation.summary import summarise
from ros_kvstream.settings import require, require_finite

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.evaluation.cell_run import Progress, RunResult

MIB = 1 << 20
POLICIES, SHARES = ["infinipot_v", "recent"], [0.0625, 0.25]
"""Evaluated by default."""
TEXT_TOKENS = {"patrol": (32, 8), "questions": (256, 64), "benchmark": (1024, 16)}
"""Default limits of question and answer in tokens: their slots are part of every budget."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    what = parser.add_argument_group("what is evaluated")
    what.add_argument("bags", nargs="*", type=Path, metavar="BAG", help="recordings: folders, .mcap or .db3 files")
    what.add_argument("--questions", type=Path, help="question file about them: .yaml, .json or .jsonl")
    what.add_argument(
        "--camera", action="append", default=[], metavar="NAME=TOPIC", help="image topic; repeatable (all)"
    )
    what.add_argument(
        "--pose", default="auto", metavar="SOURCE",
        help="where the frames were taken: none, tf, a topic (Odometry, PoseStamped, PoseWithCovarianceStamped), or "
        "auto: tf if it connects the camera with the map, else the only such topic (auto)",
    )  # fmt: skip
    what.add_argument("--start", type=float, default=0.0, help="read the recordings from this second on")
    what.add_argument("--duration", type=float, default=0.0, help="number of seconds to read (to the end)")
    what.add_argument("--patrol", type=int, default=0, metavar="N", help="N patrol streams with known answers instead")
    what.add_argument("--length", type=float, default=600.0, help="seconds of a patrol (600)")
    what.add_argument("--patrol-questions", type=int, default=20, help="questions about each patrol (20)")
    what.add_argument("--seed", type=int, default=0, help="seed of the first patrol")
    what.add_argument("--benchmark", default="", metavar="NAME", help=f"a published benchmark: {', '.join(BENCHMARKS)}")
    what.add_argument("--data", type=Path, help="with --benchmark: folder of its files and videos")
    what.add_argument("--rate", type=float, default=1.0, help="with --benchmark: frames per second of the videos (1)")
    what.add_argument("--limit", type=int, default=0, help="with --benchmark: the first so many videos (all)")
    grid = parser.add_argument_group("memories; comma-separated lists are combined")
    grid.add_argument("--model", default="tiny", help="'tiny', local folders or hub ids")
    grid.add_argument("--policy", default=",".join(POLICIES), help="selection policies (%(default)s)")
    grid.add_argument("--budget-mib", default="", help="budgets in MiB")
    grid.add_argument("--budget-share", default="", help="budgets as shares of the full cache instead (0.0625,0.25)")
    grid.add_argument("--archive-mib", default="0", help="budgets of the archive in MiB, 0 for none (0)")
    grid.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                      help="another setting, such as memory.keep_ratio=0.5")  # fmt: skip
    how = parser.add_argument_group("how")
    how.add_argument("--output", type=Path, default=Path("build/evaluate"), help="folder of the results and the report")
    how.add_argument("--no-report", action="store_true", help="write the results and print the table only")
    how.add_argument("--thumbnails", type=int, default=200, help="maximum number of pictures in the report (200)")
    how.add_argument("--frames-mib", type=float, default=512.0, help="decoded frames kept in memory, at most (512)")
    how.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    how.add_argument("--live", action="store_true", help="play the recordings to a node over DDS, at the recorded pace")
    how.add_argument("--live-rate", type=float, default=1.0, help="with --live: 2 plays twice as fast (1)")
    how.add_argument("--live-queue", type=int, default=2, help="with --live: queue length of the node, frames (2)")
    how.add_argument("--executor", choices=EXECUTORS, default="local", help="local, or ray: several workers")
    how.add_argument("--workers", type=int, default=2, help="with ray: worker processes (2)")
    how.add_argument("--address", default="", help="with ray: of a running cluster (starts one here)")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run what has not been run before and write results and report; returns the report as plain data."""
    episodes, kind, notes = plan_episodes(options)
    cells = plan_cells(options, kind)
    jobs = make_jobs(cells, episodes, live_key(options))
    folder = ResultsFolder(options.output)
    todo = [job for job in jobs if job.key not in folder.done]
    streams, memories = (f"{len(parts)} {name if len(parts) == 1 else names}" for parts, name, names in
                         ((episodes, "stream", "streams"), (cells, "memory", "memories")))  # fmt: skip
    done = f", {len(jobs) - len(todo)} of them done before" if len(todo) < len(jobs) else ""
    console.print(f"[bold]{streams}[/] with {sum(len(episode.questions) for episode in episodes)} questions, "
                  f"[bold]{memories}[/]: {len(jobs)} runs{done}")  # fmt: skip
    for result in _executed(options, todo, console):
        folder.add(result)
    keys = [job.key for job in jobs]
    summaries = summarise(folder.runs(keys), folder.lines(keys))
    notes += [f"{run['episode']}: {note}" for summary in summaries for run in summary.runs
              for note in run.get("notes", ())]  # fmt: skip
    report: dict[str, Any] = {"cells": [summary.data() for summary in summaries], "notes": list(dict.fromkeys(notes)),
              "results": str(options.output / "results.jsonl")}  # fmt: skip
    if options.benchmark:
        score = find_benchmark(options.benchmark).score
        for cell, summary in zip(report["cells"], summaries, strict=True):
            cell["scores"] = [entry.data() for entry in score(summary.lines)]
    if not options.no_report:
        from ros_kvstream.evaluation.report import write_report

        with console.status("Writing the report"):
            path = write_report(summaries, episodes, options.output, options.thumbnails, options.benchmark)
            report["report"] = str(path)
    return report


def plan_episodes(options: argparse.Namespace) -> tuple[list[Episode], str, list[str]]:
    """The streams with their questions, the kind of evaluation (a key of TEXT_TOKENS), and notes on what is missing."""
    ways = {"recordings and --questions": options.bags, "--patrol N": options.patrol,
            "--benchmark NAME and --data": options.benchmark}  # fmt: skip
    given = [way for way, value in ways.items() if value]
    if len(given) != 1:
        text = f"not {' and '.join(given)}" if given else "such as `kvstream evaluate --patrol 4`"
        raise SettingsError(f"give one of {', '.join(ways)}: {text}")
    if options.bags:
        if options.questions is None:
            raise SettingsError("--questions: give the file that holds the questions about the recordings")
        cameras = [_split(text, "--camera", "NAME=TOPIC") for text in options.camera]
        episodes = bag_episodes(options.bags, options.questions, cameras, options.start, options.duration, options.pose)
        asked = [question for episode in episodes for question in episode.questions]
        if options.live and any(question.near or isinstance(question.expected, Place) for question in asked):
            raise SettingsError("--live plays the images alone: ask about places without it")
        return episodes, "questions", []
    require(options.questions is None, "--questions", options.questions, "given together with a BAG")
    if options.patrol:
        return patrol_episodes(options.patrol, options.length, options.patrol_questions, options.seed), "patrol", []
    if options.data is None:
        raise SettingsError("--data: give the folder that holds the files and videos of the benchmark")
    reading = read_benchmark(options.benchmark, options.data, options.rate, options.limit)
    return reading.episodes, "benchmark", reading.notes


def plan_cells(options: argparse.Namespace, kind: str) -> list[Cell]:
    """The grid that the options describe."""
    question, answer = TEXT_TOKENS[kind]
    overrides: dict[str, Any] = {"memory.max_question_tokens": question, "memory.max_answer_tokens": answer}
    overrides.update(read_override(text) for text in options.set)
    budgets, shares = _numbers(options.budget_mib, "--budget-mib"), _numbers(options.budget_share, "--budget-share")
    return make_grid(
        _words(options.model, "--model"), _words(options.policy, "--policy"), budgets,
        _numbers(options.archive_mib, "--archive-mib") or [0.0],
        shares=shares if shares or budgets else SHARES, overrides=list(overrides.items()),
    )  # fmt: skip


def read_override(text: str) -> Override:
    """Read NAME=VALUE, the value as YAML; "on" and "off" stay words, as in the settings."""
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
    """Key that separates runs over DDS from those in code; raises SettingsError for options that exclude each other."""
    require(options.workers >= 1, "--workers", options.workers, "1 or more")
    if not options.live:
        return ""
    require(bool(options.bags), "--live", True, "given together with a BAG")
    require(bool(options.budget_mib), "--live", True, "given together with --budget-mib")
    require(options.executor == "local", "--executor", options.executor, "local with --live")
    require_finite("--live-rate", options.live_rate, 0.01, 100.0)
    require_finite("--live-queue", options.live_queue, 1, 64)
    return f"live {options.live_rate:g} {options.live_queue}"


def _executed(options: argparse.Namespace, jobs: Sequence[Job], console: Console) -> Iterator[RunResult]:
    """Run jobs as the options say, with a progress bar; results come as they are ready."""
    if options.live:
        from ros_kvstream.evaluation.live_run import run_live_job

        live = {"rate": options.live_rate, "queue_frames": options.live_queue}
        logs = options.output / "logs"
        return run_with_progress(console, jobs, lambda _: ((job, run_live_job(job, logs / job.key, **live))
                                                           for job in jobs))  # fmt: skip
    if options.executor == "ray":
        return run_with_progress(console, jobs, lambda _: run_ray(
            jobs, workers=options.workers, frames_mib=options.frames_mib, device=options.device,
            address=options.address,
        ))  # fmt: skip
    runner = Runner(options.frames_mib, options.device)
    return run_with_progress(console, jobs, lambda observed: ((job, runner.run(job, observed)) for job in jobs))


def run_with_progress(
    console: Console, jobs: Sequence[Job], start: Callable[[Progress], Iterable[tuple[Job, RunResult]]]
) -> Iterator[RunResult]:
    """Yield the results of jobs below a bar of frames seen, runs done and time left.

    :param start: runs the jobs; gets a function to call with the number of frames observed.
    """
    if not jobs:
        return
    sizes = {job.key: max(1, job.episode.source.count()) for job in jobs}
    finished = 0
    columns = (TextColumn("[cyan]{task.description}"), BarColumn(28), TextColumn("{task.percentage:3.0f} %"),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"run 1 of {len(jobs)}", total=sum(sizes.values()))
        for number, (job, result) in enumerate(start(lambda frames: bar.advance(task, frames)), 2):
            finished += sizes[job.key]
            text = f"run {min(number, len(jobs))} of {len(jobs)}  {job.episode.name} {job.cell.policy}"
            bar.update(task, completed=finished, description=escape(text))
            yield result


def show(report: dict[str, Any], console: Console) -> None:
    """Print the table of memories, and where the results and the report are."""
    cells, rows = [read_cell(row["cell"]) for row in report["cells"]], report["cells"]
    console.print(_table(rows, cells, console.width))
    for cell, row in zip(cells, rows, strict=True):
        if row["refused"]:
            text = f"{cell.label}: refused on {len(row['refused'])} of {row['runs']} streams: {row['refused'][0]}"
            console.print(f"[yellow]{escape(text)}[/]")
    if any(row.get("scores") for row in rows):
        table = Table(title="as the paper reports it, %", title_style="dim", header_style="bold")
        table.add_column("")
        for cell in cells:
            table.add_column(escape(cell.label), justify="right", overflow="fold")
        found = [{score["name"]: f"{100 * score['value']:.1f}" for score in row["scores"]} for row in rows]
        for name in dict.fromkeys(name for scores in found for name in scores):
            table.add_row(escape(name), *(scores.get(name, "-") for scores in found))
        console.print(table)
    for note in report["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    for title in ("report", "results"):
        if report.get(title):
            console.print(f"[dim]{title.title()}: {escape(report[title])}[/]", soft_wrap=True)


NARROW, NARROW_LACKS = 100, ("95 %", "frame", "MiB")
"""On a terminal with fewer columns, these metrics are left to the report."""


def _table(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell], width: int) -> Table:
    """One line per memory, without columns that are the same or empty in all of them."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1), collapse_padding=True)
    left_out = {name for name in NARROW_LACKS if width < NARROW}
    if len({cell.model for cell in cells}) > 1:
        table.caption = ""
    else:
        left_out.add("model")
        table.caption = f"model {escape(cells[0].model)}; "
    if not any(cell.archive_mib for cell in cells):
        left_out.add("archive")
    best = max((row["accuracy"]["value"] for row in rows if row["accuracy"]), default=None)
    for cell, row in zip(cells, rows, strict=True):
        accuracy = row["accuracy"]
        values = {
            "model": escape(cell.model), "policy": escape(cell.policy), "budget": cell.budget,
            "archive": f"{cell.archive_mib:g}" if cell.archive_mib else "-",
            "right": _percent(accuracy),
            "95 %": f"{100 * accuracy['low']:.0f}-{100 * accuracy['high']:.0f}" if accuracy else "-",
            "now": _percent(row["now"]), "before": _percent(row["before"]), "found": _percent(row["recall"]),
            "TTFT": _number(row["first_token_ms"]), "frame": _number(row["ingest_ms"]), "MiB": _mebibytes(row),
        }  # fmt: skip
        shown = {name: value for name, value in values.items() if name not in left_out}
        if not table.columns:
            for name in shown:
                table.add_column(name, justify="left" if name in ("model", "policy") else "right",
                                 no_wrap=name != "model", overflow="fold")  # fmt: skip
        best_style = "bold green" if accuracy and accuracy["value"] == best else ""
        table.add_row(*shown.values(), style=best_style)
    table.caption += "right answers in %; found: evidence among the frames looked at; TTFT, frame: ms"
    if width < NARROW:
        table.caption += f"; a wider terminal shows {', '.join(NARROW_LACKS)} too"
    return table


def _percent(share: Mapping[str, float] | None) -> str:
    return "-" if share is None else f"{100 * share['value']:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _mebibytes(row: Mapping[str, Any]) -> str:
    if not row["peak_bytes"]:
        return "-"
    archive = f" + {row['archive_bytes'] / MIB:.2f}" if row["archive_bytes"] else ""
    return f"{row['peak_bytes'] / MIB:.2f}{archive}"
