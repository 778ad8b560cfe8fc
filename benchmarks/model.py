"""`kvstream benchmark model`: what the tiny model knows with a full cache, by kind, stream length and age.

Every answer comes from a VideoMemory with policy ``full``, as a robot would get it, on seeds that training never saw.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ros_kvstream.patrol.mix import mixed_stream, trained_seconds
from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.questions import KINDS, Question
from ros_kvstream.settings import GateSettings, MemorySettings, ModelSettings, SaliencySettings, StreamSettings

if TYPE_CHECKING:
    from ros_kvstream.models.base import VideoLanguageModel

AGES = (0, 5, 15, 60, 240, 960)
"""Lower edges of the age classes, seconds between the newest evidence and the question."""
_HELD_OUT = 20256
_MIB_PER_FRAME = 0.02


@dataclass(frozen=True)
class Outcome:
    """One question of the benchmark and what the model said."""

    question: Question
    answer: str
    frames: int
    """Length of the stream."""
    age: float | None
    """Seconds since the newest evidence; None where there is none."""

    @property
    def right(self) -> bool:
        """Whether the answer is the expected one, word for word."""
        return self.answer.strip() == self.question.answer


def held_out_streams(frames: int, count: int, longest_seconds: float, objects: int = 8) -> Iterable[PatrolWorld]:
    """Streams of the training mix on seeds of their own."""
    random = np.random.default_rng([_HELD_OUT, frames])
    for _ in range(count):
        yield mixed_stream(frames, objects, longest_seconds, random)


def ask_all(model: VideoLanguageModel, world: PatrolWorld, questions: Sequence[Question]) -> list[Outcome]:
    """Show the whole stream to a VideoMemory that neither gates, prunes nor forgets anything, then ask."""
    from ros_kvstream.stream.memory import VideoMemory

    memory = VideoMemory(
        StreamSettings(
            memory=MemorySettings(
                policy="full", budget_mib=8 + _MIB_PER_FRAME * len(world), block_frames=min(32, len(world)),
                max_question_tokens=32, max_answer_tokens=8,
            ),
            gate=GateSettings(mode="off"), saliency=SaliencySettings(mode="off"),
        ),
        model,
    )  # fmt: skip
    for frame in world:
        memory.observe(frame.picture, frame.stamp)
    outcomes = []
    now = world.stamp(len(world) - 1)
    for question in questions:
        age = now - question.evidence[-1] if question.evidence else None
        outcomes.append(Outcome(question, memory.ask(question.text).text, len(world), age))
    memory.close()
    return outcomes


def longest_training_length(folder: Path) -> int:
    """Frames of the longest streams that the model in ``folder`` was trained on."""
    return int(json.loads((folder / "training.json").read_text())["longest_frames"])


def measure(
    model: VideoLanguageModel, plan: dict[int, int], questions: int, report: Callable[[str], None]
) -> list[Outcome]:
    """Ask ``questions`` questions about each of ``plan[frames]`` streams of every length."""
    seconds = trained_seconds(model)
    outcomes: list[Outcome] = []
    for frames, count in plan.items():
        fresh: list[Outcome] = []
        for world in held_out_streams(frames, count, seconds):
            fresh += ask_all(model, world, world.questions(questions))
        report(f"{frames} frames, {count} streams, {len(fresh)} questions: {_accuracy(fresh):.3f} right")
        outcomes += fresh
    return outcomes


def _accuracy(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.right for outcome in outcomes) / max(1, len(outcomes))


def summarise(outcomes: Sequence[Outcome], longest: int) -> dict[str, Any]:
    """Figures in the published form: kinds within training lengths, accuracy by length and by age of the evidence.

    ``chance`` of a kind is the share of its most frequent answer: what saying always the same would reach.
    """
    within = [outcome for outcome in outcomes if outcome.frames <= longest]
    kinds = {}
    for kind in KINDS:
        asked = [outcome for outcome in within if outcome.question.kind == kind]
        if asked:
            most = Counter(outcome.question.answer for outcome in asked).most_common(1)[0][1]
            kinds[kind] = {"accuracy": _accuracy(asked), "chance": most / len(asked), "n": len(asked)}
    lengths = sorted({outcome.frames for outcome in outcomes})
    by_age = {}
    for low, high in zip(AGES, (*AGES[1:], float("inf")), strict=True):
        aged = [outcome for outcome in within if outcome.age is not None and low <= outcome.age < high]
        if aged:
            by_age[str(low)] = _accuracy(aged)
    return {
        "longest_training_length": longest,
        "kinds": kinds,
        "by_length": {
            str(frames): _accuracy([outcome for outcome in outcomes if outcome.frames == frames]) for frames in lengths
        },
        "by_age": by_age,
        "by_when": {
            when: _accuracy([outcome for outcome in within if outcome.question.when == when])
            for when in ("now", "before")
        },
    }


def default_plan(longest: int) -> dict[int, int]:
    """Streams per length: within training lengths, then 2, 4 and 16 times the longest."""
    within = {frames: max(6, min(20, 2400 // frames)) for frames in (8, 24, 48, 96, 192, 384) if frames <= longest}
    return {**within, 2 * longest: max(4, 1600 // longest), 4 * longest: max(2, 500 // longest), 16 * longest: 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder written by the training")
    parser.add_argument("--questions", type=int, default=33, help="questions about each stream")
    parser.add_argument("--quick", action="store_true", help="a tenth of the streams, none beyond twice the longest")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the figures."""
    from ros_kvstream.models.loading import TINY_FOLDER, load_model

    model = load_model(ModelSettings(path=options.model, device="cpu"))
    longest = longest_training_length(TINY_FOLDER if options.model == "tiny" else Path(options.model))
    plan = default_plan(longest)
    if options.quick:
        plan = {frames: max(1, count // 10) for frames, count in plan.items() if frames <= 2 * longest}
    return summarise(measure(model, plan, options.questions, console.print), longest)


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    for table in tables(report):
        console.print(table)


def tables(figures: dict[str, Any]) -> list[Table]:
    """The figures as tables for the terminal."""
    longest = figures["longest_training_length"]
    kinds = Table("kind", "accuracy", "chance", "questions", title=f"full cache, streams of up to {longest} frames")
    for kind, row in figures["kinds"].items():
        kinds.add_row(kind, f"{row['accuracy']:.3f}", f"{row['chance']:.2f}", str(row["n"]))
    lengths = Table("frames", "accuracy", title="by stream length")
    for frames, accuracy in figures["by_length"].items():
        lengths.add_row(frames, f"{accuracy:.3f}")
    ages = Table("seconds from", "accuracy", title="by age of the newest evidence")
    for low, accuracy in figures["by_age"].items():
        ages.add_row(low, f"{accuracy:.3f}")
    return [kinds, lengths, ages]
