"""Attention over the arena's own planes: no copy of the memory, grouped queries folded into rows, frames hidden.

Registered with transformers as the implementation "kvstream", for the language model only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "kvstream"
SPLIT_KEYS = 1024
"""From this many keys on a chunk's attention is split into memory and chunk: below, two calls cost more than a mask."""


def chunk_mask(tokens: int, keys: int, groups: int, device: torch.device) -> Tensor | None:
    """True where a chunk's query may look: all of the memory, and causally into the chunk itself.

    :returns: bool [groups * tokens, keys], or None when a single token may look at everything.
    """
    if tokens == 1:
        return None
    return torch.ones(tokens, keys, dtype=torch.bool, device=device).tril(keys - tokens).repeat(groups, 1)


@cache
def flash_on_cpu() -> Any:
    """torch's attention kernel for the CPU that also returns log-sum-exps; None where this torch has none that works.

    It is not public, so it is tried on a known case before it is trusted.
    """
    try:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        query, key, value = torch.linspace(-1.0, 1.0, 3 * 2 * 3 * 8).view(3, 1, 2, 3, 8)
        output, log_sums = kernel(query, key, value, is_causal=True, scale=0.5)[:2]
        scores = (0.5 * query @ key.mT).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -torch.inf)
        works = torch.allclose(log_sums, scores.logsumexp(-1), atol=1e-5)
        return kernel if works and torch.allclose(output, scores.softmax(-1) @ value, atol=1e-5) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


def split_attention(kernel: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """A chunk's attention over the memory without a mask and over itself causally, merged by their log-sum-exps.

    :param query: [1, heads, tokens, head_dim]; :param key: [1, kv_heads, keys, head_dim], the chunk's own behind.
    :returns: like ``query``.
    """
    heads, tokens, dim = query.shape[1:]
    kv_heads, memory = key.shape[1], key.shape[2] - tokens
    folded = query.reshape(1, kv_heads, heads // kv_heads * tokens, dim)
    past, past_sums = kernel(folded, key[:, :, :memory], value[:, :, :memory], scale=scaling)[:2]
    own = [plane[:, :, memory:].repeat_interleave(heads // kv_heads, 1) for plane in (key, value)]
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

    :param query: [1, heads, tokens, head_dim]; :param key: [1, kv_heads, keys, head_dim], views of the planes.
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
    mask = chunk_mask(tokens, keys, groups, query.device)
    if visible is not None:
        layer = visible[module.layer_idx]
        shown = torch.nn.functional.pad(layer, (0, keys - layer.shape[1]), value=True)[:, None]
        mask = shown.expand(-1, groups * tokens, -1) if mask is None else shown & mask
        mask = mask[None]
    folded = query.reshape(1, kv_heads, groups * tokens, dim)
    output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(1, heads, tokens, dim).transpose(1, 2), None


def no_mask(*args: Any, **kwargs: Any) -> None:
    """The library makes no mask: the attention makes its own from the arena."""


def use_arena_attention(language_model: Any) -> None:
    """Make a transformers language model attend through :func:`arena_attention`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, arena_attention)
    AttentionMaskInterface.register(NAME, no_mask)
    language_model.config._attn_implementation = NAME
