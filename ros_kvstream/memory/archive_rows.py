"""One archived patch as bytes: its place in the picture, and its un-rotated keys and values in all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PLACE_BYTES = 4
"""(h, w) as int16."""
FLOAT16_LIMIT = 65504.0
"""Largest finite float16."""


@dataclass(frozen=True)
class RowCodec:
    """Packs patches to rows of bytes and back."""

    layers: int
    kv_heads: int
    head_dim: int
    precision: str

    @property
    def vectors(self) -> int:
        """Key and value vectors a patch: 2 x layers x kv_heads."""
        return 2 * self.layers * self.kv_heads

    @property
    def row_bytes(self) -> int:
        """Bytes of one patch, scales included."""
        return PLACE_BYTES + self.vectors * self.head_dim * 2

    def encode(self, keys: Tensor, values: Tensor, places: Tensor, out: Tensor) -> None:
        """Pack patches into ``out``.

        :param keys: un-rotated, [layers, kv_heads, patches, head_dim], any float type and device;
        :param values: the same shape; :param places: (h, w), int16 [patches, 2];
        :param out: uint8 [patches, row_bytes] on the CPU.
        """
        vectors = torch.stack((keys, values)).permute(3, 0, 1, 2, 4).reshape(keys.shape[2], self.vectors, self.head_dim)
        out[:, :PLACE_BYTES] = places.contiguous().view(torch.uint8)
        out[:, PLACE_BYTES:] = (
            vectors.float().clamp(-FLOAT16_LIMIT, FLOAT16_LIMIT).to("cpu", torch.float16).flatten(1).view(torch.uint8)
        )

    def decode(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unpack rows.

        :param rows: uint8 [patches, row_bytes].
        :returns: keys and values, float32 [layers, kv_heads, patches, head_dim], and places, int16 [patches, 2].
        """
        patches = rows.shape[0]
        places = rows[:, :PLACE_BYTES].contiguous().view(torch.int16)
        vectors = rows[:, PLACE_BYTES:].contiguous().view(torch.float16).float()
        keys, values = vectors.view(patches, 2, self.layers, self.kv_heads, self.head_dim).permute(1, 2, 3, 0, 4)
        return keys, values, places
