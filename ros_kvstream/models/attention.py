"""Attention over the arena's own planes: no copy of the memory, grouped queries folded into rows, frames hidden.

Registered with transformers as the implementation "kvstream", for the language model only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "kvstream"


def chunk_mask(tokens: int, keys: int, groups: int, device: torch.device) -> Tensor | None:
    """True where a chunk's query may look: all of the memory, and causally into the chunk itself.

    :returns: bool [groups * tokens, keys], or None when a single token may look at everything.
    """
    if tokens == 1:
        return None
    return torch.ones(tokens, keys, dtype=torch.bool, device=device).tril(keys - tokens).repeat(groups, 1)


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
    mask = chunk_mask(tokens, keys, groups, query.device)
    visible = kwargs.get("visible")
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
