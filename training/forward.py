# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a Qwen2.5-VL model for many questions about each stream, on the library's own weights.

Equal to the library's results (test/training/test_forward.py), but faster: all frames go through the vision tower as
one batch, a doubled frame is convolved once with the sum of the two temporal kernels, each question attends to the
stream and itself only, states that no question reads are not computed, and most frames without an object give no
gradient to the vision tower.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen2_5_VLForConditionalGeneration

from training.batch import IGNORE, Batch
from training.lessons import (
    FOLLOWING_HEADS,
    FOLLOWING_WEIGHTS,
    NEIGHBOUR_WEIGHTS,
    NOUN_LAYER,
    POINTERS,
    following_loss,
    naming_loss,
    neighbour_loss,
    norm,
    pointing_loss,
)

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def normalise(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 pictures [..., 3] -> float32 as the image processor makes them."""
    return (pixels.float() / 255.0 - torch.tensor(_MEAN)) / torch.tensor(_DEVIATION)


def _turn(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of the last axis against each other."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-second, first], dim=-1) * sin


def see(model: Qwen2_5_VLForConditionalGeneration, pixels: torch.Tensor) -> torch.Tensor:
    """Vision tower for normalised pictures float32 [frames, 56, 56, 3] -> [frames, 4, hidden]."""
    tower = model.model.visual
    patch, merge, dim = tower.patch_size, tower.spatial_merge_size, tower.config.hidden_size
    frames, side = pixels.shape[0], pixels.shape[1] // patch
    blocks = pixels.view(frames, side // merge, merge, patch, side // merge, merge, patch, 3)
    patches = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(frames, side * side, -1)
    kernel = tower.patch_embed.proj.weight.sum(dim=2).view(dim, -1)
    hidden = patches @ kernel.T
    grid = torch.arange(side).view(side // merge, merge)
    rows = grid[:, None, :, None].expand(-1, side // merge, -1, merge).reshape(-1)
    columns = grid[None, :, None, :].expand(side // merge, -1, merge, -1).reshape(-1)
    turns = torch.stack([rows, columns])[..., None].float() * tower.rotary_pos_emb.inv_freq
    angles = torch.cat([turns[0], turns[1]], dim=-1).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    for block in tower.blocks:
        attention = block.attn
        states = attention.qkv(norm(block.norm1, hidden)).view(frames, side * side, 3, attention.num_heads, -1)
        query, key, value = states.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(_turn(query, cos, sin), _turn(key, cos, sin), value)
        hidden = hidden + attention.proj(mixed.transpose(1, 2).reshape(frames, side * side, dim))
        hidden = hidden + block.mlp(norm(block.norm2, hidden))
    merged = norm(tower.merger.ln_q, hidden).view(frames, -1, dim * merge * merge)
    return tower.merger.mlp(merged)


def _angles(model: Qwen2_5_VLForConditionalGeneration, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [batch, 1, tokens, head dim] of positions [3, batch, tokens]."""
    rotary = model.model.language_model.rotary_emb
    turns = positions[..., None].float() * rotary.inv_freq
    parts = turns.split(rotary.mrope_section, dim=-1)
    angles = torch.cat([part[axis % 3] for axis, part in enumerate(parts)], dim=-1).repeat(1, 1, 2)[:, None]
    return angles.cos(), angles.sin()


def _heads(attention: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values [batch, heads, tokens, head dim], un-rotated."""
    batch, tokens, _ = hidden.shape
    return tuple(  # type: ignore[return-value]
        layer(hidden).view(batch, tokens, -1, attention.head_dim).transpose(1, 2)
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    )


def _finish(layer: Any, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
    """Output projection and feed-forward network, with their residuals."""
    batch, _, tokens, _ = mixed.shape
    hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
    return hidden + layer.mlp(norm(layer.post_attention_layernorm, hidden))


def _question_attention(
    query: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], values: tuple[torch.Tensor, torch.Tensor], asked: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each of the ``asked`` questions attends to the stream (first of the pairs) and causally to itself (second).

    Also returns the attention on both, [batch, heads, asked * longest, stream tokens + longest].
    """
    batch, heads, tokens, dim = query.shape
    own = (batch, heads, asked, tokens // asked, dim)
    query = query * dim**-0.5
    far = query @ keys[0].transpose(-1, -2)
    near = query.reshape(own) @ keys[1].reshape(own).transpose(-1, -2)
    length = own[3]
    near = near.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    weights = torch.cat([far, near.reshape(batch, heads, tokens, length)], dim=-1).softmax(dim=-1)
    far, near = weights.split([far.shape[-1], length], dim=-1)
    mixed = near.reshape(batch, heads, asked, length, length) @ values[1].reshape(own)
    return far @ values[0] + mixed.reshape(batch, heads, tokens, dim), weights


def _see_all(model: Qwen2_5_VLForConditionalGeneration, batch: Batch) -> torch.Tensor:
    """Merged tokens [streams * frames, 4, hidden]; only the frames in ``batch.taught`` teach the vision tower."""
    pixels, taught = batch.pixels.flatten(0, 1), batch.taught.flatten()
    if bool(taught.all()) or not torch.is_grad_enabled():
        return see(model, normalise(pixels))
    with torch.no_grad():
        others = see(model, normalise(pixels[~taught]))
    seen = torch.empty(len(pixels), *others.shape[1:])
    seen[~taught] = others
    return seen.masked_scatter(taught[:, None, None], see(model, normalise(pixels[taught])))


def answer_states(model: Qwen2_5_VLForConditionalGeneration, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states of the questions [streams, questions, longest, hidden], and the loss of the side lessons."""
    text = model.model.language_model
    streams, frames = batch.pixels.shape[:2]
    seen = _see_all(model, batch).view(streams, frames * 4, -1)
    words = list(enumerate(batch.word_groups))
    lessons = naming_loss(model, seen, batch.contents, words)
    prefix = text.embed_tokens(batch.prefix).expand(streams, -1, -1)
    stream = torch.cat([prefix, seen], dim=1)
    asked, longest = batch.questions.shape[1:]
    question = text.embed_tokens(batch.questions).flatten(1, 2)
    stream_turn = _angles(model, batch.stream_positions)
    question_turn = _angles(model, batch.question_positions.repeat(1, asked).expand(3, -1, -1))
    for index, layer in enumerate(text.layers):
        attention = layer.self_attn
        groups = attention.num_key_value_groups
        query, key, value = _heads(attention, norm(layer.input_layernorm, stream))
        key, value = (states.repeat_interleave(groups, dim=1) for states in (_turn(key, *stream_turn), value))
        own_query, own_key, own_value = _heads(attention, norm(layer.input_layernorm, question))
        own_key = _turn(own_key, *question_turn).repeat_interleave(groups, dim=1)
        own_value = own_value.repeat_interleave(groups, dim=1)
        own_query = _turn(own_query, *question_turn)
        mixed, attention_paid = _question_attention(own_query, (key, own_key), (value, own_value), asked)
        question = _finish(layer, question, mixed)
        rows = batch.nouns[..., None, None].expand(-1, -1, 1, question.shape[-1])
        nouns = question.view(streams, asked, longest, -1).gather(2, rows)[:, :, 0]
        if index == NOUN_LAYER:
            lessons = lessons + naming_loss(model, nouns, batch.told, words[2:])
        if index - 1 in NEIGHBOUR_WEIGHTS:
            told = neighbour_loss(model, nouns, batch.told[..., 0], words[0][1])
            lessons = lessons + NEIGHBOUR_WEIGHTS[index - 1] * told
        for pointer in POINTERS:
            if pointer.layer == index:
                lessons = lessons + pointing_loss(attention_paid[:, pointer.heads], batch, pointer)
        if index + 1 < len(text.layers):
            query = _turn(query, *stream_turn)
            if index in FOLLOWING_WEIGHTS:
                followed = following_loss(query[:, FOLLOWING_HEADS], key[:, FOLLOWING_HEADS], batch.followed)
                lessons = lessons + FOLLOWING_WEIGHTS[index] * followed
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            stream = _finish(layer, stream, mixed)
        if index in NEIGHBOUR_WEIGHTS:
            told = neighbour_loss(model, stream, batch.predecessors, words[0][1])
            lessons = lessons + NEIGHBOUR_WEIGHTS[index] * told
    return norm(text.norm, question).view(streams, asked, longest, -1), lessons


def loss_and_right(
    model: Qwen2_5_VLForConditionalGeneration, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean loss of a question (sum over its tokens), loss of the side lessons, which are right [streams, questions]."""
    chosen = batch.labels != IGNORE
    states, lessons = answer_states(model, batch)
    logits = model.lm_head(states[chosen])
    labels = batch.labels[chosen]
    loss = functional.cross_entropy(logits, labels, reduction="sum")
    wrong = torch.zeros_like(chosen)
    wrong[chosen] = logits.argmax(dim=-1) != labels
    return loss / (chosen.shape[0] * chosen.shape[1]), lessons, ~wrong.any(dim=-1)
