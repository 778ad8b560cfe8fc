# SPDX-License-Identifier: Apache-2.0
"""Indices of a frame's tokens in the archive: patches in raster order, then texts."""

from __future__ import annotations

import torch
from torch import Tensor

from ros_kvstream.models.base import FrameTokens, VideoLanguageModel
from ros_kvstream.models.layout import TEXT_AFTER, TEXT_BEFORE


def token_indices(model: VideoLanguageModel, tokens: FrameTokens) -> Tensor | None:
    """Index of each token of a frame, int64 [tokens]; None for all patches and nothing else."""
    if tokens.coordinates is None:
        return None
    rows, columns = tokens.rows, tokens.columns
    h, w = tokens.coordinates.long().unbind(-1)
    text, behind = rows * columns, rows * columns + model.frame_text_tokens
    indices = h * columns + w
    indices = torch.where(h == TEXT_BEFORE, text - 1 - w, indices)
    return torch.where(h == TEXT_AFTER, behind - 1 - w, indices)


def grid_coordinates(model: VideoLanguageModel, indices: Tensor, rows: int, columns: int) -> Tensor:
    """Grid coordinates (models/layout.py), int32 [tokens, 2], from indices, int64 [tokens]."""
    text, behind = rows * columns, rows * columns + model.frame_text_tokens
    if not (indices >= text).any():  # patches alone, as in most families
        return torch.stack([indices.div(columns, rounding_mode="floor"), indices % columns], dim=-1).int()
    after = behind - len(model.frame_text(0.0)[1])  # the text after a grid has a fixed length
    coordinates = torch.stack([indices.div(columns, rounding_mode="floor"), indices % columns], dim=-1)
    for start, h, w in ((text, TEXT_BEFORE, text - 1 - indices), (after, TEXT_AFTER, behind - 1 - indices)):
        place = torch.stack([torch.full_like(w, h), w], dim=-1)
        coordinates = torch.where((indices >= start)[:, None], place, coordinates)
    return coordinates.int()
