# SPDX-License-Identifier: Apache-2.0
"""How keys and values are quantized: keys before rotation, minus their mean, after a Hadamard transform.

Before rotation all keys of a head share a large mean, which needs no codes once it is subtracted; rotation by position
blurs it. A Hadamard transform spreads the remaining outlier channels evenly (as in QuaRot, Ashkboos et al. 2024).
Together they halve the error of 4-bit keys (SmolLM2-135M, docs/thinning.md). Codes of keys before rotation also stay
valid when positions are re-based.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ros_kvstream.memory.quantized.packing import BLOCK_ROWS, Packed, dequantize_into, quantize
from ros_kvstream.memory.rotary import Rotary


def hadamard(dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Orthogonal Hadamard matrix float32 [dim, dim] (Sylvester); block-diagonal where ``dim`` is no power of two."""
    block = torch.ones(1, 1)
    while dim % (2 * len(block)) == 0:
        block = torch.cat([torch.cat([block, block], 1), torch.cat([block, -block], 1)], 0)
    return torch.block_diag(*[block / len(block) ** 0.5] * (dim // len(block))).contiguous().to(device)


class QuantizedCodec:
    """Quantizes rows of one head_dim; all layers share the transform, each layer has its own key mean."""

    def __init__(self, head_dim: int, group: int, rotary: Rotary, device: torch.device) -> None:
        """:param group: channels that share a scale; :param rotary: rotates decoded keys to their positions."""
        self.group = group
        self.rotary = rotary
        self.transform = hadamard(head_dim, device)

    def encode(self, rows: Tensor, bits: int, key_mean: Tensor | None = None) -> Packed:
        """Quantize values, or keys before rotation with their key mean.

        :param rows: float32 [heads, n, head_dim]; :param key_mean: broadcasts to it.
        """
        return quantize((rows if key_mean is None else rows - key_mean) @ self.transform, bits, self.group)

    def decode(
        self, packed: Packed, out: Tensor, key_mean: Tensor | None = None, positions: Tensor | None = None
    ) -> None:
        """Write decoded rows into ``out`` [heads, n, head_dim] of any float type.

        :param key_mean: of keys, [heads, 1, head_dim] or [heads, n, head_dim]; None for values.
        :param positions: int [heads, n, 3] to rotate keys to; None for keys before rotation.
        """
        for start in range(0, out.shape[1], BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, out.shape[1]))
            block = torch.empty(out[:, rows].shape, dtype=torch.float32, device=out.device)
            values = dequantize_into(packed.rows(rows), block) @ self.transform.T
            if key_mean is not None:
                values += key_mean if key_mean.shape[1] == 1 else key_mean[:, rows]
            if positions is not None:
                values = self.rotary.rotate(values, positions[:, rows], out=values)
            out[:, rows] = values
