# SPDX-License-Identifier: Apache-2.0
"""Accuracy of many settings of a policy, on the same streams and at the same budgets, best first.

    python -m benchmarks.policy_sweep [--streams 8] [--shares 0.125 0.0625] [--policy infinipot_v]
        [--keep-ratios 0.75 0.9] [--grid alpha=0.5,0.75,1.0 recent_share=0.0625,0.125]
    python -m benchmarks.policy_sweep --ablation --streams 6

A grid is measured on the tuning seeds, never on the held-out ones that figures come from. The ablation measures, on the
held-out seeds, what each part of the scoring gives: un-rotated keys, true patch alignment, pooling.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import torch
from rich.console import Console
from torch import Tensor

from benchmarks import figures_table
from benchmarks.accuracy import accuracy, load
from benchmarks.policies import HELD_OUT, TUNING, Trial, measure_trials
from ros_kvstream.memory.policies import LayerSlots, SelectionPolicy
from ros_kvstream.memory.policies.base import recency
from ros_kvstream.memory.rotary import Rotary

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


def ablation(share: float) -> dict[str, Trial]:
    """One trial per way of scoring; all but the published selection cut to 90 % with alpha 0.9."""
    ours = Trial(options={"alpha": 0.9, "recent_share": 0.125}, share=share, keep_ratio=0.9)
    # The published share of recent frames: with less, no frame at all is recent in a small cache.
    published = {"compatibility": "paper", "alpha": 0.9, "recent_share": 0.25}
    return {
        "published selection": replace(ours, options=published, keep_ratio=0.75),
        "rotated keys, patches by index": replace(ours, replacement=lambda p: OnChanged(p, rotated, reshaped)),
        "un-rotated keys, patches by index": replace(ours, replacement=lambda p: OnChanged(p, reshaped)),
        "rotated keys, true patches": replace(ours, replacement=lambda p: OnChanged(p, rotated)),
        "un-rotated keys, true patches": ours,
        "the same against recent frames only": replace(ours, options={**ours.options, "compare_with": "recent"}),
        "the same with adaptive pooling": replace(ours, options={**ours.options, "pooling": "adaptive"}),
    }


def grid_trials(policy: str, words: list[str], keep_ratios: list[float], share: float) -> dict[str, Trial]:
    """One trial per combination of ``name=a,b`` words and keep ratios; values are numbers where they look like them."""

    def value(text: str) -> object:
        try:
            return float(text)
        except ValueError:
            return text

    named = [word.partition("=") for word in words]
    axes = [[(name, value(text)) for text in values.split(",")] for name, _, values in named]
    return {
        json.dumps({"keep_ratio": keep, **dict(options)}): Trial(policy, dict(options), share, keep)
        for options in itertools.product(*axes) for keep in keep_ratios
    }  # fmt: skip


def main() -> None:
    """Measure what the command line describes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--frames", type=int, default=96)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--questions", type=int, default=33)
    parser.add_argument("--policy", default="infinipot_v")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.125, 0.0625])
    parser.add_argument("--keep-ratios", type=float, nargs="+", default=[0.9])
    parser.add_argument("--grid", nargs="*", default=[])
    parser.add_argument("--ablation", action="store_true", help="the parts of the scoring instead of a grid")
    options = parser.parse_args()
    trials = {("full cache", 1.0): Trial("full", block_frames=8)}
    for share in options.shares:
        made = ablation(share) if options.ablation else grid_trials(
            options.policy, options.grid, options.keep_ratios, share)  # fmt: skip
        trials |= {(name, share): trial for name, trial in made.items()}
    torch.set_num_threads(1)
    seed = HELD_OUT if options.ablation else TUNING
    size = options.frames, options.streams, options.questions
    lines = measure_trials(load(options.model), trials, *size, seed, Console(stderr=True))
    best_first = sorted(lines.items(), key=lambda item: -accuracy(item[1]))
    rows = ((name, f"{share:.2%}", *(f"{accuracy(answers, kind):.3f}" for kind in ("", "now", "before")))
            for (name, share), answers in best_first)  # fmt: skip
    Console().print(figures_table("Right answers", ("setting", "slots", "all", "now", "before"), rows))


if __name__ == "__main__":
    main()
