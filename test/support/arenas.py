# SPDX-License-Identifier: Apache-2.0
"""Small arenas filled with known random slots."""

from __future__ import annotations

import torch

from ros_kvstream.errors import BudgetError
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.budget import CacheShape, plan_budget, smallest_budget
from ros_kvstream.settings import QuantizedSettings
from support.slots import rotary

HALVES = QuantizedSettings(mode="on", int8=0.25, int4=0.5)


def make_arena(
    *,
    layers: int = 2,
    kv_heads: int = 2,
    head_dim: int = 8,
    pinned: int = 3,
    frame_slots: int = 40,
    reserve: int = 10,
    dtype: torch.dtype = torch.float32,
) -> Arena:
    """An arena of exactly this many slots, its prompt already pinned."""
    shape = CacheShape(layers, kv_heads, head_dim, dtype)
    plan = plan_budget(
        shape, smallest_budget(shape, pinned, reserve, frame_slots), pinned=pinned, reserve=reserve, frame_tokens=1
    )
    return _prompted(Arena(plan, rotary(head_dim)))


def make_quantized_arena(
    frame_slots: int = 40, *, dtype: torch.dtype = torch.float32, head_dim: int = 16, pinned: int = 3,
    order: str = "policy",
) -> Arena:  # fmt: skip
    """An arena in mixed precision with about this many frame slots, its prompt already pinned."""
    shape = CacheShape(2, 2, head_dim, dtype)
    budget, plan = 1000, None
    while plan is None or plan.frame_slots < frame_slots:
        budget += 500
        try:
            plan = plan_budget(shape, budget, HALVES, pinned=pinned, reserve=10, frame_tokens=4)
        except BudgetError:
            plan = None
    return _prompted(Arena(plan, rotary(head_dim), order=order))


def _prompted(arena: Arena) -> Arena:
    if arena.plan.pinned_slots:
        append(arena, arena.plan.pinned_slots, frame=-1, frames=False, seed=99)
    arena.pin()
    return arena


def append(arena: Arena, tokens: int, *, frame: int, frames: bool = True, seed: int = 0, t: int = 0) -> None:
    """Append random keys and values, different in every layer, with one frame's table entries."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.stack([torch.full((tokens,), t), torch.arange(tokens), torch.arange(tokens)], -1).int()
    numbers, cameras = torch.full((tokens,), frame, dtype=torch.int32), torch.zeros(tokens, dtype=torch.int16)
    arena.begin(Chunk(positions, numbers, cameras), frames=frames)
    shape = arena.plan.shape
    for layer in range(shape.layers):
        keys, values = torch.randn(2, shape.kv_heads, tokens, shape.head_dim, generator=generator).to(shape.dtype)
        arena.write(layer, keys, values)
    arena.commit()


def fill(arena: Arena, frames: int, tokens: int = 4, start: int = 0) -> None:
    """Append whole frames, each at its own t; slots of a quantized arena move to fewer bits where they must."""
    for frame in range(start, start + frames):
        arena.demote(tokens)
        append(arena, tokens, frame=frame, seed=frame, t=frame)


def contents(arena: Arena) -> list[torch.Tensor]:
    """Copies of all slots in use: keys, values and slot table of every layer."""
    return [
        tensor[:, : arena.used].clone()
        for index, table in enumerate(arena.table)
        for tensor in (*arena.layer(index), *table.tensors().values())
    ]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Equal bit for bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def slots_by_position(arena: Arena, index: int) -> list[dict[tuple[int, ...], tuple[torch.Tensor, ...]]]:
    """Per KV head: (frame, t, h, w) -> key as stored, raw key, value and value norm of every frame slot of a layer."""
    view = arena.frame_slots(index)
    keys = view.keys.clone()  # before the raw keys, which may take the same scratch
    entries = (keys, view.unrotated_keys.clone(), view.values.clone().float(), view.value_norms.clone())
    return [
        {
            (int(view.frames[head, slot]), *view.positions[head, slot].tolist()): tuple(
                tensor[head, slot] for tensor in entries)
            for slot in range(view.count)
        }
        for head in range(len(view.frames))
    ]  # fmt: skip
