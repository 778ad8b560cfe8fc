# SPDX-License-Identifier: Apache-2.0
"""The published InfiniPot-V selection, slot for slot and with its faults, for comparisons.

It scores rotated keys, takes the slots in time order for whole frames, and pools by quarter of the depth with zero
padding. Where the published code fails (fewer than four frames, a recent share above TaR's share, slots that are not
whole frames), this one continues with the nearest thing that works.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ros_kvstream.memory.policies.base import LayerSlots, recency

KERNELS = ((3, 7), (2, 5), (1, 3), (0, 1))
"""Pooling by quarter of the depth: (axes, kernel)."""


def paper_selection(slots: LayerSlots, keep: int, alpha: float, recent_share: float, depth_pooling: bool) -> Tensor:
    """Return the kept slots as published, bool [kv_heads, slots].

    :param alpha: TaR's share of ``keep``, recent frames included; 0 for value norms alone.
    :param recent_share: share of the frames held that the others are compared with and that are kept.
    """
    in_time = recency(slots).argsort(dim=-1, stable=True)
    count = slots.count
    newest = slots.frames[0] == slots.frames[0].max()
    per_frame = int(newest.sum())
    frames = count // per_frame
    whole = frames * per_frame
    in_time = torch.cat([in_time[:, count - whole :], in_time[:, : count - whole]], dim=-1)
    if keep >= whole:
        return torch.zeros_like(slots.frames, dtype=torch.bool).scatter_(1, in_time[:, :keep], True)
    order = in_time[:, :whole]
    norms = slots.value_norms.float().gather(-1, order)
    if depth_pooling:
        rows = int(torch.unique(slots.positions[0, newest, 1]).numel())
        norms = _pooled_by_depth(norms, frames, rows, slots.layer // max(1, slots.layers // 4))
    tar = _tar_picks(slots.keys, order, frames, keep, alpha, int(recent_share * frames))
    picks = norms.masked_fill(tar, torch.inf).argsort(dim=-1, descending=True, stable=True)[:, :keep]
    return torch.zeros_like(slots.frames, dtype=torch.bool).scatter_(1, order.gather(-1, picks), True)


def _tar_picks(keys: Tensor, order: Tensor, frames: int, keep: int, alpha: float, recent: int) -> Tensor:
    """bool [kv_heads, slots in time order]: the recent frames and TaR's choice of the older slots."""
    heads, slots = order.shape
    per_frame = slots // frames
    picked = torch.zeros(heads, slots, dtype=torch.bool, device=keys.device)
    if alpha <= 0.0 or recent == 0:
        return picked
    past = slots - recent * per_frame
    picked[:, past:] = True
    extra = keep - round((1.0 - alpha) * keep) - recent * per_frame
    if extra <= 0:
        return picked
    in_order = keys.gather(1, order[..., None].expand(-1, -1, keys.shape[-1])).float()
    units = in_order / (in_order.norm(dim=-1, keepdim=True) + 1e-9)
    by_frame = units.view(heads, frames, per_frame, -1)
    mean = by_frame[:, frames - recent :].mean(1, keepdim=True)
    redundancy = (by_frame[:, : frames - recent] * mean).sum(-1).flatten(1)
    chosen = redundancy.argsort(dim=-1, stable=True)[:, :extra]
    return picked.scatter_(1, chosen, True)


def _pooled_by_depth(norms: Tensor, frames: int, rows: int, quarter: int) -> Tensor:
    """Zero-padded average pooling of [kv_heads, slots in time order] as published for this quarter of the depth."""
    axes, kernel = KERNELS[min(quarter, 3)]
    heads, slots = norms.shape
    columns = slots // (frames * rows)
    if axes == 0:
        return norms
    if axes == 1:
        return functional.avg_pool1d(norms[:, None], kernel, stride=1, padding=kernel // 2)[:, 0]
    kernel = min(kernel, frames, rows, columns)
    kernel -= 1 - kernel % 2
    if kernel < 3 or frames * rows * columns != slots:
        return norms
    along = (kernel if axes == 3 else 1, kernel, kernel)
    padding = (along[0] // 2, kernel // 2, kernel // 2)
    grid = norms.view(heads, 1, frames, rows, columns)
    return functional.avg_pool3d(grid, along, stride=1, padding=padding).reshape(heads, slots)
