# SPDX-License-Identifier: Apache-2.0
"""One archived patch as bytes: its grid coordinates and its vectors (keys and values, or its embedding)."""

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

    vectors: int
    """Vectors per patch."""
    width: int
    """Numbers in one vector."""
    precision: str
    """fp16 | int8 | int4."""

    @property
    def bits(self) -> int:
        """Bits of a code, 0 for float16."""
        return CODE_BITS[self.precision]

    @property
    def group(self) -> int:
        """Channels that share a scale: the largest even share of a vector up to LARGEST_GROUP."""
        return next(size for size in range(min(self.width, LARGEST_GROUP), 0, -1) if self.width % size == 0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one patch, scales included."""
        vector = packed_bytes(self.width, self.bits, self.group) if self.bits else self.width * 2
        return COORDINATE_BYTES + self.vectors * vector

    def encode(self, content: Tensor, coordinates: Tensor, out: Tensor) -> None:
        """Pack patches into ``out``.

        :param content: [patches, vectors, width], any float type and device; :param coordinates: (h, w), int16
            [patches, 2]; :param out: uint8 [patches, row_bytes] on the CPU.
        """
        vectors = content.float().cpu()
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

    def decode(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Unpack rows.

        :param rows: uint8 [patches, row_bytes].
        :returns: content, float32 [patches, vectors, width], and coordinates, int16 [patches, 2].
        """
        coordinates = _viewed(rows[:, :COORDINATE_BYTES], torch.int16).view(-1, 2)
        body = rows[:, COORDINATE_BYTES:]
        if self.bits:
            return self._dequantize(body), coordinates
        return _viewed(body, torch.float16).float().view(-1, self.vectors, self.width), coordinates

    def _dequantize(self, body: Tensor) -> Tensor:
        """Coded vectors to float32 [patches, vectors, width]."""
        patches, groups = body.shape[0], self.width // self.group
        codes_end = self.vectors * self.width * self.bits // 8
        scales_end = codes_end + self.vectors * groups * SCALE_DTYPE.itemsize

        def scales(start: int, end: int) -> Tensor:
            return _viewed(body[:, start:end], SCALE_DTYPE).view(patches, self.vectors, groups)

        codes = body[:, :codes_end].reshape(patches, self.vectors, -1)
        packed = Packed(codes, scales(codes_end, scales_end), scales(scales_end, body.shape[1]), self.bits)
        return dequantize_into(packed, torch.empty(patches, self.vectors, self.width))


def _viewed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes of a part of the rows as flat numbers; copied, since rows of odd length are not aligned."""
    return part.clone().flatten().view(dtype)
