# SPDX-License-Identifier: Apache-2.0
"""`kvstream benchmark selection`: time and memory of a compaction, compared with the published formulation.

At the shape of Qwen2.5-VL-3B (36 layers, 2 KV heads, 32 grids of 140 tokens cut to 24): score, select and compact in
place, alternately in one process on one thread, on the same keys and values. Takes about a minute and 1.5 GiB.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks import figures_table
from benchmarks.timing import copy_bandwidth, median_ms, peak_extra_bytes
from ros_kvstream.memory.arena import Arena, Chunk
from ros_kvstream.memory.budget import CacheShape, plan_budget, smallest_budget
from ros_kvstream.memory.policies import SelectionPolicy, make_policy
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.memory.slot_table import kept_mask


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
"""Settings of the published example run, used on both sides of the first cut."""


def measure(
    shape: BenchmarkShape, dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16)
) -> dict[str, dict[str, Any]]:
    """Measure each type at a shape; returns the report of ``--json``.

    Keys per type, of the first cut with the published settings: ``speedup`` (published time / our time),
    ``peak_ratio`` (our extra memory / theirs), ``same_slots`` (whether ``compatibility = paper`` keeps exactly their
    slots) and ``of_floor`` (our time / time to move the bytes that must move, at the copy bandwidth of this run).
    ``later_speedup`` is that of a cut of a memory that has been cut before, with our default settings: the heads then
    hold different slots, and the published code compares patches that no longer correspond. The other keys are the
    figures behind these.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return {str(dtype).removeprefix("torch."): _Sides(shape, dtype).measure() for dtype in dtypes}
    finally:
        torch.set_num_threads(threads)


class _Sides:
    """The same keys and values twice: in an arena, and in a cache of the published code."""

    def __init__(self, shape: BenchmarkShape, dtype: torch.dtype) -> None:
        share = RECENT_FRAMES_SHARE * shape.frames / shape.keep_frames
        published = {"alpha": ALPHA, "recent_share": share + 1e-6, "compare_with": "recent"}
        paper = {"alpha": ALPHA, "recent_share": RECENT_FRAMES_SHARE, "compatibility": "paper"}
        self.shape = shape
        self.keys, self.values = _cache(shape, dtype)
        self.arena = _arena(shape, dtype)
        self.cache: list[tuple[Tensor, Tensor]] = []
        self.ours, self.paper = make_policy("infinipot_v", published), make_policy("infinipot_v", paper)
        self.default = make_policy("infinipot_v")

    def measure(self) -> dict[str, Any]:
        """One type's row of the report."""
        repeats = self.shape.repeats
        ours_ms, published_ms = median_ms([self.cut, self.cut_published], repeats, "cpu", self.fill)
        later_ms, later_published_ms = median_ms(
            [self.cut_default, self.cut_published], max(1, repeats // 2), "cpu", self.fill_again
        )
        self.fill()
        floor_bytes = _bytes_that_must_move(self.arena, self.ours, self.shape)
        views = [self.arena.frame_slots(index) for index in range(self.shape.layers)]
        paper = [self.paper.select(slots, self.shape.keep) for slots in views]
        published = [kept_mask(kept, self.shape.slots) for kept in self.cut_published()]
        same = [float((ours == theirs).float().mean()) for ours, theirs in zip(paper, published, strict=True)]
        peak, published_peak = (peak_extra_bytes(self.fill, work) for work in (self.cut, self.cut_published))
        bandwidth = copy_bandwidth(torch.stack(self.keys), "cpu")
        return {
            "speedup": published_ms / ours_ms,
            "later_speedup": later_published_ms / later_ms,
            "peak_ratio": peak / published_peak,
            "same_slots": all(share == 1.0 for share in same),
            "of_floor": ours_ms / (1e3 * floor_bytes / bandwidth),
            "same_slots_share": sum(same) / len(same),
            "ours_ms": ours_ms,
            "published_ms": published_ms,
            "later_ms": later_ms,
            "later_published_ms": later_published_ms,
            "floor_ms": floor_bytes / bandwidth * 1e3,
            "copy_gb_per_s": bandwidth / 1e9,
            "ours_peak_mib": peak / 2**20,
            "published_peak_mib": published_peak / 2**20,
        }

    def fill(self) -> None:
        """Bring both to the state before the first cut."""
        self.arena.clear()
        self._append(slice(0, self.shape.prompt), None)
        self.arena.pin()
        self._append(slice(self.shape.prompt, self.shape.prompt + self.shape.slots), 0)
        self.cache[:] = [(k[None].clone(), v[None].clone()) for k, v in zip(self.keys, self.values, strict=True)]

    def fill_again(self) -> None:
        """Bring both to the state before a second cut."""
        self.fill()
        self.cut_default()
        self.cut_published()
        prompt, new = self.shape.prompt, self.shape.slots - self.shape.keep
        rows = slice(prompt, prompt + new)
        self._append(rows, self.shape.frames)
        for index, (keys, values) in enumerate(self.cache):
            more = self.keys[index][None, :, rows], self.values[index][None, :, rows]
            self.cache[index] = torch.cat([keys, more[0]], 2), torch.cat([values, more[1]], 2)

    def _append(self, rows: slice, first: int | None) -> None:
        """Append ``rows`` of the cache as frames ``first``, ``first`` + 1, ... or, with None, as text."""
        count = rows.stop - rows.start
        ids = torch.full((count,), -1) if first is None else first + torch.arange(count) // self.shape.frame_tokens
        positions = _positions(self.shape)[rows]
        if first:
            positions[:, 0] += 2 * first
        self.arena.begin(Chunk(positions, ids.int(), torch.zeros(count, dtype=torch.int16)), frames=first is not None)
        for index in range(self.shape.layers):
            self.arena.write(index, self.keys[index][:, rows], self.values[index][:, rows])
        self.arena.commit()

    def cut(self) -> None:
        """Compact the arena with the published settings."""
        self.arena.compact(self.ours, self.shape.keep)

    def cut_default(self) -> None:
        """Compact the arena with the default settings."""
        self.arena.compact(self.default, self.shape.keep)

    def cut_published(self) -> list[Tensor]:
        """Compact the published code's cache; returns the kept slots of each layer."""
        return compact_published(self.cache, self.shape)


def _bytes_that_must_move(arena: Arena, policy: SelectionPolicy, shape: BenchmarkShape) -> int:
    """Bytes that every implementation moves: keys and norms read once, moved rows of K and V read and written."""
    total = 0
    for index in range(shape.layers):
        slots = arena.frame_slots(index)
        moved = int(policy.select(slots, shape.keep)[:, shape.keep :].sum())
        row = slots.keys.shape[-1] * slots.keys.element_size()
        total += slots.keys.numel() * slots.keys.element_size() + slots.value_norms.numel() * 4
        total += 2 * 2 * moved * row
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
    """Rotated keys, and values, per layer [kv_heads, prompt + slots, head_dim]: a still scene, patches that change."""
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
    """Make an arena with exactly the frame slots of the benchmark."""
    cache = CacheShape(shape.layers, shape.kv_heads, shape.head_dim, dtype)
    budget = smallest_budget(cache, shape.prompt, 1, shape.slots)
    plan = plan_budget(cache, budget, pinned=shape.prompt, reserve=1, frame_tokens=shape.slots // 2)
    return Arena(plan, _rotary(shape))


# -- the published formulation ----------------------------------------------------------------------------------------


def compact_published(cache: list[tuple[Tensor, Tensor]], shape: BenchmarkShape) -> list[Tensor]:
    """Cut every layer of ``cache`` as the published code does; returns the kept slots, int64 [kv_heads, keep] a layer.

    Written from the facts in docs/policies.md: every recent frame's keys are compared with every past frame's in one
    broadcast product, in the type of the cache; value norms are taken at each compaction; what stays is gathered and
    concatenated behind the prompt into new tensors. Whole frames in time order, no pooling.

    :param cache: per layer keys and values, [1, kv_heads, prompt + slots, head_dim].
    """
    kept, prompt = [], shape.prompt
    for index, (keys, values) in enumerate(cache):
        frame_keys, frame_values = keys[:, :, prompt:], values[:, :, prompt:]
        slots = select_published(frame_keys, frame_values, shape)
        heads = torch.arange(keys.shape[1])[:, None]
        new_keys = torch.cat([keys[:, :, :prompt], frame_keys[:, heads, slots]], dim=2)
        new_values = torch.cat([values[:, :, :prompt], frame_values[:, heads, slots]], dim=2)
        cache[index] = (new_keys, new_values)
        kept.append(slots)
    return kept


def select_published(keys: Tensor, values: Tensor, shape: BenchmarkShape) -> Tensor:
    """TaR picks first, the best value norms fill up; int64 [kv_heads, keep], ascending.

    :param keys: [1, kv_heads, frames * frame_tokens, head_dim], rotated; :param values: the same shape.
    """
    heads, slots, dim = keys.shape[1:]
    frames, keep = slots // shape.frame_tokens, shape.keep
    recent = int(RECENT_FRAMES_SHARE * frames)
    past = frames - recent
    units = keys / (keys.norm(dim=-1, keepdim=True) + 1e-9)
    units = units.view(1, heads, frames, shape.frame_tokens, dim)
    pairs = units[:, :, past:].unsqueeze(3) * units[:, :, :past].unsqueeze(2)
    novelty = -pairs.sum(dim=-1).mean(dim=2).view(heads, past * shape.frame_tokens)
    by_redundancy = keep - round((1 - ALPHA) * keep)
    chosen = novelty.topk(by_redundancy - recent * shape.frame_tokens, dim=-1).indices
    newest = torch.arange(past * shape.frame_tokens, slots).expand(heads, -1)
    chosen = torch.cat([chosen, newest], dim=-1)
    norms = values.norm(dim=-1)[0]
    norms.scatter_(1, chosen, float(norms.max()) + 1.0)
    return norms.topk(keep, dim=-1).indices.sort(dim=-1).values


# -- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--layers", type=int, default=36, help="layers of the model (fewer for a quick look)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds, of which the median is reported")


def run(options: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    """Measure float32 and bfloat16; returns the report of ``--json``."""
    with console.status("Compacting at the size of Qwen2.5-VL-3B, ours and the published formulation in turn"):
        return measure(BenchmarkShape(layers=options.layers, repeats=options.repeats))


def show(report: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the report as a table."""
    rows = ((key.replace("_", " "), *(f"{row[key]}" if key == "same_slots" else f"{row[key]:.3g}"
                                      for row in report.values())) for key in next(iter(report.values())))  # fmt: skip
    console.print(figures_table("Score, select and compact in place, compared with the published formulation",
                                ("", *report), rows))  # fmt: skip
