# SPDX-License-Identifier: Apache-2.0
"""Qwen2.5-VL on transformers: windowed vision tower, M-RoPE in sections, positions from stamps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from ros_kvstream.models.layout import patch_coordinates
from ros_kvstream.models.qwen_vl import Grid, QwenVL

KEPT_LAYOUTS = 16
"""Picture sizes whose layouts are kept; cameras have few."""


@dataclass(frozen=True)
class WindowLayout:
    """Order, rotation and windows of the patches of one picture size."""

    order: Tensor
    """Window order of the merged units, int64 [units]."""
    back: Tensor
    """From window order to raster order, int64 [units]."""
    cos: Tensor
    sin: Tensor
    """cos and sin: [patches, head_dim] in window order."""
    windows: tuple[Tensor, ...]
    """Windows of equal length together: patch indices, int64 [windows, patches in each]."""


def window_layout(tower: Any, height: int, width: int, device: torch.device) -> WindowLayout:
    """The layout of pictures of ``height`` x ``width`` patches."""
    merge = tower.spatial_merge_size
    unit = merge * merge
    side = max(1, tower.window_size // merge // tower.patch_size)
    rows, columns = height // merge, width // merge
    row, column = patch_coordinates(rows, columns).long().unbind(-1)
    window = (row // side) * (-(-columns // side)) + column // side
    order = window.argsort(stable=True)
    within = torch.arange(unit)
    patch_row = (row[:, None] * merge + within // merge)[order].flatten()
    patch_column = (column[:, None] * merge + within % merge)[order].flatten()
    frequencies = tower.rotary_pos_emb.inv_freq.float().cpu()
    angles = torch.cat([patch_row[:, None] * frequencies, patch_column[:, None] * frequencies], dim=-1).repeat(1, 2)
    sizes = torch.unique_consecutive(window[order], return_counts=True)[1] * unit
    starts = sizes.cumsum(0) - sizes
    windows = tuple((starts[sizes == n, None] + torch.arange(n)).to(device) for n in sizes.unique().tolist())
    scaling = float(getattr(tower.rotary_pos_emb, "attention_scaling", 1.0))
    rotation = ((angles.cos() * scaling).to(device), (angles.sin() * scaling).to(device))
    return WindowLayout(order.to(device), order.argsort().to(device), *rotation, windows)


class BatchedVisionTower:
    """Qwen2.5-VL's vision tower on the library's weights: equal pictures and equal windows run as one batch.

    Without flash attention the library runs each window of each frame by itself in Python, and patches through a Conv3d
    that is a matrix product. Results are equal (test/models/test_qwen2_5_vl.py).
    """

    def __init__(self, tower: Any) -> None:
        """:param tower: the library's Qwen2_5_VisionTransformerPretrainedModel."""
        self.tower = tower
        self._layout = lru_cache(KEPT_LAYOUTS)(partial(window_layout, tower))

    def __call__(self, patches: Tensor, height: int, width: int) -> Tensor:
        """Merged tokens, [frames, units, hidden] in raster order.

        :param patches: as the image processor makes them, [frames, height * width, channels * 2 * patch * patch].
        :param height, width: of one frame, in patches.
        """
        tower, layout = self.tower, self._layout(height, width, patches.device)
        frames, count = patches.shape[:2]
        unit = tower.spatial_merge_size**2
        kernel = tower.patch_embed.proj.weight.flatten(1)
        hidden = patches.to(kernel.dtype) @ kernel.T
        hidden = hidden.view(frames, count // unit, unit, -1)[:, layout.order].reshape(frames, count, -1)
        for index, block in enumerate(tower.blocks):
            whole = index in tower.fullatt_block_indexes or len(layout.windows[0]) == 1 == len(layout.windows)
            hidden = hidden + _attention(block, hidden, layout, whole)
            hidden = hidden + block.mlp(_norm(block.norm2, hidden))
        merger = tower.merger
        merged = merger.mlp(_norm(merger.ln_q, hidden).view(frames, count // unit, -1))
        return merged[:, layout.back]


def _norm(layer: Any, hidden: Tensor) -> Tensor:
    return rms_norm(hidden.float(), (hidden.shape[-1],), eps=layer.variance_epsilon).to(hidden.dtype) * layer.weight


def _attention(block: Any, hidden: Tensor, layout: WindowLayout, whole: bool) -> Tensor:
    """One block's attention: over whole frames, or over windows, those of equal length together."""
    module = block.attn
    frames, count, _ = hidden.shape
    states = module.qkv(_norm(block.norm1, hidden)).view(frames, count, 3, module.num_heads, -1)
    (query, key), value = _rotated(states[:, :, :2], layout.cos, layout.sin).unbind(2), states[:, :, 2]
    if whole:
        mixed = _attend(query, key, value, module.scaling)
    elif len(layout.windows) == 1:  # all of one length, one behind the other
        shape = (frames * len(layout.windows[0]), -1, module.num_heads, query.shape[-1])
        mixed = _attend(query.reshape(shape), key.reshape(shape), value.reshape(shape), module.scaling)
    else:
        mixed = torch.empty_like(query)
        for window in layout.windows:
            inside = [part[:, window].flatten(0, 1) for part in (query, key, value)]
            attended = _attend(inside[0], inside[1], inside[2], module.scaling)
            mixed[:, window] = attended.unflatten(0, (frames, len(window)))
    return module.proj(mixed.reshape(frames, count, -1))


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """[batch, patches, heads, head_dim] each."""
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    return scaled_dot_product_attention(query, key, value, scale=scaling).transpose(1, 2)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate in float32; [frames, patches, 2, heads, head_dim]."""
    half = states.shape[-1] // 2
    whole, (sin, _) = states.float(), sin[:, None, None].chunk(2, dim=-1)
    turned = whole * cos[:, None, None]
    turned[..., :half].addcmul_(whole[..., half:], sin, value=-1)
    turned[..., half:].addcmul_(whole[..., :half], sin)
    return turned.to(states.dtype)


class Qwen25VL(QwenVL):
    """Qwen2.5-VL; the whole stream is one endless video."""

    family = "qwen2_5_vl"
    trained_positions = 32_768  # long-context pre-training, arXiv 2502.13923, section 2.2

    def __init__(self, name: str, network: Any, tokenizer: Any, image_processor: Any, *, trained: bool = True) -> None:
        super().__init__(name, network, tokenizer, image_processor, trained=trained)
        self.tokens_per_second = float(network.config.vision_config.tokens_per_second)
        self._tower = BatchedVisionTower(network.model.visual)

    def run_tower(self, pictures: list[Tensor], grids: list[Grid]) -> list[Tensor]:
        """Run pictures of one size as one batch."""
        encoded: dict[int, Tensor] = {}
        for height, width in dict.fromkeys(grids):
            members = [index for index, grid in enumerate(grids) if grid == (height, width)]
            merged = self._tower(torch.stack([pictures[index] for index in members]), height, width)
            encoded.update(zip(members, merged, strict=True))
        return [encoded[index] for index in range(len(pictures))]
