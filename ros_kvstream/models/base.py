"""The one interface over all model families: frames to tokens, tokens to positions, a forward into the arena.

docs/add_a_model.md shows how a family is added. Most are written on top of models/network.py, which does for every
network of transformers what does not depend on the family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ros_kvstream.errors import ModelError
from ros_kvstream.memory.arena import Arena
from ros_kvstream.memory.budget import CacheShape
from ros_kvstream.memory.rotary import Rotary
from ros_kvstream.models.layout import Layout, grid_places, text_places

Frame = NDArray[np.uint8]
"""A picture, RGB uint8 [height, width, 3]."""


@dataclass(frozen=True)
class FrameTokens:
    """One frame as the language model gets it."""

    embeddings: Tensor
    """[tokens, width] in the order of the sequence. Width is the hidden size, or a multiple of it where features of
    several tower layers go in (DeepStack); text may be narrower."""
    rows: int
    columns: int
    """Grid of its patches."""
    coordinates: Tensor | None = None
    """(row, column) of each token, int32 [tokens, 2], negative for what is no patch (models/layout.py); None for all
    patches in raster order and nothing else."""
    before: int = 0
    """Tokens of text before the grid."""
    after: int = 0
    """Tokens of text behind it."""

    def of_patches(self, values: Tensor) -> Tensor:
        """What is known per patch, [rows * columns], per token; what is no patch gets the greatest value."""
        if self.coordinates is None:
            return values
        row, column = self.coordinates.long().unbind(-1)
        found = values[(row * self.columns + column).clamp_min(0)]
        return torch.where(row >= 0, found, values.max())


class VideoLanguageModel(ABC):
    """A video language model of any family, as the memory needs it. Single-threaded; weights are never changed."""

    name: str
    """Hub id or folder that it was loaded from."""
    family: str
    """Model type, as in the checkpoint's config.json."""
    trained: bool = True
    """False when there were no weights to load and random ones are used."""
    shape: CacheShape
    rotary: Rotary
    layout: Layout
    """Where tokens are put."""
    device: torch.device
    tokens_per_second: float = 0.0
    """Positions per second of stream time; 0 where positions follow the order of arrival instead."""
    position_limit: int
    """First position outside the trained range."""
    patch_side: int = 28
    """Side in pixels of the resized picture's square that one visual token stands for."""
    frames_per_grid: int = 1
    """Most real frames that one grid of patches can hold; 2 where the tower looks at two moments at once."""
    frame_text_tokens: int = 0
    """Most tokens of text around one frame."""
    prefix_ids: tuple[int, ...]
    """Tokens before the frames: system prompt, opening of the user's turn, start of vision."""
    eos_ids: frozenset[int]
    """Tokens that end an answer."""

    # -- pictures -------------------------------------------------------------------------------------------------

    @abstractmethod
    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens for a picture of this size, without computing it."""

    @abstractmethod
    def encode_frames(self, frames: Sequence[Frame]) -> list[FrameTokens]:
        """Run the vision tower on pictures of any sizes; without the texts of ``frame_text``."""

    def encode_grids(self, grids: Sequence[Sequence[Frame]]) -> list[FrameTokens]:
        """Tokens of grids of one frame, or of up to ``frames_per_grid`` frames of one size."""
        if all(len(frames) == 1 for frames in grids):
            return self.encode_frames([frames[0] for frames in grids])
        return self.encode_pairs([(frames[0], frames[-1]) for frames in grids])

    def encode_pairs(self, pairs: Sequence[tuple[Frame, Frame]]) -> list[FrameTokens]:
        """Tokens of two frames in one grid, the earlier first; twice the same frame is that frame by itself.

        :raises ModelError: where the family has one frame a grid.
        """
        raise ModelError(f"the family {self.family} has one frame a grid: set memory.frames_per_grid to 1.")

    def frame_tokens(self, rows: int, columns: int) -> int:
        """Most tokens of a frame with this grid: patches, separators and text."""
        return rows * columns + self.frame_text_tokens

    # -- text -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def suffix_ids(self, question: str) -> list[int]:
        """Tokens after the frames: end of vision, the question, opening of the answer."""

    def frame_text(self, seconds: float) -> tuple[list[int], list[int]]:
        """Tokens before and behind the grid of a frame seen at this time of the stream; none by default."""
        return [], []

    @abstractmethod
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token embeddings, [tokens, hidden]."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Answer tokens to text."""

    def complete(self, tokens: FrameTokens, seconds: float, kept: Tensor | None = None) -> FrameTokens:
        """A frame from the tower with its text around it, and of its patches only those kept.

        :param kept: bool [rows * columns]; None for all.
        """
        before, after = self.frame_text(seconds)
        if kept is None and not before and not after:
            return tokens
        embeddings = tokens.embeddings
        coordinates = grid_places(tokens.rows, tokens.columns) if tokens.coordinates is None else tokens.coordinates
        if kept is not None:
            patch = (coordinates[:, 0] * tokens.columns + coordinates[:, 1]).clamp_min(0).long()
            stays = kept[patch] | (coordinates[:, 0] < 0)
            embeddings, coordinates = embeddings[stays.to(embeddings.device)], coordinates[stays]
        if before or after:
            text = self.embed([*before, *after])
            text = torch.nn.functional.pad(text, (0, embeddings.shape[1] - text.shape[1]))
            embeddings = torch.cat([text[: len(before)], embeddings, text[len(before) :]])
            first, last = text_places(len(before), len(after))
            coordinates = torch.cat([first, coordinates, last])
        return FrameTokens(embeddings, tokens.rows, tokens.columns, coordinates, len(before), len(after))

    # -- positions ------------------------------------------------------------------------------------------------

    def frame_span(self, tokens: FrameTokens) -> int:
        """Positions along the first axis that a frame takes."""
        return tokens.before + self.layout.span(tokens.rows, tokens.columns) + tokens.after

    def frame_positions(self, start: int, rows: int, columns: int, coordinates: Tensor | None = None) -> Tensor:
        """(p, h, w) of one frame's tokens whose grid starts at ``start``, int32 [tokens, 3].

        :param coordinates: (row, column) of the tokens, [tokens, 2]; None for all patches in raster order.
        """
        return self.layout.frame(start, grid_places(rows, columns) if coordinates is None else coordinates, rows, columns)

    def text_positions(self, start: int, tokens: int) -> Tensor:
        """(p, h, w) of text of no frame from ``start`` on, int32 [tokens, 3]."""
        return self.layout.text(start, tokens)

    def text_start(self, newest: int, largest_side: int) -> int:
        """First position after the frames: one more than any of theirs."""
        return self.layout.after(newest, largest_side)

    # -- the language model ---------------------------------------------------------------------------------------

    @abstractmethod
    def forward(
        self,
        arena: Arena,
        embeddings: Tensor,
        positions: Tensor,
        *,
        logits: bool,
        visible: list[Tensor] | None = None,
    ) -> Tensor | None:
        """Run announced tokens (``arena.begin``) through the language model; each layer writes into the arena.

        :param embeddings: [tokens, width]; :param positions: (p, h, w), int32 [tokens, 3].
        :param visible: per layer bool [kv_heads, slots] over the first slots, False where a slot is hidden from these
            tokens; None shows everything.
        :param logits: whether the last token's logits are wanted; returned float32 [vocabulary], else None.
        """

    @abstractmethod
    def capture_queries(self, layers: Sequence[int]) -> AbstractContextManager[dict[int, Tensor]]:
        """Within the context, collect the un-rotated queries of each forward, layer -> [heads, tokens, head_dim]."""

    @abstractmethod
    def capture_keys_values(self) -> AbstractContextManager[tuple[dict[int, Tensor], dict[int, Tensor]]]:
        """Within the context, collect the un-rotated keys and the values of each forward in every layer.

        Layer -> [kv_heads, tokens, head_dim], in the native dtype.
        """
