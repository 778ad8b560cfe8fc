"""Which patches of a frame the arena still holds, for showing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from ros_kvstream.memory.arena import Arena


def kept_patches(arena: Arena, frame_ids: Iterable[int], origin: int) -> dict[int, NDArray[np.float32]]:
    """Share of layers and KV heads that keep each patch of each frame of which some patch is left.

    :param origin: the h and w position of a frame's first patch; the grid ends at the last patch that any layer keeps.
    :returns: frame id -> float32 [rows, columns], 0 - 1.
    """
    layers = arena._layers
    frames = torch.stack([layer.frames[:, : arena.frames_end] for layer in layers])
    coordinates = torch.stack([layer.positions[:, : arena.frames_end, 1:] for layer in layers]).long() - origin
    found = {}
    for frame_id in dict.fromkeys(frame_ids):
        rows, columns = coordinates[(frames == frame_id) & (coordinates[..., 0] >= 0)].cpu().T
        if len(rows) == 0:
            continue
        grid = torch.zeros(int(rows.max()) + 1, int(columns.max()) + 1)
        grid.index_put_((rows, columns), torch.ones(len(rows)), accumulate=True)
        found[frame_id] = (grid / (frames.shape[0] * frames.shape[1])).numpy()
    return found
