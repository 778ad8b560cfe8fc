# SPDX-License-Identifier: Apache-2.0
"""Metrics of results: accuracy with bootstrap intervals by kind, age and task; recall, times and bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ros_kvstream.evaluation.grid import Cell, read_cell

AGES = (0.0, 5.0, 15.0, 60.0, 240.0, 960.0)
"""Lower edges of the age classes, seconds from the newest evidence to the question."""
RESAMPLES = 2000
CLUSTERS = 8
"""Number of streams from which on whole streams are resampled: questions about one stream are not independent."""
NEARBY_SECONDS = 0.5
"""A frame this close to a stamp of the evidence shows it."""
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Share:
    """A share of right answers, or a difference of two, with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int
    """Number of questions."""

    def data(self) -> dict[str, float]:
        """Plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} %"


def share(lines: Iterable[Line], right: Callable[[Line], bool | None] | None = None) -> Share | None:
    """Share of right answers with its interval; None where nothing was judged.

    :param right: whether a line counts as right, None leaves it out; by default ``correct`` of the line.
    """
    judged = [(str(line["episode"]), float(value)) for line in lines
              if (value := line["correct"] if right is None else right(line)) is not None]  # fmt: skip
    return _mean(judged, 0)


def paired_difference(first: Sequence[Line], second: Sequence[Line], kind: str = "") -> Share | None:
    """Accuracy of ``first`` minus that of ``second`` on the questions that both were asked, with its interval.

    The interval is of the differences by question, which is narrower than those of the two accuracies.
    """
    others = {(line["episode"], line["question"]): line["correct"] for line in second}
    pairs = [
        (str(line["episode"]), float(line["correct"]) - float(others[key]))
        for line in first
        if (key := (line["episode"], line["question"])) in others
        and line["correct"] is not None and others[key] is not None and kind in ("", line["kind"])
    ]  # fmt: skip
    return _mean(pairs, 1)


def _mean(values: Sequence[tuple[str, float]], seed: int) -> Share | None:
    """Mean of (stream, value) with a 95 % percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13)."""
    if not values:
        return None
    groups: dict[str, list[float]] = {name: [] for name in sorted({name for name, _ in values})}
    for name, value in values:
        groups[name].append(value)
    parts = list(groups.values()) if len(groups) >= CLUSTERS else [[value] for _, value in values]
    sums, counts = np.array([sum(part) for part in parts]), np.array([len(part) for part in parts], np.float64)
    random = np.random.default_rng([2026, seed])
    chosen = random.integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile(sums[chosen].sum(1) / counts[chosen].sum(1), (2.5, 97.5))
    return Share(float(sums.sum() / counts.sum()), float(low), float(high), len(values))


def age(line: Line) -> float | None:
    """Seconds from the newest evidence to the question; None without evidence or where it was not asked."""
    if not line["true_evidence"] or line["asked_at"] is None:
        return None
    return max(0.0, float(line["asked_at"]) - max(line["true_evidence"]))


def found_evidence(line: Line) -> bool | None:
    """Whether a frame that the answer looked at shows true evidence; None where either is unknown."""
    if not line["true_evidence"] or line["answer"] is None:
        return None
    return any(
        frame["stamp"] - NEARBY_SECONDS <= stamp <= frame["stamp_end"] + NEARBY_SECONDS
        for frame in line["evidence"]
        for stamp in line["true_evidence"]
    )


@dataclass(frozen=True)
class CellSummary:
    """Results of one cell."""

    cell: Cell
    lines: tuple[Line, ...]
    runs: tuple[Mapping[str, Any], ...]

    @property
    def refused(self) -> tuple[str, ...]:
        """Reasons of the runs that were refused."""
        return tuple(run["reason"] for run in self.runs if run["status"] == "refused")

    def accuracy(self, kind: str = "") -> Share | None:
        """Share of right answers, of one kind or of all."""
        return share(line for line in self.lines if not kind or line["kind"] == kind)

    def recall(self) -> Share | None:
        """Share of the questions about before whose evidence is among the frames looked at."""
        return share((line for line in self.lines if line["kind"] == "before"), found_evidence)

    def by_age(self) -> dict[float, Share]:
        """Accuracy by age class, named by its lower edge."""
        found = {}
        for low, high in zip(AGES, (*AGES[1:], float("inf")), strict=True):
            part = share(line for line in self.lines if (a := age(line)) is not None and low <= a < high)
            if part is not None:
                found[low] = part
        return found

    def median(self, name: str) -> float | None:
        """Median of a part of the latency over the answers, milliseconds."""
        values = [line["latency"][name] for line in self.lines if line["latency"]]
        return float(np.median(values)) if values else None

    def ingest_ms(self) -> float | None:
        """Mean milliseconds of a frame over all runs."""
        total, frames = 0.0, 0
        for run in self.runs:
            before = 0
            for point in run["trace"]:
                total += point["ingest_ms"] * (point["frames"] - before)
                before = point["frames"]
            frames += before
        return total / frames if frames else None

    def most(self, name: str) -> int:
        """Largest value of a memory figure over all runs, such as ``peak_bytes``."""
        return int(max((run["memory"][name] for run in self.runs if "memory" in run), default=0))

    def budget_bytes(self) -> float:
        """Mean budget over the runs: a budget given as a share differs between streams."""
        return float(np.mean([run["budget_bytes"] for run in self.runs if "budget_bytes" in run] or [0.0]))

    def data(self) -> dict[str, Any]:
        """Plain data."""
        parts = {"accuracy": self.accuracy(), "now": self.accuracy("now"), "before": self.accuracy("before"),
                 "recall": self.recall()}  # fmt: skip
        return {
            **{name: part.data() if part else None for name, part in parts.items()},
            "cell": self.cell.data(),
            "by_age": {f"{low:g}": part.data() for low, part in self.by_age().items()},
            "first_token_ms": self.median("first_token_ms"),
            "answer_ms": self.median("total_ms"),
            "ingest_ms": self.ingest_ms(),
            "budget_bytes": self.budget_bytes(),
            "peak_bytes": self.most("peak_bytes"),
            "archive_bytes": self.most("archive_bytes"),
            "runs": len(self.runs),
            "refused": list(self.refused),
            "errors": sum(bool(line["error"]) for line in self.lines),
        }


def summarise(runs: Sequence[Mapping[str, Any]], lines: Sequence[Line]) -> list[CellSummary]:
    """Return one summary per cell, in the order in which the cells first appear among the runs."""
    cells: dict[Cell, list[Mapping[str, Any]]] = {}
    for run in runs:
        cells.setdefault(read_cell(run["cell"]), []).append(run)
    return [
        CellSummary(cell, tuple(line for line in lines if line["run"] in {run["run"] for run in own}), tuple(own))
        for cell, own in cells.items()
    ]
