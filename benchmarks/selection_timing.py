"""Timing of score, select and compact in place beside the published formulation, for `kvstream benchmark selection`.

Both run in one process on one thread, turn about, on the same keys and values.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import copy_bandwidth, median_ms, peak_extra_bytes
from ros_kvstream.errors import SettingsError
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.budget import CacheShape, plan_budget, smallest_budget
from ros_kvstream.memory.policies import SelectionPolicy, make_policy
from ros_kvstream.memory.rotary import Rotary


@dataclass(frozen=True)
class BenchmarkShape:
    """Size of the benchmark; the defaults are Qwen2.5-VL-3B with the published block."""

    layers: int = 36
    kv_heads: int = 2
    head_dim: int = 128
    frames: int = 32
    keep_frames: int = 24
    rows: int = 10
    columns: int = 14
    prompt: int = 16
    repeats: int = 7

    @property
    def frame_tokens(self) -> int:
        """Tokens of one temporal grid."""
        return self.rows * self.columns

    @property
    def slots(self) -> int:
        """Frame slots before the cut."""
        return self.frames * self.frame_tokens

    @property
    def keep(self) -> int:
        """Frame slots after the cut."""
        return self.keep_frames * self.frame_tokens


ALPHA, RECENT_FRAMES_SHARE = 0.5, 0.25
"""Settings of the published example run, used on both sides."""


def measure(
    shape: BenchmarkShape, dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16)
) -> dict[str, dict[str, Any]]:
    """Measure each type at a shape; returns the report of ``--json``.

    Keys per type: ``speedup`` (published time / ours), ``peak_ratio`` (our extra memory / theirs), ``same_slots``
    (``reference`` keeps exactly their slots), ``of_floor`` (our time / time to move the bytes that must move at the
    copy bandwidth of this run), and the figures behind them. ``later_speedup`` is that of the cut after the first one,
    when every head holds other slots (the published code then compares patches that no longer line up);
    ``default_mspeedup`` that of the first cut with the default settings, which compare with all newer keys.
    """
    published = _published()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return {
                str(dtype).removeprefix("torch."): _measure(shape, dtype, published)
                for dtype in dtypes
            }
    finally:
        torch.set_num_threads(threads)


def _measure(shape: BenchmarkShape, dtype: torch.dtype, published: ModuleType) -> dict[str, Any]:
    """One type's row of the report."""
    keys, values = _cache(shape, dtype)
    arena = _arena(shape, dtype)
    share = RECENT_FRAMES_SHARE * shape.frames / shape.keep_frames
    ours = make_policy(
        "infinipot_v", {"alpha": ALPHA, "recent_share": share + 1e-6, "compare_with": "recent"}
    )
    options = {"compatibility": "paper", "alpha": ALPHA, "recent_share": RECENT_FRAMES_SHARE}
    reference = make_policy("infinipot_v", options)
    theirs: list[tuple[Tensor, Tensor]] = []

    def restore() -> None:
        _fill(arena, shape, keys, values)
        theirs[:] = [(k[None].clone(), v[None].clone()) for k, v in zip(keys, values, strict=True)]

    def run_ours() -> None:
        arena.compact(ours, shape.keep)

    def run_published() -> list[Tensor]:
        kept: list[Tensor] = published.compact_published(
            theirs,
            prompt=shape.prompt,
            frame_tokens=shape.frame_tokens,
            keep_frames=shape.keep_frames,
            alpha=ALPHA,
            recent_ratio=RECENT_FRAMES_SHARE,
        )
        return kept

    ours_ms, published_ms = median_ms([run_ours, run_published], shape.repeats, "cpu", restore)

    default = make_policy("infinipot_v", {})
    fewer = max(1, shape.repeats // 2)
    default_ms, published_again = median_ms(
        [lambda: arena.compact(default, shape.keep), run_published], fewer, "cpu", restore
    )

    def restore_later() -> None:
        restore()
        arena.compact(ours, shape.keep)
        run_published()
        new = shape.slots - shape.keep
        _append(arena, shape, keys, values, slice(shape.prompt, shape.prompt + new), shape.frames)
        for index, (k, v) in enumerate(theirs):
            rows = slice(shape.prompt, shape.prompt + new)
            more = keys[index][None, :, rows], values[index][None, :, rows]
            theirs[index] = torch.cat([k, more[0]], 2), torch.cat([v, more[1]], 2)

    later_ours, later_published = median_ms([run_ours, run_published], fewer, "cpu", restore_later)
    restore()
    floor_bytes = _bytes_that_must_move(arena, ours, shape)
    same = [
        float((reference.select(arena.frame_slots(index), shape.keep) == slots).float().mean())
        for index, slots in enumerate(run_published())
    ]
    ours_peak, published_peak = peak_extra_bytes(restore, run_ours), peak_extra_bytes(restore, run_published)
    bandwidth = copy_bandwidth(torch.stack(keys), "cpu")
    return {
        "speedup": published_ms / ours_ms,
        "peak_ratio": ours_peak / published_peak,
        "same_slots": all(share == 1.0 for share in same),
        "of_floor": ours_ms / (1e3 * floor_bytes / bandwidth),
        "same_slots_share": sum(same) / len(same),
        "later_speedup": later_published / later_ours,
        "default_mspeedup": published_again / default_ms,
        "ours_ms": ours_ms,
        "published_ms": published_ms,
        "floor_ms": floor_bytes / bandwidth * 1e3,
        "copy_gb_per_s": bandwidth / 1e9,
        "ours_peak_mib": ours_peak / 2**20,
        "published_peak_mib": published_peak / 2**20,
    }


def _bytes_that_must_move(arena: Arena, policy: SelectionPolicy, shape: BenchmarkShape) -> int:
    """Bytes that no implementation can avoid: every key and norm read once, moved rows of K and V read and written."""
    total = 0
    for index in range(shape.layers):
        view = arena.frame_slots(index)
        kept = policy.select(view, shape.keep)
        row = view.keys.shape[-1] * view.keys.element_size()
        total += view.keys.numel() * view.keys.element_size() + view.value_norms.numel() * 4
        total += 2 * 2 * int((kept >= shape.keep).sum()) * row
    return total


def _rotary(shape: BenchmarkShape) -> Rotary:
    """M-RoPE of Qwen2.5-VL: sections of 1/4, 3/8 and 3/8 of the pairs for t, h and w, theta 1e6."""
    half = shape.head_dim // 2
    t, h = half // 4, half * 3 // 8
    axes = torch.tensor([0] * t + [1] * h + [2] * (half - t - h))
    return Rotary(1e6 ** (-torch.arange(half).float() / half), axes)


def _positions(shape: BenchmarkShape) -> Tensor:
    """(t, h, w) of the prompt and the frames, int32 [prompt + slots, 3]."""
    prompt = torch.arange(shape.prompt)[:, None].expand(-1, 3)
    slot = torch.arange(shape.slots)
    patch = slot % shape.frame_tokens
    frames = torch.stack([slot // shape.frame_tokens * 2, patch // shape.columns, patch % shape.columns], dim=-1)
    return torch.cat([prompt, frames + shape.prompt]).int()


def _cache(shape: BenchmarkShape, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values per layer, [kv_heads, prompt + slots, head_dim]: a still scene with changing patches, rotated."""
    generator = torch.Generator().manual_seed(4)
    rotary, positions = _rotary(shape), _positions(shape)
    keys, values = [], []
    for _ in range(shape.layers):
        size = (shape.kv_heads, shape.prompt + shape.slots, shape.head_dim)
        scene = torch.randn(shape.kv_heads, shape.frame_tokens, shape.head_dim, generator=generator)
        raw = torch.randn(size, generator=generator)
        change = torch.rand(shape.kv_heads, shape.slots, 1, generator=generator)
        raw[:, shape.prompt :] *= change
        raw[:, shape.prompt :] += scene.repeat(1, shape.frames, 1)
        scale = torch.rand(*size[:2], 1, generator=generator) + 0.5
        keys.append(rotary.rotate(raw, positions.expand(shape.kv_heads, -1, -1)).to(dtype))
        values.append((torch.randn(size, generator=generator) * scale).to(dtype))
    return keys, values


def _arena(shape: BenchmarkShape, dtype: torch.dtype) -> Arena:
    """An arena with exactly the frame slots of the benchmark."""
    cache = CacheShape(shape.layers, shape.kv_heads, shape.head_dim, dtype)
    budget = smallest_budget(cache, shape.prompt, 1, shape.slots)
    plan = plan_budget(cache, budget, pinned=shape.prompt, reserve=1, frame_tokens=shape.slots // 2)
    return Arena(plan, _rotary(shape))


def _fill(arena: Arena, shape: BenchmarkShape, keys: list[Tensor], values: list[Tensor]) -> None:
    """Bring the arena to the state before the cut: the prompt pinned, all frame slots filled."""
    arena.clear()
    _append(arena, shape, keys, values, slice(0, shape.prompt), None)
    arena.pin()
    _append(arena, shape, keys, values, slice(shape.prompt, shape.prompt + shape.slots), 0)


def _append(
    arena: Arena, shape: BenchmarkShape, keys: list[Tensor], values: list[Tensor], rows: slice, first: int | None
) -> None:
    """Append ``rows`` of the made cache as frames ``first``, ``first`` + 1, ... or, with None, as text."""
    count = rows.stop - rows.start
    ids = torch.full((count,), -1) if first is None else first + torch.arange(count) // shape.frame_tokens
    positions = _positions(shape)[rows]
    if first:
        positions[:, 0] += 2 * first
    arena.begin(Chunk(positions, ids.int(), torch.zeros(count, dtype=torch.int16)), frames=first is not None)
    for index in range(shape.layers):
        arena.write(index, keys[index][:, rows], values[index][:, rows])
    arena.commit()


def _published() -> ModuleType:
    """The transcription of the published code, from the source tree's benchmarks/."""
    folders = [Path(__file__).resolve().parents[1], Path.cwd()]
    for place in folders:
        path = place / "benchmarks" / "published_selection.py"
        specification = importlib.util.spec_from_file_location("published_selection", path)
        if path.is_file() and specification is not None and specification.loader is not None:
            module = importlib.util.module_from_spec(specification)
            specification.loader.exec_module(module)
            return module
    raise SettingsError(
        "benchmark selection needs benchmarks/published_selection.py, which is part of the source tree and is not "
        f"installed; looked in {', '.join(str(place) for place in folders)}. Run it from the source tree."
    )
