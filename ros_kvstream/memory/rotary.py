# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: which axis (t, h, w) rotates which pair of a key's dimensions, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

BLOCK_SLOTS = 512
"""Slots rotated at a time, so that the float32 temporaries stay small."""


@dataclass(frozen=True)
class Rotary:
    """Rotates keys to their positions and back, in float32.

    Covers 1-D RoPE (t rotates every pair), M-RoPE in sections (Qwen2-VL, Qwen2.5-VL) and interleaved
    M-RoPE (Qwen3-VL), all in the half-split layout: dimension i pairs with dimension i + head_dim / 2.
    """

    inverse_frequencies: Tensor
    """Radians per position, float32 [head_dim / 2]."""
    axes: Tensor
    """0 = t, 1 = h, 2 = w per pair, int64 [head_dim / 2]."""
    scaling: float = 1.0
    """Factor that the model multiplies rotated keys by (1 except for some long-range variants)."""
    relative: bool = False
    """Whether h and w are relative to the slot's t (Qwen3-VL), so that their pairs are rotated by t + h and t + w;
    negative h and w, those of text, count as 0."""

    def axis_positions(self, positions: Tensor) -> Tensor:
        """Return what each axis rotates by, int [..., 3], for slots at (t, h, w), int [..., 3]."""
        if not self.relative:
            return positions
        first = positions[..., :1]
        return torch.cat([first, first + positions[..., 1:].clamp_min(0)], dim=-1)

    def rotate(self, keys: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Rotate raw keys to their positions.

        :param keys: [..., slots, head_dim], any float type; :param positions: (t, h, w), int [..., slots, 3].
        :param out: float32 like ``keys``, may be ``keys`` itself; None allocates it.
        """
        return self._turn(keys, positions, out, 1.0, self.scaling)

    def unrotate(self, keys: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Undo ``rotate``: ``unrotate(rotate(k, p), p) == k``; parameters as in ``rotate``."""
        return self._turn(keys, positions, out, -1.0, 1.0 / self.scaling)

    def _turn(self, keys: Tensor, positions: Tensor, out: Tensor | None, sign: float, factor: float) -> Tensor:
        if out is None:
            out = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
        half = keys.shape[-1] // 2
        for start in range(0, keys.shape[-2], BLOCK_SLOTS):
            rows = slice(start, start + BLOCK_SLOTS)
            at = self.axis_positions(positions[..., rows, :])
            angles = at.float()[..., self.axes] * self.inverse_frequencies
            cos, sin = angles.cos(), angles.sin_()
            if factor != 1.0:
                cos, sin = cos * factor, sin * factor
            first, second = keys[..., rows, :half].float(), keys[..., rows, half:].float()
            turned = first * cos - second * (sign * sin)
            out[..., rows, half:] = second * cos + first * (sign * sin)
            out[..., rows, :half] = turned
        return out

    def time_angles(self, times: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Cosines and sines for ``unrotate_time``, float32 [n, pairs] each, per run of pairs that turn with t.

        :param times: int [n].
        """
        angles = [times.float()[:, None] * frequencies for _, _, frequencies in self._time_parts]
        return [(part.cos(), part.sin()) for part in angles]

    def unrotate_time(self, keys: Tensor, angles: list[tuple[Tensor, Tensor]]) -> None:
        """Undo the rotation by t alone, in place.

        The cosine between two keys at the same (h, w), which h and w rotate alike, then is that of the raw keys.
        :param keys: float32 [n, head_dim]; :param angles: from ``time_angles``.
        """
        for (at, opposite, _), (cos, sin) in zip(self._time_parts, angles, strict=True):
            first, second = keys[..., at], keys[..., opposite]
            turned = torch.mul(first, cos).addcmul_(second, sin)
            second.mul_(cos).addcmul_(first, sin, value=-1)
            first.copy_(turned)

    @cached_property
    def _time_parts(self) -> list[tuple[slice, slice, Tensor]]:
        """The pairs that turn with t, as few slices: (first halves, second halves, radians per step)."""
        half = self.axes.numel()
        pairs = list(range(half)) if self.relative else (self.axes == 0).nonzero()[:, 0].tolist()
        parts = []
        while pairs:
            step = pairs[1] - pairs[0] if len(pairs) > 1 else 1
            length = next((i for i in range(1, len(pairs)) if pairs[i] - pairs[i - 1] != step), len(pairs))
            low, stop = pairs[0], pairs[length - 1] + 1
            frequencies = self.inverse_frequencies[low:stop:step].float()
            parts.append((slice(low, stop, step), slice(half + low, half + stop, step), frequencies))
            pairs = pairs[length:]
        return parts
