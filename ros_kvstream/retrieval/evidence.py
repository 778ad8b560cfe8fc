# SPDX-License-Identifier: Apache-2.0
"""Evidence of an answer: the retrieved frames, and the frames in the arena that the question attended to most.

The best evidence is the frame with the most attention in the middle layers. They look up what the question names; the
first layers attend to neighbours, and the last ones prepare the answer's words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ros_kvstream.memory.archive.records import ArchivedFrame
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.frame_index import FrameIndex, FrameRecord
from ros_kvstream.records import FrameEvidence
from ros_kvstream.retrieval.fusion import RankedFrame

MAX_EVIDENCE = 8
"""Frames named as evidence of an answer, unless as many or more were retrieved: then these and one of the arena."""


def evidence_layers(layers: int) -> range:
    """The middle half of a model's layers, at least one."""
    return range(layers // 4, max(layers - layers // 4, 1))


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
        rotated = arena.rotary.rotate(query[:, None], at).view(kv_heads, -1, query.shape[-1])
        logits = torch.bmm(rotated, view.keys.float().transpose(1, 2)) * query.shape[-1] ** -0.5
        shares = logits.softmax(-1).mean(1).flatten()
        frames, inverse = view.frames.flatten().unique(return_inverse=True)
        sums = torch.zeros(len(frames), device=shares.device).index_add_(0, inverse, shares)
        for frame, share in zip(frames.tolist(), sums.tolist(), strict=True):
            mass[frame] = mass.get(frame, 0.0) + share / (kv_heads * len(queries))
    return mass


def retrieved_evidence(
    chosen: Sequence[RankedFrame],
    fetched: Sequence[ArchivedFrame],
    present: Mapping[int, tuple[FrameRecord, float]],
    segment: str,
) -> tuple[FrameEvidence, ...]:
    """Those of the chosen frames that are in the context, best first.

    :param fetched: frames brought back from the archive; :param present: frames that are in the context anyway, by id,
        each with the share of it that is; :param segment: present segment of the map.
    """
    found: dict[int, tuple[ArchivedFrame | FrameRecord, float]] = {**present}
    for frame in fetched:
        found[frame.frame_id] = frame, min(1.0, len(frame.coordinates) / (frame.grid[0] * frame.grid[1]))
    evidence = []
    for ranked in chosen:
        if ranked.frame_id in found:
            record, share = found[ranked.frame_id]
            evidence.append(
                FrameEvidence(
                    ranked.frame_id,
                    record.stamp,
                    record.stamp_end,
                    record.camera,
                    ranked.fused,
                    kept_share=share,
                    ranks=dict(ranked.ranks),
                    scores=dict(ranked.scores),
                    **_poses(record, segment),
                )
            )
    return tuple(evidence)


def attended_evidence(
    mass: Mapping[int, float],
    shown: Sequence[int],
    retrieved: Sequence[FrameEvidence],
    arena: Arena,
    index: FrameIndex,
    *,
    by_time: bool = False,
) -> tuple[FrameEvidence, ...]:
    """The retrieved frames, and those of the ``shown`` ones with the most attention, MAX_EVIDENCE in all; best first.

    :param mass: share of attention by frame, by which the evidence is ordered;
    :param by_time: the question asks which of the retrieved frames was first or last: they keep their order, before the
        other ones.
    """
    allowed = set(shown) - {frame.frame_id for frame in retrieved}
    kept = arena.frames_kept()
    ranked = sorted((frame for frame in mass if frame in allowed), key=lambda frame: (-mass[frame], -frame))
    evidence = list(retrieved)
    for frame in ranked[: max(1, MAX_EVIDENCE - len(evidence))]:
        record = index[frame]
        share = min(1.0, kept.get(frame, 0.0) / max(record.tokens, 1))
        evidence.append(
            FrameEvidence(
                frame, record.stamp, record.stamp_end, record.camera, mass[frame], share, **_poses(record, index.map)
            )
        )
    if not by_time:
        evidence.sort(key=lambda frame: -mass.get(frame.frame_id, 0.0))
    return tuple(evidence)


def _poses(record: ArchivedFrame | FrameRecord, segment: str) -> dict[str, Any]:
    """Poses of a frame for its evidence, unknown where they belong to another map than the present one."""
    if record.pose is None or record.pose.map != segment:
        return {}
    return {"pose": record.pose, "base_end": record.base_end}
