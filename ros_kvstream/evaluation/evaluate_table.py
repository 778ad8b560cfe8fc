"""How an evaluation looks in a terminal: its progress with the time left, and its table of memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ros_kvstream.evaluation.grid import Job, read_cell

if TYPE_CHECKING:
    from rich.console import Console

    from ros_kvstream.evaluation.cell_run import RunResult

MIB = 1 << 20


class GridProgress:
    """A context that keeps a bar below whatever is printed: frames seen, runs done, time left."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._sizes = {job.key: max(1, job.episode.source.count()) for job in jobs}
        self._runs = len(jobs)
        self._done = 0
        self._frames = 0
        self._settled = 0
        self._progress = Progress(
            TextColumn("[cyan]{task.description}"), BarColumn(28), TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task(self._text(""), total=sum(self._sizes.values()))

    def _text(self, what: str) -> str:
        return f"run {min(self._done + 1, self._runs)} of {self._runs}{what}"

    def frames(self, count: int) -> None:
        """Note that the present run saw so many frames more."""
        self._frames += count
        self._progress.update(self._task, completed=self._settled + self._frames)

    def finished(self, job: Job, result: RunResult) -> None:
        """Note that a run is done; one that was refused is said at once."""
        from rich.markup import escape

        self._done += 1
        self._settled, self._frames = self._settled + self._sizes[job.key], 0
        text = self._text(f"  {job.episode.name} {job.cell.policy}")
        self._progress.update(self._task, completed=self._settled, description=escape(text))
        if result.run["status"] == "refused":
            name, reason = escape(f"{job.episode.name}, {job.cell.label}"), escape(result.run["reason"])
            self._progress.console.print(f"[yellow]{name}: refused.[/] {reason}")

    def __enter__(self) -> GridProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def show(report: dict[str, Any], console: Console) -> None:
    """Print the table of memories, and where results and report are."""
    from rich.markup import escape
    from rich.table import Table

    cells = [read_cell(row["cell"]) for row in report["cells"]]
    several = len({cell.model for cell in cells}) > 1
    names = [f"{cell.label} ({cell.model})" if several else cell.label for cell in cells]
    if cells and not several:
        console.print(f"[dim]model: {escape(cells[0].model)}[/]")
    table = Table(title="accuracy with its 95 % interval", header_style="bold", title_style="dim")
    for column in ("memory", "accuracy", "now", "before", "evidence", "first token", "a frame", "peak"):
        table.add_column(column, justify="left" if column == "memory" else "right")
    best = max((row["accuracy"]["value"] for row in report["cells"] if row["accuracy"]), default=None)
    for name, row in zip(names, report["cells"], strict=True):
        accuracy = row["accuracy"]
        style = "bold green" if accuracy and accuracy["value"] == best else ""
        table.add_row(
            escape(name), _interval(accuracy), _percent(row["now"]), _percent(row["before"]),
            _percent(row["recall"]), _milliseconds(row["first_token_ms"]), _milliseconds(row["ingest_ms"]),
            _bytes(row), style=style,
        )  # fmt: skip
    console.print(table)
    for name, row in zip(names, report["cells"], strict=True):
        if row["refused"]:
            console.print(f"[yellow]{escape(name)}: refused on {len(row['refused'])} of {row['runs']} streams.[/]")
    for note in report["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    for title, text in (("Report", report.get("report")), ("Results", report["results"])):
        if text:
            console.print(f"[dim]{title}: {escape(text)}[/]", soft_wrap=True)


def _interval(share: Mapping[str, float] | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share['value']:.1f} ({100 * share['low']:.0f}-{100 * share['high']:.0f}) %"


def _percent(share: Mapping[str, float] | None) -> str:
    return "-" if share is None else f"{100 * share['value']:.1f} %"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _bytes(row: Mapping[str, Any]) -> str:
    if not row["peak_bytes"]:
        return "-"
    archive = f" + {row['archive_bytes'] / MIB:.2f}" if row["archive_bytes"] else ""
    return f"{row['peak_bytes'] / MIB:.2f}{archive} MiB"
