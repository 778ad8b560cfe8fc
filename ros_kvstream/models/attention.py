# SPDX-License-Identifier: Apache-2.0
"""Attention over the arena's own K/V tensors: no copy of the memory, grouped queries as rows, slots can be hidden.

Registered with transformers as the implementation "kvstream", for the language model only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ros_kvstream.models.torch_compat import flash_on_cpu
from ros_kvstream.models.transformers_compat import register_attention, set_attention

NAME = "kvstream"
SPLIT_KEYS = 1024
"""Keys from which a chunk's attention is split into memory and chunk; with fewer, two calls cost more than a mask."""


def split_attention(kernel: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Attention of a chunk over the memory without a mask and over itself causally, merged by log-sum-exps.

    :param query: [1, heads, tokens, head_dim].
    :param key: [1, kv_heads, keys, head_dim]; the chunk's own keys are the last ones.
    :returns: like ``query``.
    """
    heads, tokens, dim = query.shape[1:]
    kv_heads, memory = key.shape[1], key.shape[2] - tokens
    folded = query.reshape(1, kv_heads, heads // kv_heads * tokens, dim)
    past, past_sums = kernel(folded, key[:, :, :memory], value[:, :, :memory], scale=scaling)[:2]
    own = [states[:, :, memory:].repeat_interleave(heads // kv_heads, 1) for states in (key, value)]
    now, now_sums = kernel(query, own[0], own[1], is_causal=True, scale=scaling)[:2]
    share = torch.sigmoid(past_sums.reshape(now_sums.shape) - now_sums)[..., None]
    return torch.lerp(now.float(), past.reshape(now.shape).float(), share).to(query.dtype)


def arena_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a chunk whose keys and values are the last ones of ``key`` and ``value``.

    :param query: [1, heads, tokens, head_dim]; :param key: [1, kv_heads, keys, head_dim], views of the arena.
    :param kwargs: ``visible``: per layer bool [kv_heads, memory slots], False where a slot is hidden; or None.
    :returns: [1, tokens, heads, head_dim] and None.
    """
    heads, tokens, dim = query.shape[1:]
    kv_heads, keys = key.shape[1:3]
    groups = heads // kv_heads
    visible = kwargs.get("visible")
    if visible is None and 1 < tokens < keys and keys >= SPLIT_KEYS and query.device.type == "cpu":
        kernel = flash_on_cpu()
        if kernel is not None:
            return split_attention(kernel, query, key, value, scaling).transpose(1, 2), None
    mask = None
    if tokens > 1:  # all of the memory is visible, and the chunk itself causally
        mask = torch.ones(tokens, keys, dtype=torch.bool, device=query.device).tril(keys - tokens).repeat(groups, 1)
    if visible is not None:
        layer = visible[module.layer_idx]
        shown = torch.nn.functional.pad(layer, (0, keys - layer.shape[1]), value=True)[:, None]
        mask = shown.expand(-1, groups * tokens, -1) if mask is None else shown & mask
        mask = mask[None]
    folded = query.reshape(1, kv_heads, groups * tokens, dim)
    output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(1, heads, tokens, dim).transpose(1, 2), None


def use_arena_attention(language_model: Any) -> None:
    """Set :func:`arena_attention` as the attention of a language model of transformers."""
    register_attention(NAME, arena_attention)
    set_attention(language_model.config, NAME)
