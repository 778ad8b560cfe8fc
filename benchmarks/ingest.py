# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark ingest`: time of a frame's and a question's way, beside the library's own forward.

One process, shared random weights at the block shapes of Qwen2.5-VL-3B (a stated number of its 36 language-model layers
and 32 vision blocks), both paths in alternating order. Takes a few minutes and 4 GiB.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from transformers import DynamicCache, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from benchmarks import figures_table, selection
from benchmarks.timing import copy_bandwidth, median_ms, milliseconds, peak_bytes
from ros_kvstream.memory.arena import NO_FRAME, Arena, Chunk
from ros_kvstream.memory.budget import MIB, CacheShape, plan_budget, smallest_budget
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.attention import use_arena_attention
from ros_kvstream.models.devices import resolve_device
from ros_kvstream.models.packed_weights import pack_weights
from ros_kvstream.models.qwen2_5_vl import BatchedVisionTower
from ros_kvstream.models.qwen_vl import mrope_axes
from ros_kvstream.models.transformers_compat import arena_cache, cache_argument, run_vision_tower
from ros_kvstream.settings import ArchiveSettings, MemorySettings, StreamSettings
from ros_kvstream.stream.memory import VideoMemory

LAYERS, BLOCKS = 36, 32
"""Of the whole model; times of fewer are scaled up."""
SIDE_PATCHES = 24
"""336 pixels of 14 each: 576 patches, 144 visual tokens."""
FRAME_TOKENS = 144
HIDDEN, INNER, KEY_WIDTH = 2048, 11008, 256
"""Widths of a language-model layer: hidden, feed-forward, keys of all KV heads."""
VISION_HIDDEN, VISION_INNER = 1280, 3420
PATCH_VALUES = 1176
SECTIONS = (16, 24, 24)
GRIDS_PER_COMPACTION = 8
"""Published setting: 32 grids cut to 24."""
TTFT_FRAMES = (16, 64, 256, 1024, 10_000)
MATRIX_SIDE = 2048
COPY_BYTES = 1 << 28


@dataclass(frozen=True)
class IngestShape:
    """Size of the measurement; the defaults need 4 GiB and a few minutes on two cores."""

    layers: int = 2
    blocks: int = 4
    slots: tuple[int, ...] = (144, 1440, 4608)
    repeats: int = 5
    dtype: torch.dtype = torch.bfloat16
    device: str = "cpu"


@dataclass(frozen=True)
class PairOfTimes:
    """One step on both paths."""

    plain_ms: float
    ours_ms: float
    difference: float = 0.0
    """Largest difference of the results, which are of the order of 1."""
    plain_bytes: int = 0
    """Peak of the bytes in additional tensors."""
    ours_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Plain time over our time."""
        return self.plain_ms / self.ours_ms


def make_network(shape: IngestShape) -> Any:
    """Make random weights of the true block shapes; the vocabulary is small, since both paths share the head."""
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 1024,
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(SECTIONS)},
            "bos_token_id": None,
            "eos_token_id": None,
        },
        vision_config={
            "depth": shape.blocks,
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": VISION_INNER,
            "num_heads": 16,
            "out_hidden_size": HIDDEN,
            "fullatt_block_indexes": [shape.blocks - 1],
        },
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(shape.dtype)
    try:
        return Qwen2_5_VLForConditionalGeneration(config).to(shape.device).eval()
    finally:
        torch.set_default_dtype(default)


def measured(paths: Sequence[Callable[[], Tensor]], shape: IngestShape) -> PairOfTimes:
    """Measure both paths alternately, the plain one first: times, peaks of memory, difference of the results."""
    results: list[Tensor] = []

    def keep_result(path: Callable[[], Tensor]) -> None:
        results.append(path())

    plain_ms, ours_ms = median_ms(paths, shape.repeats, shape.device)
    plain_bytes, ours_bytes = (peak_bytes(partial(keep_result, path), shape.device) for path in paths)
    difference = (results[0] - results[1]).abs().max().item()
    return PairOfTimes(plain_ms, ours_ms, difference, plain_bytes, ours_bytes)


class Ours:
    """This package's path over the shared weights."""

    def __init__(self, network: Any, shape: IngestShape, slots: int) -> None:
        shared = {id(parameter): parameter for parameter in network.parameters()}
        self.text = copy.deepcopy(network.model.language_model, memo=shared)
        use_arena_attention(self.text)
        pack_weights(self.text)
        cache_shape = CacheShape(shape.layers, 2, 128, shape.dtype)
        budget = smallest_budget(cache_shape, 0, FRAME_TOKENS, slots + FRAME_TOKENS)
        rotary = Rotary(network.model.language_model.rotary_emb.inv_freq.float(), mrope_axes(SECTIONS).to(shape.device))
        plan = plan_budget(cache_shape, budget, pinned=0, reserve=FRAME_TOKENS, frame_tokens=FRAME_TOKENS)
        self.arena = Arena(plan, rotary, shape.device)
        self.cache = arena_cache(self.arena)
        self.name = cache_argument(self.text)
        self._fill(slots)

    def _fill(self, slots: int) -> None:
        """Write random keys and values, one frame after the other."""
        for frame in range(slots // FRAME_TOKENS):
            self.arena.begin(frame_chunk(frame), frames=True)
            for layer in range(self.arena.plan.shape.layers):
                keys, values = torch.randn(2, 2, FRAME_TOKENS, 128, device=self.arena.device)
                self.arena.write(layer, keys.to(self.arena.plan.shape.dtype), values.to(self.arena.plan.shape.dtype))
            self.arena.commit()

    def append(self, embeddings: Tensor, frame: int) -> Tensor:
        """Prefill tokens after the memory's, then roll back."""
        chunk = frame_chunk(frame, len(embeddings))
        self.arena.begin(chunk, frames=len(embeddings) > 1)
        hidden: Tensor = self.text(
            inputs_embeds=embeddings[None], position_ids=chunk.positions.long().T[:, None], use_cache=True,
            visible=None, **{self.name: self.cache},
        ).last_hidden_state  # fmt: skip
        self.arena.abort()
        return hidden


class Plain:
    """The library's forward with its own attention and a DynamicCache."""

    def __init__(self, network: Any, ours: Ours) -> None:
        self.text = network.model.language_model
        self.name = cache_argument(self.text)
        self.cache = DynamicCache()
        for index in range(ours.arena.plan.shape.layers):
            keys, values = ours.arena.layer(index)
            self.cache.update(keys[None].clone(), values[None].clone(), index)

    def append(self, embeddings: Tensor, frame: int) -> Tensor:
        """Prefill tokens after the cache's, then roll back."""
        positions = frame_chunk(frame, len(embeddings)).positions.long().T[:, None].to(embeddings.device)
        hidden: Tensor = self.text(
            inputs_embeds=embeddings[None], position_ids=positions, use_cache=True, **{self.name: self.cache}
        ).last_hidden_state
        self.cache.crop(-len(embeddings))
        return hidden


def frame_chunk(frame: int, tokens: int = FRAME_TOKENS) -> Chunk:
    """Slot-table entries of one frame of 12 x 12 tokens, or of a single text token."""
    patch = torch.arange(tokens, dtype=torch.int32)
    positions = torch.stack([torch.full_like(patch, frame), patch // 12, patch % 12], dim=-1)
    return Chunk(positions, torch.full_like(patch, frame if tokens > 1 else NO_FRAME), patch.short() * 0)


@torch.inference_mode()
def time_vision(network: Any, shape: IngestShape) -> PairOfTimes:
    """Time one frame through the vision tower."""
    tower = network.model.visual
    pixels = torch.randn(SIDE_PATCHES**2, PATCH_VALUES, device=shape.device, dtype=shape.dtype)
    packed = copy.deepcopy(tower, memo={id(parameter): parameter for parameter in tower.parameters()})
    pack_weights(packed)
    batched = BatchedVisionTower(packed)
    paths: list[Callable[[], Tensor]] = [
        lambda: run_vision_tower(tower, [pixels], [(SIDE_PATCHES, SIDE_PATCHES)])[0],
        lambda: batched(pixels[None], SIDE_PATCHES, SIDE_PATCHES)[0],
    ]
    return measured(paths, shape)


@torch.inference_mode()
def time_language(network: Any, shape: IngestShape, slots: int) -> dict[str, PairOfTimes]:
    """Time a frame's prefill and a decode step at ``slots`` slots."""
    ours = Ours(network, shape, slots)
    plain = Plain(network, ours)
    frame = slots // FRAME_TOKENS
    times = {}
    for name, tokens in (("prefill", FRAME_TOKENS), ("decode", 1)):
        embeddings = torch.randn(tokens, HIDDEN, device=shape.device, dtype=shape.dtype)
        paths = [partial(plain.append, embeddings, frame), partial(ours.append, embeddings, frame)]
        times[name] = measured(paths, shape)
    return times


# -- the least time that the machine could take -----------------------------------------------------------------------


def vision_operations(shape: IngestShape) -> float:
    """Multiplications and additions of one frame through the vision blocks, patch embedding and merger."""
    patches, window = SIDE_PATCHES**2, 64  # patches in a window of 112 pixels
    linear = 4 * VISION_HIDDEN * VISION_HIDDEN + 3 * VISION_HIDDEN * VISION_INNER
    attended = [patches if block == shape.blocks - 1 else window for block in range(shape.blocks)]
    attention = sum(2 * keys * VISION_HIDDEN for keys in attended)
    merger = FRAME_TOKENS * (16 * VISION_HIDDEN * VISION_HIDDEN + 4 * VISION_HIDDEN * HIDDEN)
    return 2.0 * (patches * (PATCH_VALUES * VISION_HIDDEN + shape.blocks * linear + attention) + merger)


def layer_weights() -> int:
    """Weights of one language-model layer."""
    return 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEY_WIDTH + 3 * HIDDEN * INNER


def language_operations(shape: IngestShape, tokens: int, slots: int) -> float:
    """Multiplications and additions of a chunk through the language-model layers."""
    return 2.0 * shape.layers * tokens * (layer_weights() + 2 * (slots + tokens) * HIDDEN)


def decode_bytes(shape: IngestShape, slots: int) -> float:
    """Bytes that one decode step must read: all weights of the layers, and keys and values."""
    return float(shape.layers * (layer_weights() + 2 * slots * KEY_WIDTH) * shape.dtype.itemsize)


def matrix_rate(shape: IngestShape) -> float:
    """Floating-point operations per second of a square matrix product in the benchmark's type."""
    work = torch.randn(MATRIX_SIDE, MATRIX_SIDE, device=shape.device).to(shape.dtype)
    out = torch.empty_like(work)
    best = min(milliseconds(lambda: torch.matmul(work, work, out=out), shape.device) for _ in range(5))
    return 2e3 * MATRIX_SIDE**3 / best


def shares_of_floor(
    shape: IngestShape, vision: PairOfTimes, language: Mapping[int, Mapping[str, PairOfTimes]]
) -> dict[str, float]:
    """Our time over the least time, per step: operations at the matrix rate, or bytes at the copy bandwidth."""
    rate = matrix_rate(shape)
    bandwidth = copy_bandwidth(torch.zeros(COPY_BYTES // 4, device=shape.device), shape.device)
    shares = {"vision": vision.ours_ms / 1e3 * rate / vision_operations(shape)}
    for slots, pair in language.items():
        operations = language_operations(shape, FRAME_TOKENS, slots)
        shares[f"prefill at {slots}"] = pair["prefill"].ours_ms / 1e3 * rate / operations
        shares[f"decode at {slots}"] = pair["decode"].ours_ms / 1e3 * bandwidth / decode_bytes(shape, slots)
    return shares


# -- time to first token ----------------------------------------------------------------------------------------------


def time_to_first_token(frames: list[int], questions: int = 31) -> tuple[dict[int, float], int]:
    """Median milliseconds to the first answer token after so many frames, tiny model, small budget, archive on.

    Each length has its own stream; the streams answer in alternating order, so that a disturbance affects all of them.
    The second value is the number of frames at the first compaction: from there on the budget is full.
    """
    memory = MemorySettings(budget_mib=1.0, block_frames=16, max_question_tokens=32, max_answer_tokens=16)
    settings = StreamSettings(memory=memory, archive=ArchiveSettings(budget_mib=8.0))
    pictures = np.random.default_rng(0).integers(0, 255, (64, 56, 56, 3), dtype=np.uint8)
    streams, full_from = {count: VideoMemory(settings) for count in frames}, 0
    for count, stream in streams.items():
        for index in range(count):
            stream.observe(pictures[index % len(pictures)], index / 2)
            full_from = full_from or (index + 1 if stream.arena.compactions else 0)
        while stream.idle():
            pass
    measured: dict[int, list[float]] = {count: [] for count in frames}
    for number in range(questions + 1):
        for count, stream in streams.items():
            answer = stream.ask("what colour was the cone ?", max_new_tokens=1)
            measured[count] += [answer.latency.first_token_ms] if number else []
    for stream in streams.values():
        stream.close()
    return {count: statistics.median(times) for count, times in measured.items()}, full_from


def spread_when_full(first_token: dict[int, float], full_from: int) -> float:
    """Largest over smallest time to first token with a full budget, less 1; 0 with fewer than two."""
    times = [ms for frames, ms in first_token.items() if frames >= full_from]
    return max(times) / min(times) - 1.0 if len(times) > 1 else 0.0


# -- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--layers", type=int, default=2, help="language-model layers that are run (%(default)s)")
    parser.add_argument("--blocks", type=int, default=8, help="vision blocks that are run (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the median counts (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (%(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
                        help="type of the weights (%(default)s); the node's default on a CPU is float32")  # fmt: skip
    parser.add_argument("--frames", type=int, default=TTFT_FRAMES[-1], help="longest stream of the answer latency")


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure; returns the object of ``--json`` (ratios: plain time / our time)."""
    device, dtype = str(resolve_device(options.device)), getattr(torch, options.dtype)
    shape = IngestShape(options.layers, options.blocks, repeats=options.repeats, dtype=dtype, device=device)
    with console.status("Making random weights of Qwen2.5-VL-3B's block shapes"):
        network = make_network(shape)
    with console.status("Vision tower"):
        vision = time_vision(network, shape)
    language = {}
    for slots in shape.slots:
        with console.status(f"Prefill and decode at {slots} slots"):
            language[slots] = time_language(network, shape, slots)
    with console.status("Compaction beside the published formulation"):
        cut = selection.measure(selection.BenchmarkShape(layers=LAYERS), [dtype])[options.dtype]
    with console.status("Time to first token against frames seen"):
        first_token, full_from = time_to_first_token([count for count in TTFT_FRAMES if count <= options.frames])
    steps = {"vision": vision} | {
        f"{name} at {slots}": pair[name] for name in ("prefill", "decode") for slots, pair in language.items()
    }
    full = language[shape.slots[-1]]["prefill"]
    whole = [
        vision_ms * BLOCKS / shape.blocks + prefill_ms * LAYERS / shape.layers + cut_ms / GRIDS_PER_COMPACTION
        for vision_ms, prefill_ms, cut_ms in (
            (vision.plain_ms, full.plain_ms, cut["published_ms"]), (vision.ours_ms, full.ours_ms, cut["ours_ms"]),
        )
    ]  # fmt: skip
    return {
        "dtype": options.dtype,
        "vision": vision.ratio,
        "prefill": {str(slots): pair["prefill"].ratio for slots, pair in language.items()},
        "decode": {str(slots): pair["decode"].ratio for slots, pair in language.items()},
        "compaction": cut["published_ms"] / cut["ours_ms"],
        "ingest": whole[0] / whole[1],
        "ingest_two_frames_a_grid": 2 * whole[0] / whole[1],
        "of_floor": shares_of_floor(shape, vision, language),
        "ttft_ms": {str(frames): ms for frames, ms in first_token.items()},
        "ttft_spread_when_full": spread_when_full(first_token, full_from),
        "ttft_full_from_frames": full_from,
        "ms": {
            **{name: [pair.plain_ms, pair.ours_ms] for name, pair in steps.items()},
            "ingest of a frame, scaled up": whole,
        },
        "peak_mib": {name: [pair.plain_bytes / MIB, pair.ours_bytes / MIB] for name, pair in steps.items()},
    }


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report for people."""
    rows = [(name, f"{plain:.1f}", f"{ours:.1f}", f"{plain / ours:.2f}")
            for name, (plain, ours) in report["ms"].items()]  # fmt: skip
    title = "A frame's and a question's way: the library's forward beside ours (ms, medians)"
    rows.append(("compaction", "", "", f"{report['compaction']:.2f}"))
    console.print(figures_table(title, ("", "plain", "ours", "ratio"), rows))
    peaks = ", ".join(f"{name} {plain:.1f} / {ours:.1f}" for name, (plain, ours) in report["peak_mib"].items())
    console.print(f"Peak of additional memory, MiB, plain / ours: {peaks}")
    console.print("With memory.frames_per_grid = 2 one of our grids holds two frames: "
                  f"{report['ingest_two_frames_a_grid']:.2f} of the plain path's frames in the same time")  # fmt: skip
    console.print(figures_table("Our time over the least that this machine could take", ("step", "times the floor"),
                                ((name, f"{share:.2f}") for name, share in report["of_floor"].items())))  # fmt: skip
    flat = ", ".join(f"{ms:.1f} ms after {int(frames):,}" for frames, ms in report["ttft_ms"].items())
    console.print(f"Time to first token (tiny model, 1 MiB, archive on): {flat} frames")
    full_from, spread = report["ttft_full_from_frames"], 100 * report["ttft_spread_when_full"]
    console.print(f"The budget is full from {full_from} frames on; from there these times differ by {spread:.0f} %")
