"""Keys by slot number as float32 rows, turned back in time: what redundancy is scored on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.memory.rows import flat_rows

BLOCK_ROWS = 2048
"""Keys that are turned and compared at a time; their float32 copies are the extra memory."""
TINY = 1e-30
"""Guards the norm of a key that is zero; its similarity to everything is 0."""
TABLE_STEPS = 2048
"""Cosines and sines are looked up per time step when the slots span fewer steps than this, else taken per slot."""


_VECDOT = getattr(np, "vecdot", None)
"""From NumPy 2 on: products are summed as they are made, where torch writes and reads them once more."""


def dot_rows(rows: Tensor, others: Tensor, out: Tensor) -> None:
    """Dot products of float32 rows [..., n] with others that broadcast to them, into ``out`` [...]."""
    if _VECDOT is None or rows.device.type != "cpu":
        torch.sum(rows * others, -1, out=out)
        return
    with np.errstate(all="ignore"):  # keys that are no numbers give scores that are none
        _VECDOT(rows.numpy(), others.numpy(), out=out.numpy())


class KeyRows:
    """One layer's keys by flat slot number (head * slots + slot), in blocks that pass through one reused buffer."""

    def __init__(self, view: LayerSlots) -> None:
        self._view = view
        self._slots = view.slots
        self._rotary = view.rotary
        self._rows, self._per_head = flat_rows(view.keys if view.rotary is not None else view.unrotated_keys)
        self._norms = None if view.key_norms is None else view.key_norms.flatten().clamp_min(TINY)
        self._times = view.positions[..., 0].flatten()
        self._table: list[tuple[Tensor, Tensor]] | None = None
        if self._rotary is not None:
            low, high = torch.aminmax(self._times)
            if high - low < TABLE_STEPS:
                steps = torch.arange(int(low), int(high) + 1, device=self._times.device)
                self._table = self._rotary.time_angles(steps)
                self._times = self._times - low

    def blocks(self, slots: Tensor, overlap: int = 0) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Keys of ``slots`` (int64 [n]) in blocks: (part of ``slots``, float32 [rows, head_dim], norms [rows]).

        A block's keys are valid until the next block; each block repeats the last ``overlap`` rows of the one before.
        """
        gap = self._per_head - self._slots
        source = slots + slots.div(self._slots, rounding_mode="floor") * gap if gap else slots
        times = self._times.index_select(0, slots)
        norms = None if self._norms is None else self._norms.index_select(0, slots)
        buffer = self._buffer(min(BLOCK_ROWS, slots.numel()))
        for start in range(0, max(1, slots.numel() - overlap), BLOCK_ROWS - overlap):
            part = slice(start, min(start + BLOCK_ROWS, slots.numel()))
            rows = buffer[: part.stop - start]
            if self._rows.dtype == torch.float32:
                torch.index_select(self._rows, 0, source[part], out=rows)
            else:
                rows.copy_(self._rows.index_select(0, source[part]))
            if self._rotary is not None:
                self._rotary.unrotate_time(self._rotary.time_halves(rows), self._angles(self._rotary, times[part]))
            if norms is None:
                yield part, rows, torch.linalg.vector_norm(rows, dim=-1).clamp_min_(TINY)
            else:
                yield part, rows, norms[part]

    def _buffer(self, rows: int) -> Tensor:
        """The scratch, unless the keys lie in it already."""
        if self._rotary is None:
            return torch.empty(rows, self._rows.shape[-1], dtype=torch.float32, device=self._rows.device)
        return self._view.room(rows, self._rows.shape[-1])

    def _angles(self, rotary: Rotary, times: Tensor) -> list[tuple[Tensor, Tensor]]:
        if self._table is None:
            return rotary.time_angles(times)
        return [(cos.index_select(0, times), sin.index_select(0, times)) for cos, sin in self._table]
