"""How an evaluation looks in a terminal: its progress with the time left, and its table of memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ros_kvstream.evaluation.grid import Cell, Job, read_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
        """Note that a run is done."""
        from rich.markup import escape

        self._done += 1
        self._settled, self._frames = self._settled + self._sizes[job.key], 0
        text = self._text(f"  {job.episode.name} {job.cell.policy}")
        self._progress.update(self._task, completed=self._settled, description=escape(text))

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

    cells = [read_cell(row["cell"]) for row in report["cells"]]
    console.print(_table(report["cells"], cells, console.width))
    for cell, row in zip(cells, report["cells"], strict=True):
        if row["refused"]:
            text = f"{cell.label}: refused on {len(row['refused'])} of {row['runs']} streams: {row['refused'][0]}"
            console.print(f"[yellow]{escape(text)}[/]")
    if any(row.get("scores") for row in report["cells"]):
        console.print(_scores(report["cells"], cells))
    for note in report["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    for title in ("report", "results"):
        if report.get(title):
            console.print(f"[dim]{title.title()}: {escape(report[title])}[/]", soft_wrap=True)


NARROW, NARROW_LACKS = 100, ("95 %", "frame", "MiB")
"""Columns of a terminal below which these figures are left to the report."""


def _table(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell], width: int) -> Table:
    """One line a memory; columns that say nothing are left out, and on a narrow terminal those of least interest."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    models = {cell.model for cell in cells}
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1), collapse_padding=True)
    for column in ["model"] * (len(models) > 1):
        table.add_column(column, overflow="fold")
    table.add_column("policy", no_wrap=True)
    archives = any(cell.archive_mib for cell in cells)
    figures = ["right", "95 %", "now", "before", "found", "TTFT", "frame", "MiB"]
    left_out = NARROW_LACKS if width < NARROW else ()
    for column in ["budget"] + ["archive"] * archives + [name for name in figures if name not in left_out]:
        table.add_column(column, justify="right", no_wrap=True)
    best = max((row["accuracy"]["value"] for row in rows if row["accuracy"]), default=None)
    for cell, row in zip(cells, rows, strict=True):
        accuracy = row["accuracy"]
        names = [cell.model] * (len(models) > 1) + [cell.policy, cell.budget]
        names += [f"{cell.archive_mib:g}" if cell.archive_mib else "-"] * archives
        values = [
            _percent(accuracy), f"{100 * accuracy['low']:.0f}-{100 * accuracy['high']:.0f}" if accuracy else "-",
            _percent(row["now"]), _percent(row["before"]), _percent(row["recall"]),
            _number(row["first_token_ms"]), _number(row["ingest_ms"]), _mebibytes(row),
        ]  # fmt: skip
        values = [value for name, value in zip(figures, values, strict=True) if name not in left_out]
        style = "bold green" if accuracy and accuracy["value"] == best else ""
        table.add_row(*map(escape, names), *values, style=style)
    shown = "" if len(models) > 1 else f"model {escape(cells[0].model)}; "
    table.caption = f"{shown}right answers in %; found: evidence among the frames looked at; TTFT, frame: ms"
    if left_out:
        table.caption += f"; a wider terminal shows {', '.join(left_out)} too"
    return table


def _scores(rows: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> Table:
    """A benchmark's scores as its paper reports them, one column a memory."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="as the paper reports it, %", title_style="dim", header_style="bold")
    table.add_column("")
    names = list(dict.fromkeys(score["name"] for row in rows for score in row["scores"]))
    for cell in cells:
        table.add_column(escape(cell.label), justify="right", overflow="fold")
    found = [{score["name"]: score["value"] for score in row["scores"]} for row in rows]
    for name in names:
        table.add_row(escape(name), *(f"{100 * own[name]:.1f}" if name in own else "-" for own in found))
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
