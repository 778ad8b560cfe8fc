"""The arena as a cache of transformers: each layer's update writes into the planes and returns views of them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from ros_kvstream.memory.arena import Arena


class ArenaLayer(CacheLayerMixin):
    """One layer: no storage of its own, all memory slots visible to a chunk, the chunk causal within itself."""

    is_sliding = False

    def __init__(self, arena: Arena, index: int) -> None:
        super().__init__()
        self.arena = arena
        self.index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Nothing to do: the arena was allocated before."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write a chunk, [1, kv_heads, tokens, head_dim]; return views over all slots, [1, kv_heads, n, head_dim]."""
        keys, values = self.arena.write(self.index, key_states[0], value_states[0])
        return keys[None], values[None]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Key length and offset for the mask; older transformers give the chunk's positions, newer its length."""
        tokens = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.arena.used + tokens, 0

    def get_seq_length(self, cache_position: Any = None) -> int:
        """Slots in use: what the mask counts from (positions are always given explicitly)."""
        return self.arena.used

    def get_max_length(self) -> int:
        """No limit of its own: the arena refuses what does not fit before the forward begins."""
        return -1

    def get_max_cache_shape(self) -> int:
        """The same under its older name."""
        return -1


def arena_cache(arena: Arena) -> Cache:
    """A transformers cache whose layers write into ``arena``."""
    return Cache(layers=[ArenaLayer(arena, index) for index in range(arena.plan.shape.layers)])


def cache_argument(language_model: nn.Module) -> str:
    """Name of the forward's cache argument: ``cache`` from transformers 5.24 on, ``past_key_values`` before."""
    parameters = inspect.signature(language_model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
