# SPDX-License-Identifier: Apache-2.0
"""One archived patch as bytes: its grid coordinates, and its un-rotated keys and values in all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.quantized.packing import SCALE_DTYPE, Packed, dequantize_into, packed_bytes, quantize

COORDINATE_BYTES = 4
"""(h, w) as int16."""
FLOAT16_LIMIT = 65504.0
"""Largest finite float16."""
CODE_BITS = {"fp16": 0, "int8": 8, "int4": 4}
LARGEST_GROUP = 64
"""Most channels that share a scale."""


@dataclass(frozen=True)
class RowCodec:
    """Packs patches into rows of bytes and unpacks them."""

    layers: int
    kv_heads: int
    head_dim: int
    precision: str
    """fp16 | int8 | int4."""

    @property
    def vectors(self) -> int:
        """Key and value vectors a patch: 2 x layers x kv_heads."""
        return 2 * self.layers * self.kv_heads

    @property
    def bits(self) -> int:
        """Bits of a code, 0 for float16."""
        return CODE_BITS[self.precision]

    @property
    def group(self) -> int:
        """Channels that share a scale: the largest even share of a head up to LARGEST_GROUP."""
        return next(size for size in range(min(self.head_dim, LARGEST_GROUP), 0, -1) if self.head_dim % size == 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one patch, scales included."""
        vector = packed_bytes(self.head_dim, self.bits, self.group) if self.bits else self.head_dim * 2
        return COORDINATE_BYTES + self.vectors * vector

    def encode(self, keys: Tensor, values: Tensor, coordinates: Tensor, out: Tensor) -> None:
        """Pack patches into ``out``.

        :param keys: un-rotated, [layers, kv_heads, patches, head_dim], any float type and device;
        :param values: the same shape; :param coordinates: (h, w), int16 [patches, 2];
        :param out: uint8 [patches, row_bytes] on the CPU.
        """
        stacked = torch.stack((keys, values)).permute(3, 0, 1, 2, 4)
        vectors = stacked.reshape(keys.shape[2], self.vectors, self.head_dim).float().cpu()
        out[:, :COORDINATE_BYTES] = coordinates.contiguous().view(torch.uint8)
        if not self.bits:
            whole = vectors.clamp(-FLOAT16_LIMIT, FLOAT16_LIMIT).to(torch.float16)
            out[:, COORDINATE_BYTES:] = whole.flatten(1).view(torch.uint8)
            return
        packed = quantize(vectors, self.bits, self.group)
        start = COORDINATE_BYTES
        for part in (packed.codes, packed.scales.view(torch.uint8), packed.zeros.view(torch.uint8)):
            flat = part.flatten(1)
            out[:, start : start + flat.shape[1]] = flat
            start += flat.shape[1]

    def decode(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unpack rows.

        :param rows: uint8 [patches, row_bytes].
        :returns: keys and values, float32 [layers, kv_heads, patches, head_dim], and coordinates, int16 [patches, 2].
        """
        patches = rows.shape[0]
        coordinates = rows[:, :COORDINATE_BYTES].contiguous().view(torch.int16)
        body = rows[:, COORDINATE_BYTES:]
        if self.bits:
            vectors = self._dequantize(body)
        else:
            vectors = body.contiguous().view(torch.float16).float()
        keys, values = vectors.view(patches, 2, self.layers, self.kv_heads, self.head_dim).permute(1, 2, 3, 0, 4)
        return keys, values, coordinates

    def _dequantize(self, body: Tensor) -> Tensor:
        """Coded vectors to float32 [patches, vectors, head_dim]."""
        patches, groups = body.shape[0], self.head_dim // self.group
        codes_end = self.vectors * self.head_dim * self.bits // 8
        scales_end = codes_end + self.vectors * groups * SCALE_DTYPE.itemsize

        def scales(start: int, end: int) -> Tensor:
            return body[:, start:end].contiguous().view(SCALE_DTYPE).view(patches, self.vectors, groups)

        codes = body[:, :codes_end].reshape(patches, self.vectors, -1)
        packed = Packed(codes, scales(codes_end, scales_end), scales(scales_end, body.shape[1]), self.bits)
        return dequantize_into(packed, torch.empty(patches, self.vectors, self.head_dim))
