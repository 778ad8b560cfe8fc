# SPDX-License-Identifier: Apache-2.0
"""Plots of an evaluation, written as PNG files and as SVG that takes its colours from the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ros_kvstream.evaluation.summary import AGES, CellSummary, Share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIB = 1 << 20
INK, FAINT, GRID, CAP = "#1d2430", "#5d6778", "#dde2ea", "#c8372d"
SERIES = {
    "infinipot_v": "#1463c8", "tar": "#0d8f83", "van": "#8a4fd0", "aks": "#bf5a00",
    "uniform": "#5f8a00", "sliding_window": "#a8327d", "recent": "#d19000", "full": "#6a7280",
}  # fmt: skip
"""Colour of each policy on a light page; report.html.jinja has the dark ones."""
MARKERS = dict(zip(SERIES, "osDv^PX*", strict=True))
SCREEN_SCALE = 1.45
"""Pixels on the page per point of a plot."""
MOST_PANELS = 4
MOST_BINS = 12
_STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9.0, "text.parse_math": False, "text.color": INK,
    "axes.labelcolor": FAINT, "axes.edgecolor": GRID, "axes.titlesize": 9.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.grid": True, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": GRID, "grid.linewidth": 0.7,
    "xtick.color": FAINT, "ytick.color": FAINT, "legend.frameon": False, "legend.fontsize": 8.5,
    "lines.linewidth": 1.8, "lines.markersize": 5.0, "figure.facecolor": "none", "axes.facecolor": "none",
    "savefig.facecolor": "none", "svg.fonttype": "none", "svg.hashsalt": "ros_kvstream",
}  # fmt: skip
Series = dict[tuple[str, float], list[CellSummary]]
"""Cells by (policy, archive), each with its budgets."""


def draw(summaries: Sequence[CellSummary], folder: Path) -> dict[str, str]:
    """Draw every plot that the results have data for; returns name -> SVG and writes name.png of each."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, str] = {}
    plots: dict[str, Callable[[Sequence[CellSummary]], Figure | None]] = {
        "accuracy": accuracy_by_budget, "age": accuracy_by_age, "recall": evidence_found,
        "latency": times_by_length, "memory": memory_over_time, "path": paths,
    }  # fmt: skip
    with matplotlib.rc_context(_STYLE):
        for name, plot in plots.items():
            figure = plot([summary for summary in summaries if summary.lines])
            if figure is not None:
                figure.savefig(folder / f"{name}.png", dpi=160, facecolor="white", bbox_inches="tight")
                text = io.StringIO()
                figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
                found[name] = themed(text.getvalue(), name)
    return found


def themed(svg: str, name: str) -> str:
    """Inline SVG with the colours of the page and unique ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(id="|#)(?=[A-Za-z][\w.-]*["\s)])', rf"\g<1>{name}-", svg)
    names = {INK: "ink", FAINT: "faint", GRID: "grid", CAP: "cap"} | {c: f"s-{p}" for p, c in SERIES.items()}
    for colour, variable in names.items():
        svg = svg.replace(colour, f"var(--{variable})")
    width = re.search(r'width="([\d.]+)pt" height="[\d.]+pt"', svg)
    if width:  # the same text size in all plots
        style = f'style="width: 100%; max-width: {SCREEN_SCALE * float(width[1]):.0f}px"'
        svg = svg.replace(width[0], style, 1)
    return re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", svg)


def _panels(count: int, width: float = 0.0, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width or max(3.4, 3.1 * count), height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _series(summaries: Sequence[CellSummary]) -> Series:
    found: Series = {}
    for summary in sorted(summaries, key=CellSummary.budget_bytes):
        found.setdefault((summary.cell.policy, summary.cell.archive_mib), []).append(summary)
    order = dict.fromkeys((summary.cell.policy, summary.cell.archive_mib) for summary in summaries)
    return {key: found[key] for key in order}


def _style(key: tuple[str, float], series: Series) -> dict[str, Any]:
    """Label, colour, marker and line of a series."""
    policy, archive = key
    archives = len({archive for _, archive in series}) > 1
    return {"label": policy + (f" + archive {archive:g} MiB" if archive else " alone") * archives,
            "color": SERIES[policy], "marker": MARKERS[policy], "linestyle": "--" if archive else "-",
            "markerfacecolor": "none" if archive else SERIES[policy]}  # fmt: skip


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend below all panels; the budget comes last."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = sorted(found, key=lambda label: label == "budget")
    if labels:
        handles = [found[label] for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))


def _plot_shares(axes: Axes, points: Sequence[tuple[float, Share]], style: dict[str, Any]) -> None:
    """Plot (x, share) with intervals on an axis of percentages."""
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if not points:
        return
    x = [point[0] for point in points]
    axes.plot(x, [found.value for _, found in points], **style)
    low, high = [found.low for _, found in points], [found.high for _, found in points]
    if len(points) > 1:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)
    else:
        axes.vlines(x, low, high, color=style["color"], alpha=0.5)


def _plot_by_budget(
    axes: Axes, summaries: Sequence[CellSummary], metric: Callable[[CellSummary], Share | None]
) -> None:
    """Plot a share of every series against bytes."""
    series = _series(summaries)
    for key, cells in series.items():
        points = [(cell.budget_bytes() / MIB, found) for cell in cells if (found := metric(cell))]
        _plot_shares(axes, points, _style(key, series))
    positive = sorted({round(value, 4) for cell in summaries if (value := cell.budget_bytes() / MIB) > 0})
    if positive and positive[-1] > 3 * positive[0]:
        axes.set_xscale("log", base=2)
    if 0 < len(positive) <= 6:
        axes.set_xticks(positive, [f"{value:.3g}" for value in positive])
        axes.minorticks_off()
    axes.set_xlabel("budget, MiB")


def accuracy_by_budget(summaries: Sequence[CellSummary]) -> Figure | None:
    """Accuracy against bytes: all questions, about now, about before."""
    titles = {"": "all questions", "now": "about now", "before": "about before"}
    kinds = [kind for kind in titles if any(summary.accuracy(kind) for summary in summaries)]
    if not kinds:
        return None
    figure, panels = _panels(len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        _plot_by_budget(axes, summaries, lambda cell, kind=kind: cell.accuracy(kind))  # type: ignore[misc]
        axes.set_title(titles[kind])
    panels[0].set_ylabel("right answers")
    _legend(figure, panels)
    return figure


def evidence_found(summaries: Sequence[CellSummary]) -> Figure | None:
    """Share of answers whose evidence was among the frames looked at, against bytes."""
    if not any(summary.recall() for summary in summaries):
        return None
    figure, (axes,) = _panels(1, 5.4, 3.0)
    _plot_by_budget(axes, summaries, CellSummary.recall)
    axes.set_ylabel("evidence looked at")
    _legend(figure, [axes])
    return figure


def _budget_panels(
    summaries: Sequence[CellSummary], plot: Callable[[Axes, CellSummary, dict[str, Any]], None], **labels: Any
) -> tuple[Figure, list[Axes]]:
    """Call ``plot`` for every cell on the panel of its budget: all budgets, or the ends and some between."""
    budgets = sorted({cell.cell.budget: cell.budget_bytes() for cell in summaries}.items(), key=lambda b: b[1])
    if len(budgets) > MOST_PANELS:
        budgets = [budgets[round(index * (len(budgets) - 1) / (MOST_PANELS - 1))] for index in range(MOST_PANELS)]
    figure, panels = _panels(len(budgets))
    series = _series(summaries)
    for axes, (budget, _) in zip(panels, budgets, strict=True):
        for key, cells in series.items():
            for cell in cells:
                if cell.cell.budget == budget:
                    plot(axes, cell, _style(key, series))
        axes.set(title=f"budget {budget}", **labels)
    return figure, panels


def accuracy_by_age(summaries: Sequence[CellSummary]) -> Figure | None:
    """Accuracy against the age of the evidence, one panel per budget."""
    ages = [low for low in AGES if any(low in summary.by_age() for summary in summaries)]
    if not ages:
        return None

    def plot(axes: Axes, cell: CellSummary, style: dict[str, Any]) -> None:
        _plot_shares(axes, [(float(ages.index(low)), found) for low, found in cell.by_age().items()], style)

    figure, panels = _budget_panels(summaries, plot, xlabel="age of the newest evidence, s")
    names = [f"{low:g} - {high:g}" if math.isfinite(high) else f"over {low:g}"
             for low, high in zip(AGES, (*AGES[1:], math.inf), strict=True) if low in ages]  # fmt: skip
    for axes in panels:
        axes.set_xticks(range(len(ages)), names, rotation=30, ha="right")
    panels[0].set_ylabel("right answers")
    _legend(figure, panels)
    return figure


def times_by_length(summaries: Sequence[CellSummary]) -> Figure | None:
    """Time to the first token, and of a frame, against the number of frames seen; all budgets of a policy together."""
    series = _series(summaries)
    figure, (first, ingest) = _panels(2, 8.4)
    for key, cells in series.items():
        answers = [(line["frames_before"], line["latency"]["first_token_ms"])
                   for cell in cells for line in cell.lines if line["latency"]]  # fmt: skip
        frames = [(point["frames"], point["ingest_ms"])
                  for cell in cells for run in cell.runs for point in run["trace"]]  # fmt: skip
        for axes, points in ((first, answers), (ingest, frames)):
            if points:
                axes.plot(*_binned(points), **_style(key, series))
    if not first.lines and not ingest.lines:
        return None
    first.set(title="time to the first token", ylabel="milliseconds (median)", xlabel="frames seen before", ylim=0)
    ingest.set(title="time of a frame", xlabel="frames seen before", ylim=0)
    _legend(figure, [first, ingest])
    return figure


def _binned(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Medians of y over at most MOST_BINS bins of x with about equal numbers of points; equal x share a bin."""
    x, y = np.array(points, np.float64).T
    edges = np.unique(np.quantile(x, np.linspace(0, 1, MOST_BINS + 1)))
    which = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, len(edges) - 2))
    used = [which == index for index in np.unique(which)]
    return [float(np.median(x[chosen])) for chosen in used], [float(np.median(y[chosen])) for chosen in used]


def memory_over_time(summaries: Sequence[CellSummary]) -> Figure | None:
    """Bytes in use over the longest stream, one panel per budget, with the budget as a line."""
    runs = [run for summary in summaries for run in summary.runs if run["status"] == "done" and run["trace"]]
    if not runs:
        return None
    episode = max(runs, key=lambda run: run["frames"])["episode"]

    def plot(axes: Axes, cell: CellSummary, style: dict[str, Any]) -> None:
        for run in cell.runs:
            if run["episode"] == episode and run["status"] == "done":
                _plot_memory(axes, run, style, cell.cell.archive_mib)

    figure, panels = _budget_panels(summaries, plot, xlabel="seconds of the stream", ylim=0)
    panels[0].set_ylabel("MiB in use")
    _legend(figure, panels)
    return figure


def _plot_memory(axes: Axes, run: Mapping[str, Any], style: dict[str, Any], archive_mib: float) -> None:
    """Plot one run's arena and archive together, and each distinct budget once as a dotted line."""
    seconds = [point["stamp"] - run["first_stamp"] for point in run["trace"]]
    used = [(point["used_bytes"] + point["archive_bytes"]) / MIB for point in run["trace"]]
    axes.plot(seconds, used, **{**style, "marker": "", "linewidth": 1.4})
    cap = run["budget_bytes"] / MIB + archive_mib
    drawn = [float(np.asarray(line.get_ydata())[0]) for line in axes.lines if line.get_color() == CAP]
    if not any(abs(value - cap) < 1e-3 for value in drawn):
        axes.axhline(cap, color=CAP, linewidth=1.2, linestyle=":", label="" if drawn else "budget")


def paths(summaries: Sequence[CellSummary]) -> Figure | None:
    """Path of the robot in the first streams with poses, and where the first evidence of every answer was taken."""
    runs = {run["episode"]: (run, summary)
            for summary in reversed(summaries) for run in summary.runs if run.get("path")}  # fmt: skip
    if not runs:
        return None
    chosen = list(runs.items())[:MOST_PANELS]
    figure, panels = _panels(len(chosen), max(4.2, 3.6 * len(chosen)), 4.0)
    for axes, (episode, (run, summary)) in zip(panels, chosen, strict=True):
        stamps, x, y = np.array(run["path"]).T
        axes.plot(x, y, color=GRID, linewidth=1.0, zorder=1)
        axes.scatter(x, y, c=stamps, s=4, cmap="viridis", zorder=2)
        for right, marker, colour in ((True, "o", INK), (False, "X", CAP)):
            places = [position for line in summary.lines if line["episode"] == episode and line["correct"] is right
                      if (position := _first_position(line)) is not None]  # fmt: skip
            if places:
                label = "evidence of right answers" if right else "evidence of wrong answers"
                at = np.array(places)
                axes.scatter(at[:, 0], at[:, 1], marker=marker, s=46, facecolors="none" if right else colour,
                             edgecolors=colour, linewidths=1.2, zorder=3, label=label)  # fmt: skip
        axes.set(title=episode, xlabel="x, m", ylabel="y, m")
        axes.set_aspect("equal", adjustable="datalim")
    _legend(figure, panels)
    return figure


def _first_position(line: Mapping[str, Any]) -> list[float] | None:
    """Position of the first frame of the evidence that has one."""
    return next((frame["position"] for frame in line["evidence"] if frame.get("position")), None)
