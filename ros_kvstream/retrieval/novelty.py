# SPDX-License-Identifier: Apache-2.0
"""Novelty of archived frames, independent of a question: the moments of a stream.

A frame is novel when one of its patches, or its external embedding, differs from the frames around it: one minus the
cosine of the patch's un-rotated key and the mean unit key of the neighbours in time, at its maximum over patches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ros_kvstream.memory.archive.archive import Archive
from ros_kvstream.retrieval.internal import NEIGHBOURS, NOT_SCORED, sums_around

SMALLEST_CHUNK = 64
"""Smallest number of frames processed together."""


def novelty_scores(archive: Archive, allowed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Novelty of each frame: standardised, averaged over searched layers and the external embedding.

    :param allowed: slots that are scored, [slots].
    :returns: float32 [slots], -inf where a slot is not scored.
    """
    table, plan = archive.table, archive.plan
    scored = allowed & table.frames["live"]
    counts = torch.from_numpy(table.frames["index_count"].astype("int64"))
    first = int(plan.settings.mean_key)
    sources = [(keys, counts, first) for keys in table.index_keys]
    total, parts = np.zeros(len(scored), np.float32), 0
    if plan.shape.embedding and bool(table.frames["embedded"][scored].all()):
        sources.append((table.embeddings[:, None], torch.ones_like(counts), 0))
    for keys, valid, start in sources:
        novelty = np.zeros(len(scored), np.float32)
        for slots, own in _chunks(archive, scored):
            novelty[slots[own].numpy()] = _novelty(keys[slots][:, start:].float(), valid[slots] - start)[own].numpy()
        held = novelty[scored]
        if held.size and held.std() > 1e-6:
            total[scored] += (held - held.mean()) / held.std()
            parts += 1
    total /= max(parts, 1)
    total[~scored] = NOT_SCORED
    return total


def _chunks(archive: Archive, scored: NDArray[np.bool_]) -> Iterator[tuple[Tensor, slice]]:
    """Slots of one camera in time order by chunk, with the neighbours at both ends, and which of them are its own."""
    frames, size = archive.table.frames, max(SMALLEST_CHUNK, archive.plan.index_chunk)
    for camera in np.unique(frames["camera"][scored]):
        slots = np.flatnonzero(scored & (frames["camera"] == camera))
        slots = slots[np.lexsort((frames["frame_id"][slots], frames["stamp"][slots]))]
        for start in range(0, len(slots), size):
            low, high = max(0, start - NEIGHBOURS), min(len(slots), start + size + NEIGHBOURS)
            own = slice(start - low, min(start + size, len(slots)) - low)
            yield torch.from_numpy(slots[low:high]), own


def _novelty(keys: Tensor, counts: Tensor) -> Tensor:
    """One minus the smallest cosine between a frame's keys and the mean of the neighbours' unit keys, [frames].

    :param keys: float32 [frames, entries, width], in time order; :param counts: valid entries, [frames].
    """
    valid = torch.arange(keys.shape[1]) < counts[:, None]
    units = functional.normalize(keys, dim=-1) * valid[..., None]
    pooled = units.sum(1) / counts.clamp_min(1)[:, None]
    around = functional.normalize(sums_around(pooled)[0] - pooled, dim=-1)
    similarity = torch.einsum("few,fw->fe", units, around).masked_fill(~valid, 1.0)
    return 1.0 - similarity.amin(1)
