"""Timing of a frame's and a question's way at the block shapes of Qwen2.5-VL-3B, ours beside the library's own.

Both paths share one set of random weights: a stated number of the 36 language-model layers and 32 vision blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from benchmarks.device_clock import median_ms, peak_bytes
from ros_kvstream.memory.arena import NO_FRAME, Arena, Chunk
from ros_kvstream.memory.budget import CacheShape, plan_budget, smallest_budget
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.arena_cache import arena_cache, cache_argument
from ros_kvstream.models.attention import use_arena_attention
from ros_kvstream.models.packed_weights import pack_weights
from ros_kvstream.models.qwen2_5_vl_vision import BatchedVisionTower
from ros_kvstream.models.qwen_vl import library_tower, mrope_axes

SIDE_PATCHES = 24
"""336 pixels of 14 each: 576 patches, 144 visual tokens."""
FRAME_TOKENS = 144
SECTIONS = (16, 24, 24)


@dataclass(frozen=True)
class IngestShape:
    """What is measured; the defaults fit into 4 GiB and a few minutes on two cores."""

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
    """Most bytes of tensors beyond those that were there before."""
    ours_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Plain time over our time."""
        return self.plain_ms / self.ours_ms


def make_network(shape: IngestShape) -> Any:
    """Random weights of the true block shapes; a small vocabulary, since the head is the same on both paths."""
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 1024,
            "hidden_size": 2048,
            "intermediate_size": 11008,
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
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
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
    """Both paths turn about, the plain one first: times, largest difference of the results, peaks of memory."""
    difference = (paths[0]() - paths[1]()).abs().max().item()
    plain_ms, ours_ms = median_ms(paths, shape.repeats, shape.device)
    plain_bytes, ours_bytes = (peak_bytes(path, shape.device) for path in paths)
    return PairOfTimes(plain_ms, ours_ms, difference, plain_bytes, ours_bytes)


class Ours:
    """The arena path over the shared weights."""

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
        """Random keys and values, one frame after the other."""
        for frame in range(slots // FRAME_TOKENS):
            self.arena.begin(frame_chunk(frame), frames=True)
            for layer in range(self.arena.plan.shape.layers):
                keys, values = torch.randn(2, 2, FRAME_TOKENS, 128, device=self.arena.device)
                self.arena.write(layer, keys.to(self.arena.plan.shape.dtype), values.to(self.arena.plan.shape.dtype))
            self.arena.commit()

    def append(self, embeddings: Tensor, frame: int) -> Tensor:
        """Prefill tokens behind the memory, and take them back."""
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
        """Prefill tokens behind the cache, and take them back."""
        positions = frame_chunk(frame, len(embeddings)).positions.long().T[:, None].to(embeddings.device)
        hidden: Tensor = self.text(
            inputs_embeds=embeddings[None], position_ids=positions, use_cache=True, **{self.name: self.cache}
        ).last_hidden_state
        self.cache.crop(-len(embeddings))
        return hidden


def frame_chunk(frame: int, tokens: int = FRAME_TOKENS) -> Chunk:
    """Table entries of one frame of 12 x 12 tokens, or of text where it is a single token."""
    place = torch.arange(tokens, dtype=torch.int32)
    positions = torch.stack([torch.full_like(place, frame), place // 12, place % 12], dim=-1)
    return Chunk(positions, torch.full_like(place, frame if tokens > 1 else NO_FRAME), place.short() * 0)


@torch.inference_mode()
def time_vision(network: Any, shape: IngestShape) -> PairOfTimes:
    """One frame through the vision tower."""
    tower = network.model.visual
    pixels = torch.randn(SIDE_PATCHES**2, 1176, device=shape.device, dtype=shape.dtype)
    packed = copy.deepcopy(tower, memo={id(parameter): parameter for parameter in tower.parameters()})
    pack_weights(packed)
    batched = BatchedVisionTower(packed)
    paths: list[Callable[[], Tensor]] = [
        lambda: library_tower(tower, [pixels], [(SIDE_PATCHES, SIDE_PATCHES)])[0],
        lambda: batched(pixels[None], SIDE_PATCHES, SIDE_PATCHES)[0],
    ]
    return measured(paths, shape)


@torch.inference_mode()
def time_language(network: Any, shape: IngestShape, slots: int) -> dict[str, PairOfTimes]:
    """A frame's prefill and a decode step at ``slots`` slots."""
    ours = Ours(network, shape, slots)
    plain = Plain(network, ours)
    frame = slots // FRAME_TOKENS
    times = {}
    for name, tokens in (("prefill", FRAME_TOKENS), ("decode", 1)):
        embeddings = torch.randn(tokens, 2048, device=shape.device, dtype=shape.dtype)
        paths = [partial(plain.append, embeddings, frame), partial(ours.append, embeddings, frame)]
        times[name] = measured(paths, shape)
    return times
