# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark policies`: accuracy of each policy at a fraction of the full cache.

Patrol streams on held-out seeds, asked after the last frame: questions whose answer is in the newest frame ("now") and
questions about earlier ones ("before"), at a length that the model was trained on and at four times that length.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rich.console import Console

from benchmarks import figures_table
from benchmarks.accuracy import (
    TEXT_TOKENS,
    WHEN,
    EncodedModel,
    Stream,
    ask_all,
    budget_for_slots,
    by_when,
    intervals,
    load,
    mixed_streams,
    model_folder,
    observe_all,
)
from benchmarks.model import longest_training_length
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.memory.policies import SelectionPolicy, policy_names
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.settings import GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

HELD_OUT, TUNING = 20258, 20259
"""Seeds of the streams that figures are reported on, and of those that defaults are tuned on."""
SHARES = (0.25, 0.125, 0.0625)
"""Frame slots as a share of the full cache."""
Key = tuple[str, float]
"""Name of a trial, and its share."""
EVICTING = tuple(name for name in policy_names() if name != "full")


@dataclass(frozen=True)
class Trial:
    """One way to keep a memory small."""

    policy: str = "infinipot_v"
    options: Mapping[str, object] = field(default_factory=dict)
    share: float = 1.0
    """Frame slots as a share of the full cache: the hard cap."""
    keep_ratio: float = MemorySettings.keep_ratio
    block_frames: int = MemorySettings.block_frames
    replacement: Callable[[SelectionPolicy], SelectionPolicy] | None = None
    """Replaces the policy that was made from the settings (ablations)."""

    def settings(self, encoded: EncodedModel) -> StreamSettings:
        """Exactly the budget that gives the trial's frame slots; every frame is computed, nothing is archived."""
        slots = round(self.share * encoded.stream_tokens)
        budget = budget_for_slots(cast(VideoLanguageModel, encoded), slots, sum(TEXT_TOKENS.values()))
        memory = MemorySettings(
            budget_mib=budget, policy=self.policy, policy_settings=self.options, keep_ratio=self.keep_ratio,
            block_frames=self.block_frames, **TEXT_TOKENS,
        )  # fmt: skip
        return StreamSettings(memory=memory, gate=GateSettings(mode="off"))


def run_trials(model: VideoLanguageModel, stream: Stream, trials: Sequence[Trial]) -> list[list[Line]]:
    """Show the stream to a memory of each trial and ask its questions; the frames are encoded once."""
    encoded, answers = EncodedModel(model, stream), []
    for trial in trials:
        memory = VideoMemory(trial.settings(encoded), cast(VideoLanguageModel, encoded))
        if trial.replacement is not None:
            memory.ingest.policy = trial.replacement(memory.ingest.policy)
        observe_all(memory, stream)
        answers.append(ask_all(memory, stream))
        memory.close()
    return answers


def measure_trials(
    model: VideoLanguageModel, trials: Mapping[Key, Trial], frames: int, count: int, questions: int, seed: int,
    console: Console,
) -> dict[Key, list[Line]]:  # fmt: skip
    """Answers of every trial on ``count`` streams of ``frames`` frames; the first trial is reported on the way."""
    lines: dict[Key, list[Line]] = {key: [] for key in trials}
    for number, stream in enumerate(mixed_streams(model, frames, count, questions, seed), 1):
        for part, answers in zip(lines.values(), run_trials(model, stream, list(trials.values())), strict=True):
            part += answers
        best = by_when(next(iter(lines.values())))
        console.print(f"  stream {number} of {count}: full cache now {best['now']:.2f}, before {best['before']:.2f}")
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder written by the training")
    parser.add_argument("--streams", type=int, default=12, help="streams of the trained length (beyond it: a third)")
    parser.add_argument("--questions", type=int, default=33, help="questions about each stream")
    parser.add_argument("--policies", nargs="+", default=list(EVICTING), choices=EVICTING, help="policies to compare")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the object of ``--json``."""
    model = load(options.model)
    trained = longest_training_length(model_folder(options.model))
    within, beyond = max(32, min(96, trained)), 4 * max(32, trained)
    report: dict[str, Any] = {}
    for name, frames, count in (("in_range", within, options.streams), ("beyond", beyond, options.streams // 3)):
        console.print(f"{name}: {max(1, count)} streams of {frames} frames")
        report[name] = compare(model, frames, max(1, count), options.questions, options.policies, console)
    return report


def compare(
    model: VideoLanguageModel, frames: int, count: int, questions: int, policies: Sequence[str], console: Console
) -> dict[str, Any]:
    """Accuracy of the full cache and of every policy at every share, on ``count`` held-out streams."""
    full = Trial("full", block_frames=8)
    trials = {(trial.policy, trial.share): trial for trial in
              (full, *(Trial(name, share=share) for name in policies for share in SHARES))}  # fmt: skip
    lines = measure_trials(model, trials, frames, count, questions, HELD_OUT, console)
    asked = lines["full", 1.0]
    return {
        "frames": frames,
        "streams": count,
        "asked": {when: sum(line["kind"] == when for line in asked) for when in WHEN},
        "full": by_when(asked),
        "policies": {name: {f"{share:g}": by_when(lines[name, share]) for share in SHARES} for name in policies},
        "intervals": {name: {f"{share:g}": intervals(lines[name, share]) for share in SHARES} for name in policies},
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print one table per stream length."""
    for name, part in report.items():
        asked = part["asked"]
        title = f"{name}: {part['frames']} frames, {asked['now']} questions about now, {asked['before']} about before"
        rows = {"full cache": [part["full"]] * len(SHARES)} | {
            policy: [row[f"{share:g}"] for share in SHARES] for policy, row in part["policies"].items()
        }
        console.print(figures_table(
            title, ("policy", *(f"{share:.2%} {when}" for share in SHARES for when in WHEN)),
            ((policy, *(f"{cell[when]:.3f}" for cell in row for when in WHEN)) for policy, row in rows.items()),
        ))  # fmt: skip
