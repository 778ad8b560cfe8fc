# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark range`: accuracy by the span of positions, and the range of positions that a model reads well.

The same streams are spread over more and more positions, in a full cache: only the distances between frames change. The
limit is what ``memory.position_limit: auto`` takes once ``--write`` has stored it in the model's folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from benchmarks import figures_table
from benchmarks.accuracy import (
    QUESTION_POSITIONS,
    TEXT_TOKENS,
    Stream,
    accuracy,
    ask_all,
    budget_for_slots,
    load,
    make_stream,
    model_folder,
    observe_all,
)
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.checkpoint import RANGE_FILE
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.settings import GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

TUNING = 20263
"""Seed of the streams; no figure is reported on them elsewhere."""
FRAMES, RATE_HZ = 96, 2.0
RATIO = 2**0.5
"""Ratio of two spans, one after the other."""
TOLERANCE = 0.01
"""Accuracy that a span inside the range may lose against the best of the shorter ones."""


def largest_span(model: VideoLanguageModel) -> int:
    """Positions of the longest stream after which prompt and question still have positions."""
    return model.position_limit - len(model.prefix_ids) - QUESTION_POSITIONS


def full_cache_lines(model: VideoLanguageModel, stream: Stream, span: int) -> list[Line]:
    """Result lines of a full cache of a stream whose frames are spread evenly over ``span`` positions."""
    rows, columns = model.grid(*stream.frames[0].picture.shape[:2])
    slots = len(stream.frames) * model.frame_tokens(rows, columns)
    settings = MemorySettings(
        policy="full", budget_mib=budget_for_slots(model, slots, sum(TEXT_TOKENS.values())),
        position_limit=model.position_limit, **TEXT_TOKENS,
    )  # fmt: skip
    memory = VideoMemory(StreamSettings(memory=settings, gate=GateSettings(mode="off")), model)
    if model.tokens_per_second:
        seconds = span / model.tokens_per_second / (len(stream.frames) - 1)
        stretched = [replace(frame, stamp=index * seconds) for index, frame in enumerate(stream.frames)]
        observe_all(memory, replace(stream, frames=stretched))
    else:
        first = memory.positions.newest
        for index, frame in enumerate(stream.frames):
            memory.positions.newest = max(memory.positions.newest, first + round(index * span / len(stream.frames)))
            memory.observe(frame.picture, frame.stamp)
    lines = ask_all(memory, stream)
    memory.close()
    return lines


def limit_of(by_span: Mapping[int, float]) -> int:
    """The largest span up to which no accuracy is more than TOLERANCE below the best of the shorter spans."""
    best, found = 0.0, min(by_span)
    for span, value in sorted(by_span.items()):
        if value < best - TOLERANCE:
            break
        best, found = max(best, value), span
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder")
    parser.add_argument("--streams", type=int, default=8, help="streams of every span")
    parser.add_argument("--questions", type=int, default=33, help="questions about each stream")
    parser.add_argument("--write", action="store_true", help=f"store the limit in the model's folder ({RANGE_FILE})")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the object of ``--json``."""
    model = load(options.model)
    worlds = [PatrolWorld(PatrolSettings(seed=TUNING * 1000 + number, frames=FRAMES, rate_hz=RATE_HZ))
              for number in range(options.streams)]  # fmt: skip
    streams = [make_stream(world, options.questions) for world in worlds]
    report = measure(model, streams, console)
    if options.write:
        (model_folder(options.model) / RANGE_FILE).write_text(json.dumps({"position_limit": report["limit"]}) + "\n")
    return report


def measure(model: VideoLanguageModel, streams: Sequence[Stream], console: Console) -> dict[str, Any]:
    """Accuracy of every span, until less than half of the best is left."""
    rows, columns = model.grid(*streams[0].frames[0].picture.shape[:2])
    frames = max(len(stream.frames) for stream in streams)
    smallest = frames * (model.layout.span(rows, columns) + model.frame_text_tokens)
    per_second = model.tokens_per_second or smallest * RATE_HZ / frames
    by_span: dict[int, float] = {}
    span: float = smallest
    while not by_span or (span < largest_span(model) and by_span[max(by_span)] > max(by_span.values()) / 2):
        lines = [line for stream in streams for line in full_cache_lines(model, stream, round(span))]
        by_span[round(span)] = accuracy(lines)
        console.print(f"{round(span)} positions, {span / per_second:.0f} s: {by_span[round(span)]:.3f} right")
        span *= RATIO
    return {
        "limit": limit_of(by_span) + len(model.prefix_ids),
        "by_span": {f"{span / per_second:g}": value for span, value in by_span.items()},
        "questions": len(streams) * len(streams[0].questions),
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures as a table."""
    console.print(figures_table(
        f"Accuracy by span, {report['questions']} questions each", ("seconds", "accuracy"),
        ((f"{float(seconds):.0f}", f"{value:.3f}") for seconds, value in report["by_span"].items()),
    ))  # fmt: skip
    console.print(f"Frames are read well at positions below {report['limit']}: position_limit in {RANGE_FILE}.")
