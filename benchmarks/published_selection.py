# SPDX-License-Identifier: Apache-2.0
"""A plain transcription of the published InfiniPot-V compaction, for comparison in `kvstream benchmark selection`.

Written from the facts in docs/policies.md, not copied: every recent frame's keys are compared with every past frame's
in one broadcast product, in the type of the cache; value norms are taken at each compaction; what stays is gathered and
concatenated behind the prompt into new tensors. Whole frames in time order, no pooling.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compact_published(
    cache: list[tuple[Tensor, Tensor]],
    *,
    prompt: int,
    frame_tokens: int,
    keep_frames: int,
    alpha: float = 0.5,
    recent_ratio: float = 0.25,
) -> list[Tensor]:
    """Cut every layer of ``cache`` in place of its list entry; returns the kept slots, int64 [kv_heads, keep] a layer.

    :param cache: per layer keys and values, [1, kv_heads, prompt + slots, head_dim].
    """
    kept = []
    for index, (keys, values) in enumerate(cache):
        frame_keys, frame_values = keys[:, :, prompt:], values[:, :, prompt:]
        slots = select_published(frame_keys, frame_values, frame_tokens, keep_frames, alpha, recent_ratio)
        heads = torch.arange(keys.shape[1])[:, None]
        new_keys = torch.cat([keys[:, :, :prompt], frame_keys[:, heads, slots]], dim=2)
        new_values = torch.cat([values[:, :, :prompt], frame_values[:, heads, slots]], dim=2)
        cache[index] = (new_keys, new_values)
        kept.append(slots)
    return kept


def select_published(
    keys: Tensor, values: Tensor, frame_tokens: int, keep_frames: int, alpha: float, recent_ratio: float
) -> Tensor:
    """TaR picks first, the best value norms fill up; int64 [kv_heads, keep], ascending.

    :param keys: [1, kv_heads, frames * frame_tokens, head_dim], rotated; :param values: the same shape.
    """
    heads, slots, dim = keys.shape[1:]
    frames = slots // frame_tokens
    recent = int(recent_ratio * frames)
    past = frames - recent
    keep = keep_frames * frame_tokens
    units = keys / (keys.norm(dim=-1, keepdim=True) + 1e-9)
    units = units.view(1, heads, frames, frame_tokens, dim)
    pairs = units[:, :, past:].unsqueeze(3) * units[:, :, :past].unsqueeze(2)
    novelty = -pairs.sum(dim=-1).mean(dim=2).view(heads, past * frame_tokens)
    by_redundancy = keep - round((1 - alpha) * keep)
    chosen = novelty.topk(by_redundancy - recent * frame_tokens, dim=-1).indices
    newest = torch.arange(past * frame_tokens, slots).expand(heads, -1)
    chosen = torch.cat([chosen, newest], dim=-1)
    norms = values.norm(dim=-1)[0]
    norms.scatter_(1, chosen, float(norms.max()) + 1.0)
    return norms.topk(keep, dim=-1).indices.sort(dim=-1).values
