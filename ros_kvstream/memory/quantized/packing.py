# SPDX-License-Identifier: Apache-2.0
"""Rows of keys or values in 8 or 4 bits: packed codes with a scale and a zero point per token and group of channels.

A group is a run of neighbouring channels of one token. Its values are coded as ``zero + code * scale`` with codes from
0 to 2**bits - 1: a group of equal values is exact, and an all-positive group uses every code. Two 4-bit codes share a
byte: channel i is the low half, channel i + head_dim / 2 the high half, so that whole rows are packed and unpacked
without a shuffle.

Keys are quantized before rotation, minus their mean, after a Hadamard transform. Before rotation all keys of a head
share a large mean, which needs no codes once it is subtracted; rotation by position blurs it. The transform spreads the
remaining outlier channels evenly (as in QuaRot, Ashkboos et al. 2024). Together they halve the error of 4-bit keys
(SmolLM2-135M, docs/thinning.md). Codes of keys before rotation also stay valid when positions are re-based.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.settings import require

BITS = (8, 4)
"""Supported bits per code."""
SCALE_DTYPE = torch.float16
"""Scales and zero points: 10 bits of fraction; values outside its range (65504) are clamped to it."""
BLOCK_ROWS = 512
"""Rows that are decoded at a time."""


@dataclass(frozen=True)
class Packed:
    """Quantized rows; the leading axes are those of the rows before."""

    codes: Tensor
    """uint8 [..., head_dim * bits / 8]."""
    scales: Tensor
    """Step from one code to the next, [..., groups]."""
    zeros: Tensor
    """Value of code 0, [..., groups]."""
    bits: int

    @property
    def head_dim(self) -> int:
        """Channels of one row."""
        return self.codes.shape[-1] * 8 // self.bits

    def map(self, function: Callable[[Tensor], Tensor]) -> Packed:
        """The same rows with ``function`` applied to each tensor."""
        return Packed(function(self.codes), function(self.scales), function(self.zeros), self.bits)

    def rows(self, part: slice) -> Packed:
        """Rows ``part`` of the second axis, as views."""
        return self.map(lambda tensor: tensor[:, part])

    def tensors(self) -> dict[str, Tensor]:
        """Codes, scales and zero points by name."""
        return {"codes": self.codes, "scales": self.scales, "zeros": self.zeros}


def check_layout(head_dim: int, bits: int, group: int) -> None:
    """Raise SettingsError unless rows of ``head_dim`` channels can be coded in groups of ``group``."""
    require(bits in BITS, "bits", bits, "8 or 4")
    require(head_dim >= 2 and head_dim % 2 == 0, "head_dim", head_dim, "an even number of channels")
    fits = isinstance(group, int) and group >= 1 and head_dim % group == 0
    require(fits, "group", group, f"a divisor of head_dim = {head_dim}")


def packed_bytes(head_dim: int, bits: int, group: int) -> int:
    """Exact bytes of one packed row of ``head_dim`` channels, scales and zero points included."""
    check_layout(head_dim, bits, group)
    return head_dim * bits // 8 + 2 * (head_dim // group) * SCALE_DTYPE.itemsize


def empty_packed(
    leading: tuple[int, ...], head_dim: int, bits: int, group: int, device: torch.device | str = "cpu"
) -> Packed:
    """Packed rows [*leading, head_dim], all zero; ``packed_bytes`` per row are allocated."""
    check_layout(head_dim, bits, group)
    groups = head_dim // group
    return Packed(
        torch.zeros((*leading, head_dim * bits // 8), dtype=torch.uint8, device=device),
        torch.zeros((*leading, groups), dtype=SCALE_DTYPE, device=device),
        torch.zeros((*leading, groups), dtype=SCALE_DTYPE, device=device),
        bits,
    )


def quantize(x: Tensor, bits: int, group: int) -> Packed:
    """Quantize rows to 8 or 4 bits.

    :param x: float [..., head_dim], any float type, finite; computed in float32.
    :param bits: 8 or 4; :param group: channels that share a scale and a zero point, a divisor of head_dim.
    :raises SettingsError: for other bits, an odd head_dim, or a group that does not divide it.

    The largest error of a value is half a step of its group, (max - min) / (2 * (2**bits - 1)), plus the rounding of
    scale and zero point to 16 bits (2**-11 of the group's largest magnitude each; 1e-5 where that is less).
    """
    head_dim = x.shape[-1]
    check_layout(head_dim, bits, group)
    largest = torch.finfo(SCALE_DTYPE).max
    grouped = x.float().clamp(-largest, largest).unflatten(-1, (head_dim // group, group))
    low, high = grouped.amin(-1), grouped.amax(-1)
    zeros = low.to(SCALE_DTYPE)
    steps = 2**bits - 1
    # The step is taken from the zero point as stored, so that its rounding cannot push the largest value off the end.
    scales = torch.maximum((high - zeros.float()) / steps, zeros.new_zeros((), dtype=torch.float32)).to(SCALE_DTYPE)
    step = scales.float()
    inverse = torch.where(step > 0, step.reciprocal(), 0.0)
    codes = ((grouped - zeros.float()[..., None]) * inverse[..., None]).round_().clamp_(0, steps)
    flat = codes.flatten(-2).to(torch.uint8)
    if bits == 4:
        half = head_dim // 2
        flat = flat[..., :half] | (flat[..., half:] << 4)
    return Packed(flat, scales, zeros, bits)


def dequantize_into(packed: Packed, out: Tensor) -> Tensor:
    """Write the rows' values into ``out`` [..., rows, head_dim] (any float type, may be a view) and return it.

    Computed in float32, BLOCK_ROWS rows at a time: one block is allocated beside ``out``.
    """
    head_dim, groups = packed.head_dim, packed.scales.shape[-1]
    if out.shape[:-1] != packed.codes.shape[:-1] or out.shape[-1] != head_dim:
        raise ValueError(f"out has shape {tuple(out.shape)}: must be {(*packed.codes.shape[:-1], head_dim)}")
    rows = out.shape[-2]
    leading = out.shape[:-2]
    block = torch.empty((*leading, min(rows, BLOCK_ROWS), head_dim), dtype=torch.float32, device=out.device)
    for start in range(0, rows, BLOCK_ROWS):
        part = slice(start, min(start + BLOCK_ROWS, rows))
        values = block[..., : part.stop - start, :]
        codes = packed.codes[..., part, :]
        if packed.bits == 4:
            values[..., : head_dim // 2] = codes & 15
            values[..., head_dim // 2 :] = codes >> 4
        else:
            values.copy_(codes)
        grouped = values.unflatten(-1, (groups, head_dim // groups))
        grouped.mul_(packed.scales[..., part, :, None].float()).add_(packed.zeros[..., part, :, None].float())
        out[..., part, :] = values
    return out


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
