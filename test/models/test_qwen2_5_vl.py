# SPDX-License-Identifier: Apache-2.0
"""Qwen2.5-VL: many shapes of the network against the oracle, and the batched vision tower against the library's."""

from __future__ import annotations

import pytest
import torch
from support.family_checks import QUESTION, feed, frames_of, question_logits, stream_of
from support.oracles import qwen2_5_vl as oracle
from support.tiny_models import qwen2_5_vl

from ros_kvstream.models.attention import NAME, arena_attention
from ros_kvstream.models.qwen2_5_vl import BatchedVisionTower
from ros_kvstream.models.transformers_compat import register_attention, run_vision_tower

SHAPES = [
    {"seed": 1, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "sections": (4, 2, 2)},
    {"seed": 2, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "sections": (2, 3, 3)},
    {"seed": 3, "layers": 1, "heads": 4, "kv_heads": 4, "head_dim": 32, "sections": (8, 4, 4), "pixels": 112 * 84},
    {"seed": 4, "layers": 4, "heads": 6, "kv_heads": 2, "head_dim": 8, "sections": (2, 1, 1), "tokens_per_second": 25},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"seed{shape['seed']}")
@pytest.mark.parametrize("block_frames", [1, 3])
def test_streamed_memory_equals_the_familys_own_full_forward(shape: dict, block_frames: int) -> None:
    model = qwen2_5_vl(**shape)
    frames, stamps = frames_of(shape["seed"], 7), [100.0, 100.5, 101.5, 101.7, 103.0, 110.0, 110.04]
    memory = stream_of(model, block_frames=block_frames)
    feed(memory, frames, stamps)
    assert (question_logits(memory) - oracle(model, frames, stamps, QUESTION)[-1]).abs().max() < 1e-4


def test_answer_equals_greedy_decoding_of_the_full_forward() -> None:
    model = qwen2_5_vl(seed=5)
    frames, stamps = frames_of(5, 4), [1.0, 2.0, 3.0, 4.0]
    memory = stream_of(model)
    feed(memory, frames, stamps)
    answer = memory.ask(QUESTION, max_new_tokens=6)
    words: list[int] = []
    suffix = model.suffix_ids(QUESTION)
    model.suffix_ids = lambda question: [*suffix, *words]  # type: ignore[method-assign]
    for _ in range(6):
        token = int(oracle(model, frames, stamps, QUESTION)[-1].argmax())
        if token in model.eos_ids:
            break
        words.append(token)
    assert answer.text == model.decode(words)
    assert answer.latency.answer_tokens == len(words)


def test_captured_queries_rotate_into_those_of_the_attention() -> None:
    model = qwen2_5_vl(seed=6)
    memory = stream_of(model)
    memory.observe(frames_of(6, 1)[0], 0.0)
    seen: list[torch.Tensor] = []
    attention = model.network.model.language_model.layers[1].self_attn
    def spy(layer, query, *args, **kwargs):  # type: ignore[no-untyped-def]
        if layer is attention:
            seen.append(query[0].clone())
        return arena_attention(layer, query, *args, **kwargs)

    register_attention(NAME, spy)
    try:
        with model.capture_queries([1]) as queries:
            question_logits(memory, QUESTION)
    finally:
        register_attention(NAME, arena_attention)
    tokens = queries[1].shape[1]
    start = memory.ingest.text_start
    positions = model.layout.text(start, tokens)[None].expand(queries[1].shape[0], -1, -1)
    assert torch.allclose(model.rotary.rotate(queries[1], positions), seen[-1], atol=1e-5)


# -- the vision tower -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(56, 56), (28, 28), (112, 112), (140, 84), (200, 120), (168, 224), (84, 196)], ids=lambda size: f"{size}"
)
@pytest.mark.parametrize("frames", [1, 3])
def test_batched_tower_equals_the_librarys_on_any_picture_size(size: tuple[int, int], frames: int) -> None:
    model = qwen2_5_vl(pixels=300 * 300, seed=frames)
    inputs = model.image_processor(images=frames_of(size[0], frames, size), return_tensors="pt")
    grid = inputs["image_grid_thw"]
    tower = model.network.model.visual
    with torch.inference_mode():
        patches = inputs["pixel_values"].view(frames, -1, inputs["pixel_values"].shape[-1])
        expected, _ = run_vision_tower(tower, list(patches), grid[:, 1:].tolist())
        ours = BatchedVisionTower(tower)(patches, *grid[0, 1:].tolist())
    assert ours.shape == (frames, expected.shape[0] // frames, expected.shape[1])
    assert torch.allclose(ours.flatten(0, 1), expected, atol=1e-5)
