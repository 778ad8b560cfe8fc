# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark calibration`: how well the confidence of an answer tells right answers from wrong ones.

The same held-out streams are asked about in memories that hold more or less of them, so that there are wrong answers:
with the archive, with an arena alone, with an arena that is far too small, and with the newest frames alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import figures_table
from benchmarks.accuracy import TEXT_TOKENS, ask_all, budget_for_slots, load, mixed_streams, observe_all
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.records import Verdict
from ros_kvstream.settings import ArchiveSettings, GateSettings, MemorySettings, RetrievalSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

HELD_OUT = 20271
"""Seed of the streams; nothing is tuned on them."""
ARCHIVE_RATIO = 2.0
BINS = 10
KEPT_SHARE = 0.95
"""Share of the right answers that stays above the threshold."""
MEMORIES = {
    "archive": ("infinipot_v", 20, True), "arena": ("infinipot_v", 20, False),
    "small arena": ("infinipot_v", 4, False), "newest": ("recent", 20, False),
}  # fmt: skip
"""Memory -> its policy, the frames that fit into its arena, and whether it has an archive."""
COLOURS = ("#1463c8", "#0d8f83", "#bf5a00", "#a8327d", "#1d2430")


@dataclass(frozen=True)
class Calibration:
    """Figures of the answers of one memory."""

    n: int
    right: float
    """Share of right answers."""
    error: float
    """Expected calibration error: mean distance of confidence and share of right answers over BINS bins of equal width,
    weighted by the number of answers (Guo et al., 2017)."""
    threshold: float
    """Confidence that KEPT_SHARE of the right answers have at least."""
    not_seen: float
    """Share of the wrong answers whose words say that nothing was seen; 0 without any."""
    flagged: float
    """Share of the wrong answers whose words say so, or that are below the threshold."""
    bins: tuple[tuple[float, float, int], ...]
    """Mean confidence, share of right answers and number of answers of each bin that has any."""


def calibration(lines: Sequence[Line]) -> Calibration:
    """Figures of result lines with ``confidence``, ``correct`` and ``verdict``; at least one."""
    sure = np.array([line["confidence"] for line in lines])
    right = np.array([line["correct"] for line in lines], dtype=bool)
    said = np.array([line["verdict"] == Verdict.NOT_SEEN.value for line in lines], dtype=bool)
    number = np.minimum((sure * BINS).astype(int), BINS - 1)
    bins = tuple(
        (float(sure[number == b].mean()), float(right[number == b].mean()), int((number == b).sum()))
        for b in np.unique(number)
    )
    error = sum(n * abs(confidence - share) for confidence, share, n in bins) / len(lines)
    threshold = float(np.quantile(sure[right], 1 - KEPT_SHARE, method="lower")) if right.any() else 0.0
    wrong, weak = ~right, sure < threshold
    shares = (_share(said[wrong]), _share((said | weak)[wrong]))
    return Calibration(len(lines), float(right.mean()), error, threshold, *shares, bins)


def _share(found: NDArray[np.bool_]) -> float:
    return float(found.mean()) if found.size else 0.0


def memory_of(model: VideoLanguageModel, name: str, tokens: int) -> VideoMemory:
    """One of MEMORIES, for frames of ``tokens`` visual tokens."""
    policy, frames, with_archive = MEMORIES[name]
    archive = ArchiveSettings(budget_mib=1.0, precision="int8", frame_patches=tokens)
    retrieval = RetrievalSettings(external="tiny")
    text = sum(TEXT_TOKENS.values()) + (retrieval.slots(tokens, archive) if with_archive else 0)
    budget = budget_for_slots(model, frames * tokens, text)
    archive = ArchiveSettings(
        budget_mib=ARCHIVE_RATIO * budget if with_archive else 0.0, precision="int8", frame_patches=tokens
    )
    memory = MemorySettings(budget_mib=budget, policy=policy, **TEXT_TOKENS)
    settings = StreamSettings(memory=memory, archive=archive, retrieval=retrieval, gate=GateSettings(mode="off"))
    return VideoMemory(settings, model)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder")
    parser.add_argument("--frames", type=int, default=400, help="frames of every stream")
    parser.add_argument("--streams", type=int, default=12, help="number of streams")
    parser.add_argument("--questions", type=int, default=46, help="questions about each stream")
    parser.add_argument("--picture", type=Path, help="write the reliability picture to this PNG file")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the object of ``--json``."""
    model = load(options.model)
    lines: dict[str, list[Line]] = {name: [] for name in MEMORIES}
    for stream in mixed_streams(model, options.frames, options.streams, options.questions, HELD_OUT):
        rows, columns = model.grid(*stream.frames[0].picture.shape[:2])
        for name in MEMORIES:
            memory = memory_of(model, name, rows * columns)
            observe_all(memory, stream)
            lines[name] += ask_all(memory, stream)
            memory.close()
        console.print(f"{stream.name}: asked {len(stream.questions)} questions in each memory")
    figures = {name: calibration(part) for name, part in {**lines, "all": sum(lines.values(), [])}.items()}
    if options.picture is not None:
        draw(figures, options.picture)
    return {"frames": options.frames, "streams": options.streams, **{n: asdict(f) for n, f in figures.items()}}


def draw(figures: dict[str, Calibration], path: Path) -> None:
    """Write the reliability picture: share of right answers over confidence, point size by number of answers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#dde2ea", label="calibrated")
    for (name, found), colour in zip(figures.items(), COLOURS, strict=True):
        confidence, right, counts = (np.array(values) for values in zip(*found.bins, strict=True))
        axes.plot(confidence, right, color=colour, label=f"{name}, error {found.error:.3f}")
        axes.scatter(confidence, right, s=6 + 90 * np.sqrt(counts / found.n), color=colour)
    axes.set(xlabel="confidence", ylabel="share of right answers", xlim=(0, 1.02), ylim=(-0.02, 1.02))
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures as a table."""
    columns = ("memory", "answers", "right", "error", "threshold", "wrong: not seen", "wrong: flagged")
    keys = ("right", "error", "threshold", "not_seen", "flagged")
    rows = [
        (name, str(found["n"]), *(f"{found[key]:.3f}" for key in keys))
        for name, found in report.items() if isinstance(found, dict)
    ]  # fmt: skip
    title = f"Confidence of answers, {report['streams']} streams of {report['frames']} frames"
    console.print(figures_table(title, columns, rows))
    console.print(f"Threshold: {KEPT_SHARE:.0%} of the right answers are at least as sure (query.min_confidence).")
