"""Which archived frames showed something new when they were seen, whatever is asked: the moments of a stream.

A frame is news when one of its patches, or its picture as a whole, is unlike the frames around it: for each patch one
minus the cosine of its un-rotated key and the mean unit key of the neighbours in time, the newest patch counting.
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
"""Frames looked at together, at least."""


def novelty_scores(archive: Archive, allowed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """How new each frame was: the mean over searched layers, and the external embedding, of standardised novelties.

    :param allowed: slots that are scored, [slots].
    :returns: float32 [slots], -inf where a slot is not scored. Costs time in the number of frames, and room for a
        hundredth of them.
    """
    table, plan = archive.table, archive.plan
    scored = allowed & table.frames["live"]
    counts = torch.from_numpy(table.frames["index_count"].astype("int64"))
    first = int(plan.settings.mean_key)
    planes = [(plane, counts, first) for plane in table.index_keys]
    total, parts = np.zeros(len(scored), np.float32), 0
    if plan.shape.embedding and bool(table.frames["embedded"][scored].all()):
        planes.append((table.embeddings[:, None], torch.ones_like(counts), 0))
    for plane, valid, start in planes:
        novelty = np.zeros(len(scored), np.float32)
        for slots, own in _chunks(archive, scored):
            novelty[slots[own].numpy()] = _novelty(plane[slots][:, start:].float(), valid[slots] - start)[own].numpy()
        held = novelty[scored]
        if held.size and held.std() > 1e-6:
            total[scored] += (held - held.mean()) / held.std()
            parts += 1
    total /= max(parts, 1)
    total[~scored] = NOT_SCORED
    return total


def _chunks(archive: Archive, scored: NDArray[np.bool_]) -> Iterator[tuple[Tensor, slice]]:
    """Slots of one camera in the order of time, chunk by chunk with the neighbours of both ends; which are its own."""
    frames, size = archive.table.frames, max(SMALLEST_CHUNK, archive.plan.index_chunk)
    for camera in np.unique(frames["camera"][scored]):
        slots = np.flatnonzero(scored & (frames["camera"] == camera))
        slots = slots[np.lexsort((frames["frame_id"][slots], frames["stamp"][slots]))]
        for start in range(0, len(slots), size):
            low, high = max(0, start - NEIGHBOURS), min(len(slots), start + size + NEIGHBOURS)
            own = slice(start - low, min(start + size, len(slots)) - low)
            yield torch.from_numpy(slots[low:high]), own


def _novelty(keys: Tensor, counts: Tensor) -> Tensor:
    """One minus the cosine of the least expected key and the mean of the neighbours' unit keys, [frames].

    :param keys: float32 [frames, entries, width], in the order of time; :param counts: valid entries, [frames].
    """
    valid = torch.arange(keys.shape[1]) < counts[:, None]
    units = functional.normalize(keys, dim=-1) * valid[..., None]
    pooled = units.sum(1) / counts.clamp_min(1)[:, None]
    around = functional.normalize(sums_around(pooled)[0] - pooled, dim=-1)
    likeness = torch.einsum("few,fw->fe", units, around).masked_fill(~valid, 1.0)
    return 1.0 - likeness.amin(1)
