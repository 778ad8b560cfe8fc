# SPDX-License-Identifier: Apache-2.0
"""Report of an evaluation, one self-contained HTML file: plots, tables, and every question with frames and answers."""

from __future__ import annotations

import base64
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import cv2

from ros_kvstream.errors import KvStreamError
from ros_kvstream.evaluation.datasets import find_benchmark
from ros_kvstream.evaluation.episodes import Episode
from ros_kvstream.evaluation.report_plots import draw
from ros_kvstream.evaluation.scoring import read_expectation
from ros_kvstream.evaluation.summary import CellSummary, Line, share

TEMPLATE = Path(__file__).with_name("report.html.jinja")
MOST_QUESTIONS = 300
"""Questions that are shown one by one; results.jsonl has them all."""
TRUE_PICTURES, SEEN_PICTURES = 2, 3
"""Pictures of a question: of the true evidence, and of the frames that the best memory looked at."""
NEAR_SECONDS = 0.5
"""A frame shows a moment when it is this close."""
THUMBNAIL_WIDTH, JPEG_QUALITY = 132, 72
PACKAGES = ("ros_kvstream", "torch", "transformers", "numpy")
CAPTIONS = {
    "accuracy": ("Accuracy against bytes", "Shaded: 95 % bootstrap interval."),
    "age": ("Accuracy by the age of the evidence",
            "From the newest frame that shows the answer to the moment of the question."),
    "recall": ("Was the evidence looked at?",
               "Share of the questions about before with a frame of the true evidence among those looked at."),
    "latency": ("Latency against length", "All budgets of a policy together; medians over equal numbers of points."),
    "memory": ("Memory over time", "Arena and archive together over the longest stream; dotted: the budget."),
    "path": ("Where", "The robot's path, dark at first and light at last, and where the first evidence of each answer "
             "was taken, in the first memory of the table."),
}  # fmt: skip
Moment = tuple[str, str, float]
"""(stream, camera or "" for any, header stamp)."""
TableRow = tuple[str, int, list[float | None]]
"""(name, number of questions, value per cell that ran)."""


@dataclass(frozen=True)
class Thumbnail:
    """A small picture of a frame."""

    number: int
    stamp: float
    camera: str
    jpeg: str
    """Base64."""
    ratio: float
    """Width over height."""


def write_report(
    summaries: Sequence[CellSummary], episodes: Sequence[Episode], folder: Path, thumbnails: int = 200,
    benchmark: str = "",
) -> Path:  # fmt: skip
    """Write report.html and plots/*.png; returns the path of the former.

    :param thumbnails: maximum number of pictures; the recordings are read once more for them.
    :param benchmark: name of the benchmark whose scores are shown.
    """
    import jinja2

    plots = draw(summaries, folder / "plots")
    best = best_cell(summaries)
    questions = question_cards(summaries, best)
    pictures = collect_pictures(questions, episodes, thumbnails)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True,
                                     undefined=jinja2.StrictUndefined)  # fmt: skip
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    runs = [run for summary in summaries for run in summary.runs]
    text = template.render(
        summaries=summaries,
        best=best,
        plots=[(*CAPTIONS[name], svg, name) for name, svg in plots.items()],
        tasks=task_table(summaries),
        scores=score_table(summaries, benchmark) if benchmark else [],
        questions=questions[:MOST_QUESTIONS],
        left_out=max(0, len(questions) - MOST_QUESTIONS),
        pictures=pictures,
        thumbnails={picture.number: picture for picture in pictures.values()}.values(),
        streams=sorted({(run["episode"], run.get("frames", 0)) for run in runs if run["status"] == "done"}),
        models=sorted({summary.cell.model for summary in summaries}),
        archives=any(summary.cell.archive_mib for summary in summaries),
        overrides=sorted({override for summary in summaries for override in summary.cell.overrides}, key=str),
        notes=list(dict.fromkeys(f"{run['episode']}: {note}" for run in runs for note in run.get("notes", ()))),
        versions=versions(),
        mib=1 << 20,
    )
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def best_cell(summaries: Sequence[CellSummary]) -> CellSummary | None:
    """The memory with the highest accuracy; of equal ones that with the fewest bytes."""
    ranked = [(accuracy.value, -summary.budget_bytes(), -index, summary)
              for index, summary in enumerate(summaries) if (accuracy := summary.accuracy())]  # fmt: skip
    return max(ranked, key=lambda entry: entry[:3])[3] if ranked else None


def question_cards(summaries: Sequence[CellSummary], best: CellSummary | None) -> list[dict[str, Any]]:
    """Every question once, with the answers of all cells, equal ones together."""
    cards: dict[tuple[str, str], dict[str, Any]] = {}
    for summary in summaries:
        for line in summary.lines:
            card = cards.setdefault((line["episode"], line["question"]), _card(line))
            text = line["error"] or line["answer"] or "(nothing)"
            answer = card["answers"].setdefault((text, line["correct"]), [])
            answer.append(summary.cell.label)
            card["judged"] += line["correct"] is not None
            card["right"] += bool(line["correct"])
            if summary is best:
                card["seen"] = [
                    (line["episode"], frame["camera"], frame["stamp"]) for frame in line["evidence"][:SEEN_PICTURES]
                ]
    return list(cards.values())


def _card(line: Line) -> dict[str, Any]:
    stamps = line["true_evidence"]
    chosen = [stamps[0], stamps[-1]] if len(stamps) > 1 else list(stamps)
    return {
        "episode": line["episode"], "text": line["text"], "kind": line["kind"], "task": line["task"],
        "expected": read_expectation(line["expected"]).text(), "first_stamp": line["first_stamp"],
        "asked": (line["asked_at"] or line["first_stamp"]) - line["first_stamp"],
        "true": [(line["episode"], line["camera"], stamp) for stamp in chosen[:TRUE_PICTURES]],
        "seen": [], "answers": {}, "judged": 0, "right": 0,
    }  # fmt: skip


def collect_pictures(
    questions: Sequence[Mapping[str, Any]], episodes: Sequence[Episode], most: int
) -> dict[Moment, Thumbnail]:
    """Pictures of the moments of the first questions; a moment without a frame near it has none."""
    moments = dict.fromkeys(moment for card in questions[:MOST_QUESTIONS] for moment in (*card["true"], *card["seen"]))
    wanted = list(moments)[:most]
    found: dict[Moment, Thumbnail] = {}
    numbers: dict[Moment, Thumbnail] = {}
    for episode in episodes:
        own = [moment for moment in wanted if moment[0] == episode.name]
        for moment, (exact, jpeg, ratio) in _nearest(episode, own).items():
            picture = Thumbnail(len(numbers), exact[2], exact[1], jpeg, ratio)
            found[moment] = numbers.setdefault(exact, picture)
    return found


def _nearest(episode: Episode, moments: Sequence[Moment]) -> dict[Moment, tuple[Moment, str, float]]:
    """(exact moment, JPEG, ratio) of the frame nearest to each moment; one pass over the stream."""
    if not moments:
        return {}
    distances = dict.fromkeys(moments, NEAR_SECONDS)
    best: dict[Moment, tuple[Moment, str, float]] = {}
    try:
        for frame in episode.source.frames(lambda _: None):
            near = [moment for moment in moments if moment[1] in ("", frame.camera)
                    and abs(frame.stamp - moment[2]) <= distances[moment]]  # fmt: skip
            if near:
                exact = (episode.name, frame.camera, frame.stamp)
                found = (exact, thumbnail(frame.picture), frame.picture.shape[1] / frame.picture.shape[0])
                distances |= {moment: abs(frame.stamp - moment[2]) for moment in near}
                best |= dict.fromkeys(near, found)
    except (KvStreamError, OSError):  # the recording is gone: the report has no pictures of it
        return {}
    return best


def thumbnail(picture: Any) -> str:
    """A small JPEG of a frame (RGB [height, width, 3]), as base64."""
    height, width = picture.shape[:2]
    scale = THUMBNAIL_WIDTH / width
    size = (THUMBNAIL_WIDTH, max(1, round(height * scale)))
    small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST)
    _, data = cv2.imencode(".jpg", small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return base64.b64encode(data.tobytes()).decode()


def task_table(summaries: Sequence[CellSummary]) -> list[TableRow]:
    """Share of right answers by task; empty where the questions name no tasks."""
    tasks = sorted({line["task"] for summary in summaries for line in summary.lines if line["task"]})
    columns = []
    for summary in summaries:
        if summary.lines:
            parts = {task: share(line for line in summary.lines if line["task"] == task) for task in tasks}
            columns.append({task: (part.value, part.count) for task, part in parts.items() if part})
    return _rows(tasks, columns)


def score_table(summaries: Sequence[CellSummary], benchmark: str) -> list[TableRow]:
    """Scores as a benchmark's paper reports them."""
    score = find_benchmark(benchmark).score
    columns = [{entry.name: (entry.value, entry.count) for entry in score(summary.lines)}
               for summary in summaries if summary.lines]  # fmt: skip
    return _rows(list(dict.fromkeys(name for column in columns for name in column)), columns)


def _rows(names: Sequence[str], columns: Sequence[Mapping[str, tuple[float, int]]]) -> list[TableRow]:
    return [
        (name, max((column[name][1] for column in columns if name in column), default=0),
         [column[name][0] if name in column else None for column in columns]) for name in names
    ]  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python, this package and the packages that matter to the results."""
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    return machine | {package: package_version(package) for package in PACKAGES}


def package_version(package: str) -> str:
    """Version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
