from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from ros_kvstream.models.attention import arena_attention


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 6), (8, 1)])
@pytest.mark.parametrize("hidden", [False, True])
def test_folded_grouped_queries_equal_repeated_keys_under_an_explicit_mask(
    tokens: int, heads: int, kv_heads: int, hidden: bool
) -> None:
    generator = torch.Generator().manual_seed(tokens * heads + kv_heads)
    keys = 11 + tokens
    query = torch.randn(1, heads, tokens, 16, generator=generator)
    key, value = torch.randn(2, 1, kv_heads, keys, 16, generator=generator)
    visible = torch.rand(kv_heads, 11, generator=generator) > 0.4
    output, _ = arena_attention(
        SimpleNamespace(layer_idx=0), query, key, value, None, scaling=0.3, visible=[visible] if hidden else None
    )
    groups = heads // kv_heads
    mask = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens).expand(heads, -1, -1).clone()
    if hidden:
        mask[..., :11] &= visible.repeat_interleave(groups, 0)[:, None]
    wide = [plane.repeat_interleave(groups, 1) for plane in (key, value)]
    expected = scaled_dot_product_attention(query, *wide, attn_mask=mask[None], scale=0.3)
    assert torch.allclose(output.transpose(1, 2), expected, atol=1e-6)
