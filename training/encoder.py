# SPDX-License-Identifier: Apache-2.0
"""Train the tiny external encoder on patrol streams: ``python -m training.encoder``.

Equal seeds give equal data. The weights in the package are those after 1,350 of 1,500 steps (seed 5,000,000; about 12
minutes of one core).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.questions import vocabulary
from ros_kvstream.retrieval.tiny_encoder import WEIGHTS, EncoderNetwork, pixels_of, words

FIRST_SEED = 5_000_000
"""Seed of the first training stream; far from the seeds of all measurements."""
KINDS = ("colour", "where", "how_many", "room", "any", "before", "after", "first", "last")
TEMPERATURE = 0.07


class Stream:
    """Pictures and questions of one stream, and which picture holds which question's evidence."""

    def __init__(self, seed: int, questions: int, empty: int) -> None:
        random = np.random.default_rng(seed)
        world = PatrolWorld(PatrolSettings(seed=seed, frames=96, noise=float(random.uniform(0, 10))))
        seen = [int(random.integers(thing.first, thing.last + 1)) for thing in world.sightings]
        drawn = [int(index) for index in random.choice(96, 3 * empty, replace=False)]
        dull = [index for index in drawn if world.sighting(index) is None]
        frames = seen + dull[:empty]
        self.pictures: list[NDArray[np.uint8]] = [world.picture(index) for index in frames]
        self.texts: list[str] = []
        self.positives: list[list[bool]] = []
        for question in world.questions(questions, seed=seed, kinds=KINDS):
            marks = [self._holds(question.kind, question.evidence, world, index) for index in frames]
            if any(marks):
                self.texts.append(question.text)
                self.positives.append(marks)

    @staticmethod
    def _holds(kind: str, evidence: tuple[float, ...], world: PatrolWorld, index: int) -> bool:
        """For questions about the first or last object any object counts: a picture holds no order."""
        if kind in ("first", "last"):
            return world.sighting(index) is not None
        return world.stamp(index) in evidence


def loss_of(network: EncoderNetwork, stream: Stream, numbers: dict[str, int]) -> tuple[Tensor, float]:
    """Cross-entropy of each question over its stream's pictures, and the share whose best picture is right."""
    pictures = network.pictures(pixels_of(stream.pictures))
    indices = [[numbers[word] for word in words(text) if word in numbers] for text in stream.texts]
    flat = torch.tensor([number for each in indices for number in each])
    offsets = torch.tensor([0, *np.cumsum([len(each) for each in indices])[:-1]])
    logits = network.questions(flat, offsets) @ pictures.T / TEMPERATURE
    right = torch.tensor(stream.positives)
    share = functional.log_softmax(logits, -1).masked_fill(~right, -torch.inf).logsumexp(-1)
    hits = right.gather(1, logits.argmax(1, keepdim=True)).float().mean()
    return -share.mean(), float(hits)


def train(steps: int, streams: int, path: Path, threads: int = 1) -> float:
    """Train and save as float16; returns the share of questions whose best picture was right, last 50 steps."""
    torch.set_num_threads(threads)
    torch.manual_seed(FIRST_SEED)
    known = sorted({word for text in vocabulary() for word in words(text)})
    numbers = {word: number for number, word in enumerate(known)}
    network = EncoderNetwork(len(known))
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    recent: list[float] = []
    started = time.monotonic()
    for step in range(steps):
        optimizer.zero_grad()
        for index in range(streams):
            loss, hits = loss_of(network, Stream(FIRST_SEED + step * streams + index, 16, 8), numbers)
            (loss / streams).backward()
            recent = [*recent[-50 * streams :], hits]
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            minutes = (time.monotonic() - started) / 60
            print(f"step {step + 1} {minutes:.1f} min, best picture right {np.mean(recent):.3f}", flush=True)
            save(network, known, path)
    save(network, known, path)
    return float(np.mean(recent))


def save(network: EncoderNetwork, known: list[str], path: Path) -> None:
    """Write float16 weights with the vocabulary beside them."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().half().contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, path, metadata={"vocabulary": json.dumps(known)})


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--streams", type=int, default=4, help="streams a step")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    train(options.steps, options.streams, options.out)


if __name__ == "__main__":
    main()
