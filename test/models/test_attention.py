# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ros_kvstream.models import attention
from ros_kvstream.models.attention import arena_attention, split_attention
from ros_kvstream.models.torch_compat import flash_on_cpu


def expected_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention over repeated keys under an explicit mask, causal by default."""
    tokens, keys = query.shape[2], key.shape[2]
    mask = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens) if mask is None else mask
    wide = [states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value)]
    return scaled_dot_product_attention(query, *wide, attn_mask=mask, scale=0.3)


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
    mask = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens).expand(heads, -1, -1).clone()
    if hidden:
        mask[..., :11] &= visible.repeat_interleave(heads // kv_heads, 0)[:, None]
    assert torch.allclose(output.transpose(1, 2), expected_of(query, key, value, mask[None]), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 6), (8, 1)])
@pytest.mark.parametrize(("memory", "tokens"), [(1, 2), (40, 7), (700, 1), (3, 300)])
def test_attention_split_into_memory_and_chunk_equals_that_under_a_mask(
    memory: int, tokens: int, heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    kernel = flash_on_cpu()
    if kernel is None:
        pytest.skip("this torch offers no attention with log-sum-exps on the CPU")
    generator = torch.Generator().manual_seed(memory + tokens)
    query = torch.randn(1, heads, tokens, 16, generator=generator).to(dtype)
    both = 3 * torch.randn(2, 1, kv_heads, memory + tokens + 9, 16, generator=generator).to(dtype)
    key, value = both[:, :, :, : memory + tokens]
    output = split_attention(kernel, query, key, value, 0.3)
    expected = expected_of(query.float(), key.float(), value.float())
    assert torch.allclose(output.float(), expected, atol=5e-6 if dtype == torch.float32 else 0.06)


@pytest.mark.parametrize("works", [True, False])
def test_a_long_memory_gives_the_same_with_and_without_the_kernel(monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    if not works:
        monkeypatch.setattr(attention, "flash_on_cpu", lambda: None)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(1, 4, 5, 16, generator=generator)
    key, value = torch.randn(2, 1, 2, attention.SPLIT_KEYS + 3, 16, generator=generator)
    output, _ = arena_attention(SimpleNamespace(layer_idx=0), query, key, value, None, scaling=0.3)
    assert torch.allclose(output.transpose(1, 2), expected_of(query, key, value), atol=2e-6)


def test_a_kernel_that_gives_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(query: torch.Tensor, *arguments: object, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        return query, query[..., 0]

    monkeypatch.setattr(
        torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", other, raising=False
    )
    assert flash_on_cpu.__wrapped__() is None
