# SPDX-License-Identifier: Apache-2.0
"""The internal expert: the model's own attention, from question queries to archived frame keys.

Both are un-rotated, so a frame's score does not depend on its position. The published form (ReKV) compares the mean of
the question's queries with the mean of a frame's keys; small objects vanish in the mean, and it drifts with time. The
default here is the last question token against each patch, and the maximum over patches.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.settings import RetrievalSettings

NEIGHBOURS = 16
"""Archived frames before and after with which a frame's score is compared."""
NOT_SCORED = float("-inf")
"""Score of slots without a frame."""


def question_queries(queries: Mapping[int, Tensor], query: str) -> dict[int, Tensor]:
    """One query per layer and head from all tokens of a question.

    :param queries: layer -> un-rotated queries, [heads, tokens, head_dim]; :param query: "last" or "mean".
    :returns: layer -> float32 [heads, head_dim] on the CPU.
    """
    if query == "last":
        return {layer: tensor[:, -1].float().cpu() for layer, tensor in queries.items()}
    return {layer: tensor.float().mean(1).cpu() for layer, tensor in queries.items()}


def score_layer(
    index_keys: Tensor, counts: Tensor, query: Tensor, *,
    mean_key: bool, patch_pooling: str, head_pooling: str, chunk: int,
) -> Tensor:  # fmt: skip
    """Score every slot of one layer.

    :param index_keys: float16 [slots, entries, kv_heads * head_dim];
    :param mean_key: whether entry 0 is the mean key;
    :param counts: valid entries of each slot, [slots]; :param query: float32 [heads, head_dim].
    :param chunk: slots converted to float32 at a time.
    :returns: dot products / sqrt(head_dim), pooled, float32 [slots].
    """
    slots, entries, width = index_keys.shape
    heads, head_dim = query.shape
    kv_heads = width // head_dim
    grouped = query.view(kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    mean_query = (grouped.sum(1) / heads).flatten()
    products = torch.empty(slots, entries)
    keys = torch.empty(min(chunk, slots), entries, width)
    for start in range(0, slots, chunk):
        end = min(start + chunk, slots)
        part = keys[: end - start].copy_(index_keys[start:end])
        if head_pooling == "mean":
            torch.mv(part.view(-1, width), mean_query, out=products[start:end].view(-1))
        else:
            per_head = torch.einsum("sekd,kgd->sekg", part.unflatten(-1, (kv_heads, head_dim)), grouped)
            products[start:end] = per_head.flatten(2).amax(-1)
    if patch_pooling == "mean" and mean_key:
        return products[:, 0].masked_fill(counts < 1, NOT_SCORED)
    steps = torch.arange(entries)
    valid = (steps < counts[:, None]) & (steps >= int(mean_key))
    if patch_pooling == "max":
        return products.masked_fill_(~valid, NOT_SCORED).amax(-1)
    return (products * valid).sum(-1) / valid.sum(-1).clamp_min(1)


def sums_around(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the values of each frame and its neighbours in time, and their number.

    :param values: in time order, [frames, ...]; returns [frames, ...] and int64 [frames].
    """
    frames = len(values)
    sums = torch.cat([values.new_zeros(1, *values.shape[1:]), values.cumsum(0)])
    middle = torch.arange(frames)
    first, last = (middle - NEIGHBOURS).clamp_min(0), (middle + NEIGHBOURS + 1).clamp_max(frames)
    return sums[last] - sums[first], last - first


def without_drift(scores: Tensor, by_time: Tensor) -> Tensor:
    """Scores minus the mean of their neighbours in time.

    From the second layer on, a frame's keys depend on the arena's content when it was encoded, so plain scores drift.

    :param scores: [frames]; :param by_time: indices of the frames, oldest first, [frames].
    """
    ordered = scores[by_time].double()
    sums, counts = sums_around(ordered)
    result = torch.empty_like(scores)
    result[by_time] = (ordered - sums / counts).float()
    return result


def internal_scores(
    archive: Archive, queries: Mapping[int, Tensor], settings: RetrievalSettings, *, plain: bool = False
) -> Tensor:
    """Score of every archive slot: the mean over layers of scores standardised over the frames held.

    Layers differ in scale: without standardising, one of them would decide alone.

    :param queries: layer -> float32 [heads, head_dim] from :func:`question_queries`.
    :param plain: keep the drift, as published; for benchmarks.
    :returns: float32 [slots], -inf where a slot holds no frame.
    """
    plan, table = archive.plan, archive.table
    live = torch.from_numpy(table.frames["live"].copy())
    by_time = torch.from_numpy(np.argsort(table.frames["stamp"][table.frames["live"]], kind="stable"))
    counts = torch.from_numpy(table.frames["index_count"].astype("int64"))
    total = torch.zeros(plan.frames)
    searched = [layer for layer in plan.shape.index_layers if layer in queries]
    for layer in searched:
        scores = score_layer(
            table.index_keys[plan.shape.index_layers.index(layer)],
            counts,
            queries[layer],
            mean_key=plan.settings.mean_key,
            patch_pooling=settings.patch_pooling,
            head_pooling=settings.head_pooling,
            chunk=plan.index_chunk,
        )
        if len(by_time):
            held = scores[live] - scores[live].mean() if plain else without_drift(scores[live], by_time)
            total[live] += held / held.std(unbiased=False).clamp_min(1e-6)
    return (total / max(len(searched), 1)).masked_fill(~live, NOT_SCORED)
