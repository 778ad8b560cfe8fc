# SPDX-License-Identifier: Apache-2.0
"""What differs between versions of transformers or is not public there. Tried with 4.57.1 to 5.24.

Private names, used in this file only:

- ``config._attn_implementation``: the public ways to choose an attention need a call that loads weights
  (``from_pretrained``), or cover the whole model; here the language model has another attention than the vision tower.
- ``_supports_flash_attn``, ``_supports_sdpa`` of a model class: which kinds of attention a family has; nothing public
  says it before a model is built.

Versions differ in the name of the cache argument, the arguments of a cache layer, what vision towers return, where
M-RoPE sections are stored, and the module of ``smart_resize``. Each is found by what is there, never by version.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface

from ros_kvstream.errors import ModelError
from ros_kvstream.memory.arena import Arena

# -- attention --------------------------------------------------------------------------------------------------------


def register_attention(name: str, attention: Callable[..., tuple[Tensor, None]]) -> None:
    """Make an attention function available by name; the library builds no mask for it."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, lambda *_, **__: None)


def set_attention(config: Any, name: str) -> None:
    """Choose the attention of the networks with this config."""
    config._attn_implementation = name


def supports_flash_attention(architecture: Any) -> bool:
    """Whether a model class can use the package flash-attn."""
    return bool(getattr(architecture, "_supports_flash_attn", False))


def supports_sdpa(architecture: Any) -> bool:
    """Whether a model class can use torch's scaled dot-product attention."""
    return bool(getattr(architecture, "_supports_sdpa", True))


# -- the arena as a cache ---------------------------------------------------------------------------------------------


class ArenaLayer(CacheLayerMixin):
    """One layer of an arena as a cache layer: writes into the K/V tensors and returns views of them."""

    is_sliding = False

    def __init__(self, arena: Arena, index: int) -> None:
        super().__init__()
        self.arena = arena
        self.index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Do nothing: the arena is allocated already."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write a chunk, [1, kv_heads, tokens, head_dim]; return views over all slots, [1, kv_heads, n, head_dim]."""
        keys, values = self.arena.write(self.index, key_states[0], value_states[0])
        return keys[None], values[None]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        """Key length and offset for the mask; transformers 4 passes the chunk's positions, 5 its length."""
        tokens = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.arena.used + tokens, 0

    def get_seq_length(self, cache_position: Any = None) -> int:
        """Slots in use."""
        return self.arena.used

    def get_max_length(self) -> int:
        """Return -1, no limit: the arena rejects what does not fit before the forward begins."""
        return -1

    get_max_cache_shape = get_max_length  # its older name


def arena_cache(arena: Arena) -> Cache:
    """Return a cache whose layers write into ``arena``."""
    return Cache(layers=[ArenaLayer(arena, index) for index in range(arena.plan.shape.layers)])


def cache_argument(language_model: nn.Module) -> str:
    """Name of the forward's cache argument: ``cache`` from transformers 5.24 on, ``past_key_values`` before."""
    parameters = inspect.signature(language_model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


# -- vision -----------------------------------------------------------------------------------------------------------


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width in pixels to which the processors of the Qwen-VL families resize a picture."""
    try:
        from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as processing
    except ImportError:
        from transformers.models.qwen2_vl import image_processing_qwen2_vl as processing
    return processing.smart_resize(height, width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)


def run_vision_tower(tower: Any, pictures: list[Tensor], grids: list[tuple[int, int]]) -> tuple[Tensor, list[Tensor]]:
    """Run a Qwen-VL family's vision tower: merged tokens [tokens of all, hidden], and its DeepStack features.

    :param pictures: patches of each picture; :param grids: (rows, columns) of patches of each picture.

    The features are tensors of the same shape; the list is empty where the family has none.
    """
    grid_thw = torch.tensor([(1, rows, columns) for rows, columns in grids], device=pictures[0].device)
    output = tower(torch.cat(pictures), grid_thw=grid_thw)
    if isinstance(output, Tensor):  # transformers 4
        return output, []
    if isinstance(output, tuple):
        return output[0], list(output[1])
    return output.pooler_output, list(getattr(output, "deepstack_features", None) or [])


def require_rope(config: Any) -> None:
    """Raise ModelError where a language model's config has rotary settings that the installed version does not read.

    transformers 5 writes them as ``rope_parameters``; version 4 reads ``rope_theta`` and ``rope_scaling`` alone.
    """
    read = {"rope_theta": getattr(config, "rope_theta", None), "rope_type": "default", "type": "default"}
    read |= getattr(config, "rope_scaling", None) or {}
    unread = {key for key, value in (getattr(config, "rope_parameters", None) or {}).items() if read.get(key) != value}
    if unread:
        raise ModelError(
            f"config.json has {', '.join(sorted(unread))} in rope_parameters alone, which transformers "
            f"{transformers.__version__} does not read: install transformers 5, or write rope_theta "
            "and rope_scaling too."
        )


def mrope_sections(embedding: Any) -> list[int]:
    """The M-RoPE sections of a language model's ``rotary_emb``; raises ModelError where they do not fit the heads."""
    sections = getattr(embedding, "mrope_section", None) or (embedding.config.rope_scaling or {}).get("mrope_section")
    pairs = len(embedding.inv_freq)
    if not isinstance(sections, list) or not all(isinstance(size, int) for size in sections) or sum(sections) != pairs:
        raise ModelError(
            f"config.json: mrope_section in rope_scaling is {sections or 'missing'} (transformers' default where "
            "the file has none): must be sizes for time, height and width that add up to half of the head dimension, "
            f"{pairs}."
        )
    return list(sections)
