"""Numbers by which the archive knows a frame's tokens: patches in raster order, behind them texts and separators."""

from __future__ import annotations

import torch
from torch import Tensor

from ros_kvstream.models.base import FrameTokens, VideoLanguageModel
from ros_kvstream.models.layout import SEPARATOR, TEXT_AFTER, TEXT_BEFORE


def token_indices(model: VideoLanguageModel, tokens: FrameTokens) -> Tensor | None:
    """Number of each token of a frame, int64 [tokens]; None for all patches and nothing else."""
    if tokens.coordinates is None:
        return None
    rows, columns = tokens.rows, tokens.columns
    h, w = tokens.coordinates.long().unbind(-1)
    text, behind = rows * columns, rows * columns + model.frame_text_tokens
    numbers = h * columns + w
    numbers = torch.where(h == TEXT_BEFORE, text - 1 - w, numbers)
    numbers = torch.where(h == TEXT_AFTER, behind - 1 - w, numbers)
    return torch.where(h == SEPARATOR, behind + w, numbers)


def grid_coordinates(model: VideoLanguageModel, numbers: Tensor, rows: int, columns: int) -> Tensor:
    """Places (models/layout.py), int32 [tokens, 2], from numbers, int64 [tokens]."""
    text, behind = rows * columns, rows * columns + model.frame_text_tokens
    if not (numbers >= text).any():  # patches alone, as in most families
        return torch.stack([numbers.div(columns, rounding_mode="floor"), numbers % columns], dim=-1).int()
    after = behind - len(model.frame_text(0.0)[1])  # as many behind every frame; the time before it varies
    coordinates = torch.stack([numbers.div(columns, rounding_mode="floor"), numbers % columns], dim=-1)
    for start, h, w in (
        (text, TEXT_BEFORE, text - 1 - numbers),
        (after, TEXT_AFTER, behind - 1 - numbers),
        (behind, SEPARATOR, numbers - behind),
    ):
        coordinates = torch.where((numbers >= start)[:, None], torch.stack([torch.full_like(w, h), w], dim=-1), coordinates)
    return coordinates.int()
