"""Moving slots between the ladder's tiers: only rows that change tier are decoded and coded again."""

from __future__ import annotations

import torch
from torch import Tensor

from ros_kvstream.memory.quantized.codec import QuantizedCodec
from ros_kvstream.memory.quantized.packing import Packed, empty_packed

TIERS = (4, 8)
"""Bits of the packed tiers, in the order in which they lie: the coarsest first, behind them the model's own type."""
FULL = 0
"""Stands for the tier in the model's own type."""


def gather_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Rows [kv_heads, slots, ...] at index [kv_heads, n]."""
    heads = torch.arange(rows.shape[0], device=rows.device)[:, None]
    return rows[heads, index]


class Requantization:
    """One layer's new arrangement, applied to the plane of keys and to that of values."""

    def __init__(
        self, codec: QuantizedCodec, old: dict[int, int], new: dict[int, int], order: Tensor, positions: Tensor
    ) -> None:
        """Work out which row goes where.

        :param old, new: slots per packed tier (bits -> count) before and after; the rest is in the model's own type.
        :param order: int64 [kv_heads, keep], the frame slots that stay in their new order.
        :param positions: of all frame slots as they lie now, int [kv_heads, slots, 3].
        """
        self._codec = codec
        self._old = self._spans(old, positions.shape[1])
        self._new = self._spans(new, order.shape[1])
        self._order = order
        self._positions = positions

    @staticmethod
    def _spans(counts: dict[int, int], slots: int) -> dict[int, slice]:
        """Tier -> frame slots."""
        spans, start = {}, 0
        for bits in TIERS:
            spans[bits] = slice(start, start + counts[bits])
            start += counts[bits]
        spans[FULL] = slice(start, slots)
        return spans

    def plane(self, packed: dict[int, Packed], full: Tensor, key_mean: Tensor | None) -> None:
        """Rearrange keys (with their key_mean) or values (None) in place.

        :param packed: bits -> rows of that tier; :param full: [kv_heads, rows, head_dim] from the first frame on.
        """
        made = {bits: self._packed_tier(bits, packed, full, key_mean) for bits in TIERS}
        rows = self._full_tier(packed, full, key_mean)
        for bits, tier in made.items():
            room = packed[bits].rows(slice(0, tier.codes.shape[1]))
            room.codes.copy_(tier.codes)
            room.scales.copy_(tier.scales)
            room.zeros.copy_(tier.zeros)
        full[:, : rows.shape[1]] = rows

    def _packed_tier(self, bits: int, packed: dict[int, Packed], full: Tensor, key_mean: Tensor | None) -> Packed:
        source = self._order[:, self._new[bits]]
        made = empty_packed(tuple(source.shape), full.shape[-1], bits, self._codec.group, full.device)
        for tier in (*TIERS, FULL):
            heads, rows, at = self._from(tier, source)
            if not len(heads):
                continue
            moved = _pick(packed[bits], heads, rows) if tier == bits else self._recoded(
                bits, self._raw(tier, packed, full, key_mean, heads, rows), key_mean, heads
            )  # fmt: skip
            made.codes[heads, at] = moved.codes
            made.scales[heads, at] = moved.scales
            made.zeros[heads, at] = moved.zeros
        return made

    def _full_tier(self, packed: dict[int, Packed], full: Tensor, key_mean: Tensor | None) -> Tensor:
        source = self._order[:, self._new[FULL]]
        made = full.new_empty((*source.shape, full.shape[-1]))
        for tier in (*TIERS, FULL):
            heads, rows, at = self._from(tier, source)
            if not len(heads):
                continue
            if tier == FULL:
                made[heads, at] = full[heads, rows]
                continue
            raw = self._raw(tier, packed, full, key_mean, heads, rows)
            if key_mean is not None:
                positions = self._positions[heads, rows + self._old[tier].start]
                raw = self._codec.rotary.rotate(raw[None], positions[None], out=raw[None])[0]
            made[heads, at] = raw.to(full.dtype)
        return made

    def _from(self, tier: int, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which of ``source`` lie in ``tier`` now: KV heads, rows within the tier, coordinates in ``source``; [n] each."""
        span = self._old[tier]
        heads, at = ((source >= span.start) & (source < span.stop)).nonzero(as_tuple=True)
        return heads, source[heads, at] - span.start, at

    def _raw(
        self, tier: int, packed: dict[int, Packed], full: Tensor, key_mean: Tensor | None, heads: Tensor, rows: Tensor
    ) -> Tensor:
        """Values or un-rotated keys of rows of one tier, float32 [n, head_dim]."""
        out = torch.empty((1, len(rows), full.shape[-1]), dtype=torch.float32, device=full.device)
        if tier == FULL:
            picked = full[heads, rows][None]
            if key_mean is None:
                return out.copy_(picked)[0]
            positions = self._positions[heads, rows + self._old[FULL].start]
            return self._codec.rotary.unrotate(picked, positions[None], out=out)[0]
        coded = _pick(packed[tier], heads, rows)
        one = Packed(coded.codes[None], coded.scales[None], coded.zeros[None], tier)
        self._codec.decode(one, out, None if key_mean is None else key_mean[heads, 0][None])
        return out[0]

    def _recoded(self, bits: int, raw: Tensor, key_mean: Tensor | None, heads: Tensor) -> Packed:
        return self._codec.encode(raw, bits, None if key_mean is None else key_mean[heads, 0])


def _pick(packed: Packed, heads: Tensor, rows: Tensor) -> Packed:
    """Single rows, [n, ...]."""
    return Packed(packed.codes[heads, rows], packed.scales[heads, rows], packed.zeros[heads, rows], packed.bits)
