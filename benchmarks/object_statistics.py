# SPDX-License-Identifier: Apache-2.0
"""How value norms and key redundancy mark the objects of a patrol stream, layer by layer.

    python -m benchmarks.object_statistics [--streams 8] [--picture FILE]

Prints a table and draws histograms of object tokens against background tokens. ``auc`` is the chance that a random
object token scores above a random background token: 0.5 says that the score marks nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import figures_table
from benchmarks.accuracy import OBJECTS, load, trained_seconds
from ros_kvstream.memory.policies import LayerSlots, make_policy
from ros_kvstream.memory.policies.base import recent_slots
from ros_kvstream.memory.policies.redundancy import STEPS, novelty
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.scene import PLACES
from ros_kvstream.settings import GateSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory
from training.mix import mixed_stream

SEED = 20257
FRAMES = 96
RECENT_SHARE = 0.125
Scores = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Of object tokens and of background tokens."""


def scores_of(view: LayerSlots) -> dict[str, torch.Tensor]:
    """Score every slot as VaN, AKS, the published TaR, and the TaR of this package do: [kv_heads, slots]."""
    recent = recent_slots(view, view.count, RECENT_SHARE)
    return {
        "value norm": view.value_norms.clone(),
        "novelty to the frame before": make_policy("aks").score(view) / STEPS,
        "novelty to the recent frames": novelty(view, recent, "recent") / STEPS,
        "novelty to all newer frames": novelty(view, recent, "newer") / STEPS,
    }


def object_slots(view: LayerSlots, world: PatrolWorld, start: int) -> torch.Tensor:
    """Which slots hold the quadrant that an object is in: bool [kv_heads, slots]."""
    coordinates = torch.full((len(world),), -1)
    for sighting in world.sightings:
        coordinates[sighting.first : sighting.last + 1] = PLACES.index(sighting.place)
    here = (view.positions[..., 1] - start) * 2 + (view.positions[..., 2] - start)
    return coordinates[view.frames.long()] == here


def collect(model: VideoLanguageModel, worlds: list[PatrolWorld]) -> dict[tuple[str, int], Scores]:
    """Scores of object and background tokens, by kind of score and layer; recent frames are left out."""
    parts: dict[tuple[str, int], list[Scores]] = {}
    kept = MemorySettings(policy="full", budget_mib=32.0)
    for world in worlds:
        memory = VideoMemory(StreamSettings(memory=kept, gate=GateSettings(mode="off")), model)
        for frame in world:
            memory.observe(frame.picture, frame.stamp)
        for layer in range(model.shape.layers):
            view = memory.arena.frame_slots(layer)
            marked = object_slots(view, world, len(model.prefix_ids))
            old = ~recent_slots(view, view.count, RECENT_SHARE)
            for name, score in scores_of(view).items():
                found = score[marked & old].float().numpy(), score[~marked & old].float().numpy()
                parts.setdefault((name, layer), []).append(found)
        memory.close()
    return {key: (np.concatenate([one for one, _ in found]), np.concatenate([other for _, other in found]))
            for key, found in parts.items()}  # fmt: skip


def area_under_curve(high: NDArray[np.float32], low: NDArray[np.float32]) -> float:
    """Chance that a value of ``high`` lies above one of ``low``, ties counted half."""
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, side="left") + np.searchsorted(ordered, high, side="right")
    return float(below.mean() / (2 * len(low)))


def draw(samples: dict[tuple[str, int], Scores], layers: int, path: Path) -> None:
    """Draw one row of histograms per score, one column per layer."""
    rows = len(samples) // layers
    figure = Figure(figsize=(3.2 * layers, 2.6 * rows))
    axes = figure.subplots(rows, layers, squeeze=False)
    for ((name, layer), (objects, background)), axis in zip(samples.items(), axes.T.flat, strict=True):
        low, high = np.quantile(np.concatenate([objects, background]), (0.001, 0.999))
        bins = np.linspace(low, high, 40)
        axis.hist(background, bins, density=True, alpha=0.6, label="background")
        axis.hist(objects, bins, density=True, alpha=0.6, label="object")
        axis.set_title(f"layer {layer}, auc {area_under_curve(objects, background):.2f}", fontsize=9)
        axis.set_yticks([])
        if layer == 0:
            axis.set_ylabel(name, fontsize=9)
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--picture", type=Path, default=Path("build/object_statistics.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, random = load(options.model), np.random.default_rng(SEED)
    seconds = trained_seconds(model)
    samples = collect(model, [mixed_stream(FRAMES, OBJECTS, seconds, random) for _ in range(options.streams)])
    draw(samples, model.shape.layers, options.picture)
    rows = ((name, str(layer), f"{objects.mean():.3f}", f"{background.mean():.3f}",
             f"{area_under_curve(objects, background):.2f}")
            for (name, layer), (objects, background) in samples.items())  # fmt: skip
    Console().print(figures_table("Scores", ("score", "layer", "object", "background", "auc"), rows))


if __name__ == "__main__":
    main()
