"""`kvstream benchmark policies`: what each policy still knows at a fraction of the full cache.

Patrol streams on held-out seeds, asked after the last frame: questions whose answer is in the newest frame ("now") and
questions about what came earlier ("before"), at a length the model was trained on and at four times that length.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ros_kvstream.memory.policies import policy_names
from ros_kvstream.settings import ModelSettings

if TYPE_CHECKING:
    from ros_kvstream.models.base import VideoLanguageModel

SHARES = (0.25, 0.125, 0.0625)
"""Frame slots as a share of the full cache."""
EVICTING = tuple(name for name in policy_names() if name != "full")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder written by the training")
    parser.add_argument("--streams", type=int, default=12, help="streams of the trained length (beyond it: a third)")
    parser.add_argument("--questions", type=int, default=33, help="questions about each stream")
    parser.add_argument("--policies", nargs="+", default=list(EVICTING), choices=EVICTING, help="policies to compare")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; progress goes to the console. Returns the JSON object of DESIGN.md."""
    from pathlib import Path

    from benchmarks.model import longest_training_length
    from ros_kvstream.models.loading import TINY_FOLDER, load_model

    model = load_model(ModelSettings(path=options.model, device="cpu"))
    trained = longest_training_length(TINY_FOLDER if options.model == "tiny" else Path(options.model))
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
    from benchmarks.policy_trials import HELD_OUT, Score, Trial, run_trial, streams

    trials = {("full", 1.0): Trial("full", block_frames=8)}
    trials |= {(name, share): Trial(name, share=share) for name in policies for share in SHARES}
    scores = {key: Score() for key in trials}
    for number, stream in enumerate(streams(model, frames, count, questions, HELD_OUT), 1):
        for key, trial in trials.items():
            scores[key].merge(run_trial(model, stream, trial))
        best = scores[("full", 1.0)].accuracy()
        console.print(f"  stream {number} of {count}: full cache now {best['now']:.2f}, before {best['before']:.2f}")
    return {
        "frames": frames,
        "streams": count,
        "asked": scores[("full", 1.0)].asked,
        "full": scores[("full", 1.0)].accuracy(),
        "policies": {
            name: {f"{share:g}": scores[(name, share)].accuracy() for share in SHARES} for name in policies
        },
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print one table per stream length."""
    for name, part in report.items():
        asked = part["asked"]
        title = f"{name}: {part['frames']} frames, {asked['now']} questions about now, {asked['before']} about before"
        table = Table("policy", *(f"{share:.2%} {when}" for share in SHARES for when in ("now", "before")), title=title)
        full = [f"{part['full'][when]:.3f}" for when in ("now", "before")]
        table.add_row("full cache", *(full * len(SHARES)))
        for policy, row in part["policies"].items():
            table.add_row(policy, *(f"{row[f'{s:g}'][when]:.3f}" for s in SHARES for when in ("now", "before")))
        console.print(table)
