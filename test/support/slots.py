# SPDX-License-Identifier: Apache-2.0
"""Slots of one layer as a policy sees them, from frames that are described in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ros_kvstream.memory.policies import LayerSlots
from ros_kvstream.memory.rotary import Rotary


@dataclass(frozen=True)
class Frame:
    """One frame: its patches and its camera."""

    rows: int = 2
    columns: int = 3
    camera: int = 0


def rotary(head_dim: int, axes: Sequence[int] | None = None) -> Rotary:
    """M-RoPE with the pairs dealt out to t, h and w in turn, or as ``axes`` says."""
    half = head_dim // 2
    chosen = torch.tensor(axes) if axes is not None else torch.arange(half) % 3
    return Rotary(1.0 / (1e4 ** (torch.arange(half).float() / half)), chosen)


def make_slots(
    frames: Sequence[Frame],
    *,
    seed: int = 0,
    heads: int = 2,
    head_dim: int = 12,
    dtype: torch.dtype = torch.float32,
    missing: int = 0,
    shuffled: bool = False,
    raw_keys: Tensor | None = None,
    values: Tensor | None = None,
    turn: Rotary | None = None,
) -> LayerSlots:
    """A layer that holds ``frames`` one second apart, without ``missing`` slots per head that each head lost by chance.

    :param raw_keys: keys before rotation, [heads, slots, head_dim]; random when None. :param values: the same.
    """
    generator = torch.Generator().manual_seed(seed)
    table = [
        (2 * number, row, column, number, frame.camera)
        for number, frame in enumerate(frames)
        for row in range(frame.rows)
        for column in range(frame.columns)
    ]
    total = len(table)
    rows = torch.tensor(table).expand(heads, total, 5)
    raw = torch.randn(heads, total, head_dim, generator=generator) if raw_keys is None else raw_keys
    made = torch.randn(heads, total, head_dim, generator=generator) if values is None else values
    turn = turn or rotary(head_dim)
    positions = rows[..., :3].int() + torch.tensor([5, 5, 5], dtype=torch.int32)
    keys, values = turn.rotate(raw, positions).to(dtype), made.to(dtype)
    slots = LayerSlots(
        layer=0,
        layers=4,
        keys=keys,
        values=values,
        key_norms=torch.linalg.vector_norm(keys, dim=-1, dtype=torch.float32),
        value_norms=torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32),
        positions=positions,
        frames=rows[..., 3].int(),
        cameras=rows[..., 4].short(),
        rotary=turn,
    )
    orders = [torch.randperm(total, generator=generator)[: total - missing] for _ in range(heads)]
    if missing and not shuffled:
        orders = [order.sort().values for order in orders]
    return reorder(slots, torch.stack(orders)) if missing or shuffled else slots


TABLE = ("keys", "values", "key_norms", "value_norms", "positions", "frames", "cameras")
"""The tensors of a layer that have one entry per slot."""


def reorder(slots: LayerSlots, order: Tensor) -> LayerSlots:
    """The same layer with the slots ``order`` [heads, n] at 0 .. n - 1."""
    head = torch.arange(order.shape[0])[:, None]
    return replace(slots, **{name: getattr(slots, name)[head, order].contiguous() for name in TABLE})


def indices(kept: Tensor) -> Tensor:
    """A choice, bool [heads, slots] with as many True in every head, as ascending indices [heads, n]."""
    return kept.nonzero()[:, 1].view(kept.shape[0], -1)


def identities(slots: LayerSlots, kept: Tensor) -> list[set[tuple[int, ...]]]:
    """What a choice, bool [heads, slots], keeps per head, as (frame, camera, h, w)."""
    rows = torch.cat([slots.frames[..., None], slots.cameras[..., None], slots.positions[..., 1:]], dim=-1)
    return [{tuple(row) for row in head[mask].tolist()} for head, mask in zip(rows, kept, strict=True)]
