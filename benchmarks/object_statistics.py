# SPDX-License-Identifier: Apache-2.0
"""How value norms and key redundancy mark the objects of a patrol stream, layer by layer.

    python benchmarks/object_statistics.py [--model tiny] [--streams 8] [--frames 96] [--output FOLDER]

Writes one picture (histograms of object tokens against background tokens) and one JSON file, and prints a table.
``auc`` is the chance that a random object token scores above a random background token: 0.5 says that the score
marks nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy import trained_seconds
from ros_kvstream.memory.policies import LayerSlots, make_policy
from ros_kvstream.memory.policies.base import recent_slots
from ros_kvstream.memory.policies.redundancy import STEPS, novelty
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.models.loading import load_model
from ros_kvstream.patrol.patrol import PatrolWorld
from ros_kvstream.patrol.scene import PLACES
from ros_kvstream.settings import GateSettings, MemorySettings, ModelSettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory
from training.mix import mixed_stream

SCORES = {
    "value norm": "L2 norm of the value (VaN keeps the highest)",
    "novelty to the frame before": "minus the cosine of un-rotated keys, same patch of the frame before (AKS)",
    "novelty to the recent frames": "minus the cosine to the recent keys of the patch (TaR as published)",
    "novelty to all newer frames": "minus the cosine to all newer keys of the patch (TaR as this package has it)",
}
Samples = dict[tuple[str, int], tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]]


def scores_of(view: LayerSlots) -> dict[str, torch.Tensor]:
    """Every score of every slot, [kv_heads, slots]."""
    recent = recent_slots(view, view.count, 0.125)
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


def collect(model: VideoLanguageModel, worlds: list[PatrolWorld]) -> Samples:
    """Scores of object tokens and of background tokens, by score and layer; recent frames are left out."""
    samples: Samples = {}
    for world in worlds:
        kept = MemorySettings(policy="full", budget_mib=32.0)
        memory = VideoMemory(StreamSettings(memory=kept, gate=GateSettings(mode="off")), model)
        for frame in world:
            memory.observe(frame.picture, frame.stamp)
        for layer in range(model.shape.layers):
            view = memory.arena.frame_slots(layer)
            marked = object_slots(view, world, len(model.prefix_ids))
            old = ~recent_slots(view, view.count, 0.125)
            for name, score in scores_of(view).items():
                objects, background = samples.setdefault((name, layer), ([], []))
                objects.append(score[marked & old].float().numpy())
                background.append(score[~marked & old].float().numpy())
        memory.close()
    return samples


def area_under_curve(high: NDArray[np.float32], low: NDArray[np.float32]) -> float:
    """Chance that a value of ``high`` lies above one of ``low``, ties counted half."""
    ordered = np.sort(low)
    below = np.searchsorted(ordered, high, side="left") + np.searchsorted(ordered, high, side="right")
    return float(below.mean() / (2 * len(low)))


def draw(samples: Samples, layers: int, path: Path) -> None:
    """One row of histograms per score, one column per layer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(SCORES), layers, figsize=(3.2 * layers, 2.6 * len(SCORES)), squeeze=False)
    for row, name in enumerate(SCORES):
        for layer in range(layers):
            objects, background = (np.concatenate(part) for part in samples[name, layer])
            low, high = np.quantile(np.concatenate([objects, background]), (0.001, 0.999))
            bins = np.linspace(low, high, 40)
            axes[row, layer].hist(background, bins, density=True, alpha=0.6, label="background")
            axes[row, layer].hist(objects, bins, density=True, alpha=0.6, label="object")
            axes[row, layer].set_title(f"layer {layer}, auc {area_under_curve(objects, background):.2f}", fontsize=9)
            axes[row, layer].set_yticks([])
        axes[row, 0].set_ylabel(name, fontsize=9)
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--frames", type=int, default=96)
    parser.add_argument("--output", type=Path, default=Path("build/object_statistics"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(ModelSettings(path=options.model, device="cpu"))
    random = np.random.default_rng(20257)
    seconds = trained_seconds(model)
    samples = collect(model, [mixed_stream(options.frames, 8, seconds, random) for _ in range(options.streams)])
    options.output.mkdir(parents=True, exist_ok=True)
    draw(samples, model.shape.layers, options.output / "object_statistics.png")
    table = Table("score", "layer", "object", "background", "auc")
    figures = []
    for (name, layer), parts in samples.items():
        objects, background = (np.concatenate(part) for part in parts)
        row = {"score": name, "layer": layer, "object": float(objects.mean()), "background": float(background.mean()),
               "auc": area_under_curve(objects, background)}  # fmt: skip
        figures.append(row)
        table.add_row(name, str(layer), f"{row['object']:.3f}", f"{row['background']:.3f}", f"{row['auc']:.2f}")
    (options.output / "object_statistics.json").write_text(json.dumps(figures, indent=2) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()
