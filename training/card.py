# SPDX-License-Identifier: Apache-2.0
"""Measure a finished model and write its card: ``python -m training.card --folder ros_kvstream/models/tiny``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import model as model_benchmark

CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: video-text-to-text
---

# A tiny Qwen2.5-VL that looks back

{parameters:,} parameters of the Qwen2.5-VL architecture, unchanged: it loads with
`Qwen2_5_VLForConditionalGeneration.from_pretrained`, `AutoTokenizer` and `Qwen2VLImageProcessor`. It was trained by
`make train` of this repository on procedural patrol streams, so that demo, tests and benchmarks have a model whose
answers are right with a full cache. It knows that world and nothing else: it is a yardstick, not an assistant.

## What it can do
A robot walks through eight rooms; now and then one to three objects of one kind (8 shapes, 8 colours, 4 places) are
in view for a few frames. The model answers questions about any of them, in words, long after they have gone:

| ask | it answers |
|---|---|
| what colour was the cone? / where was the cone? | red / top left |
| how many cones were there? / was there a cone? | two / yes |
| which room was the cone in? / which room is this? | the kitchen |
| what did you see first? / last? | the cone |
| what came before the cone? / after the cone? | the ball |
| what is in view now? | the red cone, or: nothing |
| anything with a word that it does not know | i do not know |

A thing that never was gets "none", "no" or "nothing". Several phrasings of each question are understood, in either
case and spelling (colour, color).

## What it cannot do
Pictures of another world, other objects, other languages, two objects of a shape in one stream, free conversation,
and pictures far from square (every picture becomes 56 x 56 pixels, four visual tokens).
{weak}

## Figures
Full cache, policy `full`, through the package's own path (`kvstream benchmark model`), seeds that training never saw.
Chance is what always giving the most frequent answer would reach.

Streams of up to {longest} frames, the longest in training:

| kind | accuracy | chance | questions |
|---|---|---|---|
{kinds}

| frames | {length_heads} |
|---|{length_rule}|
| accuracy | {lengths} |

| seconds since the newest evidence, from | {age_heads} |
|---|{age_rule}|
| accuracy | {ages} |

## How it was trained
Seed {seed}, {steps:,} optimizer steps, {minutes:.0f} minutes of one CPU thread (AMD EPYC with AVX-512, shared with
other work), float32. `training/` holds all of it:

1. Sight: the vision tower alone learns shape, colour, number, place and room with a linear reader per token.
2. Questions: many questions per stream in one pass, each seeing the stream and itself; loss on the answer. Streams
   grow from 1 frame and 1 object to {longest} frames and {objects} objects, shorter ones stay in the mix; kinds that
   lag get more questions.
3. Side lessons along with them: visual tokens and question nouns are to name what they stand for, and some heads are
   taught where to look (a question's noun at the thing it names, the tokens from which the answer is read at the
   noun and at what holds the answer, an object at the one before it). Whoever studies attention or retrieval on this
   model should know that these heads were shown where to look.
{history}
Streams in training: 1 - 3 frames a second, 3 - 30 and 0.1 - 1 in 15 % each, and a quarter thinned out as behind a
frame gate with pauses of up to 40 seconds; sensor noise of 0 - 12 grey levels. Temporal positions start anywhere and
reach {positions}: `max_position_embeddings` says so. It reads frames well over the positions below {read}
(`kvstream.json`, measured by `kvstream benchmark range`), and a memory re-bases its positions before that.

M-RoPE sections are [12, 2, 2] with theta 1e5: with two by two tokens a frame, rows and columns need few bands, and
the slowest band of time turns by 3 rad over all trained positions.
"""
HISTORY = """
   This run got them step by step (pointing at step 2,600, naming at 3,400, the noun's hops at 4,600, the thing
   before at 5,400, 7,900 and, in the second layer, 13,000; from every word of an answer instead of the first alone at
   19,400, which is what "before" and "after" had lacked), longer streams went on at lower marks, the learning rate was
   raised three times, and from step 10,500 on the sightings of a stream were spread more evenly. `make train` has all
   of it from the first step on, so it does not repeat these very weights.
"""


def row(values: list[str]) -> str:
    """Cells of a table."""
    return " | ".join(values)


def write_card(folder: Path, figures: dict[str, Any], parameters: int, positions: int, read: int) -> None:
    """Fill in the card from the figures and from training.json."""
    facts = json.loads((folder / "training.json").read_text())
    kinds = "\n".join(
        f"| {kind} | {entry['accuracy']:.3f} | {entry['chance']:.2f} | {entry['n']} |"
        for kind, entry in figures["kinds"].items()
    )
    weak = [kind for kind, entry in figures["kinds"].items() if entry["accuracy"] < 0.95]
    lengths, ages = figures["by_length"], figures["by_age"]
    text = CARD.format(
        parameters=parameters, positions=f"{positions:,}", read=f"{read:,}", kinds=kinds,
        longest=figures["longest_training_length"],
        length_heads=row(list(lengths)), length_rule="|".join("---" for _ in lengths),
        lengths=row([f"{value:.3f}" for value in lengths.values()]),
        age_heads=row(list(ages)), age_rule="|".join("---" for _ in ages),
        ages=row([f"{value:.3f}" for value in ages.values()]),
        seed=facts["seed"], steps=facts["steps"], minutes=facts["minutes"], objects=facts["objects"], history=HISTORY,
        weak=f"Weak even within its range (below 95 %): {', '.join(weak)}." if weak else "",
    )  # fmt: skip
    (folder / "README.md").write_text(text)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("ros_kvstream/models/tiny"))
    parser.add_argument("--questions", type=int, default=33)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    from ros_kvstream.models.loading import load_model
    from ros_kvstream.models.weight_memory import count_parameters
    from ros_kvstream.settings import ModelSettings

    console = Console(stderr=True)
    options.model = str(options.folder)
    figures = model_benchmark.run(options, console)
    model_benchmark.show(figures, console)
    (options.folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    model = load_model(ModelSettings(path=str(options.folder), device="cpu"))
    parameters = count_parameters(model.network)  # type: ignore[attr-defined]
    write_card(options.folder, figures, parameters, model.position_limit, model.position_range.limit)


if __name__ == "__main__":
    main()
