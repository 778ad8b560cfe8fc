"""Plots of an evaluation: drawn once, written as PNG files and as SVG that takes its colours from the page."""

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
"""Colour of each policy on a light page; report.html.jinja has those on a dark one."""
MARKERS = dict(zip(SERIES, "osDv^PX*", strict=True))
SCREEN_SCALE = 1.45
"""Pixels of the page for a point of a plot."""
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
    """Draw every plot that the results have something for; returns name -> SVG.

    :param folder: gets name.png of each.
    """
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, str] = {}
    plots: dict[str, Callable[[Sequence[CellSummary]], Figure | None]] = {
        "accuracy": accuracy_by_budget, "age": accuracy_by_age, "recall": evidence_found,
        "latency": times_by_length, "memory": memory_over_time,
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
    """Inline SVG whose colours are those of the page, and whose ids are its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(id="|#)(?=[A-Za-z][\w.-]*["\s)])', rf"\g<1>{name}-", svg)
    names = {INK: "ink", FAINT: "faint", GRID: "grid", CAP: "cap"} | {c: f"s-{p}" for p, c in SERIES.items()}
    for colour, variable in names.items():
        svg = svg.replace(colour, f"var(--{variable})")
    width = re.search(r'width="([\d.]+)pt" height="[\d.]+pt"', svg)
    if width:  # text is of one size in all plots
        style = f'style="width: 100%; max-width: {SCREEN_SCALE * float(width[1]):.0f}px"'
        svg = svg.replace(width[0], style, 1)
    return re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", svg)


def _panels(count: int, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(3.4, 3.1 * count), height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    return figure, list(axes)


def _series(summaries: Sequence[CellSummary]) -> Series:
    found: Series = {}
    for summary in summaries:
        found.setdefault((summary.cell.policy, summary.cell.archive_mib), []).append(summary)
    for cells in found.values():
        cells.sort(key=CellSummary.budget_bytes)
    return found


def _label(key: tuple[str, float], series: Series) -> str:
    archives = len({archive for _, archive in series}) > 1
    policy, archive = key
    return policy + (f" + archive {archive:g} MiB" if archive else " alone") * archives


def _style(key: tuple[str, float]) -> dict[str, Any]:
    policy, archive = key
    return {"color": SERIES[policy], "marker": MARKERS[policy], "linestyle": "--" if archive else "-",
            "markerfacecolor": "none" if archive else SERIES[policy]}  # fmt: skip


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend below all panels; the cap comes last."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    labels = sorted(found, key=lambda label: label == "cap")
    if labels:
        handles = [found[label] for label in labels]
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))


def accuracy_by_budget(summaries: Sequence[CellSummary]) -> Figure | None:
    """Share of right answers against bytes: all, about now, about before."""
    series = _series(summaries)
    kinds = [kind for kind in ("", "now", "before") if any(summary.accuracy(kind) for summary in summaries)]
    if not kinds:
        return None
    figure, panels = _panels(len(kinds))
    titles = {"": "all questions", "now": "about now", "before": "about before"}
    for axes, kind in zip(panels, kinds, strict=True):
        for key, cells in series.items():
            points = [(cell.budget_bytes() / MIB, found) for cell in cells if (found := cell.accuracy(kind))]
            _with_interval(axes, points, _label(key, series), _style(key))
        _byte_axis(axes, [summary.budget_bytes() / MIB for summary in summaries])
        axes.set(title=titles[kind], ylim=(-0.03, 1.03))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    panels[0].set_ylabel("right answers")
    _legend(figure, panels)
    return figure


def _with_interval(axes: Axes, points: Sequence[tuple[float, Share]], label: str, style: dict[str, Any]) -> None:
    if not points:
        return
    x = [point[0] for point in points]
    axes.plot(x, [found.value for _, found in points], label=label, **style)
    low, high = [found.low for _, found in points], [found.high for _, found in points]
    if len(points) > 1:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)
    else:
        axes.vlines(x, low, high, color=style["color"], alpha=0.5)


def _byte_axis(axes: Axes, values: Sequence[float]) -> None:
    positive = sorted({round(value, 4) for value in values if value > 0})
    if positive and positive[-1] > 3 * positive[0]:
        axes.set_xscale("log", base=2)
    if 0 < len(positive) <= 6:
        axes.set_xticks(positive, [f"{value:.3g}" for value in positive])
        axes.minorticks_off()
    axes.set_xlabel("budget, MiB")


def accuracy_by_age(summaries: Sequence[CellSummary]) -> Figure | None:
    """Share of right answers against the age of the evidence, a panel a budget."""
    budgets = _budgets(summaries)
    ages = [low for low in AGES if any(low in summary.by_age() for summary in summaries)]
    if not ages:
        return None
    figure, panels = _panels(len(budgets))
    series = _series(summaries)
    for axes, budget in zip(panels, budgets, strict=True):
        for key, cells in series.items():
            for cell in cells:
                if cell.cell.budget == budget:
                    points = [(float(ages.index(low)), found) for low, found in cell.by_age().items()]
                    _with_interval(axes, points, _label(key, series), _style(key))
        names = [f"{low:g} - {high:g}" if math.isfinite(high) else f"over {low:g}"
                 for low, high in zip(AGES, (*AGES[1:], math.inf), strict=True) if low in ages]  # fmt: skip
        axes.set_xticks(range(len(ages)), names, rotation=30, ha="right")
        axes.set(title=f"budget {budget}", ylim=(-0.03, 1.03), xlabel="age of the newest evidence, s")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    panels[0].set_ylabel("right answers")
    _legend(figure, panels)
    return figure


def _budgets(summaries: Sequence[CellSummary]) -> list[str]:
    """Budgets that get a panel, from small to large: all of them, or the ends and some between."""
    found = sorted({summary.cell.budget: summary.budget_bytes() for summary in summaries}.items(), key=lambda b: b[1])
    if len(found) > MOST_PANELS:
        found = [found[round(index * (len(found) - 1) / (MOST_PANELS - 1))] for index in range(MOST_PANELS)]
    return [budget for budget, _ in found]


def evidence_found(summaries: Sequence[CellSummary]) -> Figure | None:
    """How often the evidence was among the frames looked at, against bytes."""
    series = _series(summaries)
    points = {key: [(cell.budget_bytes() / MIB, found) for cell in cells if (found := cell.recall())]
              for key, cells in series.items()}  # fmt: skip
    if not any(points.values()):
        return None
    figure, (axes,) = _panels(1, 3.0)
    figure.set_figwidth(5.4)
    for key, own in points.items():
        _with_interval(axes, own, _label(key, series), _style(key))
    _byte_axis(axes, [summary.budget_bytes() / MIB for summary in summaries])
    axes.set(ylim=(-0.03, 1.03), ylabel="evidence looked at")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    _legend(figure, [axes])
    return figure


def times_by_length(summaries: Sequence[CellSummary]) -> Figure | None:
    """Time to the first token, and of a frame, against the number of frames seen; all budgets of a policy together."""
    series = _series(summaries)
    figure, (first, ingest) = _panels(2)
    figure.set_figwidth(8.4)
    for key, cells in series.items():
        style = _style(key)
        answers = [(line["frames_before"], line["latency"]["first_token_ms"])
                   for cell in cells for line in cell.lines if line["latency"]]  # fmt: skip
        frames = [(point["frames"], point["ingest_ms"])
                  for cell in cells for run in cell.runs for point in run["trace"]]  # fmt: skip
        for axes, points in ((first, answers), (ingest, frames)):
            if points:
                axes.plot(*_binned(points), label=_label(key, series), **style)
    if not first.lines and not ingest.lines:
        return None
    first.set(title="time to the first token", ylabel="milliseconds (median)", xlabel="frames seen before", ylim=0)
    ingest.set(title="time of a frame", xlabel="frames seen before", ylim=0)
    _legend(figure, [first, ingest])
    return figure


def _binned(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Medians of y over at most so many bins of x with about equal numbers of points; equal x are in one bin."""
    x, y = np.array(points, np.float64).T
    edges = np.unique(np.quantile(x, np.linspace(0, 1, MOST_BINS + 1)))
    which = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, max(0, len(edges) - 2))
    used = [which == index for index in np.unique(which)]
    return [float(np.median(x[chosen])) for chosen in used], [float(np.median(y[chosen])) for chosen in used]


def memory_over_time(summaries: Sequence[CellSummary]) -> Figure | None:
    """Bytes in use over the longest stream, a panel a budget, with the cap drawn in."""
    runs = [run for summary in summaries for run in summary.runs if run["status"] == "done" and run["trace"]]
    if not runs:
        return None
    episode = max(runs, key=lambda run: run["frames"])["episode"]
    budgets, series = _budgets(summaries), _series(summaries)
    figure, panels = _panels(len(budgets))
    for axes, budget in zip(panels, budgets, strict=True):
        for key, cells in series.items():
            for cell in cells:
                for run in cell.runs:
                    if cell.cell.budget == budget and run["episode"] == episode and run["status"] == "done":
                        _memory(axes, run, _label(key, series), _style(key), cell.cell.archive_mib)
        axes.set(title=f"budget {budget}", xlabel="seconds of the stream", ylim=0)
    panels[0].set_ylabel("MiB in use")
    _legend(figure, panels)
    return figure


def _memory(axes: Axes, run: Mapping[str, Any], label: str, style: dict[str, Any], archive_mib: float) -> None:
    """One run's arena and archive together; both caps as red lines, once each."""
    seconds = [point["stamp"] - run["first_stamp"] for point in run["trace"]]
    used = [(point["used_bytes"] + point["archive_bytes"]) / MIB for point in run["trace"]]
    axes.plot(seconds, used, label=label, **{**style, "marker": "", "linewidth": 1.4})
    cap = run["budget_bytes"] / MIB + archive_mib
    drawn = [float(np.asarray(line.get_ydata())[0]) for line in axes.lines if line.get_color() == CAP]
    if not any(abs(value - cap) < 1e-3 for value in drawn):
        axes.axhline(cap, color=CAP, linewidth=1.2, linestyle=":", label="" if drawn else "cap")
