"""Rotary position embedding as data: which axis (t, h, w) turns which pair of a key's dimensions, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_SLOTS = 512
"""Slots turned at a time, so that the float32 temporaries stay small beside a plane."""


@dataclass(frozen=True)
class Rotary:
    """Turns keys to their positions and back, in float32.

    Covers 1-D RoPE (every axis equal), M-RoPE in sections (Qwen2-VL, Qwen2.5-VL) and interleaved M-RoPE (Qwen3-VL),
    all in the half-split layout: dimension i pairs with dimension i + head_dim / 2.
    """

    inverse_frequencies: Tensor
    """Radians per position, float32 [head_dim / 2]."""
    axes: Tensor
    """0 = t, 1 = h, 2 = w per pair, int64 [head_dim / 2]."""
    scaling: float = 1.0
    """Factor that the model multiplies rotated keys by (1 except for some long-range variants)."""

    def rotate(self, keys: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Turn raw keys to their positions.

        :param keys: [..., slots, head_dim], any float type; :param positions: (t, h, w), int [..., slots, 3].
        :param out: float32 like ``keys``, may be ``keys`` itself; made when None.
        """
        return self._turn(keys, positions, out, 1.0, self.scaling)

    def unrotate(self, keys: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Turn keys back from their positions: ``unrotate(rotate(k, p), p) == k``; parameters as in ``rotate``."""
        return self._turn(keys, positions, out, -1.0, 1.0 / self.scaling)

    def _turn(self, keys: Tensor, positions: Tensor, out: Tensor | None, sign: float, factor: float) -> Tensor:
        if out is None:
            out = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
        half = keys.shape[-1] // 2
        for start in range(0, keys.shape[-2], BLOCK_SLOTS):
            rows = slice(start, start + BLOCK_SLOTS)
            angles = positions[..., rows, :].float()[..., self.axes] * self.inverse_frequencies
            cos, sin = angles.cos(), angles.sin_()
            if factor != 1.0:
                cos, sin = cos * factor, sin * factor
            first, second = keys[..., rows, :half].float(), keys[..., rows, half:].float()
            turned = first * cos - second * (sign * sin)
            out[..., rows, half:] = second * cos + first * (sign * sin)
            out[..., rows, :half] = turned
        return out
