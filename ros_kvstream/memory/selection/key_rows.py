"""Keys by slot number as float32 rows, turned back in time: what redundancy is scored on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.memory.rows import flat_rows
from ros_kvstream.memory.selection.base import LayerSlots

BLOCK_ROWS = 768
"""Keys that are turned and compared at a time; their float32 copies are the extra memory."""
TINY = 1e-30
"""Guards the norm of a key that is zero; its similarity to everything is 0."""
TABLE_STEPS = 2048
"""Cosines and sines are looked up per time step when the slots span fewer steps than this, else taken per slot."""


class KeyRows:
    """Loads blocks of one layer's keys, given by slot number, into one reused buffer."""

    def __init__(self, view: LayerSlots) -> None:
        self._slots = view.slots
        self._rows, self._per_head = flat_rows(view.keys if view.rotary is not None else view.unrotated_keys)
        dim, rows = view.keys.shape[-1], min(BLOCK_ROWS, view.keys.shape[0] * view.slots)
        self._buffer = torch.empty(rows, dim, dtype=torch.float32, device=view.keys.device)
        self._turn = None if view.rotary is None else TimeTurn(view.rotary)
        self._times = view.positions[..., 0].flatten()
        self._table: Tensor | None = None
        if self._turn is not None:
            low, high = torch.aminmax(self._times)
            if high - low < TABLE_STEPS:
                steps = torch.arange(int(low), int(high) + 1, device=self._times.device)
                self._table = self._turn.cosines_and_sines(steps)
                self._times = self._times - low

    def load(self, slots: Tensor) -> Tensor:
        """Keys of flat slots (head * slots + slot), int64 [n <= BLOCK_ROWS]; float32 [n, head_dim], until next load."""
        rows = self._buffer[: slots.numel()]
        gap = self._per_head - self._slots
        source = slots + slots.div(self._slots, rounding_mode="floor") * gap if gap else slots
        if self._rows.dtype == torch.float32:
            torch.index_select(self._rows, 0, source, out=rows)
        else:
            rows.copy_(self._rows.index_select(0, source))
        if self._turn is not None:
            times = self._times.index_select(0, slots)
            turned = self._turn.cosines_and_sines(times) if self._table is None else self._table.index_select(0, times)
            self._turn.back(rows, turned)
        return rows


class TimeTurn:
    """Turns keys back by time alone.

    Keys of the same patch share h and w, which turn them alike: with the part that turns with time turned back, the
    cosine between two keys of a patch is that of the un-rotated keys.
    """

    def __init__(self, rotary: Rotary) -> None:
        self._parts = list(_time_parts(rotary))
        frequencies = [part[2] for part in self._parts]
        self._frequencies = torch.cat(frequencies) if frequencies else rotary.inverse_frequencies[:0].float()

    def cosines_and_sines(self, times: Tensor) -> Tensor:
        """float32 [n, 2 * pairs] for int times [n]."""
        angles = times.float()[:, None] * self._frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def back(self, keys: Tensor, cosines_and_sines: Tensor) -> None:
        """Turn float32 keys [..., head_dim] back in place; the angles broadcast against [..., 2 * pairs]."""
        cosines, sines = cosines_and_sines.chunk(2, dim=-1)
        start = 0
        for first_half, second_half, frequencies in self._parts:
            part = slice(start, start + frequencies.numel())
            start = part.stop
            cos, sin = cosines[..., part], sines[..., part]
            first, second = keys[..., first_half], keys[..., second_half]
            turned = (first * cos).addcmul_(second, sin)
            second.mul_(cos).addcmul_(first, sin, value=-1)
            first.copy_(turned)


def _time_parts(rotary: Rotary) -> Iterator[tuple[slice, slice, Tensor]]:
    """The dimensions that turn with time as few slices: (first halves, second halves, radians per step)."""
    half = rotary.axes.numel()
    pairs = (rotary.axes == 0).nonzero()[:, 0].tolist()
    while pairs:
        step = pairs[1] - pairs[0] if len(pairs) > 1 else 1
        length = next((i for i in range(1, len(pairs)) if pairs[i] - pairs[i - 1] != step), len(pairs))
        low, stop = pairs[0], pairs[length - 1] + 1
        frequencies = rotary.inverse_frequencies[low:stop:step].float()
        yield slice(low, stop, step), slice(half + low, half + stop, step), frequencies
        pairs = pairs[length:]
