"""Keys by slot number as float32 rows, turned back in time: what redundancy is scored on."""

from __future__ import annotations

import torch
from torch import Tensor

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
        self._rotary = view.rotary
        self._norms = None if view.key_norms is None else view.key_norms.flatten().clamp_min(TINY)
        self._times = view.positions[..., 0].flatten()
        self._table: list[tuple[Tensor, Tensor]] | None = None
        if self._rotary is not None:
            low, high = torch.aminmax(self._times)
            if high - low < TABLE_STEPS:
                steps = torch.arange(int(low), int(high) + 1, device=self._times.device)
                self._table = self._rotary.time_angles(steps)
                self._times = self._times - low

    def load(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys by flat slot number (head * slots + slot) and their norms.

        :param slots: int64 [n <= BLOCK_ROWS]; :returns: float32 [n, head_dim], valid until the next load, and [n].
        """
        rows = self._buffer[: slots.numel()]
        gap = self._per_head - self._slots
        source = slots + slots.div(self._slots, rounding_mode="floor") * gap if gap else slots
        if self._rows.dtype == torch.float32:
            torch.index_select(self._rows, 0, source, out=rows)
        else:
            rows.copy_(self._rows.index_select(0, source))
        if self._rotary is not None:
            times = self._times.index_select(0, slots)
            if self._table is None:
                angles = self._rotary.time_angles(times)
            else:
                angles = [(cos.index_select(0, times), sin.index_select(0, times)) for cos, sin in self._table]
            self._rotary.turn_back_in_time(self._rotary.time_halves(rows), angles)
        if self._norms is None:
            return rows, torch.linalg.vector_norm(rows, dim=-1).clamp_min_(TINY)
        return rows, self._norms.index_select(0, slots)
