"""Small arenas filled with known random slots."""

from __future__ import annotations

import torch

from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.budget import CacheShape, plan_budget, smallest_budget
from ros_kvstream.memory.rotary import Rotary


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
    half = head_dim // 2
    rotary = Rotary(1.0 / (1e4 ** (torch.arange(half).float() / half)), torch.arange(half) % 3)
    arena = Arena(plan, rotary)
    if pinned:
        append(arena, pinned, frame=-1, frames=False, seed=99)
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
