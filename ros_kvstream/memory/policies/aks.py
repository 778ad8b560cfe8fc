# SPDX-License-Identifier: Apache-2.0
"""Adaptive Key Selection (MemStream, arXiv 2602.18434): keep the patches that differ most from the frame before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ros_kvstream.memory.policies.base import LayerSlots, RecentFirst, recency, register
from ros_kvstream.memory.policies.redundancy import KeyRows, in_steps, number_patches


@register("aks")
@dataclass(frozen=True)
class Aks(RecentFirst):
    """Keeps the recent frames, then the slots least similar to their patch in the frame before, per KV head."""

    def score(self, slots: LayerSlots) -> Tensor:
        """Return minus the cosine of every slot's key with that of its patch in the frame before, in steps.

        The frame before is the newest older frame of the camera of which the head holds the patch. The oldest slot of
        a patch has none; its score is that of an opposite key.
        """
        index, _ = number_patches(slots)
        by_time = recency(slots).flatten().argsort(stable=True)
        order = by_time[index[by_time].argsort(stable=True)]
        patch = index[order]
        cosines = torch.full((order.numel(),), -1.0, dtype=torch.float32, device=order.device)
        for part, rows, norms in KeyRows(slots).blocks(order, overlap=1):
            later = slice(part.start + 1, part.stop)
            torch.sum(rows[1:] * rows[:-1], -1, out=cosines[later]).div_(norms[1:]).div_(norms[:-1])
        cosines[1:].masked_fill_(patch[1:] != patch[:-1], -1.0)
        scores = torch.empty_like(cosines).index_copy_(0, order, cosines)
        return in_steps(scores).view(slots.frames.shape)
