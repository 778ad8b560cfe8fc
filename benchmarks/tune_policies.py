# SPDX-License-Identifier: Apache-2.0
"""Accuracy of many settings of the policies on the tuning seeds (never on the held-out ones that figures come from).

    python benchmarks/tune_policies.py --model tiny --frames 96 --streams 8 --shares 0.125 0.0625 \
        --grid alpha=0.5,0.75,1.0 recent_share=0.0625,0.125 --policy infinipot_v [--keep-ratios 0.75 0.9]

Every combination of the grid is tried; prints one line a setting, best first, and the full cache beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys

import torch

from benchmarks.accuracy import accuracy, mixed_streams
from benchmarks.policies import TUNING, Trial, run_trials
from ros_kvstream.evaluation.summary import Line
from ros_kvstream.models.loading import load_model
from ros_kvstream.settings import ModelSettings


def parse_grid(words: list[str]) -> list[dict[str, object]]:
    """``name=a,b`` words to all combinations of options; values are numbers where they look like numbers."""
    axes = []
    for word in words:
        name, _, values = word.partition("=")
        axes.append([(name, _value(value)) for value in values.split(",")])
    return [dict(combination) for combination in itertools.product(*axes)]


def _value(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def main() -> None:
    """Measure the grid that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--frames", type=int, default=96)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--questions", type=int, default=33)
    parser.add_argument("--policy", default="infinipot_v")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.125, 0.0625])
    parser.add_argument("--keep-ratios", type=float, nargs="+", default=[0.75])
    parser.add_argument("--blocks", type=int, nargs="+", default=[1])
    parser.add_argument("--grid", nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(ModelSettings(path=options.model, device="cpu"))
    trials = {"full cache": Trial("full", block_frames=8)}
    for grid, keep, block in itertools.product(parse_grid(options.grid), options.keep_ratios, options.blocks):
        for share in options.shares:
            name = json.dumps({"share": share, "keep_ratio": keep, "block": block, **grid})
            trials[name] = Trial(options.policy, grid, share, keep, block)
    lines: dict[str, list[Line]] = {name: [] for name in trials}
    made = mixed_streams(model, options.frames, options.streams, options.questions, TUNING)
    for number, stream in enumerate(made, 1):
        for name, answers in zip(trials, run_trials(model, stream, list(trials.values())), strict=True):
            lines[name] += answers
        print(f"stream {number} of {options.streams}", file=sys.stderr, flush=True)
    for name, answers in sorted(lines.items(), key=lambda item: -accuracy(item[1])):
        overall, now, before = (accuracy(answers, kind) for kind in ("", "now", "before"))
        print(f"all {overall:.3f}  now {now:.3f}  before {before:.3f}  {name}")


if __name__ == "__main__":
    main()
