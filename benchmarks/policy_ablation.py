# SPDX-License-Identifier: Apache-2.0
"""What each part of the scoring gives: un-rotated keys, true patch alignment, pooling; against the published selection.

    python benchmarks/policy_ablation.py [--model tiny] [--frames 96] [--streams 12] [--shares 0.125 0.0625]

Same streams, same budgets, same shares of TaR and VaN; only the scoring differs. The published selection has its own
share of recent frames and cuts to three quarters. Held-out seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.accuracy import by_when, mixed_streams
from benchmarks.policies import HELD_OUT, Trial, run_trials
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.memory.policies import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.base import recency
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.loading import load_model
from ros_kvstream.settings import ModelSettings

Change = Callable[[LayerSlots], LayerSlots]


def without_rotation(slots: LayerSlots) -> Rotary:
    """A rotation by nothing, so that keys are scored as they are."""
    return replace(slots.rotary, inverse_frequencies=torch.zeros_like(slots.rotary.inverse_frequencies))


def rotated(slots: LayerSlots) -> LayerSlots:
    """Score keys as stored, rotated by their position, as published."""
    return replace(slots, rotary=without_rotation(slots))


def reshaped(slots: LayerSlots) -> LayerSlots:
    """Identify patches by index, as published: slots in order of time, cut into frames of the newest frame's size.

    Keys are un-rotated by their true position first, so that only the alignment differs.
    """
    keys = slots.unrotated_keys.clone()
    newest = slots.frames[0] == slots.frames[0].max()
    rank = recency(slots).argsort(dim=-1).argsort(dim=-1)
    patch = (rank - slots.count) % int(newest.sum())
    positions = slots.positions.clone()
    positions[..., 1], positions[..., 2] = 0, patch.int()
    return replace(slots, keys=keys, positions=positions, rotary=without_rotation(slots))


class OnChanged(SelectionPolicy):
    """Another policy, applied to slots that are changed first."""

    def __init__(self, policy: SelectionPolicy, *changes: Change) -> None:
        self._policy, self._changes = policy, changes

    def select(self, slots: LayerSlots, keep: int) -> Tensor:
        """See SelectionPolicy.select."""
        for change in self._changes:
            slots = change(slots)
        return self._policy.select(slots, keep)


def variants(alpha: float, recent_share: float) -> dict[str, dict[str, Any]]:
    """Rows of the table: trial settings by name."""
    ours = {"alpha": alpha, "recent_share": recent_share}
    # The published share of recent frames: with less, no frame at all is recent in a small cache.
    published = {"compatibility": "paper", "alpha": alpha, "recent_share": 0.25}
    return {
        "published selection": {"options": published, "keep_ratio": 0.75},
        "rotated keys, patches by index": {"options": ours, "replacement": lambda p: OnChanged(p, rotated, reshaped)},
        "un-rotated keys, patches by index": {"options": ours, "replacement": lambda p: OnChanged(p, reshaped)},
        "rotated keys, true patches": {"options": ours, "replacement": lambda p: OnChanged(p, rotated)},
        "un-rotated keys, true patches": {"options": ours},
        "the same against recent frames only": {"options": {**ours, "compare_with": "recent"}},
        "the same with adaptive pooling": {"options": {**ours, "pooling": "adaptive"}},
    }


def main() -> None:
    """Measure and print the table; one JSON object on standard output with --json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--frames", type=int, default=96)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--questions", type=int, default=33)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.125, 0.0625])
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--recent-share", type=float, default=0.125)
    parser.add_argument("--keep-ratio", type=float, default=0.9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(ModelSettings(path=options.model, device="cpu"))
    rows = variants(options.alpha, options.recent_share)
    trials = {
        (name, share): Trial("infinipot_v", share=share, **{"keep_ratio": options.keep_ratio, **row})
        for name, row in rows.items() for share in options.shares
    }  # fmt: skip
    lines: dict[tuple[str, float], list[Line]] = {key: [] for key in trials}
    made = mixed_streams(model, options.frames, options.streams, options.questions, HELD_OUT)
    for number, stream in enumerate(made, 1):
        for key, answers in zip(trials, run_trials(model, stream, list(trials.values())), strict=True):
            lines[key] += answers
        print(f"stream {number} of {options.streams}", file=sys.stderr, flush=True)
    report = {name: {f"{share:g}": by_when(lines[name, share]) for share in options.shares} for name in rows}
    if options.json:
        print(json.dumps(report))
        return
    table = Table("scoring", *(f"{share:.2%} {when}" for share in options.shares for when in ("now", "before")))
    for name, row in report.items():
        table.add_row(name, *(f"{row[f'{s:g}'][when]:.3f}" for s in options.shares for when in ("now", "before")))
    Console().print(table)


if __name__ == "__main__":
    main()
