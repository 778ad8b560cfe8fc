"""Temporal redundancy: how much a patch's key resembles keys of the same patch in other frames, in float32.

The mean over r frames of cos(k, k') is ONE dot product with the mean of the r unit keys k': memory grows with the
number of patches, not with recent x past x patches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots
from ros_kvstream.memory.policies.history import similarity_to_newer
from ros_kvstream.memory.policies.key_rows import KeyRows, dot_rows
from ros_kvstream.memory.policies.patches import Patches, number_patches
from ros_kvstream.memory.policies.ranking import recency
from ros_kvstream.memory.policies.whole_frames import frame_similarity_to_recent, whole_frames
from ros_kvstream.memory.rows import count_true

STEPS = 1 << 14
"""Scores are whole numbers of 1 / STEPS: finer differences are rounding noise of the keys, and count as ties."""


def novelty(view: LayerSlots, recent: Tensor, compare_with: str = "recent") -> Tensor:
    """Minus the mean cosine of every slot's key with other keys of its patch, float32 [kv_heads, slots].

    In units of 1 / STEPS. :param recent: bool [kv_heads, slots], the newest frames; these get infinity.
    :param compare_with: "recent", the keys of the recent frames: a patch that these do not show cannot be compared, its
        slots get the mean of those of their head that can (0 if none), no advantage and no fault; or "newer", all newer
        keys that the head holds of the patch.
    """
    if compare_with == "newer":
        similarity = similarity_to_newer(view)
        return _negate_and_round(similarity, similarity).masked_fill_(recent, torch.inf)
    layout = whole_frames(view)
    if layout is not None:
        older = layout.frames - count_true(recent[0]) // layout.patches
        scores = frame_similarity_to_recent(view, layout, older, -1.0 / STEPS).round_()
        return torch.nn.functional.pad(scores, (0, recent.shape[1] - scores.shape[1]), value=torch.inf)
    patches = number_patches(view)
    keys = KeyRows(view)
    means, counts = _mean_recent_units(view, keys, patches, recent)
    past = recent.logical_not().view(-1).nonzero()[:, 0]
    patch = patches.index.index_select(0, past)
    cosines = torch.empty(past.numel(), dtype=torch.float32, device=recent.device)
    for part, rows, norms in keys.blocks(past) if past.numel() else ():
        dot_rows(rows, means.index_select(0, patch[part]), out=cosines[part])
        cosines[part].div_(norms)
    similarity = torch.zeros(recent.numel(), dtype=torch.float32, device=recent.device)
    similarity = similarity.index_copy_(0, past, cosines).view_as(recent)
    if not bool(counts.all()):
        known = counts.index_select(0, patches.index).view_as(recent) > 0
        similarity = _fill_unknown(similarity, known & ~recent, ~known)
    return _negate_and_round(similarity, similarity).masked_fill_(recent, torch.inf)


def change_from_previous(view: LayerSlots) -> Tensor:
    """Minus the cosine of every slot's key with that of its patch in the frame before, float32 [kv_heads, slots].

    In units of 1 / STEPS.

    The frame before is the newest older one of the same camera that still holds the patch in that head. A patch's
    oldest slot has none: it gets 1, as new as can be.
    """
    patches = number_patches(view)
    keys = KeyRows(view)
    by_time = recency(view).flatten().argsort(stable=True)
    order = by_time[patches.index[by_time].argsort(stable=True)]
    patch = patches.index[order]
    cosines = torch.full((order.numel(),), -1.0, dtype=torch.float32, device=order.device)
    for part, rows, norms in keys.blocks(order, overlap=1):
        later = slice(part.start + 1, part.stop)
        torch.sum(rows[1:] * rows[:-1], -1, out=cosines[later]).div_(norms[1:]).div_(norms[:-1])
    cosines[1:].masked_fill_(patch[1:] != patch[:-1], -1.0)
    result = torch.empty_like(cosines).index_copy_(0, order, cosines)
    return _negate_and_round(result, result).view(view.frames.shape)


def _mean_recent_units(view: LayerSlots, keys: KeyRows, patches: Patches, recent: Tensor) -> tuple[Tensor, Tensor]:
    """Mean unit key per patch over its recent slots, float32 [patches, head_dim], and how many they are, [patches]."""
    newest = recent.view(-1).nonzero()[:, 0]
    # In order of time (a frame shows a patch once), so the sum is the same to the last bit however the slots lie.
    newest = newest[view.frames.flatten()[newest].argsort(stable=True)]
    patch = patches.index[newest]
    sums = torch.zeros(patches.count, view.keys.shape[-1], dtype=torch.float32, device=recent.device)
    for part, rows, norms in keys.blocks(newest):
        _add_rows(sums, patch[part], rows.div_(norms[:, None]))
    counts = torch.bincount(patch, minlength=patches.count)
    sums /= counts.clamp_min(1)[:, None]
    return sums, counts


def _add_rows(sums: Tensor, index: Tensor, rows: Tensor) -> None:
    """sums[index] += rows; deterministic on CPU and, through the sorting form of index_put_, on CUDA."""
    if sums.device.type == "cpu":
        sums.index_add_(0, index.long(), rows)
    else:
        sums.index_put_((index.long(),), rows, accumulate=True)


def _fill_unknown(similarity: Tensor, compared: Tensor, unknown: Tensor) -> Tensor:
    """Give ``unknown`` slots the mean similarity of the ``compared`` ones of their head."""
    mean = (similarity * compared).double().sum(-1, keepdim=True) / compared.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(unknown, mean.float(), similarity)


def _negate_and_round(similarity: Tensor, out: Tensor) -> Tensor:
    return torch.mul(similarity, -STEPS, out=out).round_()
