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
    view = LayerSlots(
        layer=0,
        layers=4,
        keys=turn.rotate(raw, positions).to(dtype),
        values=made.to(dtype),
        value_norms=torch.linalg.vector_norm(made.to(dtype), dim=-1, dtype=torch.float32),
        positions=positions,
        frames=rows[..., 3].int(),
        cameras=rows[..., 4].short(),
        unrotate=turn.unrotate,
        rotary=turn,
    )
    orders = [torch.randperm(total, generator=generator)[: total - missing] for _ in range(heads)]
    if missing and not shuffled:
        orders = [order.sort().values for order in orders]
    return reorder(view, torch.stack(orders)) if missing or shuffled else view


def reorder(view: LayerSlots, order: Tensor) -> LayerSlots:
    """The same layer with the slots ``order`` [heads, n] at 0 .. n - 1."""
    head = torch.arange(order.shape[0])[:, None]
    names = ("keys", "values", "value_norms", "positions", "frames", "cameras")
    chosen = {name: getattr(view, name)[head, order].contiguous() for name in names}
    if view.key_norms is not None:
        chosen["key_norms"] = view.key_norms[head, order]
    return replace(view, table=None, **chosen)


def identities(view: LayerSlots, kept: Tensor) -> list[set[tuple[int, ...]]]:
    """What a choice keeps, per head, as (frame, camera, h, w)."""
    found = []
    for head in range(kept.shape[0]):
        slots = kept[head]
        place = view.positions[head, slots, 1:]
        rows = torch.cat([view.frames[head, slots, None], view.cameras[head, slots, None], place], dim=-1)
        found.append({tuple(row) for row in rows.tolist()})
    return found
