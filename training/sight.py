# SPDX-License-Identifier: Apache-2.0
"""First lesson: train the vision tower alone, with a linear reader on each merged token.

A frame costs a tenth of a question here, so shapes and colours are learned ten times faster than from words.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen2_5_VLForConditionalGeneration

from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.patrol.scene import COLOURS, NUMBERS, PLACES, ROOMS, SHAPES
from training.forward import normalise, see

_COLOURS = list(COLOURS)
READERS = {"shape": len(SHAPES) + 1, "colour": len(COLOURS) + 1, "number": len(NUMBERS) + 1,
           "place": len(PLACES), "room": len(ROOMS)}  # fmt: skip
"""Properties read from every merged token, and their classes; the last of the first three is "nothing here"."""


def sight_batch(key: tuple[int, ...], worlds: int = 8, frames: int = 15) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures uint8 [worlds * frames, 56, 56, 3], half of them with objects; labels int64 [pictures, 4, readers]."""
    random = np.random.default_rng([20255, *key])
    pictures, labels = [], []
    for _ in range(worlds):
        world = PatrolWorld(PatrolSettings(seed=int(random.integers(1 << 40)), frames=frames, objects=8, rate_hz=1.0,
                                           noise=float(random.uniform(0, 12)), sighting_frames=(1, 1)))  # fmt: skip
        for index in range(frames):
            sighting = world.sighting(index)
            pictures.append(world.picture(index))
            tokens = np.empty((4, len(READERS)), np.int64)
            tokens[:, :3] = (len(SHAPES), len(COLOURS), len(NUMBERS))
            tokens[:, 3], tokens[:, 4] = np.arange(4), ROOMS.index(world.room(index))
            if sighting is not None:
                what = (SHAPES.index(sighting.shape), _COLOURS.index(sighting.colour), sighting.number - 1)
                tokens[PLACES.index(sighting.place), :3] = what
            labels.append(tokens)
    return torch.from_numpy(np.stack(pictures)), torch.from_numpy(np.stack(labels))


def learn_to_see(
    model: Qwen2_5_VLForConditionalGeneration, seed: int, steps: int, log: Callable[[str], None]
) -> None:
    """Train the vision tower for ``steps`` steps; the readers are discarded."""
    tower = model.model.visual
    readers = nn.Linear(tower.config.out_hidden_size, sum(READERS.values()))
    weights = [*tower.parameters(), *readers.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    right = torch.zeros(len(READERS))
    begun = time.monotonic()
    for step in range(steps):
        pixels, labels = sight_batch((seed, step))
        parts = readers(see(model, normalise(pixels))).split(list(READERS.values()), dim=-1)
        here = labels[..., 0] < len(SHAPES)
        loss = torch.zeros(())
        for index, part in enumerate(parts):
            losses = functional.cross_entropy(part.flatten(0, 1), labels[..., index].flatten(), reduction="none")
            loss = loss + losses.mean() + (losses[here.flatten()].mean() if index < 3 else 0.0)
            chosen = here if index < 3 else torch.ones_like(here)
            mark = (part.argmax(dim=-1) == labels[..., index])[chosen].float().mean()
            right[index] += 0.05 * (mark - right[index])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            marks = " ".join(f"{name} {mark:.2f}" for name, mark in zip(READERS, right.tolist(), strict=True))
            minutes = (time.monotonic() - begun) / 60
            log(f"sight {step + 1} {minutes:.1f} min, loss {float(loss.detach()):.3f} | {marks}")
