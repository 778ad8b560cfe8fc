# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark model`: accuracy of the tiny model with a full cache, by question kind, stream length and age.

Every answer comes from a VideoMemory with policy ``full``, as on a robot, on seeds that training never saw.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import figures_table
from benchmarks.accuracy import (
    TEXT_TOKENS,
    Stream,
    accuracy,
    by_when,
    load,
    mixed_streams,
    model_folder,
    observe_and_ask,
)
from ros_kvstream.evaluation.summary import AGES, Line, age
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.questions import KINDS
from ros_kvstream.settings import GateSettings, MemorySettings, StreamSettings

HELD_OUT = 20256
MIB_PER_FRAME = 0.02


def full_cache(model: VideoLanguageModel, stream: Stream) -> list[Line]:
    """Answers of a memory that neither drops, prunes nor evicts anything."""
    frames = len(stream.frames)
    memory = MemorySettings(
        policy="full", budget_mib=8 + MIB_PER_FRAME * frames, block_frames=min(32, frames), **TEXT_TOKENS
    )
    return observe_and_ask(model, StreamSettings(memory=memory, gate=GateSettings(mode="off")), stream)


def longest_training_length(folder: Path) -> int:
    """Frames of the longest streams that the model in ``folder`` was trained on."""
    return int(json.loads((folder / "training.json").read_text())["longest_frames"])


def measure(
    model: VideoLanguageModel, plan: dict[int, int], questions: int, report: Callable[[str], None]
) -> list[Line]:
    """Ask ``questions`` questions about each of ``plan[frames]`` streams of every length."""
    lines: list[Line] = []
    for frames, count in plan.items():
        fresh: list[Line] = []
        for stream in mixed_streams(model, frames, count, questions, HELD_OUT):
            fresh += full_cache(model, stream)
        report(f"{frames} frames, {count} streams, {len(fresh)} questions: {accuracy(fresh):.3f} right")
        lines += fresh
    return lines


def summarise(lines: Sequence[Line], longest: int) -> dict[str, Any]:
    """Figures of ``--json``: kinds and ages within training lengths, and accuracy by length.

    ``chance`` of a kind is the share of its most frequent answer: the accuracy of a constant answer.
    """
    within = [line for line in lines if line["frames"] <= longest]
    kinds = {}
    for kind in KINDS:
        asked = [line for line in within if line["task"] == kind]
        if asked:
            most = Counter(line["expected"] for line in asked).most_common(1)[0][1]
            kinds[kind] = {"accuracy": accuracy(asked), "chance": most / len(asked), "n": len(asked)}
    ages = {
        f"{low:g}": [line for line in within if (seconds := age(line)) is not None and low <= seconds < high]
        for low, high in zip(AGES, (*AGES[1:], float("inf")), strict=True)
    }
    return {
        "longest_training_length": longest,
        "kinds": kinds,
        "by_length": {
            str(frames): accuracy([line for line in lines if line["frames"] == frames])
            for frames in sorted({line["frames"] for line in lines})
        },
        "by_age": {low: accuracy(aged) for low, aged in ages.items() if aged},
        "by_when": by_when(within),
    }


def default_plan(longest: int) -> dict[int, int]:
    """Streams per length: within training lengths, then 2, 4 and 16 times the longest."""
    within = {frames: max(6, min(20, 2400 // frames)) for frames in (8, 24, 48, 96, 192, 384) if frames <= longest}
    return {**within, 2 * longest: max(4, 1600 // longest), 4 * longest: max(2, 500 // longest), 16 * longest: 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder written by the training")
    parser.add_argument("--questions", type=int, default=33, help="questions about each stream")
    parser.add_argument("--quick", action="store_true", help="a tenth of the streams, none beyond twice the longest")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the object of ``--json``."""
    longest = longest_training_length(model_folder(options.model))
    plan = default_plan(longest)
    if options.quick:
        plan = {frames: max(1, count // 10) for frames, count in plan.items() if frames <= 2 * longest}
    return summarise(measure(load(options.model), plan, options.questions, console.print), longest)


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    console.print(figures_table(
        f"full cache, streams of up to {report['longest_training_length']} frames",
        ("kind", "accuracy", "chance", "questions"),
        ((kind, f"{row['accuracy']:.3f}", f"{row['chance']:.2f}", str(row["n"]))
         for kind, row in report["kinds"].items()),
    ))  # fmt: skip
    for title, first, part in (("by stream length", "frames", report["by_length"]),
                               ("by age of the newest evidence", "seconds from", report["by_age"])):  # fmt: skip
        rows = ((name, f"{value:.3f}") for name, value in part.items())
        console.print(figures_table(title, (first, "accuracy"), rows))
