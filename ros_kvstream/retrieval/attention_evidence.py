"""Which frames an answer looked at: the attention of the question's last token over the arena's frame slots."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ros_kvstream.memory.arena import Arena


@torch.inference_mode()
def attention_mass(arena: Arena, queries: Mapping[int, Tensor], position: Tensor) -> dict[int, float]:
    """Share of attention per frame, averaged over the given layers and all query heads; sums to 1 over frames.

    :param queries: layer -> un-rotated queries of one token, float32 [heads, head_dim].
    :param position: (p, h, w) of the token, int32 [1, 3].
    """
    mass: dict[int, float] = {}
    for index, query in queries.items():
        view = arena.frame_slots(index)
        kv_heads, slots = view.frames.shape
        if slots == 0:
            continue
        at = position.to(query.device).expand(query.shape[0], 1, 3)
        turned = arena.rotary.rotate(query[:, None], at).view(kv_heads, -1, query.shape[-1])
        logits = torch.bmm(turned, view.keys.float().transpose(1, 2)) * query.shape[-1] ** -0.5
        shares = logits.softmax(-1).mean(1).flatten()
        frames, inverse = view.frames.flatten().unique(return_inverse=True)
        sums = torch.zeros(len(frames), device=shares.device).index_add_(0, inverse, shares)
        for frame, share in zip(frames.tolist(), sums.tolist(), strict=True):
            mass[frame] = mass.get(frame, 0.0) + share / (kv_heads * len(queries))
    return mass
