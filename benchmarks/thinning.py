# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark thinning`: cost and savings of frame gate, saliency and mixed precision.

Each frame of a stream goes to two memories, one with and one without, in alternating order; times are processor times
of one thread, so that another process on the machine does not count.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import figures_table, smollm2
from benchmarks.accuracy import (
    OBJECTS,
    TEXT_TOKENS,
    Stream,
    accuracy,
    budget_for_slots,
    load,
    make_stream,
    observe_and_ask,
)
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.budget import CacheShape, plan_budget, smallest_budget
from ros_kvstream.memory.quantized.packing import QuantizedCodec, dequantize_into, quantize
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.base import VideoLanguageModel
from ros_kvstream.patrol.patrol import PatrolSettings, PatrolWorld
from ros_kvstream.recordings.bags import BagSource
from ros_kvstream.settings import GateSettings, MemorySettings, QuantizedSettings, SaliencySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory
from ros_kvstream.vision.frame_gate import FrameGate

Stamped = tuple[NDArray[np.uint8], float]
"""Picture, RGB uint8 [height, width, 3], and its stamp in seconds."""

PLAIN = StreamSettings(gate=GateSettings(mode="off"))
GATE = StreamSettings()
NOVEL = StreamSettings(saliency=SaliencySettings(mode="novel", max_pruned=0.9))
PACED = replace(NOVEL, gate=GateSettings(mode="adaptive", target_rate=0.5))
"""For a fixed camera where something always moves: at most one frame in two seconds, and only its novel patches."""
PAIRS = replace(PLAIN, memory=MemorySettings(frames_per_grid=2))
"""Two real frames in one temporal grid, every frame computed."""
MIXED = replace(PLAIN, quantized=QuantizedSettings(mode="on"))
MAX_PIXELS = 448 * 336
"""Pixels of a recording's frame that the model sees: 192 visual tokens."""
GIB = 1 << 30
QUERIES = 64
"""Newest queries of a layer for which the attention error is measured."""
TEXT = Path(argparse.__file__)
"""Text for the attention error on SmolLM2."""
DATA = Path("test/data")
PATROL_FRAMES = 96
"""Frames of a stream with questions, and slots of the memory that answers them, a quarter of its tokens."""
_SEED = 20256


# -- ingest -----------------------------------------------------------------------------------------------------------


def measure_stream(model: VideoLanguageModel, frames: Iterable[Stamped], settings: StreamSettings) -> dict[str, float]:
    """Show a stream to a plain and a thinning memory, in alternating order.

    ``gated``: share of the frames that were not computed; ``pruned``: share of the others' patches that were left out
    of the prefill; ``ingest_time_ratio``: processor time with / without; milliseconds per frame without and with.
    """
    plain = replace(PLAIN, memory=replace(settings.memory, frames_per_grid=1))
    memories = [VideoMemory(plain, model), VideoMemory(settings, model)]
    spent, tokens, seen = [0.0, 0.0], [0, 0], 0
    for picture, stamp in frames:
        observations: dict[int, Any] = {}
        for which in (0, 1) if seen % 2 else (1, 0):
            started = time.process_time()
            observations[which] = memories[which].observe(picture, stamp)
            spent[which] += time.process_time() - started
        tokens[0] += observations[0].tokens if observations[1].kept else 0
        tokens[1] += observations[1].tokens
        seen += 1
    gated = memories[1].stats().frames_gated
    for memory in memories:
        memory.close()
    frames_seen = max(1, seen)
    return {
        "gated": gated / frames_seen, "pruned": 1 - tokens[1] / max(1, tokens[0]),
        "ingest_time_ratio": spent[1] / max(spent[0], 1e-9),
        "ms_plain": 1e3 * spent[0] / frames_seen, "ms_thinned": 1e3 * spent[1] / frames_seen,
    }  # fmt: skip


def gate_ms(frames: Iterable[Stamped]) -> float:
    """Processor time of the frame gate alone, milliseconds per frame."""
    gate, spent, seen = FrameGate(GATE.gate), 0.0, 0
    for picture, stamp in frames:
        started = time.process_time()
        gate.decide(picture, stamp)
        spent += time.process_time() - started
        seen += 1
    return 1e3 * spent / max(1, seen)


def patrol_frames(frames: int, seeds: Sequence[int], size: int = 56) -> Iterator[Stamped]:
    """Frames of several patrols, one after the other on one clock."""
    start = 0.0
    for seed in seeds:
        world = PatrolWorld(PatrolSettings(seed=seed, frames=frames, size=size, start=start))
        for frame in world:
            yield frame.picture, frame.stamp
        start = world.stamp(len(world) - 1) + 1.0


def bag_frames(path: Path, most: int = 0) -> Iterator[Stamped]:
    """Frames of a recording, the first ``most`` (0: all)."""
    for frame in islice(BagSource(path).frames(), most or None):
        yield frame.picture, frame.stamp


def ingest_figures(
    model: VideoLanguageModel, frames: Callable[[], Iterable[Stamped]], *, paced: bool
) -> dict[str, Any]:
    """Figures of one stream under every setting."""
    gate, both, pairs = (measure_stream(model, frames(), settings) for settings in (GATE, NOVEL, PAIRS))
    figures = {**both, "gate_only": gate, "gate_ms": gate_ms(frames()), "two_frames_a_grid": pairs}
    return figures | ({"paced": measure_stream(model, frames(), PACED)} if paced else {})


# -- accuracy and capacity --------------------------------------------------------------------------------------------


def patrol_accuracy(
    model: VideoLanguageModel, streams: Sequence[Stream], budget_mib: float, settings: StreamSettings
) -> float:
    """Share of right answers about streams, asked after their last frame."""
    settings = _budgeted(settings, budget_mib)
    return accuracy([line for stream in streams for line in observe_and_ask(model, settings, stream)])


def _budgeted(settings: StreamSettings, budget_mib: float) -> StreamSettings:
    return replace(settings, memory=replace(settings.memory, budget_mib=budget_mib, **TEXT_TOKENS))


def accuracies(model: VideoLanguageModel, streams: Sequence[Stream], slots: int) -> dict[str, float]:
    """Accuracy of a plain memory of so many slots, of mixed precision in its bytes and slots, of thinned streams."""
    text = sum(TEXT_TOKENS.values())
    same_bytes = budget_for_slots(model, slots, text)
    same_slots = budget_for_slots(model, slots, text, MIXED.quantized)
    recent = replace(MIXED, quantized=replace(MIXED.quantized, order="recent"))
    ways = {"plain": PLAIN, "mixed": MIXED, "mixed_recent": recent, "gate": GATE, "gate_and_saliency": NOVEL,
            "two_frames_a_grid": PAIRS}  # fmt: skip
    return {
        **{f"accuracy_{name}": patrol_accuracy(model, streams, same_bytes, way) for name, way in ways.items()},
        "accuracy_mixed_same_slots": patrol_accuracy(model, streams, same_slots, MIXED),
    }


def slots_ratio(layers: int = 36, kv_heads: int = 2, head_dim: int = 128) -> dict[str, Any]:
    """Frame slots of mixed precision over plain bfloat16 in 1 GiB (default shape: Qwen2.5-VL-3B), and the shares."""
    shape = CacheShape(layers, kv_heads, head_dim, torch.bfloat16)
    room: dict[str, Any] = {"pinned": 16, "reserve": 448, "frame_tokens": 192}
    plain, mixed = plan_budget(shape, GIB, **room), plan_budget(shape, GIB, MIXED.quantized, **room)
    return {
        "slots_ratio": mixed.frame_slots / plain.frame_slots,
        "slots": {"plain": plain.frame_slots, "full": mixed.full_frame_slots, "int8": mixed.int8_slots,
                  "int4": mixed.int4_slots},
    }  # fmt: skip


# -- attention error --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerStates:
    """Inputs of one layer's attention."""

    queries: Tensor
    """Rotated, float32 [heads, n, head_dim]."""
    raw_keys: Tensor
    """Not rotated, float32 [kv_heads, slots, head_dim]."""
    values: Tensor
    """float32 [kv_heads, slots, head_dim]."""
    positions: Tensor
    """(t, h, w) of the keys, int32 [kv_heads, slots, 3]."""
    rotary: Rotary


SCHEMES = ("rotated", "unrotated", "mixed_precision")
"""Keys are quantized after their rotation, before it, or as the mixed-precision arena does: un-rotated and without
their mean, keys and values transformed."""


def quantized(states: LayerStates, scheme: str, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Rotated keys and values after quantization with a scheme."""

    def round_trip(x: Tensor) -> Tensor:
        return dequantize_into(quantize(x, bits, group), torch.empty_like(x))

    if scheme == "rotated":
        return round_trip(states.rotary.rotate(states.raw_keys, states.positions)), round_trip(states.values)
    if scheme == "unrotated":
        return states.rotary.rotate(round_trip(states.raw_keys), states.positions), round_trip(states.values)
    codec = QuantizedCodec(states.values.shape[-1], group, states.rotary, states.values.device)
    mean = states.raw_keys.mean(1, keepdim=True)
    keys, values = torch.empty_like(states.raw_keys), torch.empty_like(states.values)
    codec.decode(codec.encode(states.raw_keys, bits, mean), keys, mean, states.positions)
    codec.decode(codec.encode(states.values, bits), values)
    return keys, values


def in_bfloat16(states: LayerStates) -> tuple[Tensor, Tensor]:
    """Rotated keys and values, rounded to bfloat16."""
    keys = states.rotary.rotate(states.raw_keys, states.positions)
    return keys.bfloat16().float(), states.values.bfloat16().float()


def output_error(states: LayerStates, keys: Tensor, values: Tensor) -> float:
    """Relative error of the attention's output with these keys and values against float32, Frobenius norm."""
    exact = states.rotary.rotate(states.raw_keys, states.positions)
    folded = states.queries.reshape(len(keys), -1, states.queries.shape[-1])[None]
    reference = scaled_dot_product_attention(folded, exact[None], states.values[None])
    return float((scaled_dot_product_attention(folded, keys[None], values[None]) - reference).norm() / reference.norm())


@torch.inference_mode()
def attention_errors(layers: Sequence[LayerStates], group: int = 64) -> dict[str, dict[str, float]]:
    """Mean error over the layers: scheme -> int8, int4 (and bfloat16 for comparison)."""
    group = math.gcd(group, layers[0].values.shape[-1])

    def error(coded: Callable[[LayerStates], tuple[Tensor, Tensor]]) -> float:
        return statistics.fmean(output_error(states, *coded(states)) for states in layers)

    errors = {scheme: {f"int{bits}": error(partial(quantized, scheme=scheme, bits=bits, group=group))
                       for bits in (8, 4)} for scheme in SCHEMES}  # fmt: skip
    return {**errors, "bfloat16": {"bfloat16": error(in_bfloat16)}}


@torch.inference_mode()
def memory_states(memory: VideoMemory, question: str) -> list[LayerStates]:
    """States of a memory's frames and of a question about them, all layers; the memory is unchanged."""
    model = memory.model
    with model.capture_queries(range(model.shape.layers)) as captured:
        memory.ask(question, max_new_tokens=1)
    at = model.layout.text(memory.ingest.text_start, captured[0].shape[1])
    return _states(model, memory.arena, captured, at)


@torch.inference_mode()
def text_states(model: VideoLanguageModel, ids: Sequence[int]) -> list[LayerStates]:
    """States of all layers after reading a text."""
    budget = smallest_budget(model.shape, 0, 1, len(ids))
    arena = Arena(plan_budget(model.shape, budget, pinned=0, reserve=1, frame_tokens=1), model.rotary)
    at = model.layout.text(0, len(ids))
    number = torch.zeros(len(ids), dtype=torch.int32)
    arena.begin(Chunk(at, number, number.short()), frames=True)
    with model.capture_queries(range(model.shape.layers)) as captured:
        model.forward(arena, model.embed(ids), at, logits=False)
    arena.commit()
    newest = {layer: queries[:, -QUERIES:] for layer, queries in captured.items()}
    return _states(model, arena, newest, at[-QUERIES:])


def _states(
    model: VideoLanguageModel, arena: Arena, captured: Mapping[int, Tensor], at: Tensor
) -> list[LayerStates]:
    """States of the frame slots of all layers; :param captured: queries, not rotated; :param at: their positions."""
    states = []
    for layer, queries in sorted(captured.items()):
        view = arena.frame_slots(layer)
        rotated = model.rotary.rotate(queries, at.expand(len(queries), -1, -1))
        states.append(LayerStates(rotated, view.unrotated_keys.clone(), view.values.float(), view.positions.clone(),
                                  model.rotary))  # fmt: skip
    return states


def attention_error_by_model(model: VideoLanguageModel, weights: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Errors by model and scheme; SmolLM2 only where its weights are in the folder ``weights``."""
    memory = VideoMemory(_budgeted(PLAIN, 8.0), model)
    world = PatrolWorld(PatrolSettings(seed=_SEED, frames=64))
    for frame in world:
        memory.observe(frame.picture, frame.stamp)
    errors = {"tiny": attention_errors(memory_states(memory, world.questions(1)[0].text))}
    memory.close()
    if next(weights.rglob("*.gguf"), None) is None:
        report(f"SmolLM2 is left out: no weights in {weights} (`kvstream benchmark real_scale` fetches them)")
        return errors
    large = smollm2.load(weights)
    return errors | {"smollm2": attention_errors(text_states(large, large.tokenize(TEXT.read_text()[:8000])[:1024]))}


# -- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--model", default="tiny", help="'tiny' or a local folder (%(default)s)")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="frames shown of each stream (0: all)")
    parser.add_argument("--streams", type=int, default=12, metavar="N", help="patrol streams with questions")
    parser.add_argument("--questions", type=int, default=22, metavar="N", help="questions about each of them")
    parser.add_argument("--weights", type=Path, default=smollm2.CACHE, help="folder of SmolLM2's GGUF file, if any")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything; progress goes to the console. Returns the object of ``--json``."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    small, large = load(options.model), load(options.model, max_frame_pixels=MAX_PIXELS)
    half = (options.frames or 192) // 2
    streams: dict[str, tuple[VideoLanguageModel, Callable[[], Iterable[Stamped]]]] = {
        "patrol": (small, lambda: patrol_frames(half, (_SEED, _SEED + 1))),
        "yard": (large, lambda: bag_frames(DATA / "yard", options.frames)),
        "donkey_track": (large, lambda: bag_frames(DATA / "donkey_track", options.frames or 400)),
    }
    report: dict[str, Any] = {}
    for name, (model, frames) in streams.items():
        report[name] = ingest_figures(model, frames, paced=name == "yard")
        console.print(f"{name}: {report[name]['ingest_time_ratio']:.2f} of the plain ingest time")
    console.print("attention error")
    errors = attention_error_by_model(small, options.weights, console.print)
    console.print(f"accuracy: {options.streams} streams of {PATROL_FRAMES} frames")
    asked = [make_stream(PatrolWorld(PatrolSettings(seed=_SEED + number, frames=PATROL_FRAMES, objects=OBJECTS)),
                         options.questions) for number in range(options.streams)]  # fmt: skip
    report["mixed_precision"] = {
        **slots_ratio(), **accuracies(load(options.model, dtype="bfloat16"), asked, PATROL_FRAMES),
        "attention_error": errors.get("smollm2", errors["tiny"])["mixed_precision"], "attention_error_by_model": errors,
    }  # fmt: skip
    return report


def show(report: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    ratios = ("gate_only", "two_frames_a_grid")
    console.print(figures_table(
        "ingest", ("stream", "gated", "pruned", "time / plain", "gate alone", "two frames a grid", "gate ms"),
        ((name, f"{row['gated']:.1%}", f"{row['pruned']:.1%}", f"{row['ingest_time_ratio']:.2f}",
          *(f"{row[part]['ingest_time_ratio']:.2f}" for part in ratios), f"{row['gate_ms']:.2f}")
         for name, row in report.items() if name != "mixed_precision"),
    ))  # fmt: skip
    console.print("yard, gate adaptive at half a frame per second, and saliency: {gated:.1%} gated, {pruned:.1%} "
                  "pruned, {ingest_time_ratio:.2f} of the plain time".format(**report["yard"]["paced"]))  # fmt: skip
    mixed = report["mixed_precision"]
    console.print(figures_table(
        "relative error of attention's output", ("model and coding", "int8", "int4", "bfloat16"),
        ((f"{name}, {scheme}", *(f"{row[key]:.4f}" if key in row else "" for key in ("int8", "int4", "bfloat16")))
         for name, schemes in mixed["attention_error_by_model"].items() for scheme, row in schemes.items()),
    ))  # fmt: skip
    console.print(f"slots in the same bytes: {mixed['slots_ratio']:.2f} of plain bfloat16")
    for key, value in mixed.items():
        if key.startswith("accuracy"):
            console.print(f"{key.replace('_', ' ')}: {value:.3f}")
